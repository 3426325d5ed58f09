"""Answers in one packet; heads that are too large or too slow."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from airlox.relay import connection
from airlox.relay.connection import HEAD_BYTES, JOINED_BYTES, JoinedWrites
from support.relay import Http, RelayThread


class Transport:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True

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


def line_to(relay: RelayThread) -> socket.socket:
    http = Http(relay.url)
    return socket.create_connection((http.host, http.port), timeout=20)


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
        assert all_of(line)[:12] in (b"HTTP/1.1 400", b"")
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
