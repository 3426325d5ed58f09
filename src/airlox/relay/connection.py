"""What a connection needs beyond uvicorn: answers in one packet, bounds, a known end.

uvicorn hands the head of an answer to its transport before it knows the body, and uvloop sends
at once: two system calls, two packets, and a client that is woken twice, for every answer. Here
what is written in one turn of the event loop is sent together at its end.

uvicorn also waits for the end of a head for ever and however long it grows. Here it may have so
many bytes and so much time; the time of an idle connection between requests is uvicorn's. It
refuses requests beyond a number of connections, but holds the connections; here they are told why
and closed, also those of one address that has too many.

It closes a connection only when everything was sent, however long its reader takes. Here that has
an end too.

And it tells only the newest request of a connection that the other end has gone. A stream with
another request behind it would stay open for ever, its runner online; here every one is told.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from airlox.protocol.wire import STATUS_OF
from airlox.relay.addresses import origin_of
from airlox.relay.call import WHOLE_BODY
from airlox.relay.config import Config, setting_of
from airlox.relay.gates import Bound, Gate, Place
from airlox.relay.quotas import ALL, PLACE_S
from airlox.relay.refusals import Refusal

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

JOINED_BYTES: Final = 64 << 10
"""More than this is sent at once, so that a slow reader is noticed as it would be without us."""
HEAD_BYTES: Final = 64 << 10
HEAD_S: Final = 30.0
CLOSE_S: Final = 10.0


class Doors:
    """How many connections there may be, and how many of one address. Whoever comes by a trusted
    proxy may be anybody: such connections count for all only."""

    def __init__(self, config: Config) -> None:
        self._behind_proxy = config.behind_proxy
        self._gate = Gate(
            *(
                Bound(getattr(config, name), functools.partial(_too_many, config, name, text))
                for name, text in (
                    ("max_connections", "the relay has too many connections"),
                    ("max_connections_per_address", "this address has too many connections"),
                )
            )
        )

    @property
    def open(self) -> int:
        """Connections there are."""
        return self._gate.held(0, ALL)

    def enter(self, peer: str) -> Place:
        """A place for a connection. Raises Refusal."""
        return self._gate.take(ALL, origin_of(peer, (), behind_proxy=self._behind_proxy).holder)


def _too_many(config: Config, name: str, text: str) -> Refusal:
    return Refusal("busy", text, setting=setting_of(config, name), retry_s=PLACE_S)


def _told(refusal: Refusal) -> bytes:
    """A refusal as an answer of HTTP."""
    body = msgspec.json.encode({"error": refusal.code, "message": refusal.message})
    head = [
        f"HTTP/1.1 {STATUS_OF[refusal.code]} Refused",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    if refusal.retry_after_s is not None:
        head.append(f"retry-after: {refusal.retry_after_s}")
    return "\r\n".join([*head, "", ""]).encode() + body


def serving(doors: Doors) -> type[Connection]:
    """The protocol of one server: uvicorn makes its connections itself."""
    return type("Connection", (Connection,), {"doors": doors})


class JoinedWrites:
    """A transport that sends once per turn of the loop; everything else is the real one's."""

    __slots__ = ("_bytes", "_loop", "_parts", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._bytes = 0

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._send)
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes > JOINED_BYTES:
            self._send()

    def close(self) -> None:
        """A reader that does not take the rest is not waited for any longer than CLOSE_S."""
        self._send()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(CLOSE_S, self._transport.abort)

    def _send(self) -> None:
        parts, self._parts, self._bytes = self._parts, [], 0
        if parts and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with all of this."""

    doors: Doors
    _place: Place | None = None
    _awaits_head = True
    _has_just_ended = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _served: RequestResponseCycle | None = None
    """The request that is being answered; `cycle` is the newest one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        joined = JoinedWrites(transport, self.loop)
        super().connection_made(cast(asyncio.Transport, joined))
        self._head_timer = self.loop.call_later(HEAD_S, self._give_up)
        try:
            self._place = self.doors.enter(self.client[0] if self.client else "")
        except Refusal as refusal:
            self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._place is not None:
            self._place.give()
        super().connection_lost(exc)
        served = self._served
        if served is not None and not served.response_complete:
            served.disconnected = True
            served.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        self._has_just_ended = False
        super().data_received(data)
        if not self._awaits_head or self._has_just_ended:
            # Most of these bytes were a body's, or a head's that is complete.
            self._head_bytes = 0
            self._stop_timer()
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES:
            self._give_up()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._give_up)

    def on_headers_complete(self) -> None:
        self._awaits_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.scope[WHOLE_BODY] = True  # type: ignore[typeddict-unknown-key]
        self._awaits_head = True
        self._has_just_ended = True

    def _give_up(self) -> None:
        if self._head_bytes == 0:
            self.transport.close()  # nothing was asked
        elif not self.transport.is_closing():
            most = f"{HEAD_BYTES} bytes and {HEAD_S:g} s"
            self._refuse(Refusal("bad_request", f"the head of a request may have {most}"))

    def _refuse(self, refusal: Refusal) -> None:
        """Before there is a request: as bytes."""
        self.transport.write(_told(refusal))
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
