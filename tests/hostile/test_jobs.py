"""A relay that lies about jobs: results, states, runners and live output that are withheld, forged,
swapped or old. The sender's wait ends in time, with the signed result or with none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from airlox import Session, WaitTimeout
from airlox.client.jobs import Job
from hostile.conftest import Scene
from support import lying
from support.fake_runner import FakeRunner, Task
from support.lying import EVENTS, JOB, JOB_STREAM, RUNNERS, STREAM, Call, LyingRelay, Told
from support.relay import until

PATIENT_S = 60.0


class Desk:
    """A sender who goes through the liar, and a runner on the real relay that waits for its cue."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.liar: LyingRelay = scene.liar
        self.go = threading.Event()
        self.tasks: list[Task] = []
        link = scene.owner.invites["runner"]
        self.runner = FakeRunner(link, scene.folder, self.run)
        self.runner.__enter__()
        self.sender: Session = scene.join("sender")

    def run(self, task: Task) -> None:
        self.tasks.append(task)
        for text in (b"one\n", b"two\n", b"three\n"):
            task.print((1, text))
        assert self.go.wait(PATIENT_S)
        task.finish()

    def job(self, **options: Any) -> Job:
        return self.sender.run_shell("true", runner=self.runner.public, **options)


@pytest.fixture
def desk(scene: Scene) -> Iterator[Desk]:
    made = Desk(scene)
    yield made
    made.go.set()
    made.runner.__exit__(None, None, None)


def output(job: Job) -> bytes:
    return b"".join(piece.data for piece in job.output(PATIENT_S))


def withhold(kind: str) -> lying.Lie:
    """The job's stream without its events of a kind."""

    def change(told: Told) -> list[Told]:
        return [] if told["kind"] == kind else [told]

    return lambda call: call.pass_on_events(change)


def after_first(kind: str) -> lying.Lie:
    """The job's stream with only the first event of a kind."""
    seen: list[Told] = []

    def change(told: Told) -> list[Told]:
        if told["kind"] != kind:
            return [told]
        seen.append(told)
        return [told] if len(seen) == 1 else []

    return lambda call: call.pass_on_events(change)


def test_the_end_of_live_output_is_withheld(desk: Desk) -> None:
    """[P-LIV-2] The signed result says how much there was."""
    desk.liar.lies[JOB_STREAM] = after_first("segment")
    desk.go.set()
    job = desk.job()
    assert output(job) == b"one\n"
    assert job.wait(PATIENT_S).ok
    assert [text for text in desk.sender.warnings if "missing, from byte 4 to 14" in text]


def test_the_command_line_tells_it(desk: Desk) -> None:
    desk.scene.join("sender").disconnect()
    desk.liar.lies[JOB_STREAM] = after_first("segment")
    desk.go.set()
    told = desk.scene.cli("run", "--runner", desk.runner.public, "--", "true", role="sender")
    assert (told.code, told.out) == (0, "one\n")
    assert "the end of the live output is missing" in told.err


def test_segments_swapped_repeated_and_old(desk: Desk) -> None:
    """Live output of an earlier job is nothing of this one's."""
    desk.go.set()
    old: list[Told] = []
    desk.liar.lies[JOB_STREAM] = lambda call: call.pass_on_events(keep)

    def keep(told: Told) -> list[Told]:
        if told["kind"] == "segment":
            old.append(told)
        return [told]

    assert output(desk.job()) == b"one\ntwo\nthree\n"
    assert len(old) == 3

    def mix(told: Told) -> list[Told]:
        return [*old, told, told] if told["kind"] == "segment" else [told]

    desk.liar.lies[JOB_STREAM] = lambda call: call.pass_on_events(mix)
    assert output(desk.job()) == b"one\ntwo\nthree\n"
    assert any("live output was refused" in text for text in desk.sender.warnings)
    assert len(desk.sender.warnings) <= 10


def results_withheld(told: Told) -> list[Told]:
    """Every event but for items with `result` in their envelope."""
    return [] if '"kind":"result"' in told["data"].get("envelope", "") else [told]


@pytest.mark.parametrize("state", ["running", "finished"])
def test_a_result_that_is_withheld(desk: Desk, state: str) -> None:
    """Whatever the state is said to be: without a result or a failure a wait ends in time."""
    desk.liar.tell = results_withheld
    desk.liar.lies = {
        JOB_STREAM: withhold("item"),
        JOB: lying.say(200, {"state": state, "runner": desk.runner.public}),
    }
    desk.go.set()
    job = desk.job()
    with pytest.raises(WaitTimeout) as caught:
        job.wait(1.5)
    assert job.id in str(caught.value)
    desk.liar.honest()
    assert desk.scene.join("sender").job(job.id).wait(PATIENT_S).ok


@pytest.mark.slow
def test_the_command_line_says_that_there_is_none_yet(desk: Desk) -> None:
    desk.scene.join("sender").disconnect()
    desk.liar.tell = results_withheld
    desk.liar.lies = {JOB_STREAM: withhold("item"), JOB: lying.say(200, {"state": "running"})}
    words = ("run", "--wait", "1", "--runner", desk.runner.public, "--", "true")
    told = desk.scene.cli(*words, role="sender")
    assert told.code == 75
    assert "has not ended in the time given" in told.err


def test_a_failure_that_never_was(desk: Desk) -> None:
    """[P-RES-4] The relay's `failed` ends a wait; it is marked, and a signed result wins."""
    desk.liar.lies[JOB] = lying.say(200, {"state": "failed", "reason": "runner_lost"})
    desk.liar.lies[JOB_STREAM] = lying.stall
    desk.liar.lies[STREAM] = lying.stall
    job = desk.job()
    lost = job.result()
    assert lost is not None
    assert (lost.signed, lost.status, lost.exit_code) == (False, "failed", None)
    desk.go.set()
    desk.liar.honest()
    assert job.wait(PATIENT_S).status == "failed"
    until(lambda: job.result() is not lost, "the result")
    late = job.result()
    assert late is not None
    assert late.ok


def test_runners_as_it_likes(desk: Desk) -> None:
    """What a runner is stands in its signed join; the relay's list adds who is there."""

    def lie(call: Call) -> None:
        status, body = call.fetch()
        entries = json.loads(body)["runners"]
        forged = {**entries[0], "signed_join": entries[0]["signed_join"].replace("box", "bax")}
        more = [forged, {}, 5, None, {"signed_join": "[" * 99}, *entries, *entries]
        call.answer(status, {"runners": [*more, {**entries[0], "job": "\x1b[2J" * 99}]})

    desk.liar.lies[RUNNERS] = lie
    [found] = desk.sender.runners()
    assert (found.name, found.participant_pub) == ("box", desk.runner.public)
    told = desk.scene.cli("runner", "list", role="sender")
    assert told.code == 0
    assert "\x1b" not in told.out + told.err


@pytest.mark.parametrize("how", [lying.stall, lying.drip, lying.drip_head])
@pytest.mark.parametrize("what", [STREAM, JOB_STREAM, JOB])
@pytest.mark.slow
def test_a_relay_that_takes_its_time(desk: Desk, what: str, how: lying.Lie) -> None:
    job = desk.job()
    desk.liar.lies[what] = how
    told = desk.scene.victim("wait", 2.0, role="sender")
    assert told.found is None
    assert str(told.failed).startswith("timeout:")
    assert told.took_s < 60
    assert told.peak_mb < 150
    desk.liar.honest()
    desk.go.set()
    assert job.wait(PATIENT_S).ok


@pytest.mark.slow
def test_a_command_ends_by_itself(desk: Desk) -> None:
    """One call may take half a minute, whatever is made of it meanwhile."""
    desk.liar.lies[EVENTS] = lying.stall
    told = desk.scene.cli("items", role="sender")
    assert told.code == 1
    assert "did not answer in the time given" in told.err


JOB_FLOODS = {
    **{name: lying.STREAM_FLOODS[name] for name in ("a line", "comments")},
    "states": lying.without_end(
        lying.STREAM_HEAD, b'event: job\ndata: {"job":"x","state":"running"}\n\n' * 999
    ),
    "segments": lying.without_end(
        lying.STREAM_HEAD, b'event: segment\ndata: {"frame":"AAAA"}\n\n' * 999
    ),
    "questions": lying.without_end(
        lying.STREAM_HEAD, b'event: lack\ndata: {"lack":"AAAA"}\n\n' * 999
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("flood", JOB_FLOODS.values(), ids=JOB_FLOODS)
def test_a_job_s_stream_without_end(desk: Desk, flood: lying.Lie) -> None:
    job = desk.job()
    desk.liar.lies[JOB_STREAM] = flood
    told = desk.scene.victim("wait", 2.0, role="sender")
    assert str(told.failed).startswith("timeout:")
    assert told.took_s < 60
    assert told.peak_mb < 150
    assert len(told.warnings) < 30
    desk.go.set()
    told = desk.scene.victim("wait", 50.0, role="sender")
    assert told.found == "completed"
    assert job.result() is not None
