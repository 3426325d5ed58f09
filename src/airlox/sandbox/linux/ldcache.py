"""Where libraries lie, by the loader's cache of them (`/etc/ld.so.cache`). Pure.

The format of glibc since 2.2, alone or behind the one before it. A cache that is cut short or
damaged has no libraries.
"""

from __future__ import annotations

import struct

_OLD_MAGIC = b"ld.so-1.7.0"
_OLD_HEADER = struct.Struct("<11sxI")
_OLD_ENTRY_BYTES = 12
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sII")
_HEADER_BYTES = 48
_ENTRY = struct.Struct("<iIIIQ")
_ALIGNMENT = 8
_MOST_ENTRIES = 100_000


def libraries(data: bytes) -> dict[str, str]:
    """The path of each library by its name; the first of one that is there more than once."""
    start = _start(data)
    if not data.startswith(_MAGIC, start) or len(data) < start + _HEADER_BYTES:
        return {}
    count = min(_HEADER.unpack_from(data, start)[1], _MOST_ENTRIES)
    found: dict[str, str] = {}
    for number in range(count):
        at = start + _HEADER_BYTES + number * _ENTRY.size
        if at + _ENTRY.size > len(data):
            return {}
        _, key, value, _, _ = _ENTRY.unpack_from(data, at)
        name, path = _text(data, start + key), _text(data, start + value)
        if name and path.startswith("/"):
            found.setdefault(name, path)
    return found


def _start(data: bytes) -> int:
    """Where the part in the newer format begins."""
    if not data.startswith(_OLD_MAGIC) or len(data) < _OLD_HEADER.size:
        return 0
    count: int = _OLD_HEADER.unpack_from(data)[1]
    end = _OLD_HEADER.size + count * _OLD_ENTRY_BYTES
    return -(-end // _ALIGNMENT) * _ALIGNMENT


def _text(data: bytes, at: int) -> str:
    end = data.find(b"\0", at) if at < len(data) else -1
    return data[at:end].decode("utf-8", "surrogateescape") if end >= 0 else ""
