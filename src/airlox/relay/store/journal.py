"""The journal: numbered segment files that hold what is durable but not yet in its place.

One thread uses a journal. A record is durable when `commit` has returned. After a failed write
or sync the segment is cut back to its last durable length; until that succeeds nothing more is
taken: a record that was refused must never be read back as if it had been accepted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from airlox.relay.store.framing import write_all

_SUFFIX: Final = ".journal"
_sync_data = getattr(os, "fdatasync", os.fsync)


class Segment:
    """One file of the journal; `size` counts only what is durable."""

    def __init__(self, path: Path, *, new: bool) -> None:
        flags = os.O_CREAT | os.O_EXCL if new else 0
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
        self.size = os.fstat(self.fd).st_size
        self.born_s = time.monotonic()

    def cut(self, size: int) -> None:
        """Cuts off a tail that a crash tore. Raises OSError."""
        os.ftruncate(self.fd, size)
        self.size = size

    def remove(self) -> None:
        """Deletes the file; what was read from `fd` before stays readable until then."""
        self.path.unlink(missing_ok=True)
        os.close(self.fd)


class Journal:
    def __init__(self, folder: Path, *, segment_bytes: int, segment_s: float) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segment_s = segment_s
        self._torn = False
        """Whether the current segment may have more than is durable."""
        self._number = max((number_of(path) for path in segment_files(folder)), default=0)
        self.current = self._new_segment()

    @property
    def is_torn(self) -> bool:
        """Whether nothing is taken until what a failed write left can be taken out."""
        return self._torn

    def mend(self) -> None:
        """Takes out what a failed write left. Raises OSError."""
        self._cut_back(self.current)

    def commit(self, frames: Sequence[bytes]) -> int:
        """Makes records durable with one sync; returns the offset of the first. Raises OSError."""
        segment = self.current
        self._cut_back(segment)
        start = segment.size
        data = b"".join(frames)
        try:
            write_all(segment.fd, data)
            _sync_data(segment.fd)
        except OSError:
            self._torn = True
            with suppress(OSError):  # the next commit tries again
                self._cut_back(segment)
            raise
        segment.size = start + len(data)
        return start

    def due_in_s(self) -> float | None:
        """Seconds until the current segment should be closed; None while it is empty."""
        if self.current.size == 0:
            return None
        if self.current.size >= self._segment_bytes:
            return 0.0
        return max(0.0, self.current.born_s + self._segment_s - time.monotonic())

    def rotate(self) -> Segment:
        """Begins a new segment; returns the closed one. Raises OSError and then changes nothing."""
        self._cut_back(self.current)
        fresh = self._new_segment()
        closed, self.current = self.current, fresh
        return closed

    def touch(self) -> None:
        """The age of a segment counts from its first record."""
        if self.current.size == 0:
            self.current.born_s = time.monotonic()

    def close(self) -> None:
        """Closes the current segment; an empty one leaves no file."""
        if self.current.size == 0:
            with suppress(OSError):  # a disk that became read-only keeps it
                self.current.path.unlink(missing_ok=True)
        os.close(self.current.fd)

    def _new_segment(self) -> Segment:
        segment = Segment(self._folder / f"{self._number + 1:016d}{_SUFFIX}", new=True)
        try:
            sync_folder(self._folder)
        except OSError:
            segment.remove()
            raise
        self._number += 1
        return segment

    def _cut_back(self, segment: Segment) -> None:
        """Takes out what a failed write or sync may have left. Raises OSError."""
        if self._torn:
            os.ftruncate(segment.fd, segment.size)
            os.lseek(segment.fd, segment.size, os.SEEK_SET)
            os.fsync(segment.fd)
            self._torn = False


def segment_files(folder: Path) -> list[Path]:
    """Segments in the order in which they were written."""
    return sorted(folder.glob(f"*{_SUFFIX}"))


def number_of(path: Path) -> int:
    return int(path.name.removesuffix(_SUFFIX))


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
