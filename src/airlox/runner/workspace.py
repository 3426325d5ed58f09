"""The folders a job may write to: a workspace per sender, and a folder per job.

    <state>/workspaces/<hash of the sender's key>/
        work/ home/     what jobs of this sender see, kept between them
        tree            what the last tree left there (out of the jobs' reach)
        arrived/        what came of a tree that never came whole
        repository/     the same two of the tree below work/.git, where a job had one
        used            when it was used last, and its size
        lock            held for as long as a job runs in it
    <state>/run/<job>/  work/ home/ out/ of a job; gone after it

Rules
- One job at a time in a workspace; another one waits, and stops waiting when it is cancelled.
- After a job its workspace is measured, and looked at for what the job changed of the tree; the
  runner is free for other jobs meanwhile.
- One sender never sees another's folder: its name is the hash of the key that signed the job.
- What a job left is hostile: folders are opened without following links, and repaired.
- A workspace not used for its days, or the longest unused beyond the quota, is removed while
  nobody holds it; this is looked after before each job, so that many quick ones gain nothing. One
  that is beyond the quota by itself starts over.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import stat
import time
from collections import Counter
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
from airlox.tree.state import AppliedState
from airlox.tree.survey import is_untouched

LOCK_POLL_S: Final = 0.1
"""How often another process that holds a workspace is looked for."""
SIZED_ENTRIES: Final = 2_000_000
"""A workspace of more entries is not counted to its end."""
REMEMBERED_ENTRIES: Final = 250_000
"""Files of untouched trees that are remembered in all: some 100 MB."""
_BLOCK_BYTES: Final = 4096
_FILES_FLOOR: Final = 1000
"""So many files more can be made on the disk."""
_USED_BYTES: Final = 256
_DAY_S: Final = 24 * 3600

Owner = tuple[int, int] | None


def check_room(
    folder: Path, floor_bytes: int, needed_bytes: int = 0, needed_files: int = 0
) -> None:
    """Raises JobRefused (code `disk_full`) unless the floor stays free with so much more there, and
    so many files more can be made. Each of them takes a block at least."""
    try:
        found = os.statvfs(folder)
    except OSError as e:
        raise storage_error("look at the disk", e) from None
    taken_bytes = needed_bytes + needed_files * _BLOCK_BYTES
    # Some file systems make room for files as they need it, and tell of none.
    files_fit = found.f_files == 0 or found.f_favail - needed_files >= _FILES_FLOOR
    if found.f_bavail * found.f_frsize - taken_bytes < floor_bytes or not files_fit:
        raise JobRefused(
            "this runner's disk is nearly full",
            code="disk_full",
            hint="free space on it, or choose another runner",
        )


@dataclass(frozen=True, slots=True)
class Places:
    """Where one job works. `job` is its own folder; `tree_state` belongs to a workspace.

    `untouched` is the tree that stands there as it was applied, if that is known.
    """

    job: Path
    work: Path
    home: Path
    out: Path
    tree_state: Path | None
    untouched: AppliedState | None = None

    @property
    def arrived(self) -> Path:
        """Where what came of a tree is kept when it does not come whole."""
        kept = self.job if self.tree_state is None else self.tree_state.parent
        return kept / "arrived"

    @property
    def folders(self) -> tuple[Path, ...]:
        """What is to be removed when the job is gone."""
        return (self.job,)


class Used(msgspec.Struct, frozen=True):
    """When a workspace was used last (seconds since 1970), and how large it was then."""

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
        walled: bool = True,
    ) -> None:
        """`passable`: jobs come by the folders' own paths, as a user who may not look around.
        `walled`: once a job is over nobody changes what it left, so that it can be remembered."""
        self._state = state
        self._runs = folder / "run"
        self._spaces = folder / "workspaces"
        self._owner = owner
        self._quota_bytes = quota_bytes
        self._days = days
        self._passable = passable
        self._walled = walled
        self._applied: dict[Path, AppliedState] = {}
        """What was applied to workspaces in which a job runs, by the file that keeps it."""
        self._untouched: dict[Path, AppliedState] = {}
        """Trees that no job has touched, by workspace, the one looked at last at the end."""
        self._turns: dict[Path, asyncio.Lock] = {}
        self._waiting: Counter[Path] = Counter()
        self._tidying: set[asyncio.Task[None]] = set()
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
        space = self._spaces / sha256_hex(sender.encode())[:32]
        with contextlib.ExitStack() as held:
            if kept:
                await self._take_turn(space, running, held)
            await asyncio.to_thread(self._state.discard, job)
            try:
                self._make(job)
                if not kept:
                    yield self._own_places(job)
                    return
                with contextlib.suppress(StorageError):  # not this job's fault; it is said hourly
                    await asyncio.to_thread(self.evict)
                await self._lock(space, running, held)
                try:
                    untouched = self._untouched.pop(space, None)
                    if fresh or read_used(space).size_bytes > self._quota_bytes:
                        untouched = None
                        await asyncio.to_thread(self._empty, space)
                    yield self._kept_places(job, space, untouched)
                finally:
                    self._tidy_later(space, held.pop_all())
            finally:
                await asyncio.to_thread(self._state.discard, job)

    def note_applied(self, places: Places, state: AppliedState) -> None:
        """A tree now stands in a workspace, as `state` says."""
        if places.tree_state is not None and self._walled:
            self._applied[places.tree_state] = state

    def is_awaited(self, places: Places) -> bool:
        """Whether another job of the same sender waits for this one to end."""
        return places.tree_state is not None and self._waiting[places.tree_state.parent] > 0

    async def close(self, timeout_s: float) -> None:
        """Wait until no workspace is looked at any more; what takes longer is left undone."""
        if self._tidying:
            await asyncio.wait(self._tidying, timeout=timeout_s)

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
        spaces = sorted(((read_used(space), space) for space in _folders(self._spaces)), key=_age)
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
        lock = try_lock(space)
        if lock is None:
            return False
        with lock:
            self._untouched.pop(space, None)
            self._state.discard(space)
        return True

    async def _take_turn(self, space: Path, running: Running, held: contextlib.ExitStack) -> None:
        """Wait for our own jobs in this workspace, in the order in which they came; the turn ends
        with the stack."""
        turn = self._turns.setdefault(space, asyncio.Lock())
        self._waiting[space] += 1
        try:
            await running.unless_cancelled(turn.acquire())
        finally:
            self._waiting[space] -= 1
        held.callback(turn.release)

    async def _lock(self, space: Path, running: Running, held: contextlib.ExitStack) -> None:
        """Hold a workspace against other processes until the stack is closed."""
        while (lock := self._try_made(space)) is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOCK_POLL_S):
                    await running.cancelled.wait()
            running.check()
        held.enter_context(lock)

    def _try_made(self, space: Path) -> contextlib.ExitStack | None:
        """The lock of a workspace, made anew where it was just removed; None while it is held."""
        self._make(space)
        return try_lock(space)

    def _tidy_later(self, space: Path, held: contextlib.ExitStack) -> None:
        task = asyncio.create_task(self._tidy(space, held))
        self._tidying.add(task)
        task.add_done_callback(self._tidying.discard)

    async def _tidy(self, space: Path, held: contextlib.ExitStack) -> None:
        """After a job: note the use of a workspace, and whether its tree was left alone."""
        state = self._applied.pop(space / "tree", None)
        with held:
            with contextlib.suppress(StorageError):
                await asyncio.to_thread(_mark_used, space)
            if state is not None and await asyncio.to_thread(is_untouched, state, space / "work"):
                self._remember(space, state)

    def _remember(self, space: Path, state: AppliedState) -> None:
        self._untouched[space] = state
        room = REMEMBERED_ENTRIES
        for known in [*reversed(self._untouched)]:
            room -= len(self._untouched[known].stamps)
            if room < 0:
                del self._untouched[known]

    def _empty(self, space: Path) -> None:
        for name in ("work", "home", "tree", "arrived", "repository"):
            self._state.discard(space / name)

    def _own_places(self, job: Path) -> Places:
        work, home, out = (self._folder(job / name) for name in ("work", "home", "out"))
        return Places(job, work, home, out, None)

    def _kept_places(self, job: Path, space: Path, untouched: AppliedState | None) -> Places:
        if not (space / "tree").exists():
            # Nobody knows which of its files came from a tree: they would never leave.
            self._state.discard(space / "work")
            untouched = None
        work, home = self._folder(space / "work"), self._folder(space / "home")
        return Places(job, work, home, self._folder(job / "out"), space / "tree", untouched)

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


def try_lock(space: Path) -> contextlib.ExitStack | None:
    """Hold the lock of a workspace until the stack is closed; None when somebody else does, or the
    workspace is being removed."""
    stack = contextlib.ExitStack()
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(space / "lock", flags, 0o600)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise storage_error("lock a workspace", e) from None
    stack.callback(os.close, fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(space / "lock").st_ino == os.fstat(fd).st_ino:
            return stack
    except (BlockingIOError, FileNotFoundError):
        pass
    stack.close()
    return None


def _mark_used(space: Path) -> None:
    size = sum(_size_of(space / name) for name in ("work", "home", "arrived", "repository"))
    used = Used(at_s=time.time(), size_bytes=size)
    safefs.write_private(space / "used", msgspec.json.encode(used))


def read_used(space: Path) -> Used:
    """When and how large a workspace was last; one without the note counts as just used."""
    try:
        data = safefs.read_bounded(space / "used", _USED_BYTES)
        return canonical.decode_loose(data, Used, "note of a workspace")
    except (StorageError, EncodingError):
        return Used(at_s=time.time(), size_bytes=0)


def _age(entry: tuple[Used, Path]) -> float:
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
