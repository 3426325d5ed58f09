"""Who gets a job, what becomes of it, and that its result comes from nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox.protocol import limits, wire
from airlox.protocol.item import ItemRef
from airlox.protocol.keys import Role
from airlox.protocol.payload import JobCancel, RunnerApprove, RunnerReject
from airlox.relay.entities import STANDING_BLOB_BYTES
from support.clock import Clock
from support.crew import Crew
from support.relay import Answer, Http, Member, RelayThread, join, now_ms, until
from support.world import job_limits

GRACE_S = 120


@pytest.fixture
def clock() -> Clock:
    return Clock(now_ms())


@pytest.fixture
def relay(clock: Clock) -> Iterator[RelayThread]:
    with RelayThread(clock=clock) as running:
        yield running


# ── the ordinary course ──────────────────────────────────────────────────────────────────────


def test_a_job_from_post_to_result(relay: RelayThread) -> None:
    """P-FLR-4."""
    crew = Crew(relay)
    runner = crew.runner()
    item = crew.job()
    with crew.http.stream(wire.runner_stream(crew.sid), runner.token) as stream:
        answer = crew.submit(item)
        assert (answer.status, answer.json) == (201, {"runner": runner.public, "seq": 3})
        told = stream.until("job_assigned")
        assert json.loads(told.data) == {"job": item.ref.id}
    assert crew.state(item) == ("assigned", None)
    assert crew.claim(runner, item).status == 200
    assert crew.claim(runner, item).status == 200
    assert crew.state(item) == ("running", None)
    result = crew.result(runner, item)
    assert runner.send(result).status == 201
    assert runner.send(result).status == 201
    assert crew.state(item) == ("finished", None)
    kinds = [(e["kind"], e["data"].get("state")) for e in crew.owner.events()][3:]
    assert kinds == [
        ("item", None),
        ("job", "assigned"),
        ("job", "running"),
        ("item", None),
        ("job", "finished"),
    ]


def test_a_job_sent_again_is_one_job(relay: RelayThread) -> None:
    crew = Crew(relay)
    runner = crew.runner()
    item = crew.job()
    assert crew.submit(item).json == crew.submit(item).json == {"runner": runner.public, "seq": 3}
    assert [e["kind"] for e in crew.owner.events()].count("item") == 1


def test_malformed_jobs_are_refused(relay: RelayThread) -> None:
    crew = Crew(relay)
    crew.runner()
    for target in (None, "any", "{}", '{"type":"labels","labels":[]}', '{"type":"any","x":1}'):
        assert crew.submit(crew.job(), target).status in (400, 403)
    text = crew.sender.person.say("not a job", at_ms=now_ms())
    assert crew.submit(text).error == "400 bad_request"
    assert crew.sender.send(crew.job()).error == "400 bad_request"
    assert [e["kind"] for e in crew.owner.events()].count("item") == 0


def test_the_target_may_have_spaces(relay: RelayThread) -> None:
    crew = Crew(relay)
    crew.runner()
    assert crew.submit(crew.job(), '{ "type" : "any" }').status == 201


def one(runner: Member) -> str:
    return json.dumps({"type": "runner", "participant_pub": runner.public, "name": "any-name"})


# ── choosing a runner ────────────────────────────────────────────────────────────────────────


def no_runner(answer: Answer) -> str:
    assert answer.error == "409 no_runner_available"
    return str(answer.json["message"])


def test_why_no_runner_takes_a_job(relay: RelayThread, clock: Clock) -> None:
    crew = Crew(relay)
    item = crew.job()
    assert "no runner matches" in no_runner(crew.submit(item))
    assert crew.state(item) == ("failed", "no_runner_available")
    assert no_runner(crew.submit(item))  # the same answer when asked again
    runner = crew.runner(ready=False)
    crew.beat(runner)
    assert "approval" in no_runner(crew.submit(crew.job()))
    crew.owner.post(wire.approve(crew.sid, runner.public))
    clock.turn(31)
    assert "offline" in no_runner(crew.submit(crew.job()))
    crew.beat(runner)
    assert crew.submit(crew.job()).status == 201
    assert "busy" in no_runner(crew.submit(crew.job()))
    # In the timeline the job stands all the same: 0.1.0 clients read it from there.
    assert [e["kind"] for e in crew.owner.events()].count("item") == 5


def test_without_approval_every_runner_will_do(relay: RelayThread) -> None:
    crew = Crew(relay, limits=job_limits(False, approve_runners=False))
    runner = crew.runner(ready=False)
    crew.beat(runner)
    assert crew.submit(crew.job()).json == {"runner": runner.public, "seq": 3}


def test_an_open_stream_counts_as_online(relay: RelayThread, clock: Clock) -> None:
    crew = Crew(relay)
    runner = crew.runner()
    clock.turn(100)
    with crew.http.stream(wire.runner_stream(crew.sid), runner.token) as stream:
        until(lambda: crew.owner.get(wire.runners(crew.sid)).json["runners"][0]["online"])
        assert crew.submit(crew.job()).status == 201
        stream.until("job_assigned")


def test_a_runner_silent_since_its_stream_ended_is_soon_offline(
    relay: RelayThread, clock: Clock
) -> None:
    """A runner that died must not get jobs for as long as its last heartbeat would allow."""
    crew = Crew(relay)
    runner = crew.runner()

    def online() -> bool:
        return bool(crew.owner.get(wire.runners(crew.sid)).json["runners"][0]["online"])

    def offline_in_a_moment() -> bool:
        clock.turn(0.5)
        return not online()

    with crew.http.stream(wire.runner_stream(crew.sid), runner.token):
        until(online)
        crew.beat(runner)
    turned = clock.ticks_ms()
    until(offline_in_a_moment)
    assert clock.ticks_ms() - turned < 25_000  # a heartbeat alone would count for 30 s
    clock.turn(1)
    crew.beat(runner)  # alive without a stream, behind a proxy that holds it back
    clock.turn(20)
    assert online()


def test_targets_choose_by_key_and_by_labels(relay: RelayThread) -> None:
    crew = Crew(relay)
    plain = crew.runner("plain")
    gpu = crew.runner("gpu", labels=("cuda", "big"))

    def labels(*names: str) -> str:
        return json.dumps({"labels": names, "type": "labels"})

    assert crew.submit(crew.job(), labels("cuda")).json["runner"] == gpu.public
    no_runner(crew.submit(crew.job(), labels("cuda", "big")))  # busy
    assert crew.submit(crew.job(), one(plain)).json["runner"] == plain.public
    no_runner(crew.submit(crew.job(), labels("tpu")))
    no_runner(crew.submit(crew.job(), one(crew.sender)))


def test_jobs_spread_over_free_runners(relay: RelayThread) -> None:
    crew = Crew(relay)
    runners = [crew.runner(f"r{n}") for n in range(3)]
    got = [crew.submit(crew.job()).json["runner"] for _ in range(3)]
    assert sorted(got) == sorted(runner.public for runner in runners)


def test_in_a_floor_session_slots_count_as_one(relay: RelayThread) -> None:
    crew = Crew(relay)
    crew.beat(crew.runner(), slots=5)
    assert crew.submit(crew.job()).status == 201
    no_runner(crew.submit(crew.job()))


def test_in_a_full_session_slots_count_and_busy_is_said(relay: RelayThread) -> None:
    crew = Crew(relay, full=True)
    runner = crew.runner()
    crew.beat(runner, slots=2)
    first, second = crew.job(), crew.job()
    assert crew.submit(first).status == crew.submit(second).status == 201
    assert crew.submit(crew.job()).error == "409 runner_busy"
    crew.claim(runner, first)
    crew.beat(runner, slots=1)  # one free, one on its way: nothing left
    assert crew.submit(crew.job()).error == "409 runner_busy"
    runner.send(crew.result(runner, first))
    crew.beat(runner, slots=2)
    assert crew.submit(crew.job()).status == 201
    crew.beat(runner, slots=0)  # takes no more
    assert crew.submit(crew.job()).error == "409 runner_busy"


@pytest.mark.parametrize("slots", [1, 3])
def test_a_heartbeat_that_is_overtaken_by_a_result_takes_no_slot(
    relay: RelayThread, slots: int
) -> None:
    """P-REL-10: who has seen a result finds its slot free."""
    crew = Crew(relay, full=True)
    runner = crew.runner()
    crew.beat(runner, slots=slots)
    running = [crew.job() for _ in range(slots)]
    for item in running:
        assert crew.submit(item).status == 201
        crew.claim(runner, item)
    # said before the result of the last was here
    late: dict[str, Any] = {"slots": 0, "jobs": [item.ref.id for item in running]}
    runner.send(crew.result(runner, running[-1]))
    crew.beat(runner, **late)
    following = crew.job()
    assert crew.submit(following).status == 201
    assert crew.submit(crew.job()).error == "409 runner_busy"
    crew.beat(runner, **late)
    assert crew.submit(crew.job()).error == "409 runner_busy"
    # the next one begins before the runner knows that the last is over
    crew.claim(runner, following)
    crew.beat(runner, slots=-1, jobs=[*late["jobs"], following.ref.id])
    assert crew.submit(crew.job()).error == "409 runner_busy"


def test_who_names_jobs_that_nobody_knows_has_no_slot_more(relay: RelayThread) -> None:
    crew = Crew(relay, full=True)
    runner = crew.runner()
    crew.beat(runner, slots=0, jobs=["no such job"])
    assert crew.submit(crew.job()).error == "409 runner_busy"
    crew.beat(runner, slots=1, jobs=["no such job"])
    assert crew.submit(crew.job()).status == 201


@pytest.mark.parametrize("says_so", ["result", "heartbeat"])
def test_the_slot_of_a_job_that_was_given_up_is_not_free_until_it_is_over(
    relay: RelayThread, clock: Clock, says_so: str
) -> None:
    """P-REL-10: it may be running all the same."""
    crew = Crew(relay, full=True)
    runner = crew.runner()
    item = crew.job()
    crew.submit(item)
    crew.claim(runner, item)
    late: dict[str, Any] = {"slots": 0, "jobs": [item.ref.id]}
    crew.beat(runner, **late)
    clock.turn(GRACE_S + 1)
    until(lambda: crew.state(item) == ("failed", "runner_lost"))
    crew.beat(runner, **late)
    assert crew.submit(crew.job()).error == "409 runner_busy"
    if says_so == "result":
        runner.send(crew.result(runner, item))
        crew.beat(runner, **late)
    else:
        crew.beat(runner, slots=1)
    assert crew.submit(crew.job()).status == 201
    assert crew.submit(crew.job()).error == "409 runner_busy"


# ── runners ──────────────────────────────────────────────────────────────────────────────────


def test_the_list_of_runners(relay: RelayThread) -> None:
    crew = Crew(relay)
    runner = crew.runner(ready=False)
    rows = crew.sender.get(wire.runners(crew.sid)).json["runners"]
    assert rows == [
        {
            "participant_pub": runner.public,
            "signed_join": runner.person.join,
            "approved": False,
            "rejected": False,
            "online": False,
            "job": None,
        }
    ]
    crew.owner.post(wire.approve(crew.sid, runner.public))
    crew.beat(runner)
    item = crew.job()
    crew.submit(item)
    (row,) = crew.sender.get(wire.runners(crew.sid)).json["runners"]
    assert (row["approved"], row["online"], row["job"]) == (True, True, item.ref.id)


def test_heartbeats_are_answered_with_json(relay: RelayThread) -> None:
    """P-FLR-2."""
    crew = Crew(relay)
    runner = crew.runner(ready=False)
    for said in ("{}", '{"job":null}', '{"job":"x","more":1}'):
        answer = runner.post(wire.heartbeat(crew.sid), said)
        assert (answer.status, answer.json) == (200, {})
    for said in ("", "[]", '{"job":1}', "x" * 2000):
        assert runner.post(wire.heartbeat(crew.sid), said).status in (400, 413)
    assert crew.sender.post(wire.heartbeat(crew.sid), "{}").error == "403 forbidden"


def test_only_the_owner_approves_and_rejects(relay: RelayThread) -> None:
    crew = Crew(relay)
    runner = crew.runner(ready=False)
    for path in (wire.approve, wire.reject):
        assert crew.sender.post(path(crew.sid, runner.public)).error == "403 forbidden"
        assert crew.owner.post(path(crew.sid, crew.sender.public)).error == "404 not_found"


def test_a_rejected_runner_is_told_cut_off_and_stays_rejected(relay: RelayThread) -> None:
    """P-REL-4: tokens die on reject."""
    crew = Crew(relay)
    runner = crew.runner()
    item = crew.job()
    crew.submit(item)
    with crew.http.stream(wire.runner_stream(crew.sid), runner.token) as stream:
        assert stream.until("job_assigned")
        assert crew.owner.post(wire.reject(crew.sid, runner.public)).status == 200
        assert [e.event for e in stream.rest()] == ["rejected"]
    assert crew.beat(runner).error == "401 unauthorized"
    assert crew.owner.post(wire.approve(crew.sid, runner.public)).error == "403 policy"
    (row,) = crew.owner.get(wire.runners(crew.sid)).json["runners"]
    assert (row["rejected"], row["approved"], row["online"]) == (True, False, False)
    until(lambda: crew.state(item) == ("failed", "runner_lost"))


def test_a_waiting_runner_is_a_recipient_of_its_own_approval(relay: RelayThread) -> None:
    """P-FLR-3."""
    crew = Crew(relay)
    runner = crew.runner(ready=False)
    approval = crew.owner.person.post(RunnerApprove(participant_pub=runner.public), at_ms=now_ms())
    crew.owner.send(approval)
    crew.sender.post(wire.ack(crew.sid, approval.ref.id))
    assert runner.get(wire.blob(crew.sid, approval.ref.id)).body == approval.blob


def test_what_newcomers_must_know_of_runners_stays_though_everybody_has_it(
    relay: RelayThread,
) -> None:
    """Whoever joins later can trust no runner without the owner's words about it."""
    crew = Crew(relay)
    runner = crew.runner(ready=False)
    approval = crew.owner.person.post(RunnerApprove(participant_pub=runner.public), at_ms=now_ms())
    rejection = RunnerReject(participant_pub=runner.public, reason="\0" * limits.REASON_BYTES)
    longest = crew.owner.person.post(rejection, at_ms=now_ms())
    cancel = crew.sender.person.post(JobCancel(job=approval.ref), at_ms=now_ms())
    for author, item in ((crew.owner, approval), (crew.owner, longest), (crew.sender, cancel)):
        assert author.send(item).status == 201
        for each in (crew.owner, crew.sender, runner):
            each.post(wire.ack(crew.sid, item.ref.id))
    newcomer = join(crew.http, crew.world.person(Role.SENDER))
    for item in (approval, longest):
        assert newcomer.get(wire.blob(crew.sid, item.ref.id)).body == item.blob
    assert newcomer.get(wire.blob(crew.sid, cancel.ref.id)).error == "410 evicted"


def test_a_long_event_is_not_kept_for_newcomers(relay: RelayThread) -> None:
    crew = Crew(relay)
    bulky = crew.owner.person.post(
        RunnerReject(participant_pub=crew.owner.public, reason="x" * STANDING_BLOB_BYTES),
        at_ms=now_ms(),
    )
    assert crew.owner.send(bulky).status == 201
    crew.sender.post(wire.ack(crew.sid, bulky.ref.id))
    assert crew.sender.get(wire.blob(crew.sid, bulky.ref.id)).error == "410 evicted"


def test_a_new_runner_stream_replaces_the_old_and_repeats_what_was_missed(
    relay: RelayThread,
) -> None:
    crew = Crew(relay)
    runner = crew.runner()
    path = wire.runner_stream(crew.sid)
    item = crew.job()
    with crew.http.stream(path, runner.token) as first:
        crew.submit(item)
        first.until("job_assigned")
        with crew.http.stream(path, runner.token) as second:
            assert first.rest() == []
            assert json.loads(second.until("job_assigned").data) == {"job": item.ref.id}
            crew.claim(runner, item)
            crew.sender.post(wire.cancel(crew.sid, item.ref.id))
            second.until("job_cancel")
    with crew.http.stream(path, runner.token) as third:
        assert third.until("job_cancel")
    assert crew.sender.get(path).error == "403 forbidden"


# ── results ──────────────────────────────────────────────────────────────────────────────────


def test_results_of_others_are_refused(relay: RelayThread) -> None:
    """P-FLR-10 and P-RES-2: P-RES-2: from the assigned runner only."""
    crew = Crew(relay)
    assigned, other = crew.runner("a"), crew.runner("b")
    item = crew.job()
    crew.submit(
        item, json.dumps({"type": "runner", "participant_pub": assigned.public, "name": "a"})
    )
    assert other.send(crew.result(other, item)).error == "409 not_assigned"
    assert crew.owner.send(crew.result(crew.owner, item)).error == "409 not_assigned"
    assert crew.sender.send(crew.result(crew.sender, item)).error == "403 forbidden"
    assert crew.claim(other, item).error == "409 not_assigned"
    assert crew.claim(crew.sender, item).error == "403 forbidden"
    assert crew.state(item) == ("assigned", None)


def test_a_result_names_its_job_first(relay: RelayThread) -> None:
    """P-RES-2: the job first among the references."""
    crew = Crew(relay)
    runner = crew.runner()
    item, text = crew.job(), crew.sender.say("x")
    crew.submit(item)
    wrong_bytes = ItemRef(blob_sha256=text.ref.blob_sha256, id=item.ref.id)
    for refs in ([], [text.ref, item.ref], [wrong_bytes]):
        assert runner.send(crew.result(runner, item, refs)).error == "400 invalid_item"
    assert runner.send(crew.result(runner, item, [item.ref, text.ref])).status == 201


def test_a_job_has_one_result(relay: RelayThread) -> None:
    """P-RES-2: once."""
    crew = Crew(relay)
    runner = crew.runner()
    item = crew.job()
    crew.submit(item)
    crew.claim(runner, item)
    assert runner.send(crew.result(runner, item)).status == 201
    assert runner.send(crew.result(runner, item)).error == "409 duplicate"


# ── jobs that end by themselves ──────────────────────────────────────────────────────────────


def test_a_job_nobody_takes_is_lost(relay: RelayThread, clock: Clock) -> None:
    """P-FLR-5 and P-REL-5: P-REL-5: the relay ends a job that is not taken."""
    crew = Crew(relay)
    runner = crew.runner()
    item = crew.job()
    crew.submit(item)
    clock.turn(59)
    crew.beat(runner)
    assert crew.state(item) == ("assigned", None)
    clock.turn(2)
    until(lambda: crew.state(item) == ("failed", "runner_lost"))
    assert crew.claim(runner, item).error == "409 not_assigned"


@pytest.mark.parametrize("seconds", [-86_400, 86_400])
def test_a_clock_that_is_set_ends_no_job_early_or_late(
    relay: RelayThread, clock: Clock, seconds: int
) -> None:
    crew = Crew(relay, ttl_ms=None)
    runner, other = crew.runner("a"), crew.runner("b")
    waiting, running = crew.job(), crew.job()
    crew.submit(running, target_of(runner))
    crew.submit(waiting, target_of(other))
    crew.claim(runner, running)
    clock.set_by(seconds)
    sweeps = relay.relay.sweeper.passes
    until(lambda: relay.relay.sweeper.passes > sweeps + 1)
    assert crew.state(running) == ("running", None)
    assert crew.state(waiting) == ("assigned", None)
    clock.turn(61)
    crew.beat(other)
    until(lambda: crew.state(waiting) == ("failed", "runner_lost"))
    clock.turn(GRACE_S)
    until(lambda: crew.state(running) == ("failed", "runner_lost"))


def target_of(runner: Member) -> str:
    return json.dumps({"type": "runner", "participant_pub": runner.public, "name": "x"})


def test_a_runner_away_for_too_long_loses_its_job_but_not_its_result(
    relay: RelayThread, clock: Clock
) -> None:
    """P-REL-5, P-RES-2: `runner_lost` ends the wait; the result still comes, once."""
    crew = Crew(relay)
    runner = crew.runner()
    item = crew.job()
    crew.submit(item)
    crew.claim(runner, item)
    clock.turn(GRACE_S - 2)
    assert crew.state(item) == ("running", None)
    clock.turn(4)
    until(lambda: crew.state(item) == ("failed", "runner_lost"))
    crew.beat(runner)
    assert runner.send(crew.result(runner, item)).status == 201
    assert crew.state(item) == ("finished", None)
    assert runner.send(crew.result(runner, item)).error == "409 duplicate"


def test_a_runner_that_comes_back_in_time_keeps_its_job(relay: RelayThread, clock: Clock) -> None:
    crew = Crew(relay)
    runner = crew.runner()
    item = crew.job()
    crew.submit(item)
    crew.claim(runner, item)
    for _ in range(2):
        clock.turn(GRACE_S - 50)
        crew.beat(runner)
    assert crew.state(item) == ("running", None)
    # At the latest at claim + time limit + grace, also when the runner is there.
    clock.turn(50)
    crew.beat(runner)
    until(lambda: crew.state(item) == ("failed", "runner_lost"))


def test_a_runner_that_leaves_loses_its_job_at_once(relay: RelayThread) -> None:
    crew = Crew(relay)
    runner = crew.runner()
    item = crew.job()
    crew.submit(item)
    crew.claim(runner, item)
    runner.post(wire.leave(crew.sid))
    until(lambda: crew.state(item) == ("failed", "runner_lost"))


def test_cancel_before_a_claim_ends_the_job(relay: RelayThread) -> None:
    crew = Crew(relay)
    runner = crew.runner()
    item = crew.job()
    crew.submit(item)
    other = join(crew.http, crew.world.person(Role.SENDER))
    assert other.post(wire.cancel(crew.sid, item.ref.id)).error == "403 forbidden"
    assert crew.sender.post(wire.cancel(crew.sid, item.ref.id)).status == 200
    assert crew.state(item) == ("failed", "cancelled")
    assert crew.claim(runner, item).error == "409 not_assigned"
    assert crew.owner.post(wire.cancel(crew.sid, item.ref.id)).status == 200
    assert crew.submit(crew.job()).status == 201  # the runner is free again


def test_cancel_of_a_running_job_waits_for_the_runner_but_not_for_ever(
    relay: RelayThread, clock: Clock
) -> None:
    crew = Crew(relay)
    runner = crew.runner()
    item = crew.job()
    crew.submit(item)
    crew.claim(runner, item)
    with crew.http.stream(wire.runner_stream(crew.sid), runner.token) as stream:
        crew.owner.post(wire.cancel(crew.sid, item.ref.id))
        assert json.loads(stream.until("job_cancel").data) == {"job": item.ref.id}
        assert crew.state(item) == ("running", None)
        clock.turn(61)
        until(lambda: crew.state(item) == ("failed", "cancelled"))


def test_unknown_jobs_are_not_found(relay: RelayThread) -> None:
    crew = Crew(relay)
    runner, text = crew.runner(), crew.sender.say("x")
    for job in (text.ref.id, "nonsense"):
        assert crew.sender.get(wire.job(crew.sid, job)).error == "404 not_found"
        assert runner.post(wire.claim(crew.sid, job)).error == "404 not_found"
        assert crew.owner.post(wire.cancel(crew.sid, job)).error == "404 not_found"


def test_jobs_are_as_they_were_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    data = str(tmp_path / "data")
    with RelayThread(data=data, clock=clock) as relay:
        crew = Crew(relay)
        runner = crew.runner()
        done, open_job = crew.job(), crew.job()
        crew.submit(done)
        crew.claim(runner, done)
        runner.send(crew.result(runner, done))
        crew.submit(open_job)
        crew.claim(runner, open_job)
    with RelayThread(data=data, clock=clock) as relay:
        for member in (crew.sender, crew.owner, runner):
            member.http = Http(relay.url)
        assert crew.state(done) == ("finished", None)
        assert crew.state(open_job) == ("running", None)
        assert runner.send(crew.result(runner, done)).error == "409 duplicate"
        assert runner.send(crew.result(runner, open_job)).status == 201
        assert crew.state(open_job) == ("finished", None)


@pytest.mark.parametrize("lost", [False, True])
def test_a_result_finds_room_where_nothing_else_does(clock: Clock, lost: bool) -> None:
    """A job that was let in may end: also after it was given up, for its result still counts."""
    with RelayThread(clock=clock, max_items=4) as relay:
        crew = Crew(relay, full=True)
        runner = crew.runner()
        crew.beat(runner)
        item = crew.job()
        crew.submit(item)
        crew.claim(runner, item)
        crew.owner.say("second")
        crew.sender.say("third")
        crew.owner.say("fourth")
        assert crew.owner.send(crew.owner.person.say("x", at_ms=now_ms())).status == 507
        if lost:
            clock.turn(GRACE_S + 1)
            until(lambda: crew.state(item) == ("failed", "runner_lost"))
        assert runner.send(crew.result(runner, item)).status == 201
        assert crew.state(item)[0] == "finished"
        other = crew.owner.person.say("x", at_ms=now_ms())
        assert crew.owner.send(other).status == 507
