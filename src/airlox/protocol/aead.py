"""AES-256-GCM over whole byte strings: nonce ‖ ciphertext ‖ tag.

Keys are used for one item, one pack, or one run of numbered segments, so that a nonce never
repeats under a key. Source: docs/protocol.md, "Items".
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from airlox.errors import DecryptError, EncodingError

NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16


def seal(key: bytes, nonce: bytes, plain: bytes, aad: bytes) -> bytes:
    """Nonce ‖ ciphertext ‖ tag."""
    if len(nonce) != NONCE_BYTES:
        raise EncodingError(f"a nonce has {NONCE_BYTES} bytes")
    return nonce + AESGCM(key).encrypt(nonce, plain, aad)


def open_sealed(key: bytes, sealed: bytes, aad: bytes, what: str) -> bytes:
    """The plain bytes, or DecryptError naming `what`."""
    if len(key) != 32:
        raise EncodingError("a key has 32 bytes")
    if len(sealed) < NONCE_BYTES + TAG_BYTES:
        raise EncodingError(f"{what} is too short to be sealed")
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], aad)
    except InvalidTag:
        raise DecryptError(f"{what} does not open under its key") from None
