"""airlox.tree.arrived: an interrupted tree goes on where it stopped; damage costs no more."""

from __future__ import annotations

import os
import random
import stat
from hashlib import sha256
from pathlib import Path

import pytest

from airlox.tree.arrived import Arrived
from airlox.tree.chunks import LARGE_BYTES, Cutter, encode_recipe
from airlox.tree.packs import Record, What, content_record, write_packs
from airlox.tree.store import ContentStore

SMALL = b"small"
LARGE = random.Random(2).randbytes(2 * LARGE_BYTES)
CUTTER = Cutter(21)
RECIPE = CUTTER.recipe([LARGE])


def content(data: bytes) -> Record:
    return content_record(sha256(data).digest(), data)


SENT = [
    content(SMALL),
    Record(What.RECIPE, sha256(LARGE).digest(), len(LARGE), encode_recipe(RECIPE)),
    *(content(bytes(part)) for part in CUTTER.cut([LARGE])),
]
SIZES = {sha256(data).digest(): len(data) for data in (SMALL, LARGE)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "arrived"


def attempt(tmp_path: Path, records: list[Record], *, memory_bytes: int = 1 << 30) -> ContentStore:
    """A store that wants both contents and was sent these records."""
    store = ContentStore(
        tmp_path / "store", arrived=Arrived(tmp_path / "arrived"), memory_bytes=memory_bytes
    )
    store.want(SIZES)
    for pack in write_packs(records):
        store.add_pack(pack)
    return store


@pytest.mark.parametrize("count", [0, 1, 2, 3, len(SENT) - 1, len(SENT)])
@pytest.mark.parametrize("memory_bytes", [0, 1 << 30])
def test_the_next_try_goes_on(tmp_path: Path, count: int, memory_bytes: int) -> None:
    with attempt(tmp_path, SENT[:count], memory_bytes=memory_bytes) as store:
        store.keep_for_later()
    with attempt(tmp_path, []) as store:
        lacking = {record.digest for record in SENT[count:] if record.what is What.CONTENT}
        asked = set(store.missing)
        for _, chunks in store.missing_chunks.values():
            asked |= chunks
        assert asked - {sha256(LARGE).digest()} == (
            lacking if count > 1 else lacking & SIZES.keys()
        )
        for pack in write_packs(SENT[count:]):
            store.add_pack(pack)
        assert store.is_complete
        assert b"".join(store.fetch(sha256(LARGE).digest()) or ()) == LARGE


def test_it_is_private_and_goes_when_the_tree_is_whole(tmp_path: Path, folder: Path) -> None:
    with attempt(tmp_path, SENT) as store:
        store.keep_for_later()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    Arrived(folder).clear()
    assert not folder.exists()
    Arrived(folder).clear()


@pytest.mark.parametrize("damage", [b"", b"x", b"y" * 100_000])
def test_what_is_damaged_is_sent_again(tmp_path: Path, folder: Path, damage: bytes) -> None:
    with attempt(tmp_path, SENT) as store:
        store.keep_for_later()
    for path in folder.iterdir():
        path.write_bytes(damage)
    with attempt(tmp_path, []) as store:
        assert store.missing == SIZES.keys()


def test_only_so_much_is_kept(tmp_path: Path, folder: Path) -> None:
    arrived = Arrived(folder, most_bytes=10)
    arrived.keep([content(b"12345"), content(b"67890"), content(b"more")])
    assert len(os.listdir(folder)) == 2


def test_what_earlier_tries_left_counts(folder: Path) -> None:
    records = [content(bytes([n]) * 100) for n in range(9)]
    for n in range(0, 9, 3):
        Arrived(folder, most_bytes=500).keep(records[n : n + 3])
    assert sum(path.stat().st_size for path in folder.iterdir()) == 500


def test_the_disk_keeps_its_floor(folder: Path) -> None:
    disk = os.statvfs(folder.parent)
    free = disk.f_bavail * disk.f_frsize
    Arrived(folder, floor_bytes=free + (1 << 40)).keep([content(b"x" * 1000)])
    assert [*folder.iterdir()] == []


def test_a_disk_that_refuses_costs_nothing_else(folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.write_bytes(b"in the way")
    Arrived(folder).keep([content(SMALL)])
    assert Arrived(folder).find(What.CONTENT, sha256(SMALL).digest(), 5) is None
