"""One connection to a relay: sockets, deadlines, TLS, proxies.

Built on the standard library's `http.client`. Its rules:

* every read and write obeys one deadline, which its owner moves (`_Wire`);
* `cut()`, from any thread, makes whoever reads or writes return at once;
* https verifies against the system's roots, read once per process, and goes through
  `HTTPS_PROXY` where that is set;
* plain http goes to this machine, directly, and where its caller says so to another host, which
  the session's owner has named: through `HTTP_PROXY` where that is set.
"""

from __future__ import annotations

import functools
import http.client
import io
import os
import socket
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from airlox.client.deadline import Deadline
from airlox.errors import UsageError, ValidationError
from airlox.protocol.invite import parse_base_url, plain_http_host

if TYPE_CHECKING:
    import ssl

CONNECT_TIMEOUT_S: Final = 10.0
IDLE_TIMEOUT_S: Final = 60.0
"""Longest silence of the relay within a call or between the bytes of a stream."""
PIECE_BYTES: Final = 256 * 1024
READ_BYTES: Final = 64 * 1024
PROXY_HEAD_BYTES: Final = 16 * 1024


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


def parse_address(base_url: str, *, plain_http: bool = False) -> Address:
    """Where the relay of a link's base URL listens; `plain_http` as in `parse_base_url`.

    Raises ValidationError.
    """
    base = parse_base_url(base_url, plain_http=plain_http)
    try:
        parts = urllib.parse.urlsplit(base)
        host, port = parts.hostname or "", parts.port
        if not host.isascii():
            host = host.encode("idna").decode("ascii")
        prefix = urllib.parse.quote(parts.path, safe="/%:@!$&'()*+,;=~")
    except ValueError:
        raise ValidationError("relay address with an impossible host, port or path") from None
    return Address(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), prefix)


class Connection(http.client.HTTPConnection):
    """One connection, made on first use, over a `_Wire`."""

    def __init__(self, address: Address, proxy: Proxy | None) -> None:
        super().__init__(_dial_name(address), address.port)
        self._deadline = Deadline.after(None)
        self.used = False
        self.spent = False
        self._address = address
        self._proxy = proxy
        self._dialling: socket.socket | None = None
        self._wire: _Wire | None = None
        self._cut = False

    def request(self, method: str, url: str, body: Any = None, headers: Any = None) -> None:  # type: ignore[override]
        host = self._address.label.split("://", 1)[1]
        more = {"Host": host}
        if self._proxy is not None and self._address.scheme == "http":
            url = self._address.label + url
            if self._proxy.authorization is not None:
                more["Proxy-Authorization"] = self._proxy.authorization
        super().request(method, url, body, {**more, **headers})

    def set_deadline(self, deadline: Deadline) -> None:
        """Every read and write from here on obeys it."""
        self._deadline = deadline
        if self._wire is not None:
            self._wire.deadline = deadline

    def connect(self) -> None:
        deadline = Deadline.after(CONNECT_TIMEOUT_S).within(self._deadline)
        sock = self._dial(deadline)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._proxy is not None and self._address.scheme == "https":
                _open_tunnel(_Wire(sock, deadline), self._address, self._proxy)
            if self._address.scheme == "https":
                sock = self._greet(sock, deadline)
        except BaseException:
            sock.close()
            raise
        self._wire = _Wire(sock, self._deadline)
        self._dialling = None
        self.sock = cast(socket.socket, self._wire)
        if self._cut:  # meanwhile, by another thread
            self._wire.cut()

    def _dial(self, deadline: Deadline) -> socket.socket:
        """A socket connected to the first address that answers. `cut` ends this too."""
        host, port = (self.host, self.port) if self._proxy is None else self._proxy.at
        failed: OSError | None = None
        # as bytes, for a text has all of IDNA loaded first
        name = host.encode() if host.isascii() else host
        found = socket.getaddrinfo(name, port, 0, socket.SOCK_STREAM)
        for tried, (family, kind, number, _, at) in enumerate(found):
            sock = socket.socket(family, kind, number)
            try:
                self._reach(sock)
                # each address has its share of the time, the last one all that is left
                left_s = deadline.cap_s(CONNECT_TIMEOUT_S) / (len(found) - tried)
                _arm(sock, Deadline.after(left_s))
                sock.connect(at)
                return sock
            except OSError as error:
                sock.close()
                failed = error
            except BaseException:
                sock.close()
                raise
        raise failed or ConnectionError(f"{host} has no address")

    def _greet(self, sock: socket.socket, deadline: Deadline) -> socket.socket:
        """The socket under TLS, its peer verified."""
        wrapped = tls_context().wrap_socket(
            sock, server_hostname=self._address.host, do_handshake_on_connect=False
        )
        try:
            self._reach(wrapped)
            _arm(wrapped, deadline)
            wrapped.do_handshake()
        except BaseException:
            wrapped.close()
            raise
        return wrapped

    def _reach(self, sock: socket.socket) -> None:
        """Let `cut` reach a socket that is on its way to a connection."""
        self._dialling = sock
        if self._cut:
            raise ConnectionAbortedError("cut while connecting")

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
        elif self._dialling is not None:
            _shut(self._dialling)


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
        _shut(self._sock)

    def close(self) -> None:
        self._release()

    def _release(self) -> None:
        """`http.client` closes the socket while an answer is still read; so count the ends."""
        self._open_ends -= 1
        if self._open_ends <= 0:
            self._sock.close()

    def _arm(self) -> None:
        _arm(self._sock, self.deadline)


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


def _arm(sock: socket.socket, deadline: Deadline) -> None:
    """Give the next call on the socket what time is left."""
    timeout = deadline.cap_s(IDLE_TIMEOUT_S)
    if timeout <= 0:
        raise TimeoutError("the deadline has passed")
    sock.settimeout(timeout)


def _shut(sock: socket.socket) -> None:
    try:
        # the base class's method: the one of a TLS socket would pull its state from
        # under the thread that reads
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        pass  # not connected any more: what was wanted


class Proxy(msgspec.Struct, frozen=True):
    at: tuple[str, int]
    authorization: str | None

    @property
    def label(self) -> str:
        return f"{self.at[0]}:{self.at[1]}"


class ProxyRefused(ConnectionError):
    """The proxy did not let us through; `wants_login`: for want of a name and password."""

    def __init__(self, text: str, *, wants_login: bool) -> None:
        super().__init__(text)
        self.wants_login = wants_login


def proxy_for(address: Address, environ: Mapping[str, str]) -> Proxy | None:
    """The proxy of the environment, unless NO_PROXY names the relay or it is on this machine and
    reached by plain http."""
    name = f"{address.scheme.upper()}_PROXY"
    url = environ.get(name.lower())
    if address.scheme == "https" or "REQUEST_METHOD" not in environ:
        # within a CGI script HTTP_PROXY is what a caller said in a header called Proxy
        url = url or environ.get(name)
    if not url or (address.scheme == "http" and _is_here(address)):
        return None
    skip = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    if _bypassed(address, skip):
        return None
    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port or 80
        authorization = _proxy_authorization(parts)
    except ValueError:
        raise _bad_proxy(name) from None
    if parts.scheme != "http" or not host:
        raise _bad_proxy(name)
    return Proxy((host, port), authorization)


def _is_here(address: Address) -> bool:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return plain_http_host(f"http://{host}") is None


def _bad_proxy(name: str) -> UsageError:
    return UsageError(
        f"{name} does not name a proxy this client can use",
        code="bad_proxy",
        hint="it looks like http://proxy.example:3128",
    )


def _bypassed(address: Address, skip: str) -> bool:
    """Whether NO_PROXY names the relay: `*`, a host, a domain with or without `*.` or `.` before
    it, a network such as 10.0.0.0/8; each may end in a port."""
    host = address.host
    for word in skip.lower().split(","):
        entry = word.strip().removesuffix(f":{address.port}")
        name = entry.removeprefix("*").removeprefix(".").strip("[]")
        if entry == "*" or (name and (host == name or host.endswith("." + name))):
            return True
        if "/" in entry and _is_within(host, entry):
            return True
    return False


def _is_within(host: str, network: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:  # a name, or no network
        return False


def _proxy_authorization(parts: urllib.parse.SplitResult) -> str | None:
    if parts.username is None:
        return None
    import base64

    user = urllib.parse.unquote(parts.username)
    password = urllib.parse.unquote(parts.password or "")
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def _open_tunnel(wire: _Wire, address: Address, proxy: Proxy) -> None:
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
        raise ProxyRefused(f"the proxy at {proxy.label} answered {said}", wants_login=said == "407")


def _dial_name(address: Address) -> str:
    """The name to resolve. Names under .localhost are this machine, whatever a resolver says."""
    if address.scheme == "http" and address.host.endswith(".localhost"):
        return "localhost"
    return address.host


def roots_advice(environ: Mapping[str, str]) -> str:
    """What to do about a certificate that does not verify."""
    path = environ.get("SSL_CERT_FILE")
    if not path:
        return "for a private authority set SSL_CERT_FILE to the file of its root certificate"
    if not os.access(path, os.R_OK):
        return f"SSL_CERT_FILE names {path}, which cannot be read"
    return f"its root certificate must be in {path}, which SSL_CERT_FILE names"


@functools.cache
def tls_context() -> ssl.SSLContext:
    """The one context of this process: verified against the system's roots."""
    import ssl

    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
