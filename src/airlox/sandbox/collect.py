"""The out folder of a job as a list of files, and the removal of trees a job left behind.

Both treat the tree as hostile (it may hold links, pipes, devices, locked or endless folders).

Rules of collecting
- Only after the last process of the job is gone. Folders are reached by descriptor, no link is
  followed, nothing that could block is opened.
- Taken are regular files with one link, within the caps, under names that can be unpacked on any
  system. A name reserved on Windows gets the mark `_` in front.
- Everything else is left out and listed with its reason, in text that is safe to print.

Rules of removing
- Iterative at any depth; rights are given back on the way; no link followed, no mount crossed.

Left to others: what is sent of the files, and the trash for what cannot be removed (`sweep.py`).
"""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

from airlox.errors import StorageError
from airlox.sandbox.descent import Descent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MARK = "_"
_UNPORTABLE = frozenset('/\\:*?"<>|')
_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_WINDOWS_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$"}
    | {f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789¹²³"}
)
_SHOWN_CHARS = 200
_MOST_KEPT_PER_FOLDER = 4096


@dataclass(frozen=True, slots=True)
class CollectCaps:
    """How much of an out folder is taken. Depth counts the folders above a file."""

    max_files: int = 10_000
    max_file_bytes: int = 256 << 20
    max_total_bytes: int = 1 << 30
    max_depth: int = 31
    max_path_bytes: int = 512
    max_entries: int = 40_000
    max_skipped: int = 100


@dataclass(frozen=True, slots=True)
class OutFile:
    """One file that was found. `path` is relative with `/`, safe to unpack anywhere."""

    path: str
    size: int
    _root: str = field(repr=False)
    _names: tuple[str, ...] = field(repr=False)
    _identity: tuple[int, ...] = field(repr=False)

    def open(self) -> BinaryIO:
        """Open for reading exactly the file that was found; `StorageError` if it is another."""
        *folders, name = self._names
        try:
            with Descent(self._root) as place:
                for folder in folders:
                    place.enter(folder)
                fd = os.open(name, _OPEN_FILE, dir_fd=place.fd)
        except OSError as e:
            raise StorageError(f"cannot open out file {self.path}: {e.strerror}") from None
        if _identity(os.fstat(fd)) != self._identity:
            os.close(fd)
            raise StorageError(f"out file {self.path} changed after it was listed")
        return os.fdopen(fd, "rb")


@dataclass(frozen=True, slots=True)
class Skipped:
    """One thing left out: where, in printable text, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Collected:
    """Files in order of their path's bytes, and what was left out.

    `skipped` names the first of those left out; `skipped_more` counts the rest.
    """

    files: tuple[OutFile, ...]
    skipped: tuple[Skipped, ...]
    skipped_more: int


def collect_out(root: Path, caps: CollectCaps) -> Collected:
    """List what the job left in the folder `root`. Raises StorageError if it cannot be read."""
    collector = _Collector(root, caps)
    try:
        collector.walk()
    except OSError as e:
        raise StorageError(f"cannot read the out folder: {e.strerror}") from None
    return collector.result()


def portable_name(name: str) -> str:
    """`name` as it can be stored on any system, marked if Windows reserves it.

    Raises ValueError with the reason when no mark helps.
    """
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("name is not UTF-8") from None
    if any(unicodedata.category(c) in _UNSEEN_CATEGORIES for c in name):
        raise ValueError("name holds control or invisible characters")
    if not name or name in (".", "..") or name[-1] in ". " or not _UNPORTABLE.isdisjoint(name):
        raise ValueError("name cannot be stored on every system")
    if name.partition(".")[0].rstrip(" ").lower() in _WINDOWS_DEVICES:
        name = _MARK + name
    if len(name.encode("utf-8")) > 255:
        raise ValueError("name is too long with its mark")
    return name


def printable(path: str) -> str:
    """`path` in text that is safe on a terminal and of bounded length."""
    seen = "".join(
        c if c.isprintable() and not "\ud800" <= c <= "\udfff" else _escaped(c)
        for c in path[: _SHOWN_CHARS + 1]
    )
    return seen if len(seen) <= _SHOWN_CHARS else seen[:_SHOWN_CHARS] + "…"


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove the file, link or folder at `path` with all that is below. Missing is fine.

    Raises StorageError (code `not_removed`) naming the first thing that could not be removed;
    everything else is gone then.
    """
    target = os.fspath(path)
    try:
        if stat.S_ISDIR(os.lstat(target).st_mode):
            _remove_folder(target)
        else:
            os.unlink(target)
    except FileNotFoundError:
        return
    except OSError as e:
        inside = f" at {printable(str(e.filename))}" if e.filename not in (None, target) else ""
        raise StorageError(
            f"cannot remove {target}{inside}: {e.strerror}", code="not_removed"
        ) from None


_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def _identity(found: os.stat_result) -> tuple[int, ...]:
    # The time of change tells a new file apart that got the old one's inode number.
    return found.st_dev, found.st_ino, found.st_size, found.st_nlink, found.st_ctime_ns


def _escaped(c: str) -> str:
    code = ord(c)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{{{code:x}}}"


class _Collector:
    """One walk over an out folder: what it found so far, and what it may still take."""

    def __init__(self, root: Path, caps: CollectCaps) -> None:
        self._root = os.fspath(root)
        self._caps = caps
        self._files: list[OutFile] = []
        self._skipped: list[Skipped] = []
        self._skipped_more = 0
        self._cuts: set[str] = set()
        self._entries_left = caps.max_entries
        self._bytes_left = caps.max_total_bytes

    def result(self) -> Collected:
        files = sorted(self._files, key=lambda file: file.path.encode())
        return Collected(tuple(files), tuple(self._skipped), self._skipped_more)

    def walk(self) -> None:
        """Depth first, files of a folder before its subfolders."""
        with Descent(self._root) as place:
            shown = [""]  # the path of each level as the result will call it
            waiting = [self._take_folder(place, "")]
            while waiting:
                if not waiting[-1]:
                    waiting.pop()
                    shown.pop()
                    if waiting:
                        place.leave()
                    continue
                name, path = waiting[-1].pop()
                if self._enter(place, name, path):
                    shown.append(path)
                    waiting.append(self._take_folder(place, path))

    def _enter(self, place: Descent, name: str, path: str) -> bool:
        if place.depth >= self._caps.max_depth:
            self._skip(path, f"deeper than {self._caps.max_depth} folders")
            return False
        try:
            found = os.stat(name, dir_fd=place.fd, follow_symlinks=False)
            if found.st_mode & stat.S_IRUSR == 0 or found.st_mode & stat.S_IXUSR == 0:
                raise PermissionError(errno.EACCES, "locked")  # root could read it all the same
            place.enter(name)
        except OSError as e:
            self._skip(path, "on another file system" if e.errno == errno.EXDEV else "unreadable")
            return False
        return True

    def _take_folder(self, place: Descent, path: str) -> list[tuple[str, str]]:
        """Take the files here; return the subfolders, last first, with their safe paths."""
        names = self._names_of(place, path)
        taken: set[str] = set(names)
        folders = []
        for name in names:
            safe = self._safe_path(path, name, taken)
            if safe is None:
                continue
            try:
                found = os.stat(name, dir_fd=place.fd, follow_symlinks=False)
            except OSError:
                self._skip(safe, "unreadable")
                continue
            if stat.S_ISDIR(found.st_mode):
                folders.append((name, safe))
            else:
                self._take(place, name, safe, found)
        folders.reverse()
        return folders

    def _names_of(self, place: Descent, path: str) -> list[str]:
        with os.scandir(place.fd) as entries:
            names = [entry.name for entry in islice(entries, self._entries_left)]
            cut = next(entries, None) is not None
        self._entries_left -= len(names)
        if cut:
            self._cut(f"more than {self._caps.max_entries} entries in all")
        return sorted(names, key=os.fsencode)

    def _safe_path(self, folder: str, name: str, taken: set[str]) -> str | None:
        """The path for the result, or None after noting why there is none."""
        raw = f"{folder}/{name}" if folder else name
        try:
            safe = portable_name(name)
        except ValueError as e:
            self._skip(raw, str(e))
            return None
        path = f"{folder}/{safe}" if folder else safe
        if safe != name and safe in taken:
            self._skip(raw, "name is reserved on Windows, and its marked form is taken")
            return None
        if len(path.encode()) > self._caps.max_path_bytes:
            self._skip(raw, f"path is longer than {self._caps.max_path_bytes} bytes")
            return None
        return path

    def _take(self, place: Descent, name: str, path: str, found: os.stat_result) -> None:
        reason = self._reason_against(found)
        if reason is not None:
            self._skip(path, reason)
            return
        if len(self._files) >= self._caps.max_files:
            self._cut(f"more than {self._caps.max_files} files")
            return
        self._bytes_left -= found.st_size
        names = (*place.names, name)
        self._files.append(OutFile(path, found.st_size, self._root, names, _identity(found)))

    def _reason_against(self, found: os.stat_result) -> str | None:
        if not stat.S_ISREG(found.st_mode):
            return _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
        if found.st_nlink != 1:
            return "hard link"
        if found.st_mode & stat.S_IRUSR == 0:
            return "unreadable"
        if found.st_size > self._caps.max_file_bytes:
            return f"larger than {self._caps.max_file_bytes} bytes"
        if found.st_size > self._bytes_left:
            return f"more than {self._caps.max_total_bytes} bytes in all"
        return None

    def _cut(self, reason: str) -> None:
        """Note, once, that a cap cut the walk short."""
        if reason not in self._cuts:
            self._cuts.add(reason)
            self._skip(".", reason)

    def _skip(self, path: str, reason: str) -> None:
        if len(self._skipped) < self._caps.max_skipped:
            self._skipped.append(Skipped(printable(path), reason))
        else:
            self._skipped_more += 1


_KINDS = {
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def _remove_folder(target: str) -> None:
    with Descent(target, repair=True) as place:
        first_error = _Emptying(place).run()
    if first_error is not None:
        raise first_error
    os.rmdir(target)


@dataclass(slots=True)
class _Level:
    """What is known of one folder while it is emptied."""

    kept: set[str] = field(default_factory=set)
    only_folders: bool = False


class _Emptying:
    """Removes all below a place. Each level remembers what it could not remove, to pass it by."""

    def __init__(self, place: Descent) -> None:
        self._place = place
        self._levels = [_Level()]
        self._first_error: OSError | None = None

    def run(self) -> OSError | None:
        """The first error, or None when the root folder is empty."""
        while True:
            folder = self._next_folder()
            if folder is not None:
                self._enter(folder)
            elif self._place.depth > 0:
                self._leave()
            else:
                return self._first_error

    def _next_folder(self) -> str | None:
        """A folder still to be emptied, if there is one, after unlinking all that is none.

        The files go in passes until one finds nothing, as removing may make a listing skip
        entries. Once they are gone a look at the first folder is enough, so that a folder of
        many folders is not listed whole for each of them.
        """
        level = self._levels[-1]
        while True:
            folder, removed = self._pass(level)
            level.only_folders = not removed
            if not removed:
                return folder

    def _pass(self, level: _Level) -> tuple[str | None, bool]:
        folder, removed = None, False
        with os.scandir(self._place.fd) as entries:
            for entry in entries:
                if entry.name in level.kept:
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    removed = self._attempt(os.unlink, entry.name) or removed
                elif level.only_folders:
                    return entry.name, False
                else:
                    folder = folder or entry.name
        return folder, removed

    def _enter(self, name: str) -> None:
        try:
            self._place.enter(name)
        except OSError as e:
            self._keep(name, e)
        else:
            self._levels.append(_Level())

    def _leave(self) -> None:
        name = self._place.leave()
        if self._levels.pop().kept:
            self._levels[-1].kept.add(name)
        else:
            self._attempt(os.rmdir, name)

    def _attempt(self, remove: Callable[..., None], name: str) -> bool:
        try:
            remove(name, dir_fd=self._place.fd)
        except FileNotFoundError:
            return False
        except OSError as e:
            self._keep(name, e)
            return False
        return True

    def _keep(self, name: str, error: OSError) -> None:
        if self._first_error is None:
            where = "/".join((*self._place.names[-8:], name))
            self._first_error = OSError(error.errno, error.strerror, where)
        kept = self._levels[-1].kept
        kept.add(name)
        if len(kept) > _MOST_KEPT_PER_FOLDER:
            raise self._first_error
