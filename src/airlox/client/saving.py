"""Writing files that came from others below a folder of this machine.

Every folder is opened relative to the one before and through no link, so nothing lands outside;
nothing is ever overwritten: a name that is taken gets a number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airlox import safefs
from airlox.errors import StorageError
from airlox.tree.beneath import Folders, enter_or_make, opened_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Content = tuple[str, Callable[[], bytes]]
"""A path with `/` between its parts, and what gives the bytes."""


def save_below(folder: str | os.PathLike[str], contents: Iterable[Content]) -> list[Path]:
    """Write files below a folder, made where it is missing; their paths. Raises StorageError."""
    from pathlib import Path

    with _errors():
        os.makedirs(folder, exist_ok=True)
        with opened_root(folder) as folder_fd:
            return [Path(folder, path) for path in save_in(folder_fd, contents)]


def save_in(folder_fd: int, contents: Iterable[Content]) -> list[str]:
    """Write files below an open folder; their paths from there. Raises StorageError."""
    saved = []
    with Folders(folder_fd, enter_or_make) as folders:
        for path, load in contents:
            parent, _, name = path.rpartition("/")
            with _errors():
                parent_fd = folders.fd(os.fsencode(parent))
            free = safefs.save_new_at(parent_fd, name, load())
            saved.append(f"{parent}/{free}" if parent else free)
    return saved


def make_new_folder(folder_fd: int, name: str) -> None:
    """Make a folder that was not there. Raises StorageError."""
    with _errors():
        os.mkdir(name, 0o755, dir_fd=folder_fd)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot make a folder for {os.fsdecode(error.filename or 'it')!r}: {error.strerror}",
            code="not_regular" if isinstance(error, NotADirectoryError) else "storage",
            hint="save to another folder",
        ) from None
