"""The folder of a relay: where each thing of a session lies, its lock, and what syncs it.

DIR/lock  DIR/version
DIR/journal/NNNN.journal           durable records that are not yet in their place
DIR/relay/log                      the relay's own entries
DIR/sessions/<sid>/log             the entries of a session, framed like the journal
DIR/sessions/<sid>/blobs/<hex>     its blobs, by the hex of their names (some file systems
                                   do not tell upper from lower case)
DIR/tmp/                           uploads under way, what is being deleted; emptied at start
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from airlox import safefs
from airlox.errors import StorageError
from airlox.protocol.encoding import SessionId, parse_session_id
from airlox.relay.store.base import RELAY_LOG
from airlox.relay.store.framing import write_all
from airlox.relay.store.journal import sync_folder

VERSION: Final = b"airlox-relay-store 1\n"


class Layout:
    """The folder and its lock. Only one process holds it at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.journal = root / "journal"
        self.sessions = root / "sessions"
        self.tmp = root / "tmp"
        self._lock_fd = -1
        self._counter = 0

    def open(self) -> None:
        """Makes the folder, takes its lock and empties `tmp`. Raises StorageError."""
        try:
            is_new = not self.root.exists()
            for folder in (self.root, self.journal, self.sessions, self.tmp):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_lock()
            self._check_version()
            for leftover in self.tmp.iterdir():
                remove(leftover)
            sync_folder(self.root)
            if is_new:
                with contextlib.suppress(PermissionError):  # one that may not be listed
                    sync_folder(self.root.parent)
        except OSError as error:
            raise StorageError(f"cannot use {self.root} as data folder: {error.strerror}") from None

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def session(self, sid: SessionId) -> Path:
        return self.root / sid if sid == RELAY_LOG else self.sessions / sid

    def log(self, sid: SessionId) -> Path:
        return self.session(sid) / "log"

    def blobs(self, sid: SessionId) -> Path:
        return self.session(sid) / "blobs"

    def blob(self, sid: SessionId, name: str) -> Path:
        return self.blobs(sid) / name.encode("ascii").hex()

    def new_temporary(self) -> Path:
        """A path in `tmp` that no other call gets."""
        self._counter += 1
        return self.tmp / f"{self._counter}-{os.urandom(4).hex()}"

    def session_ids(self) -> list[SessionId]:
        """Everything that has a folder, the relay's own log included."""
        found = [RELAY_LOG] if self.session(RELAY_LOG).exists() else []
        for path in self.sessions.iterdir():
            with contextlib.suppress(Exception):
                found.append(parse_session_id(path.name))
        return sorted(found)

    def make_session(self, sid: SessionId) -> None:
        """Makes a session's folders, or leaves that to whoever needs them when the disk is full."""
        with contextlib.suppress(OSError):
            make_session_folders(self.session(sid))

    def folders(self, sid: SessionId) -> tuple[Path, ...]:
        """The folders of a session, innermost first: syncing them makes its names durable."""
        return self.blobs(sid), self.session(sid), self.session(sid).parent

    def set_aside(self, sid: SessionId) -> Path | None:
        """Takes a session's folder out of sight at once; deleting it may take its time."""
        target = self.new_temporary()
        try:
            os.rename(self.session(sid), target)
        except FileNotFoundError:
            return None
        except OSError:  # a full disk has no room for the new name
            remove(self.session(sid))
            return None
        return target

    def _take_lock(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self.root / "lock", flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise StorageError(
                f"another relay uses the data folder {self.root}",
                code="locked",
                hint="stop it first, or give this one its own --data folder",
            ) from None
        self._lock_fd = fd

    def _check_version(self) -> None:
        path = self.root / "version"
        if not path.exists():
            # Whole or not at all: a loss of power must not leave one that nobody knows.
            safefs.write_private(path, VERSION)
            return
        if path.read_bytes()[:100] != VERSION:
            raise StorageError(
                f"{self.root} was written by a version of the relay this one does not know",
                code="version",
                hint="use the version that wrote it, or another folder",
            )


def make_session_folders(path: Path) -> None:
    """Raises OSError."""
    for folder in (path, path / "blobs"):
        folder.mkdir(mode=0o700, exist_ok=True)


def remove(path: Path) -> None:
    """Deletes a file or a whole folder; what cannot be deleted is left for the next start."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_file(path: Path, data: bytes) -> None:
    """A new file; `sync_all` makes it durable."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def sync_all(root: Path, files: Iterable[Path], folders: Iterable[Path]) -> None:
    """Makes files and names below `root` durable: with one call where the system has `syncfs`."""
    if _syncfs is not None:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _syncfs(fd) != 0:
                raise OSError(ctypes.get_errno(), "syncfs failed")
        finally:
            os.close(fd)
        return
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            sync_file(path)
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            sync_folder(folder)


def _find_syncfs() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError):
        return None
    return found


_syncfs: Final = _find_syncfs()


def sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
