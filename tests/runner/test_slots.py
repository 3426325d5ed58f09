"""Slots: how many jobs at once, each known once, each told to stop once."""

from __future__ import annotations

import asyncio

import pytest

from airlox.errors import JobRefused
from airlox.protocol.encoding import ItemId
from airlox.runner.slots import WAITING, Slots

A, B, C = ItemId("a"), ItemId("b"), ItemId("c")


def test_a_job_is_taken_once_until_it_is_forgotten() -> None:
    slots = Slots(1)
    running = slots.add(A)
    assert running is not None
    assert slots.add(A) is None
    slots.forget(running)
    assert slots.add(A) is not None


def test_a_flood_of_assignments_is_bounded() -> None:
    slots = Slots(2)
    taken = [slots.add(ItemId(str(number))) for number in range(WAITING + 10)]
    assert sum(job is not None for job in taken) == WAITING + 2


def test_free_slots_and_the_oldest_job() -> None:
    async def story() -> None:
        slots = Slots(2)
        first, second = slots.add(A), slots.add(B)
        assert first is not None
        assert second is not None
        assert (slots.free, slots.current) == (2, None)
        await slots.acquire()
        with slots.occupied(first):
            await slots.acquire()
            with slots.occupied(second):
                assert (slots.free, slots.current) == (0, A)
                waiting = asyncio.create_task(slots.acquire())
                await asyncio.sleep(0)
                assert not waiting.done()
            await asyncio.wait_for(waiting, 20)

    asyncio.run(story())


def test_the_first_reason_to_stop_counts() -> None:
    async def story() -> None:
        slots = Slots(1)
        running = slots.add(A)
        assert running is not None
        running.check()
        assert slots.cancel(A, "asked")
        assert not slots.cancel(C, "unknown")
        slots.cancel_all("later")
        assert running.why == "asked"
        with pytest.raises(JobRefused) as refusal:
            running.check()
        assert refusal.value.code == "cancelled"

    asyncio.run(story())
