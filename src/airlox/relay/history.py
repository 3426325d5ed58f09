"""What a relay forgets of sessions with `history`, and how whoever reads learns of it.

A finished job is forgotten once it is old, or once there are too many younger ones: the job, its
result, its cancels, the files that only these name, their blobs and every event that speaks of
them. Of files that people sent only those go that were input of their own author's jobs. The
numbers of those events are never given again. A reader that comes to such numbers is told `gap`,
everybody else `forgotten`, with all ranges that were ever forgotten: so only the newest of these
events is needed, and a state page is nothing but the events that are left.

It happens in two steps, each of them one durable record or nothing: `Forgot` (from then on nobody
is told any more), and now and then the log is written anew without what was forgotten. With an
audit folder the trail of the jobs is written there before the first step, each time as a file that
can be checked alone; after a crash between the two a job may stand in two of them.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import Final

from airlox import safefs
from airlox.protocol import limits
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import Kind
from airlox.protocol.keys import Role
from airlox.protocol.wire import EventKind
from airlox.relay import records
from airlox.relay.audit import Extract, trail_parts
from airlox.relay.entities import Job, StoredItem
from airlox.relay.service import Core
from airlox.relay.state import Session

FRESH_MS: Final = 600_000
"""A job that ended less than this ago is not forgotten for want of room: its sender may be about
to fetch the result."""
SLACK: Final = 20
"""Jobs are forgotten in batches of a twentieth, so that few events tell of it."""
REWRITE_BYTES: Final = 1 << 20
"""A log is written anew when it has at least this much, half of it of forgotten things."""


# ── reading ──────────────────────────────────────────────────────────────────────────────────


def old_numbers(session: Session, jobs: int) -> frozenset[int]:
    """Numbers of the events of finished jobs and what goes with them, but for the `jobs` newest."""
    over = [job for job in session.jobs.values() if job.is_over]
    going = going_with(session, over[: max(0, len(over) - jobs)])
    return frozenset(session.numbers_about(going))


def events_page(session: Session, at: int, limit: int, aside: Set[int] = frozenset()) -> bytes:
    """The answer of `/events` from number `at` on: at most `limit` events, and about a MiB. A gap
    stands for what was forgotten, and for the numbers `aside`."""
    end, most = len(session.events), max(1, min(limit, limits.PAGE_EVENTS))
    part, count = bytearray(b'{"events":['), 0
    while at < end and count < most and len(part) < limits.PAGE_BYTES:
        event = None if at in aside else session.events[at]
        part += b"," if count else b""
        if event is None:
            first = at
            while at + 1 < end and (at + 1 in aside or session.events[at + 1] is None):
                at += 1
            part += f'{{"seq":{at},"kind":"{EventKind.GAP}","data":{{"first":{first}}}}}'.encode()
        else:
            part += f'{{"seq":{at},"kind":"{event.kind}","data":{event.data}}}'.encode()
        at += 1
        count += 1
    more = "true" if at < end else "false"
    part += f'],"last_seq":{end - 1},"more":{more}}}'.encode()
    return bytes(part)


# ── forgetting ───────────────────────────────────────────────────────────────────────────────


class History:
    """Forgets, session by session; to be called by one task only."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def forget_old(self, session: Session) -> None:
        """Forgets what is due in a session. Raises AirloxError; then nothing was forgotten."""
        if not session.keeps_history or session.is_closed:
            return
        if jobs := self._due(session):
            await self._export(session, jobs)
            async with session.lock:
                still = [job for job in jobs if session.jobs.get(job.id) is job]
                if session.is_closed or not still:
                    return
                names = tuple(job.id for job in still)
                items = tuple(going_with(session, still))
                record = records.Forgot(self._core.clock.now_ms(), names, items)
                await self._core.write(session, record)
        await self._write_anew(session)

    def _due(self, session: Session) -> list[Job]:
        """Finished jobs to forget now, oldest first; none while it is not worth an event."""
        config, now_ms = self._core.config, self._core.clock.now_ms()
        over = [job for job in session.jobs.values() if job.is_over]
        over.sort(key=lambda job: job.ended_at_ms)
        oldest_ms = now_ms - config.history_s * 1000
        old = sum(job.ended_at_ms <= oldest_ms for job in over)
        worth_it = (
            bool(over) and over[0].ended_at_ms <= oldest_ms - config.history_s * 1000 // SLACK
        )
        surplus = len(over) - config.history_jobs
        too_many = surplus > config.history_jobs // SLACK
        if self._core.quotas.is_filling(session):
            surplus, too_many = max(surplus, len(over) // 4), True
        count = max(old if worth_it or too_many else 0, surplus if too_many else 0)
        return [
            job
            for at, job in enumerate(over[:count])
            if at < old or job.ended_at_ms <= now_ms - FRESH_MS
        ]

    async def _write_anew(self, session: Session) -> None:
        """Rids the log of what was forgotten, once that is half of it."""
        if (
            session.record_bytes < max(REWRITE_BYTES, 2 * session.rewritten_bytes)
            or not session.gaps()
        ):
            return
        gaps = session.gaps()
        saved: list[int] = []

        def rewrite(entries: list[bytes]) -> list[bytes]:
            """In another thread: touches nothing but the entries."""
            kept = without_forgotten(entries, gaps)
            saved.append(sum(map(len, entries)) - sum(map(len, kept)))
            return kept

        def then() -> None:
            session.record_bytes -= saved[-1]
            session.rewritten_bytes = session.record_bytes

        await self._core.store.rewrite(session.id, rewrite, then)

    async def _export(self, session: Session, jobs: Sequence[Job]) -> None:
        """Writes down what is about to be forgotten, with all that it is checked by.

        Raises StorageError.
        """
        folder = self._core.config.audit_dir
        if folder is None:
            return
        entries = await self._core.store.read(session.id)
        names = tuple(job.id for job in jobs)
        extract = Extract(names, frozenset(going_with(session, jobs)))
        parts = [part async for part in trail_parts(self._core, session, entries, extract)]
        path = os.path.join(folder, f"{session.id}-{self._core.clock.now_ms()}.jsonl")
        await asyncio.to_thread(_save_trail, path, parts)


def going_with(session: Session, jobs: Sequence[Job]) -> list[ItemId]:
    """Jobs, results, cancels, and the files that no other item names."""
    going = dict.fromkeys(item for job in jobs for item in (job.id, *job.others))
    seen: Counter[ItemId] = Counter()
    used: set[ItemId] = set()
    waiting = list(going)
    for at in waiting:  # which grows meanwhile: files may name files
        namer = session.items.get(at)
        for name in () if namer is None else namer.names:
            file = session.items.get(name)
            if namer is None or file is None:
                continue
            seen[name] += 1
            if namer.kind in (Kind.JOB, Kind.RESULT) and _is_job_file(file, namer):
                used.add(name)
            if name in used and seen[name] == file.named and name not in going:
                going[name] = None
                waiting.append(name)
    return list(going)


def _is_job_file(file: StoredItem, namer: StoredItem) -> bool:
    """Whether it is for jobs alone: nobody can have files of others forgotten by naming them."""
    return file.author is namer.author or file.author.role is Role.RUNNER


def _save_trail(path: str, parts: Sequence[bytes]) -> None:
    safefs.make_private_dir(os.path.dirname(path))
    safefs.write_private(path, b"".join(parts))


# ── the log ──────────────────────────────────────────────────────────────────────────────────


def without_forgotten(entries: Iterable[bytes], gaps: Sequence[tuple[int, int]]) -> list[bytes]:
    """The log that leads to the same state without what was forgotten. `gaps`: of that state.

    Read backwards: `Forgot` speaks of what came before it, and an id that was forgotten may have
    been given anew since.
    """
    gone: set[ItemId] = set()
    ended: set[ItemId] = set()
    kept: list[bytes] = []
    forgot_at: int | None = None
    for entry in reversed(list(entries)):
        record = records.decode(entry)
        match record:
            case records.Created():
                kept += (records.encode(records.Gaps(record.at_ms, tuple(gaps))), entry)
            case records.Gaps():
                pass
            case records.Forgot(at_ms=at_ms):
                gone.update(map(ItemId, record.items))
                ended.update(map(ItemId, record.jobs))
                if forgot_at is None:
                    forgot_at = at_ms
                    kept.append(records.encode(records.Forgot(at_ms, (), ())))
            case records.PackStored() | records.PacksDropped() if ItemId(record.job) in ended:
                pass  # a job's packs may have come before the job
            case records.Posted() if ItemId(record.item) in gone:
                gone.discard(ItemId(record.item))
            case _ if records.named_item(record) not in gone:
                kept.append(entry)
    kept.reverse()
    return kept
