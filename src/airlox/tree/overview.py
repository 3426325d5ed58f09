"""What would go of a tree, what would not, and by which rule: a look before anything is sent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from airlox.tree import git, metadata
from airlox.tree.metadata import Outline
from airlox.tree.scan import EVERYTHING, Choice, Found, LeftOut, root_of, scan

if TYPE_CHECKING:
    AnyPath = str | os.PathLike[str]


class Overview(NamedTuple):
    """A tree before it goes. `stays` says of each file or folder why; a folder that git ignores as
    a whole is named once, with a `/`. `metadata` is what goes of its repository."""

    root: str
    goes: tuple[Found, ...]
    stays: tuple[LeftOut, ...]
    metadata: Outline | None = None

    @property
    def size(self) -> int:
        """Bytes of the files that go, as they are here."""
        return sum(file.size for file in self.goes)


def overview(
    folder: AnyPath, choice: Choice = EVERYTHING, *, git_metadata: bool = False
) -> Overview:
    """The tree that a folder belongs to, with its repository or without. Raises TreeError as `scan`
    and `metadata.look` do."""
    root = root_of(folder).root
    found = scan(root, choice)
    stays = tuple(sorted((*found.left_out, *_ignored(root, found.files))))
    outline = metadata.outline(metadata.look(root)) if git_metadata else None
    return Overview(root, found.files, stays, outline)


def _ignored(root: str, goes: tuple[Found, ...]) -> list[LeftOut]:
    if not git.is_repository(root):
        return []
    sent = {file.path for file in goes}
    listed = [path for path in git.list_ignored_folders(root) if path not in sent]
    rules = git.ignore_rules(root, listed) if listed else {}
    # A folder of which no rule speaks holds nothing but files that are ignored each for itself.
    inside = [os.fsdecode(path) + "**" for path in listed if path not in rules]
    if inside:
        single = [path for path in git.list_ignored(root, inside) if path not in sent]
        rules |= git.ignore_rules(root, single) if single else {}
    return [LeftOut(path, f"ignored by {rule}") for path, rule in rules.items()]
