"""A relay that lies about jobs that wait: never given, told of without end, given days late."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox import Session, WaitTimeout
from airlox.client import jobs, membership, outbox, submission
from airlox.client.answers import JobStatus
from airlox.errors import ProtocolError
from support import lying
from support.lying import JOB, JOB_NEWS, JOB_STREAM, LyingRelay, Told
from support.machines import RunnerProgram
from support.relay import RelayThread

WAIT_S = 60.0
PATIENT_S = 60.0
HOUR_MS = 3_600_000


@pytest.fixture
def sender(liar: LyingRelay, tmp_path: Path) -> Iterator[Session]:
    with Session.create(
        liar.base_url,
        mode="execute",
        job_limits={"kinds": ["shell"], "approve_runners": False},
        features=["queue"],
        cache_dir=tmp_path,
    ) as made:
        yield made


def without_states(told: Told) -> list[Told]:
    return [] if told["kind"] == "job" else [told]


def queued(**said: Any) -> lying.Lie:
    return lying.say(200, {"state": "queued", "runner": None, "reason": "busy", **said})


def test_a_job_that_is_never_given(
    sender: Session, liar: LyingRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-QUE-8: by default a wait lasts as long as the job could, and a little longer."""
    monkeypatch.setattr(jobs, "WAIT_BEYOND_LIMIT_S", 0.5)
    liar.lies = {JOB: queued(place=1), JOB_STREAM: lying.stall, JOB_NEWS: lying.say(404)}
    liar.tell = without_states
    job = sender.run_shell("true", queue=1, timeout=1)
    with pytest.raises(WaitTimeout):
        job.wait()
    with pytest.raises(WaitTimeout):
        job.wait(0.1)
    liar.honest()
    ended = job.wait(PATIENT_S)
    assert (ended.signed, ended.reason) == (False, "queue_expired")


@pytest.mark.parametrize(
    "place", [0, -1, 10**15, None], ids=["nothing", "negative", "huge", "none"]
)
def test_places_that_are_none(sender: Session, liar: LyingRelay, place: int | None) -> None:
    job = sender.run_shell("true", queue=60)
    liar.lies[JOB] = queued(place=place, reason="\x1b[2J" + "x" * 9999)
    state = job.state()
    assert (state.waits, state.place) == (True, None)
    assert state.reason is not None
    assert state.reason.isprintable()
    job.cancel()


def test_places_without_end(sender: Session, liar: LyingRelay) -> None:
    """They cost a line each and move no deadline."""
    job = sender.run_shell("true", queue=60)
    event = b'event: job\ndata: {"state":"queued","place":%d}\n\n'
    flood = b"".join(event % n for n in range(1, 200))
    liar.lies[JOB_STREAM] = lying.without_end(lying.STREAM_HEAD, flood)
    told: list[JobStatus] = []
    with pytest.raises(WaitTimeout):
        list(job.output(1.0, on_status=told.append))
    assert told[0].place == 1
    job.cancel()


@pytest.mark.slow
def test_a_job_that_is_given_an_hour_late(
    relay: RelayThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-QUE-2: whoever kept it back, its runner does not begin it."""
    for module in (membership, outbox, submission):
        monkeypatch.setattr(module, "now_ms", lambda: time.time_ns() // 1_000_000 - HOUR_MS)
    with Session.create(
        relay.url,
        mode="execute",
        ttl="3h",
        job_limits={"kinds": ["shell"], "approve_runners": False},
        features=["queue"],
        cache_dir=tmp_path / "owner",
    ) as owner:
        late = owner.run_shell(f"touch {tmp_path}/late", queue=600)
        in_time = owner.run_shell(f"touch {tmp_path}/in-time", queue=7200)
        with RunnerProgram(owner.invites["runner"], tmp_path / "box") as runner:
            runner.note("ready")
            refused = late.wait(WAIT_S)
            assert (refused.status, refused.signed) == ("refused", True)
            assert refused.cause is not None
            assert refused.cause.code == "too_late"
            assert in_time.wait(WAIT_S).ok
    assert sorted(path.name for path in tmp_path.glob("*late")) == []
    assert (tmp_path / "in-time").exists()


def test_a_state_that_no_relay_has(sender: Session, liar: LyingRelay) -> None:
    """What it says instead of an answer to the post is none either."""
    liar.lies[rf"POST {lying._ID}/jobs"] = lying.say(201, {"runner": None, "place": 1})
    with pytest.raises(ProtocolError, match="not what a relay says"):
        sender.run_shell("true", queue=60)
