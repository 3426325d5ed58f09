"""Files that hold secrets or come from outside: private, atomic, bounded, never through a link.

Rules
- A private file appears whole or not at all: temporary name, fsync, rename, fsync of the folder.
- The last component of a path is never followed when it is a symbolic link; what is opened for
  reading is a regular file, and opening never blocks (a FIFO does not stop the program).
- Every read has a bound given by the caller.
- Only `StorageError` leaves this module. Its code is `not_found`, `exists`, `too_large`,
  `not_regular`, `unsafe_name`, `not_private`, `denied`, `read_only`, `disk_full`, or `storage` for
  the rest.

Left to others: what the bytes mean, and writing beneath a folder that a job controls
(`tree/apply.py`).
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from airlox.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

    AnyPath = str | os.PathLike[str]

_CODES = {
    errno.ENOENT: "not_found",
    errno.EEXIST: "exists",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.ELOOP: "not_regular",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "read_only",
}
_HINTS = {
    "disk_full": "free space on that disk and try again",
    "denied": "check who owns it and may write there, or choose another folder",
    "read_only": "mend that disk if it should not be read-only, or choose another folder",
}
TEMPORARY = ".tmp-"
"""Start of the names of files that `write_private` has not finished."""
_NAME_BYTES = 255
_MOST_SUFFIXES = 9_999
_READ_STEP_BYTES = 1 << 20


def write_private(path: AnyPath, data: bytes, *, mode: int = 0o600) -> None:
    """Replace the file at `path` by `data`: atomic, durable, with exactly `mode`.

    A crash leaves the old content or the new one. A link at `path` is replaced, not followed.
    """
    folder, name = _split(path)
    try:
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        raise _storage_error("open folder", folder, e) from None
    temporary = TEMPORARY + os.urandom(8).hex()
    try:
        _write_new(temporary, data, mode, dir_fd=folder_fd)
        try:
            os.rename(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        except OSError:
            os.unlink(temporary, dir_fd=folder_fd)
            raise
        os.fsync(folder_fd)
    except OSError as e:
        raise _storage_error("write", path, e) from None
    finally:
        os.close(folder_fd)


def read_bounded(path: AnyPath, limit_bytes: int, *, own: bool = False) -> bytes:
    """Content of the regular file at `path`, at most `limit_bytes` of it; more is an error.

    With `own` it must belong to this user: nobody else may say who we are.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise StorageError(f"{os.fspath(path)} is not a regular file", code="not_regular")
            if own and found.st_uid != os.geteuid():
                raise StorageError(
                    f"{os.fspath(path)} belongs to another user",
                    code="not_private",
                    hint="choose a folder of your own",
                )
            data = _read_up_to(fd, limit_bytes + 1)
        finally:
            os.close(fd)
    except OSError as e:
        raise _storage_error("read", path, e) from None
    if len(data) > limit_bytes:
        raise StorageError(
            f"{os.fspath(path)} is larger than {limit_bytes} bytes", code="too_large"
        )
    return data


def make_private_dir(path: AnyPath) -> None:
    """Make the folder `path` and each missing parent with mode 0700; tighten one that exists.

    An existing one must be a real folder that belongs to this user.
    """
    shown = os.fspath(path)
    try:
        _make_missing(shown)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid():
                raise StorageError(
                    f"folder {shown} belongs to another user",
                    code="not_private",
                    hint="choose a folder of your own",
                )
            if stat.S_IMODE(found.st_mode) != 0o700:
                os.fchmod(fd, 0o700)
        finally:
            os.close(fd)
    except OSError as e:
        if e.errno in (errno.ENOTDIR, errno.ELOOP, errno.EEXIST):
            raise StorageError(
                f"{shown} is not a folder of its own",
                code="not_private",
                hint="name a real folder, not a file or a symbolic link",
            ) from None
        raise _storage_error("make folder", path, e) from None


def save_new(folder: AnyPath, name: str, data: bytes, *, mode: int = 0o600) -> Path:
    """Write `data` to a new file in `folder` and return its path; nothing is ever overwritten.

    When `name` is taken, `stem-1.ext`, `stem-2.ext`, … is used. `name` is one plain component.
    """
    from pathlib import Path

    return Path(folder, _save_numbered(os.fspath(folder), None, name, data, mode))


def save_new_at(folder_fd: int, name: str, data: bytes, *, mode: int = 0o600) -> str:
    """`save_new` in an open folder; returns the name that was free."""
    return _save_numbered("", folder_fd, name, data, mode)


def _save_numbered(folder: str, folder_fd: int | None, name: str, data: bytes, mode: int) -> str:
    _check_plain(name)
    for number in range(_MOST_SUFFIXES + 1):
        free = _numbered(name, number)
        target = os.path.join(folder, free)
        try:
            _write_new(target, data, mode, dir_fd=folder_fd)
        except FileExistsError:
            continue
        except OSError as e:
            raise _storage_error("write", target, e) from None
        return free
    raise StorageError(
        f"{folder or 'the folder'} already holds {_MOST_SUFFIXES} files named like {name!r}",
        code="exists",
    )


def save_once(folder: AnyPath, name: str, data: bytes) -> Path:
    """`save_new`, unless one of the names it would take holds the same bytes: then that path."""
    from pathlib import Path

    _check_plain(name)
    for number in range(_MOST_SUFFIXES + 1):
        target = Path(folder, _numbered(name, number))
        try:
            if read_bounded(target, len(data)) == data:
                return target
        except StorageError as error:
            if error.code == "not_found":
                break
    return save_new(folder, name, data)


def _check_plain(name: str) -> None:
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise StorageError(f"{name!r} is not a plain file name", code="unsafe_name")


def append_line(path: AnyPath, data: bytes, *, sync: bool = True, mode: int = 0o600) -> None:
    """Add `data` and a newline to the file at `path`, made with `mode` if it is missing.

    `data` holds no newline. A line torn by an earlier crash is ended first, so that it spoils
    only itself. With `sync` the line is on the disk when the call returns.
    """
    if b"\n" in data:
        raise StorageError(f"a line for {os.fspath(path)} holds a newline", code="storage")
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, mode)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise StorageError(f"{os.fspath(path)} is not a regular file", code="not_regular")
            torn = found.st_size > 0 and os.pread(fd, 1, found.st_size - 1) != b"\n"
            _write_all(fd, (b"\n" if torn else b"") + data + b"\n")
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as e:
        raise _storage_error("append to", path, e) from None


def _make_missing(path: str) -> None:
    """`os.makedirs` gives its mode to the last folder only, and leaves the others to the umask:
    under 000 anybody could put another folder in the place of ours."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        parent = os.path.dirname(path.rstrip("/"))
        if not parent:
            raise
        _make_missing(parent)
        os.mkdir(path, 0o700)


def _write_new(path: str, data: bytes, mode: int, *, dir_fd: int | None = None) -> None:
    """Create `path` exclusively with `data` on the disk; a failed attempt leaves nothing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, mode, dir_fd=dir_fd)
    try:
        try:
            os.fchmod(fd, mode)  # the mode asked for, whatever the umask
            _write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        os.unlink(path, dir_fd=dir_fd)
        raise


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _read_up_to(fd: int, most: int) -> bytes:
    parts: list[bytes] = []
    while most > 0 and (part := os.read(fd, min(most, _READ_STEP_BYTES))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _split(path: AnyPath) -> tuple[str, str]:
    folder, name = os.path.split(os.fspath(path))
    if name in ("", ".", ".."):
        raise StorageError(f"{os.fspath(path)!r} does not name a file", code="unsafe_name")
    return folder or ".", name


def _numbered(name: str, number: int) -> str:
    """`name` itself for 0, else with `-number` before its extension, never over 255 bytes."""
    suffix = f"-{number}" if number else ""
    stem, extension = os.path.splitext(name)
    tail = os.fsencode(suffix + extension)
    if not number or len(os.fsencode(stem)) + len(tail) <= _NAME_BYTES:
        return stem + suffix + extension
    short = os.fsencode(stem)[: max(1, _NAME_BYTES - len(tail))]
    return short.decode("utf-8", "ignore") + suffix + extension


def storage_error(doing: str, e: OSError) -> StorageError:
    """What the system's refusal to do something means, for whoever opens files on its own."""
    code = _CODES.get(e.errno or 0, "storage")
    return StorageError(f"cannot {doing}: {e.strerror}", code=code, hint=_HINTS.get(code))


def _storage_error(doing: str, path: AnyPath, e: OSError) -> StorageError:
    return storage_error(f"{doing} {os.fspath(path)}", e)
