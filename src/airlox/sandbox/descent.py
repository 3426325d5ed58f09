"""Moving through a folder tree that a hostile program made, by descriptors only.

Holds `Descent`: a place in a tree that is entered one name at a time and left upwards.

Rules
- A symbolic link is never followed, a mount is never crossed (bind mounts included).
- Any depth works: no recursion, no long paths, and few open descriptors. Folders far above are
  closed and found again through `..`, and then compared with what was left behind, so that a
  folder moved meanwhile leads to an error and not to somewhere else.
- With `repair`, folders get mode 0700 on the way, so that what a job locked can be removed.

Errors are plain `OSError`: `EXDEV` for a mount, `ENOTDIR` or `ELOOP` for what is no folder,
`ESTALE` when the way back is gone. Left to others: what to do with what is found.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_SYS_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_NO_XDEV = 0x01
_HELD_FOLDERS = 48
_UP = ".."


class Descent:
    """A place in the tree below `root`; starts at `root` itself. A context manager."""

    def __init__(self, root: str | os.PathLike[str], *, repair: bool = False) -> None:
        self._repair = repair
        fd = _open_root(os.fspath(root), repair=repair)
        self._frames = [_Frame.of(fd, name="")]

    @property
    def fd(self) -> int:
        """Descriptor of the folder where this place is; valid until the next move."""
        fd = self._frames[-1].fd
        assert fd is not None
        return fd

    @property
    def depth(self) -> int:
        """Folders below the root; 0 at the root."""
        return len(self._frames) - 1

    @property
    def names(self) -> tuple[str, ...]:
        """The way from the root to here."""
        return tuple(frame.name for frame in self._frames[1:])

    def enter(self, name: str) -> None:
        """Go down into the folder `name`. On an error this place is where it was."""
        fd = _open_below(self.fd, name, repair=self._repair)
        self._frames.append(_Frame.of(fd, name))
        if len(self._frames) > _HELD_FOLDERS:
            self._frames[-1 - _HELD_FOLDERS].close()

    def leave(self) -> str:
        """Go up, and return the name of the folder that was left. Not from the root."""
        child, parent = self._frames[-1], self._frames[-2]
        if parent.fd is None:
            parent.reopen_from(self.fd)
        self._frames.pop()
        child.close()
        return child.name

    def close(self) -> None:
        """Close every descriptor. Idempotent."""
        for frame in self._frames:
            frame.close()

    def __enter__(self) -> Descent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(slots=True)
class _Frame:
    """One folder of the way. `fd` is None while it is closed to save descriptors."""

    fd: int | None
    name: str
    identity: tuple[int, int]

    @classmethod
    def of(cls, fd: int, name: str) -> _Frame:
        return cls(fd, name, _identity(fd))

    def reopen_from(self, child_fd: int) -> None:
        fd = os.open(_UP, _OPEN_FOLDER, dir_fd=child_fd)
        if _identity(fd) != self.identity:
            os.close(fd)
            raise OSError(errno.ESTALE, "the folder was moved", self.name)
        self.fd = fd

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _open_root(path: str, *, repair: bool) -> int:
    try:
        fd = os.open(path, _OPEN_FOLDER)
    except PermissionError:
        if not repair:
            raise
        _unlock(path, dir_fd=None)
        fd = os.open(path, _OPEN_FOLDER)
    if repair:
        _allow_owner(fd)
    return fd


def _open_below(dir_fd: int, name: str, *, repair: bool) -> int:
    try:
        fd = _open_same_mount(dir_fd, name)
    except PermissionError:
        if not repair:
            raise
        _unlock(name, dir_fd=dir_fd)
        fd = _open_same_mount(dir_fd, name)
    if repair:
        _allow_owner(fd)
    return fd


def _unlock(name: str, *, dir_fd: int | None) -> None:
    """Give the owner of the folder `name` all rights, without following a link."""
    if not hasattr(os, "O_PATH"):
        os.chmod(name, stat.S_IRWXU, dir_fd=dir_fd, follow_symlinks=False)
        return
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        # fchmod refuses an O_PATH descriptor; its name below /proc reaches the same folder.
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IRWXU)
    finally:
        os.close(fd)


def _allow_owner(fd: int) -> None:
    """Make the open folder writable and searchable: it may be readable and yet locked."""
    if stat.S_IMODE(os.fstat(fd).st_mode) & stat.S_IRWXU != stat.S_IRWXU:
        with contextlib.suppress(OSError):  # not ours: removing what is inside will tell
            os.fchmod(fd, stat.S_IRWXU)


def _open_same_mount(dir_fd: int, name: str) -> int:
    try:
        return _openat2(dir_fd, os.fsencode(name))
    except OSError as e:
        # Old kernels lack the call, and some container profiles forbid it.
        if e.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    return _open_and_compare_mounts(dir_fd, name)


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_HOW = _OpenHow(_OPEN_FOLDER, 0, _RESOLVE_NO_XDEV)


def _openat2(dir_fd: int, name: bytes) -> int:
    if _syscall is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fd: int = _syscall(_SYS_OPENAT2, dir_fd, name, ctypes.byref(_HOW), ctypes.sizeof(_HOW))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), os.fsdecode(name))
    return fd


def _load_syscall() -> ctypes._NamedFuncPointer | None:
    if not hasattr(os, "O_PATH"):  # not Linux
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    call.argtypes = (
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
    )
    return call


_syscall = _load_syscall()


def _open_and_compare_mounts(dir_fd: int, name: str) -> int:
    fd = os.open(name, _OPEN_FOLDER, dir_fd=dir_fd)
    if _mount_of(fd) != _mount_of(dir_fd):
        os.close(fd)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    return fd


def _mount_of(fd: int) -> tuple[int, str]:
    """Device and, where the system tells it, the id of the mount: a bind mount shares a device."""
    device = os.fstat(fd).st_dev
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
            return device, next((line for line in info if line.startswith("mnt_id:")), "")
    except OSError:
        return device, ""
