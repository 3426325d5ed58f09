"""Jobs: who gets one, what state it is in, and how it ends when nobody says anything.

    post ─► assigned ─claim─► running ─result─► finished
     │        ▲  │                │
     │        │  └────────────────┴──► failed (runner_lost, cancelled)
     ├─► queued ─────────────────────► failed (see queue.py)
     └───────────────────────────────► failed (no_runner_available, in full sessions runner_busy)

A result is taken from the assigned runner only, once, also after the relay gave the job up: the
signed result wins over the relay's word. Time-outs are what ends a wait when a runner says
nothing (a runner that died, could not fetch the job, or failed to post).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from airlox.errors import ProtocolError
from airlox.protocol.encoding import ItemId, b64u_encode
from airlox.protocol.item import Envelope, Kind
from airlox.protocol.job import Target, parse_target
from airlox.protocol.keys import Role
from airlox.protocol.sse import encode_event
from airlox.protocol.wire import EventKind, JobState
from airlox.relay import records
from airlox.relay.entities import Job, Participant
from airlox.relay.items import Blobs, Body, Items
from airlox.relay.queue import Queue
from airlox.relay.records import AnyRecord
from airlox.relay.refusals import Refusal, refuse
from airlox.relay.runners import BUSY, NO_RUNNER, Choice, Runners
from airlox.relay.service import Core
from airlox.relay.state import Session

RUNNER_LOST = "runner_lost"
CANCELLED = "cancelled"


class Jobs:
    def __init__(
        self, core: Core, items: Items, blobs: Blobs, runners: Runners, queue: Queue
    ) -> None:
        self._core = core
        self._items = items
        self._blobs = blobs
        self._runners = runners
        self._queue = queue

    # ── posting ──────────────────────────────────────────────────────────────────────────────

    async def submit(
        self,
        session: Session,
        author: Participant,
        envelope: Envelope,
        target_text: str | None,
        wait_text: str | None,
        start: bytes,
        body: Body,
    ) -> tuple[Job, Refusal | None]:
        """Stores a job and gives it to a runner or lets it wait for one; or says why none takes
        it, which ends it.

        Raises Refusal; then the job was not stored.
        """
        target = _parse_target(target_text)
        wait_s = self._queue.parse_wait(session, wait_text)
        if envelope.header.kind is not Kind.JOB:
            raise Refusal("bad_request", "only jobs are posted to /jobs")
        if await self._items.is_known(session, envelope):
            return session.jobs[envelope.id], self._refusal(session.jobs[envelope.id], "")
        self._core.quotas.check_room_for_job(session)
        async with (
            await self._blobs.receive(session, author, envelope.blob_size, start, body) as blob,
            session.lock,
        ):
            packs = session.pack_sets.get(envelope.id)
            if packs is not None and packs.author != author.key:
                raise Refusal("duplicate", "another participant stored a tree under this id")
            self._core.quotas.check_room_for_job(session)
            await self._assign_waiting(session)  # who waits comes before who does not
            choice = self._runners.choose(session, target, patient=wait_s > 0)
            waits = choice.runner is None and wait_s > 0 and self._queue.may_wait(session, target)
            if waits:
                self._core.quotas.check_room_for_waiting(session, author)

            def changes(posted: records.Posted) -> Sequence[AnyRecord]:
                return [
                    msgspec.structs.replace(posted, target=target_text, wait_s=wait_s),
                    self._outcome(posted.at_ms, envelope.id, choice, waits=waits),
                ]

            await self._items.store(session, author, envelope, blob, changes)
            job = session.jobs[envelope.id]
            self._queue.look(session, job)
            self._announce(session, job)
        return job, self._refusal(job, choice.message)

    def _outcome(
        self, at_ms: int, job: ItemId, choice: Choice, *, waits: bool
    ) -> records.JobChanged:
        if waits:
            reason = self._queue.reason(choice)
            return records.JobChanged(at_ms, job, JobState.QUEUED, None, reason)
        if choice.runner is None:
            return records.JobChanged(at_ms, job, JobState.FAILED, None, choice.code)
        return records.JobChanged(at_ms, job, JobState.ASSIGNED, choice.runner.key, None)

    def _refusal(self, job: Job, message: str) -> Refusal | None:
        """The refusal of a job that went to no runner, or None."""
        if job.runner is not None or job.reason not in (NO_RUNNER, BUSY):
            return None
        return Refusal(job.reason, message or "no runner could take this job")

    # ── runners ──────────────────────────────────────────────────────────────────────────────

    def stream_opened(self, session: Session, runner: Participant) -> None:
        """Says again what the runner may have missed while it had no stream."""
        runner.presence.streams += 1
        runner.presence.seen_ms = self._core.clock.ticks_ms()
        for job in session.jobs_of(runner.key).values():
            self._tell_runner(session, job)
        self._core.stir(session)

    def stream_closed(self, runner: Participant) -> None:
        runner.presence.streams -= 1
        runner.presence.lost_ms = runner.presence.seen_ms = self._core.clock.ticks_ms()

    # ── the life of a job ────────────────────────────────────────────────────────────────────

    def job(self, session: Session, job_id: str) -> Job:
        found = session.jobs.get(ItemId(job_id))
        if found is None:
            raise Refusal("not_found", "no such job in this session")
        return found

    def look_at(self, session: Session, job_id: str) -> Job:
        """The job, and where it stands at this moment."""
        found = self.job(session, job_id)
        self._queue.look(session, found)
        return found

    async def claim(self, session: Session, runner: Participant, job_id: str) -> None:
        """The runner begins. Raises Refusal `not_assigned` when the job is not its own any more."""
        async with session.lock:
            job = self.job(session, job_id)
            if job.runner != runner.key or not job.is_active:
                raise Refusal("not_assigned", "this job is not assigned to this runner")
            if job.state == JobState.ASSIGNED:
                await self._change(session, job, JobState.RUNNING, None)

    async def cancel(self, session: Session, who: Participant, job_id: str) -> None:
        """Withdraws a job nobody has begun; asks the runner to stop one it has."""
        async with session.lock:
            job = self.job(session, job_id)
            if who.role is not Role.OWNER and who.key != job.author:
                raise Refusal("forbidden", "only the owner and the job's author may cancel it")
            if job.is_over:
                return
            if job.cancel_since_ms is None:
                asked = records.CancelAsked(self._core.clock.now_ms(), job.id, who.key)
                await self._core.write(session, asked)
            self._tell_runner(session, job)
            if job.state in (JobState.ASSIGNED, JobState.QUEUED):
                await self._change(session, job, JobState.FAILED, CANCELLED)

    async def post_result(
        self,
        session: Session,
        runner: Participant,
        envelope: Envelope,
        start: bytes,
        body: Body,
    ) -> int:
        """Takes the result of a job from the runner it was given to, once. Raises Refusal."""
        if await self._items.is_known(session, envelope):
            return session.items[envelope.id].seq
        self._job_answered(session, runner, envelope)
        async with (
            await self._blobs.receive(session, runner, envelope.blob_size, start, body) as blob,
            session.lock,
        ):
            job = self._job_answered(session, runner, envelope)

            def changes(posted: records.Posted) -> Sequence[AnyRecord]:
                done = records.JobChanged(posted.at_ms, job.id, JobState.FINISHED, runner.key, None)
                return [msgspec.structs.replace(posted, job=job.id), done]

            await self._items.store(session, runner, envelope, blob, changes)
            seq = session.items[envelope.id].seq
            result = {"envelope": envelope.document, "seq": seq}
            self._core.hub.tell_job(session.id, job.id, _message(EventKind.ITEM, result))
            self._announce(session, job)
        await self._items.evict_if_delivered(session, job.id)
        return seq

    def _job_answered(self, session: Session, runner: Participant, envelope: Envelope) -> Job:
        """The job a result names first, if this runner may answer it."""
        refs = envelope.header.refs
        job = session.jobs.get(ItemId(refs[0].id)) if refs else None
        if job is None or refs[0].blob_sha256 != b64u_encode(job.blob_sha256):
            raise Refusal("invalid_item", "a result names its job first among its references")
        if job.runner is None or job.runner != runner.key:
            raise Refusal("not_assigned", "this job was not assigned to this participant")
        if job.result is not None and job.result != envelope.id:
            raise Refusal("duplicate", "this job has its result already")
        return job

    # ── waiting for a slot ───────────────────────────────────────────────────────────────────

    async def serve_waiting(self, session: Session) -> None:
        """Gives free slots to jobs that wait, ends those that wait in vain, and tells the others
        where they stand. Raises AirloxError; it is to be called again then."""
        async with session.lock:
            if session.is_closed:
                return
            for job, reason in self._queue.overdue(session):
                await self._change(session, job, JobState.FAILED, reason)
            await self._assign_waiting(session)
            for job in self._queue.news(session):
                self._announce(session, job)

    async def _assign_waiting(self, session: Session) -> None:
        for job in await self._queue.assign(session):
            self._announce(session, job)

    # ── ends nobody reports ──────────────────────────────────────────────────────────────────

    async def end_overdue(self, session: Session) -> None:
        """Ends jobs whose time is over."""
        for job in list(session.active_jobs.values()):
            if self._overdue(session, job) is None:
                continue
            async with session.lock:
                reason = self._overdue(session, job)
                if reason is not None and not session.is_closed:
                    was_claimed = job.state == JobState.RUNNING
                    self._withdraw(session, job)
                    await self._change(session, job, JobState.FAILED, reason)
                    # after it, since heartbeats come meanwhile; its slot goes to nobody before
                    # the session's lock is free
                    if was_claimed:
                        self._runners.doubt_slot_of(session, job)

    def _overdue(self, session: Session, job: Job) -> str | None:
        """The reason to end a job now, or None."""
        if not job.is_active or job.runner is None:
            return None
        config, now_ms = self._core.config, self._core.clock.ticks_ms()
        runner = session.participants[job.runner]
        if not runner.is_here:
            return RUNNER_LOST
        if job.cancel_since_ms is not None:
            is_over = now_ms - job.cancel_since_ms >= config.cancel_timeout_s * 1000
            return CANCELLED if is_over else None
        away_ms = 0 if runner.presence.streams else now_ms - runner.presence.seen_ms
        if away_ms >= config.runner_grace_s * 1000:
            return RUNNER_LOST
        is_waiting = job.state == JobState.ASSIGNED
        most_s = config.claim_timeout_s if is_waiting else self._run_limit_s(session)
        return RUNNER_LOST if now_ms - job.since_ms >= most_s * 1000 else None

    def _run_limit_s(self, session: Session) -> int:
        job_limits = session.manifest.job_limits
        return self._core.config.runner_grace_s + (job_limits.timeout_s if job_limits else 0)

    def _withdraw(self, session: Session, job: Job) -> None:
        if job.runner is not None:
            message = _message(EventKind.JOB_CANCEL, {"job": job.id})
            self._core.hub.tell_runner(session.id, job.runner, message)

    # ── helpers ──────────────────────────────────────────────────────────────────────────────

    async def _change(self, session: Session, job: Job, state: str, reason: str | None) -> None:
        record = records.JobChanged(self._core.clock.now_ms(), job.id, state, job.runner, reason)
        await self._core.write(session, record)
        self._announce(session, job)
        if job.is_over:  # its runner may have been the last it was kept for
            await self._items.evict_if_delivered(session, job.id)

    def _announce(self, session: Session, job: Job) -> None:
        """Tells the runner and the job's own streams what has become of it."""
        if job.state == JobState.ASSIGNED:
            self._tell_runner(session, job)
        job.told = (job.place, job.reason)
        self._core.hub.tell_job(session.id, job.id, _message(EventKind.JOB, describe(job)))
        if job.is_over:
            self._core.hub.tell_job(session.id, job.id, _message(EventKind.END, {}))
            self._core.hub.end_job(session.id, job.id)

    def _tell_runner(self, session: Session, job: Job) -> None:
        if job.runner is None:
            return
        kind = EventKind.JOB_ASSIGNED if job.cancel_since_ms is None else EventKind.JOB_CANCEL
        if kind == EventKind.JOB_ASSIGNED and job.state != JobState.ASSIGNED:
            return
        self._core.hub.tell_runner(session.id, job.runner, _message(kind, {"job": job.id}))


def describe(job: Job) -> dict[str, object]:
    """What `GET /jobs/{id}` and a `job` event on its stream say; `place` only while it waits."""
    said: dict[str, object] = {
        "job": job.id,
        "state": job.state,
        "runner": job.runner,
        "reason": job.reason,
    }
    return {**said, "place": job.place} if job.is_waiting else said


def _parse_target(text: str | None) -> Target:
    if text is None:
        raise Refusal("bad_request", "the header airlox-target is missing")
    try:
        return parse_target(text)
    except ProtocolError as error:
        raise refuse("bad_request", error) from None


def _message(kind: str, data: object) -> bytes:
    return encode_event(None, kind, msgspec.json.encode(data).decode())
