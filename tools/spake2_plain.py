"""Transfer codes once more: whole numbers and hashes, straight from RFC 9382 and RFC 8032.

The second of the two implementations that the vectors must agree with; it shares no line with
`airlox.protocol.transfer`. Nothing here is constant-time; never use it with real codes.
"""

from __future__ import annotations

import hashlib
import hmac
from itertools import count
from typing import NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from ed25519_odd import IDENTITY, L, P, Point, add, encode, multiply, recover_x

BASE_Y = 4 * pow(5, -1, P) % P


def decode(data: bytes) -> Point:
    """RFC 8032, 5.1.3. Raises ValueError."""
    number = int.from_bytes(data, "little")
    y, sign = number & (2**255 - 1), number >> 255
    if len(data) != 32 or y >= P:
        raise ValueError("not canonical")
    x = recover_x(y, sign)
    if (y * y - x * x - 1 - (-121665 * pow(121666, -1, P)) * x * x * y * y) % P:
        raise ValueError("not on the curve")
    if x == 0 and sign:
        raise ValueError("not canonical")
    return x, y


BASE = (recover_x(BASE_Y, 0), BASE_Y)


def generate(seed: bytes) -> bytes:
    """RFC 9382, appendix A: the first of the hashes of a seed that is a point of the group."""
    for turn in count(1):
        digest = seed
        for _ in range(turn):
            digest = hashlib.sha256(digest).digest()
        try:
            point = decode(digest)
        except ValueError:
            continue
        if multiply(L, point) == IDENTITY:
            return digest
    raise AssertionError


M = decode(generate(b"edwards25519 point generation seed (M)"))
N = decode(generate(b"edwards25519 point generation seed (N)"))


def negative(point: Point) -> Point:
    return -point[0] % P, point[1]


def derive(ikm: bytes, info: bytes, salt: bytes = b"airlox/v1") -> bytes:
    """RFC 5869, one block."""
    root = hmac.new(salt, ikm, hashlib.sha256).digest()
    return hmac.new(root, info + b"\x01", hashlib.sha256).digest()


class Run(NamedTuple):
    """What both ends of one exchange have."""

    pa: bytes
    pb: bytes
    shared: bytes
    confirm_a: bytes
    confirm_b: bytes
    verifier: bytes
    key: bytes


def password(words: list[str]) -> int:
    digest = hashlib.sha512(b"airlox/v1/transfer-words\0" + "-".join(words).encode()).digest()
    return int.from_bytes(digest, "little") % L


def exchange(words: list[str], where: str, x_random: bytes, y_random: bytes) -> Run:
    """An exchange of honest ends. `where` is "NAMEPLATE SESSION ROLE"."""
    w = password(words)
    x, y = (int.from_bytes(each, "little") % L for each in (x_random, y_random))
    pa = add(multiply(x, BASE), multiply(w, M))
    pb = add(multiply(y, BASE), multiply(w, N))
    shared = multiply(8 * x, add(pb, negative(multiply(w, N))))
    assert shared == multiply(8 * y, add(pa, negative(multiply(w, M))))
    parts = (
        f"airlox/v1/transfer sender {where}".encode(),
        f"airlox/v1/transfer receiver {where}".encode(),
        encode(pa),
        encode(pb),
        encode(shared),
        w.to_bytes(32, "little"),
    )
    transcript = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    digest = hashlib.sha256(transcript).digest()
    ke, ka = digest[:16], digest[16:]
    confirm = derive(ka, b"ConfirmationKeys", salt=b"")
    return Run(
        encode(pa),
        encode(pb),
        encode(shared),
        hmac.new(confirm[:16], transcript, hashlib.sha256).digest(),
        hmac.new(confirm[16:], transcript, hashlib.sha256).digest(),
        derive(ke, b"airlox/v1/transfer-verifier\0"),
        derive(ke, b"airlox/v1/transfer-key\0"),
    )


def pick(number: bytes, words: list[str], size: int) -> list[str]:
    """`size` words from the first bits of some bytes, eleven for each."""
    bits = "".join(f"{byte:08b}" for byte in number)
    return [words[int(bits[11 * at : 11 * at + 11], 2)] for at in range(size)]


def sealed(key: bytes, nonce: bytes, plain: bytes, aad: bytes) -> bytes:
    return nonce + AESGCM(key).encrypt(nonce, plain, aad)


def stretched(words: list[str], salt: bytes) -> tuple[bytes, bytes]:
    """The key and the word of access of a parked code."""
    argon = Argon2id(salt=salt, length=32, iterations=4, lanes=1, memory_cost=64 * 1024)
    root = argon.derive("-".join(words).encode())
    return derive(root, b"airlox/v1/parked-key\0"), derive(root, b"airlox/v1/parked-access\0")
