"""Out folders and leftovers of a hostile job: what is taken, and that all can be removed."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import StorageError
from airlox.sandbox import collect, descent
from airlox.sandbox.collect import CollectCaps, Collected, collect_out, remove_tree
from support import ordinary, parts

CAPS = CollectCaps()


def paths(found: Collected) -> list[str]:
    return [file.path for file in found.files]


def reasons(found: Collected) -> dict[str, str]:
    return {skipped.path: skipped.reason for skipped in found.skipped}


def dig(folder: Path, depth: int) -> None:
    """Make folders in each other, deeper than any path can be long."""
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


def climb(place: descent.Descent) -> None:
    while place.depth > 0:
        assert place.leave() == "d"


AsUser = Callable[[Callable[[Path], None]], None]


@pytest.fixture(params=["own", "ordinary"])
def as_user(request: pytest.FixtureRequest) -> Iterator[AsUser]:
    """Runs a function on a folder, as the tests' user and as an ordinary one."""
    if request.param == "ordinary":
        parts.require("root")
    uid = ordinary.UID if request.param == "ordinary" else os.geteuid()
    with ordinary.folder_of(uid) as folder:
        yield lambda function: ordinary.call_as(uid, lambda: function(folder))


class TestCollect:
    def test_files_come_in_order_of_bytes_with_sizes_and_content(self, tmp_path: Path) -> None:
        (tmp_path / "b").mkdir()
        for name in ("b/x", "b.txt", "é", "-rf", "..x", ".hidden"):
            (tmp_path / name).write_text(name)
        found = collect_out(tmp_path, CAPS)
        assert paths(found) == ["-rf", "..x", ".hidden", "b.txt", "b/x", "é"]
        assert found.skipped == ()
        for file in found.files:
            with file.open() as content:
                data = content.read()
            assert data == file.path.encode()
            assert file.size == len(data)

    def test_empty_folder(self, tmp_path: Path) -> None:
        assert collect_out(tmp_path, CAPS) == Collected((), (), 0)

    def test_missing_folder_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError):
            collect_out(tmp_path / "none", CAPS)

    def test_a_linked_out_folder_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "out").symlink_to("real")
        with pytest.raises(StorageError):
            collect_out(tmp_path / "out", CAPS)

    def test_links_are_left_out_and_not_read(self, tmp_path: Path) -> None:
        for name, target in {
            "shadow": "/etc/shadow",
            "environ": "/proc/self/environ",
            "root": "/",
            "self": "self",
            "up": "..",
        }.items():
            (tmp_path / name).symlink_to(target)
        found = collect_out(tmp_path, CAPS)
        assert found.files == ()
        assert reasons(found) == dict.fromkeys(
            ("shadow", "environ", "root", "self", "up"), "symbolic link"
        )

    def test_hard_links_are_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("x")
        os.link(tmp_path / "a", tmp_path / "b")
        assert reasons(collect_out(tmp_path, CAPS)) == {"a": "hard link", "b": "hard link"}

    def test_pipes_and_sockets_do_not_block(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tmp_path / "socket"))
            found = collect_out(tmp_path, CAPS)
        assert reasons(found) == {"pipe": "pipe", "socket": "socket"}

    def test_devices_are_left_out(self, tmp_path: Path) -> None:
        parts.require("root")
        os.mknod(tmp_path / "zero", 0o20666, os.makedev(1, 5))
        assert reasons(collect_out(tmp_path, CAPS)) == {"zero": "device"}

    def test_a_sparse_file_counts_with_the_size_it_shows(self, tmp_path: Path) -> None:
        with open(tmp_path / "sparse", "wb") as file:
            file.truncate(200 << 20)
        found = collect_out(tmp_path, CollectCaps(max_file_bytes=100 << 20))
        assert reasons(found) == {"sparse": f"larger than {100 << 20} bytes"}

    def test_locked_files_and_folders_are_named(self, as_user: AsUser) -> None:
        def check(folder: Path) -> None:
            (folder / "file").touch(mode=0o000)
            (folder / "fine").touch()
            (folder / "folder").mkdir()
            (folder / "folder" / "inner").touch()
            (folder / "folder").chmod(0o000)
            found = collect_out(folder, CAPS)
            assert paths(found) == ["fine"]
            assert reasons(found) == {"file": "unreadable", "folder": "unreadable"}

        as_user(check)

    @pytest.mark.parametrize(
        ("name", "shown", "reason"),
        [
            (b"a\nb", "a\\u{a}b", "control"),
            (b"a\x1b[31m", "a\\u{1b}[31m", "control"),
            (b"a\xffb", "a\\xffb", "UTF-8"),
            ("a\u202egnp.exe".encode(), "a\\u{202e}gnp.exe", "invisible"),
            (b"a\\b", "a\\b", "every system"),
            (b"c:x", "c:x", "every system"),
            (b"dot.", "dot.", "every system"),
        ],
    )
    def test_names_that_are_not_portable(
        self, tmp_path: Path, name: bytes, shown: str, reason: str
    ) -> None:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()
        found = collect_out(tmp_path, CAPS)
        assert found.files == ()
        assert reason in reasons(found)[shown]

    @pytest.mark.parametrize("name", ["con.txt", "NUL", "Com1.tar.gz", "lpt9"])
    def test_a_name_reserved_on_windows_is_marked(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("x")
        found = collect_out(tmp_path, CAPS)
        assert paths(found) == [f"_{name}/_{name}"]
        with found.files[0].open() as content:
            assert content.read() == b"x"

    def test_a_mark_never_takes_the_name_of_another_file(self, tmp_path: Path) -> None:
        (tmp_path / "con").write_text("reserved")
        (tmp_path / "_con").write_text("plain")
        found = collect_out(tmp_path, CAPS)
        assert [(file.path, file.size) for file in found.files] == [("_con", 5)]
        assert "marked form is taken" in reasons(found)["con"]

    def test_a_name_of_255_bytes_is_taken(self, tmp_path: Path) -> None:
        (tmp_path / ("n" * 255)).touch()
        assert paths(collect_out(tmp_path, CAPS)) == ["n" * 255]

    def test_a_long_path_is_left_out(self, tmp_path: Path) -> None:
        folder = tmp_path.joinpath("a" * 200, "b" * 200)
        folder.mkdir(parents=True)
        (folder / ("c" * 200)).touch()
        found = collect_out(tmp_path, CAPS)
        assert found.files == ()
        assert [skipped.reason for skipped in found.skipped] == ["path is longer than 512 bytes"]
        assert len(found.skipped[0].path) <= 201

    def test_depth_is_cut(self, tmp_path: Path) -> None:
        dig(tmp_path, 60)
        (tmp_path / "d" / "file").touch()
        found = collect_out(tmp_path, CollectCaps(max_depth=31))
        assert paths(found) == ["d/file"]
        assert [skipped.reason for skipped in found.skipped] == ["deeper than 31 folders"]

    def test_the_number_of_files_is_cut_and_said_once(self, tmp_path: Path) -> None:
        for number in range(300):
            (tmp_path / f"{number:03}").touch()
        found = collect_out(tmp_path, CollectCaps(max_files=10, max_entries=50))
        assert paths(found) == sorted(paths(found))
        assert len(found.files) == 10
        assert {skipped.reason for skipped in found.skipped} == {
            "more than 10 files",
            "more than 50 entries in all",
        }
        assert len(found.skipped) == 2

    def test_the_sum_is_kept_by_leaving_files_out_one_by_one(self, tmp_path: Path) -> None:
        for name, size in {"a": 60, "b": 60, "c": 40}.items():
            (tmp_path / name).write_bytes(b"x" * size)
        found = collect_out(tmp_path, CollectCaps(max_total_bytes=100))
        assert paths(found) == ["a", "c"]
        assert reasons(found) == {"b": "more than 100 bytes in all"}

    def test_what_is_left_out_is_counted_beyond_the_cap(self, tmp_path: Path) -> None:
        for number in range(9):
            (tmp_path / f"{number}").symlink_to("x")
        found = collect_out(tmp_path, CollectCaps(max_skipped=4))
        assert len(found.skipped) == 4
        assert found.skipped_more == 5

    def test_a_mount_in_it_is_not_entered(self, tmp_path: Path) -> None:
        parts.require("root")
        (tmp_path / "out" / "mounted").mkdir(parents=True)
        (tmp_path / "secret").mkdir()
        (tmp_path / "secret" / "key").touch()
        script = (
            "import sys, pathlib; from airlox.sandbox.collect import *\n"
            "found = collect_out(pathlib.Path(sys.argv[1]), CollectCaps())\n"
            "print(found.files, *(s.reason for s in found.skipped))"
        )
        shown = with_bind_mount(tmp_path / "secret", tmp_path / "out" / "mounted", script)
        assert shown == "() on another file system\n"

    def test_a_file_swapped_for_a_link_later_is_not_opened(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "a").write_text("mine")
        (tmp_path / "secret").write_text("key!")
        (file,) = collect_out(tmp_path / "out", CAPS).files
        (tmp_path / "out" / "a").unlink()
        (tmp_path / "out" / "a").symlink_to(tmp_path / "secret")
        with pytest.raises(StorageError):
            file.open()
        (tmp_path / "out" / "a").unlink()
        (tmp_path / "out" / "a").write_text("othr")
        with pytest.raises(StorageError, match="changed"):
            file.open()

    def test_a_folder_swapped_for_a_link_later_is_not_entered(self, tmp_path: Path) -> None:
        for name in ("out/sub", "elsewhere"):
            (tmp_path / name).mkdir(parents=True)
            (tmp_path / name / "a").write_text(name)
        (file,) = collect_out(tmp_path / "out", CAPS).files
        (tmp_path / "out" / "sub").rename(tmp_path / "old")
        (tmp_path / "out" / "sub").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(StorageError):
            file.open()


class TestNames:
    @given(st.text())
    def test_a_portable_name_is_safe_everywhere(self, name: str) -> None:
        try:
            safe = collect.portable_name(name)
        except ValueError:
            return
        assert safe in (name, "_" + name)
        assert not set(safe) & set('/\\:*?"<>|\0\n\x1b')
        assert safe not in (".", "..")
        assert safe.split(".")[0].lower() not in ("con", "nul", "com1")
        assert len(safe.encode()) <= 255
        assert collect.portable_name(safe) == safe

    @given(st.binary())
    def test_what_is_printed_is_printable_and_short(self, name: bytes) -> None:
        shown = collect.printable(os.fsdecode(name))
        assert shown.isprintable()
        assert len(shown) <= 201
        shown.encode("utf-8")


class TestRemove:
    def test_missing_is_fine(self, tmp_path: Path) -> None:
        remove_tree(tmp_path / "none")

    def test_a_file_and_a_link_are_removed_alone(self, tmp_path: Path) -> None:
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "x").touch()
        (tmp_path / "link").symlink_to("kept")
        remove_tree(tmp_path / "link")
        remove_tree(tmp_path / "kept" / "x")
        assert [path.name for path in tmp_path.rglob("*")] == ["kept"]

    def test_links_inside_are_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "x").touch()
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "folder").symlink_to(tmp_path / "kept")
        (tmp_path / "tree" / "file").symlink_to(tmp_path / "kept" / "x")
        remove_tree(tmp_path / "tree")
        assert not (tmp_path / "tree").exists()
        assert (tmp_path / "kept" / "x").exists()

    @pytest.mark.slow
    def test_folders_20000_deep(self, as_user: AsUser) -> None:
        def check(folder: Path) -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
            (folder / "tree").mkdir()
            dig(folder / "tree", 20_000)
            remove_tree(folder / "tree")
            assert not (folder / "tree").exists()

        as_user(check)

    @pytest.mark.parametrize("mode", [0o000, 0o100, 0o200, 0o400, 0o500, 0o600])
    def test_locked_folders(self, as_user: AsUser, mode: int) -> None:
        def check(folder: Path) -> None:
            inner = folder / "tree" / "a" / "b"
            inner.mkdir(parents=True)
            (inner / "file").touch(mode=0o000)
            for path in (inner, inner.parent, folder / "tree"):
                path.chmod(mode)
            remove_tree(folder / "tree")
            assert list(folder.iterdir()) == []

        as_user(check)

    def test_odd_entries(self, as_user: AsUser) -> None:
        def check(folder: Path) -> None:
            tree = folder / "tree"
            tree.mkdir()
            os.mkfifo(tree / "pipe")
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(tree / "socket"))
            for name in (b"\xff\xfe", b"new\nline", b"-rf", b"n" * 255):
                os.mkdir(os.fsencode(tree) + b"/" + name)
            remove_tree(tree)
            assert not tree.exists()

        as_user(check)

    def test_many_files_and_folders(self, tmp_path: Path) -> None:
        tree = tmp_path / "tree"
        tree.mkdir()
        for number in range(3000):
            (tree / f"f{number}").touch()
            (tree / f"d{number}").mkdir()
        remove_tree(tree)
        assert not tree.exists()

    @pytest.mark.slow
    def test_a_hundred_thousand_files(self, tmp_path: Path) -> None:
        tree = tmp_path / "tree"
        tree.mkdir()
        fd = os.open(tree, os.O_RDONLY)
        for number in range(100_000):
            os.close(os.open(f"{number}", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
        os.close(fd)
        remove_tree(tree)
        assert not tree.exists()

    @pytest.mark.parametrize("kernel", ["new", "old"])
    def test_a_mount_is_not_crossed_and_the_rest_goes(self, tmp_path: Path, kernel: str) -> None:
        parts.require("root")
        (tmp_path / "tree" / "a" / "mounted").mkdir(parents=True)
        (tmp_path / "tree" / "b").touch()
        (tmp_path / "precious").mkdir()
        (tmp_path / "precious" / "work").touch()
        script = (
            "import sys; from airlox.errors import StorageError\n"
            "from airlox.sandbox import collect, descent\n"
            f"if {kernel!r} == 'old': descent._syscall = None\n"
            "try: collect.remove_tree(sys.argv[2])\n"
            "except StorageError as e: print(e.code)"
        )
        mounted = tmp_path / "tree" / "a" / "mounted"
        shown = with_bind_mount(tmp_path / "precious", mounted, script, tmp_path / "tree")
        assert shown == "not_removed\n"
        assert (tmp_path / "precious" / "work").exists()
        assert sorted(path.name for path in (tmp_path / "tree").rglob("*")) == ["a", "mounted"]

    def test_what_cannot_be_removed_is_named_and_the_rest_goes(self, tmp_path: Path) -> None:
        parts.require("root")
        with ordinary.folder_of(ordinary.UID) as folder:
            (folder / "tree" / "theirs").mkdir(parents=True)
            (folder / "tree" / "theirs" / "file").touch()
            (folder / "tree" / "mine").touch()
            os.chown(folder / "tree", ordinary.UID, ordinary.UID)

            def check() -> None:
                with pytest.raises(StorageError, match="theirs/file") as raised:
                    remove_tree(folder / "tree")
                assert raised.value.code == "not_removed"

            ordinary.call_as(ordinary.UID, check)
            assert [path.name for path in (folder / "tree").iterdir()] == ["theirs"]


class TestDescent:
    def test_the_way_back_is_checked(self, tmp_path: Path) -> None:
        dig(tmp_path, 60)
        (tmp_path / "other").mkdir()
        with descent.Descent(tmp_path) as place:
            for _ in range(60):
                place.enter("d")
            assert place.depth == 60
            # The sixth folder moves away while this place is far below it.
            (tmp_path / "d/d/d/d/d/d").rename(tmp_path / "other" / "d")
            with pytest.raises(OSError, match="moved"):
                climb(place)
            assert place.depth > 0

    def test_an_error_leaves_the_place_where_it_was(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        (tmp_path / "link").symlink_to(".")
        with descent.Descent(tmp_path) as place:
            for name in ("none", "file", "link"):
                with pytest.raises(OSError):
                    place.enter(name)
            assert place.depth == 0
            assert os.listdir(place.fd)

    @pytest.mark.parametrize("repair", [False, True])
    def test_no_descriptor_is_left(self, tmp_path: Path, repair: bool) -> None:
        dig(tmp_path, 100)
        before = len(os.listdir("/dev/fd"))
        with descent.Descent(tmp_path, repair=repair) as place:
            for _ in range(100):
                place.enter("d")
        assert len(os.listdir("/dev/fd")) == before


def with_bind_mount(source: Path, target: Path, script: str, *arguments: Path) -> str:
    """What a script prints where `source` is also mounted at `target`, for it alone.

    The script's first argument is the folder that holds `target`.
    """
    shell = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    command = [sys.executable, "-c", script, str(target.parent), *map(str, arguments)]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", shell, "sh", str(source), str(target), *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout
