"""Connections: deadlines, bounds, dead and cut connections, addresses, proxies, TLS."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import itertools
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.client import connection
from airlox.client.connection import parse_address, proxy_for, roots_advice, tls_context
from airlox.client.deadline import Deadline
from airlox.client.transport import Answer, Transport, _Chunks
from airlox.errors import ConnectionLost, LimitError, UsageError, ValidationError
from support.scripted import Peer, Scripted, always

PATIENT_S = 25.0


def make(base_url: str, environ: dict[str, str] | None = None) -> Transport:
    return Transport(base_url, user_agent="test/1", environ=environ or {})


def get(transport: Transport, *, limit: int = 1000, seconds: float = PATIENT_S) -> Answer:
    return transport.request("GET", "/x", deadline=Deadline.after(seconds), limit_bytes=limit)


@pytest.fixture
def echo() -> Iterator[Scripted]:
    with Scripted(always(200, b"hello")) as server:
        yield server


def test_addresses() -> None:
    address = parse_address("https://relay.example/base/")
    assert (address.host, address.port, address.prefix) == ("relay.example", 443, "/base")
    assert address.label == "https://relay.example"
    assert parse_address("http://[::1]:8080").label == "http://[::1]:8080"
    assert parse_address("https://bücher.example").host == "xn--bcher-kva.example"


@pytest.mark.parametrize(
    "base_url",
    [
        "http://relay.example",
        "ftp://localhost",
        "https://",
        "https://h:99999",
        "https://u@h",
        "https://[h/",
        "https://h\u2100",
        "https://h/\udcff",
    ],
)
def test_unusable_addresses_are_refused(base_url: str) -> None:
    with pytest.raises(ValidationError):
        parse_address(base_url)


def test_a_connection_is_kept_and_used_again() -> None:
    seen: list[int] = []

    def script(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            seen.append(peer.number)
            assert request.headers["user-agent"] == "test/1"
            assert request.headers["host"].startswith("127.0.0.1:")
            peer.answer(200, b"ok")

    with Scripted(script) as server:
        transport = make(server.base_url)
        for _ in range(3):
            assert get(transport).body == b"ok"
        transport.close()
    assert seen == [0, 0, 0]


def test_a_kept_connection_that_died_is_replaced() -> None:
    def script(peer: Peer) -> None:
        if peer.read() is not None:
            peer.answer(200, str(peer.number).encode())

    with Scripted(script) as server:
        transport = make(server.base_url)
        assert get(transport).body == b"0"
        # the server closed it after one answer; the end is noticed before it is used
        for number in (b"1", b"2"):
            answer = transport.request(
                "GET", "/", deadline=Deadline.after(PATIENT_S), limit_bytes=9, repeatable=True
            )
            assert answer.body == number
        transport.close()


def test_a_call_uses_the_connection_that_was_made_ahead() -> None:
    def script(peer: Peer) -> None:
        while peer.read() is not None:
            peer.answer(200, str(peer.number).encode())

    with Scripted(script) as server:
        transport = make(server.base_url)
        transport.connect_ahead()
        transport.connect_ahead()
        assert [get(transport).body for _ in range(2)] == [b"0", b"0"]
        transport.connect_ahead()  # there is one
        assert get(transport).body == b"0"
        transport.close()
        transport.connect_ahead()  # without a word: the next call says that it is closed


def test_one_made_ahead_that_died_is_replaced() -> None:
    over = threading.Event()

    def script(peer: Peer) -> None:
        if peer.number == 0:
            return
        peer.read()
        peer.answer(200, b"second")
        over.set()

    with Scripted(script) as server:
        transport = make(server.base_url)
        transport.connect_ahead()
        answer = transport.request(
            "GET", "/", deadline=Deadline.after(PATIENT_S), limit_bytes=9, repeatable=True
        )
        assert answer.body == b"second"
        assert over.wait(PATIENT_S)
        transport.close()


def test_what_fails_ahead_is_the_call_s_to_say() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        transport = make(f"http://127.0.0.1:{closed.getsockname()[1]}")
        transport.connect_ahead()
        with pytest.raises(ConnectionLost) as caught:
            get(transport)
    assert caught.value.code == "connection_lost"
    transport.close()


def test_connecting_ahead_holds_nobody_up(deaf: str) -> None:
    transport = make(deaf)
    transport.connect_ahead()
    with pytest.raises(ConnectionLost) as caught:
        get(transport, seconds=0.2)
    assert caught.value.code == "relay_timeout"
    transport.connect_ahead()
    transport.close()


def test_a_call_that_changes_something_is_not_sent_twice() -> None:
    """The connection dies after it took the request: only the caller knows what that means."""
    posts: list[int] = []

    def script(peer: Peer) -> None:
        if peer.read() is not None:
            peer.answer(200, b"warm")
        if peer.read() is not None:
            posts.append(peer.number)  # taken, never answered

    with Scripted(script) as server:
        transport = make(server.base_url)
        get(transport)
        with pytest.raises(ConnectionLost):
            transport.request(
                "POST", "/", deadline=Deadline.after(PATIENT_S), limit_bytes=9, body=b"x"
            )
        transport.close()
    assert posts == [0]


def test_an_answer_over_the_limit_is_refused_before_it_is_read() -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
        peer.gone()

    with Scripted(script) as server:
        transport = make(server.base_url)
        with pytest.raises(LimitError) as caught:
            get(transport)
        transport.close()
    assert caught.value.code == "answer_too_large"


def test_an_endless_answer_is_cut_at_the_limit() -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_stream()
        while True:
            peer.chunk(b"x" * 1000)

    with Scripted(script) as server:
        transport = make(server.base_url)
        with pytest.raises(LimitError):
            get(transport, limit=5000)
        transport.close()


def test_a_chunked_answer_leaves_the_connection_usable() -> None:
    def script(peer: Peer) -> None:
        while peer.read() is not None:
            peer.start_stream()
            peer.chunk(str(peer.number).encode())
            peer.send(b"0\r\n\r\n")

    with Scripted(script) as server:
        transport = make(server.base_url)
        assert [get(transport).body for _ in range(3)] == [b"0", b"0", b"0"]
        transport.close()


@pytest.mark.parametrize(
    "size", [b"-1", b"-" + b"f" * 40, b"+5", b"0x5", b"1_0", b"f" * 9, b"", b"x", b"5" * 300]
)
def test_a_chunk_of_an_odd_size_is_a_lost_connection(size: bytes) -> None:
    """A reader may take a negative size for all there is: then nothing would bound it."""

    def script(peer: Peer) -> None:
        peer.read()
        peer.start_stream()
        with contextlib.suppress(OSError):
            peer.send(size + b"\r\n" + bytes(4 << 20))

    with Scripted(script) as server:
        transport = make(server.base_url)
        with pytest.raises(ConnectionLost, match="chunk"):
            get(transport)
        transport.close()


@pytest.mark.parametrize("end", [b"", b"A: b\r\nC: d\r\n"])
def test_what_follows_the_last_chunk_is_read(end: bytes) -> None:
    def script(peer: Peer) -> None:
        while peer.read() is not None:
            peer.start_stream()
            peer.send(b"3;x=y\r\nabc\r\n2 \r\nde\r\n0\r\n" + end + b"\r\n")

    with Scripted(script) as server:
        transport = make(server.base_url)
        assert [get(transport, limit=5).body for _ in range(3)] == [b"abcde"] * 3
        with pytest.raises(LimitError):
            get(transport, limit=4)
        transport.close()


@pytest.mark.parametrize(
    "rest", [b"", b"ab", b"abc", b"abcxx0\r\n\r\n", b"abc\r\n0\r\n" + b"x\r\n" * 101]
)
def test_chunks_without_their_end_are_a_lost_connection(rest: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_stream()
        peer.send(b"3\r\n" + rest)

    with Scripted(script) as server:
        transport = make(server.base_url)
        with pytest.raises(ConnectionLost):
            get(transport)
        transport.close()


def test_a_short_answer_is_a_lost_connection() -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")

    with Scripted(script) as server:
        transport = make(server.base_url)
        with pytest.raises(ConnectionLost):
            get(transport)
        transport.close()


def test_a_dripping_peer_does_not_extend_the_deadline() -> None:
    ended = threading.Event()

    def script(peer: Peer) -> None:
        peer.read()
        peer.send(b"HTTP/1.1 200 OK\r\n")
        while not ended.wait(0.05):
            peer.send(b"X-Drip: y\r\n")

    with Scripted(script) as server:
        transport = make(server.base_url)
        with pytest.raises(ConnectionLost) as caught:
            get(transport, seconds=0.3)
        ended.set()
        transport.close()
    assert caught.value.code == "relay_timeout"


@pytest.mark.parametrize("watched", [False, True])
def test_a_refusal_in_the_middle_of_an_upload_is_heard(watched: bool) -> None:
    told: list[int] = []

    def script(peer: Peer) -> None:
        peer._file.readline()
        peer.answer(413, b"too much")
        # not read to its end: the rest of the upload meets a closed door
        peer._sock.shutdown(socket.SHUT_RD)
        peer.gone()

    with Scripted(script) as server:
        transport = make(server.base_url)
        answer = transport.request(
            "POST",
            "/",
            deadline=Deadline.after(PATIENT_S),
            limit_bytes=99,
            body=bytes(8 << 20),
            moved=told.append if watched else None,
        )
        transport.close()
    assert (answer.status, answer.body) == (413, b"too much")
    assert (8 << 20) not in told


def test_an_answer_that_is_cut_short_is_no_answer_though_it_is_watched() -> None:
    told: list[int] = []

    def script(peer: Peer) -> None:
        peer.read()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + bytes(70_000))

    with Scripted(script) as server:
        transport = make(server.base_url)
        with pytest.raises(ConnectionLost):
            transport.request(
                "GET",
                "/",
                deadline=Deadline.after(PATIENT_S),
                limit_bytes=100_000,
                moved=told.append,
            )
        transport.close()
    assert told == sorted(told)
    assert max(told) == 70_000


def test_close_ends_a_call_of_another_thread() -> None:
    asked = threading.Event()

    def script(peer: Peer) -> None:
        peer.read()
        asked.set()
        peer.gone()

    caught: list[BaseException] = []

    def call(transport: Transport) -> None:
        try:
            get(transport, seconds=60)
        except ConnectionLost as error:
            caught.append(error)

    with Scripted(script) as server:
        transport = make(server.base_url)
        thread = threading.Thread(target=call, args=(transport,))
        thread.start()
        assert asked.wait(PATIENT_S)
        transport.close()
        thread.join(PATIENT_S)
        assert not thread.is_alive()
    assert [error.code for error in caught if isinstance(error, ConnectionLost)] == ["closed"]
    with pytest.raises(ConnectionLost):
        get(transport)


def test_a_line_that_is_reset_while_it_is_made(certificate: tuple[Path, Path]) -> None:
    def script(peer: Peer) -> None:
        peer._sock.recv(1)
        linger = struct.pack("ii", 1, 0)  # so that closing it resets it
        peer._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    with Scripted(script) as server:
        transport = make(f"https://localhost:{server.port}")
        with pytest.raises(ConnectionLost):
            get(transport)
        transport.close()


def test_nobody_there() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        transport = make(f"http://127.0.0.1:{held.getsockname()[1]}")
        with pytest.raises(ConnectionLost) as caught:
            get(transport)
    assert "Connection refused" in caught.value.message
    assert caught.value.hint


def test_garbage_is_a_lost_connection() -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(b"SSH-2.0-\x1b[2J" + b"x" * 9000 + b"\r\n\r\n")

    with Scripted(script) as server:
        transport = make(server.base_url)
        with pytest.raises(ConnectionLost) as caught:
            get(transport)
        transport.close()
    # what it said may be shown, as one short line that does nothing to a terminal
    assert "SSH-2.0- [2J" in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 500


@pytest.fixture
def deaf() -> Iterator[str]:
    """A listener whose queue is full: nobody gets through to it, nobody is told."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_connecting_ends_at_the_deadline(deaf: str) -> None:
    transport = make(deaf)
    with pytest.raises(ConnectionLost) as caught:
        get(transport, seconds=0.2)
    assert caught.value.code == "relay_timeout"
    transport.close()


def test_connecting_ends_when_it_is_closed(deaf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_its_way = threading.Event()
    reach = connection.Connection._reach

    def seen(self: connection.Connection, sock: socket.socket) -> None:
        reach(self, sock)
        on_its_way.set()

    monkeypatch.setattr(connection.Connection, "_reach", seen)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 60.0)
    transport, caught = make(deaf), []

    def call() -> None:
        try:
            get(transport, seconds=60)
        except ConnectionLost as error:
            caught.append(error.code)

    thread = threading.Thread(target=call)
    thread.start()
    assert on_its_way.wait(PATIENT_S)
    transport.close()
    thread.join(PATIENT_S)
    assert not thread.is_alive()
    assert caught == ["closed"]


def test_a_dead_first_address_leaves_time_for_the_next(
    deaf: str, echo: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", parse_address(url).port))
        for url in (deaf, echo.base_url)
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *asked: found)
    transport = make(echo.base_url)
    assert get(transport, seconds=8).body == b"hello"
    transport.close()


def test_plain_http_never_uses_a_proxy(echo: Scripted) -> None:
    transport = make(echo.base_url, {"HTTPS_PROXY": "http://127.0.0.1:1", "http_proxy": "x"})
    assert get(transport).body == b"hello"
    transport.close()


def test_names_below_localhost_are_this_machine(echo: Scripted) -> None:
    transport = make(f"http://relay.localhost:{echo.port}")
    assert get(transport).body == b"hello"
    transport.close()


# -- TLS and proxies --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, made by the cryptography package."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_file, key_file


@pytest.fixture
def trusting(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    monkeypatch.setattr(connection, "tls_context", lambda: context)


def tls_script(certificate: tuple[Path, Path], *, through: str | None) -> object:
    """Serve TLS on a connection, after a CONNECT when `through` is the host to name in it."""

    def script(peer: Peer) -> None:
        if through is not None:
            request = peer.read()
            assert request is not None
            assert (request.method, request.path) == ("CONNECT", through)
            assert request.headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"
            peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        with context.wrap_socket(peer._sock, server_side=True) as sock:
            inner = Peer(sock, peer.number)
            while inner.read() is not None:
                inner.answer(200, str(peer.number).encode())
            inner._file.close()

    return script


def test_https_keeps_its_connection(certificate: tuple[Path, Path], trusting: None) -> None:
    with Scripted(tls_script(certificate, through=None)) as server:  # type: ignore[arg-type]
        transport = make(f"https://localhost:{server.port}")
        assert [get(transport).body for _ in range(3)] == [b"0", b"0", b"0"]
        transport.close()


def test_https_goes_through_the_proxy(certificate: tuple[Path, Path], trusting: None) -> None:
    script = tls_script(certificate, through="localhost:4433")
    with Scripted(script) as proxy:  # type: ignore[arg-type]
        environ = {"HTTPS_PROXY": f"http://user:p%40ss@127.0.0.1:{proxy.port}"}
        transport = make("https://localhost:4433", environ)
        assert get(transport).body == b"0"
        transport.close()


@pytest.mark.parametrize(("status", "told"), [(407, "NAME:PASSWORD"), (403, "CONNECT")])
def test_a_proxy_that_says_no(status: int, told: str) -> None:
    with Scripted(always(status)) as proxy:
        environ = {"https_proxy": f"127.0.0.1:{proxy.port}"}
        transport = make("https://relay.example", environ)
        with pytest.raises(ConnectionLost, match=f"proxy at 127.0.0.1:.* {status}") as caught:
            get(transport)
        transport.close()
    assert caught.value.code == "proxy"
    assert told in (caught.value.hint or "")


@pytest.mark.parametrize(
    "url",
    ["http://p:99999", "http://p:x", "http://[p", "http://p\u2100", "socks5://p:1", "http://"],
)
def test_what_is_no_proxy_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        make("https://relay.example", {"https_proxy": url})
    assert caught.value.code == "bad_proxy"


def test_a_proxy_that_is_not_there_is_named() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        transport = make("https://relay.example", {"HTTPS_PROXY": f"http://127.0.0.1:{port}"})
        with pytest.raises(ConnectionLost, match=f"the proxy at 127.0.0.1:{port}") as caught:
            get(transport)
    assert "HTTPS_PROXY" in (caught.value.hint or "")


PROXIES = {"HTTP_PROXY": "http://me:pw@proxy.example:3128", "HTTPS_PROXY": "http://p.example"}


def proxy_label(base_url: str, **environ: str) -> str | None:
    found = proxy_for(parse_address(base_url, plain_http=True), PROXIES | environ)
    return None if found is None else found.label


def test_plain_http_to_a_named_host_has_a_proxy_of_its_own() -> None:
    assert proxy_label("http://relay.svc") == "proxy.example:3128"
    assert proxy_label("https://relay.svc") == "p.example:80"
    for here in ("http://127.0.0.1:1", "http://localhost", "http://a.localhost", "http://[::1]:1"):
        assert proxy_label(here) is None


def test_a_header_of_a_caller_names_no_proxy() -> None:
    assert proxy_label("http://relay.svc", REQUEST_METHOD="GET") is None
    assert proxy_label("http://relay.svc", REQUEST_METHOD="GET", http_proxy="p") == "p:80"
    assert proxy_label("https://relay.svc", REQUEST_METHOD="GET") == "p.example:80"


@pytest.mark.parametrize(
    ("base_url", "skip", "is_direct"),
    [
        ("https://relay.svc", "*.svc", True),
        ("https://relay.svc", "svc", True),
        ("https://relay.svc", "relay.svc:443", True),
        ("https://relay.svc", "relay.svc:80", False),
        ("https://relay.svc:8443", "relay.svc:8443", True),
        ("https://mysvc", "svc", False),
        ("http://10.1.2.3", "10.0.0.0/8", True),
        ("http://11.1.2.3", "10.0.0.0/8", False),
        ("https://[fd00::1]", "fd00::/8", True),
        ("https://[fd00::1]", "[fd00::1]", True),
        ("https://relay.svc", "10.0.0.0/8, ,/", False),
    ],
)
def test_whom_no_proxy_names(base_url: str, skip: str, is_direct: bool) -> None:
    assert (proxy_label(base_url, no_proxy=skip) is None) is is_direct


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "set SSL_CERT_FILE"),
        ({"SSL_CERT_FILE": "/nowhere/roots.pem"}, "/nowhere/roots.pem, which cannot be read"),
        ({"SSL_CERT_FILE": __file__}, "must be in"),
    ],
)
def test_what_to_do_about_a_certificate(environ: dict[str, str], said: str) -> None:
    assert said in roots_advice(environ)


@pytest.mark.parametrize("skip", ["*", "localhost", "other, localhost", ".localhost"])
def test_no_proxy(skip: str, certificate: tuple[Path, Path], trusting: None) -> None:
    with Scripted(tls_script(certificate, through=None)) as server:  # type: ignore[arg-type]
        environ = {"HTTPS_PROXY": "http://127.0.0.1:1", "NO_PROXY": skip}
        transport = make(f"https://localhost:{server.port}", environ)
        assert get(transport).body == b"0"
        transport.close()


def test_an_unknown_authority_is_refused(certificate: tuple[Path, Path]) -> None:
    with Scripted(tls_script(certificate, through=None)) as server:  # type: ignore[arg-type]
        transport = make(f"https://localhost:{server.port}")
        with pytest.raises(ConnectionLost) as caught:
            get(transport)
        transport.close()
    assert caught.value.code == "tls"
    assert f"the certificate of https://localhost:{server.port}" in caught.value.message
    assert "SSL_CERT_FILE" in (caught.value.hint or "")


def test_the_context_is_loaded_once_and_only_for_https() -> None:
    assert tls_context() is tls_context()
    assert tls_context().verify_mode is ssl.CERT_REQUIRED
    assert tls_context().check_hostname


def test_asyncio_is_not_imported() -> None:
    import sys

    code = "import airlox.client.relay_api, sys; print('asyncio' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30, check=True)
    assert out.stdout.strip() == b"False"


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    upper=st.booleans(),
)
def test_chunks_are_the_same_however_they_are_cut(
    chunks: list[bytes], cuts: list[int], upper: bool
) -> None:
    framed = b"".join(
        (f"{len(c):X};ext=1" if upper else f"{len(c):x}").encode() + b"\r\n" + c + b"\r\n"
        for c in chunks
    )
    framed += b"0\r\n\r\n"
    parser, out, at = _Chunks(), b"", 0
    for size in itertools.cycle(cuts):
        out += parser.feed(framed[at : at + size])
        at += size
        if at >= len(framed):
            break
    assert out == b"".join(chunks)
    assert parser.ended


@pytest.mark.parametrize(
    "line",
    [
        b"-5\r\n",
        b"0x5\r\n",
        b"\r\n",
        b"x" * 300,
        b"fffffffff\r\n",
        b"5;" + b"x" * 255 + b"\r\n",
    ],
)
def test_a_malformed_chunk_is_refused_however_it_is_cut(line: bytes) -> None:
    def feed(size: int) -> None:
        chunks = _Chunks()
        for at in range(0, len(line), size):
            chunks.feed(line[at : at + size])

    for size in (1, 7, len(line)):
        with pytest.raises(http.client.HTTPException):
            feed(size)
