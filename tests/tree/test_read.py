"""airlox.tree.read: digests and contents of files that may change under the reader."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airlox.errors import TreeError
from airlox.tree import beneath, read
from airlox.tree.index import TreeIndex
from airlox.tree.read import ScanCache, read_index
from airlox.tree.scan import scan
from support.trees import describe, index_of, make_tree

NODES = {
    b"a": ("f", b"one"),
    b"d/b": ("x", b"two"),
    b"d/c": ("f", b"one"),
    b"d/l": ("l", b"../a"),
    b"e": ("f", b""),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    make_tree(folder, NODES)
    return folder


class Reads:
    """Counts the pieces read, and can change a file between two of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.during: Callable[[], None] = lambda: None
        for module in (read, beneath):
            monkeypatch.setattr(module, "pieces", self.pieces)

    def pieces(self, fd: int) -> Iterator[bytes]:
        self.count += 1
        self.during()
        while piece := os.read(fd, 2):
            yield piece


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an hour pass, so that no file is too young to be remembered."""
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 3600 * 10**9)


class TestReadIndex:
    def test_the_index_says_what_is_on_the_disk(self, root: Path) -> None:
        assert read_index(scan(root)) == index_of(NODES) == index_of(describe(root))

    def test_a_vanished_file_is_absent(self, root: Path) -> None:
        found = scan(root)
        (root / "a").unlink()
        (root / "d").rename(root.parent / "moved")
        (root / "d").write_bytes(b"")
        assert read_index(found) == index_of({b"e": NODES[b"e"]})

    def test_a_file_changed_since_the_scan_is_taken_as_it_is_now(self, root: Path) -> None:
        found = scan(root)
        (root / "a").write_bytes(b"longer than before")
        (root / "a").chmod(0o755)
        assert read_index(found) == index_of(NODES | {b"a": ("x", b"longer than before")})

    def test_a_file_replaced_while_it_is_read_is_read_again(self, root: Path, reads: Reads) -> None:
        def replace() -> None:
            reads.during = lambda: None
            (root / "new").write_bytes(b"another")
            (root / "new").rename(root / "a")

        found = scan(root)
        reads.during = replace
        assert read_index(found) == index_of(NODES | {b"a": ("f", b"another")})

    def test_a_file_that_never_holds_still(self, root: Path, reads: Reads) -> None:
        times = iter(range(100))
        found = scan(root)
        reads.during = lambda: os.utime(root / "a", ns=(0, next(times)))
        with pytest.raises(TreeError, match="a changed while it was read") as caught:
            read_index(found)
        assert caught.value.code == "tree_changed"

    def test_a_file_that_grows_without_end(self, root: Path, reads: Reads) -> None:
        def grow() -> None:
            with open(root / "a", "ab") as file:
                file.write(b"more")

        found = scan(root)
        reads.during = grow
        with pytest.raises(TreeError) as caught:
            read_index(found)
        assert caught.value.code == "tree_changed"

    def test_a_file_that_became_a_fifo_or_a_link(self, root: Path) -> None:
        found = scan(root)
        (root / "a").unlink()
        os.mkfifo(root / "a")
        with pytest.raises(TreeError, match="cannot read a") as caught:
            read_index(found)
        assert caught.value.code == "tree_unreadable"
        (root / "a").unlink()
        (root / "a").symlink_to("/etc/passwd")
        with pytest.raises(TreeError, match="cannot read a"):
            read_index(found)

    def test_a_folder_that_became_a_link_is_not_followed(self, root: Path) -> None:
        found = scan(root)
        (root / "d").rename(root.parent / "outside")
        (root / "d").symlink_to(root.parent / "outside")
        assert {e.path for e in read_index(found).entries} == {b"a", b"e"}


class TestScanCache:
    def test_an_unchanged_tree_is_not_read_again(
        self, root: Path, tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        age(monkeypatch)
        first = read_index(scan(root), ScanCache(tmp_path / "cache"))
        assert reads.count == 4
        before = (tmp_path / "cache").stat().st_ino
        assert read_index(scan(root), ScanCache(tmp_path / "cache")) == first
        assert reads.count == 4
        assert (tmp_path / "cache").stat().st_ino == before  # nor is the cache written again

    def test_only_what_changed_is_read(
        self, root: Path, tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        age(monkeypatch)
        read_index(scan(root), ScanCache(tmp_path / "cache"))
        kept = (root / "a").stat()
        (root / "a").write_bytes(b"eno")
        os.utime(root / "a", ns=(kept.st_atime_ns, kept.st_mtime_ns))
        (root / "e").chmod(0o755)
        again = read_index(scan(root), ScanCache(tmp_path / "cache"))
        assert again == index_of(NODES | {b"a": ("f", b"eno"), b"e": ("x", b"")})
        assert reads.count == 6

    def test_a_young_file_is_not_remembered(self, root: Path, tmp_path: Path, reads: Reads) -> None:
        read_index(scan(root), ScanCache(tmp_path / "cache"))
        read_index(scan(root), ScanCache(tmp_path / "cache"))
        assert reads.count == 8

    @pytest.mark.parametrize("cut", [0, 3, 5, 40, -1])
    def test_a_damaged_cache_is_an_empty_one(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
    ) -> None:
        age(monkeypatch)
        path = tmp_path / "cache"
        read_index(scan(root), ScanCache(path))
        path.write_bytes(path.read_bytes()[:cut])
        assert read_index(scan(root), ScanCache(path)) == index_of(NODES)

    def test_it_is_private(self, root: Path, tmp_path: Path) -> None:
        age_path = tmp_path / "cache"
        with pytest.MonkeyPatch.context() as patch:
            age(patch)
            read_index(scan(root), ScanCache(age_path))
        assert age_path.stat().st_mode & 0o777 == 0o600


def test_a_root_that_vanished(root: Path) -> None:
    found = scan(root)
    root.rename(root.parent / "away")
    with pytest.raises(TreeError) as caught:
        read_index(found)
    assert caught.value.code == "tree_unreadable"


def test_an_empty_tree(tmp_path: Path) -> None:
    assert read_index(scan(tmp_path)) == TreeIndex(())
