"""Live output in a reader's hands: forged, repeated, missing and garbled segments."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from airlox.client import follow
from airlox.client.deadline import Deadline
from airlox.client.follow import Follower, Output
from airlox.errors import ConnectionLost, RelayError, SessionClosed, ValidationError
from airlox.protocol.item import ItemRef
from airlox.protocol.job import Cause, CauseKind, LiveTotals
from airlox.protocol.keys import Role
from airlox.protocol.live import LiveWriter, Piece
from airlox.protocol.sse import SseEvent
from support.world import Person, World


class Desk:
    """A follower of one job, with a writer as its runner has it."""

    def __init__(self) -> None:
        self.world = World(full=True)
        self.runner = self.world.person(Role.RUNNER, "box")
        self.ref = ItemRef(blob_sha256="A" * 43, id="A" * 22)
        self.approved = True
        self.synced: Callable[[], None] = lambda: None
        self.warnings: list[str] = []
        core: Any = SimpleNamespace(
            api=SimpleNamespace(scope=lambda deadline: None),
            manifest=self.world.manifest,
            membership=SimpleNamespace(keys=self.world.keyring()),
            timeline=SimpleNamespace(
                read=lambda ask: self.approved, sync=lambda kinds, api: self.synced()
            ),
            on_warning=self.warnings.append,
        )
        job: Any = SimpleNamespace(
            id=self.ref.id,
            ref=self.ref,
            runner=self.runner.public,
            upload=None,
            note=lambda status: status,
        )
        self._of = (core, job)
        self.start(0)

    def start(self, from_byte: int) -> None:
        """Begin to read anew, from a byte on."""
        self.follower = Follower(*self._of, Deadline.after(60), from_byte)

    def writer(self, person: Person | None = None) -> LiveWriter:
        return LiveWriter(
            (person or self.runner).key,
            self.world.keys.session_key,
            self.world.keys.session_id,
            self.ref,
            os.urandom(16),
        )

    def read(self, frame: bytes) -> list[Output]:
        return self.feed(event(frame).data)

    def feed(self, data: str) -> list[Output]:
        return list(self.follower._segment(SseEvent(None, "segment", data)))


def event(frame: bytes) -> SseEvent:
    """A segment as the relay tells it."""
    text = json.dumps({"frame": base64.b64encode(frame).decode()})
    return SseEvent(None, "segment", text)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def segments(writer: LiveWriter, count: int) -> list[bytes]:
    frames = []
    for number in range(count):
        frame, writer = writer.write([Piece(1 + number % 2, f"{number}\n".encode())])
        frames.append(frame)
    return frames


def test_pieces_in_order_each_once(desk: Desk) -> None:
    first, second, third = segments(desk.writer(), 3)
    got = [desk.read(frame) for frame in (first, first, second, first, third)]
    out, err = Output("stdout", b"0\n", 0), Output("stderr", b"1\n", 2)
    assert got == [[out], [], [err], [], [Output("stdout", b"2\n", 4)]]
    assert desk.warnings == []


def test_after_a_broken_line_it_goes_on_at_the_byte(desk: Desk) -> None:
    assert desk.follower._place()[2] is None
    desk.read(segments(desk.writer(), 1)[0])
    assert desk.follower._place()[2] == 2


def test_a_gap_is_told_and_what_follows_is_read(desk: Desk) -> None:
    first, _, third, fourth = segments(desk.writer(), 4)
    assert desk.read(first) == [Output("stdout", b"0\n", 0)]
    assert desk.read(third) == [Output("stdout", b"2\n", 4)]
    assert desk.read(fourth) == [Output("stderr", b"3\n", 6)]
    assert len(desk.warnings) == 1
    assert "missed" in desk.warnings[0]


def test_a_later_start_is_no_gap(desk: Desk) -> None:
    assert desk.read(segments(desk.writer(), 3)[2]) == [Output("stdout", b"2\n", 4)]
    assert desk.warnings == []


class TestFromAByte:
    """A reader that has the beginning, and one that asks for what is there now."""

    @pytest.mark.parametrize(
        ("byte", "got"),
        [
            (0, [(b"0\n", 0), (b"1\n", 2), (b"2\n", 4)]),
            (2, [(b"1\n", 2), (b"2\n", 4)]),
            (3, [(b"\n", 3), (b"2\n", 4)]),
            (6, []),
            (99, []),
        ],
    )
    def test_what_comes_before_is_left_out(
        self, desk: Desk, byte: int, got: list[tuple[bytes, int]]
    ) -> None:
        desk.start(byte)
        assert desk.follower._place()[2] == (byte or None)
        pieces = [Piece(1, b"0\n"), Piece(2, b"1\n"), Piece(1, b"2\n")]
        frame, _ = desk.writer().write(pieces)
        assert [(output.data, output.offset) for output in desk.read(frame)] == got

    def test_held_asks_until_there_is_no_more(self, desk: Desk) -> None:
        frames = segments(desk.writer(), 3)
        asked = []

        def news(job: str, from_byte: int | None) -> list[SseEvent]:
            asked.append(from_byte)
            return [event(frame) for frame in frames[len(asked) - 1 : len(asked)]]

        desk.start(1)
        desk.follower._api = SimpleNamespace(job_news=news)  # type: ignore[assignment]
        assert [output.offset for output in desk.follower.held()] == [1, 2, 4]
        assert asked == [1, 2, 4, 6]

    def test_held_ends_though_the_job_prints_faster_than_it_is_read(self, desk: Desk) -> None:
        writer = desk.writer()

        def news(job: str, from_byte: int | None) -> list[SseEvent]:
            nonlocal writer
            frame, writer = writer.write([Piece(1, b"x")])
            return [event(frame)]

        desk.follower._api = SimpleNamespace(job_news=news)  # type: ignore[assignment]
        assert len(list(desk.follower.held())) == follow.ROUNDS

    def test_held_without_live_output(self, desk: Desk) -> None:
        def news(job: str, from_byte: int | None) -> list[SseEvent]:
            raise SessionClosed("gone", code="session_gone")

        desk.follower._api = SimpleNamespace(job_news=news)  # type: ignore[assignment]
        assert list(desk.follower.held()) == []
        assert "no live output" in desk.warnings[0]


def test_segments_by_others_are_refused(desk: Desk) -> None:
    other = desk.world.person(Role.RUNNER, "other")
    sender = desk.world.person(Role.SENDER)
    for person in (other, sender):
        assert desk.read(segments(desk.writer(person), 1)[0]) == []
    assert len(desk.warnings) == 2
    assert desk.read(segments(desk.writer(), 1)[0]) != []


def test_a_runner_that_is_not_approved_is_not_heard(desk: Desk) -> None:
    desk.approved = False
    assert desk.read(segments(desk.writer(), 1)[0]) == []
    assert "not approve" in desk.warnings[0]


def test_a_runner_that_is_cut_off_meanwhile_is_heard_no_longer(desk: Desk) -> None:
    """P-EPO-4: though its segments are chained to what was read before."""
    first, second = segments(desk.writer(), 2)
    assert desk.read(first)
    desk.approved = False
    assert desk.read(second) == []
    assert "cut off" in desk.warnings[0]


class TestTheResult:
    """[P-LIV-2] What the signed result names is compared with what came."""

    def end(
        self,
        desk: Desk,
        writer: LiveWriter,
        cause: CauseKind = CauseKind.EXIT,
        **changes: Any,
    ) -> list[str]:
        """The warnings once a result has come that names this writer's output."""
        totals = {
            "dropped_bytes": 0,
            "head": writer.head,
            "segments": writer.n,
            "stderr_bytes": 0,
            "stdout_bytes": writer.offset,
        }
        live = LiveTotals(**(totals | changes))
        final = SimpleNamespace(live=live, runner=desk.runner.public, cause=Cause(kind=cause))
        desk.follower._job.final = final  # type: ignore[misc, assignment]
        desk.follower._compare()
        return desk.warnings

    def written(self, desk: Desk, count: int) -> tuple[list[bytes], LiveWriter]:
        frames, writer = [], desk.writer()
        for number in range(count):
            frame, writer = writer.write([Piece(1, f"{number}\n".encode())])
            frames.append(frame)
        return frames, writer

    def test_all_of_it_came(self, desk: Desk) -> None:
        frames, writer = self.written(desk, 3)
        for frame in frames:
            desk.read(frame)
        assert self.end(desk, writer) == []

    def test_nothing_came(self, desk: Desk) -> None:
        assert self.end(desk, self.written(desk, 3)[1]) == []

    def test_the_end_was_withheld(self, desk: Desk) -> None:
        frames, writer = self.written(desk, 3)
        desk.read(frames[0])
        assert "missing, from byte 2 to 6" in self.end(desk, writer)[0]

    @pytest.mark.parametrize(
        "changes", [{"head": "A" * 43}, {"stdout_bytes": 5}, {"segments": 1}, {"segments": 2**31}]
    )
    def test_another_output_is_named(self, desk: Desk, changes: dict[str, Any]) -> None:
        frames, writer = self.written(desk, 2)
        for frame in frames:
            desk.read(frame)
        assert len(self.end(desk, writer, **changes)) == 1

    def test_a_runner_that_was_killed_knows_nothing_of_what_came(self, desk: Desk) -> None:
        frames, _ = self.written(desk, 2)
        desk.read(frames[0])
        assert self.end(desk, desk.writer(), CauseKind.RUNNER_LOST) == []

    def test_it_was_another_runner_s(self, desk: Desk) -> None:
        other = desk.world.person(Role.RUNNER, "other")
        frames, writer = self.written(desk, 2)
        desk.read(frames[0])
        desk.runner = other
        assert "not the one" in self.end(desk, writer)[0]


class TestWhatASilentStreamDidNotBring:
    """The stream fell silent, and the job has ended: what the relay still has is asked for."""

    def ask(self, desk: Desk, total: LiveWriter, *answers: list[bytes] | Exception) -> list[int]:
        """Take in the rest of the output; the bytes it was asked for from."""
        left, asked = list(answers), []

        def job_news(job: str, from_byte: int) -> list[SseEvent]:
            asked.append(from_byte)
            answer = left.pop(0) if left else []
            if isinstance(answer, Exception):
                raise answer
            texts = [json.dumps({"frame": base64.b64encode(f).decode()}) for f in answer]
            return [SseEvent(None, "job", "{}"), *(SseEvent(None, "segment", t) for t in texts)]

        live = LiveTotals(
            dropped_bytes=0,
            head=total.head,
            segments=total.n,
            stderr_bytes=0,
            stdout_bytes=total.offset,
        )
        job: Any = desk.follower._job
        api: Any = SimpleNamespace(job_news=job_news)
        job.final, desk.follower._api = SimpleNamespace(live=live), api
        self.got = [output.data for output in desk.follower._rest()]
        return asked

    def written(self, desk: Desk) -> tuple[list[bytes], LiveWriter]:
        frames, writer = [], desk.writer()
        for number in range(4):
            frame, writer = writer.write([Piece(1, f"{number}\n".encode())])
            frames.append(frame)
        return frames, writer

    def test_it_comes_in_as_many_answers_as_it_takes(self, desk: Desk) -> None:
        frames, writer = self.written(desk)
        desk.read(frames[0])
        assert self.ask(desk, writer, frames[1:3], frames[3:]) == [2, 6]
        assert self.got == [b"1\n", b"2\n", b"3\n"]
        assert desk.warnings == []

    def test_nothing_is_asked_for_where_all_or_nothing_came(self, desk: Desk) -> None:
        frames, writer = self.written(desk)
        assert self.ask(desk, writer) == []
        for frame in frames:
            desk.read(frame)
        assert self.ask(desk, writer) == []

    def test_one_that_has_no_more_or_repeats_itself_is_not_asked_again(self, desk: Desk) -> None:
        frames, writer = self.written(desk)
        desk.read(frames[0])
        assert self.ask(desk, writer) == [2]
        assert self.ask(desk, writer, frames[:1] * 3, frames) == [2]
        assert self.got == []

    @pytest.mark.parametrize(
        "failure",
        [
            ConnectionLost("gone"),
            RelayError(404, "not_found", "no"),
            SessionClosed("over"),
            ValidationError("no answer"),
        ],
    )
    def test_one_that_does_not_answer_ends_no_wait_otherwise(
        self, desk: Desk, failure: Exception
    ) -> None:
        frames, writer = self.written(desk)
        desk.read(frames[0])
        assert self.ask(desk, writer, failure) == [2]


class TestQuestions:
    """What a runner asks of a tree, and what becomes of the wait."""

    class Upload:
        def __init__(self, *failures: Exception) -> None:
            self.failures = iter(failures)
            self.asked: list[tuple[bytes, str]] = []

        def answer(self, sealed: bytes, runner: str, api: object) -> None:
            self.asked.append((sealed, runner))
            for failure in self.failures:
                raise failure

    def ask(self, desk: Desk, upload: Upload, data: str = '{"lack":"AAAA"}') -> None:
        desk.follower._job.upload = upload  # type: ignore[misc, assignment]
        desk.follower._answer(SseEvent(None, "lack", data))

    def test_the_job_s_runner_is_answered(self, desk: Desk) -> None:
        upload = self.Upload()
        self.ask(desk, upload)
        assert upload.asked == [(b"\0\0\0", desk.runner.public)]
        assert desk.warnings == []

    def test_one_that_the_owner_did_not_approve_gets_nothing(self, desk: Desk) -> None:
        """[P-TRE-2] The relay names the runner of a job for anybody: it may name whom it likes."""
        desk.approved = False
        upload = self.Upload()
        self.ask(desk, upload)
        assert upload.asked == []
        assert "not approve" in desk.warnings[0]

    @pytest.mark.parametrize(
        "failure",
        [
            RelayError(404, "not_found", "the job has ended"),
            ConnectionLost("cut"),
            ValidationError("no question"),
        ],
    )
    def test_an_answer_that_fails_ends_no_wait(self, desk: Desk, failure: Exception) -> None:
        upload = self.Upload(failure)
        self.ask(desk, upload)
        assert len(desk.warnings) == 1

    @pytest.mark.parametrize("data", ["", "{}", '{"lack":"é"}', '{"lack":"AA=="}', "[" * 99_999])
    def test_nonsense(self, desk: Desk, data: str) -> None:
        upload = self.Upload()
        self.ask(desk, upload, data)
        assert upload.asked == []

    def test_complaints_have_an_end(self, desk: Desk) -> None:
        for _ in range(1000):
            desk.feed("nonsense")
            self.ask(desk, self.Upload(), "nonsense")
        assert len(desk.warnings) == follow.WARNINGS


def test_an_approval_that_has_just_been_given_counts(desk: Desk) -> None:
    desk.approved = False

    def approve() -> None:
        desk.approved = True

    desk.synced = approve
    assert desk.read(segments(desk.writer(), 1)[0]) != []


def test_any_changed_byte_is_refused(desk: Desk) -> None:
    [frame] = segments(desk.writer(), 1)
    for at in range(4, len(frame), 7):
        changed = frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]
        assert desk.read(changed) == []
    assert desk.read(frame) == [Output("stdout", b"0\n", 0)]


@pytest.mark.parametrize(
    "data",
    ["", "{}", '{"frame":5}', '{"frame":"*"}', '{"frame":"é"}', "[" * 99_999, "null"],
)
def test_nonsense_stops_nothing(desk: Desk, data: str) -> None:
    assert desk.feed(data) == []
    assert len(desk.warnings) == 1
    assert desk.read(segments(desk.writer(), 1)[0]) != []
