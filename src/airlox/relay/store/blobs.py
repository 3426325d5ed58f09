"""Blobs as files: reading one, and receiving a large one. File calls run in a pool of threads."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from airlox.protocol.encoding import SessionId
from airlox.relay.store.framing import write_all
from airlox.relay.store.journal import sync_folder
from airlox.relay.store.layout import Layout, remove
from airlox.relay.store.places import Places

T = TypeVar("T")

UPLOAD_STEP_BYTES: Final = 512 << 10
WHOLE_READ_BYTES: Final = 256 << 10


class InPool(Protocol):
    """Runs a call in a thread; its OSError becomes a StorageError saying what it was doing."""

    def __call__(self, doing: str, call: Callable[[], T], /) -> Coroutine[Any, Any, T]: ...


class DiskReader:
    """A blob that is open; a small one is already in memory."""

    def __init__(self, fd: int, size: int, data: bytes, pool: InPool) -> None:
        self.size = size
        self._fd = fd
        self._data = memoryview(data)
        self._pool = pool
        self._lock = threading.Lock()

    @classmethod
    def of_bytes(cls, data: bytes, pool: InPool) -> DiskReader:
        return cls(-1, len(data), data, pool)

    @classmethod
    def open(cls, path: Path, pool: InPool) -> DiskReader:
        """Raises OSError."""
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        size = os.fstat(fd).st_size
        if size > WHOLE_READ_BYTES:
            return cls(fd, size, b"", pool)
        try:
            data = os.read(fd, size)
        finally:
            os.close(fd)
        return cls.of_bytes(data, pool)

    async def read(self, most_bytes: int) -> bytes:
        if self._fd < 0:
            part, self._data = self._data[:most_bytes], self._data[most_bytes:]
            return bytes(part)
        return await self._pool("read a blob", lambda: self._read(most_bytes))

    def close(self) -> None:
        with self._lock:  # a read that was given up may still be under way
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                self._data = memoryview(b"")

    def _read(self, most_bytes: int) -> bytes:
        with self._lock:
            return os.read(self._fd, most_bytes) if self._fd >= 0 else b""


class DiskUpload:
    """A large blob on its way in: a file in `tmp`, hashed as it comes."""

    def __init__(self, layout: Layout, places: Places, pool: InPool) -> None:
        self._layout = layout
        self._places = places
        self._pool = pool
        self._path = layout.new_temporary()
        self._fd = -1
        self._waiting = bytearray()
        self._hash = hashlib.sha256()
        self._lock = threading.Lock()

    async def write(self, data: bytes) -> None:
        self._waiting += data
        if len(self._waiting) >= UPLOAD_STEP_BYTES:
            await self._flush()

    async def digest(self) -> bytes:
        await self._flush()
        return self._hash.digest()

    async def keep(self, sid: SessionId, name: str) -> None:
        await self._flush()
        await self._pool("keep a blob", lambda: self._place(sid, name))

    async def drop(self) -> None:
        self._waiting = bytearray()
        if self._fd >= 0:
            await self._pool("drop an upload", self._discard)

    async def _flush(self) -> None:
        data, self._waiting = self._waiting, bytearray()
        await self._pool("write a blob", lambda: self._write(data))

    def _write(self, data: bytearray) -> None:
        with self._lock:
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._fd = os.open(self._path, flags, 0o600)
            self._hash.update(data)
            write_all(self._fd, data)

    def _place(self, sid: SessionId, name: str) -> None:
        with self._lock:
            os.fsync(self._fd)
            self._places.put_file(sid, name, self._path, self._layout.blob(sid, name))
            for folder in self._layout.folders(sid):
                sync_folder(folder)

    def _discard(self) -> None:
        with self._lock:  # a write that was given up may still be under way
            os.close(self._fd)
            self._fd = -1
            remove(self._path)  # gone already when the blob was kept
