"""Keys in boxes: 32 bytes sealed to somebody's key, or under a secret.

To a key: X25519 of the sealer's one-time key and the Ed25519 key of the recipient in its Montgomery
form, as RFC 7748 and libsodium have it; age does the same for SSH keys. Each box has an AES-256-GCM
key of its own, from the shared secret and an `info` that names purpose, place and both keys, so
that the nonce may be zero and no box can stand for another. A box is ciphertext ‖ tag.
Source: docs/protocol.md, "Epochs".
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from nacl.bindings import (
    crypto_scalarmult,
    crypto_scalarmult_base,
    crypto_sign_ed25519_pk_to_curve25519,
    crypto_sign_ed25519_sk_to_curve25519,
    crypto_sign_seed_keypair,
)
from nacl.exceptions import CryptoError

from airlox.errors import DecryptError, ValidationError
from airlox.protocol import aead
from airlox.protocol.encoding import KEY_BYTES, PublicKey, b64u_decode, b64u_encode
from airlox.protocol.keys import CONTEXT, SigningKey, hkdf

BOX_BYTES: Final = KEY_BYTES + aead.TAG_BYTES
_NONCE: Final = bytes(aead.NONCE_BYTES)
_FAULTS: Final = (CryptoError, RuntimeError)
"""What the library raises for points of small order and points beside the main subgroup."""


def check_box(box: str) -> str:
    """Raises EncodingError unless the text has the form of a box."""
    b64u_decode(box, BOX_BYTES)
    return box


@lru_cache(maxsize=4096)
def can_receive(public: PublicKey) -> bool:
    """Whether anything can be sealed to a key. Nobody makes one by accident to which nothing can;
    whoever makes one by intent must not keep others from sealing to the rest."""
    try:
        crypto_sign_ed25519_pk_to_curve25519(b64u_decode(public, KEY_BYTES))
    except _FAULTS:
        return False
    return True


def one_time_public(secret: bytes) -> bytes:
    """The X25519 public key of 32 secret bytes."""
    public: bytes = crypto_scalarmult_base(secret)
    return public


def seal_to(public: PublicKey, secret: bytes, info: bytes, plain: bytes) -> str:
    """Seals 32 bytes to `public` with the one-time key `secret`.

    Raises ValidationError for a key of which `can_receive` is False.
    """
    if not can_receive(public):
        raise ValidationError("nothing can be sealed to this key")
    recipient = b64u_decode(public, KEY_BYTES)
    shared = crypto_scalarmult(secret, crypto_sign_ed25519_pk_to_curve25519(recipient))
    return seal_under(shared, info + one_time_public(secret) + recipient, plain)


def open_with(key: SigningKey, one_time: bytes, info: bytes, box: str, what: str) -> bytes:
    """What was sealed to `key`; `one_time` is the sealer's public key. Raises DecryptError."""
    public, secret = crypto_sign_seed_keypair(key.seed)
    try:
        shared = crypto_scalarmult(crypto_sign_ed25519_sk_to_curve25519(secret), one_time)
    except _FAULTS:
        raise DecryptError(f"{what} does not open") from None
    return open_under(shared, info + one_time + public, box, what)


def seal_under(secret: bytes, info: bytes, plain: bytes) -> str:
    """Seals 32 bytes under a secret that with this `info` seals nothing else."""
    sealed = aead.seal(hkdf(secret, CONTEXT, info), _NONCE, plain, info)
    return b64u_encode(sealed[aead.NONCE_BYTES :])


def open_under(secret: bytes, info: bytes, box: str, what: str) -> bytes:
    """What was sealed under a secret. Raises DecryptError."""
    sealed = _NONCE + b64u_decode(box, BOX_BYTES)
    return aead.open_sealed(hkdf(secret, CONTEXT, info), sealed, info, what)
