"""airlox.runner.pulling: what changed goes with the result, or is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airlox.errors import JobRefused
from airlox.protocol import limits
from airlox.protocol.job import CHANGES_NAME, LeftOut, PullTerms
from airlox.protocol.manifest import ContentType
from airlox.runner.outfiles import ITEM_ROOM_BYTES, Gathered, Sendable
from airlox.runner.pulling import first_look, second_look
from airlox.tree.changes import parse_changes
from runner.test_outfiles import manifest
from support.trees import Node, index_of, make_tree

SENT: dict[bytes, Node] = {b"a": ("f", b"one"), b"b": ("f", b"two")}
EVERYTHING = PullTerms(patterns=("**",))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    make_tree(folder, SENT)
    return folder


def test_what_changed_is_one_file_to_send(work: Path) -> None:
    baseline = first_look(EVERYTHING, index_of(SENT), work)
    (work / "a").write_bytes(b"ONE")
    gathered = second_look(baseline, manifest())
    [file] = gathered.files
    assert (file.name, file.subkind, file.mime) == (CHANGES_NAME, "zip", "application/zip")
    assert [*parse_changes(file.body, most_bytes=1 << 20).contents.values()] == [b"ONE"]
    assert gathered.left_out == ()


def test_nothing_changed(work: Path) -> None:
    baseline = first_look(EVERYTHING, index_of(SENT), work)
    assert second_look(baseline, manifest()) == Gathered((), ())


def test_a_pattern_that_is_none(work: Path) -> None:
    with pytest.raises(JobRefused) as caught:
        first_look(PullTerms(patterns=("!",)), index_of(SENT), work)
    assert caught.value.code == "tree_pattern"


def test_a_session_without_archives(work: Path) -> None:
    baseline = first_look(EVERYTHING, index_of(SENT), work)
    (work / "a").write_bytes(b"ONE")
    gathered = second_look(baseline, manifest(allowed=(ContentType.TEXT, ContentType.PY)))
    assert gathered.files == ()
    assert "no ZIP" in gathered.left_out[0].reason


def test_an_item_s_limit_holds_for_what_does_not_shrink(work: Path) -> None:
    """As much as is taken is sent: never an archive that no item of the session can hold."""
    terms = manifest(item_bytes=64 * 1024)
    baseline = first_look(EVERYTHING, index_of(SENT), work)
    for number in range(200):
        (work / f"{number:03}").write_bytes(os.urandom(500))
    gathered = second_look(baseline, terms)
    assert 10_000 < len(gathered.files[0].body) <= terms.max_item_bytes
    assert gathered.left_out


@pytest.mark.parametrize("spare", [6000, 60_000])
def test_one_large_file_that_does_not_shrink(work: Path, spare: int) -> None:
    terms = manifest(item_bytes=32 << 20)
    baseline = first_look(EVERYTHING, index_of(SENT), work)
    (work / "large").write_bytes(os.urandom((32 << 20) - spare))
    gathered = second_look(baseline, terms)
    assert [left.path for left in gathered.left_out] == (["large"] if spare < 30_000 else [])
    assert all(len(f.body) + ITEM_ROOM_BYTES <= terms.max_item_bytes for f in gathered.files)


def test_a_work_folder_that_is_gone(work: Path) -> None:
    baseline = first_look(EVERYTHING, index_of(SENT), work)
    for name in ("a", "b"):
        (work / name).unlink()
    work.rmdir()
    gathered = second_look(baseline, manifest())
    assert gathered.files == ()
    assert gathered.left_out[0].path == "."


def test_what_is_beyond_a_result_is_named() -> None:
    files = tuple(Sendable(f"{n}.png", "image", "image/png", b"") for n in range(62))
    left_out = tuple(LeftOut(path=str(n), reason="x") for n in range(70))
    changes = Gathered((Sendable(CHANGES_NAME, "zip", "application/zip", b""),), left_out)
    both = changes + Gathered(files, left_out)
    assert [file.name for file in both.files][:2] == [CHANGES_NAME, "0.png"]
    assert len(both.files) == limits.OUT_FILES_SENT
    assert len(both.left_out) == limits.LEFT_OUT
    assert both.left_out[-1] == LeftOut(path="…", reason="and 42 more")
