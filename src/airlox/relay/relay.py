"""The parts of one relay, put together from (config, store, clock), with a start and a stop."""

from __future__ import annotations

import asyncio
import contextlib

from airlox.relay.clock import Clock, SystemClock
from airlox.relay.config import Config
from airlox.relay.epochs import Epochs
from airlox.relay.history import History
from airlox.relay.items import Blobs, Items
from airlox.relay.jobs import Jobs
from airlox.relay.live import Live
from airlox.relay.packs import Packs
from airlox.relay.queue import Queue
from airlox.relay.runners import Runners
from airlox.relay.service import Core
from airlox.relay.store.base import Store
from airlox.relay.sweeper import Sweeper
from airlox.relay.transfers import Transfers


class Relay:
    """Start it before the first request; `end_streams`, then `stop`, when there are to be none."""

    def __init__(self, config: Config, store: Store, clock: Clock | None = None) -> None:
        self.core = Core(config, store, clock or SystemClock())
        self.blobs = Blobs(self.core)
        self.items = Items(self.core, self.blobs)
        self.runners = Runners(self.core)
        self.queue = Queue(self.core, self.runners)
        self.jobs = Jobs(self.core, self.items, self.blobs, self.runners, self.queue)
        self.live = Live(self.core)
        self.epochs = Epochs(self.core)
        self.packs = Packs(self.core, self.blobs)
        self.history = History(self.core)
        self.transfers = Transfers(self.core)
        self.sweeper = Sweeper(
            self.core, self.items, self.jobs, self.live, self.packs, self.history, self.transfers
        )
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises StorageError."""
        await self.core.store.start()
        await self.core.load()
        self._sweeping = asyncio.create_task(self.sweeper.run())

    def end_streams(self) -> None:
        """Clients reconnect at their cursor, to whoever answers then."""
        self.core.hub.end_all()
        self.transfers.end_waits()

    async def stop(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        await self.core.store.stop()
