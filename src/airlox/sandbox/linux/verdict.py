"""Why a job ended, judged from what was measured outside of it. Pure."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airlox.sandbox.base import Cause, Outcome

if TYPE_CHECKING:
    from airlox.sandbox.base import Limits
    from airlox.sandbox.linux.launched import Told
    from airlox.sandbox.supervise import Reason

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_MISSING = (2, 20)  # ENOENT, ENOTDIR


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured of a job from outside. `status` is the main process's, as `wait` says."""

    status: int | None
    peak_bytes: int | None = None
    peak_source: str | None = None
    oom_kills: int = 0
    process_refusals: int = 0
    not_executed: Told | None = None


def judge(reason: Reason, seen: Seen, limits: Limits) -> Outcome:
    """Why the job ended, from what was seen. The wall time is left to the caller."""
    measured = Outcome(
        reason.cause,
        peak_bytes=seen.peak_bytes,
        peak_source=seen.peak_source,
        oom_kills=seen.oom_kills,
        limit=reason.limit,
        detail=reason.detail,
    )
    if reason.cause is not Cause.EXIT:
        return measured
    if seen.not_executed is not None:
        missing = seen.not_executed.numbers[0] in _MISSING
        code = _NOT_FOUND if missing else _NOT_EXECUTABLE
        return replace(measured, exit_code=code, detail=seen.not_executed.text)
    if seen.status is None:
        return replace(
            measured, cause=Cause.SIGNAL, signal=int(signal.SIGKILL), detail="killed from outside"
        )
    code = os.waitstatus_to_exitcode(seen.status)
    ended = replace(
        measured,
        cause=Cause.EXIT if code >= 0 else Cause.SIGNAL,
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
    )
    if code != 0 and seen.oom_kills:
        return replace(ended, cause=Cause.OUT_OF_MEMORY, limit=limits.memory_bytes)
    if code != 0 and seen.process_refusals:
        return replace(ended, cause=Cause.PROCESS_LIMIT, limit=limits.processes)
    return ended
