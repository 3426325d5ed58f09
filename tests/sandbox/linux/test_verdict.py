"""From what was seen of a job to why it ended; and which layers an operator may insist on."""

from __future__ import annotations

from airlox.sandbox.base import Cause, Layer, Limits
from airlox.sandbox.linux.launched import Told
from airlox.sandbox.linux.verdict import Seen, judge
from airlox.sandbox.probe import first_missing
from airlox.sandbox.supervise import Reason

LIMITS = Limits(timeout_s=1, memory_bytes=1000, processes=7)
ENDED = Reason(Cause.EXIT)
EXIT_1 = 1 << 8
KILLED = 9


def test_exit_and_signal() -> None:
    assert judge(ENDED, Seen(0), LIMITS).exit_code == 0
    failed = judge(ENDED, Seen(EXIT_1), LIMITS)
    assert (failed.cause, failed.exit_code, failed.signal) == (Cause.EXIT, 1, None)
    died = judge(ENDED, Seen(KILLED), LIMITS)
    assert (died.cause, died.exit_code, died.signal) == (Cause.SIGNAL, None, 9)


def test_a_failure_after_a_kill_for_memory_is_out_of_memory() -> None:
    for status in (KILLED, EXIT_1):
        outcome = judge(ENDED, Seen(status, oom_kills=1), LIMITS)
        assert (outcome.cause, outcome.limit) == (Cause.OUT_OF_MEMORY, 1000)


def test_success_although_a_child_was_killed_is_success() -> None:
    outcome = judge(ENDED, Seen(0, oom_kills=2), LIMITS)
    assert (outcome.cause, outcome.oom_kills) == (Cause.EXIT, 2)


def test_a_failure_after_refused_processes_names_that_limit() -> None:
    outcome = judge(ENDED, Seen(EXIT_1, process_refusals=3), LIMITS)
    assert (outcome.cause, outcome.limit, outcome.exit_code) == (Cause.PROCESS_LIMIT, 7, 1)
    assert judge(ENDED, Seen(0, process_refusals=3), LIMITS).cause is Cause.EXIT


def test_a_command_that_could_not_be_executed() -> None:
    missing = Told("error", "exec", (2,), "nope: No such file or directory")
    outcome = judge(ENDED, Seen(127 << 8, not_executed=missing), LIMITS)
    assert (outcome.exit_code, outcome.detail) == (127, "nope: No such file or directory")
    forbidden = Told("error", "exec", (13,), "data: Permission denied")
    assert judge(ENDED, Seen(126 << 8, not_executed=forbidden), LIMITS).exit_code == 126


def test_no_status_means_that_somebody_else_killed_it() -> None:
    outcome = judge(ENDED, Seen(None), LIMITS)
    assert (outcome.cause, outcome.signal) == (Cause.SIGNAL, 9)


def test_a_reason_from_outside_stands() -> None:
    outcome = judge(Reason(Cause.TIME_OUT, 1000), Seen(KILLED, oom_kills=1), LIMITS)
    assert (outcome.cause, outcome.limit, outcome.signal) == (Cause.TIME_OUT, 1000, None)


def test_required_layers() -> None:
    layers = (Layer("uid", True), Layer("cgroup", False, "none", "cgroup_none", "delegate one"))
    assert first_missing(layers, ()) is None
    assert first_missing(layers, ("uid",)) is None
    missing = first_missing(layers, ("uid", "cgroup"))
    assert missing is not None
    assert (missing.code, missing.hint) == ("cgroup_none", "delegate one")
    unknown = first_missing(layers, ("moat",))
    assert unknown is not None
    assert unknown.code == "layer_missing"
