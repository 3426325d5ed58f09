"""airlox.tree.pointer: pointers as Git LFS writes them."""

from __future__ import annotations

import pytest

from airlox.tree.pointer import POINTER_BYTES, is_pointer, make_pointer

KNOWN = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    b"size 12345\n"
)


def test_as_in_the_specification() -> None:
    oid = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
    assert make_pointer(oid, 12345) == KNOWN
    assert is_pointer(KNOWN)


@pytest.mark.parametrize("data", [b"", b"version 2\n", KNOWN[1:], KNOWN.ljust(POINTER_BYTES)])
def test_what_is_none(data: bytes) -> None:
    assert not is_pointer(data)
