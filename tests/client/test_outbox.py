"""Posting until acknowledged: same bytes on every try, never two items, never a false success."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox.client import outbox as outbox_module
from airlox.client.cache import SessionCache
from airlox.client.deadline import Deadline
from airlox.client.membership import Membership
from airlox.client.outbox import Outbox
from airlox.client.relay_api import JobStatus, RelayApi
from airlox.errors import (
    AirloxError,
    ConnectionLost,
    PolicyError,
    RelayError,
    SessionClosed,
    ValidationError,
)
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import parse_frame
from airlox.protocol.job import AnyRunner, PythonJob
from airlox.protocol.keys import Role
from airlox.protocol.payload import File, Text
from support.world import World

LOST = ConnectionLost("cut")
DUPLICATE = RelayError(409, "duplicate", "id used")
TARGET = '{"type":"any"}'


class Relay:
    """Answers posts from a list; None acknowledges. Stands where a RelayApi does."""

    def __init__(self, *answers: Exception | str | None) -> None:
        self._answers: Iterator[Exception | str | None] = iter(answers)
        self.frames: list[bytes] = []
        self.status = JobStatus(state="assigned", runner="key")
        self.closed = False

    def within(self, deadline: Deadline) -> Relay:
        return self

    def pause(self, seconds: float) -> bool:
        return not self.closed

    def end_of_session(self, error: RelayError) -> AirloxError:
        return RelayApi.end_of_session(self, error)  # type: ignore[arg-type]

    session_id = "ax_x"

    def post_item(self, frame: bytes) -> str | None:
        self.frames.append(frame)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def post_job(self, frame: bytes, target: str) -> str | None:
        assert target == TARGET
        return self.post_item(frame)

    def job(self, job: str) -> JobStatus:
        return self.status


class Desk:
    def __init__(self, folder: Path, *answers: Exception | str | None) -> None:
        self.world = World()
        self.sender = self.world.person(Role.SENDER)
        self.relay = Relay(*answers)
        self.cache = SessionCache(folder, self.world.manifest.session_id)
        self.cache.make()
        api: Any = self.relay
        self.me = Membership(
            self.world.invite("https://relay.example", Role.SENDER),
            self.world.manifest,
            self.sender.key,
            api,
            self.cache,
        )
        self.stored: str | None = None
        self.look_ups: Iterator[Exception] = iter(())
        self.warnings: list[str] = []
        self.outbox = Outbox(self.me, self._announced, on_warning=self.warnings.append)

    def _announced(self, item: ItemId, api: RelayApi) -> str | None:
        for failure in self.look_ups:
            raise failure
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
        desk = Desk(tmp_path, "key")
        assert desk.outbox.post_job(self.job(desk), TARGET) == "key"

    def test_a_lost_answer_is_asked_for(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, LOST, DUPLICATE)
        sealed = self.job(desk)
        desk.stored = sealed.envelope
        assert desk.outbox.post_job(sealed, TARGET) == "key"

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
