"""airlox.tree.store: arrived contents, bounded by what was asked for."""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from pathlib import Path

import pytest

from airlox.errors import StorageError, ValidationError
from airlox.tree.chunks import PART_BYTES, Content, write_packs
from airlox.tree.store import ContentStore

SMALL = b"small"
LARGE = b"0123456789abcdef" * (PART_BYTES // 16) + b"the rest"


def digest(data: bytes) -> bytes:
    return sha256(data).digest()


def packs(*datas: bytes) -> list[bytes]:
    contents = (Content(digest(data), len(data), [data]) for data in datas)
    return list(write_packs(contents, target_bytes=1))


def fetched(store: ContentStore, data: bytes) -> bytes | None:
    pieces = store.fetch(digest(data))
    return None if pieces is None else b"".join(pieces)


def wanting(store: ContentStore, *datas: bytes) -> ContentStore:
    store.want({digest(data): len(data) for data in datas})
    return store


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
def test_contents_arrive_in_any_order_and_more_than_once(tmp_path: Path, memory_bytes: int) -> None:
    folder = tmp_path / "store"
    with wanting(ContentStore(folder, memory_bytes=memory_bytes), SMALL, LARGE) as store:
        sent = packs(SMALL, LARGE)
        assert len(sent) == 3
        assert fetched(store, SMALL) is None
        for pack in (sent[2], sent[0], sent[2], sent[0]):
            store.add_pack(pack)
        assert store.missing == {digest(LARGE)}
        assert fetched(store, LARGE) is None
        store.add_pack(sent[1])
        assert store.missing == frozenset()
        assert (fetched(store, SMALL), fetched(store, LARGE)) == (SMALL, LARGE)
        assert fetched(store, SMALL) == SMALL  # as often as there are files with it
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert os.listdir(folder) == []


def test_a_part_is_removed_with_the_rest(tmp_path: Path) -> None:
    with wanting(ContentStore(tmp_path / "store"), LARGE) as store:
        store.add_pack(packs(LARGE)[0])
        assert len(os.listdir(tmp_path / "store")) == 1
    assert os.listdir(tmp_path / "store") == []


def test_what_nobody_asked_for_is_not_kept(tmp_path: Path) -> None:
    with wanting(ContentStore(tmp_path / "store", memory_bytes=0), SMALL) as store:
        store.want({digest(LARGE): 5})
        for pack in packs(b"other", LARGE):
            store.add_pack(pack)
        assert fetched(store, b"other") is None
        assert fetched(store, LARGE) is None
        assert not (tmp_path / "store").exists()


def test_an_index_is_accepted_whatever_its_size(tmp_path: Path) -> None:
    with ContentStore(tmp_path / "store") as store:
        store.want_index(digest(LARGE))
        for pack in packs(LARGE):
            store.add_pack(pack)
        assert fetched(store, LARGE) == LARGE
        store.want_index(digest(LARGE))
        assert store.missing == frozenset()


def test_a_malformed_pack_is_refused(tmp_path: Path) -> None:
    with ContentStore(tmp_path / "store") as store, pytest.raises(ValidationError):
        store.add_pack(b"junk")


def test_a_disk_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with wanting(ContentStore(tmp_path / "store", memory_bytes=0), SMALL) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(StorageError):
                store.add_pack(packs(SMALL)[0])
        assert fetched(store, SMALL) is None
        store.add_pack(packs(SMALL)[0])
        assert fetched(store, SMALL) == SMALL
