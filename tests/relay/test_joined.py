"""What is written in one turn of the loop is sent in one go, in order, and before a close."""

from __future__ import annotations

import asyncio
from typing import Any

from airlox.relay.joined import JoinedWrites


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
