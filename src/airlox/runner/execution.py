"""One job, from its id to a signed, sealed answer: the story in one place.

    order      the job as its author signed it; whether this runner may and can run it
    prepare    inputs fetched and hashed; folders; the tree; inputs and program put in place
    run        the plan in the sandbox, its output captured and followed live
    answer     the verdict of the sandbox, out files, one result that fits

What goes wrong before the program starts is a refusal with a code; what goes wrong after it is a
failure with a cause. Either way an answer is in the spool before this module lets go of the job.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

from msgspec import UNSET

from airlox.client.membership import now_ms
from airlox.errors import (
    AirloxError,
    ConnectionLost,
    JobRefused,
    RelayError,
    SandboxError,
    SessionClosed,
    StorageError,
)
from airlox.protocol.digest import NOTHING_HEX
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import ItemRef
from airlox.protocol.job import (
    AppliedLimits,
    Cause,
    CauseKind,
    Env,
    Job,
    LabelledRunner,
    LeftOut,
    OneRunner,
    PythonJob,
    code_sha256,
)
from airlox.protocol.keys import Role
from airlox.protocol.live import STDERR, STDOUT
from airlox.protocol.manifest import JobKind, Manifest
from airlox.runner import answer as answers
from airlox.runner import facts
from airlox.runner.answer import Answer
from airlox.runner.bench import Bench
from airlox.runner.inputs import Placing, place_script
from airlox.runner.link import Link, Order, Unverified
from airlox.runner.live import LiveOutput
from airlox.runner.outfiles import Gathered, gather
from airlox.runner.output import Capture
from airlox.runner.packages import Interpreter
from airlox.runner.plan import plan_of, redactions_of
from airlox.runner.progress import follow
from airlox.runner.redact import Redactor
from airlox.runner.slots import Running
from airlox.runner.spool import Started
from airlox.runner.trees import TreeBringer
from airlox.runner.workspace import Places, check_room
from airlox.sandbox import base, sweep

APPROVAL_S: Final = 10.0
"""How long a job waits for the owner's signed approval, which may be on its way."""
APPROVAL_POLL_S: Final = 1.0


@dataclass(slots=True)
class _Attempt:
    """What is known so far of one job under way."""

    order: Order
    env: Env
    input_sha256: str = NOTHING_HEX
    tree: str | None = None
    applied: AppliedLimits | None = None
    begun: bool = False
    files: Gathered = field(default_factory=lambda: Gathered((), ()))
    said: str | None = None
    """How it ended, once the answer is in the spool: what fails then is no answer any more."""

    @property
    def job(self) -> Job:
        return self.order.job


async def execute(bench: Bench, running: Running, arrived: asyncio.Event) -> str | None:
    """Carry out a claimed job; its status in a few words, or None when nothing is to be said.

    `arrived` is set whenever the relay tells of a pack of this job.
    """
    if bench.link.was_run(running.job):
        return None  # its answer is out, or on its way
    try:
        order = await bench.threads.call(bench.link.order, running.job)
    except Unverified as fault:
        reason = f"the job did not verify: {fault.reason}"
        refusal = answers.refused(fault.ref, bench.env, reason, "not_verified")
        return await _deliver(bench, running, refusal, Gathered((), ()))
    if order is None:
        return "the job's bytes cannot be had"
    attempt = _Attempt(order, bench.env)
    try:
        await _carry_out(bench, running, attempt, arrived)
    except SessionClosed:
        raise
    except Exception as error:  # a fault of ours must not leave the sender waiting
        if attempt.said is not None:
            raise
        answer = _answer_to(error, bench, running, attempt)
        await _hand_over(bench, running, attempt, answer)
    return attempt.said


async def _carry_out(
    bench: Bench, running: Running, attempt: _Attempt, arrived: asyncio.Event
) -> None:
    """Everything that may be refused, and the run. The answer goes out before the folders go."""
    job = attempt.job
    await _check_may_run(bench, running, attempt.order)
    _check_can_run(bench, job)
    if not answers.fits_at_all(bench.manifest, _blank(attempt)):
        raise JobRefused(
            "the session's items are too small for a result",
            code="result_too_large",
            hint="create a session with a larger item limit",
        )
    for folder in (bench.folder, bench.options.cache_root):
        check_room(folder, bench.options.disk_floor_bytes)
    attempt.input_sha256 = await _hash_inputs(bench, running, job)
    interpreter = await _interpreter(bench, job)
    attempt.env = facts.env(
        bench.report, bench.options, network=bench.has_network, interpreter=interpreter
    )
    kept = job.tree is not UNSET and bench.options.workspaces
    sender = attempt.order.author.public
    async with bench.workspaces.for_job(
        running, sender, kept=kept, fresh=job.fresh is not UNSET
    ) as places:
        owner = bench.sandbox.owner()
        start = "" if job.cwd is UNSET else job.cwd
        placing = Placing(places, start, owner, bench.options.disk_floor_bytes)
        await asyncio.to_thread(placing.clear_leftovers)
        if job.tree is not UNSET:
            await TreeBringer(bench, running, job.tree, places, arrived).bring()
            attempt.tree = job.tree.digest
        try:
            await _place(bench, running, attempt, placing)
            answer = await _run(bench, running, attempt, places, interpreter)
            await _hand_over(bench, running, attempt, answer)
        finally:
            await asyncio.to_thread(placing.remove_all)


# ── may it, can it ───────────────────────────────────────────────────────────────────────────


async def _check_may_run(bench: Bench, running: Running, order: Order) -> None:
    """Raises JobRefused unless author, target and approval are right."""
    if order.author.role not in (Role.OWNER, Role.SENDER):
        raise JobRefused("jobs are by the owner or a sender", code="not_allowed")
    target, options = order.job.target, bench.options
    if isinstance(target, OneRunner) and target.participant_pub != bench.link.public:
        raise JobRefused("the job is for another runner", code="wrong_target")
    if isinstance(target, LabelledRunner) and not set(target.labels) <= set(options.labels):
        raise JobRefused("the job is for a runner with other labels", code="wrong_target")
    deadline = asyncio.get_running_loop().time() + APPROVAL_S
    while not bench.link.may_take_jobs():
        running.check()
        if asyncio.get_running_loop().time() > deadline:
            raise JobRefused(
                "the owner has not approved this runner",
                code="not_approved",
                hint=f"airlox runner approve {options.name}",
            )
        with suppress(ConnectionLost, RelayError):
            await bench.threads.call(bench.link.sync)
        await asyncio.sleep(APPROVAL_POLL_S)


def _check_can_run(bench: Bench, job: Job) -> None:
    """Raises JobRefused when this runner does not offer what the job asks for."""
    if _kind_of(job) not in bench.kinds:
        raise JobRefused(
            f"this runner takes no {_kind_of(job)} jobs",
            code="kind_not_offered",
            hint="choose another runner, or start this one with an interpreter (--python)",
        )
    most_mb = bench.options.memory_mb
    if job.memory_mb is not None and most_mb is not None and job.memory_mb > most_mb:
        raise JobRefused(
            f"this runner gives a job at most {most_mb} MB of memory",
            code="memory_not_offered",
            hint=f"use --memory {most_mb} or less",
        )
    if job.require_layers is not UNSET:
        on = bench.env.layers
        missing = [layer for layer in job.require_layers if not on.get(layer)]
        if missing:
            raise JobRefused(
                f"this runner's sandbox lacks {', '.join(missing)}", code="layer_missing"
            )


def _kind_of(job: Job) -> JobKind:
    return JobKind.PYTHON if isinstance(job, PythonJob) else JobKind.SHELL


# ── preparing ────────────────────────────────────────────────────────────────────────────────


async def _hash_inputs(bench: Bench, running: Running, job: Job) -> str:
    """Fetch and verify every input, and give the digest of their blobs."""
    digest = sha256()
    for ref in job.files:
        running.check()
        found = await bench.threads.call(bench.link.input, ref)
        digest.update(found.blob)
    return digest.hexdigest()


async def _interpreter(bench: Bench, job: Job) -> Interpreter | None:
    if not isinstance(job, PythonJob):
        return None
    return await asyncio.to_thread(bench.python.get)


async def _place(bench: Bench, running: Running, attempt: _Attempt, placing: Placing) -> None:
    job = attempt.job
    await asyncio.to_thread(placing.check_start)
    if isinstance(job, PythonJob) and not (
        job.tree is not UNSET
        and await asyncio.to_thread(placing.has, job.filename, job.code.encode())
    ):
        await asyncio.to_thread(placing.add_file, job.filename, job.code.encode())
    for ref in job.files:
        running.check()
        await bench.threads.call(_place_input, bench.link, placing, ref)


def _place_input(link: Link, placing: Placing, ref: ItemRef) -> None:
    found = link.input(ref)
    if found.subkind == "zip":
        placing.add_archive(found.body)
    else:
        placing.add_file(found.meta.name, found.body)


# ── running ──────────────────────────────────────────────────────────────────────────────────


async def _run(
    bench: Bench,
    running: Running,
    attempt: _Attempt,
    places: Places,
    interpreter: Interpreter | None,
) -> Answer:
    plan = plan_of(bench, attempt.job, places, interpreter)
    attempt.applied = facts.applied_limits(plan.limits, bench.report)
    if not isinstance(attempt.job, PythonJob) and attempt.job.script is not UNSET:
        script, owner = attempt.job.script, bench.sandbox.owner()
        await asyncio.to_thread(place_script, places.home, script, owner)
    running.check()
    check_room(places.job, bench.options.disk_floor_bytes)
    await asyncio.to_thread(_begin, bench, attempt)
    attempt.begun = True
    redactor = Redactor(redactions_of(bench, places, interpreter))
    captures = {stream: Capture(redactor) for stream in (STDOUT, STDERR)}
    live = _live(bench, running, attempt.order.ref, redactor)

    def take(stream: int, chunk: bytes) -> None:
        captures[stream].write(chunk)
        if live is not None:
            live.write(stream, chunk)

    try:
        async with follow(attempt.job, places, live):
            outcome = await bench.sandbox.run(
                plan,
                on_output=take,
                cancel=running.cancelled,
                on_started=partial(_remember, bench, running.job, places),
            )
    finally:
        totals = answers.NO_LIVE if live is None else await live.close()
        bench.state.forget(running.job)
    for capture in captures.values():
        capture.close()
    if bench.session.return_out:
        attempt.files = await asyncio.to_thread(_gather, places.out, bench.manifest)
    answer = _blank(attempt)
    return replace(
        answer,
        cause=_cause(bench, running, outcome),
        reason=_reason(bench, running, attempt, outcome, redactor),
        exit_code=outcome.exit_code if outcome.cause is base.Cause.EXIT else None,
        wall_ms=outcome.wall_ms,
        peak=answers.peak_of(outcome),
        live=totals,
        left_out=attempt.files.left_out,
        stdout=captures[STDOUT],
        stderr=captures[STDERR],
    )


def _gather(out: Path, manifest: Manifest) -> Gathered:
    """The out files. A folder that cannot be read costs the files and not the result."""
    try:
        return gather(out, manifest)
    except StorageError as error:
        return Gathered((), (LeftOut(path=".", reason=error.message[:200]),))


def _begin(bench: Bench, attempt: _Attempt) -> None:
    """On the disk before the program starts: that it was, and how to answer for it if we die."""
    ref = attempt.order.ref
    bench.link.note_run(ItemId(ref.id))
    bench.spool.begin(
        Started(
            job=ref,
            code_sha256=code_sha256(attempt.job),
            input_sha256=attempt.input_sha256,
            tree=attempt.tree,
            started_at_ms=now_ms(),
        )
    )


def _remember(bench: Bench, job: ItemId, places: Places, pid: int) -> None:
    bench.state.remember(sweep.record_of(job, pid, places.folders))


def _live(bench: Bench, running: Running, ref: ItemRef, redactor: Redactor) -> LiveOutput | None:
    if not bench.manifest.is_full:
        return None

    async def send(frame: bytes) -> None:
        await bench.threads.call(bench.link.post_output, running.job, frame)

    return LiveOutput(bench.link.live_writer(ref), redactor, send)


# ── the answer ───────────────────────────────────────────────────────────────────────────────


def _blank(attempt: _Attempt) -> Answer:
    """What every answer to this job has in common."""
    return Answer(
        job=attempt.order.ref,
        env=attempt.env,
        cause=Cause(kind=CauseKind.EXIT),
        reason=None,
        code_sha256=code_sha256(attempt.job),
        input_sha256=attempt.input_sha256,
        limits=attempt.applied,
        tree=attempt.tree,
    )


def _cause(bench: Bench, running: Running, outcome: base.Outcome) -> Cause:
    cause = answers.cause_of(outcome)
    if cause.kind is not CauseKind.CANCELLED:
        return cause
    by = bench.link.cancelled_by(running.job)
    return Cause(kind=cause.kind, by=UNSET if by is None else by)


def _reason(
    bench: Bench,
    running: Running,
    attempt: _Attempt,
    outcome: base.Outcome,
    redactor: Redactor,
) -> str | None:
    if outcome.cause is base.Cause.CANCELLED:
        return running.why
    reason = answers.reason_of(outcome, attempt.job, bench.session)
    return None if reason is None else redactor.clean_text(reason)


def _answer_to(error: Exception, bench: Bench, running: Running, attempt: _Attempt) -> Answer:
    """The answer to a job that went wrong outside of its program."""
    redactor = Redactor(bench.redactions)
    if isinstance(error, SandboxError):
        cause = Cause(kind=CauseKind.SANDBOX_UNAVAILABLE, code=error.code[:64])
    elif attempt.begun or not isinstance(error, AirloxError):
        kind = "" if isinstance(error, AirloxError) else f"{type(error).__name__}: "
        said = redactor.clean_text(f"the runner failed: {kind}{error}")
        cause = Cause(kind=CauseKind.RUNNER_ERROR)
        return replace(_blank(attempt), cause=cause, reason=said)
    elif error.code == "cancelled":
        by = bench.link.cancelled_by(running.job)
        cause = Cause(kind=CauseKind.CANCELLED, by=UNSET if by is None else by)
    else:
        cause = Cause(kind=CauseKind.REFUSED, code=error.code[:64])
    return replace(_blank(attempt), cause=cause, reason=redactor.clean_text(str(error)))


async def _hand_over(bench: Bench, running: Running, attempt: _Attempt, answer: Answer) -> None:
    attempt.said = await _deliver(bench, running, answer, attempt.files)


async def _deliver(bench: Bench, running: Running, answer: Answer, files: Gathered) -> str:
    """Seal the answer and give it to the spool; how the job ended, in a few words."""
    if not bench.manifest.is_full and answer.stderr is not None:
        for left in answer.left_out:
            answer.stderr.add_line(f"[airlox: left out {left.path}: {left.reason}]")
    outbox = bench.link.outbox
    parcel = await asyncio.to_thread(answers.seal, outbox, bench.manifest, answer, files.files)
    running.answered = True
    await asyncio.to_thread(bench.link.note_answered, running.job)
    await asyncio.to_thread(bench.spool.add, parcel)
    said = str(answer.cause.kind)
    return f"{said} {answer.exit_code}" if answer.exit_code is not None else said
