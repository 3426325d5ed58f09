"""The peer of relay_posts.py: Starlette on uvicorn, `cryptography`, SQLite in WAL mode.

Written as a good engineer would for this one job: uvloop and httptools, a writer thread that
commits everything waiting in one transaction, `synchronous=FULL` so that an answer means durable.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import queue
import sqlite3
import sys
import threading

import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

Waiting = tuple[str, str, bytes, asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Writer(threading.Thread):
    def __init__(self, path: str) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.waiting: queue.SimpleQueue[Waiting] = queue.SimpleQueue()

    def run(self) -> None:
        base = sqlite3.connect(self.path)
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA synchronous=FULL")
        base.execute("CREATE TABLE items (id TEXT PRIMARY KEY, envelope TEXT, blob BLOB)")
        while True:
            group = [self.waiting.get()]
            while not self.waiting.empty() and len(group) < 256:
                group.append(self.waiting.get())
            with base:
                base.executemany("INSERT INTO items VALUES (?, ?, ?)", [g[:3] for g in group])
            for *_, loop, done in group:
                loop.call_soon_threadsafe(done.set_result, None)


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def build(path: str, author: str) -> Starlette:
    writer = Writer(path)
    writer.start()
    key = Ed25519PublicKey.from_public_bytes(decode(author))

    async def post(request: Request) -> JSONResponse:
        body = await request.body()
        size = int.from_bytes(body[:4], "big")
        envelope, blob = body[4 : 4 + size], body[4 + size :]
        value = json.loads(envelope)
        header = json.dumps(
            value["header"], sort_keys=True, separators=(",", ":"), ensure_ascii=False
        ).encode()
        message = b"airlox/v1/item\0" + header + hashlib.sha256(blob).digest()
        key.verify(decode(value["sig"]), message)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        writer.waiting.put((value["header"]["id"], envelope.decode(), blob, loop, done))
        await done
        return JSONResponse({}, status_code=201)

    return Starlette(routes=[Route("/items", post, methods=["POST"])])


if __name__ == "__main__":
    uvicorn.run(
        build(sys.argv[1], os.environ["AUTHOR"]),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        log_level="warning",
        loop="uvloop",
        http="httptools",
        access_log=False,
    )
