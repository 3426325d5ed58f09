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
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from msgspec import UNSET

from airlox.client.membership import now_ms
from airlox.errors import (
    AirloxError,
    JobRefused,
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
    LeftOut,
    PythonJob,
    code_sha256,
)
from airlox.protocol.live import STDERR, STDOUT
from airlox.protocol.manifest import Manifest
from airlox.runner import answer as answers
from airlox.runner import facts
from airlox.runner.admission import check_can_run, check_may_run
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
from airlox.runner.pulling import first_look, second_look
from airlox.runner.redact import Redactor
from airlox.runner.slots import Running
from airlox.runner.spool import Started
from airlox.runner.trees import bring
from airlox.runner.workspace import Places, check_room
from airlox.sandbox import base, sweep
from airlox.tree.compare import Baseline


@dataclass(slots=True)
class _Attempt:
    """What is known so far of one job under way."""

    order: Order
    env: Env
    input_sha256: str = NOTHING_HEX
    tree: str | None = None
    applied: AppliedLimits | None = None
    begun: bool = False
    baseline: Baseline | None = None
    """How the work folder looked before the program started, where changes are wanted back."""
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
    await check_may_run(bench, running, attempt.order)
    check_can_run(bench, job)
    if not answers.fits_at_all(bench.manifest, _blank(attempt)):
        raise JobRefused(
            "the session's items are too small for a result",
            code="result_too_large",
            hint="create a session with a larger item limit",
        )
    attempt.input_sha256 = await _hash_inputs(bench, running, job)
    interpreter = await _interpreter(bench, job)
    attempt.env = facts.env(
        bench.report, bench.options, network=bench.network, interpreter=interpreter
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
            index = await bring(bench, running, job.tree, places, arrived)
            attempt.tree = job.tree.digest
        try:
            await _place(bench, running, attempt, placing)
            if job.pull is not UNSET:
                attempt.baseline = await asyncio.to_thread(first_look, job.pull, index, places.work)
            answer = await _run(bench, running, attempt, places, interpreter)
            await _hand_over(bench, running, attempt, answer)
        finally:
            await asyncio.to_thread(placing.remove_all)


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
    await _place_script(bench, attempt.job, places)
    running.check()
    check_room(places.job, bench.options.disk_floor_bytes)
    # once more: a claim is long ago where a tree had to be fetched
    asyncio.get_running_loop().run_in_executor(None, bench.sandbox.expect)
    await asyncio.to_thread(_begin, bench, attempt)
    attempt.begun = True
    redactor = Redactor(redactions_of(bench, places, interpreter))
    heard = _Heard(redactor, _live(bench, running, attempt.order.ref, redactor))
    try:
        async with follow(attempt.job, places, heard.live):
            outcome = await bench.sandbox.run(
                plan,
                on_output=heard.take,
                cancel=running.cancelled,
                on_started=partial(_remember, bench, running.job, places),
            )
    finally:
        await heard.close()
        bench.state.forget(running.job)
    if bench.session.return_out:
        attempt.files = await asyncio.to_thread(
            _gather, places.out, attempt.baseline, bench.manifest
        )
    return replace(
        _blank(attempt),
        cause=_cause(bench, running, outcome),
        reason=_reason(bench, running, attempt, outcome, redactor),
        exit_code=outcome.exit_code if outcome.cause is base.Cause.EXIT else None,
        wall_ms=outcome.wall_ms,
        peak=answers.peak_of(outcome),
        egress=answers.egress_of(outcome),
        live=heard.totals,
        left_out=attempt.files.left_out,
        stdout=heard.captures[STDOUT],
        stderr=heard.captures[STDERR],
    )


class _Heard:
    """What the program prints: kept for the result, and shown live in a full session."""

    def __init__(self, redactor: Redactor, live: LiveOutput | None) -> None:
        self.captures = {stream: Capture(redactor) for stream in (STDOUT, STDERR)}
        self.live = live
        self.totals = answers.NO_LIVE

    def take(self, stream: int, chunk: bytes) -> None:
        self.captures[stream].write(chunk)
        if self.live is not None:
            self.live.write(stream, chunk)

    async def close(self) -> None:
        """The program has ended."""
        for capture in self.captures.values():
            capture.close()
        if self.live is not None:
            self.totals = await self.live.close()


async def _place_script(bench: Bench, job: Job, places: Places) -> None:
    if not isinstance(job, PythonJob) and job.script is not UNSET:
        owner = bench.sandbox.owner()
        await asyncio.to_thread(place_script, places.home, job.script, owner)


def _gather(out: Path, baseline: Baseline | None, manifest: Manifest) -> Gathered:
    """The out files, what changed in the tree first. A folder that cannot be read costs the files
    and not the result."""
    try:
        files = gather(out, manifest)
    except StorageError as error:
        files = Gathered((), (LeftOut(path=".", reason=error.message[:200]),))
    return files if baseline is None else second_look(baseline, manifest) + files


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

    return LiveOutput(bench.link.live_writer(ref), redactor, send, bench.link.with_current_key)


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
    reason: str | None = running.why
    if outcome.cause is not base.Cause.CANCELLED:
        reason = answers.reason_of(
            outcome, attempt.job, bench.session, memory_mb=bench.options.memory_mb
        )
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
        for text in answers.blocked(answer.egress):
            answer.stderr.add_line(f"[airlox: {text}]")
    outbox = bench.link.outbox
    parcel = await asyncio.to_thread(answers.seal, outbox, bench.manifest, answer, files.files)
    running.answered = True
    await asyncio.to_thread(bench.link.note_answered, running.job)
    await asyncio.to_thread(bench.spool.add, parcel)
    said = str(answer.cause.kind)
    return f"{said} {answer.exit_code}" if answer.exit_code is not None else said
