"""The protocol over HTTP, on a loopback address: for tests of conformance, and for clients that
would rather connect than start a process.

Rules
- Only 127.0.0.1 is listened on. What came for another host, or from a page of another origin, is
  refused before anything else: a web page can make a browser call us under a name it owns.
- Every request shows the token, unless the person said that none is needed. It is drawn anew at
  each start and written to a file that this user alone can read; it never stands in a log.
- Heads and bodies of requests, open sessions and the time an idle one lives are bounded.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from airlox import safefs
from airlox.errors import AirloxError
from airlox.mcp.calls import Calls
from airlox.mcp.life import CLOSE_S, WIND_UP_S, Ending
from airlox.mcp.server import build, log_to_stderr
from airlox.mcp.stdio import MOST_LINE_BYTES

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from airlox.mcp.desk import Desk
    from airlox.mcp.tool import Tool

HOST: Final = "127.0.0.1"
PATH: Final = "/mcp"
TOKEN_BYTES: Final = 32
MOST_SESSIONS: Final = 64
MOST_CONNECTIONS: Final = 256
IDLE_S: Final = 1800.0

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def serve_http(
    tools: Sequence[Tool],
    desk: Desk,
    *,
    port: int,
    token_dir: str | None,
    on_ready: Callable[[str, str | None], None],
) -> None:
    """Serve until TERM or INT. Port 0 means any that is free. The token's file is made in
    `token_dir`; with None there is no token. `on_ready` gets the address and that file's path.
    Raises AirloxError, StorageError."""
    log_to_stderr()
    with listening(port) as listener, _token_file(token_dir) as (token, path):

        async def serve() -> None:
            calls, url = Calls(desk), address(listener)
            server = build(tools, calls)
            await serve_on(listener, server, calls, token, lambda: on_ready(url, path))

        asyncio.run(serve())


def address(listener: socket.socket) -> str:
    """Where clients find the server of a socket."""
    return f"http://{HOST}:{listener.getsockname()[1]}{PATH}"


async def serve_on(
    listener: socket.socket,
    server: Server[Any],
    calls: Calls,
    token: str | None,
    ready: Callable[[], None],
) -> None:
    """Serve what connects to a socket until TERM or INT; `ready` is called when those count."""
    manager = StreamableHTTPSessionManager(
        server,
        max_request_body_size=MOST_LINE_BYTES,
        max_sessions=MOST_SESSIONS,
        session_idle_timeout=IDLE_S,
    )
    app = guarded(manager.handle_request, listener.getsockname()[1], token)
    config = uvicorn.Config(
        app,
        http="h11",  # it bounds the head of a request, which comes before any token is shown
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
    )
    ending = Ending(asyncio.get_running_loop())
    ending.on_signals()
    ready()
    web = _Web(config)
    async with manager.run():
        serving = asyncio.create_task(web.serve([listener]))
        over = asyncio.create_task(ending.wait())
        await asyncio.wait({serving, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        web.should_exit = True
        await asyncio.wait({serving}, timeout=WIND_UP_S)
        web.force_exit = True
        await calls.close(CLOSE_S)
        await serving


class _Web(uvicorn.Server):
    """Leaves signals to us: it would raise them again before the end is over."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def guarded(app: App, port: int, token: str | None) -> App:
    """`app` behind the checks of host, origin, token and path."""
    hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
    origins = {f"http://{host}" for host in hosts}

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        # white space around a value is no part of it; not every parser takes it away
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        if _header(headers, b"host") not in hosts:
            await _refuse(send, 421, "this server answers to 127.0.0.1 and localhost")
        elif _header(headers, b"origin") not in origins | {None}:
            await _refuse(send, 403, "pages of other origins may not call this server")
        elif token is not None and not _shows(headers, token):
            await _refuse(send, 401, "show the bearer token of this server")
        elif scope["path"] != PATH:
            await _refuse(send, 404, f"the path is {PATH}")
        else:
            await app({**scope, "headers": headers}, receive, send)

    return guard


def _header(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> str | None:
    """A header's value; one that is there twice has none that counts."""
    values = [value.decode("latin-1") for key, value in headers if key == name]
    return values[0] if len(values) == 1 else ("" if values else None)


def _shows(headers: Sequence[tuple[bytes, bytes]], token: str) -> bool:
    scheme, _, shown = (_header(headers, b"authorization") or "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(shown.encode(), token.encode())


async def _refuse(send: Send, status: int, why: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"airlox: {why}\n".encode()})


@contextmanager
def listening(port: int) -> Iterator[socket.socket]:
    """A socket at a port of the loopback address. Raises AirloxError."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            raise AirloxError(
                f"port {port} of {HOST}: {error.strerror}",
                code="port",
                hint="choose another --port, or none: then any that is free is taken",
            ) from None
        listener.listen()  # who connects from now on is served, if not at once
        yield listener
    finally:
        listener.close()


@contextmanager
def _token_file(folder: str | None) -> Iterator[tuple[str | None, str | None]]:
    """A new token and the file it stands in, which goes with the block."""
    if folder is None:
        yield None, None
        return
    safefs.make_private_dir(folder)
    token, path = secrets.token_urlsafe(TOKEN_BYTES), os.path.join(folder, f"{os.getpid()}.token")
    safefs.write_private(path, f"{token}\n".encode())
    try:
        yield token, path
    finally:
        os.unlink(path)
