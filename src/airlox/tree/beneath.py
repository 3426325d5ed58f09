"""Folders beneath one root, reached by descriptors and never through a link.

Whoever runs a job may leave anything in a folder it could write to: symbolic links where folders
were, FIFOs, folders without permissions, nesting without end. Everything here opens one component
at a time, relative to the descriptor of the one before, without following links, so that no path
leads outside the root and nothing blocks.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Final

from airlox.errors import StorageError, TreeError
from airlox.tree.paths import shown

if TYPE_CHECKING:
    AnyPath = str | bytes | os.PathLike[str]

FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
STEP_BYTES: Final = 1 << 20

_BATCH: Final = 1000
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

Identity = tuple[int, int]
"""Device and number of a folder: what it is, whatever stands at its path."""

Enter = Callable[[int, bytes], int]
"""Opens the folder of that name in an open folder and returns its descriptor, or raises OSError."""


def identity(folder_fd: int) -> Identity:
    """Which folder an open one is."""
    found = os.fstat(folder_fd)
    return found.st_dev, found.st_ino


def enter(folder_fd: int, name: bytes) -> int:
    """Open a folder that is there, as it is."""
    return os.open(name, FOLDER_FLAGS, dir_fd=folder_fd)


def enter_or_make(folder_fd: int, name: bytes) -> int:
    """Open a folder, made where it is missing."""
    try:
        os.mkdir(name, 0o755, dir_fd=folder_fd)
    except FileExistsError:
        pass
    return enter(folder_fd, name)


def enter_if_open(folder_fd: int, name: bytes) -> int:
    """Open a folder that its owner may read, write and search: root could enter others too."""
    fd = enter(folder_fd, name)
    with closing_on_error(fd):
        if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
    return fd


def enter_forced(folder_fd: int | None, name: bytes) -> int:
    """Open a folder that is there, giving its owner all permissions again if they are missing.

    Without `folder_fd`, `name` is an absolute path whose folders are trusted.
    """
    try:
        fd = os.open(name, FOLDER_FLAGS, dir_fd=folder_fd)
    except PermissionError:
        return _enter_closed(folder_fd, name)
    mode = os.fstat(fd).st_mode
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        with closing_on_error(fd):
            os.fchmod(fd, stat.S_IMODE(mode) | stat.S_IRWXU)
    return fd


class Folders:
    """Descriptors of the folders beneath a root; keeps open the way to the last one asked for.

    Visiting paths in order therefore opens each folder once. Descriptors stay owned by this
    object and are valid until the next call.
    """

    def __init__(self, root_fd: int, how: Enter = enter) -> None:
        self._how = how
        self._names: list[bytes] = []
        self._fds = [root_fd]

    def __enter__(self) -> Folders:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave_to(0)

    def fd(self, path: bytes) -> int:
        """Descriptor of the folder `path` (empty: the root). Raises OSError when it is not one."""
        names = path.split(b"/") if path else []
        common = 0
        for ours, theirs in zip(self._names, names, strict=False):
            if ours != theirs:
                break
            common += 1
        self._leave_to(common)
        for name in names[common:]:
            self._fds.append(self._how(self._fds[-1], name))
            self._names.append(name)
        return self._fds[-1]

    def _leave_to(self, depth: int) -> None:
        while len(self._names) > depth:
            self._names.pop()
            os.close(self._fds.pop())


@contextmanager
def opened_root(root: AnyPath) -> Iterator[int]:
    """Descriptor of an existing folder, closed at the end."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def opened_workspace(root: str | os.PathLike[str]) -> Iterator[int]:
    """Descriptor of an existing folder that a job could close to us, but not replace."""
    root_fd = enter_forced(None, os.fsencode(os.path.abspath(root)))
    try:
        yield root_fd
    finally:
        os.close(root_fd)


def storage_error(doing: str, e: OSError) -> StorageError:
    """What a refusal of the file system means, without the path."""
    full = e.errno in _FULL
    return StorageError(
        f"cannot {doing}: {e.strerror or e}",
        code="disk_full" if full else "storage",
        hint="free space on the runner's disk" if full else None,
    )


@contextmanager
def workspace_errors() -> Iterator[None]:
    """Name what the file system refused, without the path of the workspace."""
    try:
        yield
    except OSError as e:
        if e.errno in _FULL:
            raise StorageError(
                "the disk of the workspace is full",
                code="disk_full",
                hint="free space on the runner, or run with --fresh",
            ) from None
        where = shown(os.path.basename(os.fsencode(e.filename or b"a file")))
        raise TreeError(
            f"the workspace cannot be changed at {where}: {e.strerror or e}",
            code="tree_blocked",
            hint="--fresh starts the workspace over",
        ) from None


@contextmanager
def closing_on_error(fd: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(fd)
        raise


def open_regular(folder_fd: int, name: bytes) -> tuple[int, os.stat_result]:
    """Open a regular file for reading. Raises OSError for a link, a FIFO, anything else."""
    fd = os.open(name, FILE_FLAGS, dir_fd=folder_fd)
    with closing_on_error(fd):
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{name!r} is not a regular file")
    return fd, found


def pieces(fd: int) -> Iterator[bytes]:
    """The bytes of an open file from its position on, in pieces of at most 1 MiB."""
    while piece := os.read(fd, STEP_BYTES):
        yield piece


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def remove(folder_fd: int, name: bytes, pit_fd: int) -> None:
    """Remove what stands at `name`, whatever it is; nothing there is fine.

    A folder is first moved into the pit, an empty folder of ours on the same file system, and the
    folders in it after it, so that its depth costs neither descriptors nor stack.
    """
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
            _sink(folder_fd, name, pit_fd)
        else:
            os.unlink(name, dir_fd=folder_fd)
    except FileNotFoundError:
        return
    empty_pit(pit_fd)


def empty_pit(pit_fd: int) -> None:
    """Remove everything in the pit."""
    while names := _some_names(pit_fd):
        for name in names:
            fd = enter_forced(pit_fd, name)
            try:
                _empty(fd, pit_fd)
            finally:
                os.close(fd)
            os.rmdir(name, dir_fd=pit_fd)


def _empty(folder_fd: int, pit_fd: int) -> None:
    while names := _some_names(folder_fd):
        for name in names:
            if stat.S_ISDIR(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
                _sink(folder_fd, name, pit_fd)
            else:
                os.unlink(name, dir_fd=folder_fd)


def _sink(folder_fd: int, name: bytes, pit_fd: int) -> None:
    os.close(enter_forced(folder_fd, name))  # moving a folder needs permission to write in it
    os.rename(name, os.urandom(16).hex(), src_dir_fd=folder_fd, dst_dir_fd=pit_fd)


def _some_names(folder_fd: int) -> list[bytes]:
    with os.scandir(folder_fd) as found:
        return [os.fsencode(entry.name) for entry in islice(found, _BATCH)]


def _enter_closed(folder_fd: int | None, name: bytes) -> int:
    """Open a folder its owner may not read: by a bare handle, through which its mode is set."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder_fd)
    try:
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)
        return os.open(".", FOLDER_FLAGS, dir_fd=handle)
    finally:
        os.close(handle)
