"""Whether a git work tree is as it was when its index was made last, at the cost of a `git status`.

git says which tracked files no longer look as its own index remembers them, and which files are
untracked; everything else looks the same, and so is what it was. A *glance* is a digest of that:
the stamp of git's index, those lists, and the stamps of the files in them. The same glance means
the same tree, so nothing has to be listed, looked at or read. Whatever is in doubt is no glance,
and the tree is scanned: submodules, nested repositories, files that git was told not to look at,
folders it cannot read, files so young that a second change could leave the same times, file systems
on which times say nothing.

A file that is no older than git's index, to the second, may have changed unseen by git: its stamp
is part of the glance as well (`watched`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from airlox import safefs
from airlox.errors import StorageError, TreeError
from airlox.tree import git, rules
from airlox.tree.mounts import keeps_times
from airlox.tree.scan import Choice, LeftOut
from airlox.tree.stamps import NEVER, Stamp, stamp_of

if TYPE_CHECKING:
    from airlox.tree.index import TreeIndex
    from airlox.tree.scan import Scan

    AnyPath = str | os.PathLike[str]

T = TypeVar("T")
S = TypeVar("S")

LISTED: Final = 2_000
"""Most files that git may list for a glance."""
WATCHED: Final = 20_000
RECORD_BYTES: Final = 16 << 20

_SECOND_NS: Final = 1_000_000_000
_YOUNG_NS: Final = 2 * _SECOND_NS


class Facts(msgspec.Struct, frozen=True):
    """What is known of a tree without looking at it. `digest` names its index, `size` in bytes."""

    digest: bytes
    files: int
    size: int
    left_out: tuple[LeftOut, ...]
    pointers: tuple[bytes, ...] = ()


class Glance(NamedTuple):
    """What a look at a tree came to: its `name`, without the watched files, when git's index was
    written, and whether no listed file was too young."""

    name: bytes
    written: Stamp
    listed: frozenset[bytes]
    seen_ns: int
    settled: bool


def facts_of(scan: Scan, index: TreeIndex) -> Facts:
    """What there is to know of a tree that was looked at."""
    count, size = len(index.entries), index.total_bytes
    return Facts(index.digest, count, size, scan.left_out, scan.pointers)


def look(top: str, choice: Choice, *, rules_version: str) -> Glance | None:
    """A glance at the work tree `top`; None where a glance says nothing. Raises TreeError.

    Under another version of the rules every tree is another one.
    """
    if choice.include or not git.is_repository(top) or not keeps_times(top):
        return None  # git would not tell of a change in what it ignores
    seen_ns = time.time_ns()
    path = git.index_of(top)
    index = _stamp(path)
    changed, others = _both(lambda: git.list_changed(top), lambda: git.list_others(top))
    listed = (*changed, *others.paths, os.fsencode(rules.IGNORE_FILE))
    nested = any(name.endswith(b"/") for name in others.paths)
    if index == NEVER or nested or others.unreadable or len(listed) > LISTED:
        return None
    stamps = [_stamp(os.path.join(os.fsencode(top), name)) for name in listed]
    if _stamp(path) != index:
        return None  # git is at work here
    parts = [rules_version, os.path.realpath(top), repr(choice)]
    name = _digest((*map(os.fsencode, parts), _encode(index)), _pairs(listed, stamps))
    settled = _are_settled((*stamps, index), seen_ns)
    return Glance(name, index, frozenset(listed), seen_ns, settled)


class _Record(msgspec.Struct, frozen=True):
    """A remembered tree: the name of its glance with the watched files, and what it was."""

    name: bytes
    watched: tuple[bytes, ...]
    facts: Facts


class Memory:
    """The last tree of one folder, by its glance. A missing or damaged file is an empty memory."""

    def __init__(self, path: AnyPath) -> None:
        self._path = path
        self._record = _load(path)

    def recall(self, top: str, glance: Glance) -> Facts | None:
        """The tree, if it is the one that was remembered."""
        if self._record is None:
            return None
        watched = self._record.watched
        name = _with_watched(glance, watched, _stamps(top, watched))
        return self._record.facts if name == self._record.name else None

    def keep(self, glance: Glance, scan: Scan, index: TreeIndex) -> None:
        """Remember a tree that was scanned after the glance."""
        written_ns = glance.written.mtime_ns // _SECOND_NS * _SECOND_NS
        unseen = (file for file in scan.files if file.stamp.mtime_ns >= written_ns)
        watched = [file for file in unseen if file.path not in glance.listed]
        settled = glance.settled and _are_settled([f.stamp for f in watched], glance.seen_ns)
        if not settled or len(watched) > WATCHED or not git.is_plain(scan.root):
            return
        paths = tuple(file.path for file in watched)
        name = _with_watched(glance, paths, [file.stamp for file in watched])
        record = _Record(name, paths, facts_of(scan, index))
        safefs.write_private(self._path, msgspec.msgpack.encode(record))


def _load(path: AnyPath) -> _Record | None:
    try:
        data = safefs.read_bounded(path, RECORD_BYTES)
        return msgspec.msgpack.decode(data, type=_Record)
    except (StorageError, msgspec.MsgspecError):
        return None


def _are_settled(stamps: Iterable[Stamp], seen_ns: int) -> bool:
    """Whether none of these is so young that a second change could leave the same times."""
    return all(max(s.mtime_ns, s.ctime_ns) + _YOUNG_NS < seen_ns for s in stamps)


def _with_watched(glance: Glance, paths: Sequence[bytes], stamps: Sequence[Stamp]) -> bytes:
    return _digest((glance.name,), _pairs(paths, stamps))


def _both(first: Callable[[], T], second: Callable[[], S]) -> tuple[T, S]:
    """Two answers of git, found at the same time."""
    found: list[S] = []
    failed: list[TreeError] = []

    def run() -> None:
        try:
            found.append(second())
        except TreeError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        mine = first()
    finally:
        thread.join()
    if failed:
        raise failed[0]
    return mine, found[0]


def _stamps(top: str, paths: Iterable[bytes]) -> list[Stamp]:
    return [_stamp(os.path.join(os.fsencode(top), path)) for path in paths]


def _stamp(path: str | bytes) -> Stamp:
    """How a file looks; `NEVER` for one that is not there."""
    try:
        return stamp_of(os.lstat(path))
    except OSError:
        return NEVER


def _encode(stamp: Stamp) -> bytes:
    return b"%d %d %d" % stamp


def _pairs(paths: Sequence[bytes], stamps: Sequence[Stamp]) -> list[bytes]:
    return [part for pair in zip(paths, map(_encode, stamps), strict=True) for part in pair]


def _digest(*groups: Iterable[bytes]) -> bytes:
    whole = sha256()
    for group in groups:
        parts = [*group]
        whole.update(b"%d\n" % len(parts))
        for part in parts:
            whole.update(b"%d\n" % len(part) + part)
    return whole.digest()
