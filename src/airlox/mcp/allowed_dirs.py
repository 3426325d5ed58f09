"""The folders that tools may read from and write to, and the only way to files in them.

Rules
- A path counts only beneath an allowed folder. It is walked from the root of the file system one
  component at a time, relative to the descriptor before, through no link at all; `..` is refused.
  So a link, or a folder that is exchanged meanwhile, leads nowhere.
- No walk enters a private folder (the cache, state, owners' links), by whatever name it is
  reached: folders are told by device and number.
- What is read is a regular file with one name: a second name may be that of a private file.
- Nothing is ever overwritten (`safefs.save_new_at`).
- `/`, the home folder and what holds it are never allowed; no allowed folder holds a private one
  or lies in one. Asked for by name that stops the start; where the working directory is meant,
  the server runs and its file tools say which flag to set.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from airlox import safefs
from airlox.errors import StorageError, UsageError
from airlox.tree.beneath import (
    Identity,
    closing_on_error,
    enter,
    enter_or_make,
    identity,
    open_regular,
    opened_root,
    pieces,
)

FLAG: Final = "--allow-dir"
_SYSTEM: Final = ("/proc", "/sys", "/dev")


@dataclass(frozen=True)
class Folder:
    """An open folder; the descriptor is valid while the block lasts. `path` is its real path."""

    fd: int
    path: str


class AllowedDirs:
    """See the module's text. Safe to share between threads."""

    def __init__(
        self, names: dict[str, str], private: Sequence[str], refusal: str | None = None
    ) -> None:
        """For `of`. `names` are the folders as they may be called, each with its real path;
        `refusal` says why there are none."""
        self._names = names
        self._roots = tuple(dict.fromkeys(names.values()))
        self._private = tuple(private)
        self._refusal = refusal

    @classmethod
    def of(cls, given: Sequence[str], private: Sequence[str]) -> AllowedDirs:
        """The folders of `--allow-dir`, or the working directory. Raises UsageError for one that
        may not be allowed."""
        hidden = [os.path.realpath(path) for path in private]
        names: dict[str, str] = {}
        for path in given or (os.curdir,):
            root = _real(path)
            fault = _fault(root, hidden)
            if fault is not None and given:
                raise UsageError(
                    f"{FLAG} {path}: {fault}", code="allow_dir", hint="name a folder for this work"
                )
            if fault is not None:
                return cls({}, hidden, f"the working directory {fault}")
            names |= {root: root, os.path.abspath(path): root}
        return cls(names, hidden)

    @property
    def roots(self) -> tuple[str, ...]:
        return self._roots

    def read(self, path: str, limit_bytes: int) -> tuple[str, bytes]:
        """Name and content of a file. Raises UsageError, StorageError."""
        where, name = os.path.split(self._absolute(path))
        with self.folder(where, given=path) as folder:
            try:
                fd, found = open_regular(folder.fd, os.fsencode(name))
            except OSError as error:
                raise self._refused(path, error) from None
            try:
                if found.st_nlink != 1:
                    raise UsageError(
                        f"{path!r} is a file with several names (hard links)",
                        code="hard_link",
                        hint="copy it to a new file, and give that one",
                    )
                return name, _bounded(fd, path, limit_bytes)
            finally:
                os.close(fd)

    @contextmanager
    def folder(
        self, path: str, *, make: bool = False, given: str | None = None
    ) -> Iterator[Folder]:
        """An existing folder, opened; with `make`, made where it is missing. `given` is what the
        caller called it. Raises UsageError, StorageError."""
        root, inner = self._split(self._absolute(path), given or path)
        try:
            with self._walked(os.path.relpath(root, "/")) as root_fd:
                fd = self._walk(root_fd, inner, make=make)
        except OSError as error:
            raise self._refused(given or path, error) from None
        try:
            yield Folder(fd, os.path.normpath(os.path.join(root, inner)))
        finally:
            os.close(fd)

    def check_tree_root(self, root: str) -> Identity:
        """Which folder the top of a tree is. Raises UsageError for one that may not be sent."""
        try:
            with self.folder(root) as folder:
                return identity(folder.fd)
        except UsageError as error:
            raise UsageError(
                f"the tree's top, {root!r}, is in no allowed folder",
                code="path_outside",
                hint=f"ask the user to allow it with {FLAG}, or send a folder that is in no "
                "larger git work tree",
            ) from error

    # -- paths -------------------------------------------------------------------------------

    def _absolute(self, path: str) -> str:
        """The path meant, without any link followed. Raises UsageError."""
        if self._refusal is not None:
            raise UsageError(
                f"file tools are off: {self._refusal}",
                code="no_allowed_dir",
                hint=f"ask the user to start this server with {FLAG} FOLDER",
            )
        if "\0" in path or not path:
            raise UsageError(f"{path!r} is no path", code="bad_path", hint=self._hint())
        if ".." in path.split("/"):
            raise UsageError(f"{path!r} climbs with `..`", code="path_outside", hint=self._hint())
        return os.path.normpath(os.path.join(self._roots[0], path))

    def _split(self, absolute: str, given: str) -> tuple[str, str]:
        """The allowed folder that a path is in, and the path in it."""
        for name, root in self._names.items():
            if absolute == name or _holds(name, absolute):
                return root, os.path.relpath(absolute, name)
        raise UsageError(
            f"{given!r} is in no allowed folder", code="path_outside", hint=self._hint()
        )

    def _hint(self) -> str:
        return "give a path in " + " or ".join(self._roots)

    def _refused(self, path: str, error: OSError) -> StorageError:
        """What the file system refused, in words that say how to go on."""
        refusal = safefs.storage_error(f"open {path!r}", error)
        if refusal.code in ("not_regular", "storage"):
            return StorageError(
                f"{path!r} leads through a link, or to what is no plain file or folder",
                code="not_regular",
                hint="give the real path of a plain file or folder",
            )
        refusal.hint = refusal.hint or self._hint()
        return refusal

    # -- walking -----------------------------------------------------------------------------

    @contextmanager
    def _walked(self, path: str) -> Iterator[int]:
        """A folder by its path from the root of the file system. Raises OSError."""
        with opened_root("/") as top:
            fd = self._walk(top, path, make=False)
        try:
            yield fd
        finally:
            os.close(fd)

    def _walk(self, folder_fd: int, path: str, *, make: bool) -> int:
        """A descriptor of its own for `path` beneath an open folder. Raises OSError."""
        fd = os.dup(folder_fd)
        private = self._private_folders()
        step_in = enter_or_make if make else enter
        for name in () if path == os.curdir else path.split("/"):
            with closing_on_error(fd):
                step = step_in(fd, os.fsencode(name))
            os.close(fd)
            fd = step
            if identity(fd) in private:
                os.close(fd)
                raise UsageError(
                    f"{name!r} is a folder of Airlox's own", code="private", hint=self._hint()
                )
        return fd

    def _private_folders(self) -> set[Identity]:
        found = set()
        for path in self._private:
            try:
                entry = os.stat(path)
            except OSError:
                continue  # not there yet: nothing is in it
            found.add((entry.st_dev, entry.st_ino))
        return found


def _bounded(fd: int, path: str, limit_bytes: int) -> bytes:
    parts, room = [], limit_bytes
    for piece in pieces(fd):
        room -= len(piece)
        if room < 0:
            raise StorageError(
                f"{path!r} is larger than {limit_bytes} bytes",
                code="too_large",
                hint="send less, or have the session made with a larger item limit",
            )
        parts.append(piece)
    return b"".join(parts)


def _fault(root: str, private: Sequence[str]) -> str | None:
    """Why a folder may not be allowed, or None."""
    home = os.path.realpath(os.path.expanduser("~"))
    if not _is_folder(root):
        return "is no folder"
    if root == home or _holds(root, home):
        return "is the home folder or holds it"
    if root == "/" or any(root == top or _holds(top, root) for top in _SYSTEM):
        return "belongs to the system"
    for hidden in private:
        if root == hidden or _holds(root, hidden) or _holds(hidden, root):
            return f"holds Airlox's own folder {hidden}, or lies in it"
    return None


def _holds(outer: str, inner: str) -> bool:
    return inner.startswith(outer.rstrip("/") + "/")


def _real(path: str) -> str:
    """The real path of a folder; empty where the working directory is gone."""
    try:
        return os.path.realpath(path)
    except OSError:
        return ""


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False
