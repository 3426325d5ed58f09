"""What of a tree is already in a workspace, and which contents must come from outside.

Changes nothing but the permissions of folders a job closed. A file counts as present when it is
unchanged since it was applied, or when its bytes have the digest; a content that is lacking at
its path may still be there under another one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from airlox.tree.beneath import (
    Folders,
    enter_forced,
    enter_if_open,
    open_regular,
    opened_workspace,
    pieces,
    workspace_errors,
)
from airlox.tree.index import Entry, Kind, TreeIndex
from airlox.tree.mounts import keeps_times
from airlox.tree.paths import split
from airlox.tree.stamps import Stamp, stamp_of
from airlox.tree.state import AppliedState

if TYPE_CHECKING:
    AnyPath = str | os.PathLike[str]

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class Survey(NamedTuple):
    """`present`: path -> how the file looks now. `local`: digest -> path of an intact file that
    has a content which is to be written elsewhere. `lacking`: digests that are nowhere here."""

    present: dict[bytes, os.stat_result]
    local: dict[bytes, bytes]
    lacking: frozenset[bytes]


def boot_id() -> bytes:
    """A name for this run of the kernel; empty where the system has none."""
    try:
        with open(_BOOT_ID, "rb") as file:
            return file.read(255).strip()
    except OSError:
        return b""


def survey(index: TreeIndex, root: AnyPath, state: AppliedState | None) -> Survey:
    """Compare `index` with what stands in `root`, of which `state` tells what was applied."""
    stamped = _stamped(state, root)
    present: dict[bytes, os.stat_result] = {}
    with (
        workspace_errors(),
        opened_workspace(root) as root_fd,
        Folders(root_fd, enter_forced) as folders,
    ):
        for folder, entries in _by_folder(index):
            try:
                folder_fd = folders.fd(folder)
            except OSError:
                continue  # not there, or not a folder: all of it is to be written
            for entry, name in entries:
                found = _look(folder_fd, name, entry, stamped)
                if found is not None:
                    present[entry.path] = found
        needed = {entry.digest for entry in index.entries if entry.path not in present}
        local = dict(_local_sources(index, present, needed))
        rest = needed - local.keys()
        local.update(_moved_sources(folders, stamped, rest))
    return Survey(present, local, frozenset(needed - local.keys()))


def is_untouched(state: AppliedState, root: AnyPath) -> bool:
    """Whether every file that was applied still looks as it was left, modes and owners included,
    and no folder on the way is closed to its owner; then nothing would have to be done for the
    same tree. Stops at the first that does not."""
    stamped = _stamped(state, root)
    if len(stamped) != len(state.tree.entries) or state.unfinished:
        return False
    try:
        with opened_workspace(root) as root_fd, Folders(root_fd, enter_if_open) as folders:
            for folder, entries in _by_folder(state.tree):
                folder_fd = folders.fd(folder)
                for entry, name in entries:
                    found = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
                    if stamp_of(found) != stamped[entry.path][1]:
                        return False
    except OSError:
        return False
    return True


def what_is_lacking(
    index: TreeIndex, root: AnyPath, state: AppliedState | None = None
) -> frozenset[bytes]:
    """Digests of the contents that `apply` would have to fetch."""
    return survey(index, root, state).lacking


def _stamped(state: AppliedState | None, root: AnyPath) -> dict[bytes, tuple[Entry, Stamp]]:
    """What was applied, by path, where its stamps can be believed."""
    if state is None or state.boot != boot_id() or not keeps_times(root):
        return {}
    pairs = zip(state.tree.entries, state.stamps, strict=True)
    return {entry.path: (entry, stamp) for entry, stamp in pairs}


def _by_folder(index: TreeIndex) -> Iterator[tuple[bytes, Iterator[tuple[Entry, bytes]]]]:
    """Entries with their names, folder by folder: each folder is opened once."""
    rows = sorted((*split(entry.path), entry) for entry in index.entries)
    for folder, group in groupby(rows, key=itemgetter(0)):
        yield folder, ((entry, name) for _, name, entry in group)


def _look(
    folder_fd: int, name: bytes, entry: Entry, stamped: dict[bytes, tuple[Entry, Stamp]]
) -> os.stat_result | None:
    """How the file looks, if it has the content of `entry`."""
    try:
        found = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        if entry.kind is Kind.LINK:
            is_link = stat.S_ISLNK(found.st_mode) and found.st_size == entry.size
            target = os.readlink(name, dir_fd=folder_fd) if is_link else b""
            return found if sha256(target).digest() == entry.digest and is_link else None
        if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
            return None
        before, stamp = stamped.get(entry.path, (None, None))
        if before and stamp == stamp_of(found) and before.digest == entry.digest:
            return found
        return _look_inside(folder_fd, name, entry)
    except OSError:
        return None


def _look_inside(folder_fd: int, name: bytes, entry: Entry) -> os.stat_result | None:
    fd, found = open_regular(folder_fd, name)
    try:
        digest = sha256()
        room = entry.size
        for piece in pieces(fd):
            room -= len(piece)
            if room < 0:
                return None
            digest.update(piece)
    finally:
        os.close(fd)
    return found if digest.digest() == entry.digest else None


def _local_sources(
    index: TreeIndex, present: dict[bytes, os.stat_result], needed: set[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    for entry in index.entries:
        if entry.digest in needed and entry.path in present and entry.kind is not Kind.LINK:
            yield entry.digest, entry.path


def _moved_sources(
    folders: Folders, stamped: dict[bytes, tuple[Entry, Stamp]], needed: set[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Contents that stand, unchanged, where the tree before this one had them."""
    for path, (entry, stamp) in stamped.items():
        if entry.digest not in needed or entry.kind is Kind.LINK:
            continue
        folder, name = split(path)
        try:
            found = os.stat(name, dir_fd=folders.fd(folder), follow_symlinks=False)
        except OSError:
            continue
        if stamp_of(found) == stamp and found.st_size == entry.size:
            yield entry.digest, path
