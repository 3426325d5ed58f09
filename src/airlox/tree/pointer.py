"""Pointers of Git LFS: what git commits in place of a large file. Pure.

Source: the specification of Git LFS, version 1.
"""

from __future__ import annotations

from typing import Final

HEAD: Final = b"version https://git-lfs.github.com/spec/v1\n"
POINTER_BYTES: Final = 1024
"""A file of this size or more is no pointer."""


def make_pointer(sha256_hex: str, size: int) -> bytes:
    """The pointer to a content."""
    return HEAD + f"oid sha256:{sha256_hex}\nsize {size}\n".encode("ascii")


def is_pointer(data: bytes) -> bool:
    """Whether a file that begins with `data` is a pointer already."""
    return len(data) < POINTER_BYTES and data.startswith(HEAD)
