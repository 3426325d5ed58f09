"""airlox.tree.apply: a workspace becomes equal to a tree."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given

from airlox.errors import StorageError, TreeError, ValidationError
from airlox.tree import survey as surveying
from airlox.tree.apply import apply
from airlox.tree.chunks import Cutter
from airlox.tree.index import MAGIC, Entry, Kind, TreeIndex, parse_index
from airlox.tree.read import read_index
from airlox.tree.scan import Choice, scan
from airlox.tree.source import ALL, TreeSource
from airlox.tree.stamps import Stamp, stamp_of
from airlox.tree.state import AppliedState, encode_state, parse_state
from airlox.tree.survey import what_is_lacking
from support.trees import Node, describe, fetch_from, index_of, make_tree, trees

OLD: dict[bytes, Node] = {
    b"a": ("f", b"one"),
    b"d/b": ("x", b"two"),
    b"d/e/c": ("f", b"three"),
    b"l": ("l", b"/etc/passwd"),
}
is_root = os.geteuid() == 0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def nothing(digest: bytes) -> None:
    return None


def put(nodes: dict[bytes, Node], root: Path, state: AppliedState | None = None) -> AppliedState:
    return apply(index_of(nodes), root, fetch_from(nodes), state)


def code_of(nodes: dict[bytes, Node], root: Path, state: AppliedState | None = None) -> str:
    with pytest.raises(TreeError) as caught:
        apply(index_of(nodes), root, nothing, state)
    return caught.value.code


class TestRoundTrip:
    @given(trees, trees, trees)
    def test_any_tree_after_any_tree(
        self, first: dict[bytes, Node], second: dict[bytes, Node], others: dict[bytes, Node]
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            state = parse_state(encode_state(put(first, root)))
            assert describe(root) == first
            lacking = what_is_lacking(index_of(second), root, state)
            new = {sha256(c).digest() for _, c in second.values()}
            assert lacking <= new - {sha256(c).digest() for k, c in first.values() if k != "l"}
            put(second, root, state)
            assert describe(root) == second
            assert not any(folders for _, folders, files in os.walk(root) if not folders + files)

    @given(trees, trees, trees)
    def test_files_of_the_job_stay_where_they_are_not_in_the_way(
        self, first: dict[bytes, Node], second: dict[bytes, Node], made: dict[bytes, Node]
    ) -> None:
        made = {b"job-" + path: node for path, node in made.items()}
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            state = put(first, root)
            make_tree(root, made)
            put(second, root, state)
            assert describe(root) == second | made

    @given(trees)
    def test_applying_a_scan_gives_the_same_tree(self, nodes: dict[bytes, Node]) -> None:
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            make_tree(Path(one), nodes)
            allow = tuple(os.fsdecode(path) for path in nodes)
            found = scan(one, Choice(allow=allow))
            index = read_index(found)
            records = TreeSource(found, index, Cutter(1)).records(dict.fromkeys(index.sizes(), ALL))
            contents = {record.digest: record.data for record in records}
            apply(index, Path(two), lambda digest: (contents[digest],))
            assert describe(Path(two)) == describe(Path(one)) == nodes


class TestOnlyWhatDiffers:
    def test_unchanged_files_are_not_touched_and_nothing_is_fetched(self, root: Path) -> None:
        state = put(OLD, root)
        before = {path: os.lstat(root / os.fsdecode(path)) for path in OLD}
        again = apply(index_of(OLD), root, nothing, state)
        assert again == state
        after = {path: os.lstat(root / os.fsdecode(path)) for path in OLD}
        assert {p: (s.st_ino, s.st_ctime_ns) for p, s in after.items()} == {
            p: (s.st_ino, s.st_ctime_ns) for p, s in before.items()
        }

    def test_unchanged_files_are_not_read(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state = put(OLD, root)
        monkeypatch.setattr(surveying, "pieces", lambda fd: pytest.fail("read"))
        assert what_is_lacking(index_of(OLD), root, state) == frozenset()

    def test_stamps_of_another_boot_are_not_believed(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state = put(OLD, root)
        (root / "a").write_bytes(b"bad")
        forged = state._replace(stamps=survey_stamps(root, state))
        assert what_is_lacking(index_of(OLD), root, forged) == frozenset()
        monkeypatch.setattr(surveying, "boot_id", lambda: b"another")
        assert what_is_lacking(index_of(OLD), root, forged) == {sha256(b"one").digest()}

    def test_a_file_the_job_changed_is_restored(self, root: Path) -> None:
        state = put(OLD, root)
        for path, content in (("a", b"eno"), ("d/b", b"longer")):
            kept = (root / path).stat()
            (root / path).write_bytes(content)
            os.utime(root / path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
        (root / "d/e/c").unlink()
        (root / "l").unlink()
        (root / "l").symlink_to("/etc/shadow")
        lacking = what_is_lacking(index_of(OLD), root, state)
        assert lacking == index_of(OLD).sizes().keys()
        put(OLD, root, state)
        assert describe(root) == OLD

    def test_a_mode_is_restored_without_the_content(self, root: Path) -> None:
        state = put(OLD, root)
        (root / "a").chmod(0o4777)
        (root / "d/b").chmod(0o600)
        mtime = (root / "d/b").stat().st_mtime_ns
        apply(index_of(OLD), root, nothing, state)
        assert describe(root) == OLD
        assert (root / "d/b").stat().st_mtime_ns == mtime

    def test_a_new_executable_bit_costs_no_content(self, root: Path) -> None:
        state = put(OLD, root)
        new = OLD | {b"a": ("x", b"one")}
        state = apply(index_of(new), root, nothing, state)
        assert describe(root) == new
        assert apply(index_of(new), root, nothing, state) == state

    def test_moved_copied_and_swapped_files_cost_no_content(self, root: Path) -> None:
        state = put(OLD, root)
        new: dict[bytes, Node] = {
            b"a": ("f", b"three"),
            b"d/e/c": ("f", b"one"),
            b"moved/b": ("f", b"two"),
            b"copy": ("f", b"one"),
            b"l": ("l", b"/etc/passwd"),
        }
        apply(index_of(new), root, nothing, state)
        assert describe(root) == new

    def test_alone_nothing_else_stays(self, root: Path, tmp_path: Path) -> None:
        """[P-TRE-6]"""
        state = put(OLD, root)
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "kept").write_text("kept")
        (root / "d" / "new").mkdir()
        (root / "d" / "new" / "file").write_text("new")
        (root / "d" / "e" / "link").symlink_to(outside)
        (root / "other").write_text("other")
        os.mkfifo(root / "fifo")
        before = stamp_of((root / "d" / "b").stat())
        state = apply(index_of(OLD), root, nothing, state, alone=True)
        assert describe(root) == OLD
        assert sorted(os.listdir(root)) == ["a", "d", "l"]
        assert stamp_of((root / "d" / "b").stat()) == before
        shutil.rmtree(root / "d")
        (root / "d").symlink_to(outside)
        apply(index_of(OLD), root, fetch_from(OLD), state, alone=True)
        assert describe(root) == OLD
        assert (outside / "kept").read_text() == "kept"

    def test_alone_a_crowd_goes_in_portions(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airlox.tree.apply._BATCH", 3)
        for number in range(10):
            (root / str(number)).write_text("x")
        apply(index_of(OLD), root, fetch_from(OLD), alone=True)
        assert describe(root) == OLD

    def test_a_tree_applied_over_unknown_files_keeps_equal_ones(self, root: Path) -> None:
        make_tree(root, OLD | {b"other": ("f", b"kept")})
        apply(index_of(OLD), root, nothing)
        assert describe(root) == OLD | {b"other": ("f", b"kept")}

    def test_folders_emptied_by_the_tree_go_and_others_stay(self, root: Path) -> None:
        state = put(OLD, root)
        (root / "d/e/build").mkdir()
        (root / "d/e/build/out").write_bytes(b"made by the job")
        (root / "mine").mkdir()
        new: dict[bytes, Node] = {b"d/b": ("x", b"two")}
        state = put(new, root, state)
        assert describe(root) == new | {b"d/e/build/out": ("f", b"made by the job")}
        assert (root / "mine").is_dir()
        put({}, root, state)
        assert sorted(os.listdir(root)) == ["d", "mine"]


def survey_stamps(root: Path, state: AppliedState) -> tuple[Stamp, ...]:
    return tuple(stamp_of(os.lstat(root / os.fsdecode(entry.path))) for entry in state.tree.entries)


class TestPaths:
    @pytest.mark.parametrize(
        "path",
        [
            b"../out",
            b"/out",
            b"d/../../out",
            b"./out",
            b"d//out",
            b"",
            b"d/",
            b"a\0b",
            b".git/hooks/post-checkout",
            b"sub/.GIT/config",
            b".airlox-sync-x/out",
            b"x" * 256,
        ],
    )
    def test_a_path_that_is_none_never_gets_as_far_as_a_workspace(
        self, root: Path, path: bytes
    ) -> None:
        """[P-TRE-1] No index holds it: neither received bytes nor entries make one."""
        state = put(OLD, root)
        entry = Entry(path, Kind.FILE, 3, sha256(b"new").digest())
        head = b"f" + len(path).to_bytes(2, "big") + path
        received = MAGIC + b"\0\0\0\1" + head + (3).to_bytes(8, "big") + entry.digest
        with pytest.raises(ValidationError):
            apply(parse_index(received), root, lambda digest: [b"new"], state)
        with pytest.raises(ValidationError):
            apply(TreeIndex([entry]), root, lambda digest: [b"new"], state)
        assert describe(root) == OLD
        assert os.listdir(root.parent) == ["work"]

    def test_a_link_of_the_tree_is_no_way_out_of_it(self, root: Path, tmp_path: Path) -> None:
        """[P-TRE-1] A file beneath a link replaces the link; where it led stays as it was."""
        (tmp_path / "outside").mkdir()
        state = put({b"d": ("l", os.fsencode(tmp_path / "outside"))}, root)
        put({b"d/file": ("f", b"here")}, root, state)
        assert os.listdir(tmp_path / "outside") == []
        assert describe(root) == {b"d/file": ("f", b"here")}
        with pytest.raises(ValidationError):
            index_of({b"d": ("l", b".."), b"d/file": ("f", b"there")})


class TestContents:
    """[P-TRE-1] Every content is compared with the index before anything is changed."""

    def test_a_missing_content_changes_nothing(self, root: Path) -> None:
        state = put(OLD, root)
        new: dict[bytes, Node] = {b"a": ("f", b"two"), b"n": ("f", b"never sent")}
        assert code_of(new, root, state) == "tree_incomplete"
        assert describe(root) == OLD
        assert sorted(os.listdir(root)) == ["a", "d", "l"]

    @pytest.mark.parametrize("sent", [b"new", b"old ", b"ol", b""])
    @pytest.mark.parametrize("kind", ["f", "l"])
    def test_a_wrong_content_changes_nothing(self, root: Path, sent: bytes, kind: str) -> None:
        state = put(OLD, root)
        index = index_of({b"a": (kind, b"old")})
        with pytest.raises(TreeError) as caught:
            apply(index, root, lambda digest: [sent], state)
        assert caught.value.code == "tree_corrupt"
        assert describe(root) == OLD

    def test_a_link_target_with_nul_is_refused(self, root: Path) -> None:
        with pytest.raises(TreeError) as caught:
            put({b"a": ("l", b"x\0y")}, root)
        assert caught.value.code == "tree_corrupt"

    def test_an_endless_content_is_cut_off(self, root: Path) -> None:
        def endless(digest: bytes) -> Iterator[bytes]:
            while True:
                yield bytes(1000)

        with pytest.raises(TreeError) as caught:
            apply(index_of({b"a": ("f", b"short")}), root, endless)
        assert caught.value.code == "tree_corrupt"

    def test_a_full_disk_changes_nothing(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        state = put(OLD, root)

        def full(fd: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(StorageError) as caught:
            put({b"a": ("f", b"new")}, root, state)
        assert caught.value.code == "disk_full"
        assert describe(root) == OLD


class TestCrash:
    def test_what_a_broken_run_left_is_known_to_the_next(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state = put(OLD, root)
        journal: list[AppliedState] = []
        half: dict[bytes, Node] = {b"n1": ("f", b"1"), b"n2": ("f", b"2"), b"a": ("f", b"3")}
        real, moves = os.rename, iter([True, True, False])

        def breaking(*args: object, **kwargs: object) -> None:
            if not next(moves):
                raise OSError(errno.EIO, "broken")
            real(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "rename", breaking)
        with pytest.raises(TreeError) as caught:
            apply(index_of(half), root, fetch_from(half), state, journal=journal.append)
        assert caught.value.code == "tree_blocked"
        monkeypatch.undo()
        assert describe(root).keys() == {b"a", b"n1"}
        [between] = journal
        assert parse_state(encode_state(between)) == between
        put(OLD, root, between)
        assert describe(root) == OLD

    def test_the_journal_comes_before_the_first_change(self, root: Path) -> None:
        state = put(OLD, root)
        seen: list[dict[bytes, Node]] = []
        new: dict[bytes, Node] = {b"x": ("f", b"new")}
        apply(
            index_of(new),
            root,
            fetch_from(new),
            state,
            journal=lambda _: seen.append(
                {p: n for p, n in describe(root).items() if not p.startswith(b".airlox-sync-")}
            ),
        )
        assert seen == [OLD]

    def test_folders_of_a_killed_run_are_removed(self, root: Path) -> None:
        make_tree(root, {b".airlox-sync-dead/stage/0": ("f", b"half")})
        os.symlink("/etc", root / ".airlox-sync-planted")
        put(OLD, root)
        assert describe(root) == OLD


def in_another_process(script: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True, timeout=60)


class TestHostileLeftovers:
    """A job may leave anything; a write never goes elsewhere, and nothing blocks."""

    def test_folders_replaced_by_links(self, root: Path, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        make_tree(outside, {b"b": ("x", b"two"), b"e/c": ("f", b"three"), b"precious": ("f", b"")})
        state = put(OLD, root)
        shutil.rmtree(root / "d")
        (root / "d").symlink_to(outside)
        before = describe(outside)
        put(OLD | {b"d/new": ("f", b"new")}, root, state)
        assert describe(root) == OLD | {b"d/new": ("f", b"new")}
        assert describe(outside) == before

    def test_removing_does_not_follow_links(self, root: Path, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        make_tree(outside, {b"b": ("x", b"two"), b"e/c": ("f", b"three")})
        state = put(OLD, root)
        shutil.rmtree(root / "d")
        (root / "d").symlink_to(outside)
        put({b"a": ("f", b"one")}, root, state)
        assert describe(outside) == {b"b": ("x", b"two"), b"e/c": ("f", b"three")}

    def test_files_replaced_by_links_fifos_and_sockets(self, root: Path, tmp_path: Path) -> None:
        state = put(OLD, root)
        (tmp_path / "victim").write_bytes(b"one")
        (root / "a").unlink()
        (root / "a").symlink_to(tmp_path / "victim")
        (root / "d/b").unlink()
        os.mkfifo(root / "d/b")
        (root / "d/e/c").unlink()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(root / "d/e/c"))
            put(OLD | {b"a": ("f", b"new")}, root, state)
        assert describe(root) == OLD | {b"a": ("f", b"new")}
        assert (tmp_path / "victim").read_bytes() == b"one"

    def test_a_hard_link_is_not_written_through(self, root: Path, tmp_path: Path) -> None:
        state = put(OLD, root)
        (tmp_path / "victim").write_bytes(b"victim")
        (root / "a").unlink()
        os.link(tmp_path / "victim", root / "a")
        put(OLD, root, state)
        assert (tmp_path / "victim").read_bytes() == b"victim"
        assert describe(root) == OLD

    def test_a_fifo_where_a_folder_was(self, root: Path) -> None:
        state = put(OLD, root)
        shutil.rmtree(root / "d")
        os.mkfifo(root / "d")
        put(OLD, root, state)
        assert describe(root) == OLD

    def test_a_folder_where_a_file_belongs_goes_with_all_in_it(self, root: Path) -> None:
        state = put(OLD, root)
        (root / "a").unlink()
        make_tree(root, {b"a/x/y": ("f", b""), b"a/l": ("l", b"/etc")})
        os.mkfifo(root / "a/x/fifo")
        put(OLD, root, state)
        assert describe(root) == OLD

    def test_an_old_file_that_became_a_folder_of_the_job_stays(self, root: Path) -> None:
        state = put(OLD, root)
        (root / "a").unlink()
        make_tree(root, {b"a/out": ("f", b"made")})
        put({b"b": ("f", b"one")}, root, state)
        assert describe(root) == {b"a/out": ("f", b"made"), b"b": ("f", b"one")}

    def test_endless_nesting(self, root: Path) -> None:
        state = put(OLD, root)
        (root / "a").unlink()
        nest = "import os\nos.mkdir('a'); os.chdir('a')\n"
        nest += "for n in range(3000):\n os.mkdir('n'); os.chdir('n')\nopen('f', 'w')"
        in_another_process(nest, root)
        put(OLD, root, state)
        assert describe(root) == OLD

    def test_closed_folders(self) -> None:
        new = OLD | {b"d/e/c": ("f", b"changed"), b"d/build": ("f", b"now a file")}
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            state = put(OLD, root)
            (root / "d/build/inner").mkdir(parents=True)
            with as_ordinary_user(root):
                for closed in ("d/e", "d/build/inner", "d/build", "d", "."):
                    (root / closed).chmod(0)
                assert what_is_lacking(index_of(OLD), root, state) == frozenset()
                for closed in ("d/e", "d", "."):
                    (root / closed).chmod(0)
                put(new, root, state)
            assert describe(root) == new

    def test_a_crowded_folder_is_removed_in_portions(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airlox.tree.beneath._BATCH", 3)
        make_tree(root, {b"a/%d/%d" % (n % 5, n): ("f", b"") for n in range(50)})
        put({b"a": ("f", b"")}, root)
        assert describe(root) == {b"a": ("f", b"")}

    def test_the_root_is_not_followed(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "way").symlink_to(root)
        assert code_of({}, tmp_path / "way") == "tree_blocked"


@contextmanager
def as_ordinary_user(root: Path) -> Iterator[None]:
    """Give the files in `root` to an ordinary user and act as that user; nothing to do as one."""
    if not is_root:
        yield
        return
    for folder, folders, files in os.walk(root):
        for name in (".", *folders, *files):
            os.chown(os.path.join(folder, name), 65534, 65534, follow_symlinks=False)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(not is_root, reason="only root can give files away")
class TestOwner:
    def test_new_files_and_folders_belong_to_the_job(self, root: Path) -> None:
        state = apply(index_of(OLD), root, fetch_from(OLD), owner=(4711, 4712))
        for path in ("a", "d", "d/b", "d/e", "d/e/c", "l"):
            found = os.lstat(root / path)
            assert (found.st_uid, found.st_gid) == (4711, 4712), path
        again = apply(index_of(OLD), root, nothing, state, owner=(4713, 4713))
        assert os.lstat(root / "a").st_uid == 4713
        assert apply(index_of(OLD), root, nothing, again, owner=(4713, 4713)) == again

    def test_the_umask_does_not_matter(self, root: Path) -> None:
        before = os.umask(0o077)
        try:
            put(OLD, root)
        finally:
            os.umask(before)
        assert describe(root) == OLD
        assert stat.S_IMODE((root / "d/e").stat().st_mode) == 0o755
