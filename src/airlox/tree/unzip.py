"""Unpacking an inspected ZIP archive into an empty folder.

Every rule about what an archive may hold is in `protocol/archive.py`. Here: files are 0644 and
folders 0755 whatever the archive says, nothing is overwritten, no link is followed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airlox.errors import StorageError
from airlox.protocol.archive import ZipEntry, inspect_zip, read_entry
from airlox.tree.beneath import (
    NEW_FILE_FLAGS,
    Folders,
    enter_or_make,
    opened_root,
    storage_error,
    write_all,
)
from airlox.tree.paths import split

if TYPE_CHECKING:
    AnyPath = str | os.PathLike[str]


def extract_zip(data: bytes, folder: AnyPath) -> None:
    """Unpack the archive `data` into the existing, empty `folder`.

    Raises ValidationError for an archive that is unsafe or damaged; damage may show only after
    some files were written, so on any error throw the folder away. Raises StorageError.
    """
    entries = inspect_zip(data)
    try:
        with opened_root(folder) as root_fd:
            if os.listdir(root_fd):
                raise StorageError(f"{os.fspath(folder)} is not empty", code="exists")
            with Folders(root_fd, enter_or_make) as folders:
                for entry in entries:
                    _extract(data, entry, folders)
    except OSError as e:
        raise storage_error("unpack an archive", e) from None


def _extract(data: bytes, entry: ZipEntry, folders: Folders) -> None:
    path = entry.path.encode("utf-8")
    if entry.is_dir:
        folders.fd(path)
        return
    folder, name = split(path)
    fd = os.open(name, NEW_FILE_FLAGS, 0o644, dir_fd=folders.fd(folder))
    try:
        os.fchmod(fd, 0o644)  # whatever the umask
        for piece in read_entry(data, entry):
            write_all(fd, piece)
    finally:
        os.close(fd)
