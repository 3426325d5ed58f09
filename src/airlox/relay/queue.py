"""Jobs that wait for a slot: who gets the next one, where each stands and why, and when to give up.

    post ─► queued ─► assigned …   a slot became free, and it was this job's turn
              └─────► failed       queue_expired, author_left, no_runner_available, cancelled

Whose turn it is, is turns.py's to say. Places and reasons are told to whoever asks, and on the
jobs' own streams, there at most once a second; the session's events tell only that a job waits, and
what became of it.
"""

from __future__ import annotations

from typing import Final

from airlox.protocol.encoding import ItemId, PublicKey
from airlox.protocol.job import OneRunner, Target, parse_target
from airlox.protocol.manifest import Feature
from airlox.protocol.wire import JobState, WaitReason
from airlox.relay import records, turns
from airlox.relay.config import setting_of
from airlox.relay.entities import Job
from airlox.relay.refusals import Refusal
from airlox.relay.runners import BUSY, NO_RUNNER, Choice, Runners
from airlox.relay.service import Core
from airlox.relay.state import Session

EXPIRED: Final = "queue_expired"
AUTHOR_LEFT: Final = "author_left"
TELL_MS: Final = 1_000
"""Pause between two looks at who stands where."""
SECONDS_DIGITS: Final = 9


class Queue:
    """Whoever calls what changes a session holds its lock."""

    def __init__(self, core: Core, runners: Runners) -> None:
        self._core = core
        self._runners = runners

    def parse_wait(self, session: Session, text: str | None) -> int:
        """Seconds that a job may wait, as its post says it; 0 for one that does not. Raises
        Refusal."""
        if text is None:
            return 0
        if not session.manifest.has(Feature.QUEUE):
            raise Refusal("policy", "this session was created without the feature queue")
        if not text.isascii() or not text.isdigit() or len(text) > SECONDS_DIGITS or not int(text):
            raise Refusal("bad_request", "a job waits for a whole number of seconds")
        if int(text) > self._core.config.max_queue_wait_s:
            setting = setting_of(self._core.config, "max_queue_wait_s")
            raise Refusal("policy", "jobs do not wait for so long on this relay", setting=setting)
        return int(text)

    def may_wait(self, session: Session, target: Target) -> bool:
        """Whether a runner for a target may come yet: one that was named and has gone does not."""
        return not isinstance(target, OneRunner) or bool(self._runners.fitting(session, target))

    async def assign(self, session: Session) -> list[Job]:
        """Gives the free slots to jobs that wait; which jobs those are. Raises AirloxError."""
        if not session.waiting:
            return []
        free = {
            each.bit: self._runners.free_slots(session, each)
            for each in self._runners.ready(session)
        }
        if not any(slots > 0 for slots in free.values()):
            return []
        keys = {each.bit: each.key for each in session.runners()}
        given = turns.share_out(self._lines(session), free)
        jobs = [session.waiting[ItemId(each.job)] for each, _ in given]
        if given:
            now_ms = self._core.clock.now_ms()
            changes = [
                records.JobChanged(now_ms, each.job, JobState.ASSIGNED, keys[bit], None)
                for each, bit in given
            ]
            await self._core.write(session, *changes)
        return jobs

    def overdue(self, session: Session) -> list[tuple[Job, str]]:
        """Jobs that wait in vain, and why."""
        targets = {job.target for job in session.waiting.values()}
        hopeless = {each for each in targets if not self.may_wait(session, parse_target(each))}
        found: list[tuple[Job, str]] = []
        for job in session.waiting.values():
            if not session.participants[PublicKey(job.author)].is_here:
                found.append((job, AUTHOR_LEFT))
            elif self._core.clock.ticks_ms() - job.since_ms >= job.wait_s * 1000:
                found.append((job, EXPIRED))
            elif job.target in hopeless:
                found.append((job, NO_RUNNER))
        return found

    def news(self, session: Session) -> list[Job]:
        """The jobs that somebody listens to and whose place or reason is another than was told.

        At most once in a while: until then there is no news.
        """
        now_ms = self._core.clock.ticks_ms()
        if now_ms - session.places_ms < TELL_MS:
            return []
        session.places_ms = now_ms
        heard = [
            job for job in session.waiting.values() if self._core.hub.hears_job(session.id, job.id)
        ]
        self.look(session, *heard)
        return [job for job in heard if (job.place, job.reason) != job.told]

    def look(self, session: Session, *jobs: Job) -> None:
        """Notes where jobs stand now, as far as they wait."""
        waiting = [job for job in jobs if job.is_waiting]
        if not waiting:
            return
        order = turns.in_turn(self._lines(session))
        fits = {each.job: each.fits for each in order}
        ready = sum(each.bit for each in self._runners.ready(session))
        for job in waiting:
            job.place = turns.place(order, job.id)
            is_busy = fits[job.id] & ready
            job.reason = WaitReason.BUSY if is_busy else WaitReason.NO_RUNNER

    def reason(self, choice: Choice) -> str:
        """Why a job waits for which no runner was found."""
        return WaitReason.BUSY if choice.code == BUSY else WaitReason.NO_RUNNER

    def _lines(self, session: Session) -> list[list[turns.Waiting]]:
        fits: dict[str, int] = {}
        waiting = []
        for job in session.waiting.values():
            if job.target not in fits:
                found = self._runners.fitting(session, parse_target(job.target))
                fits[job.target] = sum(each.bit for each in found)
            waiting.append(turns.Waiting(job.id, job.author, fits[job.target]))
        return turns.lines_of(
            waiting, lambda sender: session.participants[PublicKey(sender)].served
        )
