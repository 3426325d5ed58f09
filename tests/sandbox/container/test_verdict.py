"""How an end in a container is judged."""

from __future__ import annotations

import pytest

from airlox.sandbox.base import Cause, Limits
from airlox.sandbox.container.told import State
from airlox.sandbox.container.verdict import Measured, judge
from airlox.sandbox.supervise import Reason

LIMITS = Limits(timeout_s=1, memory_bytes=64 << 20, processes=30)
EXIT = Reason(Cause.EXIT)


def state(code: int, *, status: str = "exited", oom: bool = False) -> State:
    return State(status, code, oom, "", 0, 5)


@pytest.mark.parametrize("code", [0, 1, 125, 126, 127, 128, 200, 255])
def test_an_exit_code(code: int) -> None:
    outcome = judge(EXIT, state(code), Measured(), LIMITS, b"")
    assert (outcome.cause, outcome.exit_code, outcome.signal) == (Cause.EXIT, code, None)


@pytest.mark.parametrize("number", [1, 2, 6, 9, 11, 15])
def test_a_signal_is_told_by_the_engine_as_a_code(number: int) -> None:
    outcome = judge(EXIT, state(128 + number), Measured(), LIMITS, b"")
    assert (outcome.cause, outcome.exit_code, outcome.signal) == (Cause.SIGNAL, None, number)


@pytest.mark.parametrize("name", [17, 18, 19])
def test_signals_that_end_nothing_are_codes(name: int) -> None:
    assert judge(EXIT, state(128 + name), Measured(), LIMITS, b"").cause is Cause.EXIT


class TestMemory:
    @pytest.mark.parametrize(
        ("told", "measured"),
        [
            (state(137, oom=True), Measured()),
            (state(137), Measured(oom_kills=2)),
            (state(1, oom=True), Measured()),
            (state(137), Measured(peak_bytes=64 << 20, exact=True)),
        ],
    )
    def test_whoever_tells_of_it_is_believed(self, told: State, measured: Measured) -> None:
        outcome = judge(EXIT, told, measured, LIMITS, b"")
        assert (outcome.cause, outcome.limit) == (Cause.OUT_OF_MEMORY, 64 << 20)
        assert outcome.oom_kills >= 1

    def test_a_killed_child_is_told_and_is_not_the_verdict(self) -> None:
        outcome = judge(EXIT, state(0, oom=True), Measured(), LIMITS, b"")
        assert (outcome.cause, outcome.exit_code, outcome.oom_kills) == (Cause.EXIT, 0, 1)

    def test_a_kill_with_memory_to_spare_is_a_signal(self) -> None:
        outcome = judge(EXIT, state(137), Measured(peak_bytes=1 << 20), LIMITS, b"")
        assert outcome.cause is Cause.SIGNAL

    @pytest.mark.parametrize(("exact", "source"), [(True, "cgroup"), (False, "watcher")])
    def test_the_peak_says_how_it_was_measured(self, exact: bool, source: str) -> None:
        measured = Measured(peak_bytes=5, exact=exact)
        outcome = judge(EXIT, state(0), measured, LIMITS, b"")
        assert (outcome.peak_bytes, outcome.peak_source) == (5, source)


def test_too_many_processes() -> None:
    outcome = judge(EXIT, state(1), Measured(process_refusals=3), LIMITS, b"")
    assert (outcome.cause, outcome.limit) == (Cause.PROCESS_LIMIT, 30)


@pytest.mark.parametrize("told", [None, state(0, status="running")])
def test_a_container_that_was_lost(told: State | None) -> None:
    outcome = judge(EXIT, told, Measured(), LIMITS, b"")
    assert outcome.cause is Cause.SANDBOX_UNAVAILABLE
    assert "went away" in (outcome.detail or "")


def test_our_reason_to_end_it_wins() -> None:
    outcome = judge(Reason(Cause.TIME_OUT, 1000), state(137, oom=True), Measured(), LIMITS, b"")
    assert (outcome.cause, outcome.limit, outcome.exit_code) == (Cause.TIME_OUT, 1000, None)


def test_what_could_not_be_started_is_named() -> None:
    said = b"[FATAL tini (7)] exec no-such failed: No such file or directory\n"
    outcome = judge(EXIT, state(127), Measured(), LIMITS, said)
    assert (outcome.exit_code, outcome.detail) == (127, "no-such: No such file or directory")
    assert judge(EXIT, state(1), Measured(), LIMITS, said).detail is None
    assert judge(EXIT, state(127), Measured(), LIMITS, b"more " + said).detail is None
