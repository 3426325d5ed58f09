"""The periodic pass: what has expired, what is overdue, what nobody holds any more.

A fault in one session is logged and keeps the pass neither from the others nor from the next.
Streams are looked after apart from it: a pass may wait for the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from airlox.errors import AirloxError
from airlox.relay.history import History
from airlox.relay.hub import Hub
from airlox.relay.items import Items
from airlox.relay.jobs import Jobs
from airlox.relay.live import Live
from airlox.relay.packs import Packs
from airlox.relay.service import Core
from airlox.relay.state import Session
from airlox.relay.transfers import Transfers

log = logging.getLogger("airlox.relay")

SLOW_EVERY = 20
"""Of so many passes one does what may wait."""


class Sweeper:
    def __init__(
        self,
        core: Core,
        items: Items,
        jobs: Jobs,
        live: Live,
        packs: Packs,
        history: History,
        transfers: Transfers,
    ) -> None:
        self._core = core
        self._items = items
        self._jobs = jobs
        self._live = live
        self._packs = packs
        self._history = history
        self._transfers = transfers
        self._hub: Hub = core.hub
        self.passes = 0

    async def run(self) -> None:
        """Sweeps until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self._look_after_streams))
            tasks.create_task(self._repeat(self.sweep))
            tasks.create_task(self._serve_stirred())

    async def _repeat(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await step()
            except Exception:
                log.exception("sweep failed")
            await asyncio.sleep(self._core.config.sweep_ms / 1000)

    async def _serve_stirred(self) -> None:
        """A slot that became free is given away at once."""
        while True:
            session = self._core.sessions.get(await self._core.stirred.take())
            if session is not None:
                await self._try(session, self._jobs.serve_waiting(session))

    async def _look_after_streams(self) -> None:
        self._hub.tick()
        self._transfers.tick()

    async def sweep(self) -> None:
        """One pass."""
        self._check_disk()
        now_ms = self._core.clock.now_ms()
        for session in list(self._core.sessions.values()):
            expires_ms = session.manifest.expires_at_ms
            if expires_ms is not None and now_ms >= expires_ms:
                await self._try(session, self._core.end(session, "expired"))
                continue
            if session.active_jobs:
                await self._try(session, self._jobs.end_overdue(session))
            if session.waiting:
                await self._try(session, self._jobs.serve_waiting(session))
            if session.someone_left:
                session.someone_left = False
                await self._try(session, self._items.evict_all_delivered(session))
        self.passes += 1
        if self.passes % SLOW_EVERY == 0:
            await self._sweep_slowly()

    async def _sweep_slowly(self) -> None:
        self._core.quotas.forget_idle()
        await self._tidy_ended()
        self._live.forget_ended()
        ticks_ms, config = self._core.clock.ticks_ms(), self._core.config
        newcomers_ms = ticks_ms - config.newcomer_grace_s * 1000
        asked_ms = ticks_ms - config.want_lifetime_s * 1000
        for session in list(self._core.sessions.values()):
            session.someone_left |= session.forget_latecomers(newcomers_ms, asked_ms)
            if session.pack_sets:
                await self._try(session, self._packs.drop_unclaimed(session))
            if session.keeps_history:
                await self._try(session, self._history.forget_old(session))

    async def _tidy_ended(self) -> None:
        try:
            await self._core.tidy_ended()
        except AirloxError as error:
            log.warning("sweep failed", extra={"reason": error.message})

    async def _try(self, session: Session, step: Coroutine[Any, Any, None]) -> None:
        try:
            await step
        except AirloxError as error:
            log.warning("sweep failed", extra={"session": session.id, "reason": error.message})
        except Exception:
            log.exception("sweep failed", extra={"session": session.id})

    def _check_disk(self) -> None:
        is_full = self._core.store.free_bytes() < self._core.config.watermark_bytes
        if is_full != self._core.quotas.disk_is_full:
            self._core.quotas.disk_is_full = is_full
            log.warning("disk below the watermark" if is_full else "disk above the watermark")
