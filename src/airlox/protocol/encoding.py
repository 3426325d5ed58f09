"""Text forms of binary values: base64url, base32, and the id types built on them.

Decoding is strict: no padding, only the URL alphabet, zero spare bits, exact length.
Source: docs/protocol.md, "Encodings".
"""

from __future__ import annotations

import base64
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

_URL_ALPHABET: Final = re.compile(r"[A-Za-z0-9_-]*\Z")
_SESSION_ID: Final = re.compile(r"ax_[a-z2-7]{26}\Z")
_LOWER_HEX_256: Final = re.compile(r"[0-9a-f]{64}\Z")


def b64u_encode(data: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def b64u_decode(text: str, size: int | None = None) -> bytes:
    """The bytes of an unpadded base64url string, exactly `size` of them where given.

    Raises EncodingError for padding, other characters, spare bits that are set, other lengths.
    """
    if _URL_ALPHABET.match(text) is None or len(text) % 4 == 1:
        raise EncodingError("not unpadded base64url")
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if b64u_encode(data) != text:
        raise EncodingError("base64url with spare bits set")
    if size is not None and len(data) != size:
        raise EncodingError(f"expected {size} bytes of base64url, got {len(data)}")
    return data


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
