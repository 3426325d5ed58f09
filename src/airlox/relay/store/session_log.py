"""The log of one session: a file of framed entries, and the entries that are still to go into it.

Entries wait here until a checkpoint has written *and synced* them; until then the journal holds
them durably. A sync that failed leaves nobody knowing what the disk has, so nothing is crossed
off before one succeeded, and every try writes the same bytes at the same place again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from airlox.relay.store.framing import frame, read_frames, write_all
from airlox.relay.store.layout import make_session_folders


class SessionLog:
    """Used under the store's lock."""

    def __init__(self, path: Path, count: int = 0, size: int = 0) -> None:
        self.path = path
        self.count = count
        """Entries that are durable, here or in the journal."""
        self._size = size
        self._waiting = bytearray()

    @classmethod
    def open(cls, path: Path) -> tuple[SessionLog, int]:
        """The log at `path`, and how many bytes of a torn tail were cut off. Raises OSError."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return cls(path), 0
        ends = _ends(data)
        if ends[-1] < len(data):
            os.truncate(path, ends[-1])
        return cls(path, len(ends) - 1, ends[-1]), len(data) - ends[-1]

    def add(self, entries: list[bytes]) -> None:
        self.count += len(entries)
        for entry in entries:
            self._waiting += frame(entry)

    def write_again(self, first: int) -> None:
        """Has the entries from number `first` on written once more, for use before `add`.

        A start cannot tell whether what it reads has ever reached the disk. Raises OSError.
        """
        data = self.path.read_bytes()[: self._size]
        self._size = _ends(data)[first]
        self._waiting += data[self._size :]

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def begin_flush(self) -> Flush:
        """What is to be written now. Makes the folders if need be. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            make_session_folders(self.path.parent)
            fd = os.open(self.path, flags, 0o600)
        return Flush(self, fd, self._size, bytes(self._waiting))

    def settle(self, size: int) -> None:
        """The next `size` bytes are durable in the file."""
        self._size += size
        del self._waiting[:size]

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def reader(self) -> Callable[[], list[bytes]]:
        """Reads the entries as they are now; the call itself needs no lock. Raises OSError."""
        fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC) if self._size else -1
        size, waiting = self._size, bytes(self._waiting)

        def read() -> list[bytes]:
            data = b""
            if fd >= 0:
                with os.fdopen(fd, "rb") as file:
                    data = file.read(size)
            return [body for _, body in read_frames(data + waiting)]

        return read


class Flush:
    """Entries on their way into the file. `write` needs no lock: one thread flushes."""

    def __init__(self, log: SessionLog, fd: int, offset: int, data: bytes) -> None:
        self.log = log
        self.size = len(data)
        self._fd = fd
        self._offset = offset
        self._data = data

    def write(self) -> None:
        """Raises OSError, and then takes back what it wrote: a full disk needs the room."""
        try:
            os.lseek(self._fd, self._offset, os.SEEK_SET)
            write_all(self._fd, self._data)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._offset)
            raise
        finally:
            os.close(self._fd)


def _ends(data: bytes) -> list[int]:
    """Where each entry begins, and where the last one that is sound ends."""
    return [0, *(end for end, _ in read_frames(data))]
