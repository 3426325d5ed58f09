"""Watches a running job from outside and says when it passes a limit.

Three things are looked at: memory (the sum over the job's processes, shared pages divided among
their users; only where no control group does it), growth of the folders the job may write, and
the free space of their file systems.

Rules
- One thread for each job; a look costs at most a fifth of a core, and pauses grow with its cost.
- Growth is what the folders hold now less what they held at the start. The first pass runs beside
  the job, so a file changed since the start counts as grown; that errs towards the limit.
- Folders are walked by descriptor (`descent.py`). What cannot be read is not counted: the floor
  of free space is the limit that cannot be hidden from.

Left to others: what is done about a breach.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time
from typing import TYPE_CHECKING, Protocol

from airlox.sandbox import proctable
from airlox.sandbox.base import Cause
from airlox.sandbox.descent import Descent
from airlox.sandbox.supervise import Breach

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from airlox.sandbox.base import Limits

_LOOK_EVERY_S = 0.05
_FLOOR_EVERY_S = 0.25
_PASS_EVERY_S = 0.5
_MOST_OF_A_CORE = 0.2
_SLICE_S = _LOOK_EVERY_S * _MOST_OF_A_CORE
_BLOCK_BYTES = 512
# CLOCK_REALTIME_COARSE of Linux is 5; the time module does not name it.
_FILE_CLOCK = 5 if os.uname().sysname == "Linux" else time.CLOCK_REALTIME
_ENTRIES_BETWEEN_CLOCKS = 64


class Meter(Protocol):
    """Something that is measured again and again."""

    def look(self) -> Breach | None:
        """Measure once; a breach when a limit is passed."""


class Watch:
    """All that is watched of one job. `look` is to be called again and again, in one thread."""

    def __init__(
        self,
        limits: Limits,
        folders: Sequence[Path],
        *,
        root_pid: int | None,
        meter: Meter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Memory is watched for all processes below `root_pid`, which is the job's keeper and does
        not count itself; None: not at all. A `meter` is looked at each time as well."""
        self.memory = MemoryMeter(root_pid, limits.memory_bytes)
        self._meter = meter
        self._floor = FloorMeter(folders, limits.disk_floor_bytes)
        self._growth = GrowthMeter(folders, limits.disk_bytes, limits.disk_files)
        self._clock = clock
        self._floor_due = self._growth_due = clock()

    def look(self) -> Breach | None:
        """Look once at what is due; the first breach that is found."""
        now = self._clock()
        breach = self.memory.look()
        if breach is None and self._meter is not None:
            breach = self._meter.look()
        if breach is None and now >= self._floor_due:
            self._floor_due = now + _FLOOR_EVERY_S
            breach = self._floor.look()
        if breach is None and now >= self._growth_due:
            breach = self._growth.look(until=time.monotonic() + _SLICE_S)
            if self._growth.at_end_of_pass:
                self._growth_due = self._clock() + _PASS_EVERY_S
        return breach

    def close(self) -> None:
        """Give back what the walk holds open."""
        self._growth.close()


async def breach_of(watch: Watch) -> Breach:
    """Run `watch` in a thread of its own until a limit is passed. Cancel it to stop the thread."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[Breach | None] = loop.create_future()
    stop = threading.Event()

    def run() -> None:
        try:
            result = _look_until(watch, stop)
        except Exception as e:
            loop.call_soon_threadsafe(over.set_exception, e)
        else:
            loop.call_soon_threadsafe(over.set_result, result)
        finally:
            watch.close()

    thread = threading.Thread(target=run, name="airlox-watch", daemon=True)
    thread.start()
    try:
        breach = await asyncio.shield(over)
    finally:
        stop.set()
        await asyncio.wait((over,))
        thread.join()
    if breach is None:  # only `stop` ends it without a breach, and that is set by a cancel
        raise asyncio.CancelledError
    return breach


def _look_until(watch: Watch, stop: threading.Event) -> Breach | None:
    pause_s = 0.0
    while not stop.wait(pause_s):
        started = time.thread_time()
        breach = watch.look()
        if breach is not None:
            return breach
        cost_s = time.thread_time() - started
        pause_s = max(_LOOK_EVERY_S, cost_s / _MOST_OF_A_CORE - cost_s)
    return None


class MemoryMeter:
    """Memory of all processes below one, which is not counted itself. Keeps the peak."""

    def __init__(self, root_pid: int | None, limit_bytes: int | None) -> None:
        self._root_pid = root_pid
        self._limit_bytes = limit_bytes
        self.peak_bytes: int | None = None

    def look(self) -> Breach | None:
        """Measure once. Resident sizes are cheap and never too small: the dear, exact measure is
        taken only when they exceed the peak known so far."""
        if self._root_pid is None:
            return None
        processes = proctable.below(self._root_pid, proctable.all_processes())
        peak = self.peak_bytes or 0
        if sum(process.rss_bytes for process in processes) > peak:
            now = sum(proctable.pss_bytes(process) for process in processes)
            self.peak_bytes = max(peak, now)
        if self._limit_bytes is not None and (self.peak_bytes or 0) > self._limit_bytes:
            return Breach(Cause.OUT_OF_MEMORY, self._limit_bytes, self.peak_bytes or 0)
        return None


class FloorMeter:
    """Free space of the file systems that a job can fill."""

    def __init__(self, folders: Sequence[Path], floor_bytes: int) -> None:
        self._folders = folders
        self._floor_bytes = floor_bytes

    def look(self) -> Breach | None:
        """A breach when one of them has less free space than the floor."""
        for folder in self._folders:
            try:
                found = os.statvfs(folder)
            except OSError:  # the job removed it; that frees space
                continue
            free = found.f_bavail * found.f_frsize
            if free < self._floor_bytes:
                return Breach(Cause.DISK, self._floor_bytes, free, "free space of the disk")
        return None


class GrowthMeter:
    """Growth of folders in bytes on the disk and in entries, since this was made."""

    def __init__(self, folders: Sequence[Path], limit_bytes: int, limit_files: int) -> None:
        self._folders = folders
        self._limit_bytes = limit_bytes
        self._limit_files = limit_files
        self._started_ns = file_clock_ns()
        self._baseline: _Sum | None = None
        self._walk: Generator[os.stat_result, None, None] | None = None
        self._now = _Sum()
        self._old = _Sum()

    @property
    def at_end_of_pass(self) -> bool:
        """Whether every folder has been walked, and the next look begins anew."""
        return self._walk is None

    def look(self, *, until: float) -> Breach | None:
        """Walk on until the monotonic time `until` or the end of a pass."""
        if self._walk is None:
            self._walk, self._now, self._old = _walk(self._folders), _Sum(), _Sum()
        try:
            walked_all = self._step(self._walk, until)
        except OSError:  # no baseline comes of half a pass
            self._walk = None
            return self._breach()
        if walked_all:
            self._walk = None
            self._baseline = self._baseline or self._old
        return self._breach()

    def _step(self, walk: Iterator[os.stat_result], until: float) -> bool:
        """Count entries; whether the pass came to its end."""
        for number, found in enumerate(walk, start=1):
            self._now.add(found)
            if self._baseline is None and found.st_ctime_ns < self._started_ns:
                self._old.add(found)
            if number % _ENTRIES_BETWEEN_CLOCKS == 0 and time.monotonic() >= until:
                return False
        return True

    def close(self) -> None:
        """End a pass that is under way."""
        if self._walk is not None:
            self._walk.close()
            self._walk = None

    def _breach(self) -> Breach | None:
        before = self._old if self._baseline is None else self._baseline
        grown_bytes = self._now.size_bytes - before.size_bytes
        grown_files = self._now.entries - before.entries
        if grown_bytes > self._limit_bytes:
            return Breach(Cause.DISK, self._limit_bytes, grown_bytes, "bytes written")
        if grown_files > self._limit_files:
            return Breach(Cause.DISK, self._limit_files, grown_files, "files made")
        return None


def file_clock_ns() -> int:
    """The time that a file changed now would get: file systems use a clock that ticks coarsely."""
    return time.clock_gettime_ns(_FILE_CLOCK)


class _Sum:
    """Space and number of entries; a file with several names counts once."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.entries = 0
        self._linked: set[tuple[int, int]] = set()

    def add(self, found: os.stat_result) -> None:
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            key = (found.st_dev, found.st_ino)
            if key in self._linked:
                return
            self._linked.add(key)
        self.entries += 1
        self.size_bytes += found.st_blocks * _BLOCK_BYTES


def _walk(folders: Sequence[Path]) -> Generator[os.stat_result, None, None]:
    """All entries below the folders. What vanishes or is locked meanwhile is passed by.

    Raises OSError when the job moves away the ground under the walk.
    """
    for folder in folders:
        try:
            place = Descent(folder)
        except OSError:
            continue
        with place:
            yield from _walk_below(place)


def _walk_below(place: Descent) -> Iterator[os.stat_result]:
    waiting: list[list[str]] = [[]]
    yield from _list(place, waiting[-1])
    while waiting:
        if waiting[-1]:
            try:
                place.enter(waiting[-1].pop())
            except OSError:
                continue
            waiting.append([])
            yield from _list(place, waiting[-1])
        else:
            waiting.pop()
            if waiting:
                place.leave()


def _list(place: Descent, subfolders: list[str]) -> Iterator[os.stat_result]:
    with os.scandir(place.fd) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(found.st_mode):
                subfolders.append(entry.name)
            yield found
