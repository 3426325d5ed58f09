"""A server that answers as a test says, on a free loopback port, one thread per connection."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

TIMEOUT_S = 60.0


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Peer:
    """One accepted connection, in the hands of the test's script."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.number = number
        """0 for the first connection of the server, and so on."""
        self._sock = sock
        self._file = sock.makefile("rb")

    @property
    def sock(self) -> socket.socket:
        """For scripts that go on in bytes once a request was read."""
        return self._sock

    def read(self) -> Request | None:
        """The next request on this connection, or None at its end."""
        try:
            line = self._file.readline().decode()
        except OSError:
            return None
        if not line:
            return None
        method, path, _ = line.split(" ")
        headers = {}
        while (header := self._file.readline().decode().strip()) != "":
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        body = self._file.read(int(headers.get("content-length", "0")))
        return Request(method, path, headers, body)

    def answer(self, status: int = 200, body: object = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(data)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join([*lines, "", ""]).encode() + data)

    def start_stream(self) -> None:
        self.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )

    def chunk(self, data: bytes) -> None:
        self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def gone(self) -> bool:
        """Wait until the other end closed the connection."""
        try:
            return self._file.read(1) == b""
        except OSError:
            return True


class Scripted:
    """`with Scripted(script) as server:` runs `script(peer)` for every connection.

    What a script raises, other than from a connection that broke, fails the test.
    """

    def __init__(self, script: Callable[[Peer], None]) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._socks: list[socket.socket] = []
        self._errors: list[BaseException] = []
        self._stopping = False
        self.port: int = self._listener.getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Scripted:
        self._spawn(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping = True
        with socket.socket() as wake:
            wake.connect(("127.0.0.1", self.port))
        for sock in self._socks:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        self._listener.close()
        if error is None and self._errors:
            raise self._errors[0]

    def _spawn(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        number = 0
        while True:
            sock, _ = self._listener.accept()
            if self._stopping:
                sock.close()
                return
            sock.settimeout(TIMEOUT_S)
            self._socks.append(sock)
            self._spawn(lambda sock=sock, number=number: self._serve(sock, number))  # type: ignore[misc]
            number += 1

    def _serve(self, sock: socket.socket, number: int) -> None:
        peer = Peer(sock, number)
        try:
            self._script(peer)
        except OSError:
            pass  # the client left: some tests want that
        except BaseException as error:
            self._errors.append(error)
        finally:
            peer._file.close()
            sock.close()


def always(status: int, body: object = b"", **headers: str) -> Callable[[Peer], None]:
    """A script that gives every request the same answer."""

    def script(peer: Peer) -> None:
        while peer.read() is not None:
            peer.answer(status, body, **headers)

    return script
