"""airlox.tree.paths: what a path in a tree may be, and how it is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import LimitError, ValidationError
from airlox.tree.paths import check_folder, shown, split


@pytest.mark.parametrize("path", [b"a", b".a/b", b"...", b"\xff\n", b".gitignore", b".git-x/y"])
def test_allowed(path: bytes) -> None:
    check_folder(path)


@pytest.mark.parametrize(
    "path",
    [
        *(b"", b"/a", b"a/", b"a//b", b".", b"..", b"a/../b", b"./a", b"a\0b"),
        *(b".git", b"a/.GIT/b", b".giT/hooks/x", b".airlox-sync-1", b".airlox-sync-x/y"),
    ],
)
def test_refused(path: bytes) -> None:
    with pytest.raises(ValidationError):
        check_folder(path)


@pytest.mark.parametrize(
    "path", [b"a" * 256, b"/".join([b"a" * 200] * 21), b"/".join([b"a"] * 129)]
)
def test_too_long(path: bytes) -> None:
    with pytest.raises(LimitError):
        check_folder(path)


def test_the_bounds_are_inclusive() -> None:
    check_folder(b"/".join([b"a"] * 128))
    check_folder(b"/".join([b"a" * 255] * 16))


def test_split() -> None:
    assert (split(b"a/b/c"), split(b"a")) == ((b"a/b", b"c"), (b"", b"a"))


def test_a_path_is_shown_so_that_a_person_can_tell_it() -> None:
    assert shown(b"src/\xc3\xa9.py") == "src/é.py"
    assert shown(b"a\n\x1b[2J\xff") == "a\\n\\x1b[2J\\xff"
    assert shown("a\u202eb".encode()) == "a\\u202eb"


@given(st.binary())
def test_what_is_shown_cannot_act_on_a_terminal(path: bytes) -> None:
    assert shown(path).isprintable()
