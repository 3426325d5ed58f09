"""Answers in one packet; heads too large or too slow; how many connections, and their ends."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from airlox.protocol import wire
from airlox.protocol.keys import Role
from airlox.relay import connection
from airlox.relay.config import Config
from airlox.relay.connection import HEAD_BYTES, JOINED_BYTES, JoinedWrites
from airlox.relay.server import fit_open_files
from support.relay import Http, RelayThread, create, file_item, join, new_world, until


class Transport:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> str:
        return name


def over(transport: Transport) -> JoinedWrites:
    real: Any = transport
    return JoinedWrites(real, asyncio.get_running_loop())


async def test_one_turn_is_one_send() -> None:
    transport = Transport()
    joined = over(transport)
    joined.write(b"head ")
    joined.write(b"body")
    assert transport.sent == []
    await asyncio.sleep(0)
    joined.write(b"next")
    await asyncio.sleep(0)
    assert transport.sent == [b"head body", b"next"]


async def test_much_is_sent_at_once() -> None:
    transport = Transport()
    joined = over(transport)
    joined.write(b"head")
    joined.write(bytes(JOINED_BYTES))
    assert [len(data) for data in transport.sent] == [4 + JOINED_BYTES]
    joined.write(b"tail")
    await asyncio.sleep(0)
    assert transport.sent[1:] == [b"tail"]


async def test_a_close_comes_after_what_was_written() -> None:
    transport = Transport()
    joined = over(transport)
    joined.write(b"last")
    joined.close()
    assert (transport.sent, transport.closed) == ([b"last"], True)
    joined.write(b"too late")
    await asyncio.sleep(0)
    assert transport.sent == [b"last"]


async def test_everything_else_is_the_transports() -> None:
    assert over(Transport()).get_extra_info("peername") == "peername"


# ── heads ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayThread]:
    with RelayThread() as running:
        yield running


def line_to(relay: RelayThread, source: str = "127.0.0.1") -> socket.socket:
    http = Http(relay.url)
    return socket.create_connection((http.host, http.port), 20, (source, 0))


def all_of(line: socket.socket) -> bytes:
    answer = b""
    try:
        while part := line.recv(65536):
            answer += part
    except ConnectionResetError:
        pass
    return answer


@pytest.mark.parametrize("endless", [b"x" * 1000, b"a: b\r\n" * 200], ids=["one value", "many"])
def test_a_head_that_never_ends_is_cut_off(relay: RelayThread, endless: bytes) -> None:
    with line_to(relay) as line:
        line.sendall(b"GET /v1/health HTTP/1.1\r\nx: ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 64 * HEAD_BYTES:
                line.sendall(endless)
                sent += len(endless)
        said = all_of(line)
    assert said == b"" or (
        said[:12] == b"HTTP/1.1 400" and b"may have 65536 bytes and 30 s" in said
    )
    assert sent < 64 * HEAD_BYTES


def test_a_head_that_takes_too_long_is_cut_off(
    relay: RelayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.2)
    with line_to(relay) as line:
        line.sendall(b"GET /v1/health HT")
        assert all_of(line).startswith(b"HTTP/1.1 400")
    with line_to(relay) as line:
        assert all_of(line) == b""


def test_a_large_body_is_not_a_large_head(relay: RelayThread) -> None:
    http = Http(relay.url)
    kept = http.connect()
    try:
        for _ in range(3):
            answer = http.ask("POST", "/v1/sessions", b" " * 600_000, None, kept)
            assert answer.error == "400 invalid_manifest"
    finally:
        kept.close()
    with line_to(relay) as line:
        request = b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n"
        line.sendall(request * 2 + request.replace(b"host", b"connection: close\r\nhost"))
        assert all_of(line).count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize("what", ["events", "blob"])
def test_who_takes_nothing_does_not_keep_its_connection(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """P-REL-8: neither a list of events nor a blob."""
    monkeypatch.setattr(connection, "CLOSE_S", 0.1)
    with RelayThread(body_timeout_s=1, min_bytes_per_second=32 << 20) as relay:
        http, world = Http(relay.url), new_world(max_item_bytes=32 << 20)
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        session = relay.relay.core.session(owner.sid)
        path = wire.events(owner.sid)
        if what == "blob":
            item = file_item(owner.person, b"#" * (24 << 20))
            assert owner.send(item).status == 201
            path = wire.blob(owner.sid, item.ref.id)
        else:
            for _ in range(400):
                relay.call(session.add_event, "padding", {"x": "y" * 60_000})
        until(lambda: relay.doors.open == 0)
        with http.line(receive_bytes=2048) as line:
            head = f"GET {path} HTTP/1.1\r\nhost: x\r\n"
            line.sendall(f"{head}authorization: Bearer {owner.token}\r\n\r\n".encode())
            assert line.recv(12) == b"HTTP/1.1 200"  # it is answered, and more it does not take
            until(lambda: relay.doors.open == 0, "its end")
        assert owner.get(path).status == 200


# ── ends ─────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_with_a_request_behind_it_ends_with_its_connection() -> None:
    """uvicorn tells the newest request only: the stream would be counted for ever."""
    with RelayThread(keepalive_s=1) as relay:  # nothing is read meanwhile; a write finds it out
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        head = f"host: x\r\nauthorization: Bearer {owner.token}\r\n\r\n"
        with line_to(relay) as line:
            line.sendall(f"GET {wire.stream(owner.sid)} HTTP/1.1\r\n{head}".encode())
            while b"event: participant" not in line.recv(65536):
                pass
            line.sendall(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
            assert relay.relay.core.hub.count == 1
        until(lambda: relay.relay.core.hub.count == 0, "leaving")


def test_connections_beyond_the_limit_are_closed() -> None:
    with RelayThread(max_connections=3) as relay:  # this machine may be a proxy: no address
        held = [line_to(relay) for _ in range(3)]
        try:
            for line in held:
                line.sendall(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n")
                assert line.recv(65536).startswith(b"HTTP/1.1 200")
            with line_to(relay) as fourth:
                said = all_of(fourth)
            assert said.startswith(b"HTTP/1.1 503 ")
            assert b"too many connections (--max-connections 3); try again in 2 s" in said
            held.pop().close()
            until(lambda: answers(relay), "a free place")
        finally:
            for line in held:
                line.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs 127.0.0.2")
def test_one_address_keeps_nobody_out() -> None:
    """A flood of idle connections from one address leaves half of them to the others."""
    with (
        RelayThread(max_connections=20, max_connections_per_address=5) as relay,
        ExitStack() as held,
    ):
        flood = [held.enter_context(line_to(relay, "127.0.0.2")) for _ in range(30)]
        said = [all_of(line) for line in flood[5:]]
        assert all(each.startswith(b"HTTP/1.1 503 ") for each in said)
        assert b"(--max-connections-per-address 5); try again in 2 s" in said[0]
        assert b"retry-after: 2\r\n" in said[0]
        for _ in range(10):
            held.enter_context(line_to(relay))
        assert answers(relay)
        flood[0].close()
        flood[1].close()
        until(lambda: answers(relay, "127.0.0.2"), "a free place")


def answers(relay: RelayThread, source: str = "127.0.0.1") -> bool:
    with line_to(relay, source) as line, contextlib.suppress(OSError):
        line.sendall(b"GET /v1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        return b"200 OK" in all_of(line)
    return False


@pytest.mark.parametrize(
    ("allowed", "connections", "transfers"),
    [
        (1_000_000, 1000, 128),
        (500, 292, 72),
        (256, 128, 32),
        (50, 1, 1),
        (resource.RLIM_INFINITY, 1000, 128),
    ],
)
def test_few_descriptors_mean_fewer_connections_and_transfers_not_none(
    monkeypatch: pytest.MonkeyPatch, allowed: int, connections: int, transfers: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    fitted = fit_open_files(Config(max_connections=1000, max_transfers=128))
    assert (fitted.max_connections, fitted.max_transfers) == (connections, transfers)
