"""Streams: exact cursors, bounded queues, keepalives, cutting who does not read."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from airlox.protocol.encoding import ItemId, PublicKey, SessionId
from airlox.relay.config import Config
from airlox.relay.gates import Bound, Gate, Place
from airlox.relay.hub import CHUNK_BYTES, KEEPALIVE, Hub, Mailbox
from airlox.relay.refusals import Refusal
from airlox.relay.state import Session
from support.clock import Clock

SID = SessionId("ax_" + "a" * 26)
ANN, BOB = PublicKey("ann"), PublicKey("bob")
JOB = ItemId("job")
NOWHERE = Place(Gate(), (), 0)


class Setting:
    def __init__(self, **settings: int) -> None:
        self.clock = Clock(0)
        self.session = Session(SID, self.clock, NOWHERE)
        self.hub = Hub(Config(**settings), self.clock)  # type: ignore[arg-type]

    def emit(self, *numbers: int) -> None:
        for number in numbers:
            self.session.add_event("n", {"n": number})
        self.hub.ring(SID)


def ids(chunk: bytes) -> list[int]:
    return [int(line[4:]) for line in chunk.split(b"\n") if line.startswith(b"id: ")]


async def soon(task: asyncio.Task[bytes]) -> bytes:
    return await asyncio.wait_for(task, 60)


async def test_a_feed_gives_each_event_once_from_its_cursor() -> None:
    setting = Setting()
    setting.emit(*range(5))
    feed = setting.hub.open_feed(setting.session, 1, ANN, NOWHERE)
    assert ids(await feed.next_chunk()) == [2, 3, 4]
    waiting = asyncio.create_task(feed.next_chunk())
    await asyncio.sleep(0)
    setting.emit(5)
    setting.emit(6)
    assert ids(await soon(waiting)) == [5, 6]


async def test_a_cursor_beyond_the_end_waits_for_its_event() -> None:
    setting = Setting()
    setting.emit(0)
    feed = setting.hub.open_feed(setting.session, 1, ANN, NOWHERE)
    waiting = asyncio.create_task(feed.next_chunk())
    await asyncio.sleep(0)
    setting.emit(1)
    await asyncio.sleep(0)
    assert not waiting.done()
    setting.emit(2)
    assert ids(await soon(waiting)) == [2]


async def test_a_long_list_comes_in_bounded_chunks() -> None:
    setting = Setting()
    for _ in range(100):
        setting.session.add_event("big", {"x": "y" * 5000})
    feed = setting.hub.open_feed(setting.session, -1, ANN, NOWHERE)
    seen: list[int] = []
    while len(seen) < 100:
        chunk = await feed.next_chunk()
        assert len(chunk) < CHUNK_BYTES + 6000
        seen += ids(chunk)
    assert seen == list(range(100))


async def test_a_feed_that_ends_still_gives_what_is_there() -> None:
    setting = Setting()
    setting.emit(0)
    feed = setting.hub.open_feed(setting.session, -1, ANN, NOWHERE)
    setting.emit(1)
    setting.hub.end_session(SID)
    assert ids(await feed.next_chunk()) == [0, 1]
    assert await feed.next_chunk() == b""


async def test_a_mailbox_that_overflows_ends_and_drops_what_waits() -> None:
    box = Mailbox(100, Clock(0), ANN, NOWHERE)
    box.put(b"x" * 60)
    box.put(b"y" * 60)
    assert box.overflowed
    assert await box.next_chunk() == b""
    box.put(b"z")
    assert await box.next_chunk() == b""


async def test_room_in_a_mailbox_comes_back_when_it_is_read() -> None:
    box = Mailbox(100, Clock(0), ANN, NOWHERE)
    for _ in range(50):
        box.put(b"x" * 60)
        assert await box.next_chunk() == b"x" * 60
    assert not box.overflowed


async def test_silent_streams_get_one_keepalive_per_pause() -> None:
    setting = Setting(keepalive_s=15)
    feed = setting.hub.open_feed(setting.session, -1, ANN, NOWHERE)
    waiting = asyncio.create_task(feed.next_chunk())
    await asyncio.sleep(0)
    setting.clock.turn(14)
    setting.hub.tick()
    await asyncio.sleep(0)
    assert not waiting.done()
    setting.clock.turn(1)
    setting.hub.tick()
    assert await soon(waiting) == KEEPALIVE
    again = asyncio.create_task(feed.next_chunk())
    await asyncio.sleep(0)
    setting.hub.tick()
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()


async def test_a_stalled_writer_is_cancelled() -> None:
    setting = Setting(stall_timeout_s=60)
    feed = setting.hub.open_feed(setting.session, -1, ANN, NOWHERE)
    setting.emit(0)
    assert await feed.next_chunk()
    feed.writer = cast("asyncio.Task[None]", asyncio.create_task(asyncio.sleep(60)))
    setting.clock.turn(59)
    setting.hub.tick()
    await asyncio.sleep(0)
    assert not feed.writer.cancelled()
    setting.clock.turn(1)
    setting.hub.tick()
    with pytest.raises(asyncio.CancelledError):
        await feed.writer


async def test_cutting_ends_the_streams_of_some_only() -> None:
    setting = Setting()
    ann = setting.hub.open_feed(setting.session, -1, ANN, NOWHERE)
    bob = setting.hub.open_feed(setting.session, -1, BOB, NOWHERE)
    ann_job = setting.hub.open_job(setting.session, JOB, ANN, NOWHERE)
    setting.hub.cut(SID, {ANN})
    assert await ann.next_chunk() == b""
    assert await ann_job.next_chunk() == b""
    waiting = asyncio.create_task(bob.next_chunk())
    await asyncio.sleep(0)
    setting.emit(0)
    assert ids(await soon(waiting)) == [0]


async def test_leaving_gives_the_place_back_and_leaves_nothing() -> None:
    setting, gate = Setting(), Gate(Bound(9, lambda: Refusal("busy", "full")))
    hub, session = setting.hub, setting.session
    first = hub.open_feed(session, -1, ANN, gate.take("all"))
    job = hub.open_job(session, JOB, ANN, gate.take("all"))
    runner = hub.open_runner(session, BOB, gate.take("all"))
    assert (hub.count, gate.held(0, "all")) == (3, 3)
    assert hub.tell_runner(SID, BOB, b"hello")
    hub.leave(SID, runner)
    assert not hub.tell_runner(SID, BOB, b"hello")
    hub.leave(SID, job, JOB)
    hub.leave(SID, first)
    assert (hub.count, gate.held(0, "all")) == (0, 0)
    assert hub._rooms == {}


async def test_a_second_runner_stream_ends_the_first() -> None:
    setting = Setting()
    first = setting.hub.open_runner(setting.session, ANN, NOWHERE)
    second = setting.hub.open_runner(setting.session, ANN, NOWHERE)
    assert await first.next_chunk() == b""
    setting.hub.leave(SID, first)
    assert setting.hub.tell_runner(SID, ANN, b"hello")
    assert await second.next_chunk() == b"hello"


async def test_after_the_end_of_all_new_streams_end_too() -> None:
    setting = Setting()
    feed = setting.hub.open_feed(setting.session, -1, ANN, NOWHERE)
    setting.hub.end_all()
    late = setting.hub.open_feed(setting.session, -1, BOB, NOWHERE)
    assert await feed.next_chunk() == b""
    assert await late.next_chunk() == b""


async def test_messages_for_one_reader_of_a_job() -> None:
    setting = Setting()
    ann = setting.hub.open_job(setting.session, JOB, ANN, NOWHERE)
    bob = setting.hub.open_job(setting.session, JOB, BOB, NOWHERE)
    setting.hub.tell_job(SID, JOB, b"for ann", only=ANN)
    setting.hub.tell_job(SID, JOB, b"for all")
    setting.hub.end_job(SID, JOB)
    assert await ann.next_chunk() == b"for annfor all"
    assert await bob.next_chunk() == b"for all"
    assert await bob.next_chunk() == b""
