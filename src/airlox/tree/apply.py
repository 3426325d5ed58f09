"""Making a folder equal to a tree, touching only what differs.

The order of work, so that a failure leaves either the old tree or a known mixture:
1. look (`survey.py`);
2. stage: write every new file into a folder of our own in the root, verified against its digest.
   A missing or damaged content ends the work here, before anything was touched;
3. tell the caller (`journal`) what is about to change;
4. remove what the tree before had and this one lacks; other files stay, emptied folders go;
5. move the staged files into place.

The folder may hold whatever a hostile job left in it; `beneath.py` says how that is met. Links of
a tree are created as they are, wherever they point, and never followed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from airlox.errors import TreeError
from airlox.tree.beneath import (
    FOLDER_FLAGS,
    NEW_FILE_FLAGS,
    Enter,
    Folders,
    closing_on_error,
    empty_pit,
    enter_forced,
    open_regular,
    opened_workspace,
    pieces,
    remove,
    workspace_errors,
    write_all,
)
from airlox.tree.index import LINK_BYTES, Entry, Kind, TreeIndex
from airlox.tree.paths import SYNC_PREFIX, shown, split
from airlox.tree.stamps import Stamp, stamp_of
from airlox.tree.state import AppliedState
from airlox.tree.survey import Survey, boot_id, survey

if TYPE_CHECKING:
    AnyPath = str | os.PathLike[str]

Fetch = Callable[[bytes], Iterable[bytes] | None]
"""The bytes of the content with this digest in pieces, or None; asked once per file to write."""
Owner = tuple[int, int]

_MODES: Final = {Kind.FILE: 0o644, Kind.EXECUTABLE: 0o755}
_FOLDER_MODE: Final = 0o755
_BATCH: Final = 1000
_TICK_NS: Final = 10_000_000
"""Longest clock tick of a kernel: times of files lag behind the clock by up to this."""


class _Sync(NamedTuple):
    """One run of `apply`: the root, our own two folders in it, and whom new files belong to.

    The stage holds new files by their number, the pit folders on their way out.
    """

    root_fd: int
    stage_fd: int
    pit_fd: int
    owner: Owner | None


def apply(
    index: TreeIndex,
    root: AnyPath,
    fetch: Fetch,
    state: AppliedState | None = None,
    owner: Owner | None = None,
    *,
    journal: Callable[[AppliedState], None] | None = None,
    looked: Survey | None = None,
    alone: bool = False,
) -> AppliedState:
    """Make the existing folder `root` equal to `index` and return the state to keep.

    `state` is what the last `apply` here returned (or journalled); files it does not name are
    left alone unless they are in the way. `owner` is the uid and gid of new files and folders.
    `journal` is called once before the first change with a state that covers both trees; keep it,
    and a crash leaves nothing that the next `apply` does not know. `looked` is a survey made
    after the last job ended, to spare making another. `alone`: nothing else stays in the root.

    Raises TreeError: `tree_incomplete` (a content is missing) and `tree_corrupt` (one does not
    have its digest) before anything was changed; `tree_blocked` when the file system refuses.
    Raises StorageError `disk_full`.
    """
    boot = boot_id()
    with workspace_errors(), _synchronising(root, owner) as sync:
        found = looked if looked is not None else survey(index, root, state)
        to_write = [entry for entry in index.entries if entry.path not in found.present]
        _stage(sync, to_write, found, fetch)
        old_paths = _paths_before(state)
        new_paths = {entry.path for entry in index.entries}
        if journal is not None:
            journal(_state_between(state, boot, new_paths - old_paths))
        _remove_old(sync, old_paths - new_paths)
        if alone:
            _remove_others(sync, index)
        stamps = {path: stamp_of(seen) for path, seen in found.present.items()}
        stamps.update(_place(sync, to_write))
        stamps.update(_mend(sync, index, found))
        wait_out_tick(stamps)
    return AppliedState(index, tuple(stamps[entry.path] for entry in index.entries), boot)


def make_folder(root: AnyPath, name: bytes, owner: Owner | None) -> None:
    """Have a real folder of that name in the existing folder `root`, whatever stands there."""
    with workspace_errors(), _synchronising(root, owner) as sync:
        os.close(_making(sync)(sync.root_fd, name))


def remove_whole(root: AnyPath, name: bytes) -> None:
    """Remove what has that name in the existing folder `root`, whatever it is."""
    with workspace_errors(), _synchronising(root, None) as sync:
        remove(sync.root_fd, name, sync.pit_fd)


# ── our own folder in the root ───────────────────────────────────────────────────────────────


@contextmanager
def _synchronising(root: AnyPath, owner: Owner | None) -> Iterator[_Sync]:
    """Open the root and make our folder in it; at the end it is gone, whatever happened.

    Folders like it that a crash or a job left are removed first.
    """
    name = SYNC_PREFIX + os.urandom(8).hex().encode()
    with opened_workspace(root) as root_fd, ExitStack() as undo:
        fds = []
        for folder in (name, name + b"/stage", name + b"/pit"):
            os.mkdir(folder, 0o700, dir_fd=root_fd)
            undo.callback(os.rmdir, folder, dir_fd=root_fd)
            fds.append(os.open(folder, FOLDER_FLAGS, dir_fd=root_fd))
            undo.callback(os.close, fds[-1])
        sync = _Sync(root_fd, fds[1], fds[2], owner)
        undo.callback(empty_pit, sync.pit_fd)
        undo.callback(_empty_stage, sync)
        for other in _names_of_syncs(root_fd):
            if other != name:
                remove(root_fd, other, sync.pit_fd)
        yield sync


def _names_of_syncs(root_fd: int) -> list[bytes]:
    with os.scandir(root_fd) as found:
        names = (os.fsencode(entry.name) for entry in found)
        return [name for name in names if name.startswith(SYNC_PREFIX)]


def _empty_stage(sync: _Sync) -> None:
    for name in os.listdir(sync.stage_fd):
        os.unlink(name, dir_fd=sync.stage_fd)


# ── staging ──────────────────────────────────────────────────────────────────────────────────


def _stage(sync: _Sync, to_write: Sequence[Entry], found: Survey, fetch: Fetch) -> None:
    """Put every entry to write into the stage, under its number, verified."""
    with Folders(sync.root_fd, enter_forced) as folders:
        for number, entry in enumerate(to_write):
            local = found.local.get(entry.digest)
            source = fetch(entry.digest) if local is None else _local_pieces(folders, local)
            if source is None:
                raise TreeError(
                    f"the content of {shown(entry.path)} has not arrived", code="tree_incomplete"
                )
            if entry.kind is Kind.LINK:
                _stage_link(sync, str(number), entry, source)
            else:
                _stage_file(sync, str(number), entry, source)


def _local_pieces(folders: Folders, path: bytes) -> Iterator[bytes]:
    folder, name = split(path)
    fd, _ = open_regular(folders.fd(folder), name)
    try:
        yield from pieces(fd)
    finally:
        os.close(fd)


def _stage_file(sync: _Sync, name: str, entry: Entry, source: Iterable[bytes]) -> None:
    fd = os.open(name, NEW_FILE_FLAGS, 0o600, dir_fd=sync.stage_fd)
    try:
        for piece in _verified(source, entry):
            write_all(fd, piece)
        _own(fd, sync.owner, _MODES[entry.kind])
    finally:
        os.close(fd)


def _stage_link(sync: _Sync, name: str, entry: Entry, source: Iterable[bytes]) -> None:
    target = b"".join(_verified(source, entry))
    if b"\0" in target or len(target) > LINK_BYTES:
        raise _corrupt(entry)
    os.symlink(target, name, dir_fd=sync.stage_fd)
    if sync.owner is not None:
        os.chown(name, *sync.owner, dir_fd=sync.stage_fd, follow_symlinks=False)


def _verified(source: Iterable[bytes], entry: Entry) -> Iterator[bytes]:
    """Pass the pieces on; raises at their end, or as soon as they are too many."""
    digest = sha256()
    room = entry.size
    for piece in source:
        room -= len(piece)
        if room < 0:
            break
        digest.update(piece)
        yield piece
    if room != 0 or digest.digest() != entry.digest:
        raise _corrupt(entry)


# ── changing the tree ────────────────────────────────────────────────────────────────────────


def _remove_old(sync: _Sync, gone: Iterable[bytes]) -> None:
    """Remove files that were part of a tree and are no longer, then folders that this emptied."""
    emptied: set[bytes] = set()
    with Folders(sync.root_fd, enter_forced) as folders:
        for path in sorted(gone):
            folder, name = split(path)
            try:
                folder_fd = folders.fd(folder)
                found = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if not stat.S_ISDIR(found.st_mode):  # a folder there is the job's own
                os.unlink(name, dir_fd=folder_fd)
            while folder and folder not in emptied:
                emptied.add(folder)
                folder = split(folder)[0]
        for path in sorted(emptied, reverse=True):  # what is deeper comes first
            folder, name = split(path)
            with suppress(OSError):  # it holds other files, or is gone already
                os.rmdir(name, dir_fd=folders.fd(folder))


def _remove_others(sync: _Sync, index: TreeIndex) -> None:
    """Remove all that the tree does not name, but for our own folder."""
    named = {b"": {*_names_of_syncs(sync.root_fd)}}
    for entry in index.entries:
        path = entry.path
        while path:
            folder, name = split(path)
            named.setdefault(folder, set()).add(name)
            path = folder
    with Folders(sync.root_fd, enter_forced) as folders:
        for folder in sorted(named):
            try:
                folder_fd = folders.fd(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
            while others := _some_others(folder_fd, named[folder]):
                for name in others:
                    remove(folder_fd, name, sync.pit_fd)


def _some_others(folder_fd: int, named: set[bytes]) -> list[bytes]:
    """Names in a folder that are not `named`; a job may have left any number."""
    with os.scandir(folder_fd) as found:
        names = (os.fsencode(entry.name) for entry in found)
        return [*islice((name for name in names if name not in named), _BATCH)]


def _place(sync: _Sync, to_write: Sequence[Entry]) -> Iterator[tuple[bytes, Stamp]]:
    """Move staged entries to their paths and tell how they look there."""
    with Folders(sync.root_fd, _making(sync)) as folders:
        for number, entry in enumerate(to_write):
            folder, name = split(entry.path)
            folder_fd = folders.fd(folder)
            try:
                _move(sync, str(number), folder_fd, name)
            except IsADirectoryError:
                remove(folder_fd, name, sync.pit_fd)
                _move(sync, str(number), folder_fd, name)
            found = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            yield entry.path, stamp_of(found)


def _move(sync: _Sync, staged: str, folder_fd: int, name: bytes) -> None:
    os.rename(staged, name, src_dir_fd=sync.stage_fd, dst_dir_fd=folder_fd)


def _making(sync: _Sync) -> Enter:
    """Enter a folder, making it where it is missing or where something else stands."""

    def enter_or_make(folder_fd: int, name: bytes) -> int:
        try:
            fd = enter_forced(folder_fd, name)
        except (FileNotFoundError, NotADirectoryError):
            remove(folder_fd, name, sync.pit_fd)
            os.mkdir(name, _FOLDER_MODE, dir_fd=folder_fd)
            fd = os.open(name, FOLDER_FLAGS, dir_fd=folder_fd)
            with closing_on_error(fd):
                os.fchmod(fd, _FOLDER_MODE)  # whatever the umask
        with closing_on_error(fd):
            _own(fd, sync.owner)
        return fd

    return enter_or_make


def _mend(sync: _Sync, index: TreeIndex, found: Survey) -> Iterator[tuple[bytes, Stamp]]:
    """Give files that have their content but another mode or owner the right ones."""
    with Folders(sync.root_fd, enter_forced) as folders:
        for entry in index.entries:
            seen = found.present.get(entry.path)
            if seen is None or entry.kind is Kind.LINK:
                continue
            mode = _MODES[entry.kind]
            if stat.S_IMODE(seen.st_mode) == mode and _is_owned(seen, sync.owner):
                continue
            folder, name = split(entry.path)
            fd, _ = open_regular(folders.fd(folder), name)
            try:
                _own(fd, sync.owner, mode)
                yield entry.path, stamp_of(os.fstat(fd))
            finally:
                os.close(fd)


def _own(fd: int, owner: Owner | None, mode: int | None = None) -> None:
    if owner is not None and not _is_owned(os.fstat(fd), owner):
        os.fchown(fd, *owner)
    if mode is not None:
        os.fchmod(fd, mode)


def _is_owned(found: os.stat_result, owner: Owner | None) -> bool:
    return owner is None or (found.st_uid, found.st_gid) == owner


# ── states ───────────────────────────────────────────────────────────────────────────────────


def _paths_before(state: AppliedState | None) -> set[bytes]:
    if state is None:
        return set()
    return {entry.path for entry in state.tree.entries}.union(state.unfinished)


def _state_between(state: AppliedState | None, boot: bytes, added: set[bytes]) -> AppliedState:
    before = state or AppliedState(TreeIndex(()), (), boot)
    return before._replace(unfinished=tuple(sorted(added.union(before.unfinished))))


def wait_out_tick(stamps: Mapping[bytes, Stamp]) -> None:
    """Return only when a later change of any of these files must show in its times."""
    newest = max((stamp.ctime_ns for stamp in stamps.values()), default=0)
    wait_ns = newest + _TICK_NS - time.time_ns()
    if 0 < wait_ns <= _TICK_NS:
        time.sleep(wait_ns / 1e9)


def _corrupt(entry: Entry) -> TreeError:
    return TreeError(
        f"what arrived for {shown(entry.path)} does not have its digest", code="tree_corrupt"
    )
