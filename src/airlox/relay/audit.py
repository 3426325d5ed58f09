"""The audit trail of a session: its records as JSON lines, with what they can be checked by.

A line says what the relay claims happened; the signed documents in it prove the rest. Tokens and
secrets are in no line, not even hashed. The numbers of items are those of their events, which
authors sign when they link to them; they are found by going through the records once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import UNSET

from airlox.protocol import trail
from airlox.protocol.encoding import ItemId, PublicKey, b64u_encode
from airlox.protocol.item import Kind
from airlox.protocol.keys import Role
from airlox.protocol.wire import JobState
from airlox.relay import records
from airlox.relay.entities import STANDING_BLOB_BYTES
from airlox.relay.records import AnyRecord
from airlox.relay.service import Core
from airlox.relay.state import Session

ENTRIES_AT_ONCE: Final = 200
"""A long trail goes out in pieces: it keeps neither the relay nor its memory. With the blobs of
events a piece has some megabytes at most."""

_JOB_ENTRIES: Final[Mapping[str, type[trail.OfJob]]] = {
    JobState.QUEUED: trail.Queued,
    JobState.ASSIGNED: trail.Assigned,
    JobState.RUNNING: trail.Claimed,
    JobState.FINISHED: trail.Finished,
    JobState.FAILED: trail.Failed,
}


class Extract(NamedTuple):
    """Jobs, and all items that are told of with them."""

    jobs: tuple[ItemId, ...]
    items: frozenset[ItemId]


async def trail_parts(
    core: Core, session: Session, entries: Sequence[bytes], extract: Extract | None = None
) -> AsyncIterator[bytes]:
    """The trail of a session, given all its entries, or an extract of it, with all that it is
    checked by. Raises StorageError.
    """
    writer = TrailWriter(Session(session.id, core.clock, session.place), extract)
    for at in range(0, len(entries), ENTRIES_AT_ONCE):
        part = [records.decode(entry) for entry in entries[at : at + ENTRIES_AT_ONCE]]
        blobs = await _blobs_of_events(core, session, part) if session.manifest.is_full else {}
        yield await asyncio.to_thread(writer.lines, part, blobs)


async def _blobs_of_events(
    core: Core, session: Session, part: Sequence[AnyRecord]
) -> dict[ItemId, bytes]:
    """What the owner's events say, sealed: their blobs stay on the relay."""
    found: dict[ItemId, bytes] = {}
    for record in part:
        if not isinstance(record, records.Posted) or record.kind != Kind.EVENT:
            continue
        item = session.items.get(ItemId(record.item))
        if item is not None and item.stands and item.has_blob:
            blob = await core.store.open_blob(session.id, record.item)
            try:
                found[ItemId(record.item)] = await blob.read(STANDING_BLOB_BYTES)
            finally:
                blob.close()
    return found


class TrailWriter:
    """Turns the records of a session, from the first on, into lines. `replay` is a session without
    records, to go through them with."""

    def __init__(self, replay: Session, extract: Extract | None = None) -> None:
        self._replay = replay
        self._extract = extract

    def lines(self, part: Sequence[AnyRecord], blobs: Mapping[ItemId, bytes]) -> bytes:
        """One JSON object and a newline for each of the next records that belongs to the trail."""
        found = []
        for record in part:
            self._replay.apply(record)
            entry = self._entry(record, blobs) if self._is_told(record) else None
            if entry is not None:
                found.append(trail.encode_entry(entry) + b"\n")
            if self._extract is not None and isinstance(record, records.Created):
                mark = trail.Extract(at_ms=record.at_ms, jobs=self._extract.jobs)
                found.append(trail.encode_entry(mark) + b"\n")
        return b"".join(found)

    def _is_told(self, record: AnyRecord) -> bool:
        """Whether a record is about the jobs of the extract, or about who may do what."""
        named = records.named_item(record)
        if self._extract is None or named is None or named in self._extract.items:
            return True
        return (
            isinstance(record, records.Posted)
            and record.kind == Kind.EVENT
            and not record.about
            and self._replay.participants[PublicKey(record.author)].role is Role.OWNER
        )

    def _entry(self, record: AnyRecord, blobs: Mapping[ItemId, bytes]) -> trail.AnyEntry | None:
        at_ms = record.at_ms
        match record:
            case records.Created(manifest=manifest):
                return trail.Created(at_ms=at_ms, signed_manifest=manifest)
            case records.Joined(join=join):
                return trail.Joined(at_ms=at_ms, signed_join=join)
            case records.Posted():
                return self._posted(record, blobs.get(ItemId(record.item)))
            case records.Acked(item=item, participant=who):
                return trail.Acked(at_ms=at_ms, item=item, participant_pub=who)
            case records.Left(participant=who):
                return trail.Left(at_ms=at_ms, participant_pub=who)
            case records.Revoked(role=role):
                return trail.Revoked(at_ms=at_ms, role=role)
            case records.EpochBegan(document=document):
                return trail.EpochBegan(at_ms=at_ms, signed_epoch=document)
            case records.Approved(participant=who):
                return trail.Approved(at_ms=at_ms, participant_pub=who)
            case records.Rejected(participant=who):
                return trail.Rejected(at_ms=at_ms, participant_pub=who)
            case records.Wanted(item=item, participant=who):
                return trail.Wanted(at_ms=at_ms, item=item, participant_pub=who)
            case records.Evicted(item=item):
                return trail.Evicted(at_ms=at_ms, item=item)
            case records.Reseeded(item=item, participant=who):
                return trail.Reseeded(at_ms=at_ms, item=item, participant_pub=who)
            case _:
                return _job_entry(record)

    def _posted(self, record: records.Posted, blob: bytes | None) -> trail.Posted:
        return trail.Posted(
            at_ms=record.at_ms,
            envelope=record.envelope,
            blob_sha256=b64u_encode(record.blob_sha256),
            seq=self._replay.items[ItemId(record.item)].seq,
            blob=UNSET if blob is None else b64u_encode(blob),
        )


def _job_entry(record: AnyRecord) -> trail.AnyEntry | None:
    """The entry of a record about jobs; None for one that is in no trail."""
    at_ms = record.at_ms
    match record:
        case records.JobChanged(job=job, state=state, runner=runner, reason=reason):
            kind = _JOB_ENTRIES[state]
            return kind(at_ms=at_ms, job=job, participant_pub=runner, reason=reason)  # type: ignore[return-value]
        case records.CancelAsked(job=job, participant=who):
            return trail.CancelAsked(at_ms=at_ms, job=job, participant_pub=who)
        case records.Forgot(jobs=jobs):
            return trail.Forgotten(at_ms=at_ms, jobs=jobs)
        case records.Gaps(ranges=ranges):
            return trail.Forgotten(at_ms=at_ms, ranges=ranges)
        case _:
            return None
