"""However a job ends: none of its processes is left, and so none of its namespaces and mounts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airlox.sandbox import proctable
from support import parts, sandbox

LEAVES = """
import signal
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        tell("left")
        time.sleep(1000)
    os._exit(0)
os.wait()
"""
"""A process that left its family and takes no hint."""

Known = set[tuple[int, int]]
"""Processes by pid and start: a pid is used again."""
End = Callable[[float], tuple[str, dict[str, Any]]]
"""What ends a job some seconds after its start: its code, and the rest of the request."""


def below(pid: int) -> Known:
    """A process and all that came of it."""
    found = {process for process in proctable.all_processes() if process.pid == pid}
    found |= set(proctable.below(pid, proctable.all_processes()))
    return {(process.pid, process.start) for process in found}


def still_there(known: Known) -> list[int]:
    processes = ((proctable.find(pid), start) for pid, start in known)
    return [process.pid for process, start in processes if process and process.start == start]


def wait_until_gone(known: Known) -> None:
    """The kernel takes its time over those that were killed."""
    until = time.monotonic() + 60
    while left := still_there(known):
        assert time.monotonic() < until, f"still running: {left}"
        time.sleep(0.02)


def announced(driver: subprocess.Popen[bytes]) -> Known:
    """The processes of a driver once its job has printed something; none when it was over by the
    time that they were looked for."""
    assert driver.stdout is not None
    if b"keeper" not in driver.stdout.readline():
        return set()
    known = below(driver.pid)
    # the driver, a launcher, a keeper, the job, what it left
    return known if len(known) > 3 else set()


@pytest.mark.parametrize("user", sandbox.USERS)
@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (lambda after_s: (f"time.sleep({after_s})", {}), "exit"),
        (lambda after_s: ("time.sleep(1000)", {"limits": {"timeout_s": after_s}}), "time_out"),
        (lambda after_s: ("time.sleep(1000)", {"cancel_after_s": after_s}), "cancelled"),
        (lambda after_s: (f"time.sleep({after_s}); os.kill(os.getpid(), 9)", {}), "signal"),
    ],
    ids=["exit", "time out", "cancel", "signal"],
)
def test_nothing_is_left(user: str, end: End, cause: str) -> None:
    parts.require("linux")
    for after_s in (2.0, 8.0, 32.0):  # more where the machine is slow
        code, request = end(after_s)
        limits = {"grace_s": 0.2, **request.pop("limits", {})}
        with sandbox.started(
            LEAVES + code, user=user, announce=True, limits=limits, **request
        ) as driver:
            if known := announced(driver):
                answer = json.loads(driver.communicate(timeout=60)[0])
                assert answer["cause"] == cause
                wait_until_gone(known)
                return
    pytest.fail("no job was seen before its end")


@pytest.mark.parametrize("user", sandbox.USERS)
def test_nothing_is_left_by_a_runner_that_was_killed(user: str) -> None:
    parts.require("linux")
    with sandbox.started(LEAVES + "time.sleep(1000)", user=user, announce=True) as driver:
        known = announced(driver)
        assert known
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait(60)
        wait_until_gone(known)


def test_no_mount_reaches_the_machine() -> None:
    """What a sandbox mounts is mounted in namespaces of its own."""
    parts.require("linux")
    with sandbox.started(LEAVES + "time.sleep(1000)", announce=True) as driver:
        assert announced(driver)
        assert "airlox-case" not in Path("/proc/self/mountinfo").read_text()
