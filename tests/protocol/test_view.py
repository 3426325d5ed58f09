"""What a reader believes: participants, items, approvals and results, and what it refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from airlox import errors
from airlox.protocol import job, payload
from airlox.protocol.digest import NOTHING_HEX
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import ItemRef, SealedItem
from airlox.protocol.keys import Role
from airlox.protocol.manifest import JobKind
from airlox.protocol.view import Change, Event, Item, ItemStatus, SessionView, parse_event
from support.world import NOW_MS, Person, Timeline, World


class Room:
    """A view that hears of everything as an honest relay would send it."""

    def __init__(self, world: World) -> None:
        self.world, self.timeline = world, Timeline()
        self.view = SessionView(world.manifest, world.keyring())
        self.owner = self.join(Role.OWNER)

    def join(self, role: Role, name: str | None = None, **options: Any) -> Person:
        person = self.world.person(role, name, **options)
        assert self.view.step(self.timeline.join(person)).fault is None
        return person

    def hear(self, sealed: SealedItem) -> Change:
        return self.view.step(self.timeline.post(sealed))

    def read(self, sealed: SealedItem) -> Item:
        self.hear(sealed)
        return self.view.open(ItemId(sealed.ref.id), sealed.blob)

    def approve(self, runner: Person) -> None:
        self.read(self.owner.post(payload.RunnerApprove(participant_pub=runner.public)))


@pytest.fixture(params=[False, True], ids=["floor", "full"])
def room(request: pytest.FixtureRequest) -> Room:
    return Room(World(full=request.param))


PYTHON = job.PythonJob(
    code="print(1)\n",
    filename="main.py",
    files=(),
    memory_mb=None,
    requirements=(),
    runtime="python3.12",
    target=job.AnyRunner(),
    timeout_s=30,
)


def result_of(request: Item, full: bool, **changes: Any) -> job.Result:
    assert isinstance(request.meta, job.PythonJob | job.ShellJob)
    values: dict[str, Any] = {
        "code_sha256": job.code_sha256(request.meta),
        "exit_code": 0,
        "input_sha256": NOTHING_HEX,
        "job": request.ref,
        "out_files": (),
        "peak_mem_mb": 1,
        "reason": None,
        "status": job.Status.COMPLETED,
        "stderr": "",
        "stderr_truncated": False,
        "stdout": "1\n",
        "stdout_truncated": False,
        "wall_ms": 5,
    }
    if full:
        values |= {
            "cause": job.Cause(kind=job.CauseKind.EXIT),
            "env": job.Env(
                airlox="0.2.0", layers={}, network="off", platform="linux", sandbox="local"
            ),
            "live": job.LiveTotals(
                dropped_bytes=0, head=None, segments=0, stderr_bytes=0, stdout_bytes=0
            ),
        }
    return job.Result(**(values | changes))


def test_a_message_is_read(room: Room) -> None:
    sender = room.join(Role.SENDER, "agent")
    item = room.read(sender.say("hello"))
    assert (item.text, item.author_name, item.author_role) == ("hello", "agent", Role.SENDER)
    assert (item.name, item.mime, item.refs) == (None, None, ())
    file = payload.File(mime="text/markdown", name="report.md")
    posted = sender.post(file, body=b"# Report", subkind="md", refs=[item.ref])
    read = room.read(posted)
    assert (read.text, read.name, read.mime, read.refs) == (
        None,
        "report.md",
        "text/markdown",
        (item.ref,),
    )
    assert room.view.items() == [item, read]


def test_unknown_and_repeated_events_do_nothing(room: Room) -> None:
    assert room.view.step(Event(1, "weather", {})).kind == "ignored"
    assert room.view.step(Event(0, "closed", {"reason": "x"})).kind == "ignored"
    assert room.view.closed is None


def test_a_jump_is_dropped_unrecorded(room: Room) -> None:
    """P-EVT-2."""
    before = room.view.last_seq
    assert room.view.step(Event(before + 10_001, "closed", {"reason": "x"})).fault
    assert (room.view.last_seq, room.view.closed) == (before, None)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("participant", {}),
        ("participant", {"signed_join": 5}),
        ("participant", {"signed_join": "{}"}),
        ("item", {"envelope": "not json"}),
        ("item", {"envelope": "x" * 20_000}),
        ("item", {}),
        ("participant", {"signed_join": "\ud800"}),
        ("item", {"envelope": '{"header":' + "[" * 9000}),
        ("left", {"participant_pub": None}),
        ("revoked", {"role": [], "participants": 3}),
        ("evicted", {"item": {}}),
        ("want", {"item": "x"}),
        ("job", {"job": "x"}),
        ("reseeded", {}),
    ],
)
def test_a_bad_event_never_stops_a_reader(room: Room, kind: str, data: dict[str, Any]) -> None:
    """P-EVT-1."""
    assert room.view.step(room.timeline.add(kind, **data)).fault
    sender = room.join(Role.SENDER)
    assert room.read(sender.say("still here")).text == "still here"


def test_a_forged_participant_is_not_known(room: Room) -> None:
    stranger = World(owner_seed=bytes(32)).person(Role.SENDER, "mallory")
    assert room.view.step(room.timeline.join(stranger)).fault
    assert stranger.public not in room.view.participants


def test_an_item_before_its_author_is_refused_for_good(room: Room) -> None:
    """P-ITM-3."""
    late = room.world.person(Role.SENDER)
    post = late.say("early")
    assert room.hear(post).fault
    room.view.step(room.timeline.join(late))
    with pytest.raises(errors.PolicyError):
        room.view.open(ItemId(post.ref.id), post.blob)


def test_a_swapped_blob_is_refused(room: Room) -> None:
    sender = room.join(Role.SENDER)
    post, other = sender.say("pay 10"), sender.say("pay 99")
    room.hear(post)
    with pytest.raises(errors.SignatureError):
        room.view.open(ItemId(post.ref.id), other.blob)
    assert room.view.records[ItemId(post.ref.id)].status is ItemStatus.REFUSED


def test_an_id_is_used_once(room: Room) -> None:
    sender = room.join(Role.SENDER)
    first = sender.say("one")
    room.read(first)
    assert room.hear(sender.say("two", item_id=ItemId(first.ref.id))).fault
    found = room.view.item(first.ref.id)
    assert found is not None
    assert found.text == "one"


def test_a_spoiled_blob_costs_no_item(room: Room) -> None:
    """Whoever stores the bytes may have spoiled them: other bytes are still looked at."""
    sender = room.join(Role.SENDER)
    first, second = sender.say("one"), sender.say("two")
    for post in (first, second):
        room.hear(post)
        for spoiled in (post.blob[:-1], bytes(len(post.blob))):
            with pytest.raises(errors.ProtocolError):
                room.view.open(ItemId(post.ref.id), spoiled)
    assert room.view.open(ItemId(first.ref.id), first.blob).text == "one"
    assert room.view.pending() == []
    room.view.step(room.timeline.add("reseeded", item=second.ref.id))
    assert room.view.pending() == [ItemId(second.ref.id)]
    assert room.view.open(ItemId(second.ref.id), second.blob).text == "two"


def test_what_its_author_signed_wrongly_is_refused_for_good(room: Room) -> None:
    sender = room.join(Role.SENDER)
    post = sender.say("x", session_key=bytes(32))
    room.hear(post)
    with pytest.raises(errors.DecryptError):
        room.view.open(ItemId(post.ref.id), post.blob)
    room.view.step(room.timeline.add("reseeded", item=post.ref.id))
    with pytest.raises(errors.PolicyError):
        room.view.open(ItemId(post.ref.id), post.blob)


def test_a_second_announcement_moves_nothing(room: Room) -> None:
    """P-ITM-3: else a relay could change the order of what a reader has seen."""
    late = room.world.person(Role.SENDER)
    post = late.say("early")
    room.hear(post)
    seq = room.view.records[ItemId(post.ref.id)].seq
    room.view.step(room.timeline.join(late))
    assert room.hear(post).fault
    record = room.view.records[ItemId(post.ref.id)]
    assert (record.seq, record.status) == (seq, ItemStatus.REFUSED)


def test_what_a_reader_keeps_is_bounded(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """P-EVT-3."""
    sender = room.join(Role.SENDER)
    monkeypatch.setattr("airlox.protocol.limits.TIMELINE_BYTES", 8000)
    told = [room.hear(sender.say("x")) for _ in range(30)]
    assert told[0].fault is None
    assert told[-1].fault
    kept = [record.envelope for record in room.view.records.values() if record.envelope]
    assert 0 < sum(len(envelope.document) for envelope in kept) < 8000


def test_the_relays_words_are_bounded(room: Room) -> None:
    """P-EVT-3."""
    _, request = ask(room)
    tell = {"job": request.id, "state": "s" * 9000, "runner": "nobody", "reason": "r" * 9000}
    assert room.view.step(room.timeline.add("job", **tell)).fault is None
    told = room.view.relay_jobs[request.id]
    assert (len(told.state), told.runner, len(told.reason or "")) == (40, None, 4096)
    room.view.step(room.timeline.add("closed", reason="c" * 9000))
    assert len(room.view.closed or "") == 4096


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("job", {"job": "A" * 22, "state": "running"}),
        ("revoked", {"role": "king", "participants": []}),
        ("left", {"participant_pub": "x"}),
        ("want", {"item": "A" * 22, "by": "x"}),
    ],
)
def test_claims_about_nobody_are_faults(room: Room, kind: str, data: dict[str, Any]) -> None:
    assert room.view.step(room.timeline.add(kind, **data)).fault
    assert (room.view.relay_jobs, room.view.revoked_roles) == ({}, set())


@pytest.mark.parametrize("at_ms", [NOW_MS - 1, NOW_MS + 3_600_000])
def test_items_outside_the_lifetime_are_refused(room: Room, at_ms: int) -> None:
    """P-ITM-1."""
    sender = room.join(Role.SENDER)
    assert room.hear(sender.say("x", at_ms=at_ms)).fault
    clamped = room.world.manifest.clamp_time(at_ms)
    assert room.read(sender.say("y", at_ms=clamped)).text == "y"


def test_an_observer_may_only_read(room: Room) -> None:
    observer = room.join(Role.OBSERVER)
    assert room.hear(observer.say("x")).fault


def test_only_the_owner_approves(room: Room) -> None:
    runner, sender = room.join(Role.RUNNER), room.join(Role.SENDER)
    forged = sender.post(payload.RunnerApprove(participant_pub=runner.public))
    room.hear(forged)
    with pytest.raises(errors.PolicyError):
        room.view.open(ItemId(forged.ref.id), forged.blob)
    assert not room.view.may_take_jobs(runner.public)
    room.approve(runner)
    assert room.view.may_take_jobs(runner.public)


def test_a_rejection_is_final(room: Room) -> None:
    """P-PAY-2."""
    runner = room.join(Role.RUNNER)
    reject = payload.RunnerReject(participant_pub=runner.public, reason="no")
    room.read(room.owner.post(reject))
    room.approve(runner)
    assert not room.view.may_take_jobs(runner.public)


def ask(room: Room, request: job.PythonJob = PYTHON) -> tuple[Person, Item]:
    """A job by a sender, and an approved runner named box."""
    runner, sender = room.join(Role.RUNNER, "box", labels=["gpu"]), room.join(Role.SENDER)
    room.approve(runner)
    return runner, room.read(sender.post(request, subkind="py"))


def answer(room: Room, runner: Person, request: Item, **changes: Any) -> Item:
    meta = result_of(request, room.world.full, **changes)
    return room.read(runner.post(meta, refs=[request.ref]))


def test_a_result_answers_its_job(room: Room) -> None:
    runner, request = ask(room)
    result = answer(room, runner, request)
    assert room.view.results_of(request, NOTHING_HEX) == [result]


def test_results_that_are_not_bound_are_named(room: Room) -> None:
    """P-RES-1."""
    runner, request = ask(room)
    stranger = room.join(Role.RUNNER, "other")
    cases = {
        "approve": answer(room, stranger, request),
        "other code": answer(room, runner, request, code_sha256="0" * 64),
        "input": answer(room, runner, request, input_sha256="0" * 64),
        "runners": room.read(room.owner.post(result_of(request, room.world.full))),
    }
    assert room.view.results_of(request, NOTHING_HEX) == []
    reasons = {item.id: why for item, why in room.view.invalid_results_of(request, NOTHING_HEX)}
    for word, item in cases.items():
        assert word in reasons[item.id]


def test_a_result_for_another_job_reference_does_not_count(room: Room) -> None:
    runner, request = ask(room)
    other = ItemRef(blob_sha256=runner.say("x").ref.blob_sha256, id=request.id)
    answer(room, runner, request, job=other)
    assert room.view.results_of(request, NOTHING_HEX) == []


def test_a_named_runner_or_label_binds_the_answer(room: Room) -> None:
    wanted = job.LabelledRunner(labels=("gpu",))
    runner, request = ask(room, msgspec.structs.replace(PYTHON, target=wanted))
    plain = room.join(Role.RUNNER, "plain")
    room.approve(plain)
    answer(room, plain, request)
    assert room.view.results_of(request, NOTHING_HEX) == []
    good = answer(room, runner, request)
    assert room.view.results_of(request, NOTHING_HEX) == [good]


def test_a_refusal_of_an_unread_job_counts(room: Room) -> None:
    runner, request = ask(room)
    changes: dict[str, Any] = {
        "status": job.Status.REFUSED,
        "exit_code": None,
        "reason": "unreadable",
        "code_sha256": NOTHING_HEX,
    }
    if room.world.full:
        changes["cause"] = job.Cause(kind=job.CauseKind.REFUSED, code="invalid_job")
    refusal = answer(room, runner, request, **changes)
    assert room.view.results_of(request, NOTHING_HEX) == [refusal]


def test_two_answers_are_both_shown(room: Room) -> None:
    runner, request = ask(room)
    second = room.join(Role.RUNNER, "second")
    room.approve(second)
    found = [answer(room, runner, request), answer(room, second, request)]
    assert room.view.results_of(request, NOTHING_HEX) == found


def test_a_signed_cancel_counts_from_owner_or_author(room: Room) -> None:
    runner, request = ask(room)
    other = room.join(Role.SENDER)
    room.read(other.post(payload.JobCancel(job=request.ref), refs=[request.ref]))
    assert request.id not in room.view.cancels
    room.read(room.owner.post(payload.JobCancel(job=request.ref), refs=[request.ref]))
    assert room.view.cancels[request.id] == room.owner.public
    assert runner.public in room.view.participants


def test_evicted_and_reseeded(room: Room) -> None:
    sender = room.join(Role.SENDER)
    post = sender.say("x")
    room.hear(post)
    item = ItemId(post.ref.id)
    assert room.view.pending() == [item]
    room.view.step(room.timeline.add("evicted", item=item))
    assert room.view.pending() == []
    room.view.step(room.timeline.add("reseeded", item=item))
    assert room.view.open(item, post.blob).text == "x"


def test_left_and_revoked_are_the_relays_word(room: Room) -> None:
    sender, other = room.join(Role.SENDER, "a"), room.join(Role.SENDER, "b")
    room.view.step(room.timeline.add("left", participant_pub=sender.public))
    assert room.view.participants[sender.public].left
    room.view.step(room.timeline.add("revoked", role="sender", participants=[other.public, 7]))
    assert room.view.participants[other.public].left
    assert "sender" in room.view.revoked_roles


def test_runner_info_is_the_newest_of_that_runner() -> None:
    room = Room(World(full=True))
    runner = room.join(Role.RUNNER)

    def info(slots: int) -> payload.RunnerInfoNote:
        return payload.RunnerInfoNote(
            airlox="0.2.0",
            kinds=(JobKind.SHELL,),
            layers={},
            network="off",
            platform="linux",
            sandbox="local",
            slots=slots,
            workspaces=True,
        )

    old, new = runner.post(info(1)), runner.post(info(2))
    room.hear(old)
    room.read(new)
    room.view.open(ItemId(old.ref.id), old.blob)
    assert room.view.runner_infos[runner.public].slots == 2


@pytest.mark.parametrize("seq", [None, "", "-1", "1.0", "x", "9" * 30, "٣"])
def test_events_without_a_number_are_refused(seq: str | None) -> None:
    with pytest.raises(errors.EncodingError):
        parse_event(seq, "item", "{}")
