"""A network that can be cut: a forwarder of TCP that breaks connections where a test says."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from urllib.parse import urlsplit

TIMEOUT_S = 60.0


class Network:
    """`with Network(relay.url) as network:` forwards `network.url` to the relay.

    `cut_requests_after(n)` breaks the next connection once n bytes went to the relay;
    `cut_answers()` breaks the next one when the relay begins to answer, so that what was asked is
    done and nobody hears of it. `bytes_per_s` slows each connection down, in each direction.
    """

    def __init__(self, target_url: str, *, bytes_per_s: int | None = None) -> None:
        parts = urlsplit(target_url)
        assert parts.hostname is not None
        self._target = (parts.hostname, parts.port)
        self._bytes_per_s = bytes_per_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        if bytes_per_s is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        self._cut_after: int | None = None
        self._cut_answer = False
        self._only: bytes | None = None
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._socks: list[socket.socket] = []

    def cut_requests_after(self, count: int, *, holding: bytes) -> None:
        """Break the next connection whose first bytes hold `holding`, after `count` bytes."""
        self._cut_after, self._only = count, holding

    def cut_answers(self, *, holding: bytes) -> None:
        """Break the next connection whose request holds `holding`, at its answer."""
        self._cut_answer, self._only = True, holding

    def cut_now(self) -> None:
        """Break every connection there is."""
        for sock in self._socks:
            _shut(sock)

    def __enter__(self) -> Network:
        self._spawn(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        with contextlib.suppress(OSError):
            socket.create_connection(self._listener.getsockname(), 1).close()
        self._listener.close()
        self.cut_now()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        for sock in self._socks:
            sock.close()

    def _spawn(self, run: object, *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._socks.append(client)
                if self._stopping.is_set():
                    return
                self._forward(client)

    def _forward(self, client: socket.socket) -> None:
        server = socket.create_connection(self._target, TIMEOUT_S)
        server.settimeout(None)
        self._socks.append(server)
        pair = _Pair()
        self._spawn(self._up, client, server, pair)
        self._spawn(self._down, client, server, pair)

    def _up(self, client: socket.socket, server: socket.socket, pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self._only is not None and self._only in data:
                    pair.chosen, self._only = True, None
                if pair.chosen and self._cut_after is not None:
                    pair.sent += len(data)
                    if pair.sent > self._cut_after:
                        self._cut_after = None
                        self.cuts += 1
                        break
                self._pass(data, server)
        _shut(client)
        _shut(server)

    def _down(self, client: socket.socket, server: socket.socket, pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if pair.chosen and self._cut_answer:
                    self._cut_answer = False
                    self.cuts += 1
                    break
                self._pass(data, client)
        _shut(client)
        _shut(server)

    def _pass(self, data: bytes, on: socket.socket) -> None:
        if self._bytes_per_s is not None:
            self._stopping.wait(len(data) / self._bytes_per_s)
        on.sendall(data)


class _Pair:
    """What is known of one forwarded connection."""

    def __init__(self) -> None:
        self.chosen = False
        self.sent = 0


def _shut(sock: socket.socket) -> None:
    """Break a connection under the threads that use it; they see its end."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
