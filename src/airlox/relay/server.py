"""The relay on a socket: uvicorn with the settings that streams and pooled connections need."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import uvicorn

from airlox.errors import UsageError
from airlox.relay.app import App
from airlox.relay.clock import Clock
from airlox.relay.config import Config
from airlox.relay.connection import Doors, serving
from airlox.relay.relay import Relay
from airlox.relay.store.base import Store
from airlox.relay.store.disk import DiskStore
from airlox.relay.store.memory import MemoryStore

log = logging.getLogger("airlox.relay")

KEEP_ALIVE_S: Final = 75
"""Longer than clients keep a connection in their pools, so that it does not die under one."""
GRACE_S: Final = 1
BACKLOG: Final = 2048
STORE_FILES: Final = 64
"""Descriptors kept for journal, logs and pools, beside those of large bodies under way."""


def make_store(config: Config) -> Store:
    if config.data is None:
        return MemoryStore(config.ephemeral_bytes)
    return DiskStore(Path(config.data), config)


def bind(config: Config) -> socket.socket:
    """A listening socket. Raises UsageError when the address cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Connections inherit it: one whose other end takes nothing is broken by the system.
            stall_ms = config.stall_timeout_s * 1000
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror or error}",
            hint="choose another address with --listen; port 0 takes a free port",
        ) from None
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """The base URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def raise_file_limit() -> None:
    """Lets this process have as many descriptors as the system allows it."""
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fit_open_files(config: Config) -> Config:
    """The settings with no more connections and transfers than there are descriptors for.

    A transfer may need two beside its connection; at most a third of what the store leaves goes
    to them, so that few descriptors mean fewer of both, not a relay that serves nobody.
    """
    if sys.platform == "win32":
        return _shared(config)
    import resource

    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _shared(config)
    spare = allowed - STORE_FILES
    transfers = min(config.max_transfers, max(1, spare // 6))
    connections = min(config.max_connections, max(1, spare - 2 * transfers))
    fitted = dataclasses.replace(config, max_connections=connections, max_transfers=transfers)
    return _shared(fitted)


def _shared(config: Config) -> Config:
    """The settings with something left for others: streams leave connections to post on, and one
    session or address has at most half of what there is, one participant a quarter."""
    connections, transfers = config.max_connections, config.max_transfers
    streams = min(config.max_streams, max(1, connections * 3 // 4))
    at_most = {
        "max_streams": streams,
        "max_connections_per_address": connections // 2,
        "max_streams_per_participant": streams // 4,
        "max_streams_per_session": streams // 2,
        "max_streams_per_address": streams // 2,
        "max_transfers_per_participant": transfers // 4,
        "max_transfers_per_session": transfers // 2,
        "max_transfers_per_address": transfers // 2,
    }
    fitted = {name: min(getattr(config, name), max(1, most)) for name, most in at_most.items()}
    return dataclasses.replace(config, **fitted)


class _Server(uvicorn.Server):
    """Ends the streams before it waits for connections to finish."""

    def __init__(self, config: uvicorn.Config, relay: Relay, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._relay = relay
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._relay.end_streams()
        await super().shutdown(sockets)


class RelayServer:
    """One relay that serves a socket until it is told to stop."""

    def __init__(
        self,
        config: Config,
        version: str,
        listener: socket.socket,
        clock: Clock | None = None,
    ) -> None:
        fitted = fit_open_files(config)
        self.relay = Relay(fitted, make_store(fitted), clock)
        self.doors = Doors(fitted)
        self.url = address_of(listener)
        self._listener = listener
        fewer = {"connections": fitted.max_connections, "transfers": fitted.max_transfers}
        if fewer != {"connections": config.max_connections, "transfers": config.max_transfers}:
            log.info("the limit of open files is the limit", extra=fewer)
        self._uvicorn = uvicorn.Config(
            App(self.relay, version),
            http=serving(self.doors),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
            backlog=BACKLOG,
        )
        self._server: _Server | None = None

    async def serve(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serves until `stop`, SIGTERM or SIGINT. Raises StorageError when it cannot begin."""
        await self.relay.start()
        try:
            self._server = _Server(self._uvicorn, self.relay, on_ready)
            await self._server.serve(sockets=[self._listener])
        finally:
            self._listener.close()
            await self.relay.stop()

    def stop(self) -> None:
        """May be called from any thread."""
        if self._server is not None:
            self._server.should_exit = True


def run(server: RelayServer, on_ready: Callable[[], None] = lambda: None) -> None:
    """Serves in an event loop of its own: uvloop where there is one."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with _rarer_collections(), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(server.serve(on_ready))


@contextlib.contextmanager
def _rarer_collections() -> Iterator[None]:
    """Sessions are many small objects that live long and form no cycles: looking through all of
    them for garbage every few hundred allocations costs a tenth of the time, in long pauses."""
    before = gc.get_threshold()
    gc.set_threshold(20_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
