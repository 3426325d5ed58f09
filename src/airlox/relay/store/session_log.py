"""The logs of sessions: each a file of framed entries, and the entries still to go into it.

Entries wait here until a checkpoint has written *and synced* them; until then the journal holds
them durably. A sync that failed leaves nobody knowing what the disk has, so nothing is crossed
off before one succeeded, and every try writes the same bytes at the same place again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from airlox.protocol.encoding import SessionId
from airlox.relay.store.framing import frame, read_frames, write_all
from airlox.relay.store.layout import Layout, make_session_folders

log = logging.getLogger("airlox.relay.store")


class SessionLog:
    """Used under the lock of `SessionLogs`."""

    def __init__(self, path: Path, count: int = 0, size: int = 0, *, fresh: bool = False) -> None:
        """`fresh`: what stands at `path` is of an earlier log, and goes with the first flush."""
        self.path = path
        self._fresh = fresh
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
        if self._fresh:  # whoever still reads the earlier log goes on reading that
            self.path.unlink(missing_ok=True)
        try:
            fd = os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            make_session_folders(self.path.parent)
            fd = os.open(self.path, flags, 0o600)
        return Flush(self, fd, self._size, bytes(self._waiting))

    def settle(self, size: int) -> None:
        """The next `size` bytes are durable in the file."""
        self._fresh = False
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


class SessionLogs:
    """The logs of all sessions. Safe between threads; the lock is held for moments only, since
    the writer needs it for every group."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._logs: dict[SessionId, SessionLog] = {}

    def __contains__(self, sid: SessionId) -> bool:
        return sid in self._logs

    def ids(self) -> list[SessionId]:
        return list(self._logs)

    def count(self, sid: SessionId) -> int:
        """Durable entries of a session."""
        found = self._logs.get(sid)
        return 0 if found is None else found.count

    def open(self, sid: SessionId) -> SessionLog:
        """The log of a session as a start finds it. Raises OSError."""
        found, cut = SessionLog.open(self._layout.log(sid))
        if cut:
            log.warning("cut a torn log", extra={"session": sid, "bytes": cut})
        self._logs[sid] = found
        return found

    def find(self, sid: SessionId) -> SessionLog:
        """For a start, when only one thread is there. Raises OSError."""
        return self._logs.get(sid) or self.open(sid)

    def begin(self, sid: SessionId) -> None:
        """An empty log in place of whatever there was. Raises OSError."""
        path = self._layout.log(sid)
        path.unlink(missing_ok=True)
        self._logs[sid] = SessionLog(path)

    def add(self, sid: SessionId, entries: list[bytes]) -> None:
        with self._lock:
            found = self._logs.get(sid)
            if found is None:
                self._layout.make_session(sid)
                found = self._logs[sid] = SessionLog(self._layout.log(sid))
            found.add(entries)

    def rewrite(self, sid: SessionId, entries: list[bytes]) -> None:
        """Other entries in place of all there are. The file follows at the next checkpoint."""
        rewritten = SessionLog(self._layout.log(sid), fresh=True)
        rewritten.add(entries)
        with self._lock:
            self._logs[sid] = rewritten

    def forget(self, sid: SessionId) -> None:
        with self._lock:
            self._logs.pop(sid, None)

    def read(self, sid: SessionId) -> list[bytes]:
        """Every durable entry of a session. Raises OSError."""
        with self._lock:
            found = self._logs.get(sid)
            entries: Callable[[], list[bytes]] = list if found is None else found.reader()
        return entries()  # outside the lock: it may take long

    def flush(self) -> dict[SessionId, Flush]:
        """Writes what waits. Raises OSError."""
        with self._lock:
            waiting = [(sid, found) for sid, found in self._logs.items() if found.is_waiting]
        flushes = {}
        for sid, found in waiting:
            with self._lock:
                if self._logs.get(sid) is not found:
                    continue  # it has ended meanwhile; its folder must not come back
                flush = found.begin_flush()
            flush.write()
            flushes[sid] = flush
        return flushes

    def settle(self, flushes: Iterable[Flush]) -> None:
        """What was flushed has been synced."""
        with self._lock:
            for flush in flushes:
                flush.log.settle(flush.size)


def _ends(data: bytes) -> list[int]:
    """Where each entry begins, and where the last one that is sound ends."""
    return [0, *(end for end, _ in read_frames(data))]
