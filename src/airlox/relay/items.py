"""Posting items, and the life of their blobs: received, acknowledged, evicted, asked back.

A post may be sent again: the same envelope by the same author is answered as the first time,
another one under the same id is refused. Large blobs go to the disk as they arrive; an envelope
is checked before its blob is received, the author's signature over both once it is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from airlox.errors import AirloxError, ProtocolError
from airlox.protocol import limits
from airlox.protocol.chain import chosen_refs
from airlox.protocol.digest import sha256
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import Envelope, Kind, parse_envelope, verify_item_digest
from airlox.protocol.keys import Role
from airlox.protocol.policy import check_header_rules
from airlox.relay import records
from airlox.relay.addresses import Origin
from airlox.relay.entities import Job, Participant, StoredItem
from airlox.relay.epochs import check_epoch
from airlox.relay.gates import Place
from airlox.relay.records import AnyRecord
from airlox.relay.refusals import Refusal, refuse
from airlox.relay.service import Core
from airlox.relay.state import Session, Underway
from airlox.relay.store.base import BlobReader, Upload

EVICT_AT_ONCE: Final = 500

_LENGTH_BYTES: Final = 4

Changes = Callable[[records.Posted], Sequence[AnyRecord]]
"""What else happens when an item is posted: records that become durable together with it."""


class Body(Protocol):
    """The body of a request, piece by piece."""

    @property
    def origin(self) -> Origin:
        """Where it comes from."""

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""

    def expect(self, size: int) -> None:
        """Allows the time a body of this size may take."""


class Blob:
    """A received blob: small ones in memory, large ones already in a file. As a context: what was
    not kept when it ends leaves nothing behind."""

    __slots__ = ("_place", "_session", "data", "sha256", "size", "upload")

    def __init__(self, session: Session, size: int, place: Place) -> None:
        self._session = session
        self._place = place
        self.size = size
        self.data = b""
        self.sha256 = b""
        self.upload: Upload | None = None
        session.incoming_bytes += size

    async def __aenter__(self) -> Blob:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drop()

    async def drop(self) -> None:
        self._place.give()
        self._session.incoming_bytes -= self.size
        if self.upload is not None:
            await self.upload.drop()


class Blobs:
    """Receives blobs within the relay's bounds, and keeps them."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def receive(
        self, session: Session, who: Participant, size: int, start: bytes, body: Body
    ) -> Blob:
        """A blob of exactly `size` bytes that begins with `start`. Raises Refusal."""
        quotas = self._core.quotas
        quotas.take_bytes(session, who, size)
        if size <= self._core.config.inline_blob_bytes:
            blob = Blob(session, size, quotas.pending(session, who, size))
        else:
            blob = Blob(session, size, quotas.transfer(session, who, body.origin))
        try:
            if size <= self._core.config.inline_blob_bytes:
                blob.data = await _read_exactly(size, start, body)
                blob.sha256 = sha256(blob.data)
                return blob
            body.expect(size)
            blob.upload = self._core.store.new_upload()
            await _copy_exactly(size, start, body, blob.upload)
            blob.sha256 = await blob.upload.digest()
        except BaseException:
            await blob.drop()
            raise
        return blob

    async def keep(
        self,
        session: Session,
        who: Participant,
        name: str,
        blob: Blob,
        changes: Sequence[AnyRecord],
        *,
        epoch: int | None = None,
    ) -> None:
        """Makes a blob durable together with the records that speak of it. `epoch` is the one it
        was sealed in, for what comes only while that lasts.

        Raises AirloxError; Refusal also when `who` was cut off while the blob went to the disk.
        """
        if blob.upload is None:
            check_here(who)
            if epoch is not None:
                check_epoch(session, epoch, name)
            await self._core.commit(session, changes, (name, blob.data))
            return
        try:
            await blob.upload.keep(session.id, name)
            check_here(who)
            if epoch is not None:
                check_epoch(session, epoch, name)
            await self._core.commit(session, changes)
        except AirloxError:
            self._core.store.drop_blob(session.id, name)
            raise


def check_here(who: Participant) -> None:
    """Raises Refusal when a participant was cut off: nothing of it comes after that."""
    if not who.is_here:
        raise Refusal("unauthorized", "this participant was cut off meanwhile")


async def _read_exactly(size: int, start: bytes, body: Body) -> bytes:
    data = start
    while part := await body.read():
        data += part
        if len(data) > size:
            break
    if len(data) != size:
        raise _wrong_size(size)
    return data


async def _copy_exactly(size: int, start: bytes, body: Body, upload: Upload) -> None:
    part, seen = start, len(start)
    while True:
        if part:
            await upload.write(part)
        part = await body.read()
        seen += len(part)
        if seen > size or (not part and seen != size):
            raise _wrong_size(size)
        if not part:
            return


def _wrong_size(size: int) -> Refusal:
    return Refusal("invalid_item", f"the blob does not have the {size} bytes it should")


class Items:
    """`POST /items`, and everything about blobs."""

    def __init__(self, core: Core, blobs: Blobs) -> None:
        self._core = core
        self._blobs = blobs

    # ── posting ──────────────────────────────────────────────────────────────────────────────

    async def read_envelope(
        self, session: Session, author: Participant, body: Body
    ) -> tuple[Envelope, bytes]:
        """The envelope at the head of a frame, checked as far as it goes, and what came after it.

        Raises Refusal.
        """
        self._core.quotas.take_post(session, author.key)
        text, rest = await _read_head(body)
        try:
            envelope = parse_envelope(text)
            check_header_rules(session.manifest, author.join.cert, envelope.header)
        except ProtocolError as error:
            raise refuse("invalid_item", error) from None
        if envelope.id not in session.items:
            if envelope.id not in session.underway:
                check_epoch(session, envelope.header.epoch_number, f"item {envelope.id}")
            self._check_room(session, author, envelope, envelope.blob_size)
        return envelope, rest

    def _check_room(
        self, session: Session, author: Participant, envelope: Envelope, blob_bytes: int
    ) -> Job | None:
        """Raises Refusal where there is no room. What ends a job that runs is taken nevertheless;
        gives the job whose cancel that is."""
        quotas, header = self._core.quotas, envelope.header
        named = chosen_refs(header)[:1]  # an approval may link to a job, and is no cancel of it
        job_id = ItemId(named[0].id) if named else None
        if job_id is not None and header.kind is Kind.RESULT:
            # One that comes after the job was given up counts too.
            ended = session.jobs.get(job_id)
            if ended is not None and ended.runner == author.key and ended.result is None:
                quotas.check_room_for_end(session)
                return None
        job = session.under_way(job_id) if job_id is not None else None
        try:
            quotas.check_room_for_item(session, author, blob_bytes)
        except Refusal:
            may_end = author.role is Role.OWNER or (job is not None and job.author == author.key)
            if job is None or header.kind is not Kind.EVENT or not may_end:
                raise
            if not quotas.may_cancel(job, envelope.blob_size):
                raise
            quotas.check_room_for_end(session)
            return job
        return None

    async def post(
        self, session: Session, author: Participant, envelope: Envelope, start: bytes, body: Body
    ) -> int:
        """Stores an item; gives its number. Raises Refusal or StorageError."""
        if not await self.is_known(session, envelope):
            size = envelope.blob_size
            async with await self._blobs.receive(session, author, size, start, body) as blob:
                await self.store(session, author, envelope, blob, _alone)
        return session.items[envelope.id].seq

    async def store(
        self,
        session: Session,
        author: Participant,
        envelope: Envelope,
        blob: Blob,
        changes: Changes,
    ) -> None:
        """Makes a received item durable, with the records `changes` makes of it.

        Raises Refusal or StorageError.
        """
        try:
            verify_item_digest(envelope, blob.sha256)
        except ProtocolError as error:
            raise refuse("invalid_item", error) from None
        check_here(author)
        # The same item may have come on another connection while this one was read.
        if await self.is_known(session, envelope):
            return
        cancelled = self._check_room(session, author, envelope, 0)
        if cancelled is not None:
            cancelled.cancels += 1
        posted = records.Posted(
            at_ms=self._core.clock.now_ms(),
            item=envelope.id,
            author=envelope.author,
            kind=envelope.header.kind,
            size=envelope.blob_size,
            blob_sha256=blob.sha256,
            envelope=envelope.document,
            about=_about(session, envelope),
        )
        with Underway(session, envelope.id, envelope.document):
            epoch = envelope.header.epoch_number
            await self._blobs.keep(session, author, envelope.id, blob, changes(posted), epoch=epoch)

    async def is_known(self, session: Session, envelope: Envelope) -> bool:
        """Whether this very item is here; one that is on its way is waited for.

        Raises Refusal `duplicate` for another item of the same id.
        """
        found = session.items.get(envelope.id) or session.underway.get(envelope.id)
        if found is None:
            return False
        if found.envelope_sha256 != sha256(envelope.document.encode()):
            raise Refusal("duplicate", "another item has this id")
        if isinstance(found, Underway) and not await found.arrives():
            raise Refusal("busy", "the first try of this post failed", retry_s=1)
        return True

    # ── blobs ────────────────────────────────────────────────────────────────────────────────

    def item(self, session: Session, item_id: str) -> StoredItem:
        found = session.items.get(ItemId(item_id))
        if found is None:
            raise Refusal("not_found", "no such item in this session")
        return found

    async def open_blob(self, session: Session, item_id: str) -> BlobReader:
        if not self.item(session, item_id).has_blob:
            raise Refusal("evicted", "everybody had stored this blob; ask for it back")
        return await self._core.store.open_blob(session.id, item_id)

    async def ack(self, session: Session, who: Participant, item_id: str) -> None:
        item = self.item(session, item_id)
        if not item.acks & who.bit:
            record = records.Acked(self._core.clock.now_ms(), item_id, who.key)
            await self._core.write(session, record)
        await self.evict_if_delivered(session, ItemId(item_id))

    async def evict_if_delivered(self, session: Session, item_id: ItemId) -> None:
        """Drops a blob once everybody it is kept for has it. With nobody to have it, it stays."""
        if item_id in session.items and session.is_delivered(item_id):
            await self._evict(session, [item_id])

    async def evict_all_delivered(self, session: Session) -> None:
        """For when somebody has gone for whom blobs were kept."""
        item_ids = list(session.items)
        for at in range(0, len(item_ids), EVICT_AT_ONCE):
            delivered = [
                item_id
                for item_id in item_ids[at : at + EVICT_AT_ONCE]
                if item_id in session.items and session.is_delivered(item_id)
            ]
            if session.is_closed:
                return
            if delivered:
                await self._evict(session, delivered)
            await asyncio.sleep(0)  # the list may be long

    async def _evict(self, session: Session, item_ids: Sequence[ItemId]) -> None:
        now_ms = self._core.clock.now_ms()
        items = [session.items[item_id] for item_id in item_ids]
        for item in items:
            item.is_leaving = True
        try:
            await self._core.write(session, *(records.Evicted(now_ms, each) for each in item_ids))
        except AirloxError:
            for item in items:
                item.is_leaving = False
            raise

    async def want(self, session: Session, who: Participant, item_id: str) -> None:
        """Asks whoever holds an evicted blob to upload it. Raises Refusal `present`."""
        item = self.item(session, item_id)
        if item.has_blob:
            raise Refusal("present", "the blob is on the relay")
        now_ms = self._core.clock.now_ms()
        asked_ms = (item.wants or {}).get(who.key)
        if asked_ms is not None and now_ms - asked_ms < self._core.config.want_pause_s * 1000:
            return
        oldest_ms = now_ms - self._core.config.want_lifetime_s * 1000
        who.wants = {each: at_ms for each, at_ms in who.wants.items() if at_ms >= oldest_ms}
        self._core.quotas.check_room_for_want(session, who)
        await self._core.write(session, records.Wanted(now_ms, item_id, who.key))

    async def reseed(self, session: Session, who: Participant, item_id: str, body: Body) -> None:
        """Takes an evicted blob back, if it is asked for and is the one that was signed."""
        item = self.item(session, item_id)
        self._check_wanted(item)
        self._core.quotas.check_room_for_bytes(session, item.author, item.size)
        # Two that bring the same blob must not have its eviction come between them.
        async with (
            await self._blobs.receive(session, who, item.size, b"", body) as blob,
            session.lock,
        ):
            # The author signed this hash together with the header when the item was posted.
            if blob.sha256 != item.blob_sha256:
                raise Refusal("invalid_item", "these are not the bytes the author signed")
            check_here(who)
            if item.has_blob:
                return  # somebody else brought it meanwhile
            self._check_wanted(item)
            record = records.Reseeded(self._core.clock.now_ms(), item_id, who.key)
            await self._blobs.keep(session, who, item_id, blob, [record])

    def _check_wanted(self, item: StoredItem) -> None:
        if item.has_blob:
            raise Refusal("present", "the blob is on the relay already")
        oldest_ms = self._core.clock.now_ms() - self._core.config.want_lifetime_s * 1000
        if not any(at_ms >= oldest_ms for at_ms in (item.wants or {}).values()):
            raise Refusal("not_found", "nobody asks for this blob")


async def _read_head(body: Body) -> tuple[str, bytes]:
    """The envelope's text and what was read beyond it."""
    data = b""
    size = _LENGTH_BYTES
    while len(data) < size:
        part = await body.read()
        if not part:
            raise Refusal("invalid_item", "the frame ends before its envelope does")
        data += part
        if len(data) >= _LENGTH_BYTES:
            length = int.from_bytes(data[:_LENGTH_BYTES], "big")
            if length > limits.ENVELOPE_BYTES:
                raise Refusal("invalid_item", "the envelope is too large")
            size = _LENGTH_BYTES + length
    try:
        return data[_LENGTH_BYTES:size].decode(), data[size:]
    except UnicodeDecodeError:
        raise Refusal("invalid_item", "the envelope is not UTF-8") from None


def _about(session: Session, envelope: Envelope) -> tuple[str, ...]:
    """What decides when an item is forgotten, or what it names: see `records.Posted`."""
    header = envelope.header
    if not session.keeps_history or not header.refs:
        return ()
    chosen = dict.fromkeys(ItemId(ref.id) for ref in chosen_refs(header))
    if header.kind is Kind.EVENT:
        return tuple(item for item in list(chosen)[:1] if item in session.jobs)
    return tuple(
        item for item in chosen if item in session.items and session.items[item].kind == Kind.FILE
    )


def _alone(posted: records.Posted) -> Sequence[AnyRecord]:
    return [posted]
