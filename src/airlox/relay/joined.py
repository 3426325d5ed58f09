"""Head and body of an answer in one packet.

uvicorn hands the head of an answer to its transport before it knows the body, and uvloop sends
at once: two system calls, two packets, and a client that is woken twice, for every answer. Here
what is written in one turn of the event loop is sent together at its end.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class JoinedWrites:
    """A transport that sends once per turn of the loop; everything else is the real one's."""

    __slots__ = ("_loop", "_parts", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._send)
        self._parts.append(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class JoinedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol over such a transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        joined = JoinedWrites(transport, self.loop)
        super().connection_made(cast(asyncio.Transport, joined))
