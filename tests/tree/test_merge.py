"""airlox.tree.compare, changes, merge: what a job changed comes back, and nothing else is lost."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airlox.errors import StorageError
from airlox.tree import merge as merging
from airlox.tree.apply import apply
from airlox.tree.beneath import write_all
from airlox.tree.changes import Changes, check_changes, encode_changes, parse_changes
from airlox.tree.compare import Baseline
from airlox.tree.index import TreeIndex
from airlox.tree.merge import Deed, Merged, merge
from airlox.tree.wanted import EVERYTHING, Wanted
from support.trees import Node, describe, fetch_from, git, index_of, make_tree, trees

ROOM = 1 << 20
MARK = "7QkZ0vQ3"
ALL = Wanted([EVERYTHING])
SENT: dict[bytes, Node] = {
    b"a": ("f", b"one"),
    b"d/b": ("x", b"two"),
    b"d/e/c": ("f", b"three"),
    b"l": ("l", b"/etc/passwd"),
}


@contextmanager
def two_folders() -> Iterator[tuple[Path, Path]]:
    """A checkout, and the work folder of a job."""
    with tempfile.TemporaryDirectory() as folder:
        places = Path(folder, "here"), Path(folder, "work")
        for place in places:
            place.mkdir()
        yield places


def clear(folder: Path) -> None:
    for name in os.listdir(os.fsencode(folder)):
        path = os.path.join(os.fsencode(folder), name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def become(folder: Path, nodes: dict[bytes, Node]) -> Callable[[Path], None]:
    """What a job does: whatever was there, this is there then."""
    clear(folder)
    make_tree(folder, nodes)
    return clear


def changed(
    sent: dict[bytes, Node], work: Path, job: Callable[[], object], wanted: Wanted = ALL
) -> Changes:
    """What a job changed, as its sender gets it."""
    apply(index_of(sent), work, fetch_from(sent))
    baseline = Baseline(index_of(sent), work, wanted)
    job()
    compared = baseline.compare(ROOM)
    assert compared.left_out == ()
    changes = parse_changes(encode_changes(compared.changes), most_bytes=2 * ROOM)
    check_changes(changes, wanted, index_of(sent))
    return changes


def told(done: tuple[Merged, ...]) -> dict[bytes, tuple[Deed, str]]:
    return {each.path: (each.deed, each.reason) for each in done}


def brought(
    tmp_path: Path, after: dict[bytes, Node], here: dict[bytes, Node], wanted: Wanted = ALL
) -> tuple[dict[bytes, tuple[Deed, str]], dict[bytes, Node]]:
    """SENT becomes `after` there, while it becomes `here` here."""
    checkout, work = tmp_path / "here", tmp_path / "work"
    for folder in (checkout, work):
        folder.mkdir()
    make_tree(checkout, here)
    changes = changed(SENT, work, lambda: become(work, after), wanted)
    return told(merge(changes, checkout, MARK)), describe(checkout)


@settings(max_examples=40)
@given(trees, trees)
def test_the_checkout_becomes_what_the_job_made_of_the_tree(
    sent: dict[bytes, Node], after: dict[bytes, Node]
) -> None:
    with two_folders() as (here, work):
        make_tree(here, sent)
        done = merge(changed(sent, work, lambda: become(work, after)), here, MARK)
        assert describe(here) == after
        assert not {each.deed for each in done} & {Deed.KEPT, Deed.SAME}
        assert {each.path for each in done} == {
            path for path in sent.keys() | after.keys() if sent.get(path) != after.get(path)
        }


@settings(max_examples=40)
@given(trees, trees, trees, st.data())
def test_what_changed_here_meanwhile_is_never_lost(
    sent: dict[bytes, Node],
    after: dict[bytes, Node],
    edited: dict[bytes, Node],
    data: st.DataObject,
) -> None:
    """[P-PUL-4]"""
    chosen = data.draw(st.sampled_from([edited, sent]) if edited else st.just(sent))
    with two_folders() as (here, work):
        make_tree(here, chosen)
        changes = changed(sent, work, lambda: become(work, after))
        done = merge(changes, here, MARK)
        now = describe(here)
        for path, node in chosen.items():
            if node != sent.get(path):
                assert now[path] == node
        for each in done:
            if each.beside is not None:
                assert now[each.beside] == after[each.path]
            if each.deed in (Deed.CHANGED, Deed.NEW):
                assert now[each.path] == after[each.path]
        assert not [path for path in now if merging.TEMPORARY in path]


@settings(max_examples=20)
@given(trees, trees)
def test_what_does_not_match_stays_there(sent: dict[bytes, Node], after: dict[bytes, Node]) -> None:
    wanted = Wanted(["a", "!a/b"])
    with two_folders() as (here, work):
        make_tree(here, sent)
        changes = changed(sent, work, lambda: become(work, after), wanted)
        for change in changes:
            assert change.path in wanted
        merge(changes, here, MARK)
        now = describe(here)
        for path in sent.keys() | after.keys():
            if path not in wanted:
                assert now.get(path) == sent.get(path)


def test_a_file_that_changed_here_is_kept_and_the_other_saved_beside(tmp_path: Path) -> None:
    done, now = brought(tmp_path, SENT | {b"a": ("f", b"ONE")}, SENT | {b"a": ("f", b"mine")})
    assert done == {b"a": (Deed.KEPT, "it changed here meanwhile")}
    assert now == SENT | {b"a": ("f", b"mine"), b"a.airlox-7QkZ0vQ3": ("f", b"ONE")}


def test_what_is_saved_beside_takes_no_name_that_is_taken(tmp_path: Path) -> None:
    beside = {b"a.airlox-7QkZ0vQ3": ("f", b"kept"), b"a.airlox-7QkZ0vQ3-1": ("f", b"ONE")}
    here = SENT | {b"a": ("f", b"mine")} | beside
    _, now = brought(tmp_path, SENT | {b"a": ("f", b"ONE")}, here)
    assert now == here  # the second holds these very bytes already


def test_only_the_executable_bit_changed_here(tmp_path: Path) -> None:
    done, now = brought(tmp_path, SENT | {b"a": ("f", b"ONE")}, SENT | {b"a": ("x", b"one")})
    assert done[b"a"][0] is Deed.KEPT
    assert now[b"a"] == ("x", b"one")


def test_permissions_here_stay_but_for_the_executable_bit(tmp_path: Path) -> None:
    here, work = tmp_path / "here", tmp_path / "work"
    for folder in (here, work):
        folder.mkdir()
    make_tree(here, SENT)
    (here / "a").chmod(0o4640)
    changes = changed(SENT, work, lambda: (work / "a").chmod(0o755))
    merge(changes, here, MARK)
    assert stat.S_IMODE((here / "a").stat().st_mode) == 0o750


def test_a_link_becomes_a_file_like_any_new_one(tmp_path: Path) -> None:
    _, now = brought(tmp_path, SENT | {b"l": ("x", b"#!")}, SENT)
    assert now[b"l"] == ("x", b"#!")


def test_a_file_that_was_deleted_here_stays_deleted(tmp_path: Path) -> None:
    here = {path: node for path, node in SENT.items() if path != b"a"}
    done, now = brought(tmp_path, SENT | {b"a": ("f", b"ONE")}, here)
    assert done == {b"a": (Deed.KEPT, "it was deleted here meanwhile")}
    assert now == here | {b"a.airlox-7QkZ0vQ3": ("f", b"ONE")}


def test_a_changed_file_is_not_deleted(tmp_path: Path) -> None:
    after = {path: node for path, node in SENT.items() if path != b"a"}
    here = SENT | {b"a": ("f", b"mine")}
    done, now = brought(tmp_path, after, here)
    assert done == {b"a": (Deed.KEPT, "it changed here meanwhile")}
    assert now == here


def test_emptied_folders_go(tmp_path: Path) -> None:
    after = {path: node for path, node in SENT.items() if not path.startswith(b"d/")}
    done, now = brought(tmp_path, after, SENT)
    assert now == after
    assert not (tmp_path / "here" / "d").exists()
    assert set(done) == {b"d/b", b"d/e/c"}


def test_the_folder_one_is_in_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "here" / "d" / "e"
    folder.mkdir(parents=True)
    shutil.copytree(tmp_path / "here", tmp_path / "other")
    monkeypatch.chdir(folder)
    (tmp_path / "work").mkdir()
    make_tree(tmp_path / "here", SENT)
    merge(
        changed(SENT, tmp_path / "work", lambda: clear(tmp_path / "work")), tmp_path / "here", MARK
    )
    assert describe(tmp_path / "here") == {}
    assert folder.is_dir()


def test_a_new_file_takes_no_name(tmp_path: Path) -> None:
    done, now = brought(tmp_path, SENT | {b"new": ("f", b"1")}, SENT | {b"new": ("f", b"2")})
    assert done == {b"new": (Deed.KEPT, "another file of that name is here")}
    assert now[b"new"] == ("f", b"2")
    assert now[b"new.airlox-7QkZ0vQ3"] == ("f", b"1")


def test_a_link_on_the_way_is_not_followed(tmp_path: Path) -> None:
    """A folder that became a link here leads nowhere."""
    outside = tmp_path / "outside"
    outside.mkdir()
    here = {path: node for path, node in SENT.items() if not path.startswith(b"d/")}
    here[b"d"] = ("l", os.fsencode(outside))
    done, now = brought(tmp_path, SENT | {b"d/b": ("x", b"2"), b"d/new": ("f", b"3")}, here)
    assert {deed for deed, _ in done.values()} == {Deed.KEPT}
    assert now == here
    assert list(outside.iterdir()) == []


def test_a_folder_that_became_a_file_of_which_only_the_file_is_wanted(tmp_path: Path) -> None:
    after = {b"a": SENT[b"a"], b"d": ("f", b"file"), b"l": SENT[b"l"], b"a2/x": ("f", b"")}
    done, now = brought(tmp_path, after, SENT | {b"a2": ("f", b"")}, Wanted(["d", "!d/**", "a2"]))
    assert done == {
        b"a2/x": (Deed.KEPT, "a folder on its way is a file or a link here"),
        b"d": (Deed.KEPT, "something that is no file is here"),
    }
    assert now == SENT | {b"a2": ("f", b""), b"d.airlox-7QkZ0vQ3": ("f", b"file")}


def test_what_stands_there_already_is_no_conflict(tmp_path: Path) -> None:
    after = SENT | {b"a": ("f", b"ONE"), b"n": ("f", b"new")}
    done, now = brought(tmp_path, after, after)
    assert {deed for deed, _ in done.values()} == {Deed.SAME}
    assert now == after


def test_nothing_is_written_into_another_repository(tmp_path: Path) -> None:
    inner = tmp_path / "here" / "sub"
    inner.mkdir(parents=True)
    git(inner, "init", "-q")
    (tmp_path / "work").mkdir()
    changes = changed(
        {}, tmp_path / "work", lambda: become(tmp_path / "work", {b"sub/x": ("f", b"")})
    )
    done = merge(changes, tmp_path / "here", MARK)
    assert told(done) == {b"sub/x": (Deed.KEPT, "it is in another repository")}
    assert done[0].beside is None
    assert os.listdir(inner) == [".git"]


def test_a_disk_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **places: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    done, now = brought(tmp_path, SENT | {b"new": ("x", b"1")}, SENT)
    assert done == {b"new": (Deed.NEW, "")}
    assert now == SENT | {b"new": ("x", b"1")}


def test_an_interruption_leaves_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object, **places: object) -> None:
        raise KeyboardInterrupt

    here, work = tmp_path / "here", tmp_path / "work"
    for folder in (here, work):
        folder.mkdir()
    make_tree(here, SENT)
    changes = changed(SENT, work, lambda: become(work, SENT | {b"a": ("f", b"ONE")}))
    monkeypatch.setattr(os, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        merge(changes, here, MARK)
    assert describe(here) == SENT


def test_a_file_that_changes_while_it_is_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, work = tmp_path / "here", tmp_path / "work"
    for folder in (here, work):
        folder.mkdir()
    make_tree(here, SENT)
    changes = changed(SENT, work, lambda: become(work, SENT | {b"a": ("f", b"ONE")}))

    def edit(fd: int, data: bytes) -> None:
        (here / "a").write_bytes(b"mine")
        write_all(fd, data)

    monkeypatch.setattr("airlox.tree.merge.write_all", edit)
    assert told(merge(changes, here, MARK)) == {b"a": (Deed.KEPT, "it is being changed here")}
    assert (here / "a").read_bytes() == b"mine"


def test_a_root_that_is_not_there(tmp_path: Path) -> None:
    changes = Changes(TreeIndex(()), TreeIndex(()), {})
    with pytest.raises(StorageError):
        merge(changes, tmp_path / "none", MARK)
