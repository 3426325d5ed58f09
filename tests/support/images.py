"""Images to send: built chunk by chunk, and taken apart again."""

from __future__ import annotations

import struct
import zlib

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png_chunk(name: bytes, body: bytes, checksum: int | None = None) -> bytes:
    crc = zlib.crc32(name + body) if checksum is None else checksum
    return struct.pack(">L", len(body)) + name + body + struct.pack(">L", crc)


def build_png(
    width: int,
    height: int,
    rows: bytes,
    *,
    depth: int = 8,
    colour: int = 2,
    between: bytes = b"",
    end: bool = True,
) -> bytes:
    """A PNG of `rows` (each with its filter byte); `between` are chunks before the pixels."""
    header = struct.pack(">LLBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = png_chunk(b"IHDR", header) + between + png_chunk(b"IDAT", zlib.compress(rows))
    return PNG_SIGNATURE + chunks + (png_chunk(b"IEND", b"") if end else b"")


def exif(orientation: int) -> bytes:
    """EXIF data that says only how the camera was held."""
    entry = struct.pack(">HHLHH", 0x0112, 3, 1, orientation, 0)
    return b"MM\0*" + struct.pack(">LH", 8, 1) + entry + bytes(4)


def chunk_names(mime: str, data: bytes) -> set[str]:
    """What an image consists of: chunks of PNG and WebP, markers of JPEG; the rest as `junk`."""
    return {"image/png": _png, "image/jpeg": _jpeg, "image/webp": _webp}[mime](data)


def _png(data: bytes) -> set[str]:
    names = set()
    position = len(PNG_SIGNATURE)
    while position < len(data):
        (size,) = struct.unpack_from(">L", data, position)
        names.add(data[position + 4 : position + 8].decode())
        position += 12 + size
    return names


def _webp(data: bytes) -> set[str]:
    names = set()
    position = 12
    while position < len(data):
        (size,) = struct.unpack_from("<L", data, position + 4)
        names.add(data[position : position + 4].decode().strip())
        position += 8 + size + size % 2
    return names


def _jpeg(data: bytes) -> set[str]:
    known = {0xC0: "SOF", 0xC2: "SOF", 0xC4: "DHT", 0xDA: "SOS", 0xDB: "DQT"}
    names = {"SOI"}
    position = 2
    while data[position + 1] != 0xD9:
        marker = data[position + 1]
        (size,) = struct.unpack_from(">H", data, position + 2)
        if marker == 0xE0 and data[position + 4 : position + 9] == b"JFIF\0":
            names.add("JFIF")
        else:
            names.add(known.get(marker, f"{marker:x}"))
        position += 2 + size
        if marker == 0xDA:
            position = data.index(b"\xff\xd9", position)
    names.add("EOI" if position + 2 == len(data) else "junk")
    return names
