"""What a job changed of its tree: a look at the folder before it starts, and one after its end.

Rules
- Only what the job did counts. A file that stood there before, left by another job or placed for
  this one, and that looks as it did, is no change.
- What the job left is hostile: folders are reached by descriptors, no link is followed, nothing
  that could block is opened, and what is read is bounded by what may be sent.
- Taken are regular files with one link, and links as links. What cannot be taken is named with the
  reason. Then no deletion is told either: what left one place may be what stands at another.
- `.git` and what is in it never counts, nor do new files in a repository within the tree.

The first look gives a folder its permissions back where a job took them from its owner.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Set
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from airlox.errors import ValidationError
from airlox.tree.apply import wait_out_tick
from airlox.tree.beneath import (
    Folders,
    enter_forced,
    open_regular,
    opened_workspace,
    pieces,
    workspace_errors,
)
from airlox.tree.changes import FILES, INDEXED_BYTES, Changes, passes_for_git
from airlox.tree.index import ENTRIES, Entry, Kind, TreeIndex
from airlox.tree.mounts import keeps_times
from airlox.tree.paths import SYNC_PREFIX, check_folder, shown, split
from airlox.tree.stamps import stamp_of
from airlox.tree.wanted import IgnoreRules, Wanted

if TYPE_CHECKING:
    AnyPath = str | os.PathLike[str]

WALKED: Final = 200_000
"""Most entries that a look passes beside those of the tree: a job may make as many as its disk
takes, and each is remembered."""
NAMED: Final = 100
"""Most files that are named as left out; the others are counted."""
_SHOWN_CHARS: Final = 200
_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_GIT: Final = b".git"
_ZIPPED_BYTES: Final = 512
"""What an archive takes for a content beside its bytes: its name twice, and tables. What does not
shrink grows by less than a thousandth."""

Looks = dict[bytes, os.stat_result]


class LeftOut(NamedTuple):
    """A change that does not come back. `path` is printable and short."""

    path: str
    reason: str


class Compared(NamedTuple):
    """What changed and can be taken, and what cannot."""

    changes: Changes
    left_out: tuple[LeftOut, ...]


class Baseline:
    """How the files that are wanted looked before a job started."""

    def __init__(self, tree: TreeIndex, root: AnyPath, wanted: Wanted) -> None:
        """`root` is the folder in which `tree` stands. Raises TreeError, StorageError."""
        self._root = root
        self._entries = {e.path: e for e in tree.entries if e.path in wanted}
        self._walk = _Walk(tree, wanted, self._entries.keys())
        with workspace_errors(), opened_workspace(root) as root_fd:
            looks, unseen = self._walk.run(root_fd)
        self._is_whole = not unseen
        self._times_tell = keeps_times(root)
        self._stamps = {path: stamp_of(found) for path, found in looks.items()}
        wait_out_tick(self._stamps)

    def compare(self, room_bytes: int) -> Compared:
        """What the job changed, of which so many bytes may be taken.

        Only when all its processes are gone. Raises TreeError, StorageError.
        """
        with (
            workspace_errors(),
            opened_workspace(self._root) as root_fd,
            Folders(root_fd, enter_forced) as folders,
        ):
            looks, unseen = self._walk.run(root_fd)
            taking = _Taking(folders, room_bytes)
            if not self._is_whole:
                taking.leave_out(b".", "too much was there before the job: --fresh starts over")
            for left in unseen:
                taking.leave_out(*left)
            for path in sorted(self._touched(looks)):
                taking.take(path, self._entries.get(path), looks[path])
        gone = (self._entries.keys() & self._stamps.keys()) - looks.keys()
        return taking.result([self._entries[path] for path in sorted(gone)])

    def _touched(self, looks: Looks) -> Iterator[bytes]:
        for path, found in looks.items():
            before = self._stamps.get(path)
            if before is None and not self._is_whole:
                continue  # who knows what made it
            if before != stamp_of(found) or (path in self._entries and not self._times_tell):
                yield path


class _Walk:
    """Passes all wanted files below a root, in a bounded way."""

    def __init__(self, tree: TreeIndex, wanted: Wanted, chosen: Set[bytes]) -> None:
        """`chosen`: the files of the tree that are wanted."""
        self._wanted = wanted
        self._chosen = chosen
        self._rules = IgnoreRules()
        self._files = {entry.path for entry in tree.entries}
        self._folders = _folders_of(self._files)

    def run(self, root_fd: int) -> tuple[Looks, list[tuple[bytes, str]]]:
        """How the files look; and what was not looked at, with the reason."""
        looks: Looks = {}
        unseen: list[tuple[bytes, str]] = []
        room = len(self._files) + len(self._folders) + WALKED
        waiting = [(b"", False)]
        with Folders(root_fd, enter_forced) as folders:
            while waiting and room:
                folder, hidden = waiting.pop()
                try:
                    folder_fd = folders.fd(folder)
                    found = _list(folder_fd, room)
                except OSError as error:
                    unseen.append((folder, f"unreadable: {error.strerror}"))
                    continue
                room -= len(found)
                if self._is_foreign(folder, found):
                    continue
                self._rules.read(folder, folder_fd)
                for path, name in self._files_of(folder, found, hidden):
                    looks[path] = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
                waiting += self._folders_of(folder, found, hidden)
        if not room:
            unseen.append((b".", f"over {WALKED} files beside the tree; not all were looked at"))
        return looks, unseen

    def _files_of(
        self, folder: bytes, found: list[tuple[bytes, bool]], hidden: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Path and name of what is wanted in a folder; `hidden`: it is ignored."""
        for name, is_folder in found:
            path = _joined(folder, name)
            if is_folder or not _counts(path, name):
                continue
            if path in self._files:
                if path in self._chosen:
                    yield path, name
            elif path in self._wanted and not (hidden or self._is_ignored(folder, name, False)):
                yield path, name

    def _folders_of(
        self, folder: bytes, found: list[tuple[bytes, bool]], hidden: bool
    ) -> Iterator[tuple[bytes, bool]]:
        """What is to be looked into: the path of a folder, and whether it is an ignored one."""
        for name, is_folder in found:
            path = _joined(folder, name)
            if is_folder and _counts(path, name):
                covered = hidden or self._is_ignored(folder, name, True)
                if not covered or path in self._folders:
                    yield path, covered

    def _is_ignored(self, folder: bytes, name: bytes, is_folder: bool) -> bool:
        return not self._wanted.ignored and self._rules.ignores(folder, name, is_folder=is_folder)

    def _is_foreign(self, folder: bytes, found: list[tuple[bytes, bool]]) -> bool:
        """Whether a folder that is none of the tree's belongs to another repository."""
        return folder not in self._folders and any(name == _GIT for name, _ in found)


def _joined(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def _counts(path: bytes, name: bytes) -> bool:
    return name.lower() != _GIT and not path.startswith(SYNC_PREFIX)


def _folders_of(paths: set[bytes]) -> set[bytes]:
    folders = {b""}
    for path in paths:
        folder = split(path)[0]
        while folder not in folders:
            folders.add(folder)
            folder = split(folder)[0]
    return folders


def _list(folder_fd: int, most: int) -> list[tuple[bytes, bool]]:
    """Up to so many of the names in a folder, each with whether it is a folder."""
    with os.scandir(folder_fd) as found:
        entries = islice(found, most)
        return [(os.fsencode(e.name), e.is_dir(follow_symlinks=False)) for e in entries]


class _Unfit(Exception):
    """Why a file cannot be taken."""


class _Taking:
    """Collects changes while there is room for them."""

    def __init__(self, folders: Folders, room_bytes: int) -> None:
        self._folders = folders
        self._most = self._room = room_bytes
        self._before: list[Entry] = []
        self._after: list[Entry] = []
        self._contents: dict[bytes, bytes] = {}
        self._left_out: list[LeftOut] = []
        self._more_left_out = 0

    def take(self, path: bytes, sent: Entry | None, found: os.stat_result) -> None:
        """Take a file that was touched, unless it is as it was sent."""
        try:
            check_folder(path)
            if passes_for_git(path):
                raise _Unfit("its name can pass for .git")
            entry, content = self._read(path, sent, found)
            if entry != sent:
                self._add(entry, content, sent)
        except _Unfit as reason:
            self.leave_out(path, str(reason))
        except ValidationError as error:
            self.leave_out(path, error.message)
        except OSError as error:
            self.leave_out(path, f"unreadable: {error.strerror or 'it is another file now'}")

    def leave_out(self, path: bytes, reason: str) -> None:
        if len(self._left_out) < NAMED:
            self._left_out.append(LeftOut(shown(path)[:_SHOWN_CHARS], reason))
        else:
            self._more_left_out += 1

    def result(self, gone: list[Entry]) -> Compared:
        """All in all, when these files of the tree are not there any more."""
        cost = sum(_indexed(entry) for entry in gone)
        if not self._left_out and cost <= self._room and len(gone) <= ENTRIES:
            self._before += gone
        else:
            for entry in gone:
                self.leave_out(entry.path, "deleted, but not all that changed could be taken")
        if self._more_left_out:
            self._left_out[-1] = LeftOut("…", f"and {self._more_left_out + 1} more")
        changes = Changes(TreeIndex(self._before), TreeIndex(self._after), self._contents)
        return Compared(changes, tuple(self._left_out))

    def _read(
        self, path: bytes, sent: Entry | None, found: os.stat_result
    ) -> tuple[Entry, bytes | None]:
        """A file as it is now. Its content is None when there is no room for it."""
        folder, name = split(path)
        folder_fd = self._folders.fd(folder)
        if stat.S_ISLNK(found.st_mode):
            target = os.readlink(name, dir_fd=folder_fd)
            return Entry(path, Kind.LINK, len(target), sha256(target).digest()), target
        _check_file(found)
        # What fits at all is read: its content may be one that has been taken.
        fits = found.st_size <= self._most
        if not fits and (sent is None or sent.size != found.st_size):
            raise _too_large()
        fd, opened = open_regular(folder_fd, name)
        with os.fdopen(fd, "rb", buffering=0) as file:
            if stamp_of(opened) != stamp_of(found):
                raise _Unfit("it changed while it was looked at")
            digest, content = _content(file.fileno(), found.st_size, keep=fits)
        kind = Kind.EXECUTABLE if found.st_mode & stat.S_IXUSR else Kind.FILE
        return Entry(path, kind, found.st_size, digest), content

    def _add(self, entry: Entry, content: bytes | None, sent: Entry | None) -> None:
        cost = _indexed(entry) + (0 if sent is None else _indexed(sent))
        if entry.digest not in self._contents:
            cost += entry.size + (entry.size >> 10) + _ZIPPED_BYTES
        if content is None or cost > self._room:
            raise _too_large()
        if len(self._contents) >= FILES and entry.digest not in self._contents:
            raise _Unfit(f"over {FILES} files changed")
        self._room -= cost
        self._contents[entry.digest] = content
        self._after.append(entry)
        if sent is not None:
            self._before.append(sent)


def _check_file(found: os.stat_result) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise _Unfit(_KINDS.get(kind, "no regular file"))
    if found.st_nlink != 1:
        raise _Unfit("a hard link")
    if not found.st_mode & stat.S_IRUSR:
        raise _Unfit("unreadable")


def _content(fd: int, size: int, *, keep: bool) -> tuple[bytes, bytes | None]:
    """Digest of an open file, and its bytes where they are to be kept."""
    digest, parts, room = sha256(), [], size
    for piece in pieces(fd):
        room -= len(piece)
        if room < 0:
            break
        digest.update(piece)
        if keep:
            parts.append(piece)
    if room:
        raise _Unfit("it changed while it was read")
    return digest.digest(), b"".join(parts) if keep else None


def _indexed(entry: Entry) -> int:
    """Bytes that an index has of a file, at most."""
    return len(entry.path) + INDEXED_BYTES


def _too_large() -> _Unfit:
    return _Unfit("no room for it: the session's items are too small for all that changed")
