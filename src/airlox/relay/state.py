"""The state of one session: the fold of its records, the same when they happen and at a start.

`apply` never refuses: a record is something that was accepted and is durable. Rules are in
service.py and its neighbours. Beside the folded state a session holds what only lives as long as
the process (who is connected, what is on its way in, ticks); those fields say so. Time-outs are
counted in ticks, so that a clock that is set ends nothing early or late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from airlox.protocol.cert import Join, parse_join
from airlox.protocol.digest import sha256
from airlox.protocol.encoding import ItemId, PublicKey, SessionId
from airlox.protocol.epochs import EpochState, parse_epoch
from airlox.protocol.keys import Role
from airlox.protocol.limits import FORGOTTEN_RANGES
from airlox.protocol.manifest import Feature, Manifest, parse_manifest
from airlox.protocol.sse import encode_event
from airlox.protocol.wire import EventKind, JobState
from airlox.relay import records
from airlox.relay.clock import Clock
from airlox.relay.entities import RUNNERS_READ, Event, Job, Pack, PackSet, Participant, StoredItem
from airlox.relay.gates import Place
from airlox.relay.records import AnyRecord

RECENT_EVENTS: Final = 64
"""A group that became durable together reaches every stream at once."""
NEVER_MS: Final = 1 << 62
"""Ticks begin at any number."""
_NO_JOBS: Final[Mapping[ItemId, Job]] = {}


class Underway:
    """An item on its way to the disk. As a context it holds the item's id meanwhile; others that
    bring the same item wait for it."""

    __slots__ = ("_done", "_id", "_session", "_size", "envelope_sha256")

    def __init__(self, session: Session, item: ItemId, envelope: str) -> None:
        document = envelope.encode()
        self.envelope_sha256 = sha256(document)
        self._size = len(document)
        self._session = session
        self._id = item
        self._done: asyncio.Future[bool] | None = None

    def __enter__(self) -> None:
        self._session.underway[self._id] = self
        self._session.underway_bytes += self._size

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        del self._session.underway[self._id]
        self._session.underway_bytes -= self._size
        if self._done is not None:
            self._done.set_result(kind is None)

    async def arrives(self) -> bool:
        """Waits for its end; False when it was not stored."""
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._done)


class Session:
    def __init__(self, sid: SessionId, clock: Clock, place: Place) -> None:
        self.id = sid
        self.place = place
        """Among the sessions of the relay; given back when it ends."""
        self._clock = clock
        self.manifest: Manifest
        self.participants: dict[PublicKey, Participant] = {}
        self.by_token: dict[bytes, Participant] = {}
        self.revoked_roles: set[Role] = set()
        self.epochs: EpochState
        self.epoch_documents: list[str] = []
        self.active_bits = 0
        """Participants whose tokens live, as a set of bits."""
        self._runner_bits = 0
        self.items: dict[ItemId, StoredItem] = {}
        self.jobs: dict[ItemId, Job] = {}
        self.active_jobs: dict[ItemId, Job] = {}
        self.waiting: dict[ItemId, Job] = {}
        """Jobs that wait for a slot, the oldest first."""
        self._kept: dict[ItemId, int] = {}
        """Blobs that stay for jobs that had to wait, and for how many."""
        self._jobs_of: dict[PublicKey, dict[ItemId, Job]] = {}
        self.pack_sets: dict[ItemId, PackSet] = {}
        self.keeps_history = False
        """Whether what is long over may be forgotten: the feature `history`."""
        self.events: list[Event | None] = []
        """By their numbers; None stands for one that was forgotten."""
        self.events_bytes = 0
        self.sealed_bytes = 0
        """Bytes of blobs and packs on the relay."""
        self._gaps: dict[int, int] = {}
        """Gaps that are still to come while a log is read: first and last number."""
        self._about: dict[ItemId, list[int]] = {}
        """Numbers of the events that speak of an item, in sessions with `history`."""
        self._forgotten_at: list[int] = []
        """Numbers of the events that say what was forgotten."""
        self.record_bytes = 0
        """Bytes of the records; whoever applies them counts."""
        self.rewritten_bytes = 0
        """What they were when the log was last written anew. Lives as long as the process."""
        # as long as the process
        self.checked: dict[str, Manifest | Join] = {}
        """Documents that were parsed and verified just now: applying them need not do it again."""
        self.is_closed = False
        self.next_epoch: int | None = None
        """One whose record is on the way to the disk: nothing of the last one comes after it."""
        self.joined_from: dict[str, int] = {}
        """Participants by the address they joined from, for those who were named."""
        self.lock = asyncio.Lock()
        """Held over check and commit of whatever changes participants or jobs."""
        self.underway: dict[ItemId, Underway] = {}
        self.underway_bytes = 0
        """Bytes of their envelopes."""
        self.incoming_bytes = 0
        self.places_ms = -NEVER_MS
        """When it was last looked at who stands where in the queue, in ticks."""
        self.someone_left = False
        """Blobs may have been kept for nobody else; the sweeper looks."""
        self._newcomers: dict[int, int] = {}
        """Bits of those who joined lately, and when, in ticks; they may fetch what came before."""
        self._newcomer_bits = 0
        self._asked: dict[ItemId, tuple[int, int]] = {}
        """Blobs that came back, the bits of those who asked, and when it came, in ticks."""
        self.dropped: list[str] = []
        """Names of blobs that `apply` let go of; whoever applies takes them from the store."""
        self._recent: list[tuple[int, bytes]] = [(-1, b"")] * RECENT_EVENTS

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def sse(self, seq: int) -> bytes:
        """An event as it stands on a stream; empty for a forgotten one.

        Recent ones are encoded once for all readers.
        """
        at, encoded = self._recent[seq % RECENT_EVENTS]
        if at != seq:
            event = self.events[seq]
            if event is None:
                return b""
            encoded = encode_event(seq, event.kind, event.data)
            if seq >= len(self.events) - RECENT_EVENTS:
                self._recent[seq % RECENT_EVENTS] = (seq, encoded)
        return encoded

    def gap_end(self, seq: int) -> int:
        """The last number of the gap that `seq` lies in."""
        last = len(self.events) - 1
        while seq < last and self.events[seq + 1] is None:
            seq += 1
        return seq

    def gaps(self) -> list[tuple[int, int]]:
        """Ranges of numbers whose events were forgotten."""
        found, seq = [], 0
        while seq < len(self.events):
            if self.events[seq] is None:
                found.append((seq, self.gap_end(seq)))
                seq = found[-1][1]
            seq += 1
        return found

    def numbers_about(self, items: Iterable[ItemId]) -> Iterator[int]:
        """Numbers of the events that speak of these items, in sessions with `history`."""
        for item in items:
            yield from self._about.get(item, ())

    def is_delivered(self, item_id: ItemId) -> bool:
        """Whether the item's blob may go: everybody it is kept for has it, and somebody has."""
        item = self.items[item_id]
        if item.stands or not item.has_blob or item.is_leaving or item_id in self._kept:
            return False
        readers = self._readers(item_id, item)
        return bool(readers & item.acks) and not self._kept_for(item_id, item, readers) & ~item.acks

    def reached(self, item_id: ItemId) -> tuple[int, int]:
        """Who has stored the item, and whom it is still kept for, as sets of bits.

        Nobody waits for a blob that is gone and that nobody asked back.
        """
        item = self.items[item_id]
        readers = self._readers(item_id, item)
        job = self.jobs.get(item_id)
        if job is not None and job.runner is not None:
            readers |= self._bit(job.runner)  # it read the job, also when that is over
        asked = sum(self._bit(key) for key in item.wants or ())
        waiting = self._kept_for(item_id, item, readers) if item.has_blob else asked
        return readers & item.acks, waiting & self.active_bits & ~item.acks

    def _readers(self, item_id: ItemId, item: StoredItem) -> int:
        """Who ever fetches the item's blob, also of those who have left: never its author, and of
        the runners only those that read what it is."""
        readers = (1 << len(self.participants)) - 1
        if item.kind not in RUNNERS_READ:
            readers &= ~self._runner_bits
            job = self.active_jobs.get(item_id)
            if job is not None and job.runner is not None:
                readers |= self._bit(job.runner)
        return readers & ~item.author.bit

    def _kept_for(self, item_id: ItemId, item: StoredItem, readers: int) -> int:
        """Those whom the blob waits for: who was there when it was posted, who joined lately, who
        asked for it."""
        asked, _ = self._asked.get(item_id, (0, 0))
        expected = item.present | self._newcomer_bits | asked
        return self.active_bits & readers & expected

    def forget_latecomers(self, newcomers_ms: int, asked_ms: int) -> bool:
        """Lets go of those who joined, and who asked for blobs, before some ticks and did not
        come for them; whether there were any."""
        late = [bit for bit, since_ms in self._newcomers.items() if since_ms <= newcomers_ms]
        for bit in late:
            del self._newcomers[bit]
            self._newcomer_bits &= ~bit
        unfetched = [item for item, (_, since) in self._asked.items() if since <= asked_ms]
        for item in unfetched:
            del self._asked[item]
        return bool(late or unfetched)

    def blob_names(self) -> set[str]:
        """Names of all blobs the session should have."""
        names = {str(item_id) for item_id, item in self.items.items() if item.has_blob}
        for job, found in self.pack_sets.items():
            names.update(pack_name(job, number) for number in found.packs)
        return names

    def runners(self) -> list[Participant]:
        """Runners in the order in which they joined, without those who left."""
        return [
            each
            for each in self.participants.values()
            if each.role is Role.RUNNER and (not each.has_left or each.rejected)
        ]

    def jobs_of(self, runner: PublicKey) -> Mapping[ItemId, Job]:
        """Jobs a runner was given and has not ended."""
        return self._jobs_of.get(runner, _NO_JOBS)

    def is_given_up(self, job_id: ItemId) -> bool:
        """Whether a job was ended without a result: its runner may be running it all the same."""
        job = self.jobs.get(job_id)
        return job is not None and job.is_over and job.result is None

    def under_way(self, job_id: ItemId) -> Job | None:
        """A job that has not ended: with a runner, or waiting for one."""
        return self.active_jobs.get(job_id) or self.waiting.get(job_id)

    # ── applying ─────────────────────────────────────────────────────────────────────────────

    def apply(self, record: AnyRecord) -> None:
        """Takes in what happened."""
        last = self._gaps.pop(len(self.events), None) if self._gaps else None
        if last is not None:
            self.events += [None] * (last + 1 - len(self.events))
        _APPLY[type(record)](self, record)

    def add_event(self, kind: str, data: object, about: str | None = None) -> int:
        """Gives an event the next number; returns its bytes in the answer of `/events`.

        `about`: the item with which it may be forgotten.
        """
        if about is not None and self.keeps_history:
            self._about.setdefault(ItemId(about), []).append(len(self.events))
        event = Event(kind, msgspec.json.encode(data).decode())
        self.events.append(event)
        self.events_bytes += event.size
        return event.size

    def _on_created(self, record: records.Created) -> None:
        checked = self.checked.get(record.manifest)
        if not isinstance(checked, Manifest):
            checked = parse_manifest(record.manifest)
        self.manifest = checked
        self.keeps_history = checked.has(Feature.HISTORY)
        self.epochs = EpochState.begin(checked)

    def _on_joined(self, record: records.Joined) -> None:
        checked = self.checked.get(record.join)
        if isinstance(checked, Join):
            join = checked
        else:
            join = parse_join(record.join, self.manifest, self.epochs)
        participant = Participant(
            join, 1 << len(self.participants), record.token_sha256, record.secret_sha256
        )
        participant.presence.seen_ms = self._clock.ticks_ms()
        self.participants[participant.key] = participant
        self.by_token[record.token_sha256] = participant
        self.active_bits |= participant.bit
        if participant.role is Role.RUNNER:
            self._runner_bits |= participant.bit
        self._newcomers[participant.bit] = self._clock.ticks_ms()
        self._newcomer_bits |= participant.bit
        self.add_event(EventKind.PARTICIPANT, {"signed_join": record.join})

    def _on_posted(self, record: records.Posted) -> None:
        author = self.participants[PublicKey(record.author)]
        item_id = ItemId(record.item)
        underway = self.underway.get(item_id)
        digest = underway.envelope_sha256 if underway else sha256(record.envelope.encode())
        present = (1 << len(self.participants)) - 1
        self.items[item_id] = StoredItem(record, len(self.events), author, present, digest)
        self._count_blob(author, record.size)
        author.items += 1
        author.events_bytes += self.add_event(
            EventKind.ITEM, {"envelope": record.envelope}, item_id
        )
        if record.target is not None:
            self.jobs[item_id] = Job(
                item_id, record.author, record.blob_sha256, record.target, record.wait_s
            )
        if record.job is not None:
            job = self.jobs[ItemId(record.job)]
            job.result = item_id
            job.others.append(item_id)
        self._note_about(item_id, [ItemId(each) for each in record.about])

    def _note_about(self, item_id: ItemId, about: list[ItemId]) -> None:
        """What an item names; not what was forgotten while it was on its way."""
        item = self.items[item_id]
        for job in (each for each in about if each in self.jobs):
            self.jobs[job].others.append(item_id)
        item.names = tuple(each for each in about if each in self.items and each not in self.jobs)
        for each in item.names:
            self.items[each].named += 1

    def _on_acked(self, record: records.Acked) -> None:
        item = self.items.get(ItemId(record.item))
        if item is not None:  # it may have been forgotten while this was on its way
            bit = self._bit(record.participant)
            item.acks |= bit
            asked, since_ms = self._asked.pop(ItemId(record.item), (0, 0))
            if asked & ~bit:
                self._asked[ItemId(record.item)] = (asked & ~bit, since_ms)

    def _on_left(self, record: records.Left) -> None:
        self._cut_off(self.participants[PublicKey(record.participant)])
        self.add_event(EventKind.LEFT, {"participant_pub": record.participant})

    def _on_revoked(self, record: records.Revoked) -> None:
        self.revoked_roles.add(record.role)
        gone = [
            each
            for each in self.participants.values()
            if each.role is record.role and not each.has_left
        ]
        for participant in gone:
            self._cut_off(participant)
        keys = [participant.key for participant in gone]
        self.add_event(EventKind.REVOKED, {"role": record.role, "participants": keys})

    def _on_epoch(self, record: records.EpochBegan) -> None:
        epoch = parse_epoch(record.document, self.manifest, self.epochs)
        self.epochs = self.epochs.after(epoch)
        self.epoch_documents.append(record.document)
        if epoch.role_pub is None:
            self.revoked_roles.add(epoch.role)
        for participant in self.participants.values():
            if epoch.cuts_off(participant.role, participant.key) and not participant.has_left:
                self._cut_off(participant)
        self.add_event(EventKind.EPOCH, {"document": record.document})

    def _on_approved(self, record: records.Approved) -> None:
        self.participants[PublicKey(record.participant)].approved = True

    def _on_rejected(self, record: records.Rejected) -> None:
        participant = self.participants[PublicKey(record.participant)]
        participant.rejected = True
        self._cut_off(participant)

    def _on_wanted(self, record: records.Wanted) -> None:
        item = self.items.get(ItemId(record.item))
        if item is None:
            return
        # Who asks has lost what it once acknowledged.
        item.acks &= ~self._bit(record.participant)
        item.wants = {**(item.wants or {}), record.participant: record.at_ms}
        asker = self.participants[PublicKey(record.participant)]
        asker.wants[ItemId(record.item)] = record.at_ms
        data = {"item": record.item, "by": record.participant}
        asker.events_bytes += self.add_event(EventKind.WANT, data, record.item)

    def _on_evicted(self, record: records.Evicted) -> None:
        item = self.items.get(ItemId(record.item))
        if item is None:
            return
        if item.has_blob:
            item.has_blob = False
            item.is_leaving = False
            self._count_blob(item.author, -item.size)
            self.dropped.append(record.item)
            self._asked.pop(ItemId(record.item), None)
        self.add_event(EventKind.EVICTED, {"item": record.item}, record.item)

    def _on_reseeded(self, record: records.Reseeded) -> None:
        item = self.items.get(ItemId(record.item))
        if item is None:
            return
        if not item.has_blob:
            item.has_blob = True
            self._count_blob(item.author, item.size)
        asked = 0
        for key in item.wants or ():
            asker = self.participants[PublicKey(key)]
            asker.wants.pop(ItemId(record.item), None)
            asked |= asker.bit
        item.wants = None
        self._asked[ItemId(record.item)] = (asked, self._clock.ticks_ms())
        self.add_event(EventKind.RESEEDED, {"item": record.item}, record.item)

    def _on_job(self, record: records.JobChanged) -> None:
        job = self.jobs[ItemId(record.job)]
        job.state = record.state
        job.runner = None if record.runner is None else PublicKey(record.runner)
        job.reason = record.reason
        job.since_ms = self._clock.ticks_ms()
        job.ended_at_ms = record.at_ms
        if record.state in (JobState.RUNNING, JobState.QUEUED):
            # A restart of the relay gives a runner time to come back, but a job no more to run,
            # and none more to wait.
            job.since_ms -= max(0, self._clock.now_ms() - record.at_ms)
        if job.is_over:
            self._drop_packs(job.id)
        if record.state == JobState.ASSIGNED:
            self.participants[PublicKey(job.author)].served = len(self.events)
        self._note_waiting(job)
        if job.is_active and job.runner is not None:
            self.active_jobs[job.id] = job
            self._jobs_of.setdefault(job.runner, {})[job.id] = job
        elif self.active_jobs.pop(job.id, None) is not None and job.runner is not None:
            del self._jobs_of[job.runner][job.id]
        self.add_event(
            EventKind.JOB,
            {
                "job": record.job,
                "state": record.state,
                "runner": record.runner,
                "reason": record.reason,
            },
            record.job,
        )

    def _note_waiting(self, job: Job) -> None:
        """Until a job that had to wait is over, its own blob and those of its files stay: whoever
        had stored them when it was posted, its runner may not be among them."""
        if not job.is_waiting:
            self.waiting.pop(job.id, None)
        elif job.id not in self.waiting:
            self.waiting[job.id] = job
            job.keeps = (job.id, *self.items[job.id].names)
            for each in job.keeps:
                self._kept[each] = self._kept.get(each, 0) + 1
        if job.is_over and job.keeps:
            for each in job.keeps:
                self._kept[each] -= 1
                if not self._kept[each]:
                    del self._kept[each]
            job.keeps = ()
            self.someone_left = True

    def _on_cancel(self, record: records.CancelAsked) -> None:
        self.jobs[ItemId(record.job)].cancel_since_ms = self._clock.ticks_ms()

    def _on_pack(self, record: records.PackStored) -> None:
        job = ItemId(record.job)
        found = self.pack_sets.get(job)
        if found is None:
            found = self.pack_sets[job] = PackSet(record.author, self._clock.ticks_ms())
        found.packs[record.number] = Pack(record.size, record.sha256)
        self._count_blob(self.participants[PublicKey(found.author)], record.size)

    def _on_packs_dropped(self, record: records.PacksDropped) -> None:
        self._drop_packs(ItemId(record.job))

    def _drop_packs(self, job: ItemId) -> None:
        found = self.pack_sets.pop(job, None)
        if found is not None:
            size = sum(pack.size for pack in found.packs.values())
            self._count_blob(self.participants[PublicKey(found.author)], -size)
            self.dropped += [pack_name(job, number) for number in found.packs]

    # ── forgetting ───────────────────────────────────────────────────────────────────────────

    def _on_gaps(self, record: records.Gaps) -> None:
        self._gaps = dict(record.ranges)

    def _on_forgot(self, record: records.Forgot) -> None:
        """Lets go of jobs, and says all that was ever forgotten in place of what said so before."""
        for job in record.jobs:
            self.jobs.pop(ItemId(job), None)
        for item in record.items:
            self._forget_item(ItemId(item))
        for seq in self._forgotten_at:
            self._forget_event(seq)
        gaps = self.gaps()
        self._forgotten_at = []
        for at in range(0, len(gaps), FORGOTTEN_RANGES):
            self._forgotten_at.append(len(self.events))
            self.add_event(EventKind.FORGOTTEN, {"ranges": gaps[at : at + FORGOTTEN_RANGES]})

    def _forget_item(self, item_id: ItemId) -> None:
        item = self.items.pop(item_id, None)
        self._asked.pop(item_id, None)
        if item is not None:
            item.author.items -= 1
            posted = self.events[item.seq]
            item.author.events_bytes -= 0 if posted is None else posted.size
            if item.has_blob:
                self._count_blob(item.author, -item.size)
                self.dropped.append(item_id)
            for key in item.wants or ():
                self.participants[PublicKey(key)].wants.pop(item_id, None)
            for each in item.names:
                if each in self.items:
                    self.items[each].named -= 1
        for seq in self._about.pop(item_id, ()):
            self._forget_event(seq)

    def _forget_event(self, seq: int) -> None:
        event = self.events[seq]
        if event is not None:
            self.events_bytes -= event.size
            self.events[seq] = None

    def _cut_off(self, participant: Participant) -> None:
        participant.has_left = True
        self.someone_left = True
        self.active_bits &= ~participant.bit
        self._newcomers.pop(participant.bit, None)
        self._newcomer_bits &= ~participant.bit
        self.by_token.pop(participant.token_sha256, None)

    def _count_blob(self, author: Participant, size: int) -> None:
        self.sealed_bytes += size
        author.sealed_bytes += size

    def _bit(self, key: str) -> int:
        return self.participants[PublicKey(key)].bit


def pack_name(job: ItemId, number: int) -> str:
    """Name of a pack in the store; an item id has no dot."""
    return f"{job}.{number}"


_APPLY: Final[dict[type, Callable[[Session, Any], None]]] = {
    records.Created: Session._on_created,
    records.Joined: Session._on_joined,
    records.Posted: Session._on_posted,
    records.Acked: Session._on_acked,
    records.Left: Session._on_left,
    records.Revoked: Session._on_revoked,
    records.EpochBegan: Session._on_epoch,
    records.Approved: Session._on_approved,
    records.Rejected: Session._on_rejected,
    records.Wanted: Session._on_wanted,
    records.Evicted: Session._on_evicted,
    records.Reseeded: Session._on_reseeded,
    records.JobChanged: Session._on_job,
    records.CancelAsked: Session._on_cancel,
    records.PackStored: Session._on_pack,
    records.PacksDropped: Session._on_packs_dropped,
    records.Forgot: Session._on_forgot,
    records.Gaps: Session._on_gaps,
}
