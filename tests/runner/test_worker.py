"""A runner and what a relay says to it: nonsense, repetitions and floods stop nothing."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from airlox.client.deadline import Deadline
from airlox.errors import RelayError, SessionClosed
from airlox.protocol.encoding import ItemId, b64u_encode
from airlox.protocol.sse import SseEvent
from airlox.runner import worker
from airlox.runner.notes import Note
from airlox.runner.slots import Running
from airlox.runner.worker import EVENTS_AHEAD, _work

WITHIN_S = 60


def job_id(number: int) -> ItemId:
    return ItemId(b64u_encode(number.to_bytes(16, "big")))


A, B = job_id(1), job_id(2)


class Feed:
    """Events that a test puts in, until it is closed."""

    def __init__(self) -> None:
        self.events: queue.Queue[SseEvent | Exception | None] = queue.Queue()

    def send(self, kind: str, data: object) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        self.events.put(SseEvent(None, kind, text))

    def next(self, deadline: Deadline) -> SseEvent | None:
        found = self.events.get(timeout=WITHIN_S)
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        self.events.put(None)


class Relay:
    """Both streams, and what the runner calls. Stands for link, timeline and API at once."""

    def __init__(self) -> None:
        self.session, self.own = Feed(), Feed()
        self.api = self.timeline = self
        self.ended: SessionClosed | None = None
        self.claims: list[ItemId] = []
        self.claimable: Callable[[ItemId], bool] = lambda job: True
        self.cancels: set[ItemId] = set()
        self.assigned: set[ItemId] = set()
        self.beats: list[tuple[str | None, int | None]] = []
        self.stopping = False
        self.hears = threading.Event()
        """Heartbeats arrive."""
        self.hears.set()

    # what the worker and its contact ask for
    def session_feed(self) -> Feed:
        return self.session

    def runner_feed(self) -> Feed:
        return self.own

    def take_live(self, event: SseEvent, kinds: object) -> None:
        """The session's view has no part here."""

    def rejection(self) -> None:
        """Nobody was rejected."""

    def may_take_jobs(self) -> bool:
        return True

    def claim(self, job: ItemId) -> bool:
        self.claims.append(job)
        return self.claimable(job)

    def was_run(self, job: ItemId) -> bool:
        return False

    def is_due(self, job: ItemId) -> bool:
        return job in self.assigned

    def due(self) -> list[ItemId]:
        return sorted(self.assigned)

    def cancelled_by(self, job: ItemId) -> str | None:
        return "someone" if job in self.cancels else None

    def within(self, deadline: Deadline) -> Relay:
        return self

    def heartbeat(
        self, job: str | None, free: int | None, jobs: tuple[str, ...], *, stopping: bool
    ) -> None:
        assert job == next(iter(jobs), None)
        assert self.hears.wait(WITHIN_S)
        self.beats.append((job, free))
        self.stopping = stopping

    def pause(self, seconds: float) -> bool:
        return True

    def tidy(self, *, has_room: bool) -> None:
        """There is nothing to tidy."""

    def close(self) -> None:
        """The last call."""


class Runner:
    """A worker under way. `carry_out` does its jobs."""

    def __init__(self, relay: Relay, slots: int, notes: list[Note]) -> None:
        self.relay = relay
        self.notes = notes
        self.begun: list[Running] = []
        self.posted: list[int] = []
        """How many heartbeats had arrived when results were posted."""
        self.go_on = asyncio.Event()
        self.news = asyncio.Event()
        self.ready: list[int] = []
        options = SimpleNamespace(name="box", disk_floor_bytes=0, cache_root="/")
        self.bench: Any = SimpleNamespace(
            link=relay,
            slots=slots,
            options=options,
            manifest=SimpleNamespace(is_full=True),
            threads=SimpleNamespace(call=asyncio.to_thread),
            sandbox=SimpleNamespace(keep_ready=self.ready.append, expect=lambda: None),
            workspaces=SimpleNamespace(evict=list, close=_closed),
            spool=SimpleNamespace(
                lost=list,
                is_empty=lambda: True,
                post_all=lambda _: self.posted.append(len(relay.beats)),
                on_added=None,
                on_settled=None,
            ),
        )

    async def carry_out(self, bench: Any, running: Running, arrived: asyncio.Event) -> str:
        self.begun.append(running)
        self.news.set()
        await self.go_on.wait()
        return "exit 0"

    async def until(self, wanted: Callable[[], bool]) -> None:
        async def look() -> None:
            while not wanted():
                self.news.clear()
                await asyncio.wait((asyncio.ensure_future(self.news.wait()),), timeout=0.02)

        await asyncio.wait_for(look(), WITHIN_S)


Story = Callable[[Runner], Any]


async def _closed(timeout_s: float) -> None:
    """Nothing to wait for."""


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Note]]:
    """Runs a story beside a worker, ends the session, and gives the notes."""

    def run(
        story: Story, *, slots: int = 1, relay: Relay | None = None, stopped: bool = False
    ) -> list[Note]:
        notes: list[Note] = []

        async def both() -> None:
            runner = Runner(relay or Relay(), slots, notes)

            async def offer(_: object) -> None:
                """Nothing is offered here."""

            monkeypatch.setattr("airlox.runner.contact.Contact.offer", offer)
            monkeypatch.setattr(worker, "execute", runner.carry_out)
            work = asyncio.create_task(_work(runner.bench, notes.append))
            await story(runner)
            runner.go_on.set()
            runner.relay.session.events.put(SessionClosed("over", code="session_gone"))
            assert await asyncio.wait_for(work, WITHIN_S) == (0, not stopped)

        asyncio.run(both())
        return notes

    return run


def kinds(notes: list[Note]) -> list[str]:
    return [note.kind for note in notes]


def test_the_relay_knows_the_runner_before_it_says_that_it_is_ready(
    play: Callable[..., list[Note]],
) -> None:
    async def story(runner: Runner) -> None:
        await runner.until(lambda: "ready" in kinds(runner.notes))
        assert runner.relay.beats == [(None, 2)]

    play(story, slots=2)


def test_results_of_an_earlier_life_go_out_once_the_relay_knows_that_the_runner_is_there(
    play: Callable[..., list[Note]],
) -> None:
    """Else it would refuse the next job of whoever has read them."""
    relay = Relay()
    relay.hears.clear()

    async def story(runner: Runner) -> None:
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert runner.posted == []
        relay.hears.set()
        await runner.until(lambda: runner.posted == [1])

    play(story, relay=relay)


def test_the_relay_hears_of_the_stop_while_jobs_still_end(
    play: Callable[..., list[Note]],
) -> None:
    """Else it would give the slot of one that ends to the next that waits."""

    async def story(runner: Runner) -> None:
        runner.relay.own.send("job_assigned", {"job": A})
        await runner.until(lambda: bool(runner.begun))
        assert not runner.relay.stopping
        os.kill(os.getpid(), signal.SIGTERM)
        await runner.until(lambda: runner.relay.stopping)
        assert runner.relay.beats[-1] == (A, 0)

    play(story, stopped=True)


def test_what_ended_before_the_relay_hears_of_the_stop_is_told_after_it(
    play: Callable[..., list[Note]],
) -> None:
    async def story(runner: Runner) -> None:
        relay = runner.relay
        relay.own.send("job_assigned", {"job": A})
        await runner.until(lambda: bool(runner.begun) and bool(runner.posted))
        before = len(runner.posted)
        relay.hears.clear()
        os.kill(os.getpid(), signal.SIGTERM)
        await runner.until(lambda: "stopping" in kinds(runner.notes))
        runner.bench.spool.on_added()
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert len(runner.posted) == before
        assert not relay.stopping
        relay.hears.set()
        await runner.until(lambda: len(runner.posted) > before)
        assert relay.stopping

    play(story, stopped=True)


def test_starts_are_prepared_for_free_slots_and_let_go_at_the_end(
    play: Callable[..., list[Note]],
) -> None:
    """Never while the job of a slot runs, for it is measured."""
    ready: list[list[int]] = []

    async def story(runner: Runner) -> None:
        ready.append(runner.ready)
        await runner.until(lambda: runner.ready == [2])
        runner.relay.own.send("job_assigned", {"job": A})
        await runner.until(lambda: bool(runner.begun))
        assert runner.ready == [2]
        runner.go_on.set()
        await runner.until(lambda: runner.ready == [2, 2])

    play(story, slots=2)
    assert ready[0][-1] == 0


@pytest.mark.parametrize(
    "data",
    [
        "",
        "{",
        "[]",
        '{"job":7}',
        '{"job":"../../x"}',
        '{"job":"a\\r\\nb"}',
        '{"nob":"x"}',
        '{"nob":' + "[" * 100_000,
    ],
    ids=lambda data: data[:20],
)
@pytest.mark.parametrize("kind", ["job_assigned", "job_cancel", "pack", "unheard-of"])
def test_nonsense_is_passed_over(play: Callable[..., list[Note]], kind: str, data: str) -> None:
    async def story(runner: Runner) -> None:
        runner.relay.own.send(kind, data)
        runner.relay.own.send("job_assigned", {"job": A})
        await runner.until(lambda: bool(runner.begun))
        assert runner.relay.claims == [A]

    play(story)


def test_the_same_job_twice_is_taken_once(play: Callable[..., list[Note]]) -> None:
    async def story(runner: Runner) -> None:
        for job in (A, A, A, B):
            runner.relay.own.send("job_assigned", {"job": job})
        await runner.until(lambda: len(runner.begun) == 2)
        assert runner.relay.claims == [A, B]

    play(story, slots=2)


def test_a_job_that_is_not_ours_after_all_leaves_the_slot_free(
    play: Callable[..., list[Note]],
) -> None:
    relay = Relay()
    relay.claimable = lambda job: job == B

    async def story(runner: Runner) -> None:
        relay.own.send("job_assigned", {"job": A})
        relay.own.send("job_assigned", {"job": B})
        await runner.until(lambda: bool(runner.begun))
        assert [running.job for running in runner.begun] == [B]

    play(story, relay=relay)


def test_a_claim_that_is_answered_oddly_costs_that_job_only(
    play: Callable[..., list[Note]],
) -> None:
    relay = Relay()

    def answer(job: ItemId) -> bool:
        if job == A:
            raise RelayError(418, "teapot", "short and stout")
        return True

    relay.claimable = answer

    async def story(runner: Runner) -> None:
        relay.own.send("job_assigned", {"job": A})
        relay.own.send("job_assigned", {"job": B})
        await runner.until(lambda: bool(runner.begun))

    assert "warning" in kinds(play(story, relay=relay))


def test_a_fault_of_ours_in_one_job_is_not_the_end_of_others(
    play: Callable[..., list[Note]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(runner: Runner) -> None:
        async def fail_first(bench: Any, running: Running, arrived: asyncio.Event) -> str:
            if running.job == A:
                raise ValueError("a fault")
            return await runner.carry_out(bench, running, arrived)

        monkeypatch.setattr(worker, "execute", fail_first)
        runner.relay.own.send("job_assigned", {"job": A})
        runner.relay.own.send("job_assigned", {"job": B})
        await runner.until(lambda: bool(runner.begun))

    (warning,) = [note for note in play(story) if note.kind == "warning"]
    assert "a fault" in warning.text


def test_a_cancel_reaches_its_own_job_only(play: Callable[..., list[Note]]) -> None:
    async def story(runner: Runner) -> None:
        for job in (A, B):
            runner.relay.own.send("job_assigned", {"job": job})
        await runner.until(lambda: len(runner.begun) == 2)
        runner.relay.own.send("job_cancel", {"job": job_id(9)})
        runner.relay.own.send("job_cancel", {"job": B})
        first, second = sorted(runner.begun, key=lambda running: running.job)
        await asyncio.wait_for(second.cancelled.wait(), WITHIN_S)
        assert not first.cancelled.is_set()

    play(story, slots=2)


def test_the_session_tells_of_jobs_and_cancels_too(play: Callable[..., list[Note]]) -> None:
    """A runner's own stream may be held back on its way."""

    async def story(runner: Runner) -> None:
        runner.relay.assigned.add(A)
        runner.relay.session.send("job", {"job": A})
        runner.relay.session.send("job", {"job": B})
        await runner.until(lambda: bool(runner.begun))
        runner.relay.cancels.add(A)
        runner.relay.session.send("item", {})
        await asyncio.wait_for(runner.begun[0].cancelled.wait(), WITHIN_S)
        assert runner.relay.claims == [A]

    play(story)


def test_what_an_earlier_life_claimed_and_never_began_is_taken_up(
    play: Callable[..., list[Note]],
) -> None:
    relay = Relay()
    relay.assigned.add(A)

    async def story(runner: Runner) -> None:
        relay.own.send("job_assigned", {"job": A})
        await runner.until(lambda: bool(runner.begun))
        assert relay.claims == [A]

    play(story, relay=relay)


def test_a_flood_is_read_no_faster_than_it_is_worked_off(
    play: Callable[..., list[Note]],
) -> None:
    async def story(runner: Runner) -> None:
        await runner.until(lambda: "ready" in kinds(runner.notes))
        flood = 4 * EVENTS_AHEAD
        for number in range(flood):
            runner.relay.own.send("job_assigned", {"job": job_id(number + 10)})
        held = threading.Event()
        held.wait(0.2)  # the loop stands still meanwhile: this is its thread
        assert runner.relay.own.events.qsize() >= flood - EVENTS_AHEAD - 1
        runner.go_on.set()
        await runner.until(lambda: runner.relay.own.events.qsize() == 0)
        assert "ended" not in kinds(runner.notes)

    play(story)
