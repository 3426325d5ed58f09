"""Which files of a tree are wanted back: patterns, and what git would ignore.

Patterns are those of a `.gitignore` at the top of the tree, the last that matches decides; so `**`
is everything, and `!*.log` after it takes logs out. What the `.gitignore` files of the tree keep
out of a commit is passed by, like all of `.git`, unless it is a file of the tree or ignored files
are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from airlox.errors import TreeError
from airlox.tree.beneath import open_regular
from airlox.tree.patterns import compile_patterns

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE: Final = b".gitignore"
IGNORE_BYTES: Final = 256 * 1024
"""A longer file of ignore rules is not read."""
EVERYTHING: Final = "**"


class Wanted:
    """The patterns of one job. `ignored`: new files count although git would ignore them."""

    def __init__(self, patterns: Sequence[str], *, ignored: bool = False) -> None:
        """Raises TreeError for a pattern that is none."""
        self.ignored = ignored
        try:
            self._spec = compile_patterns(patterns)
        except ValueError as e:
            fault = repr(str(e))[1:200]  # it quotes the pattern, which may hold anything
            raise TreeError(f"--pull has a bad pattern: {fault}", code="tree_pattern") from None

    def __contains__(self, path: bytes) -> bool:
        return bool(self._spec.check_file(_text(path)).include)


class IgnoreRules:
    """What the `.gitignore` files of a folder tell, each read once: later changes do not count.

    The folder that a job works in may hold anything: a file of rules that cannot be read, or a
    line that is none, says nothing.
    """

    def __init__(self) -> None:
        self._specs: dict[bytes, GitIgnoreSpec | None] = {}

    def read(self, folder: bytes, folder_fd: int) -> None:
        """Learn the rules of an open folder. Its parents come before it."""
        if folder not in self._specs:
            self._specs[folder] = _compiled(_lines(folder_fd))

    def ignores(self, folder: bytes, name: bytes, *, is_folder: bool) -> bool:
        """Whether something in a folder, which is itself not ignored, is: the nearest rule
        decides."""
        path = _text(name) + ("/" if is_folder else "")
        while True:
            spec = self._specs.get(folder)
            verdict = None if spec is None else spec.check_file(path).include
            if verdict is not None or not folder:
                return bool(verdict)
            folder, _, parent = folder.rpartition(b"/")
            path = f"{_text(parent)}/{path}"


def _text(path: bytes) -> str:
    """The path as patterns see it: no pattern names a newline, but wildcards stand for one."""
    return os.fsdecode(path).replace("\n", "\x01")


def _lines(folder_fd: int) -> list[str]:
    try:
        fd, found = open_regular(folder_fd, IGNORE_FILE)
    except OSError:
        return []
    with os.fdopen(fd, "rb") as file:
        if found.st_size > IGNORE_BYTES:
            return []
        return os.fsdecode(file.read(IGNORE_BYTES)).splitlines()


def _compiled(lines: Iterable[str]) -> GitIgnoreSpec | None:
    lines = [line for line in lines if line.strip() and not line.startswith("#")]
    if not lines:
        return None
    try:
        return compile_patterns(lines)
    except ValueError:
        return compile_patterns([line for line in lines if _is_pattern(line)])


def _is_pattern(line: str) -> bool:
    try:
        compile_patterns((line,))
    except ValueError:
        return False
    return True
