"""What every sandbox does with a running job: wait for the first reason to end it, and end it.

Two steps, in this order: `first_reason` waits for the main process, the clock, a cancel or a
breach of a limit, whichever comes first; `end_all` sends TERM to all that is left, waits the
grace time, sends KILL, and waits until nothing runs. How processes are listed and signalled is
the business of the `Group` that the sandbox hands in.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airlox.sandbox.base import Cause

if TYPE_CHECKING:
    from collections.abc import Awaitable


NOT_GONE = "some of its processes could not be ended"
"""The detail of an outcome after which something of the job may still run."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A limit that was passed: which, its value, the amount that was seen, and of what."""

    cause: Cause
    limit: int
    seen: int
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job is over. `EXIT` means that its main process ended by itself, in whatever way."""

    cause: Cause
    limit: int | None = None
    detail: str | None = None


class Group(Protocol):
    """All processes of one job, as its sandbox can reach them."""

    async def signal_all(self, number: int) -> None:
        """Send the signal to every process of the job; none left is fine."""

    async def emptied(self) -> None:
        """Return when the last process is gone."""


async def first_reason(
    ended: asyncio.Future[None],
    *,
    timeout_s: float,
    cancel: asyncio.Event,
    breached: Awaitable[Breach],
) -> Reason:
    """Wait for the first reason to end. An end of the main process wins over what comes with it.

    The clock is the loop's, which is monotonic, and starts now. `ended` stays the caller's; the
    other waits are cancelled. What `ended` or `breached` raises is raised.
    """
    cancelled = asyncio.ensure_future(cancel.wait())
    breach = asyncio.ensure_future(breached)
    first = asyncio.FIRST_COMPLETED
    try:
        await asyncio.wait((ended, cancelled, breach), timeout=timeout_s, return_when=first)
        if ended.done():
            ended.result()
            return Reason(Cause.EXIT)
        if breach.done():
            found = breach.result()
            return Reason(found.cause, found.limit, found.detail)
        if cancelled.done():
            return Reason(Cause.CANCELLED)
        return Reason(Cause.TIME_OUT, round(timeout_s * 1000))
    finally:
        cancelled.cancel()
        breach.cancel()
        await asyncio.gather(cancelled, breach, return_exceptions=True)


async def end_all(group: Group, *, grace_s: float, kill_within_s: float) -> bool:
    """TERM, grace, KILL, and wait. True when nothing is left, False if `kill_within_s` passed.

    With `grace_s` 0 the TERM is left out: what outlives a main process that ended gets no time.
    """
    if grace_s > 0:
        await group.signal_all(signal.SIGTERM)
        if await _within(group.emptied(), grace_s):
            return True
    await group.signal_all(signal.SIGKILL)
    return await _within(group.emptied(), kill_within_s)


async def _within(wait: Awaitable[None], seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wait
        return True
    return False
