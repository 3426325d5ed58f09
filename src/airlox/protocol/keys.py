"""Keys: what they are and how each is derived, every derivation context in one table.

The owner's 32-byte seed is the root of a session: role keys and the session key derive from it
with HKDF-SHA256, so one link recovers everything. Each participant also makes a random Ed25519
key of its own, which signs its join and its items; role keys only sign certificates.
Source: docs/protocol.md, "Keys and ids".
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum
from functools import lru_cache
from typing import Final

import msgspec
from nacl.bindings import crypto_sign, crypto_sign_seed_keypair

from airlox.errors import EncodingError
from airlox.protocol.digest import sha256, sha256_hex
from airlox.protocol.encoding import (
    KEY_BYTES,
    ItemId,
    PublicKey,
    SessionId,
    b64u_decode,
    b64u_encode,
    base32_lower,
)

CONTEXT: Final = b"airlox/v1"


class Role(StrEnum):
    """What a participant may do; see policy.py."""

    OWNER = "owner"
    SENDER = "sender"
    OBSERVER = "observer"
    RUNNER = "runner"


MEMBER_ROLES: Final = (Role.SENDER, Role.OBSERVER, Role.RUNNER)
"""Roles whose keys derive from the owner seed; the owner's role key is the seed itself."""


class Info:
    """The `info` of every HKDF derivation. Distinct strings separate the purposes."""

    SESSION_KEY: Final = b"session-key"
    ROLE: Final = b"role:"
    ITEM_KEY: Final = b"airlox/v1/item-key\x00"
    LIVE: Final = b"airlox/v1/live\x00"
    PACK: Final = b"airlox/v1/pack\x00"
    LACK: Final = b"airlox/v1/lack\x00"
    CHUNK_SEED: Final = b"airlox/v1/chunk-seed\x00"
    TRANSFER_KEY: Final = b"airlox/v1/transfer-key\x00"
    TRANSFER_VERIFIER: Final = b"airlox/v1/transfer-verifier\x00"
    PARKED_KEY: Final = b"airlox/v1/parked-key\x00"
    PARKED_ACCESS: Final = b"airlox/v1/parked-access\x00"
    EPOCH_KEY: Final = b"airlox/v1/epoch-key\x00"
    EPOCH_ROLES: Final = b"airlox/v1/epoch-roles\x00"
    EPOCH_ONE_TIME: Final = b"airlox/v1/epoch-one-time\x00"
    EPOCH_BOX: Final = b"airlox/v1/epoch-box\x00"


def hkdf(ikm: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869), one output block of 32 bytes."""
    prk = hmac.digest(salt, ikm, hashlib.sha256)
    return hmac.digest(prk, info + b"\x01", hashlib.sha256)


class SigningKey(msgspec.Struct, frozen=True):
    """An Ed25519 key pair. The seed never shows in `repr`."""

    seed: bytes
    public: PublicKey
    _secret: bytes

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public!r})"

    @classmethod
    def from_seed(cls, seed: bytes) -> SigningKey:
        """Raises EncodingError unless the seed has 32 bytes."""
        if len(seed) != KEY_BYTES:
            raise EncodingError("an Ed25519 seed has 32 bytes")
        public, secret = crypto_sign_seed_keypair(seed)
        return cls(seed, PublicKey(b64u_encode(public)), secret)

    def sign(self, label: str, message: bytes) -> str:
        """Signature under the context of `label` (see signature.py), base64url."""
        signed: bytes = crypto_sign(signing_input(label, message), self._secret)
        return b64u_encode(signed[:64])


def signing_input(label: str, message: bytes) -> bytes:
    """What is signed: the label keeps a signature from being used for another purpose."""
    return CONTEXT + b"/" + label.encode("ascii") + b"\x00" + message


class SessionKeys(msgspec.Struct, frozen=True):
    """Everything that derives from an owner seed. Secrets never show in `repr`."""

    session_id: SessionId
    owner: SigningKey
    session_key: bytes
    role_seeds: dict[Role, bytes]

    def __repr__(self) -> str:
        return f"SessionKeys(session_id={self.session_id!r}, owner={self.owner!r})"

    @classmethod
    def derive(cls, owner_seed: bytes) -> SessionKeys:
        owner = SigningKey.from_seed(owner_seed)
        return cls(
            session_id=session_id_of(owner.public),
            owner=owner,
            session_key=hkdf(owner_seed, CONTEXT, Info.SESSION_KEY),
            role_seeds={
                role: hkdf(owner_seed, CONTEXT, Info.ROLE + role.encode()) for role in MEMBER_ROLES
            },
        )

    def role_seed(self, role: Role) -> bytes:
        return self.owner.seed if role is Role.OWNER else self.role_seeds[role]


def session_id_of(owner: PublicKey) -> SessionId:
    raw = b64u_decode(owner, KEY_BYTES)
    return SessionId("ax_" + base32_lower(sha256(raw)[:16]))


def item_key(session_key: bytes, session_id: SessionId, item: ItemId) -> bytes:
    """The AES-256 key of one item."""
    if len(session_key) != KEY_BYTES:
        raise EncodingError(f"a session key has {KEY_BYTES} bytes")
    return hkdf(session_key, session_id.encode(), Info.ITEM_KEY + item.encode())


def live_key(
    session_key: bytes,
    session_id: SessionId,
    *,
    job: ItemId,
    job_blob: bytes,
    runner: PublicKey,
    random: bytes,
) -> bytes:
    """The key of one job's live output: bound to the job, its bytes, the runner, and 16 random
    bytes of that runner, so that a relay that hands one job to two runners gets two keys."""
    info = Info.LIVE + job.encode() + job_blob + runner.encode() + random
    return hkdf(session_key, session_id.encode(), info)


def pack_key(session_key: bytes, session_id: SessionId, *, job: ItemId, number: int) -> bytes:
    """The key of one pack of a job's tree."""
    info = Info.PACK + job.encode() + number.to_bytes(4, "big")
    return hkdf(session_key, session_id.encode(), info)


def lack_key(session_key: bytes, session_id: SessionId, *, job: ItemId, runner: PublicKey) -> bytes:
    """The key under which a runner names what it lacks of a job's tree."""
    return hkdf(session_key, session_id.encode(), Info.LACK + job.encode() + runner.encode())


def chunk_seed(session_key: bytes, session_id: SessionId) -> int:
    """Where contents of this session's trees are cut: a number below 2^63."""
    return int.from_bytes(hkdf(session_key, session_id.encode(), Info.CHUNK_SEED)[:8], "big") >> 1


def fingerprint(public: PublicKey) -> str:
    """16 hex characters by which people compare a key."""
    return sha256_hex(b64u_decode(parse_public_key(public), KEY_BYTES))[:16]


def is_fingerprint(word: str) -> bool:
    """Whether a word has the form of a fingerprint, which a name may have too."""
    return len(word) == 16 and set(word) <= set("0123456789abcdef")


_P: Final = 2**255 - 19
_D: Final = (-121665 * pow(121666, -1, _P)) % _P


@lru_cache(maxsize=4096)
def parse_public_key(text: str) -> PublicKey:
    """A key that decodes to a curve point. Raises EncodingError.

    Points of small order pass here, as in 0.1.0, and never verify a signature (signature.py).
    """
    raw = b64u_decode(text, KEY_BYTES)
    y2 = pow(int.from_bytes(raw, "little") & ((1 << 255) - 1), 2, _P)
    u, v = (y2 - 1) % _P, (_D * y2 + 1) % _P
    # x² = u/v has a root exactly when u·v is zero or a square (Euler's criterion).
    if u != 0 and pow(u * v, (_P - 1) // 2, _P) != 1:
        raise EncodingError("public key is not a point of the curve")
    return PublicKey(text)
