"""A job of `local` behind an allow list, on every ground. Numbers: the attack list."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox.errors import SandboxError
from airlox.sandbox.linux import doorway
from airlox.sandbox.linux.outlet import Outlet, open_from_outside, open_namespace_of
from support import engine, grounds
from support.grounds import Ground
from support.internet import (
    HOST,
    HOST_6,
    METADATA,
    NAME,
    OWN,
    PRIVATE,
    Internet,
    internet,
    processes_in,
)
from support.outside import ECHO
from support.parts import require

DOCKER = Ground("docker", "root")
EACH_GROUND = pytest.mark.parametrize(
    "ground", [*grounds.EACH, pytest.param(DOCKER, marks=pytest.mark.slow)], ids=str
)
EACH_LOCAL = pytest.mark.parametrize("ground", grounds.EACH, ids=str)
NO_WAY = {"ENETUNREACH", "EADDRNOTAVAIL"}
"""The latter where there is no IPv6 at all."""
NOBODY = {"ECONNREFUSED", "EADDRNOTAVAIL"}
HOSTS = [f"{NAME}:{ECHO}", NAME]
ASK = """
def ask(head, then=b""):
    with socket.create_connection(("127.0.0.1", 3128), 20) as connection:
        connection.sendall(head.encode() + b"\\r\\n\\r\\n" + then)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return answer
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    names = {f"inner.{NAME}": [[PRIVATE]]}
    with internet(tmp_path_factory.mktemp("internet"), names) as made:
        yield made


def run(ground: Ground, net: Internet, code: str, **request: Any) -> Any:
    given = {"network": "allow_list", "hosts": HOSTS, "way_in": net.way_in, **request}
    return ground.run(ASK + code, **given)


class TestAllowList:
    @EACH_GROUND
    def test_what_is_let_through_and_what_is_not(self, ground: Ground, net: Internet) -> None:
        code = f"""
tell(ask("CONNECT {NAME}:{ECHO} HTTP/1.1", b"hello").split(b"\\r\\n")[-1].decode())
for target in ("{NAME}:80", "other.org:443", "{METADATA}:80", "{HOST}:{ECHO}", "[::1]:22"):
    tell(ask(f"CONNECT {{target}} HTTP/1.1").split()[1].decode())
tell(ask("GET http://{NAME}/ HTTP/1.1").split()[1].decode())
"""
        seen = run(ground, net, code)
        assert seen.words == ["hello", *["403"] * 6], seen.errors
        assert (seen.egress["connections"], seen.egress["denials"]) == (1, 6)
        assert (seen.egress["sent_bytes"], seen.egress["received_bytes"]) == (5, 5)

    @EACH_GROUND
    def test_there_is_no_other_way(self, ground: Ground, net: Internet) -> None:  # 46
        before = net.connections()
        code = f"""
for address in {[HOST, HOST_6, PRIVATE, METADATA, OWN]}:
    attempt(socket.create_connection, (address, {ECHO}), 5)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    attempt(socket.socket(family, socket.SOCK_DGRAM).sendto, b"x", (address, 53))
attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
attempt(socket.socket, socket.AF_INET6, socket.SOCK_RAW, 58)
attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
attempt(socket.create_connection, ("127.0.0.1", bait["port"]), 5)
attempt(socket.socket(socket.AF_UNIX).connect, "\\0" + bait["abstract"])
attempt(socket.socket(socket.AF_UNIX).connect, bait["socket"])
"""
        seen = run(ground, net, code)
        assert set(seen.words[:10]) <= NO_WAY
        assert seen.words[10:12] == ["EPERM", "EPERM"]
        assert seen.words[12] in ("EAFNOSUPPORT", "EPERM")
        assert seen.words[13] == "ECONNREFUSED"
        assert seen.words[14] in ("ECONNREFUSED", "EPERM")
        assert seen.words[15] == "ENOENT"
        assert seen.egress["denials"] == 0
        assert net.connections() == before

    @EACH_GROUND
    def test_the_door_is_nobodys_in_there(self, ground: Ground, net: Internet) -> None:
        """No process of the job holds it, and no server of the job can take its place."""
        code = """
found = [name for name in os.listdir("/proc") if name.isdigit()]
tell(len(found))
attempt(socket.create_server, ("127.0.0.1", 3128))
attempt(socket.create_server, ("0.0.0.0", 3128))
attempt(os.kill, 1, 9)
tell(ask("GET / HTTP/1.1").split()[1].decode())
tell(os.path.exists("/run/airlox"))
"""
        seen = run(ground, net, code)
        assert seen.words[:3] == ["2", "EADDRINUSE", "EADDRINUSE"]
        assert seen.words[3] in ("EPERM", "done")  # pid 1 hears no signal from inside
        assert seen.words[4:] == ["400", "False"]

    @EACH_GROUND
    def test_open_connections_do_not_hold_up_the_end(self, ground: Ground, net: Internet) -> None:
        code = f"""
held = []
for _ in range(5):
    connection = socket.create_connection(("127.0.0.1", 3128), 20)
    connection.sendall(b"CONNECT {NAME}:{ECHO} HTTP/1.1\\r\\n\\r\\n")
    held.append(connection)
    connection.recv(100)
if os.fork() == 0:
    time.sleep(60)
"""
        seen = run(ground, net, code)
        assert (seen.cause, seen.exit_code) == ("exit", 0)
        assert seen.egress["connections"] == 5

    @EACH_GROUND
    def test_a_name_is_looked_up_outside(self, ground: Ground, net: Internet) -> None:  # 45
        code = f"""
tell(ask("CONNECT inner.{NAME}:443 HTTP/1.1").split()[1].decode())
try:
    socket.getaddrinfo("{NAME}", 443)
    tell("found")
except socket.gaierror:
    tell("none")
"""
        seen = run(ground, net, code, hosts=[f"*.{NAME}"])
        assert seen.words == ["403", "none"]
        assert seen.egress["denied"] == [{"target": f"inner.{NAME}:443", "reason": "not_public"}]

    def test_programs_find_it_and_show_why_not(self, net: Internet) -> None:
        require("curl")
        code = """
import subprocess, urllib.request
def tried(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    print(done.stdout, done.stderr, flush=True)
tried("curl", "-sS", "-v", "-m", "20", "http://other.org/")
tried("curl", "-sS", "-v", "-m", "20", "https://other.org/")
try:
    urllib.request.urlopen("https://other.org/", timeout=60)
except OSError as error:
    print(error, flush=True)
"""
        seen = run(grounds.LOCAL[0], net, code)
        assert "airlox: blocked: other.org:80; only CONNECT is let through" in seen.text
        blocked = "blocked: other.org:443; allow with --allow-host other.org:443 on the runner"
        assert f"< HTTP/1.1 403 {blocked}" in seen.text
        assert f"Tunnel connection failed: 403 {blocked}" in seen.text


@EACH_GROUND
def test_with_no_network_nothing_gets_out(ground: Ground, net: Internet) -> None:  # 39-42
    before = net.connections()
    code = f"""
for address in {[HOST, HOST_6, PRIVATE, METADATA, OWN, "8.8.8.8"]}:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    attempt(socket.create_connection, (address, {ECHO}), 5)
    attempt(socket.socket(family, socket.SOCK_DGRAM).sendto, b"x", (address, 53))
attempt(socket.create_connection, ("127.0.0.1", 3128), 5)
attempt(socket.create_connection, ("127.0.0.1", bait["port"]), 5)
attempt(socket.create_connection, ("::1", bait["port"]), 5)
attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
attempt(socket.socket, socket.AF_INET6, socket.SOCK_RAW, 58)
attempt(socket.socket(socket.AF_UNIX).connect, "\\0" + bait["abstract"])
attempt(socket.socket(socket.AF_UNIX).connect, bait["socket"])
"""
    seen = ground.run(code, way_in=net.way_in)
    assert set(seen.words[:12]) <= NO_WAY
    assert set(seen.words[12:15]) <= NOBODY
    assert seen.words[15:17] == ["EPERM", "EPERM"]
    assert seen.words[17] in ("ECONNREFUSED", "EPERM")
    assert seen.words[18] == "ENOENT"
    assert seen.egress is None
    assert net.connections() == before


class TestSharedNetwork:
    """A job that may use the network shares the machine's, and is told so."""

    @EACH_LOCAL
    def test_what_stays_closed(self, ground: Ground, net: Internet) -> None:
        code = f"""
attempt(socket.create_connection, ("{HOST}", {ECHO}), 5)
attempt(socket.create_connection, ("{HOST_6}", {ECHO}), 5)
tell("found" if socket.getaddrinfo("{NAME}", 443) else "none")
attempt(socket.socket(socket.AF_UNIX).connect, "\\0" + bait["abstract"])
attempt(socket.socket(socket.AF_UNIX).connect, bait["socket"])
attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
attempt(socket.socket, socket.AF_INET6, socket.SOCK_RAW, 58)
attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
attempt(socket.create_server, ("0.0.0.0", 80))
"""
        seen = ground.run(code, network="on", way_in=net.way_in)
        assert seen.words[:3] == ["done", "done", "found"]
        assert seen.words[3:] == ["EPERM", "ENOENT", "EPERM", "EPERM", "EAFNOSUPPORT", "EACCES"]
        assert seen.egress is None

    @EACH_LOCAL
    def test_what_is_open_is_no_layer(self, ground: Ground) -> None:
        """Loopback and metadata services are within reach: an operator can refuse that."""
        with ground.started("", network="on", options={"require_layers": ["network"]}) as process:
            answer = json.loads(process.communicate(timeout=60)[0])
        assert answer["refused"] == "network_shared"
        assert "--allow-host" in answer["message"]


class TestContainers:
    """What else a container needs for a list of hosts is found out at the start."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("ground", "options", "reason"),
        [
            (Ground("docker", "user"), {}, "a runner that is root"),
            (DOCKER, {"image": engine.BARE}, "an image with a shell"),
            (DOCKER, {"container_runtime": "runsc"}, "the runtime runsc"),
        ],
        ids=["ordinary-user", "no-shell", "gvisor"],
    )
    def test_refused(self, ground: Ground, options: dict[str, str], reason: str) -> None:
        with ground.started("", network="allow_list", hosts=HOSTS, options=options) as process:
            answer = json.loads(process.communicate(timeout=120)[0])
        assert answer["refused"] == "allow_hosts_unsupported"
        assert reason in answer["message"]

    @pytest.mark.slow
    def test_nothing_is_left(self, net: Internet) -> None:
        """Neither the job's container nor the one that made its network."""
        network = run(DOCKER, net, "tell(os.readlink('/proc/self/ns/net'))").words[0]
        assert network.startswith("net:[")
        assert processes_in(network) == []


class TestDoor:
    def test_of_a_network_from_outside(self, net: Internet) -> None:
        """For networks that others made: opened there, served here."""
        pid = int(net.way_in[-1].split("/")[2])  # in this very network, which will do
        namespace = open_namespace_of(pid)
        try:
            with open_from_outside(namespace) as door:
                assert door.getsockname() == (doorway.ADDRESS, doorway.PORT)
                with socket.create_connection(door.getsockname(), 5), pytest.raises(OSError):
                    open_from_outside(namespace)
        finally:
            os.close(namespace)

    def test_that_is_no_network(self, net: Internet, tmp_path: Path) -> None:
        with open(tmp_path / "x", "wb") as file, pytest.raises(OSError):
            open_from_outside(file.fileno())

    def test_that_never_came(self) -> None:
        with Outlet(["example.org"]) as outlet, pytest.raises(SandboxError) as caught:
            outlet.take()
        assert caught.value.code == "no_door"
