"""Why a job in a container ended, judged from what the engine and the kernel tell. Pure.

The engine tells an exit code and nothing else: 128+N for a death by signal N, which is also what
shells give when a command of theirs died so. It is read as the signal.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airlox.sandbox.base import Cause, Outcome

if TYPE_CHECKING:
    from airlox.sandbox.base import Limits
    from airlox.sandbox.container.told import State
    from airlox.sandbox.supervise import Reason

LOST = "the container engine or the container went away while the job ran; run it again"

_SIGNAL_BASE = 128
_NEAR_BYTES = 1 << 20
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
# What the container's init says when there is nothing to start; it then ends by these codes.
_NOT_STARTED = re.compile(rb"\[FATAL tini \(\d+\)\] exec (.{1,200}) failed: (.{1,80})\n?\Z")
_DEADLY = frozenset(
    number
    for number in signal.Signals
    if number.name
    not in (
        "SIGCHLD",
        "SIGCLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGWINCH",
    )
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the kernel counted for the container. `exact`: nothing was missed at its end."""

    peak_bytes: int | None = None
    exact: bool = False
    oom_kills: int = 0
    process_refusals: int = 0


def judge(
    reason: Reason, state: State | None, measured: Measured, limits: Limits, said: bytes
) -> Outcome:
    """Why the job ended. `said` is how its standard error begins, `state` the container's after its
    end, None where it cannot be told. The wall time is left to the caller."""
    outcome = Outcome(
        reason.cause,
        peak_bytes=measured.peak_bytes,
        peak_source=_source(measured),
        oom_kills=measured.oom_kills,
        limit=reason.limit,
        detail=reason.detail,
    )
    if reason.cause is not Cause.EXIT:
        return outcome
    if state is None or state.runs:
        return replace(outcome, cause=Cause.SANDBOX_UNAVAILABLE, detail=LOST)
    return _judge_end(outcome, state, measured, limits, said)


def _judge_end(
    outcome: Outcome, state: State, measured: Measured, limits: Limits, said: bytes
) -> Outcome:
    number = state.exit_code - _SIGNAL_BASE
    by_signal = number in _DEADLY
    ended = replace(
        outcome,
        cause=Cause.SIGNAL if by_signal else Cause.EXIT,
        signal=number if by_signal else None,
        exit_code=None if by_signal else state.exit_code,
    )
    kills = max(measured.oom_kills, int(state.oom_killed))
    if state.exit_code != 0 and (kills or _died_full(number, measured, limits)):
        oom = Cause.OUT_OF_MEMORY
        return replace(ended, cause=oom, limit=limits.memory_bytes, oom_kills=max(kills, 1))
    ended = replace(ended, oom_kills=kills)
    if state.exit_code != 0 and measured.process_refusals:
        return replace(ended, cause=Cause.PROCESS_LIMIT, limit=limits.processes)
    if state.exit_code in (_NOT_FOUND, _NOT_EXECUTABLE):
        return replace(ended, detail=_why_not_started(said))
    return ended


def _died_full(number: int, measured: Measured, limits: Limits) -> bool:
    """Killed with its memory at the limit: the engine hears of it late, and sometimes never."""
    return (
        number == signal.SIGKILL
        and limits.memory_bytes is not None
        and (measured.peak_bytes or 0) >= limits.memory_bytes - _NEAR_BYTES
    )


def _source(measured: Measured) -> str | None:
    if measured.peak_bytes is None:
        return None
    return "cgroup" if measured.exact else "watcher"


def _why_not_started(said: bytes) -> str | None:
    found = _NOT_STARTED.fullmatch(said)
    if found is None:
        return None
    return f"{found[1].decode('utf-8', 'replace')}: {found[2].decode('utf-8', 'replace')}"
