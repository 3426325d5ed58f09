"""What may stand between a client and its relay, as scripts for `Scripted`: a proxy that holds
answers back until they are complete, and one that opens tunnels (CONNECT)."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from support.scripted import Peer, Request

TIMEOUT_S = 60.0
READ_BYTES = 65536


def holding(target_url: str, *, passes_head: bool) -> Callable[[Peer], None]:
    """Passes an answer on once all of it is there, as a scanner of downloads does; the head at
    once where `passes_head`."""

    def script(peer: Peer) -> None:
        request = peer.read()
        if request is None:
            return
        with _dial(target_url) as server:
            server.sendall(_said_again(request))
            held, has_passed = b"", not passes_head
            while data := _next(server, peer.sock):
                held += data
                head, found, rest = held.partition(b"\r\n\r\n")
                if found and not has_passed:
                    peer.send(head + found)
                    held, has_passed = rest, True
            peer.send(held)

    return script


def tunnelling(seen: list[str], *, login: str | None = None) -> Callable[[Peer], None]:
    """Opens a way to whatever CONNECT names, and notes it in `seen`; `login` is the value of
    Proxy-Authorization it wants."""

    def script(peer: Peer) -> None:
        request = peer.read()
        if request is None:
            return
        assert request.method == "CONNECT"
        if login is not None and request.headers.get("proxy-authorization") != login:
            peer.answer(407, b"<html>Who are you?</html>", Proxy_Authenticate="Basic")
            return
        seen.append(request.path)
        with _dial(f"//{request.path}") as server:
            peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            _join(peer.sock, server)

    return script


def _dial(url: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 80), TIMEOUT_S)


def _said_again(request: Request) -> bytes:
    """The request as it goes on to the relay, the only one of its connection."""
    headers = {**request.headers, "connection": "close"}
    lines = [f"{request.method} {request.path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + request.body


def _next(server: socket.socket, client: socket.socket) -> bytes:
    """What the relay says next; nothing at its end, or when the client has gone."""
    ready, _, _ = select.select([server, client], [], [])
    return b"" if client in ready else server.recv(READ_BYTES)


def _join(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes both ways until one side ends."""
    while True:
        ready, _, _ = select.select([one, other], [], [])
        for sock in ready:
            data = sock.recv(READ_BYTES)
            if not data:
                return
            (other if sock is one else one).sendall(data)


class Carrier:
    """Carries each request to the relay and its answer back, and notes both. As a script for
    `Scripted` it is all that stands between.

    `target_url` may be changed while it runs; `named` is the client that it names, as proxies do;
    `before` hears of each request before it goes on, and may end the relay; an answer of which
    `loses` says so is not passed on.
    """

    def __init__(self, target_url: str, named: str | None = None) -> None:
        self.target_url = target_url
        self.named = named
        self.before: Callable[[Request], None] = _carry_on
        self.loses: Callable[[Request], bool] = _lose_nothing
        self.seen: list[tuple[Request, bytes]] = []

    def __call__(self, peer: Peer) -> None:
        request = peer.read()
        if request is None:
            return
        self.before(request)
        if self.named is not None:
            request = request._replace(headers={**request.headers, "x-forwarded-for": self.named})
        answer = b""
        with _dial(self.target_url) as server:
            server.sendall(_said_again(request))
            while data := _next(server, peer.sock):
                answer += data
        self.seen.append((request, answer))
        if not self.loses(request):
            peer.send(answer)


def _carry_on(_: Request) -> None:
    """Nothing is done before a request goes on."""


def _lose_nothing(_: Request) -> bool:
    return False
