"""What the kernel counts for a container, read from its control group where that can be seen.

A group goes with its container, and with it what it knew. So a root runner whose engine makes
groups by itself (driver `cgroupfs`) asks for a group of its own around each container, which stays,
reads the peak there after the end, and removes it: exact. Else the container's own group is looked
at while it runs: what comes in the last moment is missed, and the result says `watcher`.

Left to others: what the numbers mean (`verdict.py`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airlox.sandbox import proctable
from airlox.sandbox.base import Cause
from airlox.sandbox.container.verdict import Measured
from airlox.sandbox.linux import cgroups, hierarchies
from airlox.sandbox.supervise import Breach

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airlox.sandbox.container.told import Facts

_REMOVE_WITHIN_S = 2.0
_REMOVE_STEP_S = 0.01
_MOUNTINFO = Path("/proc/self/mountinfo")


class Gauge:
    """The numbers of one container; `look` is called again and again while it runs."""

    def __init__(self, facts: Facts, *, own_parent: str | None, limit_bytes: int | None) -> None:
        """`own_parent` is the name of the group around the container, None: there is none.

        `limit_bytes` is to be watched from here; None: the kernel limits it, or nobody.
        """
        self._version = facts.cgroup_version
        self._mounts = _mounts()
        self._parent = own_parent
        self._limit_bytes = limit_bytes
        self._container = ""
        self._group: cgroups.Cgroup | None = None
        self.peak_bytes: int | None = None
        self._oom_kills = 0
        self._refusals = 0

    @property
    def argument(self) -> str | None:
        """The group to ask the engine for."""
        return None if self._parent is None else f"/{self._parent}"

    def follow(self, container: str) -> None:
        """The container with this id is the one."""
        self._container = container

    def present(self) -> bool:
        """Whether the container's group is there and has a process: it runs, and can be seen."""
        if self._group is None and self._container:
            self._group = self._find()
        return self._group is not None and bool(self._group.members())

    def members(self) -> tuple[int, ...]:
        """Pids of the container's processes, where they can be seen from here."""
        return self._group.members() if self.present() and self._group is not None else ()

    def look(self) -> Breach | None:
        """Read once. Keeps the largest that was seen."""
        if not self.present() or self._group is None:
            return None
        self._keep(self._group.peak_bytes())
        self._oom_kills = max(self._oom_kills, self._group.oom_kills())
        self._refusals = max(self._refusals, self._group.process_refusals())
        if self._limit_bytes is None:
            return None
        now = sum(
            proctable.pss_bytes(process)
            for pid in self._group.members()
            if (process := proctable.find(pid)) is not None
        )
        self._keep(now)
        if now > self._limit_bytes:
            return Breach(Cause.OUT_OF_MEMORY, self._limit_bytes, now)
        return None

    def measured(self) -> Measured:
        """All that is known, after the container's end."""
        around = self._around()
        exact = None if around is None else around.peak_bytes()
        self._keep(exact)
        kills = 0 if around is None or self._version == 1 else around.oom_kills()
        return Measured(
            peak_bytes=self.peak_bytes,
            exact=exact is not None,
            oom_kills=max(self._oom_kills, kills),
            process_refusals=self._refusals,
        )

    def close(self) -> None:
        """Remove the group around the container, which is empty by now. Blocks for a moment."""
        if self._parent is None:
            return
        folders = [Path(mount.point, self._parent) for mount in self._mounts]
        deadline = time.monotonic() + _REMOVE_WITHIN_S
        while folders := [folder for folder in folders if not _removed(folder)]:
            if time.monotonic() > deadline:
                return
            time.sleep(_REMOVE_STEP_S)

    def _keep(self, peak_bytes: int | None) -> None:
        if peak_bytes is not None:
            self.peak_bytes = max(self.peak_bytes or 0, peak_bytes)

    def _around(self) -> cgroups.Cgroup | None:
        return None if self._parent is None else self._group_at(self._parent)

    def _find(self) -> cgroups.Cgroup | None:
        for place in _places_of(self._container, self._parent):
            group = self._group_at(place)
            if group is not None and group.pids.is_dir():
                return group
        return None

    def _group_at(self, place: str) -> cgroups.Cgroup | None:
        if self._version == 2:
            point = next((m.point for m in self._mounts if m.version == 2), None)
            folder = None if point is None else Path(point, place)
            return None if folder is None else cgroups.Cgroup(2, folder, folder)
        points = {name: m.point for m in self._mounts for name in m.controllers if m.version == 1}
        if "memory" not in points or "pids" not in points:
            return None
        return cgroups.Cgroup(1, Path(points["memory"], place), Path(points["pids"], place))


def own_parent(facts: Facts) -> str | None:
    """A new name for a group around a container, or None where none can be made and removed."""
    ours = os.geteuid() == 0 and not facts.rootless
    # Podman leaves groups of its own in there.
    possible = ours and not facts.podman and facts.cgroup_driver == "cgroupfs"
    return cgroups.group_name(os.urandom(8).hex()) if possible else None


def sweep_parents() -> None:
    """Remove groups that dead runners left around containers which are gone."""
    for mount in _mounts():
        for folder in cgroups.orphans_in(Path(mount.point)):
            _removed(folder)


def _places_of(container: str, parent: str | None) -> Iterator[str]:
    """Where engines put the groups of containers."""
    if parent is not None:
        yield f"{parent}/{container}"
        return
    user = f"user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service"
    yield f"docker/{container}"
    yield f"system.slice/docker-{container}.scope"
    yield f"{user}/user.slice/docker-{container}.scope"
    yield f"{user}/docker.service/{container}"
    yield f"machine.slice/libpod-{container}.scope"
    yield f"libpod_parent/libpod-{container}"
    yield f"{user}/user.slice/libpod-{container}.scope"


def _mounts() -> tuple[hierarchies.CgroupMount, ...]:
    try:
        return hierarchies.parse_mountinfo(_MOUNTINFO.read_text(errors="surrogateescape"))
    except OSError:  # no /proc: nothing can be seen of containers
        return ()


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
