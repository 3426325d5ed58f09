"""docs/interop.md names every test with the published 0.1.0, and none that is gone."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (.+?) \| .* \| .* \|$", re.MULTILINE)
TEST = re.compile(r"^ *def test_(\w+)\(", re.MULTILINE)


def _written() -> set[str]:
    return set(ROW.findall((ROOT / "docs/interop.md").read_text(encoding="utf-8"))) - {
        "what happens"
    }


def _tests() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests/interop").glob("test_*.py"):
        found |= {name.replace("_", " ") for name in TEST.findall(path.read_text(encoding="utf-8"))}
    return found


def test_the_page_and_the_tests_agree() -> None:
    """`make interop` writes the page anew."""
    assert sorted(_written() ^ _tests()) == []


def test_every_cell_held() -> None:
    page = (ROOT / "docs/interop.md").read_text(encoding="utf-8")
    held = re.search(r"^(\d+) of (\d+) cells hold\.$", page, re.MULTILINE)
    assert held is not None
    assert held[1] == held[2]
