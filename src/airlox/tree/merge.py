"""Bringing what a job changed into the folder that was sent, where people go on working.

Rules
- A file is written or deleted only while it stands there as it was sent: kind, executable bit and
  content. What changed meanwhile stays, and the job's version is saved beside it.
- Where something stands, nothing new is put in its place.
- No link is followed on the way, and what belongs to another repository within the tree is left
  alone. Of folders, only those are made that a file needs, and only empty ones go.
- A file appears whole or not at all. An interruption leaves each file as it was or as it will be.

Files are brought before others are deleted, so that what was moved is never nowhere; but what
stands in the way of a file to come is deleted first.

Left to others: whether the changes are what the job's runner may return (`changes.py`).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from airlox import safefs
from airlox.tree.beneath import (
    NEW_FILE_FLAGS,
    Folders,
    closing_on_error,
    enter,
    open_regular,
    opened_root,
    pieces,
    write_all,
)
from airlox.tree.changes import Change, Changes
from airlox.tree.index import Entry, Kind
from airlox.tree.paths import COMPONENT_BYTES, split
from airlox.tree.stamps import Stamp, stamp_of

if TYPE_CHECKING:
    AnyPath = str | os.PathLike[str]

TEMPORARY: Final = b".airlox-pull-"
"""Start of the names of files that are not finished."""
_MOST_BESIDE: Final = 1000
_TAKEN: Final = "another file of that name is here"
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Deed(StrEnum):
    """What became of a change."""

    CHANGED = "changed"
    NEW = "new"
    DELETED = "deleted"
    SAME = "same"
    """It stood there like that already."""
    KEPT = "kept"


class Merged(NamedTuple):
    """One change, and what became of it. A file that was kept has a `reason`, and `beside` is the
    path of the job's version where that could be saved."""

    path: bytes
    deed: Deed
    reason: str = ""
    beside: bytes | None = None


def merge(changes: Changes, root: AnyPath, mark: str) -> tuple[Merged, ...]:
    """Bring `changes` into the folder `root`; one answer for each, in the order of the paths.

    `mark` ends the names of what is saved beside a file that was kept. Raises StorageError when
    the root cannot be opened.
    """
    try:
        with opened_root(root) as root_fd:
            merging = _Merging(root_fd, changes, mark.encode())
            done = {change.path: merging.bring(change) for change in _in_order(changes)}
    except OSError as e:
        raise safefs.storage_error(f"change {os.fspath(root)}", e) from None
    return tuple(done[path] for path in sorted(done))


def _in_order(changes: Changes) -> list[Change]:
    """First what stands in the way, then what comes, last what goes."""
    coming = {entry.path for entry in changes.after.entries}
    folders = {folder for path in coming for folder in _parents(path)}

    def turn(change: Change) -> int:
        if change.after is not None:
            return 1
        in_the_way = change.path in folders or not coming.isdisjoint(_parents(change.path))
        return 0 if in_the_way else 2

    return sorted(changes, key=turn)


def _parents(path: bytes) -> Iterator[bytes]:
    while path := split(path)[0]:
        yield path


class _Kept(Exception):
    """Why a change is not made."""


class _Here(NamedTuple):
    """What stands at a path. `mode` are its permissions."""

    kind: Kind
    digest: bytes
    stamp: Stamp
    mode: int

    def is_like(self, entry: Entry | None) -> bool:
        return entry is not None and (self.kind, self.digest) == (entry.kind, entry.digest)


class _Merging:
    """One merge into an open folder."""

    def __init__(self, root_fd: int, changes: Changes, mark: bytes) -> None:
        self._root_fd = root_fd
        self._contents = changes.contents
        self._mark = mark

    def bring(self, change: Change) -> Merged:
        try:
            return Merged(change.path, self._bring(change))
        except _Kept as kept:
            return self._keep(change, str(kept))
        except OSError as e:
            return self._keep(change, _words(e))

    def _bring(self, change: Change) -> Deed:
        make = change.before is None
        with self._folder(change.path, make=make) as (folder_fd, name):
            here = None if folder_fd is None else _look(folder_fd, name, change)
            if here is None and change.after is None:
                return Deed.SAME
            if here is not None and here.is_like(change.after):
                return Deed.SAME
            if here is None and change.before is not None:
                raise _Kept("it was deleted here meanwhile")
            if here is not None and not here.is_like(change.before):
                raise _Kept(_TAKEN if change.before is None else "it changed here meanwhile")
            assert folder_fd is not None  # nothing is missing but what is new
            if change.after is not None:
                _put(folder_fd, name, change.after, self._contents[change.after.digest], here)
                return Deed.NEW if here is None else Deed.CHANGED
            _check_still(folder_fd, name, here)
            os.unlink(name, dir_fd=folder_fd)
        self._tidy(split(change.path)[0])
        return Deed.DELETED

    @contextmanager
    def _folder(self, path: bytes, *, make: bool) -> Iterator[tuple[int | None, bytes]]:
        """The open folder of a path (None when it is not there) and the name in it."""
        folder, name = split(path)
        with Folders(self._root_fd, _enter_or_make if make else _enter_own) as folders:
            try:
                folder_fd: int | None = folders.fd(folder)
            except FileNotFoundError:
                folder_fd = None
            except OSError as e:
                if e.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                raise _Kept("a folder on its way is a file or a link here") from None
            yield folder_fd, name

    def _tidy(self, folder: bytes) -> None:
        """Remove folders that are empty now, but not the one we are in."""
        with suppress(OSError, _Kept):
            while folder:
                with self._folder(folder, make=False) as (parent_fd, name):
                    found = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
                    if parent_fd is None or os.path.samestat(found, os.stat(os.curdir)):
                        return
                    os.rmdir(name, dir_fd=parent_fd)
                folder = split(folder)[0]

    def _keep(self, change: Change, reason: str) -> Merged:
        beside = None
        if change.after is not None:
            with suppress(OSError, _Kept):
                beside = self._save_beside(change.after)
        return Merged(change.path, Deed.KEPT, reason, beside)

    def _save_beside(self, entry: Entry) -> bytes | None:
        content = self._contents[entry.digest]
        folder = split(entry.path)[0]
        with self._folder(entry.path, make=True) as (folder_fd, name):
            assert folder_fd is not None
            for number in range(_MOST_BESIDE):
                suffix = b".airlox-" + self._mark + (b"-%d" % number if number else b"")
                beside = name[: COMPONENT_BYTES - len(suffix)] + suffix
                with suppress(_Kept):
                    here = _look(folder_fd, beside, Change(beside, None, entry))
                    if here is None:
                        _put(folder_fd, beside, entry, content, None)
                    if here is None or here.is_like(entry):
                        return folder + b"/" + beside if folder else beside
        return None


# ── one file ─────────────────────────────────────────────────────────────────────────────────


def _look(folder_fd: int, name: bytes, change: Change) -> _Here | None:
    """What stands there; None when nothing does. Raises _Kept where that is no file or link."""
    try:
        found = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    mode = found.st_mode & 0o777
    if stat.S_ISLNK(found.st_mode):
        target = os.readlink(name, dir_fd=folder_fd)
        return _Here(Kind.LINK, sha256(target).digest(), stamp_of(found), mode)
    if not stat.S_ISREG(found.st_mode):
        raise _Kept("something that is no file is here")
    kind = Kind.EXECUTABLE if mode & stat.S_IXUSR else Kind.FILE
    if found.st_size not in {e.size for e in (change.before, change.after) if e is not None}:
        return _Here(kind, b"", stamp_of(found), mode)  # whatever it is, it is neither
    fd, opened = open_regular(folder_fd, name)
    digest = sha256()
    try:
        for piece in pieces(fd):
            digest.update(piece)
    finally:
        os.close(fd)
    return _Here(kind, digest.digest(), stamp_of(opened), mode)


def _check_still(folder_fd: int, name: bytes, here: _Here | None) -> None:
    """Raises _Kept when what was looked at has changed since."""
    assert here is not None
    if stamp_of(os.stat(name, dir_fd=folder_fd, follow_symlinks=False)) != here.stamp:
        raise _Kept("it is being changed here")


def _put(folder_fd: int, name: bytes, entry: Entry, content: bytes, here: _Here | None) -> None:
    """Make a file, or replace the one that was looked at."""
    if entry.kind is Kind.LINK and here is None:
        _unless_taken(os.symlink, content, name, dir_fd=folder_fd)
        return
    temporary = TEMPORARY + os.urandom(8).hex().encode()
    try:
        if entry.kind is Kind.LINK:
            os.symlink(content, temporary, dir_fd=folder_fd)
        else:
            exact = here is not None and here.kind is not Kind.LINK
            mode = _mode(entry.kind, here if exact else None)
            _write(folder_fd, temporary, content, mode, exact=exact)
        if here is not None:
            _check_still(folder_fd, name, here)
            os.rename(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
            return
        try:
            _unless_taken(os.link, temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        except OSError as e:
            if e.errno not in _NO_LINKS:
                raise
            mode = _mode(entry.kind, None)
            _unless_taken(_write, folder_fd, name, content, mode, exact=False)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder_fd)


def _unless_taken(make: Callable[..., None], *args: object, **places: object) -> None:
    try:
        make(*args, **places)
    except FileExistsError:
        raise _Kept(_TAKEN) from None


def _write(folder_fd: int, name: bytes, content: bytes, mode: int, *, exact: bool) -> None:
    """A new file on the disk. The mode is `exact`, or left to the umask."""
    fd = os.open(name, NEW_FILE_FLAGS, mode, dir_fd=folder_fd)
    try:
        write_all(fd, content)
        if exact:
            os.fchmod(fd, mode)
        os.fsync(fd)
    except BaseException:
        os.unlink(name, dir_fd=folder_fd)
        raise
    finally:
        os.close(fd)


def _mode(kind: Kind, here: _Here | None) -> int:
    """Permissions as they are here, but for the bits that say whether a file may be executed."""
    executable = kind is Kind.EXECUTABLE
    if here is None:
        return 0o777 if executable else 0o666
    readable = here.mode & 0o444
    return here.mode | readable >> 2 if executable else here.mode & ~0o111


# ── folders ──────────────────────────────────────────────────────────────────────────────────


def _enter_own(folder_fd: int, name: bytes) -> int:
    """Open a folder, unless it is the top of another repository."""
    fd = enter(folder_fd, name)
    with closing_on_error(fd), suppress(FileNotFoundError):
        os.stat(".git", dir_fd=fd, follow_symlinks=False)
        raise _Kept("it is in another repository")
    return fd


def _enter_or_make(folder_fd: int, name: bytes) -> int:
    try:
        return _enter_own(folder_fd, name)
    except FileNotFoundError:
        os.mkdir(name, dir_fd=folder_fd)
        return enter(folder_fd, name)


def _words(e: OSError) -> str:
    return f"it cannot be written here: {e.strerror or e}"
