"""What a reader makes of a relay that forgets: gaps in the numbers, and items of finished jobs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import ProtocolError
from airlox.protocol import job, manifest, payload
from airlox.protocol.encoding import ItemId
from airlox.protocol.forgetting import forgotten_ranges
from airlox.protocol.item import SealedItem
from airlox.protocol.keys import Role
from airlox.protocol.manifest import Feature
from airlox.protocol.ranges import in_ranges
from airlox.protocol.view import Change, Event, SessionView
from support.crew import a_result
from support.world import NOW_MS, Person, Timeline, World, job_limits

SHELL = job.ShellJob(
    command=("true",), files=(), memory_mb=None, target=job.AnyRunner(), timeout_s=9
)


class Room:
    """A view that has seen a job, its result with a file, a cancel, and what is not of a job."""

    def __init__(self, *, full: bool = True) -> None:
        self.world, self.line = World(full=full), Timeline()
        self.view = SessionView(self.world.manifest, self.world.keys.session_key)
        self.owner, self.sender, self.runner = map(
            self.join, (Role.OWNER, Role.SENDER, Role.RUNNER)
        )
        approval = payload.RunnerApprove(participant_pub=self.runner.public)
        self.approval = self.read(self.owner.post(approval))
        self.said = self.read(self.sender.say("stays"))
        if full:
            self.job = self.read(self.sender.post(SHELL, subkind="sh"))
            self.line.add("job", job=self.job.ref.id, state="assigned", runner=None, reason=None)
            cancel = payload.JobCancel(job=self.job.ref)
            self.cancel = self.read(self.sender.post(cancel, refs=[self.job.ref]))
            file = payload.File(mime="text/x-python", name="a.py")
            self.file = self.read(self.runner.post(file, body=b"x\n", subkind="py"))
            refs = [self.job.ref, self.file.ref]
            self.result = self.hear(self.runner.post(a_result(self.job.ref), refs=refs))

    def join(self, role: Role) -> Person:
        person = self.world.person(role)
        self.view.step(self.line.join(person))
        return person

    def hear(self, sealed: SealedItem) -> SealedItem:
        self.view.step(self.line.post(sealed))
        return sealed

    def read(self, sealed: SealedItem) -> SealedItem:
        self.hear(sealed)
        self.view.open(ItemId(sealed.ref.id), sealed.blob)
        return sealed

    def step(self, kind: str, seq: int, **data: Any) -> Change:
        return self.view.step(Event(seq, kind, data))

    @property
    def next_seq(self) -> int:
        return self.view.last_seq + 1


def test_items_of_a_job_are_let_go_of() -> None:
    """P-HIS-3"""
    room = Room()
    held = room.view._held_bytes
    low = room.view.records[ItemId(room.job.ref.id)].seq
    change = room.step("forgotten", room.next_seq, ranges=[[low, room.view.last_seq]])
    assert change.fault is None
    gone = {room.job.ref.id, room.cancel.ref.id, room.file.ref.id, room.result.ref.id}
    assert set(change.forgotten) == gone
    assert set(room.view.records) == {room.approval.ref.id, room.said.ref.id}
    assert room.view.has_forgotten
    assert room.view.cancels == {}
    assert room.view._held_bytes < held
    assert room.view.may_take_jobs(room.runner.public)
    # its id is free again: what a lying relay announces anew is judged like any other item
    assert room.view.step(Event(room.next_seq, "item", {"envelope": room.job.envelope})).item


def test_nothing_else_is_ever_let_go_of() -> None:
    """P-HIS-3: a relay cannot make a reader forget who was approved, or what was said."""
    room = Room()
    change = room.step("forgotten", room.next_seq, ranges=[[0, room.view.last_seq]])
    assert change.fault == "the relay says it forgot 2 item(s) that stay"
    assert set(room.view.records) == {room.approval.ref.id, room.said.ref.id}
    assert len(room.view.participants) == 3
    assert room.view.may_take_jobs(room.runner.public)


@pytest.mark.parametrize(
    "ranges",
    [
        None,
        "0",
        [0],
        [[0]],
        [[1, 0]],
        [[0, 1], [1, 2]],
        [[2, 3], [0, 1]],
        [[-1, 0]],
        [[0, 10**9]],
        [["0", "1"]],
        [[n * 2, n * 2] for n in range(1001)],
    ],
)
def test_ranges_that_are_none(ranges: Any) -> None:
    """P-HIS-3"""
    room = Room()
    records = dict(room.view.records)
    change = room.step("forgotten", room.next_seq, ranges=ranges)
    assert change.fault is not None
    assert room.view.records == records


def test_a_gap_may_be_longer_than_any_jump() -> None:
    """P-HIS-3: forgotten is not dropped."""
    room = Room()
    change = room.step("gap", 5_000_000, first=room.next_seq)
    assert (change.fault, room.view.last_seq) == (None, 5_000_000)
    assert room.view.has_forgotten
    text = room.sender.say("after")
    assert room.view.step(Event(5_000_001, "item", {"envelope": text.envelope})).fault is None


@pytest.mark.parametrize("first", [None, "0", -1, 1_000, True])
def test_a_gap_must_follow_what_was_seen(first: Any) -> None:
    """P-HIS-3"""
    room = Room()
    last = room.view.last_seq
    change = room.step("gap", 2_000, first=first)
    assert change.fault == "a gap that does not follow the last event"
    assert room.view.last_seq == last


def test_a_gap_that_was_seen_in_part() -> None:
    """P-HIS-3: whoever knew the first of the forgotten events goes on behind the last."""
    room = Room()
    assert room.step("gap", room.next_seq + 5, first=2).fault is None


def test_floor_sessions_know_neither() -> None:
    """P-HIS-3"""
    room = Room(full=False)
    records = dict(room.view.records)
    room.step("forgotten", room.next_seq, ranges=[[0, room.view.last_seq]])
    room.step("gap", room.next_seq + 50_000, first=room.next_seq)
    assert room.view.records == records
    assert room.view.last_seq < 100
    assert not room.view.has_forgotten


def test_the_feature_goes_with_the_others() -> None:
    """P-MAN-2: it is a feature of full sessions like any other."""
    document = World(full=True).document
    assert Feature.HISTORY in manifest.parse_manifest(document).features
    with pytest.raises(ProtocolError):
        manifest.build_manifest(
            bytes(32),
            mode=manifest.Mode.EXECUTE,
            created_at_ms=NOW_MS,
            ttl_ms=None,
            job_limits=job_limits(full=True),
            features=(Feature.HISTORY,),
        )


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=20), st.integers(0, 80))
def test_ranges_hold_what_they_say(pairs: list[tuple[int, int]], seq: int) -> None:
    ranges, last = [], -1
    for low, length in sorted(pairs):
        if low > last:
            last = low + length
            ranges.append((low, last))
    assert in_ranges(seq, ranges) == any(low <= seq <= high for low, high in ranges)
    event = msgspec.convert({"seq": 1000, "kind": "forgotten", "data": {"ranges": ranges}}, Event)
    assert forgotten_ranges(event) == ranges
