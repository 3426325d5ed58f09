"""Control groups: exact limits on memory and processes, their peak, and a kill that misses none.

Holds the search for a place where groups may be made (version 1 and 2), and `Cgroup`, one job's
group. A group is made below the runner's own, so that the limits set for the runner hold for its
jobs too; where that cannot be, a root runner uses the top of the hierarchy.

Rules
- Where the controller of processors can be had, a job yields to the runner, and may be held to a
  share of the machine: one that keeps every core busy must not starve what speaks with the relay.
- A process is put in by its pid before it starts the job's program; children follow by themselves.
- Groups are named `airlox-…`, and nothing else is ever removed or killed here. The name tells
  which process made the group, so that what a dead runner left can be known and swept.
- On version 2 a group that holds processes cannot hand out controllers. When the runner is alone
  in its group, as `systemd-run --scope -p Delegate=yes` leaves it, it moves into a leaf of its own.

Left to others: what a kill by the kernel means for the job's outcome.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox import proctable
from airlox.sandbox.linux import hierarchies
from airlox.sandbox.linux.hierarchies import (
    CONTROLLERS,
    PROCESSORS,
    RUNNER_LEAF,
    parse_membership,
    parse_mountinfo,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PREFIX = "airlox-"
_WEIGHT_OF_JOBS = 50
_SHARES_OF_JOBS = 512
"""Half of what a group or process has otherwise."""
_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OWNED = re.compile(r"airlox-([0-9]{1,20})-([0-9]{1,20})-([0-9]{1,20})-[A-Za-z0-9_-]+")
_REMOVE_STEP_S = 0.01
_HINT = (
    "start the runner with `systemd-run --user --scope -p Delegate=yes airlox runner join …`, "
    "or install it as a service"
)


@dataclass(frozen=True, slots=True)
class _Files:
    """What one version calls the files of a group."""

    memory_limit: str
    swap_limit: str
    swap_is_sum: bool
    peak: str
    memory_events: str


_FILES = {
    1: _Files(
        memory_limit="memory.limit_in_bytes",
        swap_limit="memory.memsw.limit_in_bytes",
        swap_is_sum=True,
        peak="memory.max_usage_in_bytes",
        memory_events="memory.oom_control",
    ),
    2: _Files(
        memory_limit="memory.max",
        swap_limit="memory.swap.max",
        swap_is_sum=False,
        peak="memory.peak",
        memory_events="memory.events",
    ),
}


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One job's group. The folders are the same on version 2; `cpu` is None where there is no
    controller of processors."""

    version: int
    memory: Path
    pids: Path
    cpu: Path | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """Where the group is, for the record of the job; see `remove_groups`."""
        places = (self.memory, self.pids, *(() if self.cpu is None else (self.cpu,)))
        return tuple(dict.fromkeys(map(str, places)))

    def add(self, pid: int) -> None:
        """Put a process in, before it starts what is to be limited. Raises OSError."""
        for folder in self.folders:
            _write(Path(folder, "cgroup.procs"), str(pid))

    def members(self) -> tuple[int, ...]:
        """Pids of all processes in the group, as seen from here."""
        return _members(self.pids)

    def peak_bytes(self) -> int | None:
        """Most memory used at once, or None where the kernel does not tell."""
        return _read_number(self.memory / _FILES[self.version].peak)

    def oom_kills(self) -> int:
        """Processes that the kernel killed because the group reached its memory limit."""
        return _read_count(self.memory / _FILES[self.version].memory_events, "oom_kill")

    def process_refusals(self) -> int:
        """How often the group was refused a process because of its limit."""
        return _read_count(self.pids / "pids.events", "max")

    def kill(self) -> None:
        """Kill every process of the group. New ones cannot be made from here on."""
        _kill(self.folders)

    def remove(self, *, within_s: float) -> bool:
        """Kill what is left and remove the group; False when it was not empty in time. Blocks."""
        return remove_groups(self.folders, within_s=within_s)


@dataclass(frozen=True, slots=True)
class CgroupDriver:
    """A place where groups may be made: one parent for each controller."""

    version: int
    memory_parent: Path
    pids_parent: Path
    cpu_parent: Path | None = None

    @property
    def what(self) -> str:
        """What is limited here, in words."""
        return "memory and processes" + ("" if self.cpu_parent is None else ", share of processors")

    @property
    def parents(self) -> tuple[Path, ...]:
        """Where groups are made, each place once."""
        places = (self.memory_parent, self.pids_parent, self.cpu_parent)
        return tuple(dict.fromkeys(place for place in places if place is not None))

    def wake(self) -> None:
        """Have the kernel ready to put a process into a group soon. Blocks; promises nothing.

        Before a process changes its group the kernel waits until every processor has passed a
        point of rest, for some 10 ms; for about as long afterwards the next one need not wait. So
        this process changes to where it is anyway, ahead of one that somebody waits for.
        """
        pid = os.getpid()
        for place in (self.memory_parent, self.memory_parent / RUNNER_LEAF):
            if pid in _members(place):
                with contextlib.suppress(OSError):
                    _write(place / "cgroup.procs", str(pid))

    def create(
        self, name: str, *, memory_bytes: int | None, processes: int, cpus: float | None = None
    ) -> Cgroup:
        """Make a group with its limits; `name` is part of its name. None: no limit, and memory is
        measured all the same.

        Raises:
            SandboxError: the group cannot be made (code `cgroup_none`).
        """
        if cpus is not None and self.cpu_parent is None:
            raise _none("no controller of processors")
        folder = group_name(name)
        group = Cgroup(
            self.version,
            self.memory_parent / folder,
            self.pids_parent / folder,
            None if self.cpu_parent is None else self.cpu_parent / folder,
        )
        made: list[str] = []
        try:
            for path in group.folders:
                os.mkdir(path)
                made.append(path)
            _limit(group, memory_bytes, processes)
            _share_processors(group, cpus)
        except OSError as e:
            remove_groups(made, within_s=0)  # not one that was there before: it is another job's
            raise _none(f"cannot make {e.filename}: {e.strerror}") from None
        return group


def open_driver(proc: Path = Path("/proc/self")) -> CgroupDriver:
    """Find where groups may be made, by making one.

    May move this process into a leaf of its own group (version 2, alone in its group).

    Raises:
        SandboxError: none may be made here (code `cgroup_none`).
    """
    refusal = _none("no memory and pids controllers are mounted")
    for driver in _places(proc):
        try:
            _try(driver)
        except SandboxError as e:
            refusal = e
        else:
            return driver
    raise refusal


def sweep_groups(proc: Path = Path("/proc/self"), *, within_s: float) -> bool:
    """Kill and remove the groups whose makers are dead; False when one would not go. Blocks."""
    dead = [
        str(folder)
        for driver in _places(proc)
        for parent in driver.parents
        for folder in orphans_in(parent)
    ]
    return remove_groups(tuple(dict.fromkeys(dead)), within_s=within_s)


def group_name(name: str) -> str:
    """The name of a group of this process; `name` is part of it."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a group")
    return f"{_PREFIX}{_owner_tag()}-{name}"


def orphans_in(parent: Path) -> tuple[Path, ...]:
    """The groups in a folder whose makers are dead."""
    return tuple(folder for folder in _folders_in(parent) if _is_orphan(folder.name))


def remove_groups(folders: Sequence[str], *, within_s: float) -> bool:
    """Kill and remove the groups at `folders`; False when one was not empty in time. Blocks.

    Missing ones are fine; a folder that is not named like a group of ours is left alone.
    """
    ours = [folder for folder in folders if Path(folder).name.startswith(_PREFIX)]
    deadline = time.monotonic() + within_s
    while True:
        _kill(ours)
        ours = [folder for folder in ours if not _removed(folder)]
        if not ours:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_REMOVE_STEP_S)


def _places(proc: Path) -> tuple[CgroupDriver, ...]:
    """Where groups could be made, best first; whether they may be is for `_try` to say."""
    try:
        mounts = (proc / "mountinfo").read_text(errors="surrogateescape")
        membership = (proc / "cgroup").read_text(errors="surrogateescape")
    except OSError:  # no /proc: no groups
        return ()
    found = hierarchies.places(parse_mountinfo(mounts), parse_membership(membership))
    return tuple(CgroupDriver(*place) for place in found)


def _owner_tag() -> str:
    """Names this process for `_is_orphan`: its pid namespace, pid and start."""
    pid = os.getpid()
    process = proctable.find(pid)
    return f"{_pid_namespace()}-{pid}-{process.start if process else 0}"


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _is_orphan(name: str) -> bool:
    """Whether the maker of a group with this name is dead. One that cannot be seen is not."""
    found = _OWNED.fullmatch(name)
    if found is None or int(found[1]) != _pid_namespace():
        return False
    process = proctable.find(int(found[2]))
    return process is None or process.start != int(found[3])


def _folders_in(parent: Path) -> tuple[Path, ...]:
    try:
        with os.scandir(parent) as entries:
            return tuple(Path(entry.path) for entry in entries if entry.is_dir())
    except OSError:
        return ()


def _try(driver: CgroupDriver) -> None:
    if driver.version == 2:
        _hand_down(driver.memory_parent, CONTROLLERS)
        if driver.cpu_parent is not None:
            _hand_down(driver.memory_parent, (*CONTROLLERS, PROCESSORS))
    name = f"probe-{os.getpid()}-{os.urandom(4).hex()}"
    group = driver.create(name, memory_bytes=64 << 20, processes=8)
    group.remove(within_s=1)


def _hand_down(parent: Path, controllers: tuple[str, ...]) -> None:
    """Make the controllers available to the children of a version 2 group."""
    try:
        handed = (parent / "cgroup.subtree_control").read_text().split()
        if set(controllers) <= set(handed):
            return
        offered = (parent / "cgroup.controllers").read_text().split()
        if not set(controllers) <= set(offered):
            raise _none(f"{parent} has not all of {', '.join(controllers)} to hand down")
        try:
            _enable(parent, controllers)
        except OSError as e:
            if e.errno != errno.EBUSY or _members(parent) != (os.getpid(),):
                raise
            leaf = parent / RUNNER_LEAF
            leaf.mkdir(exist_ok=True)
            _write(leaf / "cgroup.procs", str(os.getpid()))
            _enable(parent, controllers)
    except OSError as e:
        raise _none(f"cannot use {parent}: {e.strerror}") from None


def _enable(parent: Path, controllers: tuple[str, ...]) -> None:
    _write(parent / "cgroup.subtree_control", " ".join("+" + name for name in controllers))


def _limit(group: Cgroup, memory_bytes: int | None, processes: int) -> None:
    _write(group.pids / "pids.max", str(processes))
    files = _FILES[group.version]
    if memory_bytes is None:
        return
    _write(group.memory / files.memory_limit, str(memory_bytes))
    # Without swap accounting the file is missing, and swap cannot be kept from the group.
    with contextlib.suppress(FileNotFoundError):
        _write(group.memory / files.swap_limit, str(memory_bytes if files.swap_is_sum else 0))


def _share_processors(group: Cgroup, cpus: float | None) -> None:
    if group.cpu is None:
        return
    quota_us = None if cpus is None else max(round(cpus * _PERIOD_US), _LEAST_QUOTA_US)
    if group.version == 1:
        _write(group.cpu / "cpu.shares", str(_SHARES_OF_JOBS))
        _write(group.cpu / "cpu.cfs_period_us", str(_PERIOD_US))
        _write(group.cpu / "cpu.cfs_quota_us", str(-1 if quota_us is None else quota_us))
    else:
        _write(group.cpu / "cpu.weight", str(_WEIGHT_OF_JOBS))
        _write(group.cpu / "cpu.max", f"{'max' if quota_us is None else quota_us} {_PERIOD_US}")


def _kill(folders: Iterable[str]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # only the pids controller has it; it stops forks
            _write(Path(folder, "pids.max"), "0")
    for folder in folders:
        try:
            _write(Path(folder, "cgroup.kill"), "1")
        except OSError:  # version 1, or a kernel before 5.14
            for pid in _members(Path(folder)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _members(folder: Path) -> tuple[int, ...]:
    try:
        pids = [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return ()
    return tuple(pid for pid in pids if pid > 0)  # 0: a process that cannot be seen from here


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _read_count(path: Path, key: str) -> int:
    """The number after `key` in a file of `key number` lines; 0 where there is none."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(words[1]) for words in lines if len(words) == 2 and words[0] == key), 0)


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from None
    finally:
        os.close(fd)


def _none(why: str) -> SandboxError:
    return SandboxError(
        f"no cgroup may be made; memory is watched, not enforced by the kernel: {why}",
        code="cgroup_none",
        hint=_HINT,
    )
