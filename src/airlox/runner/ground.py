"""Where the files of a job's trees come to stand: the work folder, and `.git` in it.

A job's repository is a tree of its own below `.git`. What is known of it is kept beside what is
known of the work folder, out of the jobs' reach; the folder is ours alone: what jobs leave in it
goes, and all of it goes when a job comes without a repository.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airlox import safefs
from airlox.runner.workspace import Owner, Places
from airlox.tree.apply import make_folder, remove_whole
from airlox.tree.state import AppliedState, load_state, save_state

_GIT: Final = ".git"
_KEPT: Final = "repository"


@dataclass(frozen=True, slots=True)
class Ground:
    """`folder` becomes the tree. `state_path` keeps what was applied to it, where that is kept;
    `arrived` what comes of a tree that does not come whole. `untouched` is the tree that stands
    there as it was applied, if that is known; `alone`: nothing else may stand there."""

    folder: Path
    state_path: Path | None
    arrived: Path
    untouched: AppliedState | None = None
    alone: bool = False

    def load(self) -> AppliedState | None:
        if self.untouched is not None or self.state_path is None:
            return self.untouched
        return load_state(self.state_path)

    def save(self, state: AppliedState) -> None:
        """Raises StorageError."""
        if self.state_path is not None:
            save_state(self.state_path, state)


def ground_of_tree(places: Places) -> Ground:
    return Ground(places.work, places.tree_state, places.arrived, places.untouched)


def ground_of_repository(places: Places, owner: Owner) -> Ground:
    """The folder `.git`, made or mended. Blocking. Raises TreeError, StorageError."""
    kept = _kept(places)
    state_path = None
    if places.tree_state is not None:
        safefs.make_private_dir(kept)
        state_path = kept / "tree"
    make_folder(places.work, _GIT.encode(), owner)
    return Ground(places.work / _GIT, state_path, kept / "arrived", alone=True)


def leave_no_repository(places: Places) -> None:
    """Remove the repository that a job before this one had. Blocking. Raises TreeError."""
    kept = _kept(places)
    if kept.exists():
        remove_whole(places.work, _GIT.encode())
        shutil.rmtree(kept, ignore_errors=True)


def _kept(places: Places) -> Path:
    beside = places.job if places.tree_state is None else places.tree_state.parent
    return beside / _KEPT
