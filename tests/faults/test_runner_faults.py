"""The runner or the relay dies, or is stopped, in the middle of a job."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox import Session
from airlox.client.cache import SessionCache
from airlox.client.jobs import Job
from airlox.protocol import wire
from support.groups import groups_of
from support.machines import RelayProgram, RunnerProgram
from support.relay import Http

RUNTIME = f"python3.{sys.version_info[1]}"
WAIT_S = 60.0
SANDBOXES = ["process", "local"]


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProgram]:
    with RelayProgram(tmp_path / "relay") as program:
        yield program


@pytest.fixture
def session(relay: RelayProgram, tmp_path: Path) -> Iterator[Session]:
    with session_on(relay, tmp_path) as made:
        yield made


def session_on(relay: RelayProgram, tmp_path: Path) -> Session:
    return Session.create(
        relay.url,
        mode="execute",
        job_limits={"runtime": RUNTIME, "kinds": ["shell"], "approve_runners": False},
        cache_dir=tmp_path / "owner",
    )


def runner_for(session: Session, tmp_path: Path, **options: Any) -> RunnerProgram:
    return RunnerProgram(session.invites["runner"], tmp_path / "runner", **options)


def begun(session: Session, script: str) -> tuple[Job, int]:
    """A job that runs, and the pid its script printed first."""
    job = session.run_shell(f"echo $$\n{script}", runner="box")
    printed = b""
    for piece in job.output(WAIT_S):
        printed += piece.data
        if b"\n" in printed:
            break
    return job, int(printed.split()[0])


def wait_until_gone(marker: str) -> None:
    """Return when no process has `marker` in its command line."""
    until = time.monotonic() + WAIT_S
    while running(marker):
        assert time.monotonic() < until, f"still running: {running(marker)}"
        time.sleep(0.05)


def wait_until_there(marker: str, count: int) -> None:
    """Return when so many processes have `marker` in their command line."""
    until = time.monotonic() + WAIT_S
    while len(running(marker)) < count:
        assert time.monotonic() < until, f"running: {running(marker)}"
        time.sleep(0.01)


def running(marker: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in line and int(entry.name) != os.getpid():
                found.append(entry.name)
    return found


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_runner_killed_in_mid_job_reports_it_when_it_is_back(
    session: Session, tmp_path: Path, sandbox: str
) -> None:
    marker = f"7{os.getpid()}.{SANDBOXES.index(sandbox)}1"
    with runner_for(session, tmp_path, sandbox=sandbox) as runner:
        runner.note("ready")
        job, _ = begun(session, f"(trap '' TERM; setsid sleep {marker} & sleep {marker})")
        wait_until_there(marker, 2)
        killed = runner.pid
        runner.kill()
        wait_until_gone(marker)
        runner.start()
        assert runner.note("job_lost")["job"] == job.id
        result = job.wait(WAIT_S)
        assert (result.status, result.signed) == ("failed", True)
        assert result.cause is not None
        assert result.cause.kind == "runner_lost"
        assert "run it again" in (result.reason or "")
        runner.note("ready")
        assert session.run_shell(["true"], runner="box").wait(WAIT_S).ok
        assert runner.stop() == 0
    for kept in ("run", "jobs", "started", "spool", "trash"):
        assert list(tmp_path.glob(f"runner/runner/ax_*/box/{kept}/*")) == []
    assert groups_of(killed) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_a_runner_killed_between_claim_and_begin_takes_the_job_up_again(
    session: Session, tmp_path: Path
) -> None:
    """Its sender does not wait until the session's time limit for jobs has passed."""
    with runner_for(session, tmp_path) as runner:
        runner.note("ready")
        os.kill(runner.pid, signal.SIGSTOP)
        job = session.run_shell(["true"], runner="box")
        identity = SessionCache(tmp_path / "runner", session.session_id).load_identity("runner-box")
        assert identity is not None
        path = wire.claim(session.session_id, job.id)
        assert Http(session.relay).ask("POST", path, token=identity.token).status < 300
        runner.kill()
        assert job.state().state == "running"
        runner.start()
        assert job.wait(WAIT_S).ok
        assert runner.stop() == 0


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_of_a_runner_that_stays_away_the_sender_hears_from_the_relay(
    tmp_path: Path, sandbox: str
) -> None:
    """And a signed result that comes late, from a runner that is back, still wins."""
    marker = f"7{os.getpid()}.{SANDBOXES.index(sandbox)}2"
    with (
        RelayProgram(tmp_path / "relay", runner_grace_s=1) as relay,
        session_on(relay, tmp_path) as session,
        runner_for(session, tmp_path, sandbox=sandbox) as runner,
    ):
        runner.note("ready")
        job, _ = begun(session, f"sleep {marker}")
        runner.kill()
        wait_until_gone(marker)
        result = job.wait(WAIT_S)
        assert (result.status, result.reason, result.signed) == ("failed", "runner_lost", False)
        runner.start()
        runner.note("job_lost")
        runner.note("ready")
        session.run_shell(["true"], runner="box").wait(WAIT_S)  # what is posted in order
        late = job.result()
        assert late is not None
        assert (late.signed, late.status) == (True, "failed")
        assert late.cause is not None
        assert late.cause.kind == "runner_lost"


def test_a_killed_relay_does_not_stop_the_job_and_its_result_arrives(
    session: Session, relay: RelayProgram, tmp_path: Path
) -> None:
    flag, done = tmp_path / "go-on", tmp_path / "done"
    with runner_for(session, tmp_path) as runner:
        runner.note("ready")
        script = f"until [ -e {flag} ]; do sleep 0.05; done; echo survived; touch {done}"
        job, _ = begun(session, script)
        relay.kill()
        flag.touch()
        runner.note("job_ended")
        assert done.exists()
        relay.start()
        result = job.wait(WAIT_S)
        assert (result.status, result.signed) == ("completed", True)
        assert result.stdout.endswith("survived\n")
        assert runner.stop() == 0


def test_a_result_survives_a_restart_of_the_runner(
    session: Session, relay: RelayProgram, tmp_path: Path
) -> None:
    flag = tmp_path / "go-on"
    with runner_for(session, tmp_path) as runner:
        runner.note("ready")
        script = f"until [ -e {flag} ]; do sleep 0.05; done; echo $AIRLOX_OUT > $AIRLOX_OUT/a"
        job, _ = begun(session, script)
        relay.kill()
        flag.touch()
        runner.note("job_ended")
        runner.kill()
        relay.start()
        runner.start()
        result = job.wait(WAIT_S)
        assert (result.status, result.exit_code) == ("completed", 0)
        assert result.paths() == ["a"]
        assert runner.stop() == 0
        assert runner.notes("job_lost") == []


def test_a_runner_that_joined_before_waits_for_its_relay(
    session: Session, relay: RelayProgram, tmp_path: Path
) -> None:
    with runner_for(session, tmp_path) as runner:
        runner.note("ready")
        assert runner.stop() == 0
        relay.kill()
        runner.start()
        assert "trying again" in runner.note("away")["text"]
        relay.start()
        runner.note("ready")
        assert session.run_shell(["true"], runner="box").wait(WAIT_S).ok
        assert runner.stop() == 0


def test_a_runner_that_never_joined_says_that_its_relay_is_not_there(
    session: Session, relay: RelayProgram, tmp_path: Path
) -> None:
    relay.kill()
    with runner_for(session, tmp_path) as runner:
        assert runner.wait() == 1
    error = runner.notes("error")[0]
    assert error["code"] == "connection_lost"
    assert "check that the address is right and the relay is running" in error["text"]


def test_a_stopped_runner_cancels_its_job_and_reports_it(session: Session, tmp_path: Path) -> None:
    with runner_for(session, tmp_path) as runner:
        runner.note("ready")
        job, _ = begun(session, "sleep 60")
        assert runner.stop() == 0
        result = job.wait(WAIT_S)
        assert (result.status, result.reason) == ("cancelled", "the runner was stopped")
        assert result.signed


def test_two_runners_of_one_name_do_not_share_a_folder(session: Session, tmp_path: Path) -> None:
    with runner_for(session, tmp_path) as runner:
        runner.note("ready")
        with runner_for(session, tmp_path) as second:
            assert second.wait() == 1
        assert second.notes("error")[0]["code"] == "state_in_use"


def test_a_restarted_runner_goes_on_as_the_same_participant(
    session: Session, tmp_path: Path
) -> None:
    with runner_for(session, tmp_path) as runner:
        first = runner.note("joined")["runner"]
        runner.note("ready")
        assert runner.stop() == 0
        runner.start()
        assert runner.note("joined")["runner"] == first
        runner.note("ready")
        assert runner.stop() == 0
    with runner_for(session, tmp_path, labels=["gpu"]) as runner:
        assert runner.note("joined")["runner"] != first, "what was signed at the join has changed"
        runner.note("ready")
        assert runner.stop() == 0
