"""Files on their way into a session: which type they are, and images made anew.

An image leaves only re-encoded: decoded and encoded again in its own format, so that where it was
taken, with what and by whom stays home, and nothing rides along behind its pixels. What its
header claims is checked before a byte of it is decoded; the image library is imported then.

What this leaves to others: which extension goes with which type (`protocol/policy.py`), sealing
and posting (`session.py`), and distrust of images that others sent: they may not have done this.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from msgspec import Struct

from airlox.errors import AirloxError, LimitError, PolicyError, UsageError, ValidationError
from airlox.protocol.names import check_safe_name, quote_name
from airlox.protocol.payload import File
from airlox.protocol.policy import MIME_OF, check_file, image_mime
from airlox.safefs import read_bounded

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SIDE: Final = 16384
"""Largest width and height of an image, in pixels."""
IMAGE_BYTES: Final = 128 * 1024 * 1024
"""Most bytes of a decoded image, at 4 or more to a pixel: what decoding may cost in memory."""

_JPEG_QUALITY: Final = 90
_JPEG_END: Final = b"\xff\xd9"
_JPEG_STANDALONE: Final = frozenset((0x01, *range(0xD0, 0xD9)))
_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_COMMON_FRAMES: Final = frozenset((0xC0, 0xC1, 0xC2))
"""Baseline, extended and progressive; no reader in use knows the arithmetic and lossless ones."""
_JPEG_SCAN: Final = 0xDA
_PNG_CHANNELS: Final = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PNG_DEPTHS: Final = (1, 2, 4, 8, 16)
_PNG_GRAY: Final = 0
_PNG_PALETTE: Final = 3
_PNG_SIGNATURE_BYTES: Final = 8
_ORIENTATION: Final = 0x0112


class Attachment(Struct, frozen=True):
    """A file ready to be sent: checked, and if it is an image, made anew."""

    name: str
    subkind: str
    mime: str
    body: bytes


class _Claim(Struct, frozen=True):
    """What an image's header says of it, and the bytes to be decoded."""

    width: int
    height: int
    pixel_bytes: int
    data: bytes


def classify(name: str) -> tuple[str, str]:
    """Subkind and MIME type of the file `name`, by its extension in any case.

    Raises UsageError for every other extension.
    """
    extension = os.path.splitext(name)[1].lower()
    for subkind, mimes in MIME_OF.items():
        if extension in mimes:
            return subkind, mimes[extension]
    known = " ".join(extension for mimes in MIME_OF.values() for extension in mimes)
    raise UsageError(
        f"{quote_name(name)} is of no type that can be sent",
        code="file_type",
        hint=f"put it into a .zip archive; files sent as they are: {known}",
    )


def load_attachment(path: str | os.PathLike[str], limit_bytes: int) -> Attachment:
    """Read the file at `path`, of at most `limit_bytes`, and make it ready to be sent.

    Raises UsageError for an unknown type, StorageError when it cannot be read, PolicyError or
    ValidationError when it is not what its name says or receivers would refuse it.
    """
    name = Path(path).name
    check_safe_name(name)
    subkind, mime = classify(name)
    # A link that a person names is followed; what it leads to must be a plain file.
    body = read_bounded(Path(path).resolve(), limit_bytes)
    if subkind == "image":
        found, body = sanitize_image(body)
        if found != mime:
            raise PolicyError(
                f"{quote_name(name)} is of type {found}",
                code="file_type",
                hint="give it the extension of its type",
            )
        if len(body) > limit_bytes:
            raise LimitError(
                f"{quote_name(name)} takes {len(body)} bytes encoded anew, not {limit_bytes}",
                hint="make the image smaller",
            )
    check_file(subkind, File(mime=mime, name=name), body)
    return Attachment(name, subkind, mime, body)


def sanitize_image(data: bytes) -> tuple[str, bytes]:
    """MIME type and new bytes of a PNG, JPEG or WebP image.

    Turned as its EXIF data says, without metadata, only the first frame. PNG and WebP keep their
    pixels (of colour with 16 bits, the upper 8), JPEG loses a little. A JPEG that is cut short
    is filled up.

    Raises ValidationError when it is none of the three or damaged, LimitError when it is too
    large, UsageError when the image library is not installed.
    """
    mime = image_mime(data)
    if mime is None:
        raise _invalid("is neither PNG, JPEG nor WebP")
    read_claim, save = _FORMATS[mime]
    claim = read_claim(data)
    _check_size(claim)
    return mime, save(_decode(claim, mime.removeprefix("image/")))


def load_image_formats() -> None:
    """Decode and encode an image of each kind, so that nothing has to be loaded later: for a
    process that then gives up opening files. Raises ImportError without the image library."""
    import warnings

    from PIL import Image

    warnings.simplefilter("ignore")
    for form in ("PNG", "JPEG", "WEBP"):
        for mode in ("RGB", "L") if form == "JPEG" else ("RGB", "RGBA", "L", "P", "I;16"):
            made = BytesIO()
            exif = Image.Exif()
            exif[0x0112] = 6
            try:
                Image.new(mode, (8, 8)).save(made, form, exif=exif)
                sanitize_image(made.getvalue())
                sanitize_image(made.getvalue()[:-20])
            except (AirloxError, OSError):
                continue


def _check_size(claim: _Claim) -> None:
    width, height = claim.width, claim.height
    if not (1 <= width <= IMAGE_SIDE and 1 <= height <= IMAGE_SIDE):
        raise LimitError(f"image of {width} x {height} pixels, not 1 to {IMAGE_SIDE} a side")
    if width * height * max(claim.pixel_bytes, 4) > IMAGE_BYTES:
        raise LimitError(f"image of {width} x {height} pixels exceeds {IMAGE_BYTES} bytes decoded")


def _decode(claim: _Claim, form: str) -> Image:
    """The first frame, upright."""
    try:
        from PIL import Image
    except ImportError:
        raise UsageError(
            "images cannot be sent: Pillow is not installed",
            code="images_missing",
            hint="pip install 'airlox[images]'",
        ) from None
    try:
        with Image.open(BytesIO(claim.data), formats=[form]) as image:
            if image.size != (claim.width, claim.height):
                raise _invalid("contradicts itself about its size")
            image.load()
            return _turn(image, _orientation(image))
    except (ValidationError, MemoryError):
        raise
    except Exception as error:
        # The decoders raise nearly anything on hostile bytes.
        raise _invalid(f"cannot be decoded ({type(error).__name__})") from None


def _orientation(image: Image) -> int:
    """How the camera was held: 1 to 8, as EXIF has it; 1 when it does not say."""
    from PIL.Image import Exif

    exif = Exif()
    try:
        exif.load(image.info.get("exif", b""))
        return int(exif.get(_ORIENTATION, 1))
    except Exception:
        # Damaged metadata is metadata: it goes, and says nothing.
        return 1


def _turn(image: Image, orientation: int) -> Image:
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    turn = turns.get(orientation)
    return image.copy() if turn is None else image.transpose(turn)


def _save_png(image: Image) -> bytes:
    alpha = "A" if "transparency" in image.info else ""
    if image.mode in ("1", "L"):
        image = image.convert("L" + alpha)
    elif image.mode == "P" or alpha:
        image = image.convert("RGB" + alpha)
    return _save(image, "png")


def _save_jpeg(image: Image) -> bytes:
    return _save(image.convert("RGB"), "jpeg", quality=_JPEG_QUALITY, subsampling=0)


def _save_webp(image: Image) -> bytes:
    return _save(image.convert("RGBA"), "webp", lossless=True, exact=True)


def _save(image: Image, form: str, **options: Any) -> bytes:
    # What a decoder remembers of the file, encoders write into the new one.
    image.info.clear()
    out = BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def _read_png(data: bytes) -> _Claim:
    """The claim of a PNG. Decoded is only what makes its pixels; all of it must be whole."""
    header = b""
    kept = [data[:_PNG_SIGNATURE_BYTES]]
    names = set()
    for name, body in _png_chunks(data):
        if not header:
            if name != b"IHDR" or len(body) != 13 or body[8] not in _PNG_DEPTHS:
                raise _invalid("has no PNG header")
            header = body
        elif name == b"tRNS":
            body = _png_transparency(header, body)
        elif name not in (b"PLTE", b"IDAT", b"eXIf", b"IEND"):
            continue
        if body or name == b"IEND":
            names.add(name)
            kept.append(_png_chunk(name, body))
    if b"IEND" not in names:
        raise _invalid("is cut short")
    if header[9] == _PNG_PALETTE and b"PLTE" not in names:
        raise _invalid("has no palette")
    pixel_bytes = _PNG_CHANNELS.get(header[9], 4) * (2 if header[8] == 16 else 1)
    return _Claim(_big(header, 0, 4), _big(header, 4, 4), pixel_bytes, b"".join(kept))


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and body of each whole chunk up to the end; of those that make pixels, checked."""
    position = _PNG_SIGNATURE_BYTES
    while position + 8 <= len(data):
        size = _big(data, position, 4)
        name = data[position + 4 : position + 8]
        body = data[position + 8 : position + 8 + size]
        position += 12 + size
        # Not even the checksum of the last one need be there.
        if position > len(data) and name != b"IEND":
            return
        if name in (b"IHDR", b"PLTE", b"IDAT") and _big(data, position - 4, 4) != crc32(
            name + body
        ):
            raise _invalid("does not match its checksum")
        yield name, body
        if name == b"IEND":
            return


def _png_transparency(header: bytes, body: bytes) -> bytes:
    """The transparent colour as the decoder takes it: of 8 bits; with 16 it has none."""
    depth, colour = header[8], header[9]
    if depth == 16:
        return b""
    if colour == _PNG_GRAY and depth < 8:
        return (_big(body, 0, 2) * 255 // ((1 << depth) - 1)).to_bytes(4, "big")[-2:]
    return body


def _png_chunk(name: bytes, body: bytes) -> bytes:
    checksum = crc32(name + body).to_bytes(4, "big")
    return len(body).to_bytes(4, "big") + name + body + checksum


def _read_jpeg(data: bytes) -> _Claim:
    """The claim of a JPEG: of the one frame before the first scan."""
    sizes = []
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == _JPEG_SCAN:
            break
        if marker == 0xFF:
            position += 1
            continue
        if marker in _JPEG_STANDALONE:
            position += 2
            continue
        if marker in _JPEG_FRAMES:
            if marker not in _JPEG_COMMON_FRAMES:
                raise _invalid("is of a rare kind of JPEG")
            sizes.append((_big(data, position + 7, 2), _big(data, position + 5, 2)))
        position += 2 + _big(data, position + 2, 2)
    if len(sizes) != 1:
        raise _invalid("has no one JPEG frame")
    # Gives a file that is cut short its end; after a whole one it is trailing data.
    return _Claim(*sizes[0], 4, data + _JPEG_END)


def _read_webp(data: bytes) -> _Claim:
    """The claim of a WebP, from whichever chunk is the first."""
    chunk = data[12:16]
    if len(data) >= 30 and chunk == b"VP8X":
        return _Claim(_little(data, 24, 3) + 1, _little(data, 27, 3) + 1, 4, data)
    if len(data) >= 30 and chunk == b"VP8 ":
        return _Claim(_little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF, 4, data)
    if len(data) >= 25 and chunk == b"VP8L":
        bits = _little(data, 21, 4)
        return _Claim((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, 4, data)
    raise _invalid("has no WebP header")


def _big(data: bytes, position: int, size: int) -> int:
    return int.from_bytes(data[position : position + size], "big")


def _little(data: bytes, position: int, size: int) -> int:
    return int.from_bytes(data[position : position + size], "little")


def _invalid(fault: str) -> ValidationError:
    return ValidationError(f"image {fault}", code="bad_image")


_FORMATS: Final[dict[str, tuple[Callable[[bytes], _Claim], Callable[[Image], bytes]]]] = {
    "image/png": (_read_png, _save_png),
    "image/jpeg": (_read_jpeg, _save_jpeg),
    "image/webp": (_read_webp, _save_webp),
}
