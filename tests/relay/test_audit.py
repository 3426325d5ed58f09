"""What a relay puts into audit trails beside its own words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from airlox.protocol import wire
from airlox.protocol.encoding import b64u_encode
from airlox.protocol.item import SealedItem
from airlox.protocol.payload import JobCancel, RunnerApprove, RunnerReject
from airlox.relay import history
from airlox.relay.entities import STANDING_BLOB_BYTES
from support.clock import Clock
from support.crew import Crew
from support.relay import Member, RelayThread, now_ms

DAY_S = 86_400


def trail(member: Member) -> list[dict[str, Any]]:
    body = member.get(wire.audit(member.sid)).body
    return [msgspec.json.decode(line) for line in body.splitlines()]


def items(member: Member) -> list[dict[str, Any]]:
    return [entry for entry in trail(member) if entry["event"] == "item"]


def decide(crew: Crew, meta: Any, **options: Any) -> SealedItem:
    """An event by the owner, which must be taken."""
    sealed = crew.owner.person.post(meta, at_ms=now_ms(), **options)
    assert crew.owner.send(sealed).status == 201
    return sealed


def numbers(member: Member) -> list[int]:
    """Of all items, as events have them."""
    answer = member.get(wire.events_page(member.sid, None, 1000)).json
    return [event["seq"] for event in answer["events"] if event["kind"] == "item"]


@pytest.mark.parametrize("rewrites", [True, False])
def test_items_have_the_numbers_of_their_events(
    monkeypatch: pytest.MonkeyPatch, rewrites: bool
) -> None:
    """P-AUD-5, P-AUD-7: also after the relay forgot, and after its log was written anew."""
    if rewrites:
        monkeypatch.setattr(history, "REWRITE_BYTES", 0)
    clock = Clock(now_ms())
    with RelayThread(clock=clock) as relay:
        crew = Crew(relay, full=True, ttl_ms=None)
        runner = crew.runner()
        session = relay.relay.core.sessions[crew.sid]
        for text in ("first", "second"):
            crew.owner.say(text)
            crew.beat(runner)
            job = crew.job()
            crew.submit(job)
            crew.claim(runner, job)
            assert runner.send(crew.result(runner, job)).status == 201
            assert [entry["seq"] for entry in items(crew.owner)][-3:] == numbers(crew.owner)[-3:]
            relay.call(setattr, session, "rewritten_bytes", 0)  # whatever it was, it is worth it
            clock.turn(8 * DAY_S)
            relay.call(relay.relay.history.forget_old, session)
        crew.owner.say("third")
        told = {entry["seq"]: entry["envelope"] for entry in items(crew.owner)}
        assert set(numbers(crew.owner)) <= set(told)
        assert len(told) == (3 if rewrites else 7)
        ranges = [entry["ranges"] for entry in trail(crew.owner) if "ranges" in entry]
        assert ranges == ([[list(gap) for gap in session.gaps()]] if rewrites else [])


def test_the_owner_s_events_come_with_their_bytes(relay: RelayThread) -> None:
    """P-AUD-6: in full sessions, and nothing else does."""
    crew = Crew(relay, full=True)
    runner = crew.runner()
    approval = decide(crew, RunnerApprove(participant_pub=runner.public))
    crew.owner.say("a text")
    job = crew.job()
    crew.submit(job)
    cancel = crew.sender.person.post(JobCancel(job=job.ref), refs=[job.ref], at_ms=now_ms())
    assert crew.sender.send(cancel).status == 201
    blobs = [entry.get("blob") for entry in items(crew.owner)]
    assert blobs == [b64u_encode(approval.blob), None, None, None]


def test_floor_sessions_have_none(relay: RelayThread) -> None:
    crew = Crew(relay)
    decide(crew, RunnerApprove(participant_pub=crew.runner().public))
    assert [entry.get("blob") for entry in items(crew.owner)] == [None]


def test_events_that_do_not_stay_come_without(relay: RelayThread) -> None:
    crew = Crew(relay, full=True)
    runner = crew.runner()
    reason = "\U0001f980" * 4096
    kept = decide(crew, RunnerReject(participant_pub=runner.public, reason=reason))
    assert len(kept.blob) <= STANDING_BLOB_BYTES
    long = RunnerReject(participant_pub=runner.public, reason=reason * 3)
    assert len(decide(crew, long).blob) > STANDING_BLOB_BYTES
    assert [entry.get("blob") is None for entry in items(crew.owner)] == [False, True]
