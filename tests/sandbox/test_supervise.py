"""The first reason to end a job, and the order in which its processes are ended."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from airlox.sandbox.base import Cause
from airlox.sandbox.supervise import Breach, Reason, end_all, first_reason

LONG_S = 1000.0


def within_limit(story: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(story(), 30))


async def never() -> Breach:
    await asyncio.Event().wait()
    raise AssertionError


async def breach() -> Breach:
    return Breach(Cause.DISK, 10, 12, "files made")


class TestFirstReason:
    async def _first(
        self,
        *,
        arrange: Callable[[], None] = lambda: None,
        breached: Callable[[], Coroutine[Any, Any, Breach]] = never,
        timeout_s: float = LONG_S,
    ) -> Reason:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cancel = asyncio.Event()
        arrange()
        return await first_reason(
            self.ended, timeout_s=timeout_s, cancel=self.cancel, breached=breached()
        )

    def test_the_main_process_ended(self) -> None:
        reason = within_limit(lambda: self._first(arrange=lambda: self.ended.set_result(None)))
        assert reason == Reason(Cause.EXIT)

    def test_the_clock(self) -> None:
        assert within_limit(lambda: self._first(timeout_s=0.02)) == Reason(Cause.TIME_OUT, 20)

    def test_a_cancel(self) -> None:
        reason = within_limit(lambda: self._first(arrange=lambda: self.cancel.set()))
        assert reason == Reason(Cause.CANCELLED)

    def test_a_breach_carries_its_limit(self) -> None:
        reason = within_limit(lambda: self._first(breached=breach))
        assert reason == Reason(Cause.DISK, 10, "files made")

    def test_an_end_wins_over_what_comes_with_it(self) -> None:
        def arrange() -> None:
            self.ended.set_result(None)
            self.cancel.set()

        reason = within_limit(lambda: self._first(arrange=arrange, breached=breach))
        assert reason == Reason(Cause.EXIT)

    def test_what_did_not_happen_is_cancelled_and_the_end_stays_the_callers(self) -> None:
        stopped = []

        async def watcher() -> Breach:
            try:
                return await never()
            finally:
                stopped.append(True)

        within_limit(lambda: self._first(breached=watcher, timeout_s=0.01))
        assert stopped == [True]
        assert not self.ended.cancelled()

    def test_a_failing_watcher_is_heard(self) -> None:
        async def watcher() -> Breach:
            raise LookupError("broken")

        with pytest.raises(LookupError):
            within_limit(lambda: self._first(breached=watcher))


class Crowd:
    """A group that dies of one of the signals it gets."""

    def __init__(self, dies_of: int | None) -> None:
        self._dies_of = dies_of
        self._dead = asyncio.Event()
        self.signals: list[int] = []

    async def signal_all(self, number: int) -> None:
        self.signals.append(number)
        if number == self._dies_of:
            self._dead.set()

    async def emptied(self) -> None:
        await self._dead.wait()


class TestEndAll:
    @pytest.mark.parametrize(
        ("dies_of", "grace_s", "signals", "gone"),
        [
            (signal.SIGTERM, LONG_S, [signal.SIGTERM], True),
            (signal.SIGKILL, 0.01, [signal.SIGTERM, signal.SIGKILL], True),
            (signal.SIGKILL, 0, [signal.SIGKILL], True),
            (None, 0.01, [signal.SIGTERM, signal.SIGKILL], False),
        ],
    )
    def test_order(
        self, dies_of: int | None, grace_s: float, signals: list[int], gone: bool
    ) -> None:
        async def story() -> None:
            crowd = Crowd(dies_of)
            within_s = 0.01 if dies_of is None else LONG_S
            assert await end_all(crowd, grace_s=grace_s, kill_within_s=within_s) is gone
            assert crowd.signals == signals

        within_limit(story)
