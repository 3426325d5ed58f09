"""Names and texts: the vectors hold the edges, these hold for any of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import PolicyError, ValidationError
from airlox.protocol.names import (
    check_archive_path,
    check_display_text,
    check_safe_name,
    quote_name,
)
from support.vectors import VECTORS

_plain = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=20)
_names = _plain.map(lambda word: f"f-{word}.md")
_anything = st.text(max_size=40)


def _noted_ranges(file: str) -> list[list[int]]:
    """The ranges of refused characters that the reference's vectors carry as a note."""
    found = json.loads((VECTORS / f"{file}.json").read_text())["cases"]
    (note,) = [case for case in found if case["name"] == "illegal-code-points"]
    ranges: list[list[int]] = note["in"]["ranges"]
    return ranges


def _characters(file: str) -> st.SearchStrategy[str]:
    return st.sampled_from(_noted_ranges(file)).flatmap(
        lambda ends: st.integers(*ends).map(chr),
    )


@given(_names, st.integers(0), _characters("names"))
def test_a_refused_character_is_refused_anywhere_in_a_file_name(
    name: str, place: int, character: str
) -> None:
    place %= len(name) + 1
    with pytest.raises(PolicyError):
        check_safe_name(name[:place] + character + name[place:])


@given(_names, st.integers(0), _characters("joins"))
def test_a_refused_character_is_refused_anywhere_in_a_text(
    text: str, place: int, character: str
) -> None:
    place %= len(text) + 1
    with pytest.raises(ValidationError):
        check_display_text(text[:place] + character + text[place:], "name", 64)


@given(_anything)
def test_a_safe_name_is_one_part_that_says_what_it_is(name: str) -> None:
    try:
        check_safe_name(name)
    except PolicyError:
        return
    assert not {"/", "\\", ":", "\0"} & set(name)
    assert name not in (".", "..")
    assert 1 <= len(name.encode()) <= 255
    check_archive_path(name)


@given(st.lists(_names, min_size=1, max_size=32))
def test_a_path_of_safe_names_is_safe(parts: list[str]) -> None:
    path = "/".join(parts)[:512].rstrip("/.")
    check_archive_path(path)
    for unsafe in (f"/{path}", f"{path}//", f"../{path}", f"{path}/..", f"./{path}"):
        with pytest.raises(ValidationError):
            check_archive_path(unsafe)


def test_a_lone_surrogate_is_refused_and_not_an_accident() -> None:
    with pytest.raises(PolicyError):
        check_safe_name("a\ud800.md")
    with pytest.raises(ValidationError):
        check_archive_path("a/\udfff")
    with pytest.raises(ValidationError):
        check_display_text("a\ud800b", "name", 64)


def test_a_leading_dot_is_for_archives_only() -> None:
    check_archive_path(".config/.hidden")
    with pytest.raises(PolicyError):
        check_safe_name(".hidden")


def test_messages_name_the_object_and_stay_on_one_line() -> None:
    with pytest.raises(PolicyError, match=r"'a\\x1b\[2Jb\\n'"):
        check_safe_name("a\x1b[2Jb\n")


@given(_anything | st.text(min_size=200, max_size=400))
def test_quoting_is_short_and_prints(name: str) -> None:
    quoted = quote_name(name)
    assert quoted.isprintable()
    assert len(quoted) <= 80 * len(r"\U0010ffff") + 2
