"""Room for jobs: how many run at once, which they are, and how one is told to stop.

Two counts. A job *occupies* a slot until its folders are gone. To the relay it *takes* one from
its claim until the relay has its answer, so that whoever has seen the answer finds the runner free:
the next job then waits here for the moment that tidying up takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, Final, TypeVar

from airlox.errors import JobRefused
from airlox.protocol.encoding import ItemId

T = TypeVar("T")

WAITING: Final = 64
"""Assigned jobs that may wait for a slot. An honest relay sends none to a full runner."""


class Running:
    """One job in a slot: when to stop it, and on whose word."""

    def __init__(self, job: ItemId) -> None:
        self.job: Final = job
        self.cancelled: Final = asyncio.Event()
        self.why = ""
        self.answered = False
        """Whether the spool has its answer, and sees to the rest."""

    def cancel(self, why: str) -> None:
        """Stop the job. The first reason counts."""
        if not self.cancelled.is_set():
            self.why = why
            self.cancelled.set()

    def check(self) -> None:
        """Raises JobRefused (code `cancelled`) once the job is to stop."""
        if self.cancelled.is_set():
            raise JobRefused(self.why, code="cancelled")

    async def unless_cancelled(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives. Raises JobRefused once the job is to stop, and gives up the work."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self.cancelled.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.check()
            return await task
        finally:
            stopped.cancel()
            if not task.done():
                task.cancel()


class Slots:
    """The slots of one runner. Used in the event loop's thread."""

    def __init__(self, count: int) -> None:
        self.count: Final = count
        self._room = asyncio.Semaphore(count)
        self._known: dict[ItemId, Running] = {}
        self._taken: dict[ItemId, None] = {}
        self._closed = False
        self.freed: Final = asyncio.Event()
        """Set when a slot became free for the relay to count on, and at first."""
        self.freed.set()

    @property
    def free(self) -> int:
        """As the relay may count on it."""
        return 0 if self._closed else max(0, self.count - len(self._taken))

    def close(self) -> None:
        """No job more shall come."""
        self._closed = True

    @property
    def current(self) -> ItemId | None:
        """The job that was claimed first of those without an answer, for the heartbeat."""
        return next(iter(self._taken), None)

    @property
    def left(self) -> int:
        """Slots less the jobs in `taken`: below 0 when the relay, which knew first that a job is
        over, has filled its slot already."""
        return self.count - len(self._taken)

    @property
    def taken(self) -> tuple[ItemId, ...]:
        """The jobs that the relay gave this runner and that are not over, the first claimed first.
        No more of them than an honest relay can have given."""
        return tuple(islice(self._taken, 2 * self.count))

    @property
    def known(self) -> tuple[ItemId, ...]:
        """The jobs that run or wait for a slot."""
        return tuple(self._known)

    def add(self, job: ItemId) -> Running | None:
        """Note an assigned job; None when it is known already or too many wait."""
        if job in self._known or len(self._known) >= self.count + WAITING:
            return None
        running = self._known[job] = Running(job)
        return running

    def cancel(self, job: ItemId, why: str) -> bool:
        """Whether there was such a job to stop."""
        running = self._known.get(job)
        if running is not None:
            running.cancel(why)
        return running is not None

    def cancel_all(self, why: str) -> None:
        for running in self._known.values():
            running.cancel(why)

    def forget(self, running: Running) -> None:
        self._known.pop(running.job, None)

    def take(self, job: ItemId) -> None:
        """The relay gave the job to this runner."""
        self._taken[job] = None

    def give_back(self, job: ItemId) -> None:
        """The relay has the job's answer, or none is due."""
        self._taken.pop(job, None)
        self.freed.set()

    @asynccontextmanager
    async def occupied(self) -> AsyncIterator[None]:
        """Wait for a slot; it is the caller's until the block ends."""
        async with self._room:
            yield
