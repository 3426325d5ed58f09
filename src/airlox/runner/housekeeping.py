"""The workspaces that runners keep on this machine, whether they run or not: listing, removing.

A workspace in use is never touched: its lock is held by the job in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from airlox.errors import StorageError
from airlox.runner.workspace import read_used, try_lock
from airlox.sandbox.collect import remove_tree


class Kept(NamedTuple):
    """One sender's workspace. `name` is a hash of the sender's key; size and time as of the last
    job there, a size of 0 before one ended."""

    session: str
    runner: str
    name: str
    folder: Path
    used_at_s: float
    size_bytes: int
    in_use: bool


def list_workspaces(root: Path) -> list[Kept]:
    """All below a folder of runners, the one used last at the end. Raises StorageError."""
    places = root.glob("ax_*/*/workspaces/*")
    found = [_look(place) for place in places if place.is_dir() and not place.is_symlink()]
    return sorted(found, key=lambda kept: kept.used_at_s)


def remove_workspaces(kept: Iterable[Kept], *, unused_s: float) -> tuple[list[Kept], list[Kept]]:
    """Remove those not used for so long; which went, and which would have but are in use.

    Raises StorageError for one that resists.
    """
    removed, held = [], []
    for one in kept:
        if time.time() - one.used_at_s < unused_s:
            continue
        lock = try_lock(one.folder)
        if lock is None:
            held.append(one)
            continue
        with lock:
            remove_tree(one.folder)
        removed.append(one)
    return removed, held


def _look(folder: Path) -> Kept:
    session, runner = folder.parts[-4], folder.parts[-3]
    used = read_used(folder)
    return Kept(
        session, runner, folder.name[:8], folder, used.at_s, used.size_bytes, _is_held(folder)
    )


def _is_held(folder: Path) -> bool:
    try:
        lock = try_lock(folder)
    except StorageError:
        return True
    if lock is None:
        return True
    lock.close()
    return False
