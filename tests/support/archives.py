"""ZIP archives of any shape, whole and broken: what no archiver would write."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

LOCAL_SIGNATURE = b"PK\x03\x04"
RECORD_SIGNATURE = b"PK\x01\x02"
END_SIGNATURE = b"PK\x05\x06"
MAX_32 = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class Member:
    """One entry. What is None is what an honest archiver would write."""

    name: str | bytes
    content: bytes = b"x"
    method: int = 8
    flags: int | None = None
    packed: bytes | None = None
    size: int | None = None
    compressed_size: int | None = None
    crc32: int | None = None
    made_by: int = 0x0314
    mode: int = 0o100644
    extra: bytes = b""
    local_extra: bytes = b""
    local_name: bytes | None = None
    local_signature: bytes = LOCAL_SIGNATURE
    offset: int | None = None

    @property
    def raw_name(self) -> bytes:
        return self.name if isinstance(self.name, bytes) else self.name.encode()

    @property
    def bits(self) -> int:
        is_text = isinstance(self.name, str) and not self.name.isascii()
        return (0x800 if is_text else 0) if self.flags is None else self.flags

    @property
    def data(self) -> bytes:
        if self.packed is not None:
            return self.packed
        if self.method != 8:
            return self.content
        deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
        return deflater.compress(self.content) + deflater.flush()

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Checksum, compressed size, size."""
        checksum = zlib.crc32(self.content) if self.crc32 is None else self.crc32
        packed = len(self.data) if self.compressed_size is None else self.compressed_size
        return checksum, packed, len(self.content) if self.size is None else self.size


def build_zip(
    *members: Member,
    before: bytes = b"",
    between: bytes = b"",
    after: bytes = b"",
    comment: bytes = b"",
    comment_bytes: int | None = None,
    records: int | None = None,
    all_records: int | None = None,
    disks: tuple[int, int] = (0, 0),
    directory_offset: int | None = None,
    zip64: bool = False,
    zip64_versions: tuple[int, int] = (45, 45),
) -> bytes:
    """An archive of `members`. Its offsets do not count the bytes `before` it."""
    out = bytearray(before)
    offsets = []
    for member in members:
        offsets.append(len(out) - len(before))
        out += _local(member)
    out += between
    start = len(out)
    for member, offset in zip(members, offsets, strict=True):
        out += _record(member, offset if member.offset is None else member.offset)
    size = len(out) - start
    count = len(members) if records is None else records
    offset = start - len(before) if directory_offset is None else directory_offset
    if zip64:
        end = len(out) - len(before)
        numbers = (*zip64_versions, *disks, count, count, size, offset)
        out += b"PK\x06\x06" + struct.pack("<Q2H2L4Q", 44, *numbers)
        out += b"PK\x06\x07" + struct.pack("<LQL", disks[1], end, 1)
        count, size, offset = 0xFFFF, MAX_32, MAX_32
    total = count if all_records is None else all_records
    length = len(comment) if comment_bytes is None else comment_bytes
    out += END_SIGNATURE + struct.pack("<4H2LH", *disks, count, total, size, offset, length)
    return bytes(out + comment + after)


def zip64_field(*numbers: int) -> bytes:
    return field(0x0001, struct.pack(f"<{len(numbers)}Q", *numbers))


def unicode_path_field(raw_name: bytes, name: bytes) -> bytes:
    return field(0x7075, struct.pack("<BL", 1, zlib.crc32(raw_name)) + name)


def field(kind: int, body: bytes) -> bytes:
    return struct.pack("<2H", kind, len(body)) + body


def _local(member: Member) -> bytes:
    checksum, packed, size = member.sizes
    name = member.raw_name if member.local_name is None else member.local_name
    numbers = (20, member.bits, member.method, 0, 33, checksum, packed & MAX_32, size & MAX_32)
    lengths = (len(name), len(member.local_extra))
    header = member.local_signature + struct.pack("<5H3L2H", *numbers, *lengths)
    return header + name + member.local_extra + member.data


def _record(member: Member, offset: int) -> bytes:
    name = member.raw_name
    numbers = (member.made_by, 20, member.bits, member.method, 0, 33, *member.sizes)
    lengths = (len(name), len(member.extra), 0)
    rest = (0, 0, member.mode << 16, offset)
    header = RECORD_SIGNATURE + struct.pack("<6H3L5H2L", *numbers, *lengths, *rest)
    return header + name + member.extra
