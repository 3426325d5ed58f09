"""Canonical JSON: the one byte form of everything that is signed or hashed.

UTF-8, no white space, keys sorted, integers only, the shortest escapes. A reader decodes with a
strict schema, encodes again and compares: whatever is not in canonical form differs somewhere
(repeated keys, spaces, other escapes, `-0`, an explicit null for a left-out field).
Source: docs/protocol.md, "Encodings".
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec

from airlox.errors import EncodingError
from airlox.protocol.encoding import b64u_decode

T = TypeVar("T")

MAX_INTEGER: Final = 2**53 - 1
"""Integers beyond ±(2^53−1) are not exact in every reader and are refused."""

U53 = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
TimeMs = U53
"""Milliseconds since the Unix epoch."""


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every signed or sealed JSON object: immutable, no unknown field.

    A field of type `X | msgspec.UnsetType` is left out of the canonical form when it is unset;
    a field of type `X | None` is always there, as null.
    """


_FAULT_CHARS: Final = 200
_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def encode(value: object) -> bytes:
    """Canonical bytes of a struct, or of plain JSON values."""
    try:
        return _ENCODER.encode(value)
    except (UnicodeEncodeError, TypeError, OverflowError) as error:
        raise EncodingError("value has no canonical form") from error


def decode(document: bytes | str, type_: type[T], what: str) -> T:
    """The value of a canonical document named `what` in errors. Raises EncodingError."""
    value = decode_loose(document, type_, what)
    data = document.encode() if isinstance(document, str) else document
    if encode(value) != data:
        raise EncodingError(f"{what} is not canonical JSON")
    return value


def decode_loose(document: bytes | str, type_: type[T], what: str) -> T:
    """Like `decode`, for unsigned JSON: any spacing and key order. Raises EncodingError."""
    decoder = _DECODERS.get(type_)
    if decoder is None:
        decoder = _DECODERS[type_] = msgspec.json.Decoder(type_, strict=True)
    try:
        data = document.encode() if isinstance(document, str) else document
        value: T = decoder.decode(data)
    except msgspec.ValidationError as error:
        raise EncodingError(f"{what}: {_one_line(str(error))}") from None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise EncodingError(f"{what} is not JSON") from None
    return value


def _one_line(text: str) -> str:
    """A fault fit for a message: the library quotes names and values of the document in it."""
    return "".join(c if c.isprintable() else "?" for c in text[:_FAULT_CHARS])


class Signed(Wire, frozen=True, kw_only=True):
    """Mixin of signed documents: `sig` is base64url of the 64 signature bytes."""

    sig: str

    def __post_init__(self) -> None:
        b64u_decode(self.sig, 64)
