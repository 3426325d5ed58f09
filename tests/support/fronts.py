"""Real nginx and Caddy in front of a relay: each a process of its own, with its own configuration,
temp folder and free loopback port; ended with the block that started it."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from support.parts import require
from support.ports import free_port

TIMEOUT_S = 60.0
LOOK_S = 0.02
GUIDE = Path(__file__).parents[2] / "docs" / "self-hosting.md"
DOCUMENTED_RELAY = "127.0.0.1:8080"
DOCUMENTED_HOST = "relay.example.org"


class Front(NamedTuple):
    """Where clients find the relay, and the root certificate they need for it."""

    url: str
    root: Path | None = None


def documented(language: str) -> str:
    """The configuration that the guide gives for a server."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"the guide has {len(found)} blocks of {language}"
    return str(found[0])


@contextmanager
def nginx(folder: Path, relay_url: str, settings: str = "") -> Iterator[Front]:
    """nginx as it comes, with a `location /` that passes everything on and nothing else.

    `settings` are directives of the server.
    """
    folder.mkdir(exist_ok=True)
    port = free_port()
    server = f"listen 127.0.0.1:{port}; {settings} location / {{ proxy_pass {relay_url}; }}"
    with _nginx(folder, port, f"server {{ {server} }}"):
        yield Front(f"http://127.0.0.1:{port}")


@contextmanager
def documented_nginx(folder: Path, relay_url: str) -> Iterator[Front]:
    """nginx with the guide's configuration and a certificate of a private authority."""
    folder.mkdir(exist_ok=True)
    port, files = free_port(), make_certificate(folder)
    text = _put(
        documented("nginx"),
        {
            "listen 443": f"listen 127.0.0.1:{port}",
            f"/etc/ssl/{DOCUMENTED_HOST}.crt": str(files.certificate),
            f"/etc/ssl/{DOCUMENTED_HOST}.key": str(files.key),
            DOCUMENTED_RELAY: relay_url.removeprefix("http://"),
        },
    )
    with _nginx(folder, port, text):
        yield Front(f"https://localhost:{port}", files.root)


@contextmanager
def documented_caddy(folder: Path, relay_url: str) -> Iterator[Front]:
    """Caddy with the guide's configuration and its own authority."""
    require("caddy")
    folder.mkdir(exist_ok=True)
    port, storage = free_port(), folder / "storage"
    site = _put(
        documented("caddy"),
        {
            f"{DOCUMENTED_HOST} {{": f"https://localhost:{port} {{\n    tls internal",
            DOCUMENTED_RELAY: relay_url.removeprefix("http://"),
        },
    )
    options = [
        "admin off",
        "default_bind 127.0.0.1",
        "auto_https disable_redirects",
        "skip_install_trust",
    ]
    options.append(f"storage file_system {storage}")
    config = folder / "Caddyfile"
    config.write_text("\n".join(["{", *options, "}", "", site]))
    argv = ["caddy", "run", "--config", str(config), "--adapter", "caddyfile"]
    root = storage / "pki" / "authorities" / "local" / "root.crt"
    with _running(folder, argv, port, wanted=root, HOME=str(folder)):
        yield Front(f"https://localhost:{port}", root)


def _put(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, f"the guide has no {old!r}"
        text = text.replace(old, new)
    return text


@contextmanager
def _nginx(folder: Path, port: int, server: str) -> Iterator[None]:
    require("nginx")
    temps = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    config = folder / "nginx.conf"
    config.write_text(
        "\n".join(
            [
                "user root;" if os.geteuid() == 0 else "",
                f"pid {folder}/nginx.pid; daemon off; worker_processes 1;",
                f"error_log {folder}/error.log; events {{}}",
                "http { access_log off; gzip on; gzip_types *; gzip_proxied any;",
                "gzip_min_length 1;",
                *(f"{name}_temp_path {folder}/{name};" for name in temps),
                server,
                "}",
            ]
        )
    )
    argv = ["nginx", "-p", str(folder), "-c", str(config), "-e", f"{folder}/error.log"]
    with _running(folder, argv, port):
        yield


@contextmanager
def _running(
    folder: Path, argv: list[str], port: int, wanted: Path | None = None, **environ: str
) -> Iterator[None]:
    """A server from the moment it answers (and has written `wanted`) to its end."""
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    log = folder / "server.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [shutil.which(argv[0], path=search) or argv[0], *argv[1:]],
            cwd=folder,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        until = time.monotonic() + TIMEOUT_S
        while not (_answers(port) and (wanted is None or wanted.exists())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(LOOK_S)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), TIMEOUT_S).close()
    except OSError:
        return False
    return True


class Files(NamedTuple):
    """PEM files: a server's certificate with its key, and the root that vouches for it."""

    root: Path
    certificate: Path
    key: Path


def make_certificate(folder: Path, host: str = "localhost") -> Files:
    """A certificate for a host by an authority of its own."""
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root_name, name = _name("Airlox test authority"), _name("localhost")
    root = (
        _builder(root_name, root_name, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority, hashes.SHA256())
    )
    certificate = (
        _builder(name, root_name, server.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(authority, hashes.SHA256())
    )
    files = Files(folder / "root.crt", folder / "server.crt", folder / "server.key")
    files.root.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        server.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
