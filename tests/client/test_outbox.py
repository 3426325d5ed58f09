"""Posting until acknowledged: same bytes on every try, never two items, never a false success."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airlox.client import outbox as outbox_module
from airlox.client.answers import Assigned, JobStatus
from airlox.client.cache import SessionCache
from airlox.client.deadline import Deadline
from airlox.client.membership import Membership
from airlox.client.outbox import Outbox
from airlox.client.relay_api import RelayApi
from airlox.errors import (
    AirloxError,
    ConnectionLost,
    DecryptError,
    PolicyError,
    RelayError,
    SessionClosed,
    ValidationError,
)
from airlox.protocol.chain import Mark, chosen_refs, read_mark
from airlox.protocol.digest import hash_of
from airlox.protocol.encoding import ItemId, PublicKey, new_item_id
from airlox.protocol.item import ItemRef, SealedItem, open_item, parse_envelope, parse_frame
from airlox.protocol.job import AnyRunner, PythonJob, ShellJob
from airlox.protocol.keys import Role
from airlox.protocol.payload import File, Text, decode_payload
from support.epochs import Epochs
from support.world import World

LOST = ConnectionLost("cut")
DUPLICATE = RelayError(409, "duplicate", "id used")
OLD_EPOCH = RelayError(409, "old_epoch", "it has ended")
TARGET = '{"type":"any"}'


class Relay:
    """Answers posts from a list; a number or None acknowledges. Stands where a RelayApi does."""

    def __init__(self, *answers: Exception | int | None) -> None:
        self._answers: Iterator[Exception | int | None] = iter(answers)
        self.frames: list[bytes] = []
        self.status = JobStatus(state="assigned", runner="key")
        self.closed = False
        self.waits: list[float] = []

    def within(self, deadline: Deadline) -> Relay:
        return self

    def pause(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return not self.closed

    def end_of_session(self, error: RelayError) -> AirloxError:
        return RelayApi.end_of_session(self, error)  # type: ignore[arg-type]

    session_id = "ax_x"

    def post_item(self, frame: bytes) -> int | None:
        self.frames.append(frame)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def post_job(self, frame: bytes, target: str, wait_s: int = 0) -> Assigned:
        assert target == TARGET
        return Assigned(PublicKey("key"), self.post_item(frame))

    def job(self, job: str) -> JobStatus:
        return self.status


class Desk:
    def __init__(
        self, folder: Path, *answers: Exception | int | None, epochs: bool = False
    ) -> None:
        self.world = World(epochs=epochs)
        self.sender = self.world.person(Role.SENDER)
        self.relay = Relay(*answers)
        self.cache = SessionCache(folder, self.world.manifest.session_id)
        self.cache.make()
        api: Any = self.relay
        self.me = Membership(
            self.world.invite("https://relay.example", Role.SENDER),
            self.world.manifest,
            self.sender.key,
            self.world.keyring(Role.SENDER, self.sender.key),
            api,
            self.cache,
        )
        self.stored: str | None = None
        self.look_ups: Iterator[Exception] = iter(())
        self.warnings: list[str] = []
        self.known: set[str] = set()
        self.news: list[str] = []
        """Documents of epochs, of which one more is shown whenever the relay is asked for news."""
        self.shown = 0
        self.outbox = self.another_process()

    def another_process(self) -> Outbox:
        """An outbox of the same participant with the same cache."""
        warn = self.warnings.append
        return Outbox(self.me, self._announced, self.known.__contains__, on_warning=warn)

    def say(self, text: str, *refs: ItemRef, by: Outbox | None = None) -> SealedItem:
        """Seal and post a text."""
        outbox = by or self.outbox
        sealed = outbox.seal(Text(text=text), refs=refs)
        outbox.post(sealed)
        return sealed

    def _announced(self, item: ItemId, api: RelayApi) -> str | None:
        for failure in self.look_ups:
            raise failure
        self.shown += 1
        self.me.keys.learn_all(self.news[: self.shown])
        return self.stored


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "FIRST_WAIT_S", 0.001)


def test_every_try_has_the_same_bytes(tmp_path: Path) -> None:
    busy = RelayError(503, "busy", "x")
    desk = Desk(tmp_path, LOST, busy, RelayError(429, "rate_limited", "x"), LOST, None)
    sealed = desk.outbox.seal(Text(text="hello"))
    assert desk.outbox.post(sealed) == sealed.ref
    assert len(desk.relay.frames) == 5
    assert len(set(desk.relay.frames)) == 1
    assert parse_frame(desk.relay.frames[0]) == (sealed.envelope, sealed.blob)
    assert len(desk.warnings) == 1


def test_a_post_waits_as_long_as_the_relay_says_but_not_beyond_its_time(tmp_path: Path) -> None:
    limited = RelayError(429, "rate_limited", "x", retry_after_s=3)
    desk = Desk(tmp_path, limited, None, limited)
    desk.say("waits")
    assert desk.relay.waits == [3]
    with pytest.raises(RelayError):
        desk.outbox.post(desk.outbox.seal(Text(text="hurry")), timeout_s=2)
    assert desk.relay.waits == [3]


@pytest.mark.parametrize("code", ["full", "disk_failed"])
def test_a_relay_with_no_room_is_not_asked_again(tmp_path: Path, code: str) -> None:
    desk = Desk(tmp_path, RelayError(507, code, "x"), None)
    with pytest.raises(RelayError):
        desk.say("no room")
    assert len(desk.relay.frames) == 1


def test_the_bytes_are_kept_before_they_leave(tmp_path: Path) -> None:
    desk = Desk(tmp_path, None)
    sealed = desk.outbox.seal(Text(text="hello"))
    desk.outbox.post(sealed)
    assert desk.cache.load_blob(sealed.ref.id, len(sealed.blob)) == sealed.blob


def test_a_duplicate_after_a_lost_answer_is_ours(tmp_path: Path) -> None:
    desk = Desk(tmp_path, LOST, DUPLICATE)
    sealed = desk.outbox.seal(Text(text="hello"))
    desk.stored = sealed.envelope
    assert desk.outbox.post(sealed) == sealed.ref


def test_a_line_that_breaks_while_a_duplicate_is_looked_at_costs_nothing(tmp_path: Path) -> None:
    """Else the caller is told of a failure, sends it anew, and there are two items."""
    desk = Desk(tmp_path, LOST, DUPLICATE, DUPLICATE, DUPLICATE)
    desk.look_ups = iter([LOST, RelayError(503, "busy", "x")])
    sealed = desk.outbox.seal(Text(text="hello"))
    desk.stored = sealed.envelope
    assert desk.outbox.post(sealed) == sealed.ref
    assert len(set(desk.relay.frames)) == 1


@pytest.mark.parametrize("stored", [None, "another envelope"])
def test_a_duplicate_of_something_else_is_an_error(tmp_path: Path, stored: str | None) -> None:
    desk = Desk(tmp_path, LOST, DUPLICATE)
    desk.stored = stored
    with pytest.raises(RelayError) as caught:
        desk.outbox.post(desk.outbox.seal(Text(text="hello")))
    assert caught.value.code == "duplicate"


def test_a_duplicate_on_the_first_try_is_an_error(tmp_path: Path) -> None:
    desk = Desk(tmp_path, DUPLICATE)
    sealed = desk.outbox.seal(Text(text="hello"))
    desk.stored = sealed.envelope
    with pytest.raises(RelayError):
        desk.outbox.post(sealed)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (RelayError(507, "full", "x"), RelayError),
        (RelayError(403, "policy", "x"), RelayError),
        (RelayError(413, "too_large", "x"), RelayError),
        (RelayError(401, "unauthorized", "x"), SessionClosed),
        (RelayError(404, "not_found", "x"), SessionClosed),
        (RelayError(410, "gone", "x"), SessionClosed),
        (ConnectionLost("x", code="tls"), ConnectionLost),
        (ConnectionLost("x", code="closed"), ConnectionLost),
    ],
)
def test_what_waiting_does_not_mend_is_not_repeated(
    tmp_path: Path, answer: Exception, error: type[Exception]
) -> None:
    desk = Desk(tmp_path, answer)
    with pytest.raises(error):
        desk.outbox.post(desk.outbox.seal(Text(text="hello")))
    assert len(desk.relay.frames) == 1


def test_trying_ends_with_its_time(tmp_path: Path) -> None:
    desk = Desk(tmp_path, *[LOST] * 10_000)
    with pytest.raises(ConnectionLost):
        desk.outbox.post(desk.outbox.seal(Text(text="hello")), timeout_s=0.05)


def test_trying_ends_when_it_is_closed(tmp_path: Path) -> None:
    desk = Desk(tmp_path, LOST, None)
    desk.relay.closed = True
    with pytest.raises(ConnectionLost):
        desk.outbox.post(desk.outbox.seal(Text(text="hello")))
    assert len(desk.relay.frames) == 1


class TestEpochs:
    """P-EPO-5: what the relay refuses for its epoch is sealed anew, once it has said why."""

    def desk(
        self, folder: Path, *answers: Exception | int | None, news: int
    ) -> tuple[Desk, Epochs]:
        desk = Desk(folder, *answers, epochs=True)
        epochs = Epochs(desk.world)
        for role in (Role.OBSERVER, Role.RUNNER)[:news]:
            epochs.begin(role)
        desk.news = epochs.documents
        return desk, epochs

    @pytest.mark.parametrize("begun", [1, 2])
    def test_with_the_same_id_place_and_time(self, tmp_path: Path, begun: int) -> None:
        desk, epochs = self.desk(tmp_path, *[OLD_EPOCH] * begun, None, news=begun)
        sealed = desk.outbox.seal(Text(text="hello"))
        ref = desk.outbox.post(sealed)
        documents = [parse_frame(frame)[0] for frame in desk.relay.frames]
        headers = [parse_envelope(document).header for document in documents]
        assert [header.epoch_number for header in headers] == list(range(begun + 1))
        same = {msgspec.structs.replace(header, epoch=msgspec.UNSET) for header in headers}
        assert len(same) == 1
        blob = parse_frame(desk.relay.frames[-1])[1]
        key = epochs.owner.current()[1]
        payload = open_item(parse_envelope(documents[-1]), blob, key)
        assert decode_payload(payload, full=True)[0] == Text(text="hello")
        assert ref.id == sealed.ref.id
        assert ref.blob_sha256 == hash_of(blob)
        assert desk.cache.load_blob(ref.id, len(blob)) == blob
        assert linked(desk.outbox.seal(Text(text="next")))[0] == ref

    def test_a_relay_that_shows_no_newer_one_has_refused(self, tmp_path: Path) -> None:
        desk, _ = self.desk(tmp_path, OLD_EPOCH, news=0)
        with pytest.raises(RelayError) as caught:
            desk.say("hello")
        assert caught.value.code == "old_epoch"
        assert len(desk.relay.frames) == 1

    def test_nothing_is_sealed_by_who_was_cut_off(self, tmp_path: Path) -> None:
        desk, epochs = self.desk(tmp_path, OLD_EPOCH, news=0)
        epochs.begin(Role.SENDER)
        desk.news = epochs.documents
        with pytest.raises(DecryptError) as caught:
            desk.say("hello")
        assert caught.value.code == "cut_off"
        with pytest.raises(DecryptError):
            desk.outbox.seal(Text(text="again"))

    def test_what_is_known_to_be_too_late_is_not_shown_to_the_relay(self, tmp_path: Path) -> None:
        desk, epochs = self.desk(tmp_path, None, None, news=1)
        posted, spooled = (desk.outbox.seal(Text(text=text)) for text in ("a", "b"))
        desk.me.keys.learn_all(epochs.documents)
        desk.outbox.post(posted)
        with pytest.raises(RelayError) as caught:
            desk.outbox.post_frame(spooled.frame())
        assert caught.value.code == "old_epoch"
        renewed = desk.outbox.renew_frame(spooled.frame(), {}, caught.value)
        desk.outbox.post_frame(renewed.frame())
        documents = [parse_frame(frame)[0] for frame in desk.relay.frames]
        assert [parse_envelope(each).header.epoch_number for each in documents] == [1, 1]

    def test_what_the_relay_had_before_is_not_sealed_anew(self, tmp_path: Path) -> None:
        desk, epochs = self.desk(tmp_path, news=1)
        sealed = desk.outbox.seal(Text(text="a"))
        desk.stored = sealed.envelope
        desk.me.keys.learn_all(epochs.documents)
        desk.outbox.post_frame(sealed.frame())
        assert desk.outbox.post(sealed) == sealed.ref
        assert desk.relay.frames == []
        assert linked(desk.outbox.seal(Text(text="b")))[0] == sealed.ref

    def test_a_job_is_named_as_it_is_then(self, tmp_path: Path) -> None:
        desk, _ = self.desk(tmp_path, OLD_EPOCH, 7, news=1)
        job = ShellJob(command=("true",), files=(), memory_mb=None, target=AnyRunner(), timeout_s=1)
        sealed = desk.outbox.seal(job, subkind="sh")
        ref, given = desk.outbox.post_job(sealed, TARGET)
        assert given.seq == 7
        assert ref == ItemRef(
            blob_sha256=hash_of(parse_frame(desk.relay.frames[-1])[1]), id=sealed.ref.id
        )


class TestJobs:
    def job(self, desk: Desk, **changes: Any) -> Any:
        values: dict[str, Any] = {
            "code": "1",
            "filename": "main.py",
            "files": (),
            "memory_mb": None,
            "requirements": (),
            "runtime": "python3.12",
            "target": AnyRunner(),
            "timeout_s": 5,
        }
        return desk.outbox.seal(PythonJob(**(values | changes)), subkind="py")

    def test_the_runner_it_went_to(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, 7)
        assert desk.outbox.post_job(self.job(desk), TARGET)[1].runner == "key"

    def test_a_lost_answer_is_asked_for(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, LOST, DUPLICATE)
        sealed = self.job(desk)
        desk.stored = sealed.envelope
        assert desk.outbox.post_job(sealed, TARGET)[1].runner == "key"

    def test_a_lost_answer_that_the_job_waits(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, LOST, DUPLICATE)
        desk.relay.status = JobStatus(state="queued", reason="busy", place=3)
        sealed = self.job(desk)
        desk.stored = sealed.envelope
        _, given = desk.outbox.post_job(sealed, TARGET, wait_s=60)
        assert (given.runner, given.status) == (None, desk.relay.status)

    def test_a_lost_refusal_too(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, LOST, DUPLICATE)
        desk.relay.status = JobStatus(state="failed", reason="no_runner_available")
        sealed = self.job(desk)
        desk.stored = sealed.envelope
        with pytest.raises(RelayError) as caught:
            desk.outbox.post_job(sealed, TARGET)
        assert caught.value.code == "no_runner_available"

    @pytest.mark.parametrize(
        "changes",
        [{"timeout_s": 61}, {"runtime": "python3.11"}, {"cwd": "sub"}, {"code": "x" * 2**21}],
    )
    def test_an_invalid_one_is_never_sealed(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        desk = Desk(tmp_path)
        with pytest.raises((PolicyError, ValidationError)):
            self.job(desk, **changes)


def test_what_readers_would_refuse_is_never_sealed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for meta, body, subkind in (
        (File(mime="text/markdown", name="a.md"), b"\xff", "md"),
        (File(mime="text/markdown", name="a.py"), b"x", "md"),
        (File(mime="application/zip", name="a.zip"), b"PK", "zip"),
        (File(mime="text/x-python", name=".a.py"), b"x", "py"),
        (Text(text="x" * 2_000_000), b"", None),
    ):
        with pytest.raises((PolicyError, ValidationError)):
            desk.outbox.seal(meta, body, subkind=subkind)


def test_nonces_and_ids_are_fresh(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    sealed = [desk.outbox.seal(Text(text="same")) for _ in range(20)]
    assert len({item.ref.id for item in sealed}) == 20
    assert len({item.blob[:12] for item in sealed}) == 20
    assert os.path.isdir(desk.cache.folder)


def mark_of(sealed: SealedItem) -> Mark:
    mark = read_mark(parse_envelope(sealed.envelope).header)
    assert mark is not None
    return mark


def linked(sealed: SealedItem) -> tuple[ItemRef, int | None]:
    link = mark_of(sealed).link
    assert link is not None
    return link.ref, link.seq


class TestChain:
    """[P-CHN-1] What an item says of those that were acknowledged before it."""

    def test_an_item_links_to_the_last_one_that_was_acknowledged(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, 3, LOST, 8, None)
        first, second, third = desk.say("a"), desk.say("b"), desk.say("c")
        assert mark_of(first).link is None
        assert linked(second) == (first.ref, 3)
        assert linked(third) == (second.ref, 8)
        assert parse_envelope(third.envelope).header.refs == (second.ref,)
        assert linked(desk.outbox.seal(Text(text="d"))) == (third.ref, None)

    def test_what_was_not_acknowledged_is_not_linked_to(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, 3, RelayError(507, "full", "x"), 4)
        first = desk.say("a")
        with pytest.raises(RelayError):
            desk.say("b")
        assert linked(desk.say("c")) == (first.ref, 3)

    def test_the_link_outlives_the_process(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, 3)
        first = desk.say("a")
        assert linked(desk.another_process().seal(Text(text="b"))) == (first.ref, 3)

    def test_what_processes_posted_side_by_side_is_joined_by_the_next(self, tmp_path: Path) -> None:
        desk, chosen = Desk(tmp_path, 3, 4, 5, 6), ref()
        first, other = desk.say("a"), desk.another_process()
        mine, theirs = desk.outbox.seal(Text(text="b")), other.seal(Text(text="c"))
        desk.outbox.post(mine)
        other.post(theirs)
        assert linked(mine) == linked(theirs) == (first.ref, 3)
        joining = desk.say("d", chosen)
        assert parse_envelope(joining.envelope).header.refs == (chosen, mine.ref, theirs.ref)
        assert chosen_refs(parse_envelope(joining.envelope).header) == (chosen,)
        assert linked(joining) == (theirs.ref, 5)
        assert parse_envelope(desk.outbox.seal(Text(text="e")).envelope).header.refs == (
            joining.ref,
        )

    def test_a_job_is_linked_to_as_well(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, 3)
        job = TestJobs().job(desk)
        desk.outbox.post_job(job, TARGET)
        assert linked(desk.outbox.seal(Text(text="b"))) == (job.ref, 3)

    def test_a_frame_from_the_spool_is_linked_to_as_well(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, 3)
        sealed = desk.outbox.seal(Text(text="a"))
        desk.outbox.post_frame(sealed.frame())
        assert linked(desk.outbox.seal(Text(text="b"))) == (sealed.ref, 3)

    def test_only_references_to_known_items_are_vouched_for(self, tmp_path: Path) -> None:
        desk, chosen = Desk(tmp_path, 3), ref()
        own = desk.say("a")
        assert mark_of(desk.outbox.seal(Text(text="b"), refs=(own.ref,))).knows
        assert not mark_of(desk.outbox.seal(Text(text="b"), refs=(own.ref, chosen))).knows
        desk.known.add(chosen.id)
        assert mark_of(desk.outbox.seal(Text(text="b"), refs=(own.ref, chosen))).knows

    def test_no_post_fails_because_its_link_cannot_be_kept(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, 3, 4)
        Path(desk.cache.folder, "state").write_text("in the way")
        first = desk.say("a")
        assert linked(desk.say("b")) == (first.ref, 3)


def ref() -> ItemRef:
    """A reference to something nobody has."""
    return ItemRef(blob_sha256=os.urandom(32).hex()[:42] + "A", id=new_item_id(os.urandom(16)))
