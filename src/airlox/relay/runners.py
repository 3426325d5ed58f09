"""The runners of a session as the relay sees them: who is there, who has room, who gets a job.

What a runner says of itself (a heartbeat, how many jobs it would take) is its own word; approval is
the owner's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from airlox.protocol.encoding import ItemId
from airlox.protocol.job import AnyRunner, OneRunner, Target
from airlox.protocol.wire import JobState
from airlox.relay.entities import Job, Participant
from airlox.relay.service import Core
from airlox.relay.state import Session

NO_RUNNER = "no_runner_available"
BUSY = "runner_busy"

RECONNECT_MS = 10_000
"""How long a runner whose stream ended counts as online without a further heartbeat."""


class Heartbeat(msgspec.Struct, frozen=True):
    """What a runner says of itself every few seconds. `jobs`: those it took and knows not to be
    over; `slots`: how many more it would take; `stopping`: none, also when they are over."""

    job: str | None = None
    slots: int | None = None
    jobs: tuple[ItemId, ...] = ()
    stopping: bool = False


class Choice(NamedTuple):
    """The runner for a job, or why there is none."""

    runner: Participant | None
    code: str = NO_RUNNER
    message: str = ""


class Runners:
    def __init__(self, core: Core) -> None:
        self._core = core

    # ── choosing ─────────────────────────────────────────────────────────────────────────────

    def choose(self, session: Session, target: Target, *, patient: bool = False) -> Choice:
        """A free runner for a target: the one with the fewest jobs, of those the first to join.

        In a floor session the code is always the one that 0.1.0 clients act on. `patient`: for a
        job that rather waits than goes to a runner that may have gone.
        """
        present = self.fitting(session, target)
        allowed = [each for each in present if self.is_approved(session, each)]
        online = [each for each in allowed if self.is_online(each)]
        free = [
            each
            for each in online
            if self.free_slots(session, each) > 0 and (self._is_certain(each) or not patient)
        ]
        if free:
            return Choice(min(free, key=lambda each: len(session.jobs_of(each.key))))
        if online:
            code = BUSY if session.manifest.is_full else NO_RUNNER
            return Choice(None, code, "every runner that matches is busy")
        if allowed:
            return Choice(None, NO_RUNNER, "the runner that matches is offline")
        if present:
            return Choice(None, NO_RUNNER, "the runner that matches waits for approval")
        return Choice(None, NO_RUNNER, "no runner matches")

    def fitting(self, session: Session, target: Target) -> list[Participant]:
        """The runners that a target means, as far as they are still there."""
        return [
            each
            for each in session.runners()
            if each.is_here and not each.rejected and _matches(each, target)
        ]

    def free_slots(self, session: Session, runner: Participant) -> int:
        """In a floor session a runner takes one job at a time, whatever it says.

        A slot is free as soon as the result is here: whoever has seen it may post the next job
        before the runner knows that it arrived.
        """
        active = session.jobs_of(runner.key)
        if not session.manifest.is_full:
            return 1 - len(active)
        presence = runner.presence
        given_up = sum(session.is_given_up(job) for job in presence.taking)
        return presence.capacity - len(active) - given_up

    def ready(self, session: Session) -> Iterable[Participant]:
        """Those that jobs that wait may be given to: approved, and certainly there."""
        for each in session.runners():
            if self.is_approved(session, each) and self.is_online(each) and self._is_certain(each):
                yield each

    def _is_certain(self, runner: Participant) -> bool:
        """Not one whose stream just ended: it may come back in a moment, or never. A sign of life
        will tell."""
        presence = runner.presence
        lost_ms, heartbeat_ms = presence.lost_ms, presence.heartbeat_ms or 0
        return presence.streams > 0 or lost_ms is None or heartbeat_ms > lost_ms

    # ── being there ──────────────────────────────────────────────────────────────────────────

    def is_approved(self, session: Session, runner: Participant) -> bool:
        limits = session.manifest.job_limits
        if runner.rejected or limits is None:
            return False
        return runner.approved or not limits.approve_runners

    def is_online(self, runner: Participant) -> bool:
        presence = runner.presence
        if not runner.is_here:
            return False
        if presence.streams:
            return True
        if presence.heartbeat_ms is None:
            return False
        now_ms, lost_ms = self._core.clock.ticks_ms(), presence.lost_ms
        if lost_ms is not None and presence.heartbeat_ms <= lost_ms:
            # Silent since its stream ended: it has a moment to come back, then it is gone.
            return now_ms - lost_ms < RECONNECT_MS
        return now_ms - presence.heartbeat_ms < self._core.config.online_timeout_s * 1000

    def heartbeat(self, session: Session, runner: Participant, beat: Heartbeat) -> None:
        presence = runner.presence
        presence.heartbeat_ms = presence.seen_ms = self._core.clock.ticks_ms()
        if beat.slots is not None and session.manifest.is_full:
            # Jobs it has claimed count as taken in its own figure; those on their way do not. One
            # whose result came while this was under way is among those it names, beside the next.
            presence.taking = frozenset(job for job in beat.jobs if job in session.jobs)
            active = session.jobs_of(runner.key)
            running = {job for job in active if active[job].state == JobState.RUNNING}
            capacity = beat.slots + len(presence.taking | running)
            presence.capacity = 0 if beat.stopping else max(0, min(capacity, 1000))
        self._core.stir(session)

    def doubt_slot_of(self, session: Session, job: Job) -> None:
        """A claimed job ended of which its runner said nothing: it may be running all the same, so
        its slot is not free until the runner says so, or its result comes."""
        if job.runner is not None:
            session.participants[job.runner].presence.taking |= {job.id}

    def listing(self, session: Session) -> list[dict[str, object]]:
        """What `GET /runners` says."""
        rows: list[dict[str, object]] = []
        for runner in session.runners():
            active = session.jobs_of(runner.key)
            rows.append(
                {
                    "participant_pub": runner.key,
                    "signed_join": runner.join.document,
                    "approved": self.is_approved(session, runner),
                    "rejected": runner.rejected,
                    "online": self.is_online(runner),
                    "job": next(iter(active), None),
                }
            )
        return rows


def _matches(runner: Participant, target: Target) -> bool:
    if isinstance(target, AnyRunner):
        return True
    if isinstance(target, OneRunner):
        return runner.key == target.participant_pub
    info = runner.join.runner
    return info is not None and set(target.labels) <= set(info.labels)
