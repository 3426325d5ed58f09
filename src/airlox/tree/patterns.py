"""Ignore patterns, matched in a time that grows with their length and the path's alone.

A pattern file comes with whatever was cloned, so its author may be hostile. The package that
knows what a pattern means makes a regular expression of it whose `*` and `**` each try every
place they could end at, for every place the others could: `*a*a*a*a*` on a name of many `a` takes
hours. The first place at which what stands between two wildcards fits is as good as any later
one, since each element there matches exactly one character, or one part of the path. So
expressions are rewritten to keep the first: what stands between wildcards is atomic.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Final

from airlox.errors import TreeError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

PATTERN_CHARS: Final = 8 * 1024
"""Longest pattern: twice a path, each character of which may be escaped."""

_STAR: Final = "[^/]*"
_ANY_CHARACTER: Final = "[^/]"
_LEADING_FOLDERS: Final = "^(?:.+/)?"
_INNER_FOLDERS: Final = "(?:/.+)?"
_END: Final = "|$)"
_DOTS_MEAN_ALL: Final = "(?s)"
"""A name may hold line feeds."""


def compile_patterns(lines: Iterable[str]) -> GitIgnoreSpec:
    """What the lines of a pattern file leave out.

    Raises ValueError for a pattern that is none, and TreeError without the package pathspec.
    """
    lines = list(lines)
    if any(len(line) > PATTERN_CHARS for line in lines):
        raise ValueError(f"it has over {PATTERN_CHARS} characters")
    try:
        from pathspec import GitIgnoreSpec
    except ImportError:
        raise TreeError(
            "patterns need the package pathspec, which is not installed",
            code="missing_package",
            hint="install it: pip install pathspec",
        ) from None
    try:
        with warnings.catch_warnings():
            # Brackets become a set of characters as they stand, which may mean more one day.
            warnings.simplefilter("ignore", FutureWarning)
            # Other back-ends know no atomic groups, and are chosen where they are installed.
            return GitIgnoreSpec.from_lines(lines, _pattern_type(), backend="simple")
    except re.error as error:
        raise ValueError(str(error)) from None


@cache
def _pattern_type() -> type[GitIgnoreSpecPattern]:
    """Made on first use: its base is slow to import, and most commands need none."""
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    class Pattern(GitIgnoreSpecPattern):
        __slots__ = ()

        @classmethod
        def pattern_to_regex(cls, pattern: str) -> tuple[str | None, bool | None]:  # type: ignore[override]
            source, include = super().pattern_to_regex(pattern)
            return (None if source is None else _DOTS_MEAN_ALL + bounded(source)), include

    return Pattern


def bounded(source: str) -> str:
    """The regular expression of a pattern, rewritten to match the same paths without retrying;
    and where it meant the end of a path, the end it is, not a line feed before it."""
    source = source.replace(_END, r"|\Z)")
    leads = source.startswith(_LEADING_FOLDERS)
    parts = source.removeprefix(_LEADING_FOLDERS).split(_INNER_FOLDERS)
    folders = ["^(?:[^/]+/)*?" if leads else "", *["(?:/[^/]+)*?"] * (len(parts) - 1)]
    *inner, last = [each + _of_names(part) for each, part in zip(folders, parts, strict=True)]
    return "".join(f"(?>{part}(?=/))" for part in inner) + last


def _of_names(part: str) -> str:
    """One name after another: of the stars in each, only the last may try again."""
    # Stars side by side are one.
    first, *chunks = re.sub(r"(\[\^/\]\*)+", _STAR, part).split(_STAR)
    stars = [f"(?>{_STAR}?{chunk})" if _stays(chunk) else _STAR + chunk for chunk in chunks[:-1]]
    return first + "".join(stars) + "".join(_STAR + chunk for chunk in chunks[-1:])


def _stays(chunk: str) -> bool:
    """Whether a piece of an expression ends in the name in which it begins."""
    return "/" not in chunk.replace(_ANY_CHARACTER, "")
