"""Chunks: large contents cut where their bytes say, and the recipes that put them together. Pure.

A content of more than 1 MiB travels as a *recipe*, the row of its chunks, and those chunks that
the other side has not got. Cuts follow the content (FastCDC 2020), so that a byte that is inserted
moves one or two of them and all others stay what they were. Where cuts fall depends on a seed of
the session: their sizes tell a relay nothing about which public file this is.

Bytes of a recipe: for each chunk its SHA-256 ‖ u32 length (big-endian). Its digest proves a chunk,
and the digest of the whole what the recipe makes of them. All chunks but the last have 32 KiB at
least, so that a small content, or one that is made of the same again and again, names few.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from airlox.errors import EncodingError, LimitError, TreeError, ValidationError
from airlox.protocol.digest import sha256

if TYPE_CHECKING:
    from pyfastcdc import FastCDC

LARGE_BYTES: Final = 1 << 20
"""A content of at most this many bytes is not cut."""
CHUNK_BYTES: Final = 512 * 1024
"""Most bytes of a chunk."""
LEAST_BYTES: Final = 32 * 1024
"""Fewest bytes of a chunk that is not the last of its content."""
RECIPE_BYTES: Final = 8 << 20
"""A recipe of this size stands for some 35 GB."""

_AVERAGE_BYTES: Final = 128 * 1024
_ROW: Final = struct.Struct(">32sI")


class Chunk(NamedTuple):
    """A chunk: the SHA-256 of its bytes, and how many they are."""

    digest: bytes
    length: int


class Recipe(NamedTuple):
    """The chunks of one content, in order."""

    chunks: tuple[Chunk, ...]

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return sum(chunk.length for chunk in self.chunks)

    @property
    def digests(self) -> frozenset[bytes]:
        return frozenset(chunk.digest for chunk in self.chunks)


NO_RECIPE: Final = Recipe(())
"""In place of a recipe that is not known."""


def is_large(size: int) -> bool:
    """Whether a content of `size` bytes travels by a recipe."""
    return size > LARGE_BYTES


def encode_recipe(recipe: Recipe) -> bytes:
    """Raises LimitError for a content that takes more chunks than a recipe names."""
    if len(recipe.chunks) * _ROW.size > RECIPE_BYTES:
        raise LimitError("a file of the tree is too large to be sent in chunks")
    return b"".join(_ROW.pack(*chunk) for chunk in recipe.chunks)


def parse_recipe(data: bytes, size: int) -> Recipe:
    """The recipe of a content of `size` bytes; every other byte string is refused."""
    if len(data) > RECIPE_BYTES:
        raise LimitError(f"a recipe is over {RECIPE_BYTES} bytes")
    if not data or len(data) % _ROW.size:
        raise EncodingError("a recipe is cut short")
    if len(data) // _ROW.size > size // LEAST_BYTES + 1:
        raise EncodingError("a recipe names more chunks than its content can have")
    recipe = Recipe(tuple(Chunk(*row) for row in _ROW.iter_unpack(data)))
    *others, last = (chunk.length for chunk in recipe.chunks)
    if not (1 <= last <= CHUNK_BYTES and all(LEAST_BYTES <= n <= CHUNK_BYTES for n in others)):
        raise EncodingError("a recipe names a chunk of an impossible length")
    if recipe.size != size:
        raise ValidationError("a recipe does not make a content of its size")
    return recipe


class Cutter:
    """Cuts contents of one session. `seed` is a number below 2^63."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def cut(self, pieces: Iterable[bytes]) -> Iterator[memoryview]:
        """The chunks of a content; each is valid until the next is asked for."""
        for chunk in self._machine().cut_stream(_Stream(pieces)):
            yield chunk.data

    def recipe(self, pieces: Iterable[bytes]) -> Recipe:
        return Recipe(tuple(Chunk(sha256(data), len(data)) for data in self.cut(pieces)))

    def _machine(self) -> FastCDC:
        """One for each content: the library's is not to be shared between threads."""
        try:
            from pyfastcdc import FastCDC
        except ImportError:
            raise TreeError(
                "large files of trees need the package pyfastcdc, which is not installed",
                code="missing_package",
                hint="install it: pip install pyfastcdc",
            ) from None
        return FastCDC(_AVERAGE_BYTES, min_size=LEAST_BYTES, max_size=CHUNK_BYTES, seed=self._seed)


class _Stream:
    """Pieces as something to read from."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = filter(None, pieces)  # an empty one would look like the end
        self._rest = memoryview(b"")

    def readinto(self, buffer: memoryview) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        count = min(len(self._rest), len(buffer))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


# ── recipes kept for the next time ───────────────────────────────────────────────────────────

_MAGIC: Final = b"axr1\n"
_HEAD: Final = struct.Struct(">32sQI")
KEPT_BYTES: Final = 32 << 20


def encode_recipes(recipes: dict[bytes, Recipe]) -> bytes:
    """Recipes by the digest of their content. Those that do not fit are left out."""
    parts, room = [_MAGIC], KEPT_BYTES - len(_MAGIC)
    for digest, recipe in sorted(recipes.items()):
        rows = encode_recipe(recipe)
        room -= _HEAD.size + len(rows)
        if room >= 0:
            parts += (_HEAD.pack(digest, recipe.size, len(rows)), rows)
    return b"".join(parts)


def parse_recipes(data: bytes) -> dict[bytes, Recipe]:
    """Raises ValidationError for what `encode_recipes` does not make."""
    if data[: len(_MAGIC)] != _MAGIC or len(data) > KEPT_BYTES:
        raise EncodingError("these bytes are not recipes")
    found: dict[bytes, Recipe] = {}
    at = len(_MAGIC)
    while at < len(data):
        if len(data) - at < _HEAD.size:
            raise EncodingError("recipes are cut short")
        digest, size, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size + length
        found[digest] = parse_recipe(data[at - length : at], size)
    return found
