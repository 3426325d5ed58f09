"""Ed25519 verification, each purpose under its own label.

Strict: keys and R of small order, scalars beyond the group order and non-canonical encodings are
refused, so that a signature means one signer and one message.
Source: docs/protocol.md, "Signatures"; docs/decisions/0002-strict-signatures.md.
"""

from __future__ import annotations

from typing import Final

from nacl.bindings import crypto_sign_open
from nacl.exceptions import CryptoError

from airlox.errors import SignatureError
from airlox.protocol.encoding import KEY_BYTES, PublicKey, b64u_decode
from airlox.protocol.keys import signing_input

SIGNATURE_BYTES: Final = 64


class Label:
    """What a signature is for."""

    MANIFEST: Final = "manifest"
    CERT: Final = "cert"
    JOIN: Final = "join"
    ITEM: Final = "item"
    LIVE: Final = "live"
    EPOCH: Final = "epoch"


def verify(public: PublicKey, label: str, message: bytes, signature: str) -> None:
    """Returns when `signature` over `message` is `public`'s. Raises SignatureError."""
    sig = b64u_decode(signature, SIGNATURE_BYTES)
    try:
        crypto_sign_open(sig + signing_input(label, message), b64u_decode(public, KEY_BYTES))
    except (CryptoError, ValueError):
        raise SignatureError(f"{label} signature does not verify") from None
