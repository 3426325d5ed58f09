"""Calls to one relay and their answers, over a small pool of connections.

* every call has one deadline that holds between reads and writes;
* an answer larger than its limit is refused, before it is read where its length is announced;
* connections are kept in a small pool; one that died while idle is replaced without notice when
  repeating the call is safe;
* `close()`, also from another thread, ends every call and stream at once, `cut()` the calls of
  one waiter;
* redirects are never followed: the link names the relay.

How a connection is made is in `connection.py`; what a path means, and which calls may be
repeated, is `relay_api.py`'s to say.
"""

from __future__ import annotations

import http.client
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from airlox.client.connection import (
    CONNECT_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    READ_BYTES,
    Connection,
    ProxyRefused,
    parse_address,
    proxy_for,
    roots_advice,
)
from airlox.client.deadline import Deadline
from airlox.client.progress import STEP_BYTES, Moved, pieces
from airlox.errors import ConnectionLost, LimitError

SLOWEST_BYTES_PER_S: Final = 32 * 1024
"""A line slower than this on a large body counts as dead."""
UNMEASURED_S: Final = 120.0
"""Time for a body whose length the relay does not say."""
POOLED: Final = 4
TEXT_CHARS: Final = 300
"""Of what the relay says that is shown to people."""

_SIZE_LINE: Final = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(;|\Z)")
_SIZE_LINE_BYTES: Final = 256
_TRAILERS: Final = 100
"""Lines after the last chunk."""
_NETWORK_ERRORS: Final = (OSError, http.client.HTTPException)


class Answer(msgspec.Struct, frozen=True):
    """A complete answer of the relay."""

    status: int
    date: str | None
    retry_after: str | None
    body: bytes


class Transport:
    """Connections to one relay, shared by all threads of a session."""

    def __init__(
        self,
        base_url: str,
        *,
        user_agent: str,
        plain_http: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.address = parse_address(base_url, plain_http=plain_http)
        self._user_agent = user_agent
        self._proxy = proxy_for(self.address, environ)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: dict[Connection, threading.Event | None] = {}
        """Connections in use, with the event that ends the use."""
        self._ahead: _Ahead | None = None
        self._closed = False

    def connect_ahead(self) -> None:
        """Begin to connect, so that the next call finds it done. Returns at once.

        What fails is left to that call to find out.
        """
        with self._lock:
            if self._closed or self._idle or self._ahead is not None:
                return
            self._ahead = _Ahead(Connection(self.address, self._proxy))

    def request(
        self,
        method: str,
        path: str,
        *,
        deadline: Deadline,
        limit_bytes: int,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
        ended: threading.Event | None = None,
        moved: Moved | None = None,
    ) -> Answer:
        """One call and its whole answer.

        `deadline` is for the answer's head; the bytes sent and received add what the slowest
        usable line takes for them. `repeatable` allows sending it again when a kept connection
        turns out dead. `ended` is what its waiter sets, and then calls `cut` with, to be rid of
        it. `moved` hears how far the body is: the one sent, else the one that comes. Raises
        ConnectionLost, and LimitError for an answer over `limit_bytes`.
        """
        deadline = deadline.extended(len(body) / SLOWEST_BYTES_PER_S)
        connection = self._take(deadline, ended)
        while True:
            reused = connection.used
            try:
                response = self._send(connection, method, path, body, headers, deadline, moved)
                break
            except _NETWORK_ERRORS as error:
                self._drop(connection)
                again = reused and repeatable and not isinstance(error, TimeoutError)
                if not again or _is_set(ended):
                    raise self._lost(error, deadline, ended) from error
                connection = self._fresh(ended)
            except BaseException:
                self._drop(connection)
                raise
        return self._finish(
            connection, response, limit_bytes, deadline, ended, None if body else moved
        )

    def open(
        self,
        path: str,
        *,
        deadline: Deadline,
        headers: Mapping[str, str] | None = None,
        started: Callable[[Callable[[], None]], None],
    ) -> Line:
        """An answer that keeps coming. The caller closes the line; `deadline` is for its head.

        `started` is given, before anything is sent, the function by which another thread ends
        the wait for this answer, now or later.
        """
        connection = self._fresh()
        started(connection.cut)
        try:
            response = self._send(connection, "GET", path, b"", headers, deadline)
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, _NETWORK_ERRORS):
                raise self._lost(error, deadline) from error
            raise
        return Line(self, connection, response)

    def close(self) -> None:
        """End everything that uses this transport, at once. Safe to repeat."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            ahead, self._ahead = self._ahead, None
            busy = list(self._busy)
        for connection in idle:
            connection.close()
        for connection in busy:
            connection.cut()
        if ahead is not None:
            ahead.give_up()

    @property
    def closed(self) -> bool:
        return self._closed

    def cut(self, ended: threading.Event) -> None:
        """End the calls that were made with this event, at once. It is set already."""
        with self._lock:
            theirs = [connection for connection, end in self._busy.items() if end is ended]
        for connection in theirs:
            connection.cut()

    def _send(
        self,
        connection: Connection,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str] | None,
        deadline: Deadline,
        moved: Moved | None = None,
    ) -> http.client.HTTPResponse:
        connection.set_deadline(deadline)
        all_headers = {"User-Agent": self._user_agent, **(headers or {})}
        told: bytes | Iterator[memoryview] | None = body or None
        if body and moved is not None:
            told = pieces(body, moved)
            all_headers["Content-Length"] = str(len(body))
        connection.used = True
        try:
            connection.request(method, self.address.prefix + path, told, all_headers)
        except (BrokenPipeError, ConnectionResetError):
            if connection.sock is None:
                raise  # while connecting
            # a relay may refuse a large body before it has read all of it: hear its answer
            connection.spent = True
        return connection.getresponse()

    def _finish(
        self,
        connection: Connection,
        response: http.client.HTTPResponse,
        limit_bytes: int,
        deadline: Deadline,
        ended: threading.Event | None,
        moved: Moved | None,
    ) -> Answer:
        """Read the body, and give the connection back if it can carry another call."""
        size = response.length
        extra_s = UNMEASURED_S if size is None else min(size, limit_bytes) / SLOWEST_BYTES_PER_S
        deadline = deadline.extended(extra_s)
        connection.set_deadline(deadline)
        try:
            body = _read_body(response, limit_bytes, self.address.label, moved)
        except BaseException as error:
            response.close()
            self._drop(connection)
            if isinstance(error, _NETWORK_ERRORS):
                raise self._lost(error, deadline, ended) from error
            raise
        if response.will_close or connection.spent or _is_set(ended):
            self._drop(connection)
        else:
            self._give_back(connection)
        return Answer(
            response.status, response.getheader("date"), response.getheader("retry-after"), body
        )

    def _take(self, deadline: Deadline, ended: threading.Event | None) -> Connection:
        with self._lock:
            ahead, self._ahead = self._ahead, None
            if ahead is not None:
                self._busy[ahead.connection] = ended
        if ahead is not None:
            if ahead.is_ready(deadline):
                return ahead.connection
            with self._lock:
                self._busy.pop(ahead.connection, None)
            ahead.give_up()
        with self._lock:
            while self._idle and not _is_set(ended):
                connection = self._idle.pop()
                if connection.alive():
                    self._busy[connection] = ended
                    return connection
                connection.close()
        return self._fresh(ended)

    def _fresh(self, ended: threading.Event | None = None) -> Connection:
        connection = Connection(self.address, self._proxy)
        with self._lock:
            if self._closed or _is_set(ended):
                raise _closed()
            self._busy[connection] = ended
        return connection

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            self._busy.pop(connection, None)
            if not self._closed and len(self._idle) < POOLED:
                self._idle.append(connection)
                return
        connection.close()

    def _drop(self, connection: Connection) -> None:
        with self._lock:
            self._busy.pop(connection, None)
        connection.close()

    def _lost(
        self, error: BaseException, deadline: Deadline, ended: threading.Event | None = None
    ) -> ConnectionLost:
        """What happened to the connection, in words a person can act on."""
        where = self.address.label
        if self._closed or _is_set(ended):
            return _closed()
        if isinstance(error, TimeoutError):
            late = "in the time given" if deadline.passed else f"for {IDLE_TIMEOUT_S:.0f} s"
            return ConnectionLost(
                f"the relay at {where} did not answer {late}",
                code="relay_timeout",
                hint="check the network; the call can be repeated",
            )
        if type(error).__name__ == "SSLCertVerificationError":
            return ConnectionLost(
                f"the certificate of {where} does not verify: {error}",
                code="tls",
                hint=f"check the address; {roots_advice(os.environ)}",
            )
        if isinstance(error, ProxyRefused):
            return ConnectionLost(
                f"no way to the relay at {where}: {one_line(str(error))}",
                code="proxy",
                hint="it wants a login: HTTPS_PROXY=http://NAME:PASSWORD@HOST:PORT"
                if error.wants_login
                else "it must allow CONNECT to the relay; NO_PROXY names hosts that need no proxy",
            )
        if self._proxy is not None:
            where = f"{where} through the proxy at {self._proxy.label}"
        # may hold what the other end said
        reason = one_line(getattr(error, "strerror", None) or str(error))
        return ConnectionLost(
            f"no connection to the relay at {where}: {reason or type(error).__name__}",
            hint="check that the address is right and the relay is running"
            if self._proxy is None
            else f"check {self.address.scheme.upper()}_PROXY and the address, and that the relay "
            "is running",
        )


class _Ahead:
    """A connection that a thread of its own makes for whoever needs one next."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._lock = threading.Lock()
        self._is_done = self._is_given_up = False
        self._thread = threading.Thread(target=self._connect, name="airlox-connect", daemon=True)
        self._thread.start()

    def is_ready(self, deadline: Deadline) -> bool:
        """Wait for the thread; whether there is a connection now that looks usable. Whoever cuts
        the connection ends the wait."""
        self._thread.join(deadline.cap_s(CONNECT_TIMEOUT_S))
        self.connection.used = True  # it may die before it is, like any that was kept
        return self._is_done and self.connection.sock is not None and self.connection.alive()

    def give_up(self) -> None:
        """Close the connection. Waits for nothing: a name that is looked up cannot be cut short,
        and then the thread closes it."""
        self.connection.cut()
        with self._lock:
            self._is_given_up = True
            is_done = self._is_done
        if is_done:
            self.connection.close()

    def _connect(self) -> None:
        with suppress(*_NETWORK_ERRORS):
            self.connection.connect()
        with self._lock:
            self._is_done = True
            is_given_up = self._is_given_up
        if is_given_up:
            self.connection.close()


class Line:
    """An open answer, read as it comes; it owns its connection.

    It reads below `http.client`, whose reader of chunks waits for the next one where a caller
    with a deadline must not.
    """

    def __init__(
        self, transport: Transport, connection: Connection, response: http.client.HTTPResponse
    ) -> None:
        self.status = response.status
        self._transport = transport
        self._connection = connection
        self._response = response
        chunked = (response.getheader("transfer-encoding") or "").lower() == "chunked"
        self._chunks = _Chunks() if chunked else None

    @property
    def date(self) -> str | None:
        return self._response.getheader("date")

    def read(self, deadline: Deadline) -> bytes | None:
        """The next bytes; b"" at the end; None when the deadline came first (read again later).

        Raises ConnectionLost when the line broke.
        """
        try:
            while True:
                data = self._connection.read(deadline)
                if self._chunks is None or not data:
                    return data
                data = self._chunks.feed(data)
                if data or self._chunks.ended:
                    return data
        except _NETWORK_ERRORS as error:
            raise self._transport._lost(error, deadline) from error

    def read_all(self, limit_bytes: int, deadline: Deadline) -> bytes:
        """The rest of a short answer (an error's body), then the line is closed."""
        self._connection.set_deadline(deadline)
        try:
            return _read_body(self._response, limit_bytes, self._transport.address.label)
        except _NETWORK_ERRORS as error:
            raise self._transport._lost(error, deadline) from error
        finally:
            self.close()

    def close(self) -> None:
        """Give up the connection. For the thread that reads; others use what `started` got."""
        self._response.close()
        self._transport._drop(self._connection)


class _Chunks:
    """Takes the framing of chunks off, however the bytes are cut."""

    def __init__(self) -> None:
        self.ended = False
        self._held = b""
        self._left = 0
        """Bytes until the next size line: the rest of a chunk and its line break."""

    def feed(self, data: bytes) -> bytes:
        held, at, out = self._held + data, 0, []
        while not self.ended and at < len(held):
            if self._left == 0:
                after = self._take_size(held, at)
                if after is None:
                    break
                at = after
                continue
            piece = held[at : at + max(0, self._left - 2)]
            out.append(piece)
            done = len(piece) or min(self._left, len(held) - at)
            at += done
            self._left -= done
        self._held = b"" if self.ended else held[at:]
        return b"".join(out)

    def _take_size(self, held: bytes, at: int) -> int | None:
        """Where the chunk begins whose size line is at `at`; None when its end has not come."""
        end = held.find(b"\r\n", at, at + _SIZE_LINE_BYTES + 2)
        if end < 0 and len(held) - at < _SIZE_LINE_BYTES + 2:
            return None
        self._left = _chunk_size(held[at:end] if end >= 0 else b"") + 2
        self.ended = self._left == 2
        return end + 2


def one_line(text: str, most: int = TEXT_CHARS) -> str:
    """Foreign words fit for a terminal: one bounded line of printable characters."""
    return "".join(c if c.isprintable() else " " for c in text[:most]).strip()


def _is_set(ended: threading.Event | None) -> bool:
    return ended is not None and ended.is_set()


def _closed() -> ConnectionLost:
    return ConnectionLost("this connection to the relay was closed", code="closed")


def _read_body(
    response: http.client.HTTPResponse, limit_bytes: int, where: str, moved: Moved | None = None
) -> bytes:
    """The whole body, or LimitError without having held more than the limit."""
    too_large = LimitError(
        f"an answer of the relay at {where} is larger than {limit_bytes} bytes",
        code="answer_too_large",
        hint="the relay is faulty or hostile",
    )
    if response.length is not None and response.length > limit_bytes:
        raise too_large
    if response.chunked:
        body = _read_chunks(response, limit_bytes + 1)
    elif moved is not None:
        body = _read_told(response, limit_bytes + 1, moved)
    else:
        body = response.read(limit_bytes + 1)
    if len(body) > limit_bytes:
        raise too_large
    if response.length:
        raise http.client.IncompleteRead(body, response.length)
    return body


def _read_told(response: http.client.HTTPResponse, most: int, moved: Moved) -> bytes:
    """Up to `most` bytes of an answer, told of as they come."""
    body = bytearray()
    while piece := response.read(min(STEP_BYTES, most - len(body))):
        body += piece
        moved(len(body))
    return bytes(body)


def _read_chunks(response: http.client.HTTPResponse, most: int) -> bytes:
    """Up to `most` bytes of a chunked answer; with its end mark, so that the connection can be
    kept.

    Read below `http.client`, which takes a negative size for all there is, however much.
    """
    reader, body = response.fp, bytearray()
    while size := _chunk_size(reader.readline(_SIZE_LINE_BYTES + 2).removesuffix(b"\r\n")):
        while size and len(body) < most:
            piece = reader.read(min(size, most - len(body), READ_BYTES))
            if not piece:
                raise http.client.IncompleteRead(b"", size)
            body += piece
            size -= len(piece)
        if len(body) == most:
            return bytes(body)
        if reader.read(2) != b"\r\n":
            raise http.client.HTTPException("a malformed chunk")
    for _ in range(_TRAILERS):
        if reader.readline(_SIZE_LINE_BYTES).strip(b"\r\n") == b"":
            response.close()
            return bytes(body)
    raise http.client.HTTPException("too much after the last chunk")


def _chunk_size(line: bytes) -> int:
    """The size a line announces. Raises HTTPException for what is none."""
    match = _SIZE_LINE.match(line)
    if match is None:
        raise http.client.HTTPException("a malformed chunk")
    return int(match[1], 16)
