"""Stamps: how a file looked to the file system, remembered beside an index. Pure.

A file whose size and stamp are as remembered has the remembered content: the change time cannot
be set by an ordinary user. Whoever remembers must see to it that no stamp is younger than the
clock tick in which it was taken (`scan.py` forgets such files, `apply.py` waits the tick out).

Bytes of a stamped index: u32 length ‖ index ‖ per entry u64 inode, i64 mtime, i64 ctime (ns).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from airlox.errors import EncodingError, ValidationError
from airlox.tree.index import TreeIndex, parse_index

if TYPE_CHECKING:
    from os import stat_result

_LENGTH: Final = struct.Struct(">I")
_STAMP: Final = struct.Struct(">Qqq")


class Stamp(NamedTuple):
    """Inode number, modification time and change time, both in nanoseconds."""

    inode: int
    mtime_ns: int
    ctime_ns: int


NEVER: Final = Stamp(0, 0, 0)
"""The stamp of a file about which nothing is known; no file has it."""


def stamp_of(found: stat_result) -> Stamp:
    return Stamp(found.st_ino, found.st_mtime_ns, found.st_ctime_ns)


def encode_stamped(index: TreeIndex, stamps: tuple[Stamp, ...]) -> bytes:
    if len(stamps) != len(index.entries):
        raise ValidationError("an index and its stamps differ in length")
    encoded = index.encode()
    return b"".join((_LENGTH.pack(len(encoded)), encoded, *(_STAMP.pack(*s) for s in stamps)))


def parse_stamped(data: bytes) -> tuple[TreeIndex, tuple[Stamp, ...], bytes]:
    """Index, its stamps, and the bytes that follow."""
    if len(data) < _LENGTH.size:
        raise EncodingError("a stamped index is cut short")
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + length
    index = parse_index(data[_LENGTH.size : end])
    after = end + len(index.entries) * _STAMP.size
    if after > len(data):
        raise EncodingError("a stamped index is cut short")
    stamps = tuple(Stamp(*fields) for fields in _STAMP.iter_unpack(data[end:after]))
    return index, stamps, data[after:]
