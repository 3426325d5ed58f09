"""Changes: what a job changed of the tree it was given, and the archive in which that travels.

Two indexes say it all: `before` has the files that were changed or deleted, as they were sent;
`after` those that were changed or made, as they are now. So a file in both was changed, one in
`before` alone deleted, one in `after` alone is new, and every path obeys the rules of a tree.

The archive is a ZIP: `before` and `after` are the encoded indexes, and each content of `after` has
its SHA-256 in hex as its name. Nothing else may be in it. The same changes make the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple
from unicodedata import category

from airlox.errors import LimitError, PolicyError, ValidationError
from airlox.protocol.archive import ENTRIES, inspect_zip, read_entry
from airlox.protocol.digest import sha256
from airlox.tree.index import Entry, TreeIndex, parse_index
from airlox.tree.paths import shown
from airlox.tree.wanted import Wanted
from airlox.tree.zips import write_zip

BEFORE: Final = "before"
AFTER: Final = "after"
FILES: Final = ENTRIES - 2
"""Most contents of one archive."""
_GIT_NAMES: Final = (".git", "git~1")
INDEXED_BYTES: Final = 64
"""What a file takes of the archive beside its path and content, in either index."""


class Change(NamedTuple):
    """One file: as it was sent (None: new) and as it is after the job (None: deleted)."""

    path: bytes
    before: Entry | None
    after: Entry | None


@dataclass(frozen=True, slots=True)
class Changes:
    """`contents`: the bytes of each file of `after`, or the target of a link, by their digest."""

    before: TreeIndex
    after: TreeIndex
    contents: Mapping[bytes, bytes]

    def __bool__(self) -> bool:
        return bool(self.before.entries or self.after.entries)

    def __iter__(self) -> Iterator[Change]:
        """One by one, in the order of the paths."""
        old = {entry.path: entry for entry in self.before.entries}
        new = {entry.path: entry for entry in self.after.entries}
        for path in sorted(old.keys() | new.keys()):
            yield Change(path, old.get(path), new.get(path))


NOTHING: Final = Changes(TreeIndex(()), TreeIndex(()), {})


def encode_changes(changes: Changes) -> bytes:
    files = {BEFORE: changes.before.encode(), AFTER: changes.after.encode()}
    files |= {digest.hex(): changes.contents[digest] for digest in sorted(changes.contents)}
    return write_zip([(name, partial(files.__getitem__, name)) for name in files])


def parse_changes(data: bytes, *, most_bytes: int) -> Changes:
    """The changes that `data` encodes, of at most so many bytes unpacked; contents verified.

    Raises ValidationError for anything else.
    """
    found = {entry.path: entry for entry in inspect_zip(data)}
    if sum(entry.size for entry in found.values()) > most_bytes:
        raise LimitError("the changes of a job are larger than the session's items")
    if BEFORE not in found or AFTER not in found:
        raise ValidationError("the archive does not say what a job changed")
    before, after = (
        parse_index(b"".join(read_entry(data, found.pop(name)))) for name in (BEFORE, AFTER)
    )
    sizes = after.sizes()
    if found.keys() != {digest.hex() for digest in sizes}:
        raise ValidationError("the changes of a job have other contents than they name")
    contents = {}
    for digest, size in sizes.items():
        content = b"".join(read_entry(data, found[digest.hex()]))
        if len(content) != size or sha256(content) != digest:
            raise ValidationError("a content among the changes of a job is not what it is called")
        contents[digest] = content
    changes = Changes(before, after, contents)
    _check_meaning(changes)
    return changes


def _check_meaning(changes: Changes) -> None:
    for change in changes:
        if change.before == change.after:
            raise ValidationError(f"{shown(change.path)} is no change")
    if any(b"\0" in changes.contents[e.digest] for e in changes.after.entries if e.kind == "l"):
        raise ValidationError("a link among the changes of a job has an impossible target")


def passes_for_git(path: bytes) -> bool:
    """Whether some file system takes a name in the path for `.git`: one that skips what cannot be
    seen, knows short names, or drops dots and spaces at the end."""
    return any(_plain(name) in _GIT_NAMES for name in path.split(b"/"))


def _plain(name: bytes) -> str:
    seen = "".join(c for c in name.decode("utf-8", "replace") if category(c) not in ("Cf", "Mn"))
    return seen.partition(":")[0].rstrip(" .").casefold()


def check_changes(changes: Changes, wanted: Wanted, sent: TreeIndex | None) -> None:
    """Raises PolicyError unless the changes are of files that were asked for and, where the tree
    that was `sent` is known, begin with what that tree had.

    They need not end in a tree: of a folder that became a file, only the file may have been asked
    for. It finds the folder in its place then.
    """
    for change in changes:
        if passes_for_git(change.path):
            raise PolicyError(f"the runner returns {shown(change.path)}, which can pass for .git")
        if change.path not in wanted:
            raise PolicyError(f"the runner returns {shown(change.path)}, which was not asked for")
    if sent is None:
        return
    old = {entry.path: entry for entry in sent.entries}
    for change in changes:
        if old.get(change.path) != change.before:
            raise PolicyError(f"the runner returns {shown(change.path)} as what it never was")
