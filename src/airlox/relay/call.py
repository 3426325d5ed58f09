"""One HTTP request over ASGI: its parts, its body with a deadline, its answer.

Plain ASGI, no framework: the hot paths are a few calls deep, and every read has a bound and a
deadline. A body that was not read is drained before an answer, up to a bound, so that a client
that is still sending gets to see the answer; beyond it the connection is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec

from airlox.relay.addresses import Origin, origin_of
from airlox.relay.config import Config, setting_of
from airlox.relay.refusals import Refusal

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

DRAIN_BYTES: Final = 64 << 20
WHOLE_BODY: Final = "airlox.whole_body"
"""In a request's scope when all of its body has come: reading it then waits for nobody."""
JSON: Final = (b"content-type", b"application/json")
NO_STORE: Final = (b"cache-control", b"no-store")
MUCH_BYTES: Final = 64 << 10
STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    # for proxies on the way: neither keep nor compress it, and (nginx) pass each piece on at once
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class Disconnected(Exception):
    """The other end has gone; there is nobody to answer."""


class RequestBody:
    """The body of a request as it comes. The time for it grows with its expected size."""

    def __init__(self, scope: Scope, receive: Receive, config: Config) -> None:
        self._scope = scope
        self._receive = receive
        self._config = config
        self._deadline = 0.0
        self.is_done = False

    @property
    def origin(self) -> Origin:
        """Where the request comes from."""
        client = self._scope.get("client")
        peer = str(client[0]) if client else ""
        return origin_of(peer, self._scope["headers"], behind_proxy=self._config.behind_proxy)

    def expect(self, size: int) -> None:
        """Allows the time that a body of `size` bytes may take."""
        seconds = self._config.body_timeout_s + size / self._config.min_bytes_per_second
        self._deadline = asyncio.get_running_loop().time() + seconds

    async def read(self) -> bytes:
        """The next bytes; empty at the end. Raises Refusal when they come too slowly, and
        Disconnected."""
        while not self.is_done:
            message = await self._next_message()
            if message["type"] != "http.request":
                raise Disconnected
            self.is_done = not message.get("more_body", False)
            body: bytes = message.get("body", b"")
            if body:
                return body
        return b""

    async def _next_message(self) -> Message:
        if WHOLE_BODY in self._scope:
            return await self._receive()  # a timer would cost more than this
        if not self._deadline:
            self.expect(0)
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        except TimeoutError:
            names = ("body_timeout_s", "min_bytes_per_second")
            settings = ", ".join(setting_of(self._config, name) for name in names)
            message = "the body did not arrive in time"
            raise Refusal("bad_request", message, setting=settings) from None

    async def all(self, limit_bytes: int) -> bytes:
        """The whole body. Raises Refusal `too_large`."""
        data = await self.read()
        while part := await self.read():
            data += part
            if len(data) > limit_bytes:
                break
        if len(data) > limit_bytes:
            raise Refusal("too_large", f"the body has more than {limit_bytes} bytes")
        return data

    async def drain(self) -> bool:
        """Reads and forgets the rest; False when it is too much or does not come in time."""
        seen = 0
        try:
            while part := await self.read():
                seen += len(part)
                if seen > DRAIN_BYTES:
                    return False
        except Refusal:
            return False
        return True


class Call:
    """A request and the way back. `parts` is the path after `/v1/sessions/`."""

    __slots__ = ("_headers", "_receive", "_send", "body", "has_begun", "method", "parts", "scope")

    def __init__(self, scope: Scope, receive: Receive, send: Send, config: Config) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.parts: list[str] = []
        self.body = RequestBody(scope, receive, config)
        self.has_begun = False
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        self._send = send

    # ── the request ──────────────────────────────────────────────────────────────────────────

    @property
    def origin(self) -> Origin:
        return self.body.origin

    @property
    def sid(self) -> str:
        return self.parts[0]

    @property
    def id(self) -> str:
        """The item, job, runner or role the path names."""
        return self.parts[2]

    def header(self, name: str) -> str | None:
        wanted = name.encode("ascii")
        for key, value in self._headers:
            if key == wanted:
                return value.decode("latin-1")
        return None

    def token(self) -> str | None:
        scheme, _, token = (self.header("authorization") or "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else None

    def number_after(self, text: str | None, what: str) -> int | None:
        """A whole number from the outside, or None where there is none. Raises Refusal."""
        if text is None or text == "":
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 15:
            raise Refusal("bad_request", f"{what} is not a number")
        return int(text)

    def query(self, name: str) -> str | None:
        wanted = name.encode("ascii") + b"="
        for pair in self.scope["query_string"].split(b"&"):
            if pair.startswith(wanted):
                value: bytes = pair[len(wanted) :]
                return value.decode("latin-1")
        return None

    async def text(self, limit_bytes: int) -> str:
        """The body as UTF-8. Raises Refusal."""
        try:
            return (await self.body.all(limit_bytes)).decode()
        except UnicodeDecodeError:
            raise Refusal("bad_request", "the body is not UTF-8") from None

    async def wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    # ── the answer ───────────────────────────────────────────────────────────────────────────

    async def answer_json(
        self, value: object, status: int = 200, retry_after_s: int | None = None
    ) -> None:
        later = () if retry_after_s is None else ((b"retry-after", b"%d" % retry_after_s),)
        await self.answer(status, msgspec.json.encode(value), (JSON, NO_STORE, *later))

    async def answer(
        self, status: int, data: bytes = b"", headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        """A whole answer."""
        length = () if status == 204 else ((b"content-length", b"%d" % len(data)),)
        await self.begin(status, (*headers, *length))
        await self._send({"type": "http.response.body", "body": data})

    async def begin(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """The head of an answer whose body follows with `send_part` and `finish`."""
        if not self.body.is_done and self._announces_body() and not await self.body.drain():
            headers = (*headers, (b"connection", b"close"))
        self.has_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send_part(self, data: bytes) -> None:
        """Part of a body. A reader that takes much at once does not have the loop for itself."""
        if len(data) >= MUCH_BYTES:
            await asyncio.sleep(0)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    def _announces_body(self) -> bool:
        for key, value in self._headers:
            if key == b"transfer-encoding" or (key == b"content-length" and value != b"0"):
                return True
        return False
