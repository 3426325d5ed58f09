"""Contents that have arrived and wait to be applied: some in memory, the rest in one file.

Takes only what was asked for, so that what it holds is bounded by the sizes in the index, and by
`CHUNKS` where these are large. A large content is asked for by its recipe; with the recipe the
chunks that are nowhere here are asked for. The same pack may come again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol

from airlox import safefs
from airlox.errors import LimitError
from airlox.tree.arrived import Arrived
from airlox.tree.beneath import storage_error, write_all
from airlox.tree.chunks import LARGE_BYTES, Recipe, encode_recipe, is_large, parse_recipe
from airlox.tree.index import INDEX_BYTES
from airlox.tree.packs import Record, What, content_record, read_pack

if TYPE_CHECKING:
    AnyPath = str | os.PathLike[str]

MEMORY_BYTES: Final = 64 * 1024 * 1024
CHUNKS: Final = 1 << 20
"""Most chunks that recipes name in all: some 128 GB."""


class Chunks(Protocol):
    """Where chunks may be had that need not come from outside."""

    def __contains__(self, digest: bytes, /) -> bool: ...

    def read(self, digest: bytes) -> bytes | None:
        """The bytes of a chunk; None when they are not there any more."""

    def look_further(self) -> bool:
        """Look where it takes longer; whether there was such a place."""


class _None:
    def __contains__(self, digest: bytes, /) -> bool:
        return False

    def read(self, digest: bytes) -> bytes | None:
        return None

    def look_further(self) -> bool:
        return False


class ContentStore:
    """Collects wanted contents from packs; `fetch` is what `apply` takes. Close it at the end.

    `folder` is made private; a file in it that has no name any more takes what memory does not.
    Not safe to share between threads.
    """

    def __init__(
        self,
        folder: AnyPath,
        *,
        old: Chunks | None = None,
        arrived: Arrived | None = None,
        memory_bytes: int = MEMORY_BYTES,
        chunks: int = CHUNKS,
    ) -> None:
        """`old` has chunks of what stands here, `arrived` what came in an earlier try."""
        self._folder = os.fspath(folder)
        self._old: Chunks = _None() if old is None else old
        self._earlier = arrived
        self._room = memory_bytes
        self._room_chunks = chunks
        self.taken_bytes = 0
        """Of everything that was wanted and came."""
        self._whole: dict[bytes, int | None] = {}
        """Contents that have not arrived: their size, None where it is not known."""
        self._partly: dict[bytes, set[bytes]] = {}
        """Large contents with a recipe, and those of their chunks that have not arrived."""
        self._users: dict[bytes, list[bytes]] = {}
        """Chunks that have not arrived, and the contents that need them."""
        self._recipes: dict[bytes, Recipe] = {}
        self._memory: dict[bytes, bytes] = {}
        self._file_fd = -1
        self._file_bytes = 0
        self._on_disk: dict[bytes, tuple[int, int]] = {}

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
    def is_complete(self) -> bool:
        return not self._whole and not self._partly

    @property
    def missing(self) -> frozenset[bytes]:
        """Contents of which nothing has arrived, not even a recipe."""
        return frozenset(self._whole)

    @property
    def missing_chunks(self) -> dict[bytes, tuple[Recipe, frozenset[bytes]]]:
        """Large contents whose recipe is here, and their chunks that are missing."""
        return {d: (self._recipes[d], frozenset(m)) for d, m in self._partly.items()}

    def want(self, sizes: Mapping[bytes, int]) -> None:
        """Accept contents with these digests and sizes from now on."""
        for digest, size in sizes.items():
            if not self._knows(digest):
                self._whole[digest] = size
                self._take(self._came_before(digest, size))

    def want_index(self, digest: bytes) -> None:
        """Accept the encoded index with this digest, whatever its size up to the bound."""
        if not self._knows(digest):
            self._whole.setdefault(digest, None)

    def add_pack(self, pack: bytes) -> None:
        """Take what is wanted from a pack. Raises a ValidationError when the pack is malformed or
        the tree takes too many chunks."""
        for record in read_pack(pack, self._is_wanted):
            self.taken_bytes += len(record.data)
            self._take(record)

    def look_further(self) -> None:
        """Look for missing chunks where that takes longer than having a few sent."""
        if self._partly and self._old.look_further():
            for digest in [digest for digest in self._users if digest in self._old]:
                self._arrived(digest)

    def fetch(self, digest: bytes) -> Iterator[bytes] | None:
        """The bytes of a content that has arrived whole, else None.

        What a recipe makes is not verified here; `apply` does so.
        """
        recipe = self._recipes.get(digest)
        if recipe is not None:
            return None if digest in self._partly else self._made_by(recipe)
        data = self._read(digest)
        return None if data is None else iter((data,))

    def keep_for_later(self) -> None:
        """The tree will not come whole this time: keep what has come."""
        if self._earlier is not None:
            self._earlier.keep(self._records())

    def close(self) -> None:
        """Forget everything."""
        if self._file_fd >= 0:
            os.close(self._file_fd)
            self._file_fd = -1
        for kept in (self._whole, self._partly, self._users, self._recipes, self._memory):
            kept.clear()
        self._on_disk.clear()

    def _knows(self, digest: bytes) -> bool:
        return digest in self._recipes or self._has(digest)

    def _has(self, digest: bytes) -> bool:
        return digest in self._memory or digest in self._on_disk

    def _is_wanted(self, what: What, digest: bytes, size: int) -> bool:
        if what is What.CONTENT and digest in self._users:
            return True
        if digest not in self._whole:
            return False
        expected = self._whole[digest]
        if expected is None:
            return size <= (INDEX_BYTES if what is What.RECIPE else LARGE_BYTES)
        return size == expected and is_large(size) == (what is What.RECIPE)

    def _take(self, record: Record | None) -> None:
        if record is None:
            return
        if record.what is What.RECIPE:
            self._add_recipe(record)
        else:
            self._keep(record.digest, record.data)
            self._whole.pop(record.digest, None)
            self._arrived(record.digest)

    def _came_before(self, digest: bytes, size: int) -> Record | None:
        what = What.RECIPE if is_large(size) else What.CONTENT
        return None if self._earlier is None else self._earlier.find(what, digest, size)

    def _add_recipe(self, record: Record) -> None:
        recipe = parse_recipe(record.data, record.size)
        self._room_chunks -= len(recipe.chunks)
        if self._room_chunks < 0:
            raise LimitError("the large files of a tree take too many chunks")
        missing = {d for d in recipe.digests if not self._has(d) and d not in self._old}
        self._recipes[record.digest] = recipe
        del self._whole[record.digest]
        if not missing:
            return
        self._partly[record.digest] = missing.copy()
        for digest in missing:
            self._users.setdefault(digest, []).append(record.digest)
        if self._earlier is not None:
            for digest in missing:
                self._take(self._earlier.find(What.CONTENT, digest, 0))

    def _records(self) -> Iterator[Record]:
        for digest, recipe in self._recipes.items():
            yield Record(What.RECIPE, digest, recipe.size, encode_recipe(recipe))
        for digest in (*self._memory, *self._on_disk):
            data = self._read(digest)
            if data is not None:
                yield content_record(digest, data)

    def _arrived(self, digest: bytes) -> None:
        for content in self._users.pop(digest, ()):
            self._partly[content].discard(digest)
            if not self._partly[content]:
                del self._partly[content]

    def _made_by(self, recipe: Recipe) -> Iterator[bytes]:
        for chunk in recipe.chunks:
            data = self._read(chunk.digest)
            # Empty where a job's file lost it: `apply` finds that the whole is not what it was.
            yield data if data is not None else self._old.read(chunk.digest) or b""

    def _keep(self, digest: bytes, data: bytes) -> None:
        if len(data) <= self._room:
            self._room -= len(data)
            self._memory[digest] = data
            return
        try:
            if self._file_fd < 0:
                self._file_fd = self._new_file()
            os.lseek(self._file_fd, self._file_bytes, os.SEEK_SET)
            write_all(self._file_fd, data)
        except OSError as e:
            raise storage_error("keep received contents", e) from None
        self._on_disk[digest] = (self._file_bytes, len(data))
        self._file_bytes += len(data)

    def _new_file(self) -> int:
        """A file that is gone with its descriptor, however we end."""
        safefs.make_private_dir(self._folder)
        path = os.path.join(self._folder, os.urandom(8).hex())
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        os.unlink(path)
        return fd

    def _read(self, digest: bytes) -> bytes | None:
        if digest in self._memory:
            return self._memory[digest]
        if digest not in self._on_disk:
            return None
        offset, length = self._on_disk[digest]
        try:
            return os.pread(self._file_fd, length, offset)
        except OSError as e:
            raise storage_error("read received contents", e) from None
