"""What a runner writes down about its running jobs, and the clean-up after one that died.

Holds the lock on a state folder, the records `jobs/ID.json`, the trash for what cannot be removed
at once, and the sweep at the start of a runner.

Rules
- One runner for each state folder: whoever sweeps holds its lock.
- A process is ended only if pid, start time and boot are those of the record: a pid is used again.
- Folders are removed only beneath the state folder, whatever a record says.

Left to others: what is told to the senders of the jobs that were lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from airlox import safefs
from airlox.errors import StorageError, UsageError
from airlox.sandbox import proctable
from airlox.sandbox.collect import remove_tree
from airlox.sandbox.linux import cgroups

_T = TypeVar("_T")

_RECORDS = "jobs"
_TRASH = "trash"
_LOCK = "lock"
_RECORD_LIMIT_BYTES = 1 << 16
_GROUPS_WITHIN_S = 2.0
_KILL_ROUNDS = 100
_KILL_STEP_S = 0.01
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job that is running: its topmost process, and the folders that go with the job.

    `start` is the process's start in ticks since the boot `boot`, which is "" where unknown.
    """

    job: str
    pid: int
    start: int
    boot: str
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Swept:
    """Jobs that a dead runner left, and paths that could not be removed even now."""

    jobs: tuple[str, ...]
    left: tuple[str, ...]


def record_of(job: str, pid: int, folders: tuple[Path, ...]) -> JobRecord:
    """The record of a job whose topmost process is `pid`, alive now."""
    process = proctable.find(pid)
    start = process.start if process else 0
    return JobRecord(job, pid, start, _boot(), tuple(str(folder) for folder in folders))


def encode_record(record: JobRecord) -> bytes:
    """The bytes of a record file."""
    fields = {
        "boot": record.boot,
        "folders": record.folders,
        "job": record.job,
        "pid": record.pid,
        "start": record.start,
    }
    return json.dumps(fields).encode()


def parse_record(data: bytes) -> JobRecord:
    """A record from its file. Raises StorageError (code `bad_record`)."""
    try:
        fields = json.loads(data)
        record = JobRecord(
            job=_expect(str, fields["job"]),
            pid=_expect(int, fields["pid"]),
            start=_expect(int, fields["start"]),
            boot=_expect(str, fields["boot"]),
            folders=tuple(_expect(str, folder) for folder in _expect(list, fields["folders"])),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        raise StorageError("the file is no record of a job", code="bad_record") from None
    if not _JOB_ID.fullmatch(record.job) or record.pid <= 1 or record.start < 0:
        raise StorageError("the record of a job holds impossible values", code="bad_record")
    return record


class StateFolder:
    """A runner's state folder, locked. Made by `lock_state`; a context manager."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self._path = path
        self._lock_fd: int | None = lock_fd

    def remember(self, record: JobRecord) -> None:
        """Write a job down, before its program starts. Raises StorageError."""
        safefs.write_private(self._record_path(record.job), encode_record(record))

    def forget(self, job: str) -> None:
        """Remove the record of a job that has ended. One that cannot be removed is left to the
        next `sweep`, which finds nothing to end: what the job gave must not be lost for it."""
        with contextlib.suppress(OSError):
            self._record_path(job).unlink()

    def discard(self, path: Path) -> bool:
        """Remove `path`, or put what resists into the trash; True when it is gone for good.

        A later `sweep` tries again. Blocks; raises StorageError if it cannot even be moved.
        """
        try:
            remove_tree(path)
        except StorageError:
            target = self._path / _TRASH / os.urandom(8).hex()
            try:
                path.rename(target)
            except OSError as e:
                raise StorageError(f"cannot move {path} to the trash: {e.strerror}") from None
            return False
        return True

    def sweep(self) -> Swept:
        """End and remove what a dead runner left here, and empty the trash. Blocks."""
        cgroups.sweep_groups(within_s=_GROUPS_WITHIN_S)
        jobs, left = [], []
        for path in sorted((self._path / _RECORDS).iterdir()):
            record = _load(path)
            if record is not None:
                jobs.append(record.job)
                _end(record)
                left += self._remove(record)
            path.unlink()
        left += _remove_all(sorted((self._path / _TRASH).iterdir()))
        return Swept(tuple(jobs), tuple(left))

    def close(self) -> None:
        """Give the lock back. Idempotent."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def __enter__(self) -> StateFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _record_path(self, job: str) -> Path:
        if not _JOB_ID.fullmatch(job):
            raise ValueError(f"{job!r} is no id of a job")
        return self._path / _RECORDS / f"{job}.json"

    def _remove(self, record: JobRecord) -> list[str]:
        return _remove_all([Path(folder) for folder in record.folders if self._is_below(folder)])

    def _is_below(self, folder: str) -> bool:
        root = os.path.realpath(self._path)
        return os.path.realpath(folder).startswith(root + os.sep)


def lock_state(path: Path) -> StateFolder:
    """Make the folder, if need be, and lock it for the life of the runner.

    Raises:
        UsageError: another runner uses it (code `state_in_use`).
        StorageError: it cannot be made or locked.
    """
    for folder in (path, path / _RECORDS, path / _TRASH):
        safefs.make_private_dir(folder)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path / _LOCK, flags, 0o600)
    except OSError as e:
        raise StorageError(f"cannot open the lock of {path}: {e.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise UsageError(
            f"another runner uses the folder {path}",
            code="state_in_use",
            hint="stop it, or give this one a --work-root of its own",
        ) from None
    return StateFolder(path, fd)


def _load(path: Path) -> JobRecord | None:
    try:
        return parse_record(safefs.read_bounded(path, _RECORD_LIMIT_BYTES))
    except StorageError:  # torn or foreign: nothing can be known of it
        return None


def _end(record: JobRecord) -> None:
    """Kill what is below the job's topmost process, then that, for it keeps the others findable."""
    if record.boot != _boot():
        return
    for _ in range(_KILL_ROUNDS):
        root = proctable.find(record.pid)
        if root is None or root.start != record.start or root.zombie:
            return
        below = proctable.below(record.pid, proctable.all_processes())
        alive = [process for process in below if not process.zombie]
        for process in alive or [root]:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(_KILL_STEP_S)


def _remove_all(paths: list[Path]) -> list[str]:
    left = []
    for path in paths:
        try:
            remove_tree(path)
        except StorageError:
            left.append(str(path))
    return left


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _expect(kind: type[_T], value: object) -> _T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError
    return value
