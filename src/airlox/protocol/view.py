"""The verified state of a session: what one participant knows, event by event.

`step` takes each event of the relay in order; `open` takes the blob of an item and gives the
verified, decrypted `Item`. One bad event or item is reported and skipped, it never stops a
reader. What only the relay claims (who left, job states, evictions) is kept apart from what
participants signed (items, approvals, results), and never mixed into it.
Source: docs/protocol.md, "Events" and "Items".
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import UNSET

from airlox.errors import (
    AirloxError,
    EncodingError,
    LimitError,
    OrderError,
    PolicyError,
    ProtocolError,
    SignatureError,
)
from airlox.protocol import canonical, limits
from airlox.protocol.addressing import Post, Reason, count_hops, reasons_for
from airlox.protocol.cert import ClientKind, Join, parse_join
from airlox.protocol.chain import Alarm, Chain, linked_refs
from airlox.protocol.digest import sha256_hex
from airlox.protocol.encoding import ItemId, PublicKey, b64u_decode, parse_item_id
from airlox.protocol.epochs import EpochState, parse_epoch
from airlox.protocol.forgetting import (
    forgotten_ranges,
    goes_with_a_job,
    inputs_of,
    named_alone,
)
from airlox.protocol.item import (
    Envelope,
    ItemRef,
    Kind,
    decrypt_item,
    parse_envelope,
    verify_item,
    verify_item_digest,
)
from airlox.protocol.job import Job, Result, bind_result, check_result_for_job
from airlox.protocol.keyring import Keyring
from airlox.protocol.keys import Role, parse_public_key
from airlox.protocol.manifest import Feature, Manifest
from airlox.protocol.payload import (
    Addressed,
    File,
    JobCancel,
    Meta,
    RunnerApprove,
    RunnerInfoNote,
    RunnerReject,
    SessionClose,
    Text,
    decode_payload,
)
from airlox.protocol.policy import check_header_rules, check_payload, may_take_jobs
from airlox.protocol.ranges import Ranges
from airlox.protocol.wire import EventKind


class Event(msgspec.Struct, frozen=True):
    """One event as the relay sent it: numbered, otherwise a claim."""

    seq: int
    kind: str
    data: dict[str, Any]


def parse_event(seq: str | None, kind: str | None, data: str) -> Event:
    """An event of the stream. Raises EncodingError."""
    if seq is None or not (seq.isascii() and seq.isdigit() and len(seq) <= 16):
        raise EncodingError("event without a number")
    return Event(int(seq), kind or "", canonical.decode_loose(data, dict[str, Any], "event"))


class Participant(msgspec.Struct, frozen=True):
    """Someone who joined, by a verified join. `left` is the relay's word."""

    join: Join
    seq: int
    left: bool = False

    @property
    def public(self) -> PublicKey:
        return self.join.participant_pub

    @property
    def role(self) -> Role:
        return self.join.role

    @property
    def name(self) -> str:
        return self.join.display_name


class Item(msgspec.Struct, frozen=True):
    """A verified, decrypted item. `meta` is its content, `body` the bytes of a file.

    `for_me` says why it concerns the participant whose view this is; empty when it does not.
    """

    seq: int
    author: Participant
    envelope: Envelope
    ref: ItemRef
    meta: Meta
    body: bytes
    for_me: tuple[Reason, ...] = ()

    @property
    def id(self) -> ItemId:
        return self.envelope.id

    @property
    def kind(self) -> Kind:
        return self.envelope.header.kind

    @property
    def subkind(self) -> str | None:
        return self.envelope.header.subkind

    @property
    def created_at_ms(self) -> int:
        return self.envelope.header.created_at_ms

    @property
    def refs(self) -> tuple[ItemRef, ...]:
        return self.envelope.header.refs

    @property
    def to(self) -> tuple[str, ...]:
        """Whom it is addressed to: participant keys and words such as `role:sender`."""
        to = self.meta.to if isinstance(self.meta, Addressed) else UNSET
        return () if to is UNSET else to

    @property
    def reply_to(self) -> ItemId | None:
        """The item it replies to, as its author says: that item may be unknown here."""
        reply_to = self.meta.reply_to if isinstance(self.meta, Addressed) else UNSET
        return None if reply_to is UNSET else ItemId(reply_to)

    @property
    def author_name(self) -> str:
        return self.author.name

    @property
    def author_role(self) -> Role:
        return self.author.role

    @property
    def text(self) -> str | None:
        """The message of a text item."""
        return self.meta.text if isinstance(self.meta, Text) else None

    @property
    def name(self) -> str | None:
        """The name of a file item."""
        return self.meta.name if isinstance(self.meta, File) else None

    @property
    def mime(self) -> str | None:
        """The MIME type of a file item."""
        return self.meta.mime if isinstance(self.meta, File) else None


class ItemStatus(StrEnum):
    """What is known of an item that was announced."""

    PENDING = "pending"
    """Announced; its blob has not been opened yet."""
    OK = "ok"
    REFUSED = "refused"
    """It broke a rule; final."""
    EVICTED = "evicted"
    """The relay no longer has its blob."""


class Record(msgspec.Struct):
    """One announced item. `reason` says why it was refused.

    `wrong_bytes`: it was refused for bytes that its author did not sign. That says nothing of the
    item (whoever stores it may have spoiled them), so other bytes are still looked at.
    """

    seq: int
    author: Participant | None
    envelope: Envelope | None
    status: ItemStatus
    reason: str | None = None
    item: Item | None = None
    wrong_bytes: bool = False


class RelayJob(msgspec.Struct, frozen=True):
    """What the relay says of a job. Only a signed result is proof."""

    state: str
    runner: PublicKey | None
    reason: str | None


class Change(msgspec.Struct, frozen=True):
    """What an event did. `item` names the item concerned, `fault` why it was skipped."""

    kind: str
    item: ItemId | None = None
    participant: PublicKey | None = None
    fault: str | None = None
    forgotten: tuple[ItemId, ...] = ()
    """Items that are no longer known: the relay forgot them, and they were of finished jobs."""
    alarms: tuple[Alarm, ...] = ()
    """What the event shows of a relay that drops, moves or repeats items."""


_WORD_CHARS: Final = 40
"""Of a word of the relay, such as a job's state."""

IGNORED: Final = Change("ignored")


class SessionView:
    """See the module's text. Not safe to share between threads: its owner holds the lock."""

    def __init__(self, manifest: Manifest, keys: Keyring, reader: PublicKey | None = None) -> None:
        """`reader` is the participant whose view this is: `Item.for_me` is said of them."""
        self.manifest = manifest
        self._keys = keys
        self.epochs = EpochState.begin(manifest)
        """What the epochs say that the relay has shown so far; `keys` may know of later ones."""
        self.cut_off: set[PublicKey] = set()
        """Participants that the owner's signed epochs cut off."""
        self.epoch_seqs: list[int] = []
        """Numbers of the events in which they were shown."""
        self._reader = reader
        self.last_seq = -1
        self.closed: str | None = None
        """The relay's reason, once it said the session ended."""
        self.participants: dict[PublicKey, Participant] = {}
        self.records: dict[ItemId, Record] = {}
        self.relay_jobs: dict[str, RelayJob] = {}
        self.revoked_roles: set[str] = set()
        self.approved: set[PublicKey] = set()
        self.rejected: dict[PublicKey, str | None] = {}
        self.runner_infos: dict[PublicKey, RunnerInfoNote] = {}
        self._info_seq: dict[PublicKey, int] = {}
        self._held_bytes = 0
        self._results: dict[str, list[Item]] = {}
        self.cancels: dict[str, PublicKey] = {}
        """Jobs with a signed cancel, and who signed it."""
        self.has_forgotten = False
        """Whether the relay said that it forgot something of this session."""
        self._told_forgotten = Ranges()
        self._inputs: set[ItemId] = set()
        """Files that are here and that jobs named which are forgotten."""
        self.chain = Chain()

    # ── events ──────────────────────────────────────────────────────────────────────────────

    def step(self, event: Event) -> Change:
        """Takes one event. Never raises for what the event holds: a fault is in the change."""
        if event.seq <= self.last_seq:
            return IGNORED
        if event.kind == EventKind.GAP and self.manifest.has(Feature.HISTORY):
            return self._skip(event)
        if event.seq > self.last_seq + limits.EVENT_JUMP:
            return Change(event.kind, fault="event number jumps too far")
        self.last_seq = event.seq
        handler = _HANDLERS.get(event.kind)
        if handler is None:
            return IGNORED
        try:
            return handler(self, event)
        except AirloxError as error:
            return Change(event.kind, fault=error.message)

    def _skip(self, event: Event) -> Change:
        """A range of numbers up to this one was forgotten. It may be longer than any jump."""
        first = event.data.get("first")
        if type(first) is not int or not 0 <= first <= self.last_seq + 1:
            return Change(event.kind, fault="a gap that does not follow the last event")
        self.last_seq = event.seq
        self.has_forgotten = True
        self.chain.skip(first, event.seq)
        return Change(event.kind)

    def _hold(self, document: str) -> None:
        """Count what is kept for good. A relay could otherwise fill a reader's memory."""
        if self._held_bytes + len(document) > limits.TIMELINE_BYTES:
            raise LimitError("the session has more events than a reader keeps")
        self._held_bytes += len(document)

    def _on_participant(self, event: Event) -> Change:
        join = parse_join(_text(event, "signed_join"), self.manifest, self.epochs)
        public = join.participant_pub
        if public in self.participants:
            raise OrderError("participant joined twice")
        self._hold(join.document)
        self.participants[public] = Participant(join, event.seq)
        return Change(event.kind, participant=public)

    def _on_item(self, event: Event) -> Change:
        envelope = parse_envelope(_text(event, "envelope"))
        if envelope.id in self.records:
            again = f"item {envelope.id} was announced before"
            return Change(event.kind, fault=again, alarms=self.chain.step(event.seq, envelope))
        try:
            self._hold(envelope.document)
        except LimitError:
            self.chain.pass_over(event.seq)
            raise
        alarms = self.chain.step(event.seq, envelope)
        author = self.participants.get(envelope.author)
        record = Record(event.seq, author, envelope, ItemStatus.PENDING)
        self.records[envelope.id] = record
        if envelope.header.epoch_number > self.epochs.number:
            alarms += self.chain.note_epoch(event.seq, envelope)
        fault = self._fault_of(author, envelope)
        if author is None or fault is not None:
            record.status, record.reason = ItemStatus.REFUSED, fault
            return Change(event.kind, envelope.id, fault=fault, alarms=alarms)
        return Change(event.kind, envelope.id, author.public, alarms=alarms)

    def _fault_of(self, author: Participant | None, envelope: Envelope) -> str | None:
        """Why an announced item is refused unopened, or None."""
        if author is None:
            return "its author never joined"
        try:
            check_header_rules(self.manifest, author.join.cert, envelope.header)
            self.epochs.check_number(envelope.header.epoch_number, f"item {envelope.id}")
        except ProtocolError as error:
            return error.message
        return "its author was cut off" if author.public in self.cut_off else None

    def _on_left(self, event: Event) -> Change:
        public = _key(event, "participant_pub")
        self._mark_left(public)
        return Change(event.kind, participant=public)

    def _on_revoked(self, event: Event) -> Change:
        role = _text(event, "role")
        if role not in set(Role):
            raise EncodingError("revoked event of an unknown role")
        keys = event.data.get("participants")
        self.revoked_roles.add(role)
        for public in keys if isinstance(keys, list) else ():
            if isinstance(public, str):
                self._mark_left(PublicKey(public))
        return Change(event.kind)

    def _on_epoch(self, event: Event) -> Change:
        """The owner's word, not the relay's: who is cut off here is out for good.

        However much is held: whoever fills a reader must not keep a revocation from it. There are
        few epochs, and nobody but the owner makes one.
        """
        document = _text(event, "document", limits.EPOCH_BYTES)
        epoch = parse_epoch(document, self.manifest, self.epochs)
        self._keys.learn(epoch)
        self.epochs = self.epochs.after(epoch)
        self.epoch_seqs.append(event.seq)
        for each in list(self.participants.values()):
            if epoch.cuts_off(each.role, each.public):
                self.cut_off.add(each.public)
                self._mark_left(each.public)
        return Change(event.kind)

    def _mark_left(self, public: PublicKey) -> None:
        known = self.participants.get(public)
        if known is not None:
            self.participants[public] = msgspec.structs.replace(known, left=True)

    def _on_evicted(self, event: Event) -> Change:
        item = _item_id(event, "item")
        record = self.records.get(item)
        if record is not None and record.status is ItemStatus.PENDING:
            record.status = ItemStatus.EVICTED
        return Change(event.kind, item=item)

    def _on_reseeded(self, event: Event) -> Change:
        item = _item_id(event, "item")
        record = self.records.get(item)
        if record is not None and (record.status is ItemStatus.EVICTED or record.wrong_bytes):
            record.status, record.reason, record.wrong_bytes = ItemStatus.PENDING, None, False
        return Change(event.kind, item=item)

    def _on_want(self, event: Event) -> Change:
        item = _item_id(event, "item")
        return Change(event.kind, item=item, participant=_key(event, "by"))

    def _on_job(self, event: Event) -> Change:
        job = _item_id(event, "job")
        if job not in self.records:
            raise OrderError("state of a job that was not announced")
        runner = event.data.get("runner")
        known = self.participants.get(PublicKey(runner)) if isinstance(runner, str) else None
        self.relay_jobs[job] = RelayJob(
            state=_text(event, "state")[:_WORD_CHARS],
            runner=None if known is None else known.public,
            reason=_reason(event),
        )
        return Change(event.kind, item=job)

    def _on_closed(self, event: Event) -> Change:
        self.closed = _reason(event) or "closed"
        return Change(event.kind)

    def _on_forgotten(self, event: Event) -> Change:
        """Lets go of what the relay forgot, as far as it may; see forgetting.py.

        Every such event tells of all that was ever forgotten, perhaps in parts: what they told
        together counts.
        """
        if not self.manifest.has(Feature.HISTORY):
            return IGNORED
        for first, last in forgotten_ranges(event):
            self._told_forgotten.add(first, last)
            self.chain.skip(first, last)
        self.has_forgotten = True
        told = {i for i, r in self.records.items() if r.seq in self._told_forgotten}
        going = {item for item in told if goes_with_a_job(self.records[item])}
        self._inputs |= inputs_of(self.records, going)
        going |= named_alone(self.records, self._inputs & told, going)
        forgotten = tuple(item for item in self.records if item in going)
        for item in forgotten:
            self._forget(item)
        stay = len(told) - len(going)
        fault = f"the relay says it forgot {stay} item(s) that stay" if stay else None
        return Change(event.kind, fault=fault, forgotten=forgotten)

    def _forget(self, item: ItemId) -> None:
        record = self.records.pop(item)
        self.chain.forget(item)
        self._inputs.discard(item)
        if record.envelope is not None:
            self._held_bytes -= len(record.envelope.document)
        self.relay_jobs.pop(item, None)
        self._results.pop(item, None)
        self.cancels.pop(item, None)

    # ── items ───────────────────────────────────────────────────────────────────────────────

    def pending(self) -> list[ItemId]:
        """Items whose blobs are still to be fetched, oldest first."""
        return [i for i, r in self.records.items() if r.status is ItemStatus.PENDING]

    def open(self, item_id: ItemId, blob: bytes) -> Item:
        """The verified item. Raises ProtocolError; the item then stays refused.

        Bytes that its author did not sign leave it open to others: see `Record.wrong_bytes`.
        """
        record = self.records.get(item_id)
        if record is None or record.envelope is None:
            raise OrderError(f"item {item_id} was never announced")
        if record.item is not None:
            return record.item
        if record.author is None or (
            record.status is ItemStatus.REFUSED and not record.wrong_bytes
        ):
            raise PolicyError(f"item {item_id} was refused: {record.reason}")
        record.wrong_bytes = True
        try:
            ref = verify_item(record.envelope, blob)
            record.wrong_bytes = False
            item = self._open(record.seq, record.author, record.envelope, ref, blob)
        except ProtocolError as error:
            record.status, record.reason = ItemStatus.REFUSED, error.message
            raise
        record.item, record.status, record.reason = item, ItemStatus.OK, None
        self._learn(item)
        return item

    def check_links(self, item: Item) -> tuple[Alarm, ...]:
        """Whether the own items that an opened item links to were announced as it names them.

        Else a relay could keep one back and announce, under its id, something nobody can open.
        """
        alarms: tuple[Alarm, ...] = ()
        for ref in linked_refs(item.envelope.header):
            record = self.records.get(ItemId(ref.id))
            if record is not None and not _is_signed_as(record, ref):
                alarms += self.chain.note_altered(item.seq, item.envelope, ItemId(ref.id))
        return alarms

    def _open(
        self, seq: int, author: Participant, envelope: Envelope, ref: ItemRef, blob: bytes
    ) -> Item:
        payload = decrypt_item(envelope, blob, self._keys.of(envelope.header.epoch_number))
        meta, body = decode_payload(payload, full=self.manifest.is_full)
        check_payload(self.manifest, author.role, envelope.header, meta, body)
        item = Item(seq, author, envelope, ref, meta, body)
        return msgspec.structs.replace(item, for_me=self._reasons(item))

    def _reasons(self, item: Item) -> tuple[Reason, ...]:
        reader = self.participants.get(self._reader) if self._reader is not None else None
        return () if reader is None else reasons_for(self.post_of(item), reader.public, reader.role)

    def _learn(self, item: Item) -> None:
        meta, author = item.meta, item.author
        if isinstance(meta, RunnerApprove):
            self.approved.add(PublicKey(meta.participant_pub))
        elif isinstance(meta, RunnerReject):
            self.rejected.setdefault(PublicKey(meta.participant_pub), meta.reason)
        elif isinstance(meta, RunnerInfoNote):
            if item.seq > self._info_seq.get(author.public, -1):
                self._info_seq[author.public] = item.seq
                self.runner_infos[author.public] = meta
        elif isinstance(meta, JobCancel):
            self._learn_cancel(meta, author)
        elif isinstance(meta, Result):
            self._results.setdefault(meta.job.id, []).append(item)
        elif isinstance(meta, SessionClose):
            self.closed = self.closed or "closed by the owner"

    def _learn_cancel(self, meta: JobCancel, author: Participant) -> None:
        record = self.records.get(ItemId(meta.job.id))
        job_author = record.author if record else None
        if author.role is Role.OWNER or (job_author and job_author.public == author.public):
            self.cancels.setdefault(meta.job.id, author.public)

    def items(self) -> list[Item]:
        """Everything opened so far, in the relay's order."""
        found = [record.item for record in self.records.values() if record.item is not None]
        return sorted(found, key=lambda item: item.seq)

    def item(self, item_id: str) -> Item | None:
        record = self.records.get(ItemId(item_id))
        return record.item if record else None

    # ── whom items are for ──────────────────────────────────────────────────────────────────

    def post_of(self, item: Item) -> Post:
        """What of an item decides whom it is for.

        Who wrote the item that it replies to, or the job that it answers, is taken from what was
        announced before it. A relay that makes up such an announcement wakes nobody by that alone:
        what wakes is an item that its author signed.
        """
        job = item.meta.job.id if isinstance(item.meta, Result) else None
        return Post(
            author=item.author.public,
            author_role=item.author.role,
            kind=item.kind,
            to=item.to,
            replied_author=self._author_before(item.seq, item.reply_to),
            job_author=self._author_before(item.seq, job),
        )

    def _author_before(self, seq: int, item_id: str | None) -> PublicKey | None:
        record = None if item_id is None else self.records.get(ItemId(item_id))
        known = record is not None and record.seq < seq and record.status is not ItemStatus.REFUSED
        return record.author.public if known and record and record.author else None

    def hops(self, item: Item) -> int:
        """How many posts in a row were by no person, along the replies up to this item.

        It ends where a reply names no item, or one that was not opened or not announced before.
        """
        return count_hops(self._authors_behind(item))

    def _authors_behind(self, item: Item) -> Iterator[ClientKind]:
        before: Item | None = item
        while before is not None:
            yield before.author.join.kind
            last, named = before, before.reply_to
            before = None if named is None else self.item(named)
            if before is not None and before.seq >= last.seq:
                return

    # ── runners and results ─────────────────────────────────────────────────────────────────

    def approvals(self) -> frozenset[PublicKey] | None:
        """Runners the owner's signed events let take jobs; None where no approval is asked."""
        job_limits = self.manifest.job_limits
        if job_limits is None or not job_limits.approve_runners:
            return None
        return frozenset(self.approved - self.rejected.keys())

    def may_take_jobs(self, runner: PublicKey) -> bool:
        return runner not in self.cut_off and may_take_jobs(
            self.manifest, runner, frozenset(self.approved), frozenset(self.rejected)
        )

    def results_of(self, job_item: Item, input_sha256: str | None) -> list[Item]:
        """Results bound to this job, in the relay's order; the first one is the answer.

        `input_sha256` is `input_digest` of the job's input blobs, None when one is not at hand.
        More than one result means that the relay gave one job to several runners.
        """
        found = []
        for candidate in self._results.get(job_item.id, ()):
            try:
                self.check_result(job_item, candidate, input_sha256)
            except ProtocolError:
                continue
            found.append(candidate)
        return sorted(found, key=lambda item: item.seq)

    def check_result(self, job_item: Item, candidate: Item, input_sha256: str | None) -> None:
        """Raises PolicyError unless `candidate` is an answer to `job_item` by a runner that may."""
        job, result = _job_of(job_item), candidate.meta
        if not isinstance(result, Result):
            raise PolicyError(f"item {candidate.id} is not a result")
        if candidate.author.role is not Role.RUNNER:
            raise PolicyError("results are by runners")
        if candidate.author.public in self.rejected:
            raise PolicyError("this result is by a runner the owner rejected")
        check_result_for_job(
            result,
            job_ref=job_item.ref,
            job=job,
            author=candidate.author.public,
            approved=self.approvals(),
        )
        self._check_labels(job, candidate.author)
        bind_result(result, job=job, input_sha256=input_sha256)

    def _check_labels(self, job: Job, runner: Participant) -> None:
        wanted = set(getattr(job.target, "labels", ()))
        info = runner.join.runner
        if wanted and (info is None or not wanted <= set(info.labels)):
            raise PolicyError("this result is by a runner without the job's labels")

    def invalid_results_of(
        self, job_item: Item, input_sha256: str | None
    ) -> list[tuple[Item, str]]:
        """Results that name this job but are not bound to it, with the reason."""
        found = []
        for candidate in self._results.get(job_item.id, ()):
            try:
                self.check_result(job_item, candidate, input_sha256)
            except ProtocolError as error:
                found.append((candidate, error.message))
        return found


def _is_signed_as(record: Record, ref: ItemRef) -> bool:
    """Whether the author of an announced item signed it with the bytes that a reference names."""
    if record.item is not None or record.envelope is None:
        return record.item is not None and record.item.ref == ref
    try:
        verify_item_digest(record.envelope, b64u_decode(ref.blob_sha256))
    except SignatureError:
        return False
    return True


def _job_of(item: Item) -> Job:
    if not isinstance(item.meta, Job):
        raise PolicyError(f"item {item.id} is not a job")
    return item.meta


def _text(event: Event, name: str, most: int = limits.ENVELOPE_BYTES) -> str:
    value = event.data.get(name)
    if not isinstance(value, str):
        raise EncodingError(f"{event.kind[:40]} event without {name}")
    if len(value) > most:
        raise LimitError(f"{event.kind[:40]} event with an oversize {name}")
    return value


def _key(event: Event, name: str) -> PublicKey:
    return parse_public_key(_text(event, name))


def _item_id(event: Event, name: str) -> ItemId:
    return parse_item_id(_text(event, name))


def _reason(event: Event) -> str | None:
    """The relay's words, cut: nobody else bounds them."""
    reason = event.data.get("reason")
    return reason[: limits.REASON] if isinstance(reason, str) else None


def input_digest(blobs: list[bytes]) -> str:
    """The `input_sha256` of a result: over the input items' blobs, in the job's order."""
    return sha256_hex(b"".join(blobs))


_HANDLERS: Final = {
    EventKind.PARTICIPANT: SessionView._on_participant,
    EventKind.ITEM: SessionView._on_item,
    EventKind.LEFT: SessionView._on_left,
    EventKind.REVOKED: SessionView._on_revoked,
    EventKind.EPOCH: SessionView._on_epoch,
    EventKind.EVICTED: SessionView._on_evicted,
    EventKind.RESEEDED: SessionView._on_reseeded,
    EventKind.WANT: SessionView._on_want,
    EventKind.JOB: SessionView._on_job,
    EventKind.CLOSED: SessionView._on_closed,
    EventKind.FORGOTTEN: SessionView._on_forgotten,
}
