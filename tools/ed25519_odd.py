"""Odd Ed25519 keys and signatures for the conformance vectors: plain, slow curve arithmetic.

Used by tools/make_vectors.py only. Nothing here is constant-time; never use it with real keys.
"""

from __future__ import annotations

import hashlib

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = (-121665 * pow(121666, -1, P)) % P
Point = tuple[int, int]
IDENTITY: Point = (0, 1)


def add(a: Point, b: Point) -> Point:
    (x1, y1), (x2, y2) = a, b
    t = D * x1 * x2 * y1 * y2 % P
    x3 = (x1 * y2 + x2 * y1) * pow(1 + t, -1, P) % P
    y3 = (y1 * y2 + x1 * x2) * pow(1 - t, -1, P) % P
    return x3, y3


def multiply(k: int, point: Point) -> Point:
    total = IDENTITY
    while k:
        if k & 1:
            total = add(total, point)
        point, k = add(point, point), k >> 1
    return total


def encode(point: Point) -> bytes:
    x, y = point
    return (y | ((x & 1) << 255)).to_bytes(32, "little")


def recover_x(y: int, sign: int) -> int:
    x2 = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(x2, (P + 3) // 8, P)
    if x * x % P != x2:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != x2:
        raise ValueError("not on the curve")
    return P - x if x & 1 != sign else x


BASE: Point = (recover_x(4 * pow(5, -1, P) % P, 0), 4 * pow(5, -1, P) % P)


def torsion() -> Point:
    """A point of order 8."""
    y = 2
    while True:
        try:
            point = multiply(L, (recover_x(y, 0), y))
        except ValueError:
            point = IDENTITY
        if multiply(4, point) != IDENTITY:
            return point
        y += 1


def scalar(seed: bytes) -> int:
    raw = bytearray(hashlib.sha512(seed).digest()[:32])
    raw[0] &= 248
    raw[31] = (raw[31] & 127) | 64
    return int.from_bytes(raw, "little")


def challenge(r: bytes, public: bytes, message: bytes) -> int:
    return int.from_bytes(hashlib.sha512(r + public + message).digest(), "little") % L
