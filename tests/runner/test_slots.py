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
    slots = Slots(2)
    assert (slots.free, slots.left, slots.current, slots.taken) == (2, 2, None, ())
    slots.take(A)
    slots.take(B)
    slots.take(C)  # a relay may give more than there is room for
    assert (slots.free, slots.left, slots.current, slots.taken) == (0, -1, A, (A, B, C))
    slots.give_back(A)
    slots.give_back(A)
    assert (slots.free, slots.left, slots.current, slots.taken) == (0, 0, B, (B, C))
    slots.give_back(B)
    assert (slots.free, slots.left, slots.current, slots.taken) == (1, 1, C, (C,))


def test_of_jobs_without_end_a_bounded_number_is_named() -> None:
    slots = Slots(2)
    for number in range(100):
        slots.take(ItemId(str(number)))
    assert slots.taken == ("0", "1", "2", "3")


def test_one_that_is_closed_has_no_room() -> None:
    slots = Slots(2)
    slots.take(A)
    slots.close()
    assert (slots.free, slots.current) == (0, A)


def test_no_more_jobs_at_once_than_there_are_slots() -> None:
    async def story() -> None:
        slots = Slots(1)
        order: list[str] = []

        async def job(name: str) -> None:
            async with slots.occupied():
                order.append(name + " begins")
                await asyncio.sleep(0)
                order.append(name + " ends")

        await asyncio.wait_for(asyncio.gather(job("a"), job("b")), 20)
        assert order == ["a begins", "a ends", "b begins", "b ends"]

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
