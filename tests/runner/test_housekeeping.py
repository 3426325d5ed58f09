"""Workspaces of all runners on a machine: listed, and removed while nobody uses them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from airlox.runner.housekeeping import list_workspaces, remove_workspaces
from airlox.runner.workspace import Used, try_lock

DAY_S = 24 * 3600


def make(root: Path, place: str, days: float, size_bytes: int = 10) -> Path:
    """A workspace that was used so many days ago."""
    session, runner, name = place.split("/")
    folder = root / session / runner / "workspaces" / name
    (folder / "work" / "deep").mkdir(parents=True)
    (folder / "work" / "deep").chmod(0)
    used = Used(at_s=time.time() - days * DAY_S, size_bytes=size_bytes)
    (folder / "used").write_bytes(msgspec.json.encode(used))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    places = (("ax_a/box/aaaabbbbcccc", 40.0), ("ax_b/box/dddd", 8.0), ("ax_b/other/eeee", 0.0))
    return [make(tmp_path, place, days) for place, days in places]


def test_all_of_them_the_one_used_last_at_the_end(tmp_path: Path, folders: list[Path]) -> None:
    (tmp_path / "ax_b" / "box" / "spool").mkdir()
    (tmp_path / "ax_b" / "box" / "workspaces" / "file").touch()
    lock = try_lock(folders[1])
    assert lock is not None
    with lock:
        found = list_workspaces(tmp_path)
    assert [(k.session, k.runner, k.name, k.in_use) for k in found] == [
        ("ax_a", "box", "aaaabbbb", False),
        ("ax_b", "box", "dddd", True),
        ("ax_b", "other", "eeee", False),
    ]
    assert [kept.folder for kept in found] == folders
    assert {kept.size_bytes for kept in found} == {10}


def test_the_old_ones_go_but_none_that_is_in_use(tmp_path: Path, folders: list[Path]) -> None:
    lock = try_lock(folders[1])
    assert lock is not None
    with lock:
        removed, held = remove_workspaces(list_workspaces(tmp_path), unused_s=7 * DAY_S)
    assert [kept.folder for kept in removed] == [folders[0]]
    assert [kept.folder for kept in held] == [folders[1]]
    assert [folder.exists() for folder in folders] == [False, True, True]
    removed, held = remove_workspaces(list_workspaces(tmp_path), unused_s=0)
    assert (len(removed), held) == (2, [])


def test_a_damaged_note_counts_as_just_used(tmp_path: Path, folders: list[Path]) -> None:
    (folders[0] / "used").write_bytes(b"{")
    removed, _ = remove_workspaces(list_workspaces(tmp_path), unused_s=7 * DAY_S)
    assert folders[0] not in [kept.folder for kept in removed]


def test_nothing_there(tmp_path: Path) -> None:
    assert list_workspaces(tmp_path / "absent") == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = make(tmp_path / "elsewhere", "ax_z/box/ffff", 100)
    root = tmp_path / "root"
    (root / "ax_a" / "box" / "workspaces").mkdir(parents=True)
    os.symlink(outside, root / "ax_a" / "box" / "workspaces" / "link")
    assert list_workspaces(root) == []
