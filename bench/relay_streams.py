"""Memory per idle stream, beside Starlette's StreamingResponse on the same server."""

from __future__ import annotations

import resource
import socket
import sys
import time
from pathlib import Path

from bench.measure import BIN, Row, free_port, process, relay, resident_bytes, wait_for_port
from bench.relay_posts import _call

STREAMS = 500
HERE = Path(__file__).parent

_PEER = """
import asyncio, sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

async def events():
    yield ": hello\\n\\n"
    await asyncio.Event().wait()

async def stream(request):
    return StreamingResponse(events(), media_type="text/event-stream")

app = Starlette(routes=[Route("/stream", stream)])
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning",
            loop="uvloop", http="httptools", access_log=False)
"""


def rows() -> list[Row]:
    ours, peer = _ours() / 1024, _peer() / 1024
    name = "Starlette StreamingResponse"
    return [Row("memory per idle stream", ours, peer, "KiB", name, "≤ 20 KiB")]


def _ours() -> float:
    from airlox.protocol import wire
    from airlox.protocol.keys import Role
    from support.world import World

    world = World(now_ms=int(time.time() * 1000))
    sid = world.keys.session_id
    observer = world.person(Role.OBSERVER)
    most = str(STREAMS + 100)
    with relay("--ephemeral", "--max-streams-per-participant", most) as (address, pid):
        port = int(address.rsplit(":", 1)[1])
        _call(port, "POST", wire.SESSIONS, world.document.encode())
        answer = _call(port, "POST", wire.participants(sid), observer.join.encode())
        token = answer.split(b'"token":"')[1].split(b'"')[0].decode()
        return _per_stream(port, wire.stream(sid), token, pid)


def _peer() -> float:
    port = free_port()
    with process([str(BIN / "python"), "-c", _PEER, str(port)]) as server:
        wait_for_port(port)
        return _per_stream(port, "/stream", "x", server.pid)


def _per_stream(port: int, path: str, token: str, pid: int) -> float:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    head = f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n".encode()
    opened = [_open(port, head) for _ in range(20)]
    before = resident_bytes(pid)
    opened += [_open(port, head) for _ in range(STREAMS)]
    used = resident_bytes(pid) - before
    for stream in opened:
        stream.close()
    return used / STREAMS


def _open(port: int, head: bytes) -> socket.socket:
    stream = socket.create_connection(("127.0.0.1", port), timeout=10)
    stream.sendall(head)
    if not stream.recv(4096).startswith(b"HTTP/1.1 200"):
        raise RuntimeError("stream refused")
    return stream


if __name__ == "__main__":
    from bench.measure import report

    print(report(rows()), file=sys.stdout)
