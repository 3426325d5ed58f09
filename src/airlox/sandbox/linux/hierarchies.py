"""Where control groups could be made: from the kernel's own texts to folders. Pure.

Both versions at once: on some machines version 1 has the controllers and version 2 is mounted
beside it without any. Whether a place may be used is for `cgroups.py` to find out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RUNNER_LEAF = "airlox-runner"
"""The group a runner moves into so that its own can hand out controllers (version 2)."""
CONTROLLERS = ("memory", "pids")
PROCESSORS = "cpu"
"""A controller that is used where it can be had."""
_ESCAPED_BYTE = re.compile(r"\\([0-7]{3})")


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


class Place(NamedTuple):
    """One folder for each controller, the same for all on version 2."""

    version: int
    memory: Path
    pids: Path
    cpu: Path | None = None


def places(mounts: Iterable[CgroupMount], membership: dict[str, str]) -> tuple[Place, ...]:
    """Where groups could be made, best first. Each also without processors, for where these are
    not handed down."""
    found = (*_v1_places(mounts, membership), *_v2_places(mounts, membership))
    each = (place for full in found for place in (full, full._replace(cpu=None)))
    return tuple(dict.fromkeys(each))


def _v1_places(mounts: Iterable[CgroupMount], membership: dict[str, str]) -> Iterator[Place]:
    by_controller = {
        controller: mount
        for mount in mounts
        for controller in (*CONTROLLERS, PROCESSORS)
        if controller in mount.controllers
    }
    if by_controller.keys() >= set(CONTROLLERS):
        yield Place(
            1, **{c: _own_folder(m, membership.get(c, "/")) for c, m in by_controller.items()}
        )
        yield Place(1, **{c: Path(m.point) for c, m in by_controller.items()})


def _v2_places(mounts: Iterable[CgroupMount], membership: dict[str, str]) -> Iterator[Place]:
    mount = next((mount for mount in mounts if mount.version == 2), None)
    if mount is None:
        return
    own = _own_folder(mount, membership.get("", "/"))
    if own.name == RUNNER_LEAF:
        own = own.parent
    for folder in (own, Path(mount.point)):
        yield Place(2, folder, folder, folder)


def _own_folder(mount: CgroupMount, group: str) -> Path:
    """Where a group appears; the top of the mount if it lies outside of what is mounted."""
    root = mount.root.rstrip("/")
    inside = group == root or group.startswith(root + "/")
    below = group[len(root) :].strip("/") if inside else ""
    return Path(mount.point) if ".." in below.split("/") else Path(mount.point, below)
