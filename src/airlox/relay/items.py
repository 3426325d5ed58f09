"""Posting items, and the life of their blobs: received, acknowledged, evicted, asked back.

A post may be sent again: the same envelope by the same author is answered as the first time,
another one under the same id is refused. Large blobs go to the disk as they arrive; an envelope
is checked before its blob is received, the author's signature over both once it is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Protocol

from airlox.errors import AirloxError, ProtocolError, StorageError
from airlox.protocol import limits
from airlox.protocol.digest import sha256
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import Envelope, parse_envelope, verify_item_digest
from airlox.protocol.policy import check_header_rules
from airlox.relay import records
from airlox.relay.records import AnyRecord
from airlox.relay.refusals import Refusal, refuse
from airlox.relay.service import Core
from airlox.relay.state import Participant, Session, StoredItem
from airlox.relay.store.base import BlobReader, Upload

_LENGTH_BYTES: Final = 4

Changes = Callable[[records.Posted], Sequence[AnyRecord]]
"""What else happens when an item is posted: records that become durable together with it."""


class Body(Protocol):
    """The body of a request, piece by piece."""

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""

    def expect(self, size: int) -> None:
        """Allows the time a body of this size may take."""


class Blob:
    """A received blob: small ones in memory, large ones already in a file."""

    __slots__ = ("data", "sha256", "size", "upload")

    def __init__(self, size: int, digest: bytes, data: bytes, upload: Upload | None) -> None:
        self.size = size
        self.sha256 = digest
        self.data = data
        self.upload = upload

    def inline(self, name: str) -> tuple[str, bytes] | None:
        return (name, self.data) if self.upload is None else None


class Blobs:
    """Receives blobs within the relay's bounds."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._transfers = 0

    @asynccontextmanager
    async def receive(
        self, session: Session, size: int, start: bytes, body: Body
    ) -> AsyncIterator[Blob]:
        """A blob of exactly `size` bytes that begins with `start`. Raises Refusal.

        What was not kept when the context ends leaves nothing behind.
        """
        session.incoming_bytes += size
        try:
            if size <= self._core.config.inline_blob_bytes:
                data = await _read_exactly(size, start, body)
                yield Blob(size, sha256(data), data, None)
                return
            async with self.transfer():
                body.expect(size)
                upload = self._core.store.new_upload()
                try:
                    await _copy_exactly(size, start, body, upload)
                    yield Blob(size, await upload.digest(), b"", upload)
                finally:
                    await upload.drop()
        finally:
            session.incoming_bytes -= size

    @asynccontextmanager
    async def transfer(self) -> AsyncIterator[None]:
        """A place among the large bodies under way. Raises Refusal `busy`."""
        if self._transfers >= self._core.config.max_transfers:
            raise Refusal("busy", "too many large transfers at one time")
        self._transfers += 1
        try:
            yield
        finally:
            self._transfers -= 1


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
            self._core.quotas.check_room_for_item(session, envelope.blob_size)
        return envelope, rest

    async def post(
        self, session: Session, author: Participant, envelope: Envelope, start: bytes, body: Body
    ) -> int:
        """Stores an item; gives its number. Raises Refusal or StorageError."""
        known = self.known(session, envelope)
        if known is not None:
            await known
        else:
            async with self._blobs.receive(session, envelope.blob_size, start, body) as blob:
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
        if not author.is_here:
            raise Refusal("unauthorized", "this participant was cut off meanwhile")
        # The same item may have come on another connection while this one was read.
        known = self.known(session, envelope)
        if known is not None:
            await known
            return
        self._core.quotas.check_room_for_item(session, 0)
        with _reserved(session, envelope):
            await self._write(session, envelope, blob, changes)

    async def _write(
        self, session: Session, envelope: Envelope, blob: Blob, changes: Changes
    ) -> None:
        posted = records.Posted(
            at_ms=self._core.clock.now_ms(),
            item=envelope.id,
            author=envelope.author,
            kind=envelope.header.kind,
            size=envelope.blob_size,
            blob_sha256=blob.sha256,
            envelope=envelope.document,
        )
        if blob.upload is not None:
            await blob.upload.keep(session.id, envelope.id)
        try:
            future = self._core.commit(session, changes(posted), blob.inline(envelope.id))
            await asyncio.shield(future)
        except AirloxError:
            if blob.upload is not None:
                self._core.store.drop_blob(session.id, envelope.id)
            raise

    def known(self, session: Session, envelope: Envelope) -> asyncio.Future[None] | None:
        """When this very item is durable, if it is here or on its way.

        Raises Refusal `duplicate` for another item of the same id.
        """
        stored = session.items.get(envelope.id)
        if stored is not None:
            digest, future = stored.envelope_sha256, _resolved()
        elif envelope.id in session.committing:
            digest, future = session.committing[envelope.id]
        else:
            return None
        if digest != sha256(envelope.document.encode()):
            raise Refusal("duplicate", "another item has this id")
        return asyncio.shield(future)

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
        """Drops a blob once everybody it is for has it. With nobody to have it, it stays."""
        item = session.items[item_id]
        recipients = session.recipients(item)
        if item.stands or not item.has_blob or item.is_leaving:
            return
        if not recipients or recipients & ~item.acks:
            return
        item.is_leaving = True
        try:
            await self._core.write(session, records.Evicted(self._core.clock.now_ms(), item_id))
        except AirloxError:
            item.is_leaving = False
            raise

    async def evict_all_delivered(self, session: Session) -> None:
        """For when somebody has gone for whom blobs were kept."""
        for number, item_id in enumerate(list(session.items)):
            if number % 1000 == 999:
                await asyncio.sleep(0)  # the list may be long
            if session.is_closed:
                return
            try:
                await self.evict_if_delivered(session, item_id)
            except StorageError:
                return

    async def want(self, session: Session, who: Participant, item_id: str) -> None:
        """Asks whoever holds an evicted blob to upload it. Raises Refusal `present`."""
        item = self.item(session, item_id)
        if item.has_blob:
            raise Refusal("present", "the blob is on the relay")
        now_ms = self._core.clock.now_ms()
        asked_ms = (item.wants or {}).get(who.key)
        if asked_ms is not None and now_ms - asked_ms < self._core.config.want_repeat_s * 1000:
            return
        self._core.quotas.check_room_for_want(session, who.key)
        await self._core.write(session, records.Wanted(now_ms, item_id, who.key))

    async def reseed(self, session: Session, who: Participant, item_id: str, body: Body) -> None:
        """Takes an evicted blob back, if it is asked for and is the one that was signed."""
        item = self.item(session, item_id)
        if item.has_blob:
            raise Refusal("present", "the blob is on the relay already")
        oldest_ms = self._core.clock.now_ms() - self._core.config.want_s * 1000
        if not any(at_ms >= oldest_ms for at_ms in (item.wants or {}).values()):
            raise Refusal("not_found", "nobody asks for this blob")
        self._core.quotas.check_room_for_bytes(session, item.size)
        async with self._blobs.receive(session, item.size, b"", body) as blob:
            # The author signed this hash together with the header when the item was posted.
            if blob.sha256 != item.blob_sha256:
                raise Refusal("invalid_item", "these are not the bytes the author signed")
            if self.item(session, item_id).has_blob:
                return  # somebody else brought it meanwhile
            if blob.upload is not None:
                await blob.upload.keep(session.id, item_id)
            record = records.Reseeded(self._core.clock.now_ms(), item_id, who.key)
            await asyncio.shield(self._core.commit(session, [record], blob.inline(item_id)))


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


def _resolved() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


def _alone(posted: records.Posted) -> Sequence[AnyRecord]:
    return [posted]


@contextmanager
def _reserved(session: Session, envelope: Envelope) -> Iterator[None]:
    """Holds the item's id while it goes to the disk; others that bring the same item wait."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    session.committing[envelope.id] = (sha256(envelope.document.encode()), done)
    session.committing_bytes += len(envelope.document)
    try:
        yield
    except BaseException as error:
        broken = Refusal("busy", "the first try of this post failed; send it again")
        done.set_exception(error if isinstance(error, AirloxError) else broken)
        done.exception()  # nobody needs to be waiting
        raise
    else:
        done.set_result(None)
    finally:
        session.committing_bytes -= len(envelope.document)
        del session.committing[envelope.id]
