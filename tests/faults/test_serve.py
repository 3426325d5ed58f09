"""`airlox runner serve` as a program: what becomes of it and of its jobs when parts are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airlox.client.jobs import Job
from airlox.client.session import Session
from support.commands import TIMEOUT_S, Cli, read_note
from support.machines import RelayProgram

RUNTIME = f"python3.{sys.version_info.minor}"
WORDS = ("runner", "serve", "--json", "--name", "box", "--sandbox", "process")


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProgram]:
    with RelayProgram(tmp_path / "relay") as program:
        yield program


@pytest.fixture
def session(relay: RelayProgram, tmp_path: Path) -> Iterator[Session]:
    with Session.create(
        relay.url,
        mode="execute",
        job_limits={"runtime": RUNTIME, "kinds": ["shell"], "approve_runners": False},
        cache_dir=tmp_path / "owner",
    ) as made:
        yield made


@contextmanager
def serving(session: Session, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    person = Cli("", tmp_path / "runner", invite=session.invites["runner"])
    with person.started(*WORDS, stderr=None) as process:
        yield process


def begun(session: Session) -> Job:
    """A job whose program runs, and would for minutes."""
    job = session.run_shell("echo begun; sleep 600", runner="box")
    for piece in job.output(TIMEOUT_S):
        if b"begun" in piece.data:
            return job
    raise AssertionError("the job ended without a word")


def life_of(process: subprocess.Popen[str]) -> int:
    """The pid of the runner that a supervisor has made."""
    (pid,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(pid)


def wait_until_ended(pid: int) -> None:
    until = time.monotonic() + TIMEOUT_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until, f"process {pid} still runs"
        time.sleep(0.05)


def test_a_killed_runner_comes_back_and_reports_what_it_lost(
    session: Session, tmp_path: Path
) -> None:
    with serving(session, tmp_path) as process:
        read_note(process, "ready")
        job = begun(session)
        os.kill(life_of(process), signal.SIGKILL)
        assert "SIGKILL" in read_note(process, "restarting")["text"]
        assert read_note(process, "job_lost")["job"] == job.id
        result = job.wait(TIMEOUT_S)
        assert result.cause is not None
        assert result.cause.kind == "runner_lost"
        assert session.run_shell(["true"], runner="box").wait(TIMEOUT_S).ok
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0


def test_a_runner_whose_supervisor_is_killed_ends_and_reports(
    session: Session, tmp_path: Path
) -> None:
    with serving(session, tmp_path) as process:
        read_note(process, "ready")
        job = begun(session)
        life = life_of(process)
        process.kill()
        assert job.wait(TIMEOUT_S).status == "cancelled"
        wait_until_ended(life)


def test_it_waits_for_a_relay_it_has_never_seen(
    relay: RelayProgram, session: Session, tmp_path: Path
) -> None:
    relay.kill()
    with serving(session, tmp_path) as process:
        assert "trying again" in read_note(process, "restarting")["text"]
        relay.start()
        read_note(process, "ready")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0


def test_it_ends_with_its_session(session: Session, tmp_path: Path) -> None:
    with serving(session, tmp_path) as process:
        read_note(process, "ready")
        session.close()
        assert process.wait(TIMEOUT_S) == 0


def test_a_wrong_link_ends_it_at_once(session: Session, tmp_path: Path) -> None:
    person = Cli("", tmp_path / "runner", invite=session.invites["sender"])
    done = person(*WORDS, code=1)
    assert json.loads(done.err.splitlines()[-1])["code"] == "wrong_role"


def test_what_a_life_starts_does_not_hold_the_link(session: Session, tmp_path: Path) -> None:
    """It comes by a variable, which the processes of jobs must not find anywhere."""
    secret = session.invites["runner"].rpartition("#")[2]
    with serving(session, tmp_path) as process:
        read_note(process, "ready")
        looks = "tr '\\0' '\\n' < /proc/self/environ; env"
        result = session.run_shell(looks, runner="box").wait(TIMEOUT_S)
        assert result.ok
        assert secret not in result.stdout
