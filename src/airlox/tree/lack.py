"""The list of contents a runner lacks of one tree, as few bytes as possible. Pure.

Bytes: `axl1\\n` ‖ SHA-256 of the index ‖ 1 byte, then
    0   the index itself is lacking (nothing follows)
    1   one bit per distinct digest of the index in ascending order, lowest bit first, 1 = lacking
    2   the same, then for each large content of which chunks are lacking, ascending:
        u32 number of its digest in that order ‖ u32 number of its chunks ‖ one bit per chunk
A bit of a large content asks for its recipe and for all of its chunks; with 0 as the number of
chunks only the recipe is asked for.

Because bits only point into the index, no list can ask for anything outside that tree.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from airlox.errors import EncodingError, OrderError, ValidationError
from airlox.tree.chunks import LEAST_BYTES, Recipe, is_large
from airlox.tree.index import DIGEST_BYTES, TreeIndex

MAGIC: Final = b"axl1\n"
_NO_INDEX: Final = b"\0"
_BITS: Final = b"\1"
_CHUNKS: Final = b"\2"
_HEAD_BYTES: Final = len(MAGIC) + DIGEST_BYTES + 1
_GROUP: Final = struct.Struct(">II")


class Chosen(NamedTuple):
    """Chunks of a content that has `total` of them, by position; its recipe if `total` is 0."""

    total: int
    positions: frozenset[int]


class Lack(NamedTuple):
    """What to send: the index (and then nothing else yet), or the contents with these digests and
    these chunks of others."""

    needs_index: bool
    digests: frozenset[bytes]
    chunks: Mapping[bytes, Chosen]


def encode_lacking_index(index_digest: bytes) -> bytes:
    return MAGIC + index_digest + _NO_INDEX


def encode_lack(
    index: TreeIndex,
    lacking: Collection[bytes],
    chunks: Mapping[bytes, tuple[Recipe, Collection[bytes]]] | None = None,
) -> bytes:
    """Name the digests `lacking`, all of them from `index`; of the large contents in `chunks`
    only the chunks of this recipe with these digests (of an empty recipe: the recipe itself)."""
    known = _ordered(index)
    wanted = set(lacking)
    partly = chunks or {}
    if not (wanted | partly.keys()).issubset(known):
        raise ValidationError("a content is asked for that is not in the tree")
    bits = _to_bits(len(known), (n for n, digest in enumerate(known) if digest in wanted))
    head = MAGIC + index.digest
    if not partly:
        return head + _BITS + bits
    groups = []
    for number, digest in enumerate(known):
        if digest in partly:
            recipe, missing = partly[digest]
            count = len(recipe.chunks)
            at = (n for n, chunk in enumerate(recipe.chunks) if chunk.digest in missing)
            groups.append(_GROUP.pack(number, count) + _to_bits(count, at))
    return head + _CHUNKS + bits + b"".join(groups)


def tree_asked_for(data: bytes) -> bytes:
    """The digest of the index that a list of lacking contents speaks of; it is not checked yet."""
    return data[len(MAGIC) : _HEAD_BYTES - 1]


def parse_lack(data: bytes, index: TreeIndex) -> Lack:
    """What `data` asks for of the tree `index`; refused when it speaks of another tree."""
    if len(data) < _HEAD_BYTES or data[: len(MAGIC)] != MAGIC:
        raise EncodingError("these bytes are not a list of lacking contents")
    if data[len(MAGIC) : _HEAD_BYTES - 1] != index.digest:
        raise OrderError("a list of lacking contents speaks of another tree")
    form, rest = data[_HEAD_BYTES - 1 : _HEAD_BYTES], data[_HEAD_BYTES:]
    if form == _NO_INDEX and not rest:
        return Lack(needs_index=True, digests=frozenset(), chunks={})
    known = _ordered(index)
    end = _bytes_of(len(known))
    groups = rest[end:]
    if form not in (_BITS, _CHUNKS) or len(rest) < end or bool(groups) != (form == _CHUNKS):
        raise EncodingError("a list of lacking contents has the wrong form")
    digests = frozenset(known[n] for n in _from_bits(rest[:end], len(known)))
    return Lack(needs_index=False, digests=digests, chunks=_parse_groups(groups, known, index))


def _parse_groups(data: bytes, known: list[bytes], index: TreeIndex) -> dict[bytes, Chosen]:
    sizes = index.sizes()
    found: dict[bytes, Chosen] = {}
    at, last = 0, -1
    while at < len(data):
        if len(data) - at < _GROUP.size:
            raise EncodingError("a list of lacking chunks is cut short")
        number, count = _GROUP.unpack_from(data, at)
        at += _GROUP.size
        end = at + _bytes_of(count)
        if not last < number < len(known) or not is_large(sizes[known[number]]):
            raise EncodingError("a list of lacking chunks names no large content of its tree")
        if count > sizes[known[number]] // LEAST_BYTES + 1:
            raise EncodingError("a list of lacking chunks names more than a content can have")
        if end > len(data):
            raise EncodingError("a list of lacking chunks is cut short")
        found[known[number]] = Chosen(count, frozenset(_from_bits(data[at:end], count)))
        at, last = end, number
    return found


def _ordered(index: TreeIndex) -> list[bytes]:
    return sorted(index.sizes())


def _bytes_of(count: int) -> int:
    return (count + 7) // 8


def _to_bits(count: int, positions: Iterable[int]) -> bytes:
    bits = bytearray(_bytes_of(count))
    for number in positions:
        bits[number >> 3] |= 1 << (number & 7)
    return bytes(bits)


def _from_bits(bits: bytes, count: int) -> list[int]:
    if count % 8 and bits[-1] >> (count % 8):
        raise EncodingError("a list of lacking contents points past its end")
    return [n for n in range(count) if bits[n >> 3] >> (n & 7) & 1]
