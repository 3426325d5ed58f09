"""airlox.tree.store: arrived contents, bounded by what was asked for."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path

import pytest

from airlox.errors import LimitError, StorageError, ValidationError
from airlox.tree.chunks import LARGE_BYTES, Cutter, encode_recipe
from airlox.tree.packs import Record, What, content_record, write_packs
from airlox.tree.store import Chunks, ContentStore

SMALL = b"small"
LARGE = random.Random(3).randbytes(2 * LARGE_BYTES)
CUTTER = Cutter(9)
RECIPE = CUTTER.recipe([LARGE])
PARTS = {sha256(part).digest(): bytes(part) for part in CUTTER.cut([LARGE])}


def digest(data: bytes) -> bytes:
    return sha256(data).digest()


def pack(*records: Record) -> bytes:
    [made] = write_packs(records, target_bytes=1 << 30)
    return made


def content(data: bytes) -> Record:
    return content_record(digest(data), data)


def recipe(data: bytes = LARGE) -> Record:
    made = CUTTER.recipe([data])
    return Record(What.RECIPE, digest(data), len(data), encode_recipe(made))


def chunks(digests: Collection[bytes] | None = None) -> list[Record]:
    return [content(part) for d, part in PARTS.items() if digests is None or d in digests]


def fetched(store: ContentStore, data: bytes) -> bytes | None:
    pieces = store.fetch(digest(data))
    return None if pieces is None else b"".join(pieces)


def wanting(store: ContentStore, *datas: bytes) -> ContentStore:
    store.want({digest(data): len(data) for data in datas})
    return store


class Here(Chunks):
    """Chunks that are at hand."""

    def __init__(self, *digests: bytes, gone: bool = False, others: Collection[bytes] = ()) -> None:
        self._digests = set(digests)
        self._gone = gone
        self._others = set(others)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests

    def read(self, digest: bytes) -> bytes | None:
        return None if self._gone else PARTS[digest]

    def look_further(self) -> bool:
        self._digests |= self._others
        return bool(self._others)


@pytest.mark.parametrize("memory_bytes", [0, 1 << 24])
def test_contents_arrive_more_than_once(tmp_path: Path, memory_bytes: int) -> None:
    folder = tmp_path / "store"
    with wanting(ContentStore(folder, memory_bytes=memory_bytes), SMALL, LARGE) as store:
        assert fetched(store, SMALL) is None
        for _ in range(2):
            store.add_pack(pack(content(SMALL)))
        assert store.missing == {digest(LARGE)}
        first, second, *rest = chunks()
        store.add_pack(pack(recipe(), first))
        assert store.missing == frozenset()
        assert store.missing_chunks == {digest(LARGE): (RECIPE, RECIPE.digests - {first.digest})}
        assert fetched(store, LARGE) is None
        store.add_pack(pack(*rest, *rest, recipe()))
        assert store.missing_chunks == {digest(LARGE): (RECIPE, frozenset({second.digest}))}
        store.add_pack(pack(second))
        assert store.is_complete
        assert (fetched(store, SMALL), fetched(store, LARGE)) == (SMALL, LARGE)
        assert fetched(store, SMALL) == SMALL  # as often as there are files with it
        if not memory_bytes:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not folder.exists() or os.listdir(folder) == []


def test_chunks_come_only_after_their_recipe(tmp_path: Path) -> None:
    with wanting(ContentStore(tmp_path / "store"), LARGE) as store:
        store.add_pack(pack(*chunks()))
        store.add_pack(pack(recipe()))
        assert store.missing_chunks[digest(LARGE)][1] == RECIPE.digests


def test_chunks_that_are_here_are_not_asked_for(tmp_path: Path) -> None:
    here, *others = PARTS
    with wanting(ContentStore(tmp_path / "store", old=Here(here)), LARGE) as store:
        store.add_pack(pack(recipe()))
        assert store.missing_chunks[digest(LARGE)][1] == set(others)
        store.add_pack(pack(*chunks(others)))
        assert fetched(store, LARGE) == LARGE


def test_chunks_that_were_here_are_missing_in_the_whole(tmp_path: Path) -> None:
    """[P-TRE-5] Whoever applies it compares the digest of the whole."""
    here, *others = PARTS
    with wanting(ContentStore(tmp_path / "store", old=Here(here, gone=True)), LARGE) as store:
        store.add_pack(pack(recipe(), *chunks(others)))
        assert fetched(store, LARGE) == LARGE.replace(PARTS[here], b"")


def test_chunks_that_are_found_later(tmp_path: Path) -> None:
    first, *others = PARTS
    with wanting(ContentStore(tmp_path / "store", old=Here(others=others)), LARGE) as store:
        store.add_pack(pack(recipe()))
        store.look_further()
        assert store.missing_chunks[digest(LARGE)][1] == {first}
        store.add_pack(pack(*chunks([first])))
        assert fetched(store, LARGE) == LARGE
    with wanting(ContentStore(tmp_path / "store", old=Here(others=PARTS)), LARGE) as store:
        store.add_pack(pack(recipe()))
        assert store.missing_chunks[digest(LARGE)][1] == RECIPE.digests
        store.look_further()
        assert store.is_complete


def test_two_contents_share_chunks(tmp_path: Path) -> None:
    longer = LARGE + b"and more"
    with wanting(ContentStore(tmp_path / "store"), LARGE, longer) as store:
        store.add_pack(pack(recipe(), recipe(longer), *chunks()))
        [(asked, missing)] = store.missing_chunks.values()
        assert asked == CUTTER.recipe([longer])
        assert len(missing) == 1
        store.add_pack(
            pack(*(content(bytes(c)) for c in CUTTER.cut([longer]) if digest(bytes(c)) in missing))
        )
        assert (fetched(store, LARGE), fetched(store, longer)) == (LARGE, longer)


def test_what_nobody_asked_for_is_not_kept(tmp_path: Path) -> None:
    with wanting(ContentStore(tmp_path / "store", memory_bytes=0), SMALL) as store:
        store.want({digest(LARGE): LARGE_BYTES + 1})
        store.add_pack(pack(content(b"other"), recipe(), *chunks()))
        assert fetched(store, b"other") is None
        assert store.missing == {digest(SMALL), digest(LARGE)}
        assert not (tmp_path / "store").exists()


def test_a_recipe_in_place_of_a_small_content(tmp_path: Path) -> None:
    with ContentStore(tmp_path / "store") as store:
        store.want({digest(LARGE): 5})
        store.add_pack(pack(recipe()))
        assert store.missing == {digest(LARGE)}


def test_an_index_is_accepted_whatever_its_size(tmp_path: Path) -> None:
    for data, records in ((SMALL, [content(SMALL)]), (LARGE, [recipe(), *chunks()])):
        with ContentStore(tmp_path / "store") as store:
            store.want_index(digest(data))
            store.add_pack(pack(*records))
            assert fetched(store, data) == data
            store.want_index(digest(data))
            assert store.is_complete


def test_only_so_many_chunks(tmp_path: Path) -> None:
    other = LARGE[::-1]
    count = len(RECIPE.chunks) + len(CUTTER.recipe([other]).chunks)
    for most in (count, count - 1):
        store = wanting(ContentStore(tmp_path / "store", chunks=most), LARGE, other)
        store.add_pack(pack(recipe()))
        if most == count:
            store.add_pack(pack(recipe(other)))
        else:
            with pytest.raises(LimitError):
                store.add_pack(pack(recipe(other)))


def test_what_counts_is_what_was_wanted(tmp_path: Path) -> None:
    store = wanting(ContentStore(tmp_path / "store"), SMALL)
    for taken in (b"other", SMALL, SMALL):
        store.add_pack(pack(content(taken)))
    assert store.taken_bytes == len(SMALL)


def test_malformed_ones_are_refused(tmp_path: Path) -> None:
    with wanting(ContentStore(tmp_path / "store"), LARGE) as store:
        for bad in (b"junk", pack(recipe()._replace(data=b"x" * 36))):
            with pytest.raises(ValidationError):
                store.add_pack(bad)


def test_a_disk_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with wanting(ContentStore(tmp_path / "store", memory_bytes=0), SMALL) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(StorageError):
                store.add_pack(pack(content(SMALL)))
        assert fetched(store, SMALL) is None
        store.add_pack(pack(content(SMALL)))
        assert fetched(store, SMALL) == SMALL
