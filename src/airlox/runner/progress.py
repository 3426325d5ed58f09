"""The file in which a job notes its progress, followed from outside while the job runs.

The job can put anything at that path: it is opened beneath the work or out folder, without
following a link and without blocking, and only the last 4 KiB of a regular file are read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import UNSET

from airlox.protocol.job import Job
from airlox.protocol.live import STDERR
from airlox.runner.live import LiveOutput
from airlox.runner.workspace import Places
from airlox.tree.beneath import FOLDER_FLAGS, Folders, open_regular

LOOK_S: Final = 1.0
TAIL_BYTES: Final = 4096
_PREFIX: Final = b"[progress] "


@asynccontextmanager
async def follow(job: Job, places: Places, live: LiveOutput | None) -> AsyncIterator[None]:
    """Show new lines of the job's progress file in its live output for as long as the block."""
    if live is None or job.progress_file is UNSET:
        yield
        return
    below_start = job.progress_file if job.cwd is UNSET else f"{job.cwd}/{job.progress_file}"
    tail = ProgressTail((places.work, below_start), (places.out, job.progress_file))
    over = asyncio.Event()
    task = asyncio.create_task(_follow(tail, live, over))
    try:
        yield
    finally:
        over.set()
        await task


async def _follow(tail: ProgressTail, live: LiveOutput, over: asyncio.Event) -> None:
    """Look now and then, and once more when the program is over."""
    last = False
    while not last:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await over.wait()
        last = over.is_set()
        live.write(STDERR, await asyncio.to_thread(tail.look))


class ProgressTail:
    """What is new in a file that may be at one of several places: each a folder and a path."""

    def __init__(self, *candidates: tuple[Path, str]) -> None:
        self._candidates = candidates
        self._known: tuple[int, int] = (0, 0)
        """Inode, and how much of it was seen."""

    def look(self) -> bytes:
        """The lines added since the last look, at most the last 4 KiB, each marked."""
        for folder, path in self._candidates:
            try:
                new = self._read(folder, os.fsencode(path))
            except OSError:
                continue
            return b"".join(_PREFIX + line + b"\n" for line in new.splitlines())
        return b""

    def _read(self, folder: Path, path: bytes) -> bytes:
        above, _, name = path.rpartition(b"/")
        root_fd = os.open(folder, FOLDER_FLAGS)
        try:
            with Folders(root_fd) as folders:
                fd, found = open_regular(folders.fd(above), name)
        finally:
            os.close(root_fd)
        try:
            inode, seen = self._known
            if found.st_ino != inode or found.st_size < seen:
                seen = 0
            start = max(seen, found.st_size - TAIL_BYTES)
            data = os.pread(fd, TAIL_BYTES, start)
        finally:
            os.close(fd)
        whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == TAIL_BYTES else 0)
        self._known = (found.st_ino, start + whole)
        return data[:whole]
