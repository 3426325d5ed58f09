"""The changes of a job as a patch that `git apply` takes, binary files and modes included.

git makes it, from two small folders that hold the changed files as they were sent and as they are
now. The old content of a file is the one here, or what git has of it, whichever has the digest
that was sent; a file of which neither has it cannot be part of a patch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from airlox.safefs import storage_error
from airlox.tree import git
from airlox.tree.beneath import (
    NEW_FILE_FLAGS,
    Folders,
    enter,
    open_regular,
    opened_root,
    pieces,
    write_all,
)
from airlox.tree.changes import Change, Changes
from airlox.tree.index import Entry, Kind
from airlox.tree.paths import split

if TYPE_CHECKING:
    AnyPath = str | os.PathLike[str]

_OLD, _NEW = "a", "b"
_MODES: Final = {Kind.FILE: 0o644, Kind.EXECUTABLE: 0o755}

Old = Callable[[Entry], bytes | None]
"""The content of a file as it was sent, or None."""


class Patch(NamedTuple):
    """The patch, and the files that it lacks since nobody here has their old content."""

    data: bytes
    missing: tuple[bytes, ...]


def make_patch(changes: Changes, old: Old) -> Patch:
    """Raises TreeError (`missing_git` without git), StorageError when there is no room."""
    gone: list[tuple[Change, bytes | None]] = []
    rest: list[tuple[Change, bytes | None]] = []
    missing = []
    for change in changes:
        content = None if change.before is None else old(change.before)
        if change.before is not None and content is None:
            missing.append(change.path)
        else:
            (rest if change.after is not None else gone).append((change, content))
    # A file may be gone to make way for a folder of its name: one folder cannot hold both.
    parts = (_part(chosen, changes) for chosen in (gone, rest) if chosen)
    return Patch(b"".join(parts), tuple(missing))


def old_contents(root: AnyPath) -> Old:
    """Where the folder `root` has the contents of the files that were sent from it."""
    top = os.fspath(root)

    def old(entry: Entry) -> bytes | None:
        content = _here(top, entry)
        if content is None and git.is_repository(top):
            content = next((c for c in git.versions_of(top, entry.path) if _is_of(entry, c)), None)
        return content

    return old


def _here(top: str, entry: Entry) -> bytes | None:
    folder, name = split(entry.path)
    try:
        with opened_root(top) as root_fd, Folders(root_fd) as folders:
            folder_fd = folders.fd(folder)
            if entry.kind is Kind.LINK:
                content = os.readlink(name, dir_fd=folder_fd)
            else:
                fd, found = open_regular(folder_fd, name)
                with os.fdopen(fd, "rb") as file:
                    if found.st_size != entry.size:
                        return None
                    content = b"".join(pieces(file.fileno()))
    except OSError:
        return None
    return content if _is_of(entry, content) else None


def _is_of(entry: Entry, content: bytes) -> bool:
    return len(content) == entry.size and sha256(content).digest() == entry.digest


def _part(chosen: list[tuple[Change, bytes | None]], changes: Changes) -> bytes:
    from tempfile import TemporaryDirectory

    try:
        with TemporaryDirectory(prefix="airlox-patch-") as work:
            for side in (_OLD, _NEW):
                os.mkdir(os.path.join(work, side))
            for change, content in chosen:
                if change.before is not None and content is not None:
                    _write(os.path.join(work, _OLD), change.before, content)
                if change.after is not None:
                    new = changes.contents[change.after.digest]
                    _write(os.path.join(work, _NEW), change.after, new)
            return git.difference(work, _OLD, _NEW)
    except OSError as e:
        raise storage_error("write the files of a patch", e) from None


def _write(root: str, entry: Entry, content: bytes) -> None:
    """A file below a folder that is ours alone."""
    folder, name = split(entry.path)
    with opened_root(root) as root_fd, Folders(root_fd, _enter_or_make) as folders:
        folder_fd = folders.fd(folder)
        if entry.kind is Kind.LINK:
            os.symlink(content, name, dir_fd=folder_fd)
            return
        fd = os.open(name, NEW_FILE_FLAGS, 0o600, dir_fd=folder_fd)
        try:
            write_all(fd, content)
            os.fchmod(fd, _MODES[entry.kind])
        finally:
            os.close(fd)


def _enter_or_make(folder_fd: int, name: bytes) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder_fd)
    return enter(folder_fd, name)
