"""Bytes to one relay and back: connections, deadlines, TLS, proxies.

Built on the standard library's `http.client`. Its rules:

* every call has one deadline that holds between reads and writes (`_Wire`);
* an answer larger than its limit is refused, before it is read where its length is announced;
* connections are kept in a small pool; one that died while idle is replaced without notice when
  repeating the call is safe;
* `close()`, also from another thread, ends every call and stream at once;
* https verifies against the system's roots, read once per process, and goes through
  `HTTPS_PROXY` where that is set; plain http goes to this machine only, and directly;
* redirects are never followed: the link names the relay.

What a path means, and which calls may be repeated, is `relay_api.py`'s to say.
"""

from __future__ import annotations

import functools
import http.client
import io
import os
import re
import socket
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from airlox.client.deadline import Deadline
from airlox.errors import ConnectionLost, LimitError, UsageError, ValidationError
from airlox.protocol.invite import parse_base_url

if TYPE_CHECKING:
    import ssl

CONNECT_TIMEOUT_S: Final = 10.0
IDLE_TIMEOUT_S: Final = 60.0
"""Longest silence of the relay within a call or between the bytes of a stream."""
SLOWEST_BYTES_PER_S: Final = 32 * 1024
"""A line slower than this on a large body counts as dead."""
UNMEASURED_S: Final = 120.0
"""Time for a body whose length the relay does not say."""
POOLED: Final = 4
PIECE_BYTES: Final = 256 * 1024
READ_BYTES: Final = 64 * 1024
PROXY_HEAD_BYTES: Final = 16 * 1024

_SIZE_LINE: Final = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(;|\Z)")
_SIZE_LINE_BYTES: Final = 256
_NETWORK_ERRORS: Final = (OSError, http.client.HTTPException)


class Answer(msgspec.Struct, frozen=True):
    """A complete answer of the relay."""

    status: int
    date: str | None
    retry_after: str | None
    body: bytes


class Address(msgspec.Struct, frozen=True):
    """Where a relay listens; `prefix` is the path its API hangs under."""

    scheme: str
    host: str
    port: int
    prefix: str

    @property
    def label(self) -> str:
        """For people and messages: scheme, host and a port that is not the usual one."""
        usual = 443 if self.scheme == "https" else 80
        port = "" if self.port == usual else f":{self.port}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{port}"


def parse_address(base_url: str) -> Address:
    """Where the relay of a link's base URL listens. Raises ValidationError."""
    parts = urllib.parse.urlsplit(parse_base_url(base_url))
    try:
        host, port = parts.hostname or "", parts.port
        if not host.isascii():
            host = host.encode("idna").decode("ascii")
    except ValueError:
        raise ValidationError("relay address with an impossible host or port") from None
    prefix = urllib.parse.quote(parts.path, safe="/%:@!$&'()*+,;=~")
    return Address(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), prefix)


class Transport:
    """Connections to one relay, shared by all threads of a session."""

    def __init__(
        self, base_url: str, *, user_agent: str, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.address = parse_address(base_url)
        self._user_agent = user_agent
        self._proxy = _proxy_for(self.address, environ)
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._closed = False

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
    ) -> Answer:
        """One call and its whole answer.

        `deadline` is for the answer's head; the bytes sent and received add what the slowest
        usable line takes for them. `repeatable` allows sending it again when a kept connection
        turns out dead. Raises ConnectionLost, and LimitError for an answer over `limit_bytes`.
        """
        deadline = deadline.extended(len(body) / SLOWEST_BYTES_PER_S)
        connection = self._take()
        while True:
            reused = connection.used
            try:
                response = self._send(connection, method, path, body, headers, deadline)
                break
            except _NETWORK_ERRORS as error:
                self._drop(connection)
                if not (reused and repeatable and not isinstance(error, TimeoutError)):
                    raise self._lost(error, deadline) from error
                connection = self._fresh()
            except BaseException:
                self._drop(connection)
                raise
        return self._finish(connection, response, limit_bytes, deadline)

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
            busy = list(self._busy)
        for connection in idle:
            connection.close()
        for connection in busy:
            connection.cut()

    def _send(
        self,
        connection: _Connection,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str] | None,
        deadline: Deadline,
    ) -> http.client.HTTPResponse:
        connection.set_deadline(deadline)
        all_headers = {"User-Agent": self._user_agent, **(headers or {})}
        connection.used = True
        try:
            connection.request(method, self.address.prefix + path, body or None, all_headers)
        except (BrokenPipeError, ConnectionResetError):
            # a relay may refuse a large body before it has read all of it: hear its answer
            connection.spent = True
        return connection.getresponse()

    def _finish(
        self,
        connection: _Connection,
        response: http.client.HTTPResponse,
        limit_bytes: int,
        deadline: Deadline,
    ) -> Answer:
        """Read the body, and give the connection back if it can carry another call."""
        size = response.length
        extra_s = UNMEASURED_S if size is None else min(size, limit_bytes) / SLOWEST_BYTES_PER_S
        deadline = deadline.extended(extra_s)
        connection.set_deadline(deadline)
        try:
            body = _read_body(response, limit_bytes, self.address.label)
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, _NETWORK_ERRORS):
                raise self._lost(error, deadline) from error
            raise
        if response.will_close or connection.spent:
            self._drop(connection)
        else:
            self._give_back(connection)
        return Answer(
            response.status, response.getheader("date"), response.getheader("retry-after"), body
        )

    def _take(self) -> _Connection:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if connection.alive():
                    self._busy.add(connection)
                    return connection
                connection.close()
        return self._fresh()

    def _fresh(self) -> _Connection:
        connection = _Connection(self.address, self._proxy)
        with self._lock:
            if self._closed:
                raise ConnectionLost("this connection to the relay was closed", code="closed")
            self._busy.add(connection)
        return connection

    def _give_back(self, connection: _Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
            if not self._closed and len(self._idle) < POOLED:
                self._idle.append(connection)
                return
        connection.close()

    def _drop(self, connection: _Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
        connection.close()

    def _lost(self, error: BaseException, deadline: Deadline) -> ConnectionLost:
        """What happened to the connection, in words a person can act on."""
        where = self.address.label
        if self._closed:
            return ConnectionLost("this connection to the relay was closed", code="closed")
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
                hint="check the address; a private authority is named by SSL_CERT_FILE",
            )
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return ConnectionLost(
            f"no connection to the relay at {where}: {reason}",
            hint="check that the address is right and the relay is running",
        )


class Line:
    """An open answer, read as it comes; it owns its connection.

    It reads below `http.client`, whose reader of chunks waits for the next one where a caller
    with a deadline must not.
    """

    def __init__(
        self, transport: Transport, connection: _Connection, response: http.client.HTTPResponse
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
        self._transport._drop(self._connection)


class _Chunks:
    """Takes the framing of chunks off, however the bytes are cut."""

    def __init__(self) -> None:
        self.ended = False
        self._held = b""
        self._left = 0
        """Bytes until the next size line: the rest of a chunk and its line break."""

    def feed(self, data: bytes) -> bytes:
        self._held += data
        out = []
        while not self.ended and self._held:
            if self._left == 0 and not self._take_size():
                break
            piece = self._held[: max(0, self._left - 2)]
            out.append(piece)
            done = len(piece) if self._left > 2 else min(self._left, len(self._held))
            self._held = self._held[done:]
            self._left -= done
        return b"".join(out)

    def _take_size(self) -> bool:
        line, found, rest = self._held.partition(b"\r\n")
        if not found and len(line) < _SIZE_LINE_BYTES:
            return False
        match = _SIZE_LINE.match(line)
        if match is None:
            raise http.client.HTTPException("a malformed chunk")
        self._held = rest
        self._left = int(match[1], 16) + 2
        self.ended = self._left == 2
        return True


class _Connection(http.client.HTTPConnection):
    """One connection, made on first use, over a `_Wire`."""

    def __init__(self, address: Address, proxy: _Proxy | None) -> None:
        super().__init__(_dial_name(address), address.port)
        self._deadline = Deadline.after(None)
        self.used = False
        self.spent = False
        self._address = address
        self._proxy = proxy
        self._wire: _Wire | None = None
        self._cut = False

    def request(self, method: str, url: str, body: Any = None, headers: Any = None) -> None:  # type: ignore[override]
        host = self._address.label.split("://", 1)[1]
        super().request(method, url, body, {"Host": host, **headers})

    def set_deadline(self, deadline: Deadline) -> None:
        """Every read and write from here on obeys it."""
        self._deadline = deadline
        if self._wire is not None:
            self._wire.deadline = deadline

    def connect(self) -> None:
        timeout = self._deadline.cap_s(CONNECT_TIMEOUT_S)
        if timeout <= 0:
            raise TimeoutError("no time left to connect")
        at = (self.host, self.port) if self._proxy is None else self._proxy.at
        sock = socket.create_connection(at, timeout)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._proxy is not None:
                _open_tunnel(_Wire(sock, self._deadline), self._address, self._proxy)
            if self._address.scheme == "https":
                sock.settimeout(self._deadline.cap_s(CONNECT_TIMEOUT_S))
                sock = tls_context().wrap_socket(sock, server_hostname=self._address.host)
        except BaseException:
            sock.close()
            raise
        self._wire = _Wire(sock, self._deadline)
        self.sock = cast(socket.socket, self._wire)
        if self._cut:  # meanwhile, by another thread
            self._wire.cut()

    def read(self, deadline: Deadline) -> bytes | None:
        """Bytes after the head of an answer as they are; None when the deadline came first."""
        assert self._wire is not None  # an answer's head was read from it
        self.set_deadline(deadline)
        return self._wire.read()

    def alive(self) -> bool:
        """Whether an idle connection looks usable: nothing to read, no end of file."""
        return self._wire is None or self._wire.quiet()

    def cut(self) -> None:
        """Shut the socket so that a thread inside a call returns at once."""
        self._cut = True
        if self._wire is not None:
            self._wire.cut()


class _Wire:
    """A connected socket under one deadline; has what `http.client` needs of a socket."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self.deadline = deadline
        self._sock = sock
        self._reader: io.BufferedReader | None = None
        self._open_ends = 1

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._arm()
            view = view[self._sock.send(view[:PIECE_BYTES]) :]

    def recv_into(self, buffer: Any) -> int:
        self._arm()
        return self._sock.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        """A reader over the wire. `http.client` asks for one per answer."""
        self._open_ends += 1
        self._reader = io.BufferedReader(cast(io.RawIOBase, _Reader(self)), READ_BYTES)
        return self._reader

    def read(self) -> bytes | None:
        """What comes next in the reader of the current answer, or None at the deadline."""
        if self._reader is None or self._reader.closed:
            return b""
        try:
            return self._reader.read1(READ_BYTES)
        except TimeoutError:
            return None

    def quiet(self) -> bool:
        self._sock.settimeout(0)
        try:
            # the base class's method: a TLS socket refuses flags, and here raw bytes will do.
            # Whatever is there, data or an end, nobody asked for it
            socket.socket.recv(self._sock, 1, socket.MSG_PEEK)
            return False
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False

    def cut(self) -> None:
        try:
            # the base class's method: the one of a TLS socket would pull its state from
            # under the thread that reads
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            pass  # not connected any more: what was wanted

    def close(self) -> None:
        self._release()

    def _release(self) -> None:
        """`http.client` closes the socket while an answer is still read; so count the ends."""
        self._open_ends -= 1
        if self._open_ends <= 0:
            self._sock.close()

    def _arm(self) -> None:
        timeout = self.deadline.cap_s(IDLE_TIMEOUT_S)
        if timeout <= 0:
            raise TimeoutError("the deadline has passed")
        self._sock.settimeout(timeout)


class _Reader(io.RawIOBase):
    """The raw end under a buffered reader."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._wire.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._wire._release()


class _Proxy(msgspec.Struct, frozen=True):
    at: tuple[str, int]
    authorization: str | None


def _proxy_for(address: Address, environ: Mapping[str, str]) -> _Proxy | None:
    """The proxy for https from HTTPS_PROXY, unless NO_PROXY names the relay."""
    url = environ.get("https_proxy") or environ.get("HTTPS_PROXY")
    if address.scheme != "https" or not url:
        return None
    skip = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    if _bypassed(address.host, skip):
        return None
    parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise UsageError(
            "HTTPS_PROXY does not name a proxy this client can use",
            code="bad_proxy",
            hint="it looks like http://proxy.example:3128",
        )
    return _Proxy((parts.hostname, parts.port or 80), _proxy_authorization(parts))


def _bypassed(host: str, skip: str) -> bool:
    for entry in (word.strip().lower().lstrip(".") for word in skip.split(",")):
        if entry == "*" or (entry and (host == entry or host.endswith("." + entry))):
            return True
    return False


def _proxy_authorization(parts: urllib.parse.SplitResult) -> str | None:
    if parts.username is None:
        return None
    import base64

    user = urllib.parse.unquote(parts.username)
    password = urllib.parse.unquote(parts.password or "")
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def _open_tunnel(wire: _Wire, address: Address, proxy: _Proxy) -> None:
    """Ask the proxy for a way through to the relay (CONNECT)."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [f"CONNECT {host}:{address.port} HTTP/1.1", f"Host: {host}:{address.port}"]
    if proxy.authorization is not None:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    wire.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
    head = bytearray()
    byte = bytearray(1)
    # one byte at a time: what follows the head belongs to TLS
    while not head.endswith(b"\r\n\r\n") and len(head) < PROXY_HEAD_BYTES:
        if wire.recv_into(byte) == 0:
            break
        head += byte
    status = bytes(head[:64]).split(b" ", 2)
    if len(status) < 2 or status[0][:5] != b"HTTP/" or status[1][:1] != b"2":
        said = status[1][:3].decode("ascii", "replace") if len(status) > 1 else "nothing"
        raise ConnectionError(f"the proxy at {proxy.at[0]}:{proxy.at[1]} answered {said}")


def _dial_name(address: Address) -> str:
    """The name to resolve. Names under .localhost are this machine, whatever a resolver says."""
    if address.scheme == "http" and address.host.endswith(".localhost"):
        return "localhost"
    return address.host


@functools.cache
def tls_context() -> ssl.SSLContext:
    """The one context of this process: verified against the system's roots."""
    import ssl

    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _read_body(response: http.client.HTTPResponse, limit_bytes: int, where: str) -> bytes:
    """The whole body, or LimitError without having held more than the limit."""
    too_large = LimitError(
        f"an answer of the relay at {where} is larger than {limit_bytes} bytes",
        code="answer_too_large",
        hint="the relay is faulty or hostile",
    )
    if response.length is not None and response.length > limit_bytes:
        raise too_large
    body = response.read(limit_bytes + 1)
    if len(body) > limit_bytes:
        raise too_large
    if response.length:
        raise http.client.IncompleteRead(body, response.length)
    response.read()  # takes the end mark of a chunked answer, so that the connection can be kept
    return body
