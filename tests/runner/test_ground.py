"""airlox.runner.ground: the work folder, and `.git` in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airlox.runner.ground import (
    Ground,
    ground_of_repository,
    ground_of_tree,
    leave_no_repository,
)
from airlox.runner.workspace import Places
from airlox.tree.apply import apply
from support.trees import Node, describe, fetch_from, index_of

REPOSITORY: dict[bytes, Node] = {b"HEAD": ("f", b"ref"), b"refs/.keep": ("f", b"")}


@pytest.fixture(params=["kept", "own"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    for name in ("job", "space", "space/work"):
        (tmp_path / name).mkdir()
    work, kept = tmp_path / "space/work", request.param == "kept"
    return Places(tmp_path / "job", work, work, work, tmp_path / "space/tree" if kept else None)


def put(ground: Ground) -> None:
    ground.save(
        apply(
            index_of(REPOSITORY),
            ground.folder,
            fetch_from(REPOSITORY),
            ground.load(),
            alone=ground.alone,
        )
    )


def test_it_comes_stays_and_goes(places: Places) -> None:
    """[P-TRE-6]"""
    (places.work / "file").write_text("of the job")
    put(ground_of_repository(places, None))
    assert describe(places.work / ".git") == REPOSITORY
    ground = ground_of_repository(places, None)
    known = ground.load()
    assert (known is not None) == (places.tree_state is not None)
    assert known is None or known.tree == index_of(REPOSITORY)
    leave_no_repository(places)
    had_state = places.tree_state is not None
    assert (places.work / ".git").exists() != had_state, "folders of one job go as a whole"
    assert (places.work / "file").read_text() == "of the job"


def test_what_jobs_make_themselves_stays(places: Places) -> None:
    (places.work / ".git").mkdir()
    leave_no_repository(places)
    assert (places.work / ".git").is_dir()


@pytest.mark.parametrize("what", ["link", "file", "fifo", "closed"])
def test_whatever_a_job_left_there(places: Places, tmp_path: Path, what: str) -> None:
    """[P-TRE-6]"""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "HEAD").write_text("theirs")
    git = places.work / ".git"
    if what == "link":
        git.symlink_to(outside)
    elif what == "file":
        git.write_text("gitdir: ../../outside")
    elif what == "fifo":
        os.mkfifo(git)
    else:
        git.mkdir(mode=0)
    put(ground_of_repository(places, None))
    assert not git.is_symlink()
    assert describe(git) == REPOSITORY
    assert describe(outside) == {b"HEAD": ("f", b"theirs")}


def test_trees_and_repositories_are_remembered_apart(places: Places) -> None:
    tree, repository = ground_of_tree(places), ground_of_repository(places, None)
    assert tree.arrived != repository.arrived
    assert not tree.alone
    assert repository.alone
    if places.tree_state is not None:
        assert tree.state_path != repository.state_path
