"""A store in memory, for `--ephemeral`: the same promises while the process lives."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence

from airlox.errors import StorageError
from airlox.protocol.encoding import SessionId
from airlox.relay.config import GIB
from airlox.relay.store.base import RELAY_LOG, Pending


class MemoryStore:
    """Entries and blobs of each session in plain dictionaries."""

    def __init__(self, most_bytes: int = GIB) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._entries: dict[SessionId, list[bytes]] = {}
        self._blobs: dict[SessionId, dict[str, bytes]] = {}

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def sessions(self) -> list[SessionId]:
        return [sid for sid in self._entries if sid != RELAY_LOG]

    async def read(self, sid: SessionId) -> list[bytes]:
        return list(self._entries.get(sid, ()))

    def append(
        self,
        sid: SessionId,
        entries: Sequence[bytes],
        blob: tuple[str, bytes] | None = None,
        then: Callable[[], None] | None = None,
    ) -> Pending:
        name, data = blob or ("", b"")
        try:
            self.take(sum(map(len, entries)) + len(data))
        except StorageError as error:
            return _soon(Pending(then), error)
        self._entries.setdefault(sid, []).extend(entries)
        blobs = self._blobs.setdefault(sid, {})
        if blob is not None:
            self.give(blobs.get(name, b""))
            blobs[name] = data
        return _soon(Pending(then))

    def rewrite(
        self,
        sid: SessionId,
        change: Callable[[list[bytes]], list[bytes]],
        then: Callable[[], None] | None = None,
    ) -> Pending:
        before = self._entries.get(sid, [])
        after = change(list(before))
        self._held_bytes += sum(map(len, after)) - sum(map(len, before))
        self._entries[sid] = after
        return _soon(Pending(then))

    def purge(self, sid: SessionId) -> Pending:
        self.give(*self._entries.pop(sid, ()), *self._blobs.pop(sid, {}).values())
        return _soon(Pending())

    def new_upload(self) -> MemoryUpload:
        return MemoryUpload(self)

    def keep(self, sid: SessionId, name: str, data: bytes) -> None:
        """Names bytes that `take` has counted. Raises StorageError."""
        if sid not in self._blobs:
            raise StorageError("no such session", code="not_found")
        self.give(self._blobs[sid].get(name, b""))
        self._blobs[sid][name] = data

    async def open_blob(self, sid: SessionId, name: str) -> MemoryReader:
        try:
            return MemoryReader(self._blobs[sid][name])
        except KeyError:
            raise StorageError("no such blob", code="not_found") from None

    def drop_blob(self, sid: SessionId, name: str) -> None:
        self.give(self._blobs.get(sid, {}).pop(name, b""))

    async def retain(self, sid: SessionId, names: set[str]) -> None:
        for name in self._blobs.get(sid, {}).keys() - names:
            self.drop_blob(sid, name)

    def is_failing(self) -> bool:
        return False

    def free_bytes(self) -> int:
        return self._most_bytes - self._held_bytes

    def take(self, size: int) -> None:
        """Counts bytes that come. Raises StorageError `full`."""
        if size > self.free_bytes():
            raise StorageError("no room in memory", code="full")
        self._held_bytes += size

    def give(self, *gone: bytes | bytearray) -> None:
        """Counts bytes that went."""
        self._held_bytes -= sum(map(len, gone))


class MemoryReader:
    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._rest = memoryview(data)

    async def read(self, most_bytes: int) -> bytes:
        part, self._rest = self._rest[:most_bytes], self._rest[most_bytes:]
        return bytes(part)

    def close(self) -> None:
        self._rest = memoryview(b"")


class MemoryUpload:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._data = bytearray()
        self._hash = hashlib.sha256()

    async def write(self, data: bytes) -> None:
        self._store.take(len(data))
        self._data += data
        self._hash.update(data)

    async def digest(self) -> bytes:
        return self._hash.digest()

    async def keep(self, sid: SessionId, name: str) -> None:
        self._store.keep(sid, name, bytes(self._data))
        self._data = bytearray()

    async def drop(self) -> None:
        self._store.give(self._data)
        self._data = bytearray()


def _soon(pending: Pending, failure: StorageError | None = None) -> Pending:
    """Arrives, or fails, in the next turn of the loop, as from a disk."""
    loop = asyncio.get_running_loop()
    if failure is None:
        loop.call_soon(pending.arrive)
    else:
        loop.call_soon(pending.fail, failure)
    return pending
