"""airlox.safefs: atomic, private, bounded, never through a link."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from airlox import safefs
from airlox.errors import StorageError


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def code_of(call: object, *args: object, **kwargs: object) -> str:
    assert callable(call)
    with pytest.raises(StorageError) as caught:
        call(*args, **kwargs)
    return caught.value.code


class TestWritePrivate:
    def test_writes_with_the_exact_mode_whatever_the_umask(self, tmp_path: Path) -> None:
        old = os.umask(0o377)
        try:
            safefs.write_private(tmp_path / "a", b"one")
            safefs.write_private(tmp_path / "b", b"two", mode=0o644)
        finally:
            os.umask(old)
        assert (tmp_path / "a").read_bytes() == b"one"
        assert (mode_of(tmp_path / "a"), mode_of(tmp_path / "b")) == (0o600, 0o644)

    def test_replaces_a_link_and_leaves_its_target(self, tmp_path: Path) -> None:
        (tmp_path / "target").write_bytes(b"keep")
        (tmp_path / "a").symlink_to("target")
        safefs.write_private(tmp_path / "a", b"new")
        assert not (tmp_path / "a").is_symlink()
        assert (tmp_path / "target").read_bytes() == b"keep"

    def test_a_failed_write_keeps_the_old_content_and_no_temporary(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        safefs.write_private(tmp_path / "a", b"old")

        def full(fd: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        assert code_of(safefs.write_private, tmp_path / "a", b"new") == "disk_full"
        assert os.listdir(tmp_path) == ["a"]
        assert (tmp_path / "a").read_bytes() == b"old"

    def test_a_folder_in_the_way_is_an_error_without_leftovers(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        assert code_of(safefs.write_private, tmp_path / "a", b"x") == "storage"
        assert os.listdir(tmp_path) == ["a"]

    def test_missing_folder(self, tmp_path: Path) -> None:
        assert code_of(safefs.write_private, tmp_path / "no" / "a", b"x") == "not_found"

    @pytest.mark.parametrize("name", ["", "..", "a/", "a/."])
    def test_a_path_without_a_name(self, name: str) -> None:
        assert code_of(safefs.write_private, name, b"x") == "unsafe_name"

    def test_a_relative_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        safefs.write_private("a", b"x")
        assert safefs.read_bounded("a", 1) == b"x"


class TestReadBounded:
    def test_the_bound_is_inclusive(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"12345")
        assert safefs.read_bounded(tmp_path / "a", 5) == b"12345"
        assert code_of(safefs.read_bounded, tmp_path / "a", 4) == "too_large"

    def test_links_fifos_folders_and_devices_are_refused_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x")
        (tmp_path / "link").symlink_to("file")
        os.mkfifo(tmp_path / "fifo")
        for bad in (tmp_path / "link", tmp_path / "fifo", tmp_path, Path("/dev/zero")):
            assert code_of(safefs.read_bounded, bad, 10) == "not_regular"

    def test_missing(self, tmp_path: Path) -> None:
        assert code_of(safefs.read_bounded, tmp_path / "a", 10) == "not_found"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    def test_one_of_another_user(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"x")
        assert safefs.read_bounded(tmp_path / "a", 10, own=True) == b"x"
        os.chown(tmp_path / "a", 12345, 12345)
        assert code_of(safefs.read_bounded, tmp_path / "a", 10, own=True) == "not_private"
        assert safefs.read_bounded(tmp_path / "a", 10) == b"x"


class TestMakePrivateDir:
    def test_makes_parents_private(self, tmp_path: Path) -> None:
        safefs.make_private_dir(tmp_path / "a" / "b")
        assert mode_of(tmp_path / "a" / "b") == 0o700

    def test_nobody_gets_between_under_any_umask(self, tmp_path: Path) -> None:
        old = os.umask(0)
        try:
            safefs.make_private_dir(tmp_path / "a" / "b" / "c/")
        finally:
            os.umask(old)
        made = (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c")
        assert [mode_of(folder) for folder in made] == [0o700] * 3

    def test_where_it_may_not(self) -> None:
        with pytest.raises(StorageError) as caught:
            safefs.make_private_dir("/proc/self/a/b")
        assert caught.value.code in ("denied", "not_found")

    def test_tightens_an_existing_one(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir(mode=0o755)
        safefs.make_private_dir(tmp_path / "a")
        assert mode_of(tmp_path / "a") == 0o700

    def test_refuses_a_link_and_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        (tmp_path / "file").write_bytes(b"")
        for bad in ("link", "file"):
            assert code_of(safefs.make_private_dir, tmp_path / bad) == "not_private"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
    def test_refuses_a_folder_of_another_user(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        os.chown(tmp_path / "a", 12345, 12345)
        assert code_of(safefs.make_private_dir, tmp_path / "a") == "not_private"


class TestSaveNew:
    def test_never_overwrites(self, tmp_path: Path) -> None:
        names = [safefs.save_new(tmp_path, "r.tar.gz", bytes([n])).name for n in range(3)]
        assert names == ["r.tar.gz", "r.tar-1.gz", "r.tar-2.gz"]
        assert [(tmp_path / n).read_bytes() for n in names] == [b"\0", b"\1", b"\2"]
        assert mode_of(tmp_path / "r.tar.gz") == 0o600

    def test_a_dangling_link_counts_as_taken(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
        assert safefs.save_new(tmp_path, "a", b"x").name == "a-1"
        assert not (tmp_path / "elsewhere").exists()

    def test_a_long_name_keeps_its_extension_and_its_bound(self, tmp_path: Path) -> None:
        name = "é" * 125 + ".json"
        safefs.save_new(tmp_path, name, b"1")
        second = safefs.save_new(tmp_path, name, b"2").name
        assert second.endswith("-1.json")
        assert len(os.fsencode(second)) <= 255

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0b"])
    def test_only_plain_names(self, tmp_path: Path, name: str) -> None:
        assert code_of(safefs.save_new, tmp_path, name, b"") == "unsafe_name"
        assert os.listdir(tmp_path) == []

    def test_a_failed_write_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(fd: int) -> None:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

        monkeypatch.setattr(os, "fsync", full)
        assert code_of(safefs.save_new, tmp_path, "a", b"x") == "disk_full"
        assert os.listdir(tmp_path) == []


def test_others_say_it_the_same_way() -> None:
    error = safefs.storage_error("lock it", OSError(errno.EROFS, "Read-only file system"))
    assert (error.message, error.code) == ("cannot lock it: Read-only file system", "read_only")
    assert error.hint
    assert safefs.storage_error("lock it", OSError(errno.EIO, "no")).code == "storage"


class TestAppendLine:
    def test_adds_lines_to_a_private_file(self, tmp_path: Path) -> None:
        safefs.append_line(tmp_path / "log", b"one")
        safefs.append_line(tmp_path / "log", b"two", sync=False)
        assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
        assert mode_of(tmp_path / "log") == 0o600

    def test_a_torn_line_spoils_only_itself(self, tmp_path: Path) -> None:
        (tmp_path / "log").write_bytes(b"one\ntor")
        safefs.append_line(tmp_path / "log", b"two")
        assert (tmp_path / "log").read_bytes() == b"one\ntor\ntwo\n"

    def test_refuses_newlines_and_links(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("target")
        assert code_of(safefs.append_line, tmp_path / "log", b"a\nb") == "storage"
        assert code_of(safefs.append_line, tmp_path / "link", b"a") == "not_regular"
        assert os.listdir(tmp_path) == ["link"]

    def test_a_fifo_does_not_block(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        assert code_of(safefs.append_line, tmp_path / "fifo", b"a") == "not_regular"


def test_save_once_finds_what_it_saved(tmp_path: Path) -> None:
    first, other = (safefs.save_once(tmp_path, "a.md", data) for data in (b"one", b"two"))
    assert (first.name, other.name) == ("a.md", "a-1.md")
    assert safefs.save_once(tmp_path, "a.md", b"two") == other
    assert safefs.save_once(tmp_path, "a.md", b"one") == first
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(StorageError):
        safefs.save_once(tmp_path, "../a.md", b"one")
