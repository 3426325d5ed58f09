"""The loader's cache of libraries, made up."""

from __future__ import annotations

import struct


def made(entries: list[tuple[str, str]]) -> bytes:
    """A cache in the newer format."""
    strings, table = b"", b""
    start = 48 + 24 * len(entries)
    for name, path in entries:
        key = start + len(strings)
        strings += name.encode() + b"\0"
        value = start + len(strings)
        strings += path.encode() + b"\0"
        table += struct.pack("<iIIIQ", 0x0303, key, value, 0, 0)
    head = struct.pack("<20sII", b"glibc-ld.so.cache1.1", len(entries), len(strings))
    return head.ljust(48, b"\0") + table + strings
