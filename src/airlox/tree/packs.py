"""Packs: contents on their way, compressed and padded, before they are sealed. Pure.

A pack is `axp1\\n`, records, padding. A record (numbers big-endian):
    1 ‖ SHA-256 of the content ‖ u32 length ‖ u32 stored length ‖ stored bytes
    2 ‖ SHA-256 of the content ‖ u64 its size ‖ u32 length ‖ u32 stored length ‖ stored bytes
Kind 1 is a content of at most 1 MiB, or a chunk of a larger one; kind 2 is the recipe of a larger
one (`chunks.py`) and comes before its chunks. Stored bytes are one zstd frame, or the plain bytes
when the two lengths are equal. Padding is the byte 255, then zeros; it rounds the pack up so
that its size says little about what is in it.

The bytes of an index travel as one more content: the digest in the signed job names it.
A reader takes only what it wants, decompresses nothing else, and never more than one record at a
time. Left to others: sealing, and the check of a large content as a whole (`apply.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from airlox.errors import EncodingError, LimitError, TreeError, ValidationError
from airlox.protocol.digest import sha256
from airlox.protocol.limits import PACK_BYTES
from airlox.tree.chunks import LARGE_BYTES, RECIPE_BYTES, is_large

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor

MAGIC: Final = b"axp1\n"
TARGET_BYTES: Final = 4 * 1024 * 1024
"""A writer closes a pack at this size, so that sending one overlaps with making the next."""
PAD_BYTES: Final = 4096

_LEVEL: Final = 3
_PADDING: Final = 255
_HEADS: Final = {1: struct.Struct(">B32sII"), 2: struct.Struct(">B32sQII")}


class What(IntEnum):
    """What the bytes of a record are."""

    CONTENT = 1
    RECIPE = 2


class Record(NamedTuple):
    """A content, a chunk or a recipe. `digest` and `size` (bytes) are of the content, whatever
    of it `data` is. What was read from a pack has been verified unless it is a recipe."""

    what: What
    digest: bytes
    size: int
    data: bytes


class _Stored(NamedTuple):
    what: What
    digest: bytes
    size: int
    length: int
    stored: memoryview


def content_record(digest: bytes, data: bytes) -> Record:
    """The record of a content that is not cut, or of a chunk."""
    return Record(What.CONTENT, digest, len(data), data)


def write_packs(records: Iterable[Record], *, target_bytes: int = TARGET_BYTES) -> Iterator[bytes]:
    """Packs that carry `records` in this order; holds one pack and one record in memory.

    A pack is closed once it has `target_bytes`. What `records` raises passes through.
    """
    target = min(target_bytes, PACK_BYTES)
    compressor = _compressor()
    pack = bytearray(MAGIC)
    for record in records:
        head, stored = _encode(record, compressor)
        if len(pack) > len(MAGIC) and len(pack) + len(head) + len(stored) > target:
            yield _padded(pack)
            pack = bytearray(MAGIC)
        pack += head
        pack += stored
    if len(pack) > len(MAGIC):
        yield _padded(pack)


def read_pack(pack: bytes, wanted: Callable[[What, bytes, int], bool]) -> Iterator[Record]:
    """The records in `pack` that are `wanted`, by what they are, digest and size; others are
    passed over unopened.

    A malformed pack raises a ValidationError, at the latest when its end is reached.
    """
    if len(pack) > PACK_BYTES:
        raise LimitError(f"a pack is over {PACK_BYTES} bytes")
    if pack[: len(MAGIC)] != MAGIC:
        raise EncodingError("these bytes are not a pack")
    decompressor = _decompressor()
    for found in _parse_records(memoryview(pack)):
        if wanted(found.what, found.digest, found.size):
            data = _expand(found, decompressor)
            if found.what is What.CONTENT and sha256(data) != found.digest:
                raise ValidationError("a content in a pack does not have its digest")
            yield Record(found.what, found.digest, found.size, data)


def padded_size(size: int) -> int:
    """Size of a pack whose records end at `size`: at most an eighth more, or the next 4 KiB.

    The distance between possible sizes grows with them (Padmé), so few bits of the size leak.
    """
    exponent = size.bit_length() - 1
    step = max(PAD_BYTES, 1 << (exponent - exponent.bit_length()))
    return min(-(-size // step) * step, PACK_BYTES)


def _padded(pack: bytearray) -> bytes:
    missing = padded_size(len(pack)) - len(pack)
    if missing:
        pack += bytes([_PADDING]) + bytes(missing - 1)
    return bytes(pack)


def _encode(record: Record, compressor: ZstdCompressor) -> tuple[bytes, bytes]:
    """Head and stored bytes of a record."""
    stored = compressor.compress(record.data)
    if len(stored) >= len(record.data):
        stored = record.data
    lengths = (len(record.data), len(stored))
    sizes = lengths if record.what is What.CONTENT else (record.size, *lengths)
    return _HEADS[record.what].pack(record.what, record.digest, *sizes), stored


def _parse_records(pack: memoryview) -> Iterator[_Stored]:
    at = len(MAGIC)
    while at < len(pack):
        kind = pack[at]
        if kind == _PADDING:
            if any(pack[at + 1 :]):
                raise EncodingError("the padding of a pack is not zero")
            return
        if kind not in _HEADS:
            raise EncodingError(f"a pack has a record of unknown kind {kind}")
        try:
            record, at = _parse_record(What(kind), pack, at)
        except struct.error:
            raise EncodingError("a pack is cut short") from None
        yield record


def _parse_record(what: What, pack: memoryview, at: int) -> tuple[_Stored, int]:
    _, digest, *sizes = _HEADS[what].unpack_from(pack, at)
    at += _HEADS[what].size
    length, stored = sizes[-2:]
    size, most = (length, LARGE_BYTES) if what is What.CONTENT else (sizes[0], RECIPE_BYTES)
    if length > most:
        raise LimitError(f"a record of a pack is over {most} bytes")
    if what is What.RECIPE and not is_large(size):
        raise EncodingError("a pack has a recipe for a content that is not cut")
    if stored > length or at + stored > len(pack):
        raise EncodingError("a record of a pack has an impossible length")
    return _Stored(what, digest, size, length, pack[at : at + stored]), at + stored


def _expand(record: _Stored, decompressor: ZstdDecompressor) -> bytes:
    """The plain bytes of a record. The frame must announce exactly the length of the record:
    the library reserves what a frame announces, whatever limit it is given."""
    if len(record.stored) == record.length:
        return bytes(record.stored)
    from zstandard import ZstdError, frame_content_size

    try:
        if frame_content_size(record.stored) != record.length:
            raise EncodingError("a compressed record of a pack announces another length")
        data = decompressor.decompress(
            record.stored, max_output_size=record.length, allow_extra_data=False
        )
    except ZstdError:
        raise EncodingError("a compressed record of a pack is damaged") from None
    if len(data) != record.length:
        raise EncodingError("a compressed record of a pack has another length")
    return data


def _compressor() -> ZstdCompressor:
    try:
        from zstandard import ZstdCompressor
    except ImportError:
        raise _missing_zstandard() from None
    return ZstdCompressor(level=_LEVEL)


def _decompressor() -> ZstdDecompressor:
    try:
        from zstandard import ZstdDecompressor
    except ImportError:
        raise _missing_zstandard() from None
    return ZstdDecompressor(max_window_size=RECIPE_BYTES)


def _missing_zstandard() -> TreeError:
    return TreeError(
        "trees need the package zstandard, which is not installed",
        code="missing_package",
        hint="install it: pip install zstandard",
    )
