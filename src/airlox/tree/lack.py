"""The list of contents a runner lacks of one tree, as few bytes as possible. Pure.

Bytes: `axl1\\n` ‖ SHA-256 of the index ‖ 1 byte, then
    0   the index itself is lacking (nothing follows)
    1   one bit per distinct digest of the index in ascending order, lowest bit first, 1 = lacking

Because bits only point into the index, no list can ask for anything outside that tree.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from airlox.errors import EncodingError, OrderError, ValidationError
from airlox.tree.index import DIGEST_BYTES, TreeIndex

MAGIC: Final = b"axl1\n"
_NO_INDEX: Final = b"\0"
_BITS: Final = b"\1"
_HEAD_BYTES: Final = len(MAGIC) + DIGEST_BYTES + 1


class Lack(NamedTuple):
    """What to send: the index (and then nothing else yet), or the contents with these digests."""

    needs_index: bool
    digests: frozenset[bytes]


def encode_lacking_index(index_digest: bytes) -> bytes:
    return MAGIC + index_digest + _NO_INDEX


def encode_lack(index: TreeIndex, lacking: Collection[bytes]) -> bytes:
    """Name the digests `lacking`, all of them from `index`."""
    known = _ordered(index)
    wanted = set(lacking)
    if not wanted.issubset(known):
        raise ValidationError("a content is asked for that is not in the tree")
    bits = bytearray((len(known) + 7) // 8)
    for number, digest in enumerate(known):
        if digest in wanted:
            bits[number >> 3] |= 1 << (number & 7)
    return MAGIC + index.digest + _BITS + bits


def parse_lack(data: bytes, index: TreeIndex) -> Lack:
    """What `data` asks for of the tree `index`; refused when it speaks of another tree."""
    if len(data) < _HEAD_BYTES or data[: len(MAGIC)] != MAGIC:
        raise EncodingError("these bytes are not a list of lacking contents")
    if data[len(MAGIC) : _HEAD_BYTES - 1] != index.digest:
        raise OrderError("a list of lacking contents speaks of another tree")
    form, bits = data[_HEAD_BYTES - 1 : _HEAD_BYTES], data[_HEAD_BYTES:]
    if form == _NO_INDEX and not bits:
        return Lack(needs_index=True, digests=frozenset())
    known = _ordered(index)
    if form != _BITS or len(bits) != (len(known) + 7) // 8:
        raise EncodingError("a list of lacking contents has the wrong form")
    if len(known) % 8 and bits[-1] >> (len(known) % 8):
        raise EncodingError("a list of lacking contents points past its tree")
    digests = (d for n, d in enumerate(known) if bits[n >> 3] >> (n & 7) & 1)
    return Lack(needs_index=False, digests=frozenset(digests))


def _ordered(index: TreeIndex) -> list[bytes]:
    return sorted(index.sizes())
