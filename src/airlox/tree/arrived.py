"""What came of a tree that never came whole, kept for the next try: interrupted uploads go on.

One private file for each content, chunk or recipe, named by its digest. Contents and chunks are
compared with it when they are read again; a recipe is refused when it is none. What is damaged or
missing is sent again. What earlier tries left counts too: no row of tries fills the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from airlox import safefs
from airlox.errors import StorageError, ValidationError
from airlox.protocol.digest import sha256
from airlox.tree.beneath import NEW_FILE_FLAGS, write_all
from airlox.tree.chunks import LARGE_BYTES, RECIPE_BYTES, parse_recipe
from airlox.tree.packs import Record, What, content_record

if TYPE_CHECKING:
    AnyPath = str | os.PathLike[str]

KEPT_BYTES: Final = 4 << 30
"""Most that is kept for one sender."""
_SUFFIX: Final = {What.CONTENT: "", What.RECIPE: ".recipe"}
_MOST_BYTES: Final = {What.CONTENT: LARGE_BYTES, What.RECIPE: RECIPE_BYTES}


class Arrived:
    """Records kept in `folder`, which holds nothing else. Not safe to share between threads."""

    def __init__(
        self, folder: AnyPath, *, most_bytes: int = KEPT_BYTES, floor_bytes: int = 0
    ) -> None:
        """`floor_bytes` stay free on the disk."""
        self._folder = os.fspath(folder)
        self._most_bytes = most_bytes
        self._floor_bytes = floor_bytes
        try:
            self._names = frozenset(os.listdir(self._folder))
        except OSError:
            self._names = frozenset()

    def find(self, what: What, digest: bytes, size: int) -> Record | None:
        """The record that was kept of a content of `size` bytes."""
        name = digest.hex() + _SUFFIX[what]
        if name not in self._names:
            return None
        try:
            data = safefs.read_bounded(os.path.join(self._folder, name), _MOST_BYTES[what])
        except StorageError:
            return None
        if what is What.CONTENT:
            return content_record(digest, data) if sha256(data) == digest else None
        try:
            parse_recipe(data, size)
        except ValidationError:
            return None
        return Record(what, digest, size, data)

    def keep(self, records: Iterable[Record]) -> None:
        """Keep what there is room for. A disk that refuses ends it quietly: it is only a saving."""
        with suppress(StorageError, OSError):
            safefs.make_private_dir(self._folder)
            room = self._room()
            for record in records:
                name = record.digest.hex() + _SUFFIX[record.what]
                if name in self._names:
                    continue
                room -= len(record.data)
                if room < 0:
                    return
                self._write(name, record.data)

    def _room(self) -> int:
        """Bytes that may be added."""
        with os.scandir(self._folder) as found:
            there = sum(entry.stat(follow_symlinks=False).st_size for entry in found)
        disk = os.statvfs(self._folder)
        return min(self._most_bytes - there, disk.f_bavail * disk.f_frsize - self._floor_bytes)

    def _write(self, name: str, data: bytes) -> None:
        """Neither synced nor renamed: a torn file is noticed when it is read."""
        path = os.path.join(self._folder, name)
        fd = os.open(path, NEW_FILE_FLAGS, 0o600)
        try:
            write_all(fd, data)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(fd)

    def clear(self) -> None:
        """Forget all of it: the tree came whole."""
        with suppress(OSError):
            for name in os.listdir(self._folder):
                os.unlink(os.path.join(self._folder, name))
            os.rmdir(self._folder)
        self._names = frozenset()
