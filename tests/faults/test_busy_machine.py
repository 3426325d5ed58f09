"""A job that keeps every core busy, and a session that ends under one: the runner obeys."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.client.jobs import Job
from airlox.client.session import Session
from support import parts
from support.groups import groups_of
from support.machines import RelayProgram, RunnerProgram

RUNTIME = f"python3.{sys.version_info.minor}"
SANDBOXES = ("local", "process")
WAIT_S = 60.0
SPINNERS = 16 * (os.cpu_count() or 1)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    limits = {"runtime": RUNTIME, "kinds": ["shell"], "approve_runners": False}
    with (
        RelayProgram(tmp_path / "relay") as relay,
        Session.create(
            relay.url, mode="execute", job_limits=limits, cache_dir=tmp_path / "owner"
        ) as made,
    ):
        yield made


@pytest.fixture(params=SANDBOXES)
def runner(
    request: pytest.FixtureRequest, session: Session, tmp_path: Path
) -> Iterator[RunnerProgram]:
    if request.param == "local":
        parts.require("user namespaces")
    program = RunnerProgram(
        session.invites["runner"], tmp_path / "runner", sandbox=request.param, concurrency=2
    )
    with program as running:
        running.note("ready")
        yield running


def processes_with(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def begun(session: Session, marker: str, script: str) -> Job:
    """A job that runs, its processes known by a word in their command lines."""
    job = session.run_shell(["sh", "-c", f"echo begun; : {marker}; {script}"], runner="box")
    for piece in job.output(WAIT_S):
        if b"begun" in piece.data:
            return job
    raise AssertionError("the job ended without a word")


def test_other_jobs_and_a_cancel_get_through(session: Session, runner: RunnerProgram) -> None:
    marker = f"spin-{os.getpid()}-{runner.pid}"
    spin = f"i=0; while [ $i -lt {SPINNERS} ]; do (while :; do :; done) & i=$((i+1)); done; wait"
    busy = begun(session, marker, spin)
    assert session.run_shell(["echo", "through"], runner="box").wait(WAIT_S).stdout == "through\n"
    busy.cancel()
    result = busy.wait(WAIT_S)
    assert (result.status, result.signed) == ("cancelled", True)
    assert processes_with(marker) == []


def test_a_session_that_ends_under_a_job_leaves_nothing(
    session: Session, runner: RunnerProgram, tmp_path: Path
) -> None:
    pid = runner.pid
    marker = f"end-{os.getpid()}-{pid}"
    begun(session, marker, "trap '' TERM; sleep 1000; :")
    assert processes_with(marker)
    session.close()
    assert runner.wait() == 0
    assert processes_with(marker) == []
    assert list((tmp_path / "runner/runner").glob("ax_*/box")) == []
    assert groups_of(pid) == []
