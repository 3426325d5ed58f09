"""The attack list is whole: every number has tests, every named test is there, and people read it.

The list itself: `support/abuse_list.py`.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from support import abuse_list
from support.abuse_list import CASES, Case
from support.attacks import ATTACKS

ROOT = Path(__file__).resolve().parents[2]
SECTION = "What stops each attack"


def test_no_number_is_missing() -> None:
    assert [case.number for case in CASES] == list(range(1, abuse_list.LAST + 1))


def test_each_attack_is_on_the_list() -> None:
    assert {attack.number for attack in ATTACKS} <= {case.number for case in CASES}


def test_names_of_attacks_are_different() -> None:
    assert len({str(attack) for attack in ATTACKS}) == len(ATTACKS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.number))
def test_each_number_has_tests_and_they_exist(case: Case) -> None:
    assert case.tests
    missing = [name for name in case.tests if not exists(name)]
    assert not missing


def test_the_table_for_people_is_this_one() -> None:
    """`python -m support.abuse_list` prints it anew."""
    text = (ROOT / "docs/security.md").read_text()
    section = text.partition(f"{SECTION}\n")[2].partition("\n## ")[0]
    wanted = abuse_list.table().splitlines()
    lines = section.splitlines()
    begin = lines.index(wanted[0])
    end = lines.index("", begin)
    assert lines[begin:end] == wanted


@cache
def defined_in(path: str) -> frozenset[str]:
    """Every test of a file: `name`, or `class::name`."""
    body = ast.parse((ROOT / path).read_text()).body
    found = set(_functions(body))
    for node in body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{name}" for name in _functions(node.body)}
    return frozenset(found)


def _functions(body: list[ast.stmt]) -> list[str]:
    return [node.name for node in body if isinstance(node, ast.FunctionDef)]


def exists(name: str) -> bool:
    path, _, test = name.partition("::")
    return (ROOT / path).is_file() and test in defined_in(path)
