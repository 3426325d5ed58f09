"""A store in memory, for `--ephemeral`: the same promises while the process lives."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence

from airlox.errors import StorageError
from airlox.protocol.encoding import SessionId
from airlox.relay.store.base import RELAY_LOG, Pending


class MemoryStore:
    """Entries and blobs of each session in plain dictionaries."""

    def __init__(self) -> None:
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
        self._entries.setdefault(sid, []).extend(entries)
        blobs = self._blobs.setdefault(sid, {})
        if blob is not None:
            blobs[blob[0]] = blob[1]
        return _soon(Pending(then))

    def purge(self, sid: SessionId) -> Pending:
        self._entries.pop(sid, None)
        self._blobs.pop(sid, None)
        return _soon(Pending())

    def new_upload(self) -> MemoryUpload:
        return MemoryUpload(self._blobs)

    async def open_blob(self, sid: SessionId, name: str) -> MemoryReader:
        try:
            return MemoryReader(self._blobs[sid][name])
        except KeyError:
            raise StorageError("no such blob", code="not_found") from None

    def drop_blob(self, sid: SessionId, name: str) -> None:
        self._blobs.get(sid, {}).pop(name, None)

    async def retain(self, sid: SessionId, names: set[str]) -> None:
        blobs = self._blobs.get(sid, {})
        for name in blobs.keys() - names:
            del blobs[name]

    def free_bytes(self) -> int | None:
        return None


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
    def __init__(self, blobs: dict[SessionId, dict[str, bytes]]) -> None:
        self._blobs = blobs
        self._data = bytearray()
        self._hash = hashlib.sha256()

    async def write(self, data: bytes) -> None:
        self._data += data
        self._hash.update(data)

    async def digest(self) -> bytes:
        return self._hash.digest()

    async def keep(self, sid: SessionId, name: str) -> None:
        if sid not in self._blobs:
            raise StorageError("no such session", code="not_found")
        self._blobs[sid][name] = bytes(self._data)
        self._data = bytearray()

    async def drop(self) -> None:
        self._data = bytearray()


def _soon(pending: Pending) -> Pending:
    """Arrives in the next turn of the loop, as from a disk."""
    asyncio.get_running_loop().call_soon(pending.arrive)
    return pending
