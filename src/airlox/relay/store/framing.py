"""Records in a file: 4-byte length ‖ CRC-32 ‖ bytes. A tail that a crash tore is recognised.

A record is never empty, so that zeros, which a file system may leave at the end of a file after
a loss of power, do not read as one. One that is sound and yet is none that this version writes
was written by another: it is refused, for what it means is not known.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import Final

from airlox.errors import EncodingError, StorageError
from airlox.protocol.encoding import SessionId, parse_session_id
from airlox.relay.store.base import RELAY_LOG

HEAD: Final = struct.Struct(">II")
_APPEND_HEAD: Final = struct.Struct(">c29sIHB")
_LENGTH: Final = struct.Struct(">I")

APPEND: Final = b"A"
PURGE: Final = b"P"
REWRITE: Final = b"R"
"""Like an append, but its entries take the place of all that were before."""


def frame(body: bytes) -> bytes:
    return HEAD.pack(len(body), zlib.crc32(body)) + body


def read_frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every whole record with the offset just behind it, up to the first that is not sound."""
    at = 0
    while len(data) - at > HEAD.size:
        size, checksum = HEAD.unpack_from(data, at)
        start = at + HEAD.size
        body = data[start : start + size]
        if size == 0 or len(body) != size or zlib.crc32(body) != checksum:
            return
        at = start + size
        yield at, body


class Append:
    """A journal record: entries of one session from number `first` on, perhaps with a blob."""

    __slots__ = ("blob", "entries", "first", "name", "sid")

    def __init__(
        self, sid: SessionId, first: int, entries: list[bytes], name: str = "", blob: bytes = b""
    ) -> None:
        self.sid = sid
        self.first = first
        self.entries = entries
        self.name = name
        self.blob = blob

    def encode(self) -> bytes:
        """The blob comes last: `blob_offset` then needs no parsing."""
        name = self.name.encode("ascii")
        head = _APPEND_HEAD.pack(
            APPEND, self.sid.encode("ascii"), self.first, len(self.entries), len(name)
        )
        parts = [head, name]
        for entry in self.entries:
            parts += (_LENGTH.pack(len(entry)), entry)
        parts.append(self.blob)
        return b"".join(parts)

    @staticmethod
    def decode(body: bytes) -> Append:
        """The record in `body`, an append or a rewrite. Raises StorageError."""
        try:
            kind, sid, first, count, name_size = _APPEND_HEAD.unpack_from(body)
            at = _APPEND_HEAD.size + name_size
            name = body[_APPEND_HEAD.size : at].decode("ascii")
            entries = []
            for _ in range(count):
                (size,) = _LENGTH.unpack_from(body, at)
                at += _LENGTH.size
                entries.append(body[at : at + size])
                at += size
        except (struct.error, UnicodeDecodeError):
            raise _unknown_record() from None
        if kind not in (APPEND, REWRITE) or at > len(body):
            raise _unknown_record()
        return Append(_session_of(sid.rstrip(b"\0")), first, entries, name, body[at:])


def encode_purge(sid: SessionId) -> bytes:
    return PURGE + sid.encode("ascii")


def decode_purge(body: bytes) -> SessionId:
    """The session whose end `body` tells of. Raises StorageError."""
    return _session_of(body[1:])


def _session_of(name: bytes) -> SessionId:
    """A session's id, or the relay's own log: both become names of folders."""
    try:
        text = name.decode("ascii")
        return RELAY_LOG if text == RELAY_LOG else parse_session_id(text)
    except (UnicodeDecodeError, EncodingError):
        raise _unknown_record() from None


def _unknown_record() -> StorageError:
    return StorageError(
        "the journal holds a record that this version of the relay does not know",
        code="version",
        hint="use the version that wrote it",
    )


def write_all(fd: int, data: bytes | bytearray) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
