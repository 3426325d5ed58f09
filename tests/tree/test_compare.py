"""airlox.tree.compare: what a job changed is told, however hostile what it left is."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from airlox.tree import compare as comparing
from airlox.tree.apply import apply
from airlox.tree.compare import Baseline, Compared, LeftOut
from airlox.tree.index import Kind
from airlox.tree.wanted import Wanted
from support.trees import Node, change_unseen, fetch_from, git, index_of, make_tree

ROOM = 1 << 16
ALL = Wanted(["**"])
is_root = os.geteuid() == 0
SENT: dict[bytes, Node] = {
    b"a": ("f", b"one"),
    b"d/b": ("x", b"two"),
    b"d/e/c": ("f", b"three"),
    b"l": ("l", b"/etc/passwd"),
}


class Place:
    """A work folder with a tree, about to be changed by a job."""

    def __init__(
        self,
        root: Path,
        *,
        wanted: Wanted = ALL,
        sent: dict[bytes, Node] = SENT,
        there: dict[bytes, Node] | None = None,
    ) -> None:
        """`there`: what an earlier job left."""
        self.root = root
        root.mkdir()
        apply(index_of(sent), root, fetch_from(sent))
        make_tree(root, there or {})
        self._baseline = Baseline(index_of(sent), root, wanted)

    def __call__(self, path: str) -> Path:
        return self.root / path

    def compared(self, room: int = ROOM) -> Compared:
        return self._baseline.compare(room)

    def told(self) -> set[tuple[str, str]]:
        """Everything that changed; nothing must be left out."""
        found = self.compared()
        assert found.left_out == ()
        return {
            (
                os.fsdecode(change.path),
                "new" if not change.before else "changed" if change.after else "deleted",
            )
            for change in found.changes
        }

    def left_out(self, room: int = ROOM) -> dict[str, str]:
        return {left.path: left.reason for left in self.compared(room).left_out}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "work")


def test_nothing_was_done(place: Place) -> None:
    place("a").touch()
    place("d/b").write_bytes(b"two")
    place("d/b").chmod(0o700)
    place("empty").mkdir()
    assert place.told() == set()


def test_each_kind_of_change(place: Place) -> None:
    """[P-PUL-2]"""
    place("a").write_bytes(b"ONE")
    place("d/b").chmod(0o644)
    place("d/e/c").unlink()
    place("l").unlink()
    place("l").symlink_to("elsewhere")
    place("new").write_bytes(b"")
    assert place.told() == {
        ("a", "changed"),
        ("d/b", "changed"),
        ("d/e/c", "deleted"),
        ("l", "changed"),
        ("new", "new"),
    }
    assert [entry.kind for entry in place.compared().changes.after.entries] == [
        Kind.FILE,
        Kind.FILE,
        Kind.LINK,
        Kind.FILE,
    ]


def test_a_file_becomes_a_folder_and_a_folder_a_file(place: Place) -> None:
    place("a").unlink()
    place("a").mkdir()
    place("a/x").touch()
    place("d/e/c").unlink()
    place("d/e").rmdir()
    place("d/e").touch()
    assert place.told() == {("a", "deleted"), ("a/x", "new"), ("d/e", "new"), ("d/e/c", "deleted")}


def test_a_file_becomes_a_link(place: Place) -> None:
    place("a").unlink()
    place("a").symlink_to("/etc/shadow")
    found = place.compared().changes
    assert [entry.kind for entry in found.after.entries] == [Kind.LINK]
    assert set(found.contents.values()) == {b"/etc/shadow"}


def test_what_stood_there_before_is_no_change(tmp_path: Path) -> None:
    place = Place(tmp_path / "work", there={b"old": ("f", b""), b"touched": ("f", b"1")})
    place("touched").write_bytes(b"2")
    assert place.told() == {("touched", "new")}


def test_a_tree_file_that_was_replaced_before_the_job(tmp_path: Path) -> None:
    """An input stands where the tree has a file: what the job leaves of it is no change."""
    root = tmp_path / "work"
    root.mkdir()
    apply(index_of(SENT), root, fetch_from(SENT))
    (root / "a").write_bytes(b"input")
    baseline = Baseline(index_of(SENT), root, ALL)
    assert not baseline.compare(ROOM).changes


def test_git_s_own_is_never_told(place: Place) -> None:
    place(".git").mkdir()
    place(".git/config").touch()
    place("d/.GIT").write_bytes(b"gitdir: /")
    place(".airlox-sync-x").mkdir()
    place(".airlox-sync-x/y").touch()
    assert place.told() == set()


def test_other_repositories_are_left_alone(place: Place) -> None:
    place("clone/deep").mkdir(parents=True)
    git(place("clone"), "init", "-q")
    place("clone/deep/x").touch()
    place("d/.git").mkdir()  # a folder of the tree stays one
    place("d/new").touch()
    assert place.told() == {("d/new", "new")}


RULES: dict[bytes, Node] = {
    b".gitignore": ("f", b"*.log\n/build/\n!kept.log\n\x00[\n"),
    b"d/.gitignore": ("f", b"*.tmp\n!x.log\n"),
    b"build/sent": ("f", b"included all the same"),
    b"d/y": ("f", b""),
}


class TestIgnored:
    def made(self, place: Place) -> None:
        for path in ("x.log", "kept.log", "build/out", "d/x.log", "d/x.tmp", "d/build/z", "y.tmp"):
            place(path).parent.mkdir(exist_ok=True)
            place(path).touch()
        place("build/sent").write_bytes(b"changed")

    def test_what_git_would_ignore_stays(self, tmp_path: Path) -> None:
        place = Place(tmp_path / "work", sent=RULES)
        self.made(place)
        assert place.told() == {
            ("kept.log", "new"),
            ("d/x.log", "new"),
            ("d/build/z", "new"),
            ("y.tmp", "new"),
            ("build/sent", "changed"),
        }

    def test_all_of_it_when_it_is_asked_for(self, tmp_path: Path) -> None:
        wanted = Wanted(["**", "!*.tmp"], ignored=True)
        place = Place(tmp_path / "work", sent=RULES, wanted=wanted)
        self.made(place)
        assert {path for path, _ in place.told()} == {
            *("x.log", "kept.log", "build/out", "build/sent", "d/x.log", "d/build/z"),
        }

    def test_rules_that_the_job_changes_do_not_count(self, tmp_path: Path) -> None:
        there: dict[bytes, Node] = {b"old.log": ("f", b"")}
        place = Place(tmp_path / "work", sent=RULES, there=there)
        place(".gitignore").unlink()
        place("new.log").touch()
        assert place.told() == {(".gitignore", "deleted")}

    @pytest.mark.parametrize("left", ["fifo", "link", "folder", "huge"])
    def test_rules_that_cannot_be_read(self, tmp_path: Path, left: str) -> None:
        place = Place(tmp_path / "work")
        place("n").mkdir()
        rules = place("n/.gitignore")
        match left:
            case "fifo":
                os.mkfifo(rules)
            case "link":
                rules.symlink_to("/dev/zero")
            case "folder":
                rules.mkdir()
            case _:
                rules.write_bytes(b"*\n" * (1 << 20))
        place("n/x").touch()
        found = place.compared(8 << 20)
        assert b"n/x" in {entry.path for entry in found.changes.after.entries}


class TestHostile:
    def test_what_is_no_file(self, place: Place) -> None:
        os.mkfifo(place("fifo"))
        place("a").unlink()
        os.mkfifo(place("a"))
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(place("socket")))
        place("l").unlink()
        assert place.left_out() == {
            "a": "a FIFO",
            "fifo": "a FIFO",
            "socket": "a socket",
            "l": "deleted, but not all that changed could be taken",
        }
        assert not place.compared().changes

    def test_hard_links(self, place: Place) -> None:
        os.link(place("a"), place("twin"))
        assert place.left_out() == {"a": "a hard link", "twin": "a hard link"}

    def test_a_huge_file_with_nothing_in_it(self, place: Place) -> None:
        for path in ("a", "huge"):
            with open(place(path), "wb") as file:
                file.truncate(1 << 40)
        assert set(place.left_out()) == {"a", "huge"}

    def test_closed_files_and_folders(self, place: Place) -> None:
        place("a").write_bytes(b"closed")
        place("a").chmod(0)
        place("n").mkdir()
        place("n/x").touch()
        place("n").chmod(0)
        place("d").chmod(0)
        place("d/b").write_bytes(b"2") if is_root else None
        found = place.compared()
        assert found.left_out == (LeftOut("a", "unreadable"),)
        assert b"n/x" in {entry.path for entry in found.changes.after.entries}

    def test_a_folder_that_became_a_link(self, tmp_path: Path, place: Place) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "b").write_bytes(b"two, from outside")
        place("d/b").unlink()
        place("d/e/c").unlink()
        place("d/e").rmdir()
        place("d").rmdir()
        place("d").symlink_to(outside)
        found = place.compared().changes
        assert [entry.path for entry in found.after.entries] == [b"d"]
        assert set(found.contents.values()) == {os.fsencode(outside)}

    def test_names_that_no_tree_has(self, place: Place) -> None:
        place("git~1").touch()
        place("\x1b[31m\n").touch()
        deep = place.root
        for _ in range(130):
            deep = deep / "n"
        deep.mkdir(parents=True)
        (deep / "x").touch()
        found = place.compared()
        assert {left.reason for left in found.left_out} == {
            "its name can pass for .git",
            "a tree path has over 128 components",
        }
        assert all(left.path.isprintable() for left in found.left_out)
        assert b"\x1b[31m\n" in {entry.path for entry in found.changes.after.entries}

    def test_more_files_than_are_named(self, place: Place) -> None:
        place("a").unlink()
        for number in range(150):
            os.mkfifo(place(f"{number:03}"))
        left_out = place.compared().left_out
        assert len(left_out) == comparing.NAMED
        assert left_out[-1] == LeftOut("…", "and 52 more")

    def test_more_files_than_are_looked_at(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(comparing, "WALKED", 20)
        place("a").unlink()
        for number in range(30):
            place(f"{number:02}").touch()
        found = place.compared()
        assert "not all were looked at" in found.left_out[0].reason
        assert not found.changes.before.entries

    def test_more_files_than_can_be_remembered_before_the_job(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is found then may have been there: only files of the tree are told."""
        monkeypatch.setattr(comparing, "WALKED", 5)
        there: dict[bytes, Node] = {b"%02d" % number: ("f", b"") for number in range(20)}
        place = Place(tmp_path / "work", there=there)
        monkeypatch.undo()
        place("a").write_bytes(b"ONE")
        place("new").touch()
        found = place.compared()
        assert {e.path for e in found.changes.after.entries} <= {b"a"}
        assert "--fresh" in found.left_out[0].reason

    def test_more_files_than_an_archive_holds(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(comparing, "FILES", 2)
        for number in range(4):
            place(f"{number}").write_bytes(bytes([number]))
        assert set(place.left_out()) == {"2", "3"}


def test_what_there_is_no_room_for(place: Place) -> None:
    place("big").write_bytes(os.urandom(5000))
    place("small").write_bytes(b"x")
    place("d/b").unlink()
    found = place.compared(3000)
    assert [entry.path for entry in found.changes.after.entries] == [b"small"]
    reasons = {left.path: left.reason for left in found.left_out}
    assert "no room" in reasons["big"]
    assert reasons["d/b"] == "deleted, but not all that changed could be taken"


def test_a_large_file_that_was_only_touched(tmp_path: Path) -> None:
    sent: dict[bytes, Node] = {b"big": ("f", bytes(100_000))}
    place = Place(tmp_path / "work", sent=sent)
    place("big").touch()
    assert place.told() == set()
    place("big").write_bytes(b"\1" + bytes(99_999))
    assert set(place.left_out(1000)) == {"big"}


def test_the_same_content_takes_room_once(place: Place) -> None:
    content = os.urandom(2000)
    for number in range(10):
        place(f"{number}").write_bytes(content)
    found = place.compared(5000)
    assert len(found.changes.after.entries) == 10
    assert len(found.changes.contents) == 1


def test_bytes_that_change_without_a_trace(in_memory: Path) -> None:
    place = Place(in_memory / "work")
    change_unseen(place("a"), b"eno")
    assert place.told() == {("a", "changed")}
