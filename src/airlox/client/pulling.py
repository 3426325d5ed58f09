"""What a job changed in the tree it was sent, in its sender's hands.

The runner's archive is looked at when it is first needed, and refused as a whole unless it is what
the job asked for and begins with the tree that was sent. A handle that sent the tree knows its
files; one that was opened later takes the runner's signed word for what they were.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec import UNSET

from airlox.errors import TreeError, UsageError
from airlox.protocol.job import PullTerms

if TYPE_CHECKING:
    from airlox.tree import changes as tree_changes
    from airlox.tree.index import TreeIndex
    from airlox.tree.patch import Patch

MARK_CHARS: Final = 8
"""So much of a job's id ends the name of a version that is saved beside a file."""

Kind = Literal["changed", "new", "deleted"]


class Change(msgspec.Struct, frozen=True):
    """A file that a job changed in the tree. `path` is relative to the top of the tree."""

    path: str
    kind: Kind


class Pulled(msgspec.Struct, frozen=True):
    """What became of a change here.

    `done` is what was done: `changed`, `new`, `deleted`; `same` where the file stood like that
    already; `kept` where it was left alone, for the `reason`. Then `beside` is the path of the
    job's version, if there is one and it could be saved.
    """

    path: str
    done: Literal["changed", "new", "deleted", "same", "kept"]
    reason: str = ""
    beside: str | None = None


class Returned:
    """The changes that came back with one result."""

    def __init__(
        self,
        job: str,
        terms: PullTerms,
        load: Callable[[], bytes | None],
        *,
        most_bytes: int,
        sent: TreeIndex | None,
        root: str | None,
    ) -> None:
        """`load` gives the runner's archive, None when nothing came back. `sent` is the tree and
        `root` its folder, where they are known."""
        self._job = job
        self._terms = terms
        self._load = load
        self._most_bytes = most_bytes
        self._sent = sent
        self._root = root

    @property
    def changes(self) -> tuple[Change, ...]:
        """Raises ProtocolError when the runner returns what it may not, StorageError when it can
        no longer be had."""
        return tuple(Change(os.fsdecode(c.path), _kind(c)) for c in self._changes)

    def apply(self, folder: str | os.PathLike[str] | None = None) -> tuple[Pulled, ...]:
        """Bring the changes into the tree of `folder`, by default where it was sent from.

        A file that is not as it was sent is left alone. Raises as `changes`, and StorageError.
        """
        from airlox.tree.merge import merge

        done = merge(self._changes, self.root(folder), self._job[:MARK_CHARS])
        return tuple(
            Pulled(
                os.fsdecode(each.path),
                each.deed.value,
                each.reason,
                None if each.beside is None else os.fsdecode(each.beside),
            )
            for each in done
        )

    def patch(self, folder: str | os.PathLike[str] | None = None) -> Patch:
        """The changes as a patch; old contents come from the tree of `folder`, by default where
        it was sent from. Raises as `changes`, and TreeError."""
        from airlox.tree.patch import make_patch, old_contents

        return make_patch(self._changes, old_contents(self.root(folder)))

    def root(self, folder: str | os.PathLike[str] | None = None) -> str:
        """The top of the tree that changes go to."""
        from airlox.tree.scan import root_of

        if folder is None and self._root is not None:
            return self._root
        return root_of(os.curdir if folder is None else folder).root

    @cached_property
    def _changes(self) -> tree_changes.Changes:
        from airlox.tree.changes import NOTHING, check_changes, parse_changes
        from airlox.tree.wanted import Wanted

        data = self._load()
        if data is None:
            return NOTHING
        changes = parse_changes(data, most_bytes=self._most_bytes)
        wanted = Wanted(self._terms.patterns, ignored=self._terms.ignored is not UNSET)
        check_changes(changes, wanted, self._sent)
        return changes


def whole(patch: Patch) -> bytes:
    """The patch. Raises TreeError when it lacks a file."""
    if patch.missing:
        named = ", ".join(os.fsdecode(path) for path in patch.missing[:8])
        raise TreeError(
            f"no patch can be made of {named}: what was sent is not here any more",
            code="patch_incomplete",
            hint="apply_changes saves the job's version beside the file",
        )
    return patch.data


def asked_nothing() -> UsageError:
    return UsageError(
        "the job was not asked to return what it changes",
        code="not_pulled",
        hint="run it with pull=[patterns]",
    )


def _kind(change: tree_changes.Change) -> Kind:
    if change.before is None:
        return "new"
    return "deleted" if change.after is None else "changed"
