"""Jobs that wait for a slot: who gets it, what is told meanwhile, and how a wait ends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.protocol import wire
from airlox.protocol.encoding import PublicKey, new_item_id
from airlox.protocol.item import SealedItem
from airlox.protocol.keys import Role
from airlox.protocol.payload import JobCancel
from airlox.relay.records import AnyRecord, JobChanged
from airlox.relay.runners import Heartbeat
from airlox.relay.state import Session
from support.clock import Clock
from support.crew import ANY, Crew, a_job
from support.relay import Answer, Http, Member, RelayThread, file_item, join, now_ms, until
from support.world import job_limits

HOUR_S = 3600


@pytest.fixture
def clock() -> Clock:
    return Clock(now_ms())


@pytest.fixture
def relay(clock: Clock) -> Iterator[RelayThread]:
    with RelayThread(clock=clock) as running:
        yield running


class Office(Crew):
    """A full session with several senders; jobs may wait for an hour unless said otherwise."""

    def __init__(self, relay: RelayThread) -> None:
        super().__init__(relay, full=True)
        self.items: dict[str, SealedItem] = {}

    def another(self) -> Member:
        return join(self.http, self.world.person(Role.SENDER))

    def wait(
        self, author: Member | None = None, target: str = ANY, wait: object = HOUR_S
    ) -> SealedItem:
        """A job that may wait, and is taken."""
        item = self.job(author)
        answer = self.submit(item, target, author=author, wait=wait)
        assert answer.status == 201, answer.body
        return item

    def told(self, item: SealedItem) -> tuple[str, int | None, str | None]:
        said = self.owner.get(wire.job(self.sid, item.ref.id)).json
        return said["state"], said.get("place"), said["reason"]

    def finish(self, runner: Member, item: SealedItem) -> None:
        assert self.claim(runner, item).status == 200
        assert runner.send(self.result(runner, item)).status == 201

    def assigned_to(self, item: SealedItem) -> str | None:
        said = self.owner.get(wire.job(self.sid, item.ref.id)).json
        return said["runner"] if said["state"] == "assigned" else None

    def after_restart(self, relay: RelayThread, *members: Member) -> None:
        for member in (self.owner, self.sender, *members):
            member.http = Http(relay.url)


def one(runner: Member) -> str:
    return json.dumps({"type": "runner", "participant_pub": runner.public, "name": "x"})


def labels(*names: str) -> str:
    return json.dumps({"labels": names, "type": "labels"})


# ── coming and going ─────────────────────────────────────────────────────────────────────────


def test_a_job_waits_for_a_slot_and_gets_it(relay: RelayThread) -> None:
    """P-QUE-3: the answer and the events."""
    office = Office(relay)
    runner = office.runner()
    first = office.wait()
    assert office.assigned_to(first) == runner.public  # a free slot is taken at once
    second, third = office.job(), office.job()
    said = office.submit(second, wait=60).json
    assert {**said, "seq": 0} == {
        "job": second.ref.id,
        "state": "queued",
        "runner": None,
        "reason": "busy",
        "place": 1,
        "seq": 0,
    }
    assert office.submit(second, wait=60).json == said  # asked again
    assert office.submit(third, wait=60).json["place"] == 2
    office.finish(runner, first)
    until(lambda: office.assigned_to(second) == runner.public)
    assert office.told(third)[0] == "queued"
    office.finish(runner, second)
    until(lambda: office.assigned_to(third) == runner.public)
    states = [
        e["data"]["state"]
        for e in office.owner.events()
        if e["kind"] == "job" and e["data"]["job"] == second.ref.id
    ]
    assert states == ["queued", "assigned", "running", "finished"]


def test_who_does_not_wait_is_refused_as_ever_and_passes_nobody(relay: RelayThread) -> None:
    office = Office(relay)
    runner = office.runner()
    first, second = office.wait(), office.wait()
    assert office.submit(office.job()).error == "409 runner_busy"
    office.finish(runner, first)
    assert office.submit(office.job()).error == "409 runner_busy"
    assert office.assigned_to(second) == runner.public


def test_what_is_no_wait(relay: RelayThread) -> None:
    office = Office(relay)
    office.runner()
    for text in ("", "0", "-1", "1.5", "²", "9" * 10, "60s"):
        assert office.submit(office.job(), wait=text).error == "400 bad_request"
    floor = Crew(relay)
    floor.runner()
    assert floor.submit(floor.job(), wait=60).error == "403 policy"


def test_senders_take_turns(relay: RelayThread) -> None:
    """P-QUE-4: whoever sends many jobs keeps nobody else waiting for all of them."""
    office = Office(relay)
    runner, other = office.runner(), office.another()
    running = office.wait()
    many = [office.wait() for _ in range(3)]
    few = [office.wait(other) for _ in range(2)]
    order: list[SealedItem] = []
    while len(order) < 5:
        office.finish(runner, running)
        left = [item for item in [*many, *few] if item not in order]
        until(lambda left=left: any(office.assigned_to(item) for item in left))  # type: ignore[misc]
        running = next(item for item in left if office.assigned_to(item))
        order.append(running)
    assert order == [few[0], many[0], few[1], many[1], many[2]]


def test_a_target_for_one_runner_is_not_passed_over(relay: RelayThread) -> None:
    office = Office(relay)
    box, gpu = office.runner("box"), office.runner("gpu", labels=("cuda",))
    other = office.another()
    running = {box.public: office.wait(target=one(box)), gpu.public: office.wait(target=one(gpu))}
    wide = [office.wait(target=ANY) for _ in range(4)]
    narrow = office.wait(other, target=labels("cuda"))
    assert office.told(narrow)[1] == 1  # this sender was never served
    office.finish(box, running[box.public])
    until(lambda: office.assigned_to(wide[0]) == box.public)  # nothing waits for a busy one
    office.finish(gpu, running[gpu.public])
    until(lambda: office.assigned_to(narrow) == gpu.public)
    assert [office.told(item)[0] for item in wide] == ["assigned", "queued", "queued", "queued"]


def test_many_slots_become_free_at_once(relay: RelayThread) -> None:
    office = Office(relay)
    runner = office.runner()
    office.beat(runner, slots=1)
    running = office.wait()
    waiting = [office.wait() for _ in range(5)]
    office.claim(runner, running)
    office.beat(runner, slots=3)
    until(lambda: [office.told(item)[0] for item in waiting] == ["assigned"] * 3 + ["queued"] * 2)


def test_a_runner_hears_of_its_job_on_its_stream(relay: RelayThread) -> None:
    office = Office(relay)
    runner = office.runner()
    running, waiting = office.wait(), office.wait()
    with office.http.stream(wire.runner_stream(office.sid), runner.token) as stream:
        stream.until("job_assigned")
        office.finish(runner, running)
        assert json.loads(stream.until("job_assigned").data) == {"job": waiting.ref.id}


# ── what is told ─────────────────────────────────────────────────────────────────────────────


def test_place_and_reason_are_told_when_they_change(relay: RelayThread, clock: Clock) -> None:
    """P-QUE-3: on the job's own stream."""
    office = Office(relay)
    runner = office.runner()
    running, first, second = office.wait(), office.wait(), office.wait()
    path = wire.job_stream(office.sid, second.ref.id)

    def next_told() -> tuple[str, int | None, str | None]:
        said = json.loads(stream.until("job").data)
        return said["state"], said.get("place"), said["reason"]

    with office.http.stream(path, office.sender.token) as stream:
        assert next_told() == ("queued", 2, "busy")
        office.claim(runner, running)
        office.sender.post(wire.cancel(office.sid, first.ref.id))
        clock.turn(2)
        assert next_told() == ("queued", 1, "busy")
        clock.turn(40)  # and nothing is heard of the runner
        assert next_told() == ("queued", 1, "no_runner")
        office.beat(runner, slots=1)
        assert next_told() == ("assigned", None, None)


def test_the_reason_when_nothing_fits(relay: RelayThread, clock: Clock) -> None:
    office = Office(relay)
    item = office.wait(target=labels("cuda"))
    assert office.told(item) == ("queued", 1, "no_runner")
    runner = office.runner("gpu", labels=("cuda",), ready=False)
    office.beat(runner)
    clock.turn(2)
    assert office.told(item)[2] == "no_runner"  # it is not approved
    assert office.owner.post(wire.approve(office.sid, runner.public)).status == 200
    until(lambda: office.assigned_to(item) == runner.public)


def test_news_are_not_told_without_end(relay: RelayThread, clock: Clock) -> None:
    """Places change with each job that comes or goes; a stream tells of it once a second."""
    office = Office(relay)
    office.runner()
    office.wait()
    others = [office.wait() for _ in range(10)]
    item = office.wait()
    with office.http.stream(wire.job_stream(office.sid, item.ref.id), office.sender.token) as told:
        assert json.loads(told.until("job").data)["place"] == 11
        clock.turn(2)
        session = relay.relay.core.session(office.sid)
        until(lambda: session.places_ms == clock.ticks_ms())
        for other in others:
            office.sender.post(wire.cancel(office.sid, other.ref.id))
        assert office.told(item)[1] == 1  # whoever asks is told at once
        clock.turn(2)
        assert json.loads(told.until("job").data)["place"] == 1


# ── ends ─────────────────────────────────────────────────────────────────────────────────────


def test_a_wait_ends_in_time(relay: RelayThread, clock: Clock) -> None:
    """P-QUE-5."""
    office = Office(relay)
    runner = office.runner()
    running, item, longer = office.wait(), office.wait(wait=600), office.wait(wait=700)
    office.claim(runner, running)
    for _ in range(6):
        clock.turn(99)
        office.beat(runner, slots=0)
    assert office.told(item)[0] == "queued"
    clock.turn(10)
    office.beat(runner, slots=0)
    until(lambda: office.told(item) == ("failed", None, "queue_expired"))
    assert office.told(longer)[0] == "queued"


def test_author_and_owner_cancel_what_waits(relay: RelayThread) -> None:
    """P-QUE-5."""
    office = Office(relay)
    office.runner()
    office.wait()
    mine, other = office.wait(), office.wait()
    stranger = office.another()
    assert stranger.post(wire.cancel(office.sid, mine.ref.id)).error == "403 forbidden"
    for who, item in ((office.sender, mine), (office.owner, other)):
        path = wire.job_stream(office.sid, item.ref.id)
        with office.http.stream(path, office.sender.token) as stream:
            assert who.post(wire.cancel(office.sid, item.ref.id)).status == 200
            assert [e.event for e in stream.rest()][-1] == "end"
        assert office.told(item) == ("failed", None, "cancelled")
        assert who.post(wire.cancel(office.sid, item.ref.id)).status == 200


@pytest.mark.parametrize("how", ["leaves", "revoked"])
def test_jobs_of_who_is_gone_do_not_run(relay: RelayThread, how: str) -> None:
    """P-QUE-5."""
    office = Office(relay)
    runner, other = office.runner(), office.another()
    running = office.wait(office.owner)
    item, owners = office.wait(other), office.wait(office.owner)
    if how == "leaves":
        other.post(wire.leave(office.sid))
    else:
        office.owner.post(wire.revoke(office.sid, "sender"))
    until(lambda: office.told(item) == ("failed", None, "author_left"))
    office.finish(runner, running)
    until(lambda: office.assigned_to(owners) == runner.public)


def test_nothing_waits_for_a_runner_that_is_gone_for_good(relay: RelayThread) -> None:
    office = Office(relay)
    runner, other = office.runner("box"), office.runner("other")
    office.wait(target=one(runner))
    item, wide = office.wait(target=one(runner)), office.wait(target=ANY)
    runner.post(wire.leave(office.sid))
    until(lambda: office.told(item) == ("failed", None, "no_runner_available"))
    assert office.assigned_to(wide) == other.public
    refused = office.submit(office.job(), one(runner), wait=60)
    assert refused.error == "409 no_runner_available"


def test_a_session_that_is_closed_ends_all(relay: RelayThread) -> None:
    office = Office(relay)
    office.runner()
    office.wait()
    item = office.wait()
    with office.http.stream(wire.job_stream(office.sid, item.ref.id), office.sender.token) as told:
        assert office.owner.post(wire.close(office.sid)).status == 200
        assert "assigned" not in [json.loads(e.data).get("state") for e in told.rest()]
    assert office.sender.get(wire.job(office.sid, item.ref.id)).error == "404 not_found"


def test_a_job_given_to_a_runner_that_is_silent_is_lost_and_not_given_again(
    relay: RelayThread, clock: Clock
) -> None:
    """P-QUE-6."""
    office = Office(relay)
    runner, other = office.runner("a"), office.runner("b")
    office.wait(target=one(other))
    item = office.wait()
    assert office.assigned_to(item) == runner.public
    office.claim(runner, item)
    clock.turn(121)
    office.beat(other)
    until(lambda: office.told(item) == ("failed", None, "runner_lost"))


# ── runners that come and go ─────────────────────────────────────────────────────────────────


def test_jobs_wait_while_their_runner_is_away(relay: RelayThread, clock: Clock) -> None:
    office = Office(relay)
    runner = office.runner()
    path = wire.runner_stream(office.sid)
    with office.http.stream(path, runner.token):
        until(lambda: office.owner.get(wire.runners(office.sid)).json["runners"][0]["online"])
        running = office.wait(target=one(runner))
        item = office.wait(target=one(runner))
        office.claim(runner, running)
        office.beat(runner, slots=0)
    until(lambda: relay.relay.core.session(office.sid).participants[runner.public].presence.lost_ms)
    runner.send(office.result(runner, running))
    clock.turn(2)
    # its slot is free, and it may be back in a moment: whoever waits need not find out
    assert office.told(item)[0] == "queued"
    assert office.told(office.wait(target=one(runner)))[0] == "queued"
    clock.turn(600)
    until(lambda: office.told(item) == ("queued", 1, "no_runner"))
    with office.http.stream(path, runner.token) as stream:
        assert json.loads(stream.until("job_assigned").data) == {"job": item.ref.id}


def test_the_slot_of_a_job_that_was_given_up_is_free_when_its_runner_says_so(
    relay: RelayThread, clock: Clock
) -> None:
    office = Office(relay)
    runner = office.runner()
    office.beat(runner, slots=1)
    running, item = office.wait(), office.wait()
    office.claim(runner, running)
    office.beat(runner, slots=0)
    office.sender.post(wire.cancel(office.sid, running.ref.id))
    clock.turn(25)
    office.beat(runner, slots=0)
    clock.turn(25)
    office.beat(runner, slots=0)
    clock.turn(25)  # it does not stop
    until(lambda: office.told(running)[2] == "cancelled")
    assert office.told(item)[0] == "queued"
    office.beat(runner, slots=0)
    assert office.told(item)[0] == "queued"
    office.beat(runner, slots=1)
    until(lambda: office.assigned_to(item) == runner.public)


def test_a_heartbeat_while_a_job_is_given_up_frees_no_slot(
    relay: RelayThread, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runner counts it, and the relay does so until that it gave it up is on the disk."""
    office = Office(relay)
    runner = office.runner()
    running, item = office.wait(), office.wait()
    office.claim(runner, running)
    core, session = relay.relay.core, relay.relay.core.session(office.sid)
    write = core.write

    async def write_and_hear(session: Session, *changes: AnyRecord) -> None:
        if any(isinstance(each, JobChanged) and each.state == "failed" for each in changes):
            participant = session.participants[PublicKey(runner.public)]
            relay.relay.runners.heartbeat(session, participant, Heartbeat(slots=0))
        await write(session, *changes)

    monkeypatch.setattr(core, "write", write_and_hear)
    clock.turn(600)
    until(lambda: office.told(running)[2] == "runner_lost")
    relay.call(relay.relay.jobs.serve_waiting, session)
    assert office.told(item)[0] == "queued"
    office.beat(runner, slots=1)
    until(lambda: office.assigned_to(item) == runner.public)


def test_a_runner_that_stops_gets_nothing_more(relay: RelayThread) -> None:
    office = Office(relay)
    runner = office.runner()
    running, item = office.wait(), office.wait()
    office.claim(runner, running)
    office.beat(runner, slots=0, stopping=True)
    assert runner.send(office.result(runner, running)).status == 201
    office.beat(runner, slots=0, stopping=True)
    assert office.submit(office.job()).error == "409 runner_busy"
    assert office.told(item)[0] == "queued"
    office.beat(runner, slots=1)  # another start
    until(lambda: office.assigned_to(item) == runner.public)


# ── over a restart ───────────────────────────────────────────────────────────────────────────


def test_the_queue_is_as_it_was_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    """P-QUE-6: turns and times too."""
    data = str(tmp_path / "data")
    with RelayThread(data=data, clock=clock) as relay:
        office = Office(relay)
        runner, other = office.runner(), office.another()
        running = office.wait()
        short, mine, theirs = office.wait(wait=600), office.wait(), office.wait(other)
        office.claim(runner, running)
        clock.turn(500)
    with RelayThread(data=data, clock=clock) as relay:
        office.after_restart(relay, runner, other)
        assert office.told(theirs)[0] == "queued"
        office.beat(runner, slots=0)
        clock.turn(1)
        until(lambda: office.told(mine)[1:] == (3, "busy"))
        assert [office.told(item)[1] for item in (theirs, short)] == [1, 2]
        clock.turn(100)
        until(lambda: office.told(short)[2] == "queue_expired")
        assert runner.send(office.result(runner, running)).status == 201
        office.beat(runner, slots=1)
        until(lambda: office.assigned_to(theirs) == runner.public)
        office.finish(runner, theirs)
        until(lambda: office.assigned_to(mine) == runner.public)


# ── what is kept for them ────────────────────────────────────────────────────────────────────


def ack(who: Member, item: SealedItem) -> None:
    assert who.post(wire.ack(who.sid, item.ref.id)).status == 204


def test_a_waiting_job_and_its_files_stay_until_it_is_over(relay: RelayThread) -> None:
    """P-QUE-7: for a runner that joins when all others have long stored them."""
    office = Office(relay)
    file = file_item(office.sender.person, b"print(1)")
    assert office.sender.send(file).status == 201
    item = office.sender.person.post(a_job(), subkind="py", at_ms=now_ms(), refs=[file.ref])
    assert office.submit(item, labels("late"), wait=60).json["state"] == "queued"
    for each in (file, item):
        ack(office.owner, each)
        assert office.owner.get(wire.blob(office.sid, each.ref.id)).status == 200
    runner = office.runner("late", labels=("late",))
    until(lambda: office.assigned_to(item) == runner.public)
    for each in (file, item):
        ack(runner, each)
        assert runner.get(wire.blob(office.sid, each.ref.id)).body == each.blob
    office.finish(runner, item)
    for each in (file, item):
        path = wire.blob(office.sid, each.ref.id)
        until(lambda path=path: office.owner.get(path).status == 410)  # type: ignore[misc]


def test_a_tree_waits_with_its_job(relay: RelayThread, clock: Clock) -> None:
    """P-QUE-7: packs are kept and counted while their job waits, and go with it."""
    office = Office(relay)
    runner = office.runner()
    running, item = office.wait(), office.job()
    office.claim(runner, running)

    def put(number: int) -> Answer:
        data = os.urandom(300_000)
        return office.sender.ask("PUT", wire.pack(office.sid, item.ref.id, number), data)

    assert put(0).status == 201
    assert office.submit(item, wait=HOUR_S).json["state"] == "queued"
    assert put(1).status == 201
    for _ in range(14):
        clock.turn(99)
        office.beat(runner, slots=0)
    passes = relay.relay.sweeper.passes
    until(lambda: relay.relay.sweeper.passes > passes + 40, "a slow pass")
    session = relay.relay.core.session(office.sid)
    assert session.sealed_bytes > 600_000
    listing = office.sender.get(wire.packs(office.sid, item.ref.id)).json["packs"]
    assert [pack["n"] for pack in listing] == [0, 1]
    office.sender.post(wire.cancel(office.sid, item.ref.id))
    assert session.sealed_bytes < 100_000
    assert put(2).error == "410 gone"
    assert not session._kept


def test_what_waits_is_not_forgotten(tmp_path: Path, clock: Clock) -> None:
    """Nor is how long it may wait, when the log is written anew without what was."""
    settings = {"history_s": 60, "history_jobs": 1, "data": str(tmp_path / "data")}
    with RelayThread(clock=clock, **settings) as relay:
        office = Office(relay)
        runner = office.runner()
        over, running = office.wait(), office.wait()
        office.finish(runner, over)
        until(lambda: office.assigned_to(running) == runner.public)
        office.claim(runner, running)
        item = office.wait(wait=2000)
        for _ in range(8):
            clock.turn(99)
            office.beat(runner, slots=0)
        until(lambda: office.owner.get(wire.job(office.sid, over.ref.id)).status == 404, "it")
        session = relay.relay.core.session(office.sid)
        session.record_bytes += 1 << 21  # enough to be worth it
        until(lambda: session.rewritten_bytes, "the log")
    with RelayThread(clock=clock, **settings) as relay:
        office.after_restart(relay, runner)
        assert office.told(item)[0] == "queued"
        clock.turn(1000)
        office.beat(runner, slots=0)
        assert office.told(item)[0] == "queued"
        clock.turn(300)
        until(lambda: office.told(item)[2] == "queue_expired")


# ── bounds ───────────────────────────────────────────────────────────────────────────────────


def test_a_signed_cancel_finds_room_where_nothing_else_does(clock: Clock) -> None:
    with RelayThread(clock=clock, max_items=4) as relay:
        office = Office(relay)
        office.runner()
        office.wait(office.owner)
        item = office.wait()
        office.sender.say("third")
        office.owner.say("fourth")
        assert office.sender.send(office.sender.person.say("x", at_ms=now_ms())).status == 507
        cancel = office.sender.person.post(
            JobCancel(job=item.ref), at_ms=now_ms(), refs=[item.ref], item_id=new_item_id(b"c" * 16)
        )
        assert office.sender.send(cancel).status == 201


def test_the_trail_of_a_job_that_waited(relay: RelayThread) -> None:
    office = Office(relay)
    runner = office.runner()
    running, item = office.wait(), office.wait()
    office.finish(runner, running)
    until(lambda: office.assigned_to(item) == runner.public)
    office.finish(runner, item)
    trail = office.owner.get(wire.audit(office.sid)).body.splitlines()
    lines = [json.loads(line) for line in trail]
    told = [line["event"] for line in lines if line.get("job") == item.ref.id]
    assert told == ["queued", "assigned", "claimed", "finished"]


def test_without_approval_too(relay: RelayThread) -> None:
    crew = Crew(relay, full=True, limits=job_limits(True, approve_runners=False))
    item = crew.job()
    assert crew.submit(item, wait=60).json["reason"] == "no_runner"
    runner = crew.runner(ready=False)
    crew.beat(runner)
    until(lambda: crew.state(item) == ("assigned", None))
