"""Limits that a job meets, as its sender reads of them; with a real runner in both sandboxes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox.cli import ending
from airlox.client.jobs import Result
from airlox.client.session import Session
from support import parts
from support.machines import RelayProgram, RunnerProgram, overrun

RUNTIME = f"python3.{sys.version_info.minor}"
WAIT_S = 60.0
MIB = 1 << 20
SESSION_MB = 512
BOMB = "head -c 1000000000 /dev/zero | tail"
"""Without a line's end to go by, the last lines are all of it."""


class Offer:
    """A session, and a runner with one of the sandboxes."""

    def __init__(self, session: Session, sandbox: str) -> None:
        self._session = session
        self.sandbox = sandbox

    def run(self, script: str, **settings: Any) -> Result:
        return self._session.run_shell(script, runner="box", **settings).wait(WAIT_S)


@pytest.fixture(scope="module", params=["local", "process"])
def offer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Offer]:
    if request.param == "local":
        parts.require("user namespaces")
    folder = tmp_path_factory.mktemp("limits")
    limits = {
        "runtime": RUNTIME,
        "kinds": ["shell"],
        "approve_runners": False,
        "memory_mb": SESSION_MB,
    }
    with (
        RelayProgram(folder / "relay") as relay,
        Session.create(
            relay.url, mode="execute", job_limits=limits, cache_dir=folder / "owner"
        ) as session,
        RunnerProgram(
            session.invites["runner"], folder / "runner", sandbox=request.param
        ) as runner,
    ):
        runner.note("ready")
        yield Offer(session, request.param)


def test_memory_of_a_grandchild(offer: Offer) -> None:
    result = offer.run(f"sh -c '{BOMB}'", memory_mb=128)
    assert (result.status, result.signed, result.exit_code) == ("failed", True, None)
    assert result.cause is not None
    assert (result.cause.kind, result.cause.limit) == ("out_of_memory", 128 * MIB)
    assert result.peak is not None
    assert result.peak.memory_bytes >= 100 * MIB
    line = ending.last_line(result)
    assert "killed: out of memory, limit 128 MB, peak 1" in line
    assert "try --memory 256" in line


def test_memory_that_is_all_the_session_allows(offer: Offer) -> None:
    result = offer.run(BOMB)
    assert "which is all the session allows" in ending.last_line(result)


def test_a_job_that_ends_well_without_a_child_that_took_too_much(offer: Offer) -> None:
    result = offer.run(f"{BOMB}; exit 0", memory_mb=128)
    if result.peak is None or result.peak.source != "cgroup":
        assert result.status == "failed"  # a watcher ends the whole job
        return
    assert (result.status, result.exit_code, result.ok) == ("completed", 0, True)
    assert result.peak.oom_kills == 1
    assert "a process was killed for want of memory; try a larger --memory" in (
        ending.last_line(result)
    )


def test_time_with_last_words_and_last_files(offer: Offer, tmp_path: Path) -> None:
    script = "trap 'echo bye; echo kept > $AIRLOX_OUT/last.txt; exit' TERM; sleep 1000 & wait"
    result, limit_s = overrun(lambda limit_s: offer.run(script, timeout=limit_s), "bye\n", 2)
    assert (result.status, result.stdout) == ("timed_out", "bye\n")
    (saved,) = result.save_to(tmp_path)
    assert (saved.name, saved.read_text()) == ("last.txt", "kept\n")
    said = f"time limit of {limit_s} s reached; try --timeout {2 * limit_s}"
    assert said in ending.last_line(result)


def test_limits_are_signed(offer: Offer) -> None:
    result = offer.run("true", memory_mb=128, timeout=30)
    assert result.limits is not None
    assert (result.limits.memory_bytes, result.limits.timeout_s) == (128 * MIB, 30)
    assert result.limits.open_files == 8192


def test_a_share_of_the_processors_is_signed(tmp_path: Path) -> None:
    parts.require("user namespaces")
    limits = {"runtime": RUNTIME, "kinds": ["shell"], "approve_runners": False}
    with (
        RelayProgram(tmp_path / "relay") as relay,
        Session.create(
            relay.url, mode="execute", job_limits=limits, cache_dir=tmp_path / "owner"
        ) as session,
        RunnerProgram(
            session.invites["runner"], tmp_path / "runner", sandbox="local", cpus=0.5
        ) as runner,
    ):
        said = runner.wait_for(lambda line: '"ready"' in line or '"error"' in line, "a word")
        if "cpus_none" in said:
            return  # no control group may be made here: refused at the join, as it must
        result = session.run_shell("true", runner="box").wait(WAIT_S)
        assert result.limits is not None
        assert result.limits.cpus_milli == 500
