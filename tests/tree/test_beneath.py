"""airlox.tree.beneath: folders by descriptors, never through a link, never without end."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.tree.beneath import (
    Folders,
    empty_pit,
    enter_forced,
    open_regular,
    opened_root,
    opened_workspace,
    remove,
)
from support.trees import make_tree


@pytest.fixture
def root_fd(tmp_path: Path) -> Iterator[int]:
    with opened_root(tmp_path) as fd:
        yield fd


@pytest.fixture
def pit_fd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with opened_root(tmp_path_factory.mktemp("pit")) as fd:
        yield fd


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class TestFolders:
    def test_each_folder_on_the_way_is_opened_once(self, tmp_path: Path, root_fd: int) -> None:
        make_tree(tmp_path, {b"a/b/c/f": ("f", b""), b"a/d/f": ("f", b"")})
        opened: list[bytes] = []

        def counting(folder_fd: int, name: bytes) -> int:
            opened.append(name)
            return enter_forced(folder_fd, name)

        with Folders(root_fd, counting) as folders:
            assert folders.fd(b"") == root_fd
            for path in (b"a", b"a/b", b"a/b/c", b"a/b", b"a/d", b"a"):
                os.stat("f" if path.endswith((b"c", b"d")) else ".", dir_fd=folders.fd(path))
        assert opened == [b"a", b"b", b"c", b"d"]

    def test_descriptors_are_closed(self, tmp_path: Path, root_fd: int) -> None:
        make_tree(tmp_path, {b"a/b/c/d/e": ("f", b"")})
        before = open_descriptors()
        with Folders(root_fd) as folders:
            folders.fd(b"a/b/c/d")
            assert open_descriptors() == before + 4
            with pytest.raises(NotADirectoryError):
                folders.fd(b"a/b/c/d/e/f")
        assert open_descriptors() == before

    def test_a_link_is_no_folder(self, tmp_path: Path, root_fd: int) -> None:
        (tmp_path / "link").symlink_to("/etc")
        with Folders(root_fd) as folders, pytest.raises(OSError, match="Not a directory"):
            folders.fd(b"link")
        with pytest.raises(OSError):
            enter_forced(root_fd, b"link")
        with pytest.raises(OSError), opened_workspace(tmp_path / "link"):
            pass


def test_open_regular_takes_files_only(tmp_path: Path, root_fd: int) -> None:
    make_tree(tmp_path, {b"f": ("f", b"x"), b"l": ("l", b"f"), b"d/f": ("f", b"")})
    os.mkfifo(tmp_path / "fifo")
    fd, found = open_regular(root_fd, b"f")
    os.close(fd)
    assert found.st_size == 1
    before = open_descriptors()
    for name in (b"l", b"d", b"fifo", b"no"):
        with pytest.raises(OSError):
            open_regular(root_fd, name)
    assert open_descriptors() == before


def test_a_folder_with_missing_permissions_gets_its_owners_back(
    tmp_path: Path, root_fd: int
) -> None:
    (tmp_path / "shut").mkdir(mode=0o050)
    (tmp_path / "shut").chmod(0o050)
    os.close(enter_forced(root_fd, b"shut"))
    assert stat.S_IMODE((tmp_path / "shut").stat().st_mode) & 0o700 == 0o700


class TestRemove:
    def test_anything_and_nothing(self, tmp_path: Path, root_fd: int, pit_fd: int) -> None:
        make_tree(tmp_path, {b"d/a/b": ("f", b""), b"d/l": ("l", b"/etc"), b"f": ("f", b"")})
        os.mkfifo(tmp_path / "d" / "a" / "fifo")
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "link").symlink_to("d")
        remove(root_fd, b"link", pit_fd)
        assert (tmp_path / "d" / "a" / "b").exists()
        for name in (b"d", b"f", b"fifo", b"never there"):
            remove(root_fd, name, pit_fd)
        assert os.listdir(root_fd) == os.listdir(pit_fd) == []

    def test_depth_costs_no_descriptors(self, tmp_path: Path, root_fd: int, pit_fd: int) -> None:
        inner = root_fd
        for _ in range(200):
            os.mkdir("n", dir_fd=inner)
            following = os.open("n", os.O_RDONLY, dir_fd=inner)
            if inner != root_fd:
                os.close(inner)
            inner = following
        os.close(inner)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 10, limits[1]))
        try:
            remove(root_fd, b"n", pit_fd)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert os.listdir(root_fd) == os.listdir(pit_fd) == []

    def test_a_pit_left_by_a_crash(self, tmp_path: Path, pit_fd: int) -> None:
        os.mkdir("left", dir_fd=pit_fd)
        os.mkdir("left/inner", dir_fd=pit_fd)
        empty_pit(pit_fd)
        assert os.listdir(pit_fd) == []
