"""Contents that have arrived and wait to be applied: small ones in memory, the rest on the disk.

Takes only what was asked for, so that what it holds is bounded by the sizes in the index. The
same pack may come again; a content of several parts is complete when all have come, in any order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final

from airlox import safefs
from airlox.tree.beneath import FILE_FLAGS, pieces, storage_error, write_all
from airlox.tree.chunks import PART_BYTES, Part, read_pack
from airlox.tree.index import INDEX_BYTES

if TYPE_CHECKING:
    AnyPath = str | os.PathLike[str]

MEMORY_BYTES: Final = 64 * 1024 * 1024


class ContentStore:
    """Collects wanted contents from packs; `fetch` is what `apply` takes. Close it at the end.

    `folder` is made private and holds files only of this store. Not safe to share between threads.
    """

    def __init__(self, folder: AnyPath, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._folder = os.fspath(folder)
        self._room = memory_bytes
        self._wanted: dict[bytes, int | None] = {}
        self._whole: dict[bytes, bytes] = {}
        self._parts: dict[bytes, set[int]] = {}
        self._on_disk: set[bytes] = set()

    def __enter__(self) -> ContentStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def missing(self) -> frozenset[bytes]:
        """Digests that are wanted and have not arrived whole."""
        return frozenset(self._wanted)

    def want(self, sizes: Mapping[bytes, int]) -> None:
        """Accept contents with these digests and sizes from now on."""
        self._wanted.update((d, n) for d, n in sizes.items() if not self._has(d))

    def want_index(self, digest: bytes) -> None:
        """Accept the encoded index with this digest, whatever its size up to the bound."""
        if not self._has(digest):
            self._wanted.setdefault(digest, None)

    def add_pack(self, pack: bytes) -> None:
        """Take what is wanted from a pack. Raises a ValidationError when the pack is malformed."""
        for part in read_pack(pack, self._is_wanted):
            if len(part.data) < part.size:
                self._add_part(part)
            elif len(part.data) <= self._room:
                self._room -= len(part.data)
                self._whole[part.digest] = part.data
                del self._wanted[part.digest]
            else:
                self._write(part)
                self._finish(part.digest)

    def fetch(self, digest: bytes) -> Iterator[bytes] | None:
        """The bytes of a content that has arrived whole, else None.

        A content that came in parts is not verified here; `apply` does so.
        """
        if digest in self._whole:
            return iter((self._whole[digest],))
        return self._read(digest) if digest in self._on_disk else None

    def close(self) -> None:
        """Forget everything and remove its files."""
        for digest in self._on_disk | self._parts.keys():
            try:
                os.unlink(self._path(digest))
            except FileNotFoundError:
                pass
        self._whole.clear()
        self._on_disk.clear()
        self._parts.clear()
        self._wanted.clear()

    def _has(self, digest: bytes) -> bool:
        return digest in self._whole or digest in self._on_disk

    def _is_wanted(self, digest: bytes, size: int) -> bool:
        if digest not in self._wanted:
            return False
        expected = self._wanted[digest]
        return size <= INDEX_BYTES if expected is None else size == expected

    def _add_part(self, part: Part) -> None:
        arrived = self._parts.setdefault(part.digest, set())
        if part.offset not in arrived:
            self._write(part)
            arrived.add(part.offset)
        if len(arrived) * PART_BYTES >= part.size:
            self._finish(part.digest)

    def _finish(self, digest: bytes) -> None:
        self._parts.pop(digest, None)
        self._on_disk.add(digest)
        del self._wanted[digest]

    def _write(self, part: Part) -> None:
        safefs.make_private_dir(self._folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(self._path(part.digest), flags, 0o600)
            try:
                os.lseek(fd, part.offset, os.SEEK_SET)
                write_all(fd, part.data)
            finally:
                os.close(fd)
        except OSError as e:
            raise storage_error("keep received contents", e) from None

    def _read(self, digest: bytes) -> Iterator[bytes]:
        fd = os.open(self._path(digest), FILE_FLAGS)
        try:
            yield from pieces(fd)
        finally:
            os.close(fd)

    def _path(self, digest: bytes) -> str:
        return os.path.join(self._folder, digest.hex())
