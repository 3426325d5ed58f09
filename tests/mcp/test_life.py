"""The end of a server: of its input, its parent, its reader; with calls that run or are stuck."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from airlox.mcp.life import END_S
from support.mcp_client import TIMEOUT_S
from support.mcp_raw import RawServer, raw_server

SLACK_S = 30.0
"""For machines under load. That the end takes less than a second is what `END_S` says."""


def slow(value: object) -> object:
    return pytest.param(value, marks=pytest.mark.slow)


# Starts a server, tells its process id, keeps the input open in a sibling, and waits to be killed.
PARENT = """
import subprocess, sys, time
server = subprocess.Popen([sys.executable, "-m", "support.mcp_fixture"], stdin=0, stdout=1)
print("server", server.pid, file=sys.stderr, flush=True)
time.sleep(600)
"""


@pytest.fixture
def server() -> Iterator[RawServer]:
    with raw_server() as running:
        running.call(0, "echo", text="up")
        assert running.answer()["id"] == 0
        yield running


def ended(process: int) -> bool:
    """Whether a process that is not ours to wait for is over."""
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_the_end_is_within_a_second() -> None:
    assert END_S < 1


class TestInput:
    def test_its_end_is_the_end(self, server: RawServer) -> None:
        server.end_input()
        server.said("desk closed")
        assert server.process.wait(TIMEOUT_S) == 0

    def test_calls_are_cancelled(self, server: RawServer) -> None:
        server.call(1, "work")
        server.said("work begun")
        server.end_input()
        server.said("work stopped")
        assert server.process.wait(TIMEOUT_S) == 0

    def test_a_stuck_call_does_not_keep_it(self, server: RawServer) -> None:
        server.call(1, "stuck")
        server.said("stuck")
        server.end_input()
        assert server.process.wait(SLACK_S) == 0


class TestOutput:
    def test_nobody_reads_it(self) -> None:
        """A full pipe holds up neither reading nor the end."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        try:
            while True:
                os.write(writing, b"x" * 65536)
        except BlockingIOError:
            os.set_blocking(writing, True)
        with raw_server(stdout=writing) as deaf:
            os.close(writing)
            deaf.call(1, "child")
            deaf.said("a stray child")
            deaf.end_input()
            assert deaf.process.wait(SLACK_S) == 0
        os.close(reading)

    def test_its_reader_leaves(self) -> None:
        reading, writing = os.pipe()
        with raw_server(stdout=writing) as left:
            os.close(writing)
            os.close(reading)
            left.call(1, "echo", text="anybody?")
            assert left.process.wait(TIMEOUT_S) == 0


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, slow(signal.SIGINT)])
    def test_end_it(self, server: RawServer, number: int) -> None:
        server.call(1, "work")
        server.said("work begun")
        server.process.send_signal(number)
        server.said("work stopped")
        assert server.process.wait(TIMEOUT_S) == 0


class TestParent:
    @pytest.mark.parametrize("tool", [None, slow("work"), slow("stuck")])
    def test_its_death_is_the_end_also_while_another_holds_the_input(
        self, tool: str | None
    ) -> None:
        """This test holds the input open, as a sibling that inherited the pipe would."""
        with raw_server([sys.executable, "-c", PARENT]) as parent:
            assert parent.err is not None
            line = parent.err.until(lambda line: line.startswith(b"server "))
            server = int(line.split()[1])
            parent.call(0, "echo", text="up")
            assert parent.answer()["id"] == 0
            if tool is not None:
                parent.call(1, tool)
                parent.err.until(lambda line: line.startswith(tool.encode()))
            parent.process.send_signal(signal.SIGKILL)
            parent.process.wait(TIMEOUT_S)
            wait_for(lambda: ended(server))

    def test_its_death_before_the_server_is_up(self) -> None:
        with raw_server([sys.executable, "-c", PARENT]) as parent:
            assert parent.err is not None
            line = parent.err.until(lambda line: line.startswith(b"server "))
            parent.process.send_signal(signal.SIGKILL)
            parent.process.wait(TIMEOUT_S)
            parent.end_input()
            wait_for(lambda: ended(int(line.split()[1])))
