"""Packs: contents on their way, compressed and padded, before they are sealed. Pure.

A pack is `axp1\\n`, records, padding. A record (numbers big-endian):
    1 ‖ SHA-256 of the content ‖ u32 length ‖ u32 stored length ‖ stored bytes
    2 ‖ SHA-256 of the content ‖ u64 its size ‖ u64 offset ‖ u32 length ‖ u32 stored ‖ stored bytes
A content of at most 8 MiB is one record of kind 1. A larger one is a row of records of kind 2,
each but the last 8 MiB long, in any packs. Stored bytes are one zstd frame, or the plain bytes
when the two lengths are equal. Padding is the byte 255, then zeros; it rounds the pack up so
that its size says little about what is in it.

The bytes of an index travel as one more content: the digest in the signed job names it.
A reader takes only what it wants, decompresses nothing else, and never more than one record at a
time. Left to others: sealing, and the check of a large content as a whole (`apply.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from airlox.errors import EncodingError, LimitError, TreeError, ValidationError
from airlox.protocol.digest import sha256
from airlox.protocol.limits import PACK_BYTES

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor

MAGIC: Final = b"axp1\n"
PART_BYTES: Final = 8 * 1024 * 1024
TARGET_BYTES: Final = 4 * 1024 * 1024
"""A writer closes a pack at this size, so that sending one overlaps with making the next."""
PAD_BYTES: Final = 4096

_LEVEL: Final = 3
_WHOLE: Final = 1
_PART: Final = 2
_PADDING: Final = 255
_WHOLE_HEAD: Final = struct.Struct(">B32sII")
_PART_HEAD: Final = struct.Struct(">B32sQQII")


class Content(NamedTuple):
    """One content to send: its digest, its size in bytes, and its bytes in pieces of any length."""

    digest: bytes
    size: int
    pieces: Iterable[bytes]


class Part(NamedTuple):
    """Received bytes of a content of `size` bytes. A part that is the whole has been verified."""

    digest: bytes
    size: int
    offset: int
    data: bytes


class _Record(NamedTuple):
    digest: bytes
    size: int
    offset: int
    length: int
    stored: memoryview


def write_packs(
    contents: Iterable[Content], *, target_bytes: int = TARGET_BYTES
) -> Iterator[bytes]:
    """Packs that carry `contents` in this order; holds one pack and one record in memory.

    A pack is closed once it has `target_bytes`. An error of a content's pieces passes through.
    """
    target = min(target_bytes, PACK_BYTES)
    compressor = _compressor()
    pack = bytearray(MAGIC)
    for content in contents:
        for head, stored in _records(content, compressor):
            if len(pack) > len(MAGIC) and len(pack) + len(head) + len(stored) > target:
                yield _padded(pack)
                pack = bytearray(MAGIC)
            pack += head
            pack += stored
    if len(pack) > len(MAGIC):
        yield _padded(pack)


def read_pack(pack: bytes, wanted: Callable[[bytes, int], bool]) -> Iterator[Part]:
    """The parts in `pack` whose digest and size are `wanted`; others are passed over unopened.

    A malformed pack raises a ValidationError, at the latest when its end is reached.
    """
    if len(pack) > PACK_BYTES:
        raise LimitError(f"a pack is over {PACK_BYTES} bytes")
    if pack[: len(MAGIC)] != MAGIC:
        raise EncodingError("these bytes are not a pack")
    decompressor = _decompressor()
    for record in _parse_records(memoryview(pack)):
        if wanted(record.digest, record.size):
            data = _expand(record, decompressor)
            if len(data) == record.size and sha256(data) != record.digest:
                raise ValidationError("a content in a pack does not have its digest")
            yield Part(record.digest, record.size, record.offset, data)


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


def _records(content: Content, compressor: ZstdCompressor) -> Iterator[tuple[bytes, bytes]]:
    offset = 0
    for data in _cut(content):
        stored = compressor.compress(data)
        if len(stored) >= len(data):
            stored = data
        if content.size <= PART_BYTES:
            head = _WHOLE_HEAD.pack(_WHOLE, content.digest, len(data), len(stored))
        else:
            head = _PART_HEAD.pack(
                _PART, content.digest, content.size, offset, len(data), len(stored)
            )
        offset += len(data)
        yield head, stored


def _cut(content: Content) -> Iterator[bytes]:
    """The content in lengths of PART_BYTES; an empty content is one empty part."""
    buffer = bytearray()
    missing = content.size
    for piece in content.pieces:
        missing -= len(piece)
        if missing < 0:
            break
        buffer += piece
        while len(buffer) >= PART_BYTES:
            yield bytes(buffer[:PART_BYTES])
            del buffer[:PART_BYTES]
    if missing:
        raise TreeError("a content changed its size while it was sent", code="tree_changed")
    if buffer or not content.size:
        yield bytes(buffer)


def _parse_records(pack: memoryview) -> Iterator[_Record]:
    at = len(MAGIC)
    while at < len(pack):
        kind = pack[at]
        if kind == _PADDING:
            if any(pack[at + 1 :]):
                raise EncodingError("the padding of a pack is not zero")
            return
        try:
            record, at = _parse_record(kind, pack, at)
        except struct.error:
            raise EncodingError("a pack is cut short") from None
        yield record


def _parse_record(kind: int, pack: memoryview, at: int) -> tuple[_Record, int]:
    if kind == _WHOLE:
        _, digest, length, stored = _WHOLE_HEAD.unpack_from(pack, at)
        at += _WHOLE_HEAD.size
        size, offset = length, 0
    elif kind == _PART:
        _, digest, size, offset, length, stored = _PART_HEAD.unpack_from(pack, at)
        at += _PART_HEAD.size
        if size <= PART_BYTES or offset % PART_BYTES or offset >= size:
            raise EncodingError("a part in a pack is not where parts are cut")
        if length != min(PART_BYTES, size - offset):
            raise EncodingError("a part in a pack is not as long as parts are cut")
    else:
        raise EncodingError(f"a pack has a record of unknown kind {kind}")
    if length > PART_BYTES:
        raise LimitError(f"a record of a pack is over {PART_BYTES} bytes")
    if stored > length or at + stored > len(pack):
        raise EncodingError("a record of a pack has an impossible length")
    return _Record(digest, size, offset, length, pack[at : at + stored]), at + stored


def _expand(record: _Record, decompressor: ZstdDecompressor) -> bytes:
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
    return ZstdDecompressor(max_window_size=PART_BYTES)


def _missing_zstandard() -> TreeError:
    return TreeError(
        "trees need the package zstandard, which is not installed",
        code="missing_package",
        hint="install it: pip install zstandard",
    )
