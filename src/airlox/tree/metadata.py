"""What a git repository is right now, as far as `git describe`, `git diff`, `git status` and
version plugins ask: its commit and branch, its tags, its index, and how it compares files.

Nothing else of it is looked at: no remotes, no other branches, no reflog, no stash, and of the
person's settings only three, each one of a few known words. `replicate.py` makes a small repository
of it. git may not fetch what it lacks meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from airlox import safefs
from airlox.errors import StorageError, TreeError
from airlox.tree import git

COMMITS: Final = 250_000
"""A longer history does not go."""
SHALLOW_BYTES: Final = 4 << 20
ALONE: Final[Mapping[str, str]] = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
}
"""Variables under which git takes a repository as it stands."""

_ID: Final = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}")
_BOOL: Final = {"true": "true", "yes": "true", "on": "true", "1": "true"} | dict.fromkeys(
    ("false", "no", "off", "0", ""), "false"
)
_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "core.autocrlf": _BOOL | {"input": "input"},
    "core.eol": {"lf": "lf", "crlf": "crlf", "native": "native"},
    "core.filemode": _BOOL,
}
"""What decides whether a file counts as changed, and the words it may be told in."""
_PARTIAL: Final = r"^(remote\..*\.promisor|extensions\.partialclone)$"
_WHICH: Final = r"^core\.(autocrlf|eol|filemode)$"


class Staged(NamedTuple):
    """One entry of git's index. `unseen`: git does not look at the file; `trusted`: nor whether it
    changed."""

    path: bytes
    mode: bytes
    object_id: bytes
    stage: bytes
    unseen: bool = False
    trusted: bool = False

    @property
    def is_submodule(self) -> bool:
        return self.mode == b"160000"


class Repository(NamedTuple):
    """A repository at its commit `head`. `branch` is the full name of what is checked out, None
    where no branch is; `tags` are lines of all its tags, object and name; `shallow` lines of the
    commits whose parents are not there; `partial`: objects may be missing that git would fetch."""

    top: str
    head: bytes
    branch: bytes | None
    object_format: str
    tags: bytes
    shallow: bytes
    partial: bool
    settings: tuple[tuple[str, str], ...]
    staged: tuple[Staged, ...]


class Outline(NamedTuple):
    """How much there is of a repository; `is_shallow`: older commits are not here."""

    commits: int
    tags: int
    is_shallow: bool


def look(top: str) -> Repository:
    """The repository of the work tree `top`. Raises TreeError: `no_repository` where there is
    none, `no_commit` before its first commit."""
    if not git.is_repository(top):
        raise TreeError(
            f"{top} is no git repository: it has no metadata to send",
            code="no_repository",
            hint="run it without --git-metadata",
        )
    head = _ask(top, "rev-parse", "--quiet", "--verify", "HEAD^{commit}").strip()
    if not head:
        raise TreeError(
            f"{top} has no commit yet: there is no git metadata to send",
            code="no_commit",
            hint="commit once, or run it without --git-metadata",
        )
    told = _ask(top, "rev-parse", "--show-object-format", "--git-path", "shallow")
    object_format, _, shallow = told.partition(b"\n")
    return Repository(
        top,
        head,
        _ask(top, "symbolic-ref", "--quiet", "HEAD").strip() or None,
        object_format.decode("ascii"),
        _ask(top, "for-each-ref", "--format=%(objectname) %(refname)", "refs/tags"),
        _read_shallow(os.path.join(os.fsencode(top), shallow.removesuffix(b"\n"))),
        bool(_ask(top, "config", "-z", "--get-regexp", _PARTIAL)),
        _read_settings(top),
        tuple(map(_parse_staged, _ask(top, "ls-files", "-s", "-v", "-z").split(b"\0")[:-1])),
    )


def count_commits(repository: Repository) -> int:
    """Raises TreeError when they are too many."""
    head = repository.head.decode()
    count = int(_ask(repository.top, "rev-list", "--count", f"--max-count={COMMITS + 1}", head))
    if count > COMMITS:
        raise TreeError(
            f"the history of {repository.top} has over {COMMITS} commits: too many to send",
            code="metadata_too_large",
            hint="run it without --git-metadata, or in a shallow clone",
        )
    return count


def reached_tags(repository: Repository) -> bytes:
    """Lines of the tags that point to commits before `head`, or to itself."""
    words = ("--format=%(objectname) %(refname)", f"--merged={repository.head.decode()}")
    return _ask(repository.top, "for-each-ref", *words, "refs/tags")


def outline(repository: Repository) -> Outline:
    """Raises TreeError for too much."""
    tags = len(reached_tags(repository).splitlines())
    return Outline(count_commits(repository), tags, bool(repository.shallow))


def _parse_staged(line: bytes) -> Staged:
    """`H 100644 <object> 0<tab>path`; a small letter says that changes are not looked for."""
    described, _, path = line.partition(b"\t")
    flag, mode, object_id, stage = described.split(b" ")
    return Staged(path, mode, object_id, stage, flag in (b"S", b"s"), flag.islower())


def _read_settings(top: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for line in _ask(top, "config", "-z", "--get-regexp", _WHICH).split(b"\0")[:-1]:
        name, _, value = line.decode("utf-8", "replace").partition("\n")
        word = _SETTINGS.get(name.lower(), {}).get(value.lower())
        if word is not None:
            found[name.lower()] = word
    return tuple(sorted(found.items()))


def _read_shallow(path: bytes) -> bytes:
    try:
        data = safefs.read_bounded(os.fsdecode(path), SHALLOW_BYTES)
    except StorageError as e:
        if e.code != "not_found":
            raise TreeError(e.message, code="git_failed") from None
        return b""
    return b"".join(line + b"\n" for line in data.split() if _ID.fullmatch(line))


def _ask(top: str, *words: str) -> bytes:
    return git.ask(top, words, places=ALONE)
