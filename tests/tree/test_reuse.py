"""airlox.tree.reuse: chunks of files that are here, handed out only as what they are."""

from __future__ import annotations

import os
import random
from hashlib import sha256
from pathlib import Path

import pytest

from airlox.tree.chunks import Cutter
from airlox.tree.reuse import OldChunks

CUTTER = Cutter(13)
DATA = random.Random(5).randbytes(1 << 20)
PARTS = {sha256(part).digest(): bytes(part) for part in CUTTER.cut([DATA])}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "big").write_bytes(DATA)
    return tmp_path


def test_chunks_of_files_and_of_bytes_at_hand(root: Path) -> None:
    for old in (
        OldChunks(CUTTER, root, [b"d/big"]),
        OldChunks(CUTTER, root, [], at_hand=DATA),
        OldChunks(CUTTER, root, [b"d/absent", b"d", b"d/big/x", b"d/big"], at_hand=b"other"),
    ):
        for digest, part in PARTS.items():
            assert digest in old
            assert old.read(digest) == part
        assert bytes(32) not in old
        assert old.read(bytes(32)) is None


def test_a_file_that_changed_since(root: Path) -> None:
    old = OldChunks(CUTTER, root, [b"d/big"])
    first, *others = PARTS
    assert first in old
    changed = bytearray(DATA)
    changed[0] ^= 1
    (root / "d" / "big").write_bytes(changed)
    assert old.read(first) is None
    assert old.read(others[0]) == PARTS[others[0]]
    (root / "d" / "big").unlink()
    assert old.read(others[0]) is None


def test_nothing_is_read_through_links_or_pipes(root: Path, tmp_path: Path) -> None:
    (root / "link").symlink_to("d/big")
    (root / "way").symlink_to("d")
    os.mkfifo(root / "pipe")
    old = OldChunks(CUTTER, root, [b"link", b"way/big", b"pipe"])
    assert not any(digest in old for digest in PARTS)


def test_other_files_when_asked_to_look_further(root: Path) -> None:
    old = OldChunks(CUTTER, root, [b"absent"], [b"d/big"])
    assert not any(digest in old for digest in PARTS)
    assert old.look_further()
    assert all(old.read(digest) == part for digest, part in PARTS.items())
    assert not old.look_further()
