"""Launchers that wait for orders: how many, what they hold, and that they end with their runner.

What they build when the orders come is what every other test of the sandbox looks at.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from airlox.sandbox import proctable
from airlox.sandbox.linux.launch import Own
from support import sandbox
from support.relay import until

WITHIN_S = 60.0
RUNNER = """
import sys
from airlox.sandbox.linux.launch import Own
own = Own()
own.keep_ready(2)
print("kept", flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="launchers are Linux's")


def children() -> list[int]:
    return [p.pid for p in proctable.all_processes() if p.parent == os.getpid()]


@pytest.fixture
def own() -> Iterator[Own]:
    own = Own()
    yield own
    own.keep_ready(0)


def test_as_many_wait_as_were_asked_for(own: Own) -> None:
    before = len(children())
    for starts, waiting in ((2, 2), (3, 3), (1, 3), (0, 0)):
        own.keep_ready(starts)
        assert len(children()) - before == waiting


def test_one_that_waits_holds_its_own_ends_and_nothing_else(own: Own) -> None:
    """Whatever is open here when it starts, inheritable or not, and whatever the others hold."""
    secret = os.memfd_create("secret")
    os.set_inheritable(secret, True)
    before = children()
    try:
        own.keep_ready(2)
        for pid in set(children()) - set(before):
            wanted = ["/dev/null"] * 2 + ["/memfd"] + ["pipe"] * 3 + ["socket"]
            # While the interpreter starts it looks through folders of its own.
            until(partial(holds, pid, wanted), "a launcher that waits")
            assert not any("secret" in link for link in held_by(pid))
    finally:
        os.close(secret)


def held_by(pid: int) -> list[str]:
    """What the descriptors of a process lead to."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(path))
    return found


def holds(pid: int, kinds: list[str]) -> bool:
    """Whether a process holds exactly descriptors of these kinds."""
    return sorted(link.partition(":")[0].partition(" ")[0] for link in held_by(pid)) == kinds


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_none_outlives_its_runner(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as runner:
        assert runner.stdout is not None
        try:
            assert runner.stdout.readline() == b"kept\n"
            waiting = [p.pid for p in proctable.all_processes() if p.parent == runner.pid]
            ends = [os.pidfd_open(pid) for pid in waiting]
        finally:
            runner.send_signal(number)
    try:
        assert len(ends) == 2
        for fd in ends:
            assert _gone(fd)
    finally:
        for fd in ends:
            os.close(fd)


def test_one_that_ended_while_it_waited_is_passed_over() -> None:
    assert sandbox.run("tell('ran')", builder="own", strike_ready=True).words == ["ran"]


def _gone(pid_fd: int) -> bool:
    poll = select.poll()
    poll.register(pid_fd, select.POLLIN)
    return bool(poll.poll(WITHIN_S * 1000))
