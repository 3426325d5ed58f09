"""Control groups: exact limits on memory and processes, their peak, and a kill that misses none.

Holds the search for a place where groups may be made (version 1 and 2), and `Cgroup`, one job's
group. A group is made below the runner's own, so that the limits set for the runner hold for its
jobs too; where that cannot be, a root runner uses the top of the hierarchy.

Rules
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PREFIX = "airlox-"
_RUNNER_LEAF = "airlox-runner"
_CONTROLLERS = ("memory", "pids")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OWNED = re.compile(r"airlox-([0-9]{1,20})-([0-9]{1,20})-([0-9]{1,20})-[A-Za-z0-9_-]+")
_ESCAPED_BYTE = re.compile(r"\\([0-7]{3})")
_REMOVE_STEP_S = 0.01
_HINT = (
    "start the runner with `systemd-run --user --scope -p Delegate=yes airlox runner join …`, "
    "or install it as a service"
)


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """One mounted hierarchy: `root` is the group that appears at `point`.

    `controllers` is empty for version 2, where groups carry theirs.
    """

    version: int
    controllers: frozenset[str]
    root: str
    point: str


def parse_mountinfo(text: str) -> tuple[CgroupMount, ...]:
    """The cgroup hierarchies in the text of `/proc/self/mountinfo`; other lines are passed by."""
    return tuple(mount for line in text.splitlines() if (mount := _parse_mount(line)))


def _parse_mount(line: str) -> CgroupMount | None:
    place, found, source = line.partition(" - ")
    fields, types = place.split(" "), source.split(" ")
    if not found or len(fields) < 6 or len(types) < 3:
        return None
    root, point = _unescaped(fields[3]), _unescaped(fields[4])
    if types[0] == "cgroup2":
        return CgroupMount(2, frozenset(), root, point)
    if types[0] == "cgroup":
        return CgroupMount(1, frozenset(types[2].split(",")) - {"rw", "ro"}, root, point)
    return None


def _unescaped(text: str) -> str:
    return _ESCAPED_BYTE.sub(lambda found: chr(int(found[1], 8)), text)


def parse_membership(text: str) -> dict[str, str]:
    """Controller to group, from the text of `/proc/self/cgroup`; version 2 is under `""`."""
    groups = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            groups.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return groups


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
    """One job's group. `memory` and `pids` are the same folder on version 2."""

    version: int
    memory: Path
    pids: Path

    @property
    def folders(self) -> tuple[str, ...]:
        """Where the group is, for the record of the job; see `remove_groups`."""
        return tuple(dict.fromkeys((str(self.memory), str(self.pids))))

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
    """A place where groups may be made: one parent for each of the two controllers."""

    version: int
    memory_parent: Path
    pids_parent: Path

    def create(self, name: str, *, memory_bytes: int | None, processes: int) -> Cgroup:
        """Make a group with its limits; `name` is part of its name. Memory None: measured only.

        Raises:
            SandboxError: the group cannot be made (code `cgroup_none`).
        """
        folder = group_name(name)
        group = Cgroup(self.version, self.memory_parent / folder, self.pids_parent / folder)
        made: list[str] = []
        try:
            for path in group.folders:
                os.mkdir(path)
                made.append(path)
            _limit(group, memory_bytes, processes)
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
        for parent in dict.fromkeys((driver.memory_parent, driver.pids_parent))
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
        mounts = parse_mountinfo((proc / "mountinfo").read_text(errors="surrogateescape"))
        membership = parse_membership((proc / "cgroup").read_text(errors="surrogateescape"))
    except OSError:  # no /proc: no groups
        return ()
    return (*_v1_places(mounts, membership), *_v2_places(mounts, membership))


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


def _v1_places(
    mounts: Iterable[CgroupMount], membership: dict[str, str]
) -> tuple[CgroupDriver, ...]:
    by_controller = {
        controller: mount
        for mount in mounts
        for controller in _CONTROLLERS
        if controller in mount.controllers
    }
    if len(by_controller) < len(_CONTROLLERS):
        return ()
    own = [_own_folder(by_controller[name], membership.get(name, "/")) for name in _CONTROLLERS]
    top = [Path(by_controller[name].point) for name in _CONTROLLERS]
    return CgroupDriver(1, *own), CgroupDriver(1, *top)


def _v2_places(
    mounts: Iterable[CgroupMount], membership: dict[str, str]
) -> tuple[CgroupDriver, ...]:
    mount = next((mount for mount in mounts if mount.version == 2), None)
    if mount is None:
        return ()
    own = _own_folder(mount, membership.get("", "/"))
    if own.name == _RUNNER_LEAF:
        own = own.parent
    places = (own, Path(mount.point))
    return tuple(CgroupDriver(2, place, place) for place in dict.fromkeys(places))


def _own_folder(mount: CgroupMount, group: str) -> Path:
    """Where a group appears; the top of the mount if it lies outside of what is mounted."""
    root = mount.root.rstrip("/")
    inside = group == root or group.startswith(root + "/")
    below = group[len(root) :].strip("/") if inside else ""
    return Path(mount.point) if ".." in below.split("/") else Path(mount.point, below)


def _try(driver: CgroupDriver) -> None:
    if driver.version == 2:
        _hand_down(driver.memory_parent)
    name = f"probe-{os.getpid()}-{os.urandom(4).hex()}"
    group = driver.create(name, memory_bytes=64 << 20, processes=8)
    group.remove(within_s=1)


def _hand_down(parent: Path) -> None:
    """Make the controllers available to the children of a version 2 group."""
    try:
        handed = (parent / "cgroup.subtree_control").read_text().split()
        if set(_CONTROLLERS) <= set(handed):
            return
        offered = (parent / "cgroup.controllers").read_text().split()
        if not set(_CONTROLLERS) <= set(offered):
            raise _none(f"{parent} has no memory and pids controllers to hand down")
        try:
            _enable(parent)
        except OSError as e:
            if e.errno != errno.EBUSY or _members(parent) != (os.getpid(),):
                raise
            leaf = parent / _RUNNER_LEAF
            leaf.mkdir(exist_ok=True)
            _write(leaf / "cgroup.procs", str(os.getpid()))
            _enable(parent)
    except OSError as e:
        raise _none(f"cannot use {parent}: {e.strerror}") from None


def _enable(parent: Path) -> None:
    _write(parent / "cgroup.subtree_control", " ".join("+" + name for name in _CONTROLLERS))


def _limit(group: Cgroup, memory_bytes: int | None, processes: int) -> None:
    _write(group.pids / "pids.max", str(processes))
    files = _FILES[group.version]
    if memory_bytes is None:
        return
    _write(group.memory / files.memory_limit, str(memory_bytes))
    # Without swap accounting the file is missing, and swap cannot be kept from the group.
    with contextlib.suppress(FileNotFoundError):
        _write(group.memory / files.swap_limit, str(memory_bytes if files.swap_is_sum else 0))


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
