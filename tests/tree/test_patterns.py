"""airlox.tree.patterns: what the package says of a pattern, and never more time than it takes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from airlox.tree.patterns import compile_patterns

# Without `[!a]`: the package lets it match a slash, which git and we do not.
_PIECES = ["a", "b", "*", "**", "***", "/", "/**/", "*/", "?", "[ab]", "\\*", "!", " "]
_patterns = st.lists(st.sampled_from(_PIECES), min_size=1, max_size=10).map("".join)
_names = st.text("ab*", min_size=1, max_size=4)
_paths = st.lists(_names, min_size=1, max_size=5).map("/".join)


@settings(max_examples=400)
@given(_patterns, _paths, st.booleans())
def test_the_same_paths_match(pattern: str, path: str, is_folder: bool) -> None:
    path += "/" if is_folder else ""
    try:
        wanted = GitIgnoreSpec.from_lines([pattern], backend="simple").check_file(path).include
    except ValueError:
        with pytest.raises(ValueError):
            compile_patterns([pattern])
        return
    assert compile_patterns([pattern]).check_file(path).include == wanted


@pytest.mark.parametrize(
    "pattern",
    [
        "**********$*******",
        "a" + "*" * 8190 + "b",
        "a*" * 4000 + "b",
        "*a" * 30 + "b",
        "?*" * 60 + "x",
        "[ab]*" * 30 + "x",
        "/**/a" * 40 + "/b",
        "**/*a*a*a/" * 8 + "c",
        "a/**/" * 60 + "*a*a*b",
    ],
)
@pytest.mark.timeout(60)
def test_a_hostile_pattern_takes_no_longer_than_others(pattern: str) -> None:
    """Each of these would take longer than anybody waits: it must end at all."""
    patterns = compile_patterns([pattern])
    for path in ("a" * 255, "/".join("a" * 128), "/".join(["a" * 200] * 20)):
        assert patterns.check_file(path).include is None


@pytest.mark.parametrize("pattern", ["[[a]", "[a&&b]"])
def test_brackets_that_another_language_may_nest_are_read_without_a_word(pattern: str) -> None:
    assert compile_patterns([pattern]).check_file("a").include


@pytest.mark.parametrize("pattern", ["!", "[b-a]", "a" * 8193])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(ValueError):
        compile_patterns(["a", pattern])


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("a", "a\n", False),
        ("a", "b\n/a", True),
        ("*.log", "a\nb.log", True),
        ("*.log", "a.log\n", False),
        ("**", "\nb", True),
        ("d/**", "d/\n", True),
        ("/b/", "b/x\ny", True),
        ("x/**/y", "x/\n/y", True),
    ],
)
def test_names_with_line_feeds(pattern: str, path: str, matches: bool) -> None:
    assert bool(compile_patterns([pattern]).check_file(path).include) is matches
