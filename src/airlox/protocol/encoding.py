"""Text forms of binary values: base64url, base32, and the id types built on them.

Decoding is strict: no padding, only the URL alphabet, zero spare bits, exact length.
Source: docs/protocol.md, "Encodings".
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, NewType

from airlox.errors import EncodingError

SessionId = NewType("SessionId", str)
"""`ax_` and 26 base32 characters, from the owner's public key."""
ItemId = NewType("ItemId", str)
"""16 random bytes, base64url (22 characters)."""
PublicKey = NewType("PublicKey", str)
"""An Ed25519 public key, base64url of 32 bytes."""
Hash = NewType("Hash", str)
"""A SHA-256 digest, base64url of 32 bytes."""

ITEM_ID_BYTES: Final = 16
KEY_BYTES: Final = 32

_TO_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_SESSION_ID: Final = re.compile(r"ax_[a-z2-7]{26}\Z")
_LOWER_HEX_256: Final = re.compile(r"[0-9a-f]{64}\Z")


def b64u_encode(data: bytes) -> str:
    """Base64url without padding."""
    return _encode(data).decode("ascii")


def b64u_decode(text: str, size: int | None = None) -> bytes:
    """The bytes of an unpadded base64url string, exactly `size` of them where given.

    Raises EncodingError for padding, other characters, spare bits that are set, other lengths.
    """
    try:
        raw = text.encode("ascii")
        data = binascii.a2b_base64(raw.translate(_TO_STANDARD) + b"=" * (-len(raw) % 4))
    except ValueError:
        raise EncodingError("not unpadded base64url") from None
    # The decoder overlooks a lot; there is but one form, so whatever it overlooked differs.
    if _encode(data) != raw:
        raise EncodingError("not unpadded base64url with zero spare bits")
    if size is not None and len(data) != size:
        raise EncodingError(f"expected {size} bytes of base64url, got {len(data)}")
    return data


def _encode(data: bytes) -> bytes:
    return binascii.b2a_base64(data, newline=False).rstrip(b"=").translate(_TO_URL)


def base32_lower(data: bytes) -> str:
    """Lower-case base32 without padding."""
    return base64.b32encode(data).rstrip(b"=").decode("ascii").lower()


def parse_session_id(text: str) -> SessionId:
    """Checks characters and length; the manifest settles whether the id is real."""
    if _SESSION_ID.match(text) is None:
        raise EncodingError("malformed session id")
    return SessionId(text)


def parse_item_id(text: str) -> ItemId:
    b64u_decode(text, ITEM_ID_BYTES)
    return ItemId(text)


def new_item_id(random_bytes: bytes) -> ItemId:
    """The id made of 16 random bytes."""
    if len(random_bytes) != ITEM_ID_BYTES:
        raise EncodingError(f"an item id is made of {ITEM_ID_BYTES} random bytes")
    return ItemId(b64u_encode(random_bytes))


def parse_hash(text: str) -> Hash:
    b64u_decode(text, KEY_BYTES)
    return Hash(text)


def is_hex_digest(text: str) -> bool:
    """Whether `text` is 64 lower-case hex digits, the form of the hashes in a result."""
    return _LOWER_HEX_256.match(text) is not None
