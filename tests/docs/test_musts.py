"""Each rule of docs/protocol.md that carries an id is named by a test that proves it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULE = re.compile(r"^- `\[(P-[A-Z]{3}-\d+)\]`", re.MULTILINE)


def _rules() -> list[str]:
    return RULE.findall((ROOT / "docs" / "protocol.md").read_text())


def _named_in_tests() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__):
            found.update(re.findall(r"\bP-[A-Z]{3}-\d+\b", path.read_text()))
    return found


def test_every_rule_has_a_test() -> None:
    assert sorted(set(_rules()) - _named_in_tests()) == []


def test_no_test_names_a_rule_that_is_gone() -> None:
    assert sorted(_named_in_tests() - set(_rules())) == []


def test_ids_are_used_once() -> None:
    rules = _rules()
    assert len(rules) == len(set(rules))
