"""SHA-256 in the forms the wire has: raw, base64url (`Hash`), lower-case hex."""

from __future__ import annotations

import hashlib
from typing import Final

from airlox.protocol.encoding import Hash, b64u_encode


def sha256(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).digest()


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def hash_of(data: bytes) -> Hash:
    return Hash(b64u_encode(sha256(data)))


NOTHING_HEX: Final = sha256_hex(b"")
"""Digest of nothing: what a result carries for a job that could not be read."""
