"""ZIP archives: what one holds, and whether it is safe to unpack. Nothing is written here.

`inspect_zip` reads the central directory and refuses what could hurt whoever unpacks it: paths
that climb or collide, links, encryption, other methods than stored and deflate, bombs.
`read_entry` gives the bytes of an inspected entry and stops where they break their promise.

Rules:
- One reader. Whoever unpacks uses the entries found here, never a second ZIP library: archives
  can be built so that two readers see different files in them.
- The search for the directory is that of the format's other clients, so that all of them see
  the same files: backwards for the end record, forwards for the first record of the directory,
  the next end record when one leads nowhere. Ours is bounded in how often it tries again.
- Sizes are declared by the author; the limits hold for what is declared, and `read_entry` holds
  the data to it.

What this leaves to others: creating files (`tree/unzip.py`), and which paths are safe
(`names.py`). Comments and extra fields that say nothing about name, size or place are ignored.
"""

from __future__ import annotations

import unicodedata
import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Final

from msgspec import Struct as Value

from airlox.errors import LimitError, ValidationError
from airlox.protocol.names import check_archive_path, quote_name

ENTRIES: Final = 10_000
"""Most records of a directory: each costs the reader memory and the unpacker a file."""
ENTRY_BYTES: Final = 512 * 1024 * 1024
TOTAL_BYTES: Final = 1024 * 1024 * 1024
RATIO: Final = 100
"""Most times an entry, or the whole archive, may grow; below `RATIO_FLOOR_BYTES` any."""
RATIO_FLOOR_BYTES: Final = 1024 * 1024

_TRIES: Final = 32
"""End records looked at. Junk after an archive holds one by accident, not dozens."""
_CHUNK_BYTES: Final = 64 * 1024

# Layouts skip (x) what is not read.
_END: Final = Struct("<4s4H4xLH")
_END_SIGNATURE: Final = b"PK\x05\x06"
_LOCATOR_64: Final = Struct("<4sLQL")
_LOCATOR_64_SIGNATURE: Final = b"PK\x06\x07"
_END_64: Final = Struct("<4sQ2H2L2Q8xQ")
_END_64_SIGNATURE: Final = b"PK\x06\x06"
_RECORD: Final = Struct("<4sH2x2H4x3L3H4x2L")
_RECORD_SIGNATURE: Final = b"PK\x01\x02"
_LOCAL: Final = Struct("<4s22x2H")
_LOCAL_SIGNATURE: Final = b"PK\x03\x04"
_FIELD: Final = Struct("<2H")
_UNICODE_PATH: Final = Struct("<BL")

_STORED: Final = 0
_DEFLATED: Final = 8
_ENCRYPTED_FLAG: Final = 0x1
_UTF8_FLAG: Final = 0x800
_UNIX: Final = 3
_TYPE_MASK: Final = 0o170000
_LINK: Final = 0o120000
_FIELD_ZIP64: Final = 0x0001
_FIELD_UNICODE_PATH: Final = 0x7075
_MAX_16: Final = 0xFFFF
_MAX_32: Final = 0xFFFFFFFF


class ZipEntry(Value, frozen=True):
    """One file or directory of an inspected archive.

    `path` is safe and has no slash at its end; `size` and `compressed_size` are in bytes, as
    declared; `data_start` is where the compressed bytes begin in the archive.
    """

    path: str
    size: int
    compressed_size: int
    is_dir: bool
    method: int
    crc32: int
    data_start: int


class _Directory(Value, frozen=True):
    """Where the central directory stands; `shift` is what all offsets are too small by."""

    start: int
    records: int
    shift: int


class _Record(Value, frozen=True):
    """One record of the central directory, decoded and not yet judged."""

    name: str
    flags: int
    method: int
    crc32: int
    size: int
    compressed_size: int
    is_link: bool
    header_start: int


def inspect_zip(data: bytes) -> list[ZipEntry]:
    """The entries of the archive `data`, in its order; of entries of one name, the last.

    Raises ValidationError when it is not a ZIP archive or not a safe one, LimitError when it is
    too large or grows too much.
    """
    records = {record.name: record for record in _read_directory(data)}
    paths: set[str] = set()
    total = 0
    for record in records.values():
        _check_record(record)
        key = unicodedata.normalize("NFC", record.name.removesuffix("/")).lower()
        if key in paths:
            raise _invalid(f"has two entries that can pass for {quote_name(record.name)}")
        paths.add(key)
        total += record.size
    if total > TOTAL_BYTES:
        raise _too_large(f"expands to {total} bytes, more than {TOTAL_BYTES}")
    _check_ratio(total, len(data), "the archive")
    return [_entry(data, record) for record in records.values()]


def read_entry(data: bytes, entry: ZipEntry) -> Iterator[bytes]:
    """The content of `entry`, an entry that `inspect_zip` gave for this `data`, piece by piece.

    Raises ValidationError when it is cut short, corrupt, or larger than declared: what came
    before must then be thrown away.
    """
    packed = memoryview(data)[entry.data_start : entry.data_start + entry.compressed_size]
    chunks = _slices(packed) if entry.method == _STORED else _inflate(packed, entry)
    size = 0
    checksum = 0
    for chunk in chunks:
        size += len(chunk)
        if size > entry.size:
            raise _invalid(f"entry {quote_name(entry.path)} is larger than it declares")
        checksum = zlib.crc32(chunk, checksum)
        yield chunk
    if checksum != entry.crc32:
        raise _invalid(f"entry {quote_name(entry.path)} does not match its checksum")


def _slices(packed: memoryview) -> Iterator[bytes]:
    for start in range(0, len(packed), _CHUNK_BYTES):
        yield bytes(packed[start : start + _CHUNK_BYTES])


def _inflate(packed: memoryview, entry: ZipEntry) -> Iterator[bytes]:
    """Inflate in bounded pieces. What follows the end of the stream is ignored."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for piece in _slices(packed):
            rest = piece
            while rest and not inflater.eof:
                yield inflater.decompress(rest, _CHUNK_BYTES)
                rest = inflater.unconsumed_tail
        while not inflater.eof and (chunk := inflater.decompress(b"", _CHUNK_BYTES)):
            yield chunk
    except zlib.error:
        raise _invalid(f"entry {quote_name(entry.path)} is corrupt") from None
    if not inflater.eof:
        raise _invalid(f"entry {quote_name(entry.path)} is cut short")


def _check_record(record: _Record) -> None:
    name = quote_name(record.name)
    check_archive_path(record.name)
    if record.flags & _ENCRYPTED_FLAG:
        raise _invalid(f"entry {name} is encrypted")
    if record.method not in (_STORED, _DEFLATED):
        raise _invalid(f"entry {name} is compressed by method {record.method}, not deflate")
    if record.is_link:
        raise _invalid(f"entry {name} is a symbolic link")
    if record.size > ENTRY_BYTES:
        raise _too_large(f"entry {name} has {record.size} bytes, more than {ENTRY_BYTES}")
    _check_ratio(record.size, record.compressed_size, f"entry {name}")


def _check_ratio(size: int, compressed_size: int, what: str) -> None:
    if size > RATIO_FLOOR_BYTES and (not compressed_size or size // compressed_size > RATIO):
        raise _too_large(f"{what} expands more than {RATIO} times")


def _entry(data: bytes, record: _Record) -> ZipEntry:
    """The entry of a record. Its local header only tells where the data begins."""
    if not _has(data, record.header_start, _LOCAL, _LOCAL_SIGNATURE):
        raise _invalid(f"entry {quote_name(record.name)} is not where its record says")
    _, name_bytes, extra_bytes = _LOCAL.unpack_from(data, record.header_start)
    return ZipEntry(
        path=record.name.removesuffix("/"),
        size=record.size,
        compressed_size=record.compressed_size,
        is_dir=record.name.endswith("/"),
        method=record.method,
        crc32=record.crc32,
        data_start=record.header_start + _LOCAL.size + name_bytes + extra_bytes,
    )


def _read_directory(data: bytes) -> list[_Record]:
    """The records behind the last end record that leads to a whole directory."""
    first_fault: ValidationError | None = None
    end = len(data)
    for _ in range(_TRIES):
        end = data.rfind(_END_SIGNATURE, 0, end)
        if end < 0:
            break
        try:
            return _read_records(data, _find_directory(data, end))
        except LimitError:
            raise
        except ValidationError as fault:
            first_fault = first_fault or fault
    raise first_fault or _invalid("has no end record: it is not a ZIP archive, or cut short")


def _find_directory(data: bytes, end: int) -> _Directory:
    """The directory that the end record at `end` leads to. Raises ValidationError if none."""
    if not _has(data, end, _END, _END_SIGNATURE):
        raise _invalid("is cut short in its end record")
    _, disk, first_disk, records, all_records, offset, comment_bytes = _END.unpack_from(data, end)
    if end + _END.size + comment_bytes > len(data):
        raise _invalid("is cut short in its comment")
    locator = end - _LOCATOR_64.size
    may_be_64 = all_records == _MAX_16 or offset == _MAX_32
    if may_be_64 and _has(data, locator, _LOCATOR_64, _LOCATOR_64_SIGNATURE):
        return _find_directory_64(data, locator)
    if disk != first_disk:
        raise _invalid("is one part of several")
    if all_records == 0:
        return _Directory(end, records, 0)
    if offset >= end:
        raise _invalid("has its directory after its end")
    # Data before the archive moves everything: the first record found tells by how much.
    start = data.find(_RECORD_SIGNATURE, offset, end)
    if start < 0:
        raise _invalid("has no directory")
    return _Directory(start, records, start - offset)


def _find_directory_64(data: bytes, locator: int) -> _Directory:
    _, first_disk, offset, disks = _LOCATOR_64.unpack_from(data, locator)
    if offset >= locator or disks > 1:
        raise _invalid("has a damaged ZIP64 locator")
    end = offset - 1
    for _ in range(_TRIES):
        end = data.find(_END_64_SIGNATURE, end + 1, locator)
        if end < 0:
            break
        if end + _END_64.size > locator:
            continue
        fixed = _END_64.unpack_from(data, end)
        _, size, made_by, needed, disk, own_first_disk, on_disk, records, start = fixed
        if (
            size + 12 == locator - end
            and needed <= made_by
            and disk == own_first_disk == first_disk
            and on_disk <= records
        ):
            return _Directory(start + end - offset, records, end - offset)
    raise _invalid("has no ZIP64 end record")


def _read_records(data: bytes, directory: _Directory) -> list[_Record]:
    records: list[_Record] = []
    position = directory.start
    for _ in range(directory.records):
        # Counted as they are found: what a stray end record declares must not end the search.
        if len(records) == ENTRIES:
            raise _too_large(f"has {directory.records} entries, more than {ENTRIES}")
        record, position = _read_record(data, position, directory)
        records.append(record)
    return records


def _read_record(data: bytes, position: int, directory: _Directory) -> tuple[_Record, int]:
    """The record at `position`, and the position after it."""
    if not _has(data, position, _RECORD, _RECORD_SIGNATURE):
        raise _invalid("has fewer entries than it declares")
    fixed = _RECORD.unpack_from(data, position)
    _, made_by, flags, method, crc32, compressed_size, size, *lengths, attributes, offset = fixed
    end = position + _RECORD.size + sum(lengths)
    if end > len(data):
        raise _invalid("is cut short in its directory")
    extra_start = position + _RECORD.size + lengths[0]
    extra = data[extra_start : extra_start + lengths[1]]
    size, compressed_size, offset = _read_zip64(extra, [size, compressed_size, offset])
    if offset + directory.shift >= directory.start:
        raise _invalid("has an entry after its directory")
    record = _Record(
        name=_read_name(data[position + _RECORD.size : extra_start], flags, extra),
        flags=flags,
        method=method,
        crc32=crc32,
        size=size,
        compressed_size=compressed_size,
        is_link=made_by >> 8 == _UNIX and attributes >> 16 & _TYPE_MASK == _LINK,
        header_start=offset + directory.shift,
    )
    return record, end


def _read_name(raw: bytes, flags: int, extra: bytes) -> str:
    """A record's name: UTF-8 when it says so or has a field for it, else CP437."""
    name = raw.decode("utf-8", "replace") if flags & _UTF8_FLAG else raw.decode("cp437")
    for kind, body in _fields(extra):
        if kind == _FIELD_UNICODE_PATH and len(body) >= _UNICODE_PATH.size:
            _, checksum = _UNICODE_PATH.unpack_from(body)
            if checksum != zlib.crc32(raw):
                raise _invalid(f"entry {quote_name(name)} has another name in Unicode")
            raw = body[_UNICODE_PATH.size :]
            try:
                name = raw.decode()
            except UnicodeDecodeError:
                raise _invalid(f"entry {quote_name(name)} has a damaged name") from None
    return name


def _read_zip64(extra: bytes, numbers: list[int]) -> list[int]:
    """The sizes and the offset of a record, from its ZIP64 field where 32 bits did not do."""
    for kind, body in _fields(extra):
        if kind != _FIELD_ZIP64:
            continue
        position = 0
        for i, number in enumerate(numbers):
            # A field long enough for all three has all three, needed or not.
            if len(body) >= 24 or number == _MAX_32:
                if position + 8 > len(body):
                    raise _invalid("has an entry with a short ZIP64 field")
                numbers[i] = int.from_bytes(body[position : position + 8], "little")
                position += 8
    return numbers


def _fields(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and body of each whole extra field."""
    position = 0
    while position + _FIELD.size <= len(extra):
        kind, size = _FIELD.unpack_from(extra, position)
        position += _FIELD.size
        if position + size > len(extra):
            return
        yield kind, extra[position : position + size]
        position += size


def _has(data: bytes, position: int, layout: Struct, signature: bytes) -> bool:
    """Whether a whole structure with this signature stands at `position`."""
    return 0 <= position <= len(data) - layout.size and data.startswith(signature, position)


def _invalid(fault: str) -> ValidationError:
    return ValidationError(f"ZIP archive {fault}", code="unsafe_archive")


def _too_large(fault: str) -> LimitError:
    return LimitError(f"ZIP archive {fault}", code="archive_too_large")
