"""The signed answer to a job: how an outcome reads, and a result that always fits.

Rules
- A result fits the 4 MiB of a meta and the session's item limit: both output streams are cut
  until it does, the tail last. Whether an answer without any output fits is checked before the
  job starts.
- In floor sessions a result has exactly the form of 0.1.0; the cause is the reason's first word.
- A reason says what happened and, where there is one, the next step.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from msgspec import UNSET

from airlox.client.outbox import Outbox
from airlox.errors import LimitError, ProtocolError
from airlox.protocol import limits
from airlox.protocol.digest import NOTHING_HEX
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import ItemRef, SealedItem
from airlox.protocol.job import (
    STATUS_OF_CAUSE,
    AppliedLimits,
    Cause,
    CauseKind,
    Denied,
    Egress,
    Env,
    Job,
    LeftOut,
    LiveTotals,
    OutFile,
    Peak,
    Result,
    Status,
)
from airlox.protocol.manifest import JobLimits, Manifest
from airlox.protocol.payload import File, encode_payload
from airlox.runner.outfiles import Sendable
from airlox.runner.output import Capture
from airlox.runner.redact import Redactor
from airlox.runner.spool import Parcel
from airlox.sandbox import base

NO_LIVE: Final = LiveTotals(dropped_bytes=0, head=None, segments=0, stderr_bytes=0, stdout_bytes=0)
_NOTHING: Final = Redactor([])
_SHORT_REASON: Final = 160
"""Characters that stay of a reason where a session's items have no room for it."""
_LESS: Final = "write less in one job, or choose another runner"
_STEPS: Final = 14
"""Halvings of the output's room: they find it to within 100 bytes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A result before it is cut to size. `out_files` come later, when they are sealed."""

    job: ItemRef
    env: Env
    cause: Cause
    reason: str | None
    code_sha256: str = NOTHING_HEX
    input_sha256: str = NOTHING_HEX
    exit_code: int | None = None
    wall_ms: int = 0
    limits: AppliedLimits | None = None
    peak: Peak | None = None
    egress: Egress | None = None
    live: LiveTotals = NO_LIVE
    left_out: tuple[LeftOut, ...] = ()
    tree: str | None = None
    stdout: Capture | None = None
    stderr: Capture | None = None


def refused(job: ItemRef, env: Env, reason: str, code: str) -> Answer:
    """A job that was not started."""
    return Answer(job, env, Cause(kind=CauseKind.REFUSED, code=code[:64]), reason)


def lost(job: ItemRef, env: Env, code_sha256: str, input_sha256: str, tree: str | None) -> Answer:
    """A job whose runner died under it."""
    reason = "the runner stopped while the job ran, and what it had done is unknown; run it again"
    cause = Cause(kind=CauseKind.RUNNER_LOST)
    return Answer(job, env, cause, reason, code_sha256, input_sha256, tree=tree)


def fits_at_all(manifest: Manifest, answer: Answer) -> bool:
    """Whether an answer without output and with a short reason fits into the session's items."""
    worst = "\0" * _SHORT_REASON  # six bytes each
    return _fits(manifest, _result(manifest, replace(answer, reason=worst), 0, ()))


def seal(outbox: Outbox, manifest: Manifest, answer: Answer, files: tuple[Sendable, ...]) -> Parcel:
    """All items of the answer, sealed. Raises PolicyError when not even an empty one fits."""
    sealed, named, unsendable = _seal_files(outbox, files)
    answer = replace(answer, left_out=(*answer.left_out, *unsendable)[: limits.LEFT_OUT])
    unsent = tuple(LeftOut(path=f.name, reason="the relay did not take it") for f in named)
    bare = _fitted(manifest, replace(answer, left_out=unsent or answer.left_out), ())
    result = _fitted(manifest, answer, named)
    if not _fits(manifest, result):
        sealed, result = (), bare
    sealed_bare = _seal_result(outbox, bare)
    return Parcel(
        job=ItemId(answer.job.id),
        files=sealed,
        result=_seal_result(outbox, result) if sealed else sealed_bare,
        bare=sealed_bare,
    )


def _seal_files(
    outbox: Outbox, files: tuple[Sendable, ...]
) -> tuple[tuple[SealedItem, ...], tuple[OutFile, ...], tuple[LeftOut, ...]]:
    """The files as items, as the result names them, and those that readers would refuse."""
    sealed, named, unsendable = [], [], []
    for file in files:
        meta = File(mime=file.mime, name=file.name)
        try:
            item = outbox.seal(meta, file.body, subkind=file.subkind)
        except ProtocolError as error:
            unsendable.append(LeftOut(path=file.name, reason=error.message))
            continue
        sealed.append(item)
        named.append(OutFile(item=item.ref, name=file.name, size=len(file.body)))
    return tuple(sealed), tuple(named), tuple(unsendable)


def _seal_result(outbox: Outbox, result: Result) -> SealedItem:
    """`sure`: the spool posts a result only after the files it names."""
    refs = (result.job, *(out.item for out in result.out_files))
    return outbox.seal(result, refs=refs, sure=True)


def _fitted(manifest: Manifest, answer: Answer, files: tuple[OutFile, ...]) -> Result:
    """The result with as much output as fits."""
    result = _result(manifest, answer, limits.OUTPUT_BYTES, files)
    if _fits(manifest, result):
        return result
    fits, too_much = 0, limits.OUTPUT_BYTES
    best = _result(manifest, answer, 0, files)
    if not _fits(manifest, best):
        answer = replace(answer, left_out=())
        best = _result(manifest, answer, 0, files)
    if not _fits(manifest, best) and answer.egress is not None:
        answer = replace(answer, egress=None)
        best = _result(manifest, answer, 0, files)
    if not _fits(manifest, best) and answer.reason is not None:
        answer = replace(answer, reason=answer.reason[:_SHORT_REASON])
        best = _result(manifest, answer, 0, files)
    for _ in range(_STEPS):
        middle = (fits + too_much) // 2
        result = _result(manifest, answer, middle, files)
        if _fits(manifest, result):
            fits, best = middle, result
        else:
            too_much = middle
    return best


def _fits(manifest: Manifest, result: Result) -> bool:
    try:
        return len(encode_payload(result)) <= manifest.max_item_bytes
    except LimitError:
        return False


def _result(
    manifest: Manifest, answer: Answer, output_bytes: int, files: tuple[OutFile, ...]
) -> Result:
    whole_out, whole_err = (each or Capture(_NOTHING) for each in (answer.stdout, answer.stderr))
    stdout, stderr = whole_out.text(output_bytes), whole_err.text(output_bytes)
    result = Result(
        code_sha256=answer.code_sha256,
        exit_code=answer.exit_code,
        input_sha256=answer.input_sha256,
        job=answer.job,
        out_files=files,
        peak_mem_mb=0 if answer.peak is None else -(-answer.peak.memory_bytes // limits.MIB),
        reason=_cut(_reason_for(manifest, answer)),
        status=STATUS_OF_CAUSE[answer.cause.kind],
        stderr=stderr.text,
        stderr_truncated=stderr.truncated,
        stdout=stdout.text,
        stdout_truncated=stdout.truncated,
        wall_ms=answer.wall_ms,
    )
    if not manifest.is_full:
        return result
    return msgspec.structs.replace(
        result,
        cause=answer.cause,
        egress=answer.egress or UNSET,
        env=answer.env,
        left_out=answer.left_out or UNSET,
        limits=answer.limits or UNSET,
        live=answer.live,
        peak=answer.peak or UNSET,
        stderr_bytes=whole_err.total_bytes if stderr.truncated else UNSET,
        stdout_bytes=whole_out.total_bytes if stdout.truncated else UNSET,
        tree=answer.tree or UNSET,
    )


def _reason_for(manifest: Manifest, answer: Answer) -> str | None:
    kind, reason = answer.cause.kind, answer.reason
    worded = kind not in (CauseKind.EXIT, CauseKind.REFUSED, CauseKind.CANCELLED)
    if manifest.is_full or reason is None or not worded:
        return reason
    return f"{kind}: {reason}"


def _cut(reason: str | None) -> str | None:
    if reason is None:
        return None
    return reason.encode()[: limits.REASON_BYTES].decode("utf-8", "ignore") or "no reason given"


# ── how an outcome reads ─────────────────────────────────────────────────────────────────────


def peak_of(outcome: base.Outcome) -> Peak | None:
    """The largest use of memory, where it was measured."""
    if outcome.peak_bytes is None or outcome.peak_source is None:
        return None
    return Peak(
        memory_bytes=outcome.peak_bytes,
        source=outcome.peak_source,  # type: ignore[arg-type]
        oom_kills=outcome.oom_kills or UNSET,
    )


def egress_of(outcome: base.Outcome) -> Egress | None:
    """What passed an allow list and what did not; None where nothing was tried."""
    seen = outcome.egress
    if seen is None or not (seen.connections or seen.denials):
        return None
    denied = tuple(
        Denied(reason=denial.reason.value, target=denial.target)
        for denial in seen.denied[: limits.DENIED]
    )
    return Egress(
        connections=seen.connections,
        denials=seen.denials,
        denied=denied or UNSET,
        received_bytes=seen.received_bytes,
        sent_bytes=seen.sent_bytes,
    )


def blocked(egress: Egress | None) -> list[str]:
    """What was not let through, in words, for results that have no field for it."""
    if egress is None or egress.denied is UNSET:
        return []
    return [denied.text for denied in egress.denied]


def cause_of(outcome: base.Outcome) -> Cause:
    """The sandbox's verdict in the words of the protocol."""
    kind = CauseKind(outcome.cause.value)
    cause = Cause(kind=kind)
    if kind is CauseKind.SIGNAL and outcome.signal is not None:
        return msgspec.structs.replace(cause, signal=outcome.signal)
    if outcome.limit is not None and kind is CauseKind.TIME_OUT:
        return msgspec.structs.replace(cause, limit=outcome.limit // 1000)
    if outcome.limit is not None and STATUS_OF_CAUSE[kind] is Status.FAILED:
        cause = msgspec.structs.replace(cause, limit=outcome.limit)
    if outcome.peak_bytes is not None and kind is CauseKind.OUT_OF_MEMORY:
        cause = msgspec.structs.replace(cause, peak=outcome.peak_bytes)
    return cause


def reason_of(
    outcome: base.Outcome, job: Job, session: JobLimits, *, memory_mb: int | None = None
) -> str | None:
    """What happened, and what to do about it; None when there is nothing to say. `memory_mb` is
    what the runner gives a job at most, where that is less than the session allows."""
    match outcome.cause:
        case base.Cause.TIME_OUT:
            return _time_out_reason(job, session)
        case base.Cause.OUT_OF_MEMORY:
            return _memory_reason(outcome, session, memory_mb)
        case base.Cause.DISK:
            return _disk_reason(outcome)
        case base.Cause.PROCESS_LIMIT:
            count = "" if outcome.limit is None else f", limit {outcome.limit}"
            return f"killed: too many processes{count}; start fewer at a time"
        case base.Cause.SIGNAL:
            return _with_detail(f"killed by signal {_signal_name(outcome.signal)}", outcome)
        case base.Cause.SANDBOX_UNAVAILABLE:
            return _with_detail("the sandbox could not be had", outcome)
        case base.Cause.EXIT if outcome.oom_kills:
            return _child_killed(outcome)
        case _:
            return outcome.detail


def _time_out_reason(job: Job, session: JobLimits) -> str:
    said = f"killed: time limit of {job.timeout_s} s reached"
    if job.timeout_s >= session.timeout_s:
        return f"{said}, which is the session's; do less in one job"
    return f"{said}; try --timeout {min(2 * job.timeout_s, session.timeout_s)}"


def _child_killed(outcome: base.Outcome) -> str:
    """The main process went on without those of its processes that the kernel killed."""
    killed = "a process was" if outcome.oom_kills == 1 else f"{outcome.oom_kills} processes were"
    return f"{killed} killed for want of memory; try a larger --memory"


def _memory_reason(outcome: base.Outcome, session: JobLimits, most_mb: int | None) -> str:
    limit_mb = None if outcome.limit is None else outcome.limit // limits.MIB
    said = "killed: out of memory"
    if limit_mb is not None:
        said += f", limit {limit_mb} MB"
    if outcome.peak_bytes is not None:
        said += f", peak {outcome.peak_bytes // limits.MIB} MB"
    if limit_mb is None or limit_mb >= session.memory_mb:
        return f"{said}, which is all the session allows"
    if most_mb is not None and limit_mb >= most_mb:
        return f"{said}, which is all this runner gives a job; choose another runner"
    more_mb = min(2 * limit_mb, session.memory_mb, most_mb or session.memory_mb)
    return f"{said}; try --memory {more_mb}"


def _disk_reason(outcome: base.Outcome) -> str:
    """Which limit of the disk: of what is written, of files, or of what must stay free."""
    said = _with_detail("killed: limit of the runner's disk reached", outcome)
    if outcome.limit is None:
        return f"{said}; {_LESS}"
    large = outcome.limit >= limits.MIB
    amount = f"{outcome.limit // limits.MIB} MB" if large else f"{outcome.limit}"
    return f"{said}, {amount}; {_LESS}"


def _signal_name(number: int | None) -> str:
    if number is None:
        return "(unknown)"
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def _with_detail(said: str, outcome: base.Outcome) -> str:
    return said if outcome.detail is None else f"{said}: {outcome.detail}"
