"""The folders a job may write to: a workspace per sender, and a folder per job.

    <state>/workspaces/<hash of the sender's key>/
        work/ home/     what jobs of this sender see, kept between them
        tree            what the last tree left there (out of the jobs' reach)
        used            when it was used last, and its size
        lock            held for as long as a job runs in it
    <state>/run/<job>/  work/ home/ out/ of a job; gone after it

Rules
- One job at a time in a workspace; another one waits, and stops waiting when it is cancelled.
- One sender never sees another's folder: its name is the hash of the key that signed the job.
- What a job left is hostile: folders are opened without following links, and repaired.
- A workspace not used for its days, or the longest unused beyond the quota, is removed while
  nobody holds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from airlox import safefs
from airlox.errors import EncodingError, JobRefused, StorageError
from airlox.protocol import canonical
from airlox.protocol.digest import sha256_hex
from airlox.protocol.encoding import ItemId, PublicKey
from airlox.runner.slots import Running
from airlox.sandbox.descent import Descent
from airlox.sandbox.sweep import StateFolder
from airlox.tree.beneath import storage_error

LOCK_POLL_S: Final = 0.1
SIZED_ENTRIES: Final = 2_000_000
"""A workspace of more entries is not counted to its end."""
_USED_BYTES: Final = 256
_DAY_S: Final = 24 * 3600

Owner = tuple[int, int] | None


def check_room(folder: Path, floor_bytes: int, needed_bytes: int = 0) -> None:
    """Raises JobRefused (code `disk_full`) unless the floor stays free with so much more there."""
    try:
        found = os.statvfs(folder)
    except OSError as e:
        raise storage_error("look at the disk", e) from None
    if found.f_bavail * found.f_frsize - needed_bytes < floor_bytes:
        raise JobRefused(
            "this runner's disk is nearly full",
            code="disk_full",
            hint="free space on it, or choose another runner",
        )


@dataclass(frozen=True, slots=True)
class Places:
    """Where one job works. `job` is its own folder; `tree_state` belongs to a workspace."""

    job: Path
    work: Path
    home: Path
    out: Path
    tree_state: Path | None

    @property
    def folders(self) -> tuple[Path, ...]:
        """What is to be removed when the job is gone."""
        return (self.job,)


class _Used(msgspec.Struct, frozen=True):
    at_s: float
    size_bytes: int


class Workspaces:
    """The folders of one runner. `owner` is the uid and gid that jobs run as, None for ours."""

    def __init__(
        self,
        state: StateFolder,
        folder: Path,
        owner: Owner,
        *,
        quota_bytes: int,
        days: int,
        passable: bool = False,
    ) -> None:
        """`passable`: jobs come by the folders' own paths, as a user who may not look around."""
        self._state = state
        self._runs = folder / "run"
        self._spaces = folder / "workspaces"
        self._owner = owner
        self._quota_bytes = quota_bytes
        self._days = days
        self._passable = passable
        for made in (self._runs, self._spaces):
            self._make(made)

    @asynccontextmanager
    async def for_job(
        self, running: Running, sender: PublicKey, *, kept: bool, fresh: bool
    ) -> AsyncIterator[Places]:
        """The folders of a job, gone (or given back, when `kept`) at the end of the block.

        Raises JobRefused when the job is cancelled while it waits, and StorageError.
        """
        job = self._runs / _job_name(running.job)
        await asyncio.to_thread(self._state.discard, job)
        try:
            self._make(job)
            if not kept:
                yield self._own_places(job)
                return
            space = self._spaces / sha256_hex(sender.encode())[:32]
            self._make(space)
            with await self._locked(space, running):
                if fresh:
                    await asyncio.to_thread(self._empty, space)
                yield self._kept_places(job, space)
                await asyncio.to_thread(_mark_used, space)
        finally:
            await asyncio.to_thread(self._state.discard, job)

    def remove_runs(self) -> None:
        """Remove what jobs of a killed runner left, those without a record of theirs included.

        Blocking; only before the first job. Raises StorageError.
        """
        for job in self._runs.iterdir():
            self._state.discard(job)

    def evict(self) -> list[Path]:
        """Remove workspaces that are too old, and the oldest of those beyond the quota.

        Blocking. Returns what was removed; one that is in use is passed by.
        """
        spaces = sorted(((_read_used(space), space) for space in _folders(self._spaces)), key=_age)
        total = sum(used.size_bytes for used, _ in spaces)
        removed = []
        for used, space in spaces:
            too_old = time.time() - used.at_s > self._days * _DAY_S
            if (too_old or total > self._quota_bytes) and self._remove(space):
                total -= used.size_bytes
                removed.append(space)
        return removed

    def _make(self, folder: Path) -> None:
        safefs.make_private_dir(folder)
        if self._passable:
            open_way(folder)

    def _remove(self, space: Path) -> bool:
        lock = _try_lock(space)
        if lock is None:
            return False
        with lock:
            self._state.discard(space)
        return True

    async def _locked(self, space: Path, running: Running) -> contextlib.ExitStack:
        while (lock := _try_lock(space)) is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOCK_POLL_S):
                    await running.cancelled.wait()
            running.check()
        return lock

    def _empty(self, space: Path) -> None:
        for name in ("work", "home", "tree"):
            self._state.discard(space / name)

    def _own_places(self, job: Path) -> Places:
        work, home, out = (self._folder(job / name) for name in ("work", "home", "out"))
        return Places(job, work, home, out, None)

    def _kept_places(self, job: Path, space: Path) -> Places:
        if not (space / "tree").exists():
            # Nobody knows which of its files came from a tree: they would never leave.
            self._state.discard(space / "work")
        work, home = self._folder(space / "work"), self._folder(space / "home")
        return Places(job, work, home, self._folder(job / "out"), space / "tree")

    def _folder(self, path: Path) -> Path:
        """Make or repair a folder of jobs: a real folder, of their user, mode 0700."""
        try:
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                self._state.discard(path)
            path.mkdir(mode=0o700, exist_ok=True)
            # a folder its owner closed to itself can only be opened as a bare handle
            fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                handle = f"/proc/self/fd/{fd}"
                if self._owner is not None:
                    os.chown(handle, *self._owner)
                if stat.S_IMODE(os.fstat(fd).st_mode) != 0o700:
                    os.chmod(handle, 0o700)
            finally:
                os.close(fd)
        except OSError as e:
            raise storage_error("make the folder of a job", e) from None
        return path


def open_way(folder: Path) -> None:
    """Let everyone pass through a folder of ours; what is in it keeps to itself."""
    try:
        folder.chmod(0o711)
    except OSError as e:
        raise storage_error("open the way to the folders of jobs", e) from None


def _job_name(job: ItemId) -> str:
    """A name without a leading dash or underscore, short for the sake of socket paths."""
    return sha256_hex(job.encode())[:16]


def _try_lock(space: Path) -> contextlib.ExitStack | None:
    """Hold the lock of a workspace until the stack is closed; None when somebody else does."""
    stack = contextlib.ExitStack()
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(space / "lock", flags, 0o600)
    except OSError as e:
        raise storage_error("lock a workspace", e) from None
    stack.callback(os.close, fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stack.close()
        return None
    return stack


def _mark_used(space: Path) -> None:
    size = _size_of(space / "work") + _size_of(space / "home")
    used = _Used(at_s=time.time(), size_bytes=size)
    safefs.write_private(space / "used", msgspec.json.encode(used))


def _read_used(space: Path) -> _Used:
    """When and how large a workspace was last; one without the note counts as just used."""
    try:
        data = safefs.read_bounded(space / "used", _USED_BYTES)
        return canonical.decode_loose(data, _Used, "note of a workspace")
    except (StorageError, EncodingError):
        return _Used(at_s=time.time(), size_bytes=0)


def _age(entry: tuple[_Used, Path]) -> float:
    return entry[0].at_s


def _folders(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir() and not path.is_symlink()]


def _size_of(folder: Path) -> int:
    """Bytes on the disk below a folder that may hold anything."""
    total = 0
    with contextlib.suppress(OSError), Descent(folder) as place:
        for number, size in enumerate(_sizes(place)):
            total += size
            if number >= SIZED_ENTRIES:
                break
    return total


def _sizes(place: Descent) -> Iterator[int]:
    waiting = [_list(place)]
    yield sum(waiting[0][1])
    while waiting:
        names, _ = waiting[-1]
        if not names:
            waiting.pop()
            if waiting:
                place.leave()
            continue
        try:
            place.enter(names.pop())
        except OSError:
            continue
        waiting.append(_list(place))
        yield sum(waiting[-1][1])


def _list(place: Descent) -> tuple[list[str], list[int]]:
    """Subfolders and the disk use of the entries here."""
    folders, sizes = [], []
    with os.scandir(place.fd) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                sizes.append(found.st_blocks * 512)
                if stat.S_ISDIR(found.st_mode):
                    folders.append(entry.name)
    return folders, sizes
