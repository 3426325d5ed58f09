"""What a reader makes of a relay that forgets: gaps in the numbers, and items of finished jobs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import ProtocolError
from airlox.protocol import forgetting, job, manifest, payload
from airlox.protocol.chain import Link, chosen_refs, find_place
from airlox.protocol.encoding import ItemId
from airlox.protocol.forgetting import forgotten_ranges
from airlox.protocol.item import Header, ItemRef, SealedItem
from airlox.protocol.keys import Role
from airlox.protocol.manifest import Feature
from airlox.protocol.ranges import in_ranges
from airlox.protocol.view import Change, Event, SessionView
from support.crew import a_result
from support.world import NOW_MS, Person, World, job_limits

SHELL = job.ShellJob(
    command=("true",), files=(), memory_mb=None, target=job.AnyRunner(), timeout_s=9
)


class Room:
    """A view that has seen a job, its result with a file, a cancel, and what is not of a job."""

    def __init__(self, *, full: bool = True) -> None:
        self.world = World(full=full)
        self.view = SessionView(self.world.manifest, self.world.keyring())
        self.owner, self.sender, self.runner = map(
            self.join, (Role.OWNER, Role.SENDER, Role.RUNNER)
        )
        approval = payload.RunnerApprove(participant_pub=self.runner.public)
        self.approval = self.read(self.owner.post(approval))
        self.said = self.read(self.sender.say("stays"))
        if full:
            self.job = self.read(self.sender.post(SHELL, subkind="sh"))
            said = {"job": self.job.ref.id, "state": "assigned", "runner": None, "reason": None}
            self.step("job", self.next_seq, **said)
            cancel = payload.JobCancel(job=self.job.ref)
            self.cancel = self.read(self.sender.post(cancel, refs=[self.job.ref]))
            file = payload.File(mime="text/x-python", name="a.py")
            self.file = self.read(self.runner.post(file, body=b"x\n", subkind="py"))
            refs = [self.job.ref, self.file.ref]
            self.result = self.hear(self.runner.post(a_result(self.job.ref), refs=refs))

    def join(self, role: Role) -> Person:
        person = self.world.person(role)
        self.step("participant", self.next_seq, signed_join=person.join)
        return person

    def hear(self, sealed: SealedItem) -> SealedItem:
        self.view.step(self.line_at(sealed))
        return sealed

    def read(self, sealed: SealedItem) -> SealedItem:
        self.hear(sealed)
        self.view.open(ItemId(sealed.ref.id), sealed.blob)
        return sealed

    def step(self, kind: str, seq: int, **data: Any) -> Change:
        return self.view.step(Event(seq, kind, data))

    def line_at(self, sealed: SealedItem) -> Event:
        """An item as the next event, whatever else was told meanwhile."""
        return Event(self.next_seq, "item", {"envelope": sealed.envelope})

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


class TestInputFiles:
    """P-HIS-9: what was sent for jobs that are forgotten, and nothing else."""

    def file(self, room: Room, by: Person | None = None, *named: SealedItem) -> SealedItem:
        meta, refs = payload.File(mime="text/x-python", name="in.py"), [n.ref for n in named]
        author = by or room.sender
        return room.read(author.post(meta, body=b"x\n", subkind="py", refs=refs))

    def job(self, room: Room, *named: SealedItem, by: Person | None = None) -> SealedItem:
        refs = [item.ref for item in named]
        return room.hear((by or room.sender).post(SHELL, subkind="sh", refs=refs))

    def forget(self, room: Room, *items: SealedItem) -> set[str]:
        """Which of the items a reader lets go of when a relay says that it forgot them."""
        seqs = sorted(room.view.records[ItemId(item.ref.id)].seq for item in items)
        change = room.step("forgotten", room.next_seq, ranges=[[seq, seq] for seq in seqs])
        return set(change.forgotten)

    def test_they_go_with_their_job(self) -> None:
        room = Room()
        file, unused = self.file(room), self.file(room)
        job = self.job(room, file)
        assert self.forget(room, file, unused, job) == {file.ref.id, job.ref.id}

    def test_not_before_it(self) -> None:
        room = Room()
        file = self.file(room)
        job = self.job(room, file)
        assert self.forget(room, file) == set()
        assert self.forget(room, file, job) == {file.ref.id, job.ref.id}

    def test_also_when_the_ranges_come_in_parts(self) -> None:
        """A forgetting of more than 1,000 ranges is told in several events."""
        room = Room()
        file = self.file(room)
        job = self.job(room, file)
        assert self.forget(room, file) == set()
        assert self.forget(room, job) == {file.ref.id, job.ref.id}

    @pytest.mark.parametrize("kind", ["job", "text", "file"])
    def test_not_while_something_names_them_that_stays(self, kind: str) -> None:
        room = Room()
        file = self.file(room)
        job = self.job(room, file)
        if kind == "text":
            room.hear(room.owner.say("look", refs=[file.ref]))
        elif kind == "file":
            self.file(room, room.owner, file)
        else:
            self.job(room, file)
        assert self.forget(room, file, job) == {job.ref.id}

    def test_with_the_last_job_that_names_them(self) -> None:
        room = Room()
        file = self.file(room)
        first, second = self.job(room, file), self.job(room, file)
        assert self.forget(room, file, first) == {first.ref.id}
        assert self.forget(room, file, second) == {file.ref.id, second.ref.id}

    def test_nobody_has_files_of_others_forgotten(self) -> None:
        room = Room()
        file = self.file(room, room.owner)
        job = self.job(room, file)
        assert self.forget(room, file, job) == {job.ref.id}

    def test_rows_of_files_cost_no_more_than_their_length(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        room = Room()
        row = [self.file(room)]
        for _ in range(20):
            row.append(self.file(room, None, row[-1]))
        room.read(room.sender.post(payload.Text(text="x"), refs=[row[-1].ref]))
        looks: list[Header] = []

        def looked_at(header: Header) -> tuple[ItemRef, ...]:
            looks.append(header)
            return chosen_refs(header)

        monkeypatch.setattr(forgetting, "chosen_refs", looked_at)
        files = {ItemId(file.ref.id) for file in row}
        assert forgetting.named_alone(room.view.records, files, set()) == set()
        assert len(looks) <= len(room.view.records)

    def test_texts_never_go(self) -> None:
        room = Room()
        job = self.job(room, room.said, room.approval)
        assert self.forget(room, room.said, room.approval, job) == {job.ref.id}

    def test_what_merely_links_to_a_file_does_not_keep_it(self) -> None:
        """P-CHN-7"""
        room = Room()
        file = self.file(room)
        job = self.job(room, file)
        tips = [Link(file.ref, 0), Link(file.ref, 0)]
        place = find_place(room.sender.public, [], tips, knows=True, random=bytes(11))
        room.hear(room.sender.say("next", item_id=place.item_id, refs=place.refs))
        assert self.forget(room, file, job) == {file.ref.id, job.ref.id}


def test_an_unread_approval_that_links_to_a_job_stays() -> None:
    """P-CHN-7: its references are the chain's, so it is no cancel."""
    room = Room()
    tips = [Link(room.job.ref, 0), Link(room.job.ref, 0)]
    place = find_place(room.owner.public, [], tips, knows=True, random=bytes(11))
    approval = payload.RunnerApprove(participant_pub=room.runner.public)
    unread = room.hear(room.owner.post(approval, item_id=place.item_id, refs=place.refs))
    change = room.step("forgotten", room.next_seq, ranges=[[0, room.view.last_seq]])
    assert unread.ref.id not in change.forgotten


def test_what_is_let_go_of_is_not_missing_to_the_chain() -> None:
    """P-CHN-5"""
    room = Room()
    seq = room.view.records[ItemId(room.job.ref.id)].seq
    tips = [Link(room.job.ref, seq)]
    room.step("forgotten", room.next_seq, ranges=[[seq, seq]])
    place = find_place(room.sender.public, [], tips, knows=True, random=bytes(11))
    change = room.view.step(
        room.line_at(room.sender.say("next", item_id=place.item_id, refs=place.refs))
    )
    assert change.alarms == ()
    assert room.view.chain.counted_forgotten == 1


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
