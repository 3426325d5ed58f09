"""Posts per second and per CPU-second: verified and durable, beside Starlette with SQLite.

Both servers get the same frames of 1 KB from the same 32 writers over loopback: parse the frame,
verify the author's signature, store it durably, answer 201. The peer commits groups, as ours does.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import (
    BIN,
    Row,
    cpu_seconds,
    folder,
    free_port,
    process,
    relay,
    wait_for_port,
)

WRITERS = 32
POSTS = 6400
ROUNDS = 5
TEXT_BYTES = 1024
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))


def rows() -> list[Row]:
    """Medians of rounds in which the two take turns, so that load hits both alike."""
    rounds = [(*_ours(), *_peer()) for _ in range(ROUNDS)]
    ours, ours_cpu, peer, peer_cpu = (statistics.median(each) for each in zip(*rounds, strict=True))
    name = "Starlette + SQLite"
    return [
        Row("relay: durable posts of 1 KB, 32 writers", ours, peer, "/s", name, "≥ 1.5"),
        Row("the same per CPU-second of the server", ours_cpu, peer_cpu, "/s", name, "≥ 1.5"),
    ]


def _ours() -> tuple[float, float]:
    from airlox.protocol import wire
    from airlox.protocol.keys import Role
    from support.world import World

    world = World(now_ms=int(time.time() * 1000), max_item_bytes=1 << 20)
    sid = world.keys.session_id
    sender = world.person(Role.SENDER)
    frames = [sender.say("x" * TEXT_BYTES).frame() for _ in range(POSTS)]
    with folder() as data, relay("--data", str(data)) as (address, pid):
        port = int(address.rsplit(":", 1)[1])
        _call(port, "POST", wire.SESSIONS, world.document.encode())
        answer = _call(port, "POST", wire.participants(sid), sender.join.encode())
        token = answer.split(b'"token":"')[1].split(b'"')[0].decode()
        return _drive(port, wire.items(sid), token, frames, pid)


def _peer() -> tuple[float, float]:
    from airlox.protocol.keys import Role
    from support.world import World

    world = World(now_ms=int(time.time() * 1000), max_item_bytes=1 << 20)
    sender = world.person(Role.SENDER)
    frames = [sender.say("x" * TEXT_BYTES).frame() for _ in range(POSTS)]
    port = free_port()
    with folder() as data:
        argv = [str(BIN / "python"), str(HERE / "peer_server.py"), str(data / "db"), str(port)]
        with process(argv, env={"AUTHOR": sender.public}) as server:
            wait_for_port(port)
            return _drive(port, "/items", "x" * 43, frames, server.pid)


def _drive(port: int, path: str, token: str, frames: list[bytes], pid: int) -> tuple[float, float]:
    """Posts per second and per CPU-second of the server."""
    shares = [frames[n::WRITERS] for n in range(WRITERS)]
    # Two sending processes: one alone would be the bottleneck.
    halves = [shares[: WRITERS // 2], shares[WRITERS // 2 :]]
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(len(halves) + 1)
    senders = [
        context.Process(target=_send_all, args=(port, path, token, half, gate)) for half in halves
    ]
    for sender in senders:
        sender.start()
    gate.wait(60)
    cpu, start = cpu_seconds(pid), time.perf_counter()
    for sender in senders:
        sender.join(120)
        if sender.exitcode != 0:
            raise RuntimeError("a sender failed")
    spent = time.perf_counter() - start
    return len(frames) / spent, len(frames) / max(cpu_seconds(pid) - cpu, 0.01)


def _send_all(port: int, path: str, token: str, shares: list[list[bytes]], gate: object) -> None:
    """Each writer has one connection and one post under way; `select` keeps them all busy."""
    import selectors

    selector = selectors.DefaultSelector()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: "
    ).encode()
    for share in shares:
        writer = socket.create_connection(("127.0.0.1", port), timeout=60)
        writer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(writer, selectors.EVENT_READ, _Writer(iter(share)))
    gate.wait(60)  # type: ignore[attr-defined]
    for key in list(selector.get_map().values()):
        _send_next(key.fileobj, key.data, head, selector)  # type: ignore[arg-type]
    while selector.get_map():
        for key, _ in selector.select(60):
            if key.data.takes(key.fileobj.recv(65536)):  # type: ignore[union-attr]
                _send_next(key.fileobj, key.data, head, selector)  # type: ignore[arg-type]


class _Writer:
    """The frames of one connection, and its answer as far as it has come."""

    def __init__(self, frames: Iterator[bytes]) -> None:
        self.frames = frames
        self._answer = b""

    def takes(self, data: bytes) -> bool:
        """Whether the answer is whole now. A server may send its head and its body apart."""
        self._answer += data
        head, end, body = self._answer.partition(b"\r\n\r\n")
        if not data or not head.startswith(b"HTTP/1.1 20"[: len(head)]):
            raise RuntimeError(self._answer[:200])
        if not end or len(body) < _content_length(head):
            return False
        self._answer = b""
        return True


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    raise RuntimeError("an answer does not say how long it is")


def _send_next(writer: socket.socket, share: _Writer, head: bytes, selector: object) -> None:
    frame = next(share.frames, None)
    if frame is None:
        selector.unregister(writer)  # type: ignore[attr-defined]
        writer.close()
        return
    writer.sendall(head + str(len(frame)).encode() + b"\r\n\r\n" + frame)


def _call(port: int, method: str, path: str, body: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    if not answer.startswith(b"HTTP/1.1 20"):
        raise RuntimeError(answer[:300])
    return answer


if __name__ == "__main__":
    from bench.measure import report

    print(report(rows()), file=sys.stdout)
    os.sync()
