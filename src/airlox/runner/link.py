"""The runner's end of its session: the blocking calls the event loop hands to threads.

It stands on the client's membership, timeline and outbox, and adds what only a runner does: its
own stream, claims, jobs and their inputs opened without being kept in memory, and seeing to it
that the relay need not keep what a runner has no use for.
"""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from airlox.client.blobs import BlobMissing
from airlox.client.deadline import Deadline
from airlox.client.membership import Membership, now_ms
from airlox.client.outbox import Outbox
from airlox.client.relay_api import RelayApi, WarningSink
from airlox.client.stream import Feed
from airlox.client.timeline import Timeline
from airlox.errors import (
    DecryptError,
    JobRefused,
    PolicyError,
    ProtocolError,
    RelayError,
    StorageError,
)
from airlox.protocol import limits, pack, wire
from airlox.protocol.aead import NONCE_BYTES
from airlox.protocol.digest import hash_of
from airlox.protocol.encoding import ItemId, PublicKey
from airlox.protocol.item import Envelope, ItemRef, Kind
from airlox.protocol.job import Job, PythonJob, ShellJob
from airlox.protocol.keys import Role, chunk_seed
from airlox.protocol.live import RANDOM_BYTES, LiveWriter
from airlox.protocol.manifest import Feature
from airlox.protocol.payload import File, Meta
from airlox.protocol.policy import open_checked
from airlox.protocol.view import ItemStatus, Participant, Record, RelayJob
from airlox.protocol.wire import JobState
from airlox.runner.done import DoneJobs
from airlox.runner.patience import patiently, wait_s

STANDING: Final = frozenset({Kind.EVENT, Kind.RUNNER_INFO})
"""Items a runner must know before it takes a job; all else is opened on need."""
SEGMENT_TIMEOUT_S: Final = 10.0
PATIENCE_S: Final = 60.0
"""How long a job that was given to this runner is held on to while the relay is away, or while
the holders of an input are asked for it."""
RETRY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Order:
    """A job as its author signed it. `may_be_done`: it is older than what this runner remembers."""

    ref: ItemRef
    author: Participant
    job: Job
    may_be_done: bool = False


@dataclass(frozen=True, slots=True)
class Input:
    """An input file of a job. `blob` is what `input_sha256` is made over."""

    meta: File
    subkind: str
    body: bytes
    blob: bytes


class Unverified(Exception):
    """A job that breaks a rule: what can be said of it, and the reason."""

    def __init__(self, ref: ItemRef, reason: str) -> None:
        super().__init__(reason)
        self.ref = ref
        self.reason = reason


class Link:
    """See the module's text. Safe to share between threads."""

    def __init__(self, membership: Membership, name: str, *, on_warning: WarningSink) -> None:
        self.membership = membership
        self.timeline = Timeline(membership, on_warning=on_warning)
        self.outbox = Outbox(
            membership, self.timeline.announced, self.timeline.knows, on_warning=on_warning
        )
        self._on_warning = on_warning
        self._done = DoneJobs(
            os.path.join(membership.cache.folder, f"jobs-done-{name}.txt"),
            bounded=membership.manifest.has(Feature.HISTORY),
        )
        self._answered: set[ItemId] = set()
        self._tidied: set[ItemId] = set()
        self._lock = threading.Lock()

    @property
    def api(self) -> RelayApi:
        return self.membership.api

    @property
    def public(self) -> PublicKey:
        return self.membership.key.public

    # ── the session ─────────────────────────────────────────────────────────────────────────

    def sync(self) -> None:
        """Catch up with the session."""
        self.timeline.sync(STANDING)

    def runner_feed(self) -> Feed:
        """Assignments, cancels, packs, and the rejection of this runner."""
        session_id = self.membership.manifest.session_id
        return Feed(
            self.api,
            lambda: wire.runner_stream(session_id),
            on_warning=self._on_warning,
            wait_s=wait_s,
        )

    def session_feed(self) -> Feed:
        """What happens in the session."""
        return self.timeline.feed(wait_s=wait_s)

    def may_take_jobs(self) -> bool:
        """Whether the owner's signed events let this runner work."""
        return self.timeline.read(lambda view: view.may_take_jobs(self.public))

    def rejection(self) -> str | None:
        """The owner's signed reason to reject this runner ("" without one), or None."""
        rejected = self.timeline.read(lambda view: dict(view.rejected))
        return (rejected[self.public] or "") if self.public in rejected else None

    def is_due(self, job: ItemId) -> bool:
        """Whether by the relay's last word this runner has the job, and it never began it.

        It may have claimed it and not know: when the answer was lost, or it was killed just then.
        """
        word = self.timeline.read(lambda view: view.relay_jobs.get(job))
        return _is_with(self.public, word) and not self.was_run(job)

    def due(self) -> list[ItemId]:
        """The jobs that are due, in the relay's order."""
        words = self.timeline.read(lambda view: list(view.relay_jobs.items()))
        mine = (ItemId(job) for job, word in words if _is_with(self.public, word))
        return [job for job in mine if not self.was_run(job)]

    def cancelled_by(self, job: ItemId) -> PublicKey | None:
        """Who signed a cancel of this job."""
        return self.timeline.read(lambda view: view.cancels.get(job))

    def tidy(self, *, has_room: bool) -> None:
        """See to it that the relay need not keep items for this runner.

        Files by people are stored here where there is room, since a job may name them; texts,
        results, jobs of others and files by runners are of no use to a runner.
        """
        records = self.timeline.records()
        self._tidied &= {record.envelope.id for record in records if record.envelope is not None}
        for record in records:
            envelope = record.envelope
            if envelope is None or record.author is None or envelope.id in self._tidied:
                continue
            if record.status is ItemStatus.REFUSED or not self._is_settled(envelope):
                continue
            by_runner = record.author.role is Role.RUNNER
            if envelope.header.kind is Kind.FILE and not by_runner:
                if not has_room:
                    continue
                self._store(envelope)
            else:
                self.timeline.blobs.acknowledge(envelope.id, self.api)
            self._tidied.add(envelope.id)

    def _is_settled(self, envelope: Envelope) -> bool:
        """Whether this runner will not have to fetch it any more."""
        kind = envelope.header.kind
        if kind is Kind.JOB:
            if self.was_run(envelope.id):
                return True
            word = self.timeline.read(lambda view: view.relay_jobs.get(envelope.id))
            return word is not None and word.runner not in (None, self.public)
        return kind in (Kind.TEXT, Kind.RESULT, Kind.FILE)

    def _store(self, envelope: Envelope) -> None:
        blobs = self.timeline.blobs
        if blobs.held(envelope) is None:
            with suppress(BlobMissing):
                blobs.keep(envelope, blobs.fetch(envelope, self.api), self.api)

    # ── jobs ────────────────────────────────────────────────────────────────────────────────

    def claim(self, job: ItemId) -> bool:
        """Take an assigned job; False when it was given to another or withdrawn.

        A claim may be repeated: the relay lets a runner claim what it has claimed.
        """
        try:
            patiently(
                partial(self.api.claim, job), self.api.pause, until=Deadline.after(PATIENCE_S)
            )
        except RelayError as error:
            if error.status not in (404, 409):
                raise
            return False
        return True

    def order(self, job: ItemId) -> Order | None:
        """The verified job, or None when its bytes cannot be had. Raises Unverified, also where its
        author was cut off meanwhile: a relay may give a job long after it was sent."""
        record = patiently(
            partial(self._record, job), self.api.pause, until=Deadline.after(PATIENCE_S)
        )
        if record is None or record.envelope is None or record.author is None:
            return None
        blob = self._blob(record.envelope)
        if blob is None:
            return None
        ref = ItemRef(blob_sha256=hash_of(blob), id=job)
        try:
            meta, _ = self._open(record, blob)
        except ProtocolError as error:
            raise Unverified(ref, error.message) from error
        if not isinstance(meta, PythonJob | ShellJob):
            raise Unverified(ref, "the item is not a job")
        author = record.author.public
        if self.timeline.read(lambda view: author in view.cut_off):
            raise Unverified(ref, "its author was cut off")
        old = self._done.may_be_forgotten(job, record.envelope.header.created_at_ms)
        return Order(ref, record.author, meta, old)

    def input(self, ref: ItemRef) -> Input:
        """A verified input file. Raises JobRefused."""
        record = self._record(ItemId(ref.id))
        if record is None or record.envelope is None or record.author is None:
            raise _bad_input(ref, "is not in this session")
        blob = self._blob(record.envelope)
        if blob is None:
            raise _bad_input(ref, "cannot be fetched")
        if hash_of(blob) != ref.blob_sha256:
            raise _bad_input(ref, "does not match its reference")
        try:
            meta, body = self._open(record, blob)
        except ProtocolError as error:
            raise _bad_input(ref, f"does not verify: {error.message}") from error
        if not isinstance(meta, File):
            raise _bad_input(ref, "is not a file")
        return Input(meta, record.envelope.header.subkind or "", body, blob)

    def _record(self, item: ItemId) -> Record | None:
        record = self.timeline.read(lambda view: view.records.get(item))
        if record is None:
            self.sync()
            record = self.timeline.read(lambda view: view.records.get(item))
        return record

    def _blob(self, envelope: Envelope) -> bytes | None:
        """The sealed bytes from the cache, else from the relay, else from whoever holds them."""
        blobs = self.timeline.blobs
        held = blobs.held(envelope)
        if held is not None:
            return held
        until = Deadline.after(PATIENCE_S)
        while True:
            try:
                blob = blobs.fetch(envelope, self.api)
                break
            except BlobMissing as missing:
                if missing.evicted and envelope.header.kind is Kind.FILE:
                    blobs.want(envelope, self.api)
                elif missing.evicted:
                    return None
            if until.passed or not self.api.pause(RETRY_S):
                return None
        if envelope.header.kind is Kind.FILE:
            blobs.keep(envelope, blob, self.api)
        return blob

    def _open(self, record: Record, blob: bytes) -> tuple[Meta, bytes]:
        assert record.envelope is not None
        assert record.author is not None
        if record.status is ItemStatus.REFUSED:
            raise PolicyError(record.reason or "it was refused")
        me = self.membership
        cert = record.author.join.cert
        session_key = me.keys.of(record.envelope.header.epoch_number)
        return open_checked(me.manifest, cert, record.envelope, blob, session_key)

    # ── never the same job twice ────────────────────────────────────────────────────────────

    def was_run(self, job: ItemId) -> bool:
        """Whether this runner carried the job out, or answered it."""
        with self._lock:
            return job in self._done or job in self._answered

    def note_run(self, job: ItemId) -> None:
        """On the disk before the job starts. Raises StorageError."""
        record = self.timeline.read(lambda view: view.records.get(job))
        envelope = None if record is None else record.envelope
        self._done.add(job, now_ms() if envelope is None else envelope.header.created_at_ms)

    def note_answered(self, job: ItemId) -> None:
        """On the disk if that has room: a relay that gives the job again gets no second answer."""
        try:
            self.note_run(job)
        except StorageError:
            with self._lock:
                self._answered.add(job)

    # ── full sessions ───────────────────────────────────────────────────────────────────────

    def live_writer(self, job: ItemRef) -> LiveWriter:
        me = self.membership
        epoch, session_key = me.keys.current()
        return LiveWriter(
            me.key,
            session_key,
            me.manifest.session_id,
            job,
            secrets.token_bytes(RANDOM_BYTES),
            epoch=epoch,
        )

    def with_current_key(self, writer: LiveWriter) -> LiveWriter:
        """The same standing; what is written next is sealed in the epoch that there is now. A
        runner that was cut off has no key of it, and nobody takes what it writes."""
        with suppress(DecryptError):
            epoch, session_key = self.membership.keys.current()
            return msgspec.structs.replace(writer, session_key=session_key, epoch=epoch)
        return writer

    def post_output(self, job: ItemId, frame: bytes) -> None:
        self.api.within(Deadline.after(SEGMENT_TIMEOUT_S)).post_output(job, frame)

    @property
    def chunk_seed(self) -> int:
        """Where contents of this session's trees are cut."""
        me = self.membership
        return chunk_seed(me.keys.current()[1], me.manifest.session_id)

    def packs(self, job: ItemId) -> list[int]:
        """Numbers of the packs the relay has of a job's tree."""
        return sorted(entry.n for entry in self.api.packs(job) if 0 <= entry.n < limits.PACKS)

    def pack(self, job: ItemId, number: int) -> bytes:
        """A plain pack. Raises ValidationError or DecryptError."""
        me = self.membership
        sealed = self.api.fetch_pack(job, number)
        return self.timeline.open_sealed(
            lambda key: pack.open_pack(
                key, me.manifest.session_id, job=job, number=number, sealed=sealed
            ),
            self.api,
        )

    def post_lack(self, job: ItemId, plain: bytes) -> None:
        me = self.membership

        def post() -> None:
            epoch, session_key = me.keys.current()
            sealed = pack.seal_lack(
                session_key,
                me.manifest.session_id,
                job=job,
                runner=self.public,
                plain=plain,
                nonce=secrets.token_bytes(NONCE_BYTES),
            )
            self.api.post_lack(job, sealed, epoch=epoch)

        self.timeline.in_current_epoch(post, self.api)


def _is_with(runner: PublicKey, word: RelayJob | None) -> bool:
    """Whether the relay says that this runner has the job and it goes on."""
    if word is None or word.runner != runner:
        return False
    return word.state in (JobState.ASSIGNED, JobState.RUNNING)


def _bad_input(ref: ItemRef, fault: str) -> JobRefused:
    return JobRefused(
        f"input {ref.id} {fault}", code="bad_input", hint="send the file again, then the job"
    )
