"""What a runner needs of its machine beside a sandbox: a Python, folders, room, a clock.

Each check looks and changes nothing, but that the folder jobs will work in is made. What it finds
is a `Check`; nothing is raised.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
import sysconfig
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from airlox import safefs
from airlox.errors import AirloxError, StorageError, UsageError
from airlox.protocol.manifest import JobLimits
from airlox.runner import facts
from airlox.runner.options import RunnerOptions
from airlox.runner.packages import PythonSupply

GIB: Final = 1024**3
_LITTLE_ROOM_BYTES: Final = 4 * GIB
_NOEXEC: Final[int] = getattr(os, "ST_NOEXEC", 0)
"""Only Linux tells."""
_FEW_INODES: Final = 50_000
_OLDEST_NOW_S: Final = 1_780_000_000
"""Before this version was made: a clock that says so is wrong."""
_TIMEX_BYTES: Final = 512
_TIMEX_STATUS: Final = slice(40, 44)
"""Where `status` stands in the kernel's `struct timex` on 64-bit systems."""
_UNSYNCHRONISED: Final = 0x40


class State(StrEnum):
    """Whether something is as it should be."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `code` is stable; `remedy` what to do about it."""

    name: str
    state: State
    detail: str
    code: str | None = None
    remedy: str | None = None


def look_at_machine(options: RunnerOptions, runtime: str, account: str) -> tuple[Check, ...]:
    """All checks. `runtime` is what sessions will pin (`python3.12`), `account` the name that the
    runner's user has on this machine."""
    root = options.jobs_root
    return (
        # containers have that of their image
        *(() if options.sandbox == facts.DOCKER else (check_python(options, runtime),)),
        check_uv(options.path),
        *check_work_root(root, account, walls=options.sandbox != "process"),
        check_room(root, options.disk_floor_bytes),
        check_clock(time.time(), synchronised=is_clock_synchronised()),
    )


def supply_of(options: RunnerOptions, runtime: str) -> PythonSupply:
    """The interpreters of a session without packages that pins `runtime`. Raises ProtocolError."""
    session = JobLimits(
        approve_runners=True,
        memory_mb=512,
        network=False,
        packages=(),
        return_out=True,
        runtime=runtime,
        timeout_s=60,
    )
    runtimes = options.cache_root / "runner" / "runtimes"
    return PythonSupply(
        session, pins=False, python=options.python, runtimes=runtimes, path=options.path
    )


def check_python(options: RunnerOptions, runtime: str) -> Check:
    """Whether Python jobs of sessions with this runtime can be taken."""
    try:
        version = supply_of(options, runtime).check(fetch=False)
    except UsageError as error:
        # named by the operator, it must work; one that is missing uv may fetch at the join
        state = State.WARNING if options.python is None else State.FAILED
        detail = f"no {runtime} for Python jobs" if options.python is None else error.message
        return Check("python", state, detail, error.code, error.hint)
    return Check("python", State.OK, f"{version} for sessions that pin {runtime}")


def check_uv(path: str) -> Check:
    """Whether there is what makes environments for a session's packages."""
    beside = os.path.join(sysconfig.get_path("scripts"), "uv")
    if shutil.which("uv", path=path) or os.path.exists(beside):
        return Check("uv", State.OK, "makes environments for the packages of sessions")
    return Check(
        "uv",
        State.WARNING,
        "missing: sessions with packages are refused unless --python has them",
        "uv_missing",
        "pip install uv",
    )


def check_work_root(root: Path, account: str, *, walls: bool) -> tuple[Check, ...]:
    """Whether jobs can work below `root`, and whether its path tells them who runs it."""
    try:
        if not root.exists():
            safefs.make_private_dir(root)
        if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
            raise StorageError(f"{root} cannot be written to")
        flags = os.statvfs(root).f_flag
    except (AirloxError, OSError) as error:
        said = error.message if isinstance(error, AirloxError) else str(error.strerror)
        remedy = "name a folder of yours by --work-root DIR"
        return (Check("work root", State.FAILED, said, "work_root", remedy),)
    if flags & _NOEXEC:
        found = Check(
            "work root",
            State.WARNING,
            f"{root}: programs that jobs build there cannot run (mounted noexec)",
            "work_root_noexec",
            "name a folder on another file system by --work-root DIR",
        )
    elif walls and _names(root, account):
        found = Check(
            "work root",
            State.WARNING,
            f"{root}: jobs can read this path, and the name of the account in it",
            "work_root_account",
            "name a folder that says nothing, such as /srv/airlox, by --work-root DIR",
        )
    else:
        found = Check("work root", State.OK, str(root))
    return (found,)


def _names(root: Path, account: str) -> bool:
    """Whether a path has the account's name in it, as a word."""
    if account in ("", "root"):
        return False
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(account)}(?![A-Za-z0-9])", str(root)) is not None


def check_room(root: Path, floor_bytes: int) -> Check:
    """Whether the disk below the work root has room for jobs."""
    try:
        found = os.statvfs(root)
    except OSError as error:
        return Check("disk", State.FAILED, f"{root}: {error.strerror}", "work_root")
    free = found.f_bavail * found.f_frsize
    text = f"{free / GIB:.1f} GiB free"
    remedy = "free some, or name another disk by --work-root DIR"
    if free < floor_bytes:
        return Check("disk", State.FAILED, f"{text}: jobs are refused", "disk_full", remedy)
    if free < _LITTLE_ROOM_BYTES:
        return Check("disk", State.WARNING, f"{text}: little for builds", "disk_little", remedy)
    if found.f_files and found.f_favail < _FEW_INODES:
        text = f"room for {found.f_favail} more files only"
        return Check("disk", State.WARNING, text, "disk_little", remedy)
    return Check("disk", State.OK, text)


def check_clock(now_s: float, *, synchronised: bool | None) -> Check:
    """Whether the time is about right. `synchronised` is the kernel's word, None where it has
    none."""
    remedy = "sudo timedatectl set-ntp true"
    if now_s < _OLDEST_NOW_S:
        said = time.strftime("%Y-%m-%d", time.gmtime(now_s))
        return Check("clock", State.FAILED, f"it says {said}", "clock_wrong", remedy)
    if synchronised is False:
        text = "nothing keeps it right; sessions expire by it"
        return Check("clock", State.WARNING, text, "clock_unsynchronised", remedy)
    return Check("clock", State.OK, "kept right" if synchronised else "plausible")


def is_clock_synchronised() -> bool | None:
    """Whether the kernel says that something keeps its clock right; None where it cannot say."""
    if sys.platform != "linux":
        return None
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    if ctypes.CDLL(None, use_errno=True).adjtimex(timex) < 0:  # with nothing set, it only reads
        return None
    return not int.from_bytes(timex.raw[_TIMEX_STATUS], sys.byteorder) & _UNSYNCHRONISED
