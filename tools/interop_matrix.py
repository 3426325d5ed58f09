"""Runs every test with the published 0.1.0 package and writes docs/interop.md from what was seen.

`make interop`. One row for each thing that happens, one cell for each mix of software in which it
was tried: who of its people uses ours (O) and who theirs (T). A cell that failed says so, and the
command fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "interop.md"
LETTERS = {"ours": "O", "theirs": "T"}
CHAPTERS = {
    "test_messages.py": "Messages and files",
    "test_addressed.py": "Addressed messages",
    "test_jobs.py": "Jobs",
    "test_runners.py": "Runners",
    "test_caches.py": "Caches",
    "test_ends.py": "Revoking, closing, audit",
    "test_audit.py": "Checking audit trails",
    "test_mcp.py": "The MCP server of 0.1.0",
    "test_full.py": "0.1.0 and sessions that use more",
}
HEAD = """# Together with the published 0.1.0

Every row was run with the real `airlox==0.1.0` in an environment of its own, over our relay as a
process of its own. A cell names who uses what: O is ours, T is theirs, in the order of the column
"people"; ✓ means that the row held in that mix. Written by `make interop`; nobody edits it by hand.
Where the two differ on purpose stands in [the protocol](protocol.md), chapter 10.
"""


class Cell(NamedTuple):
    """One test as it ran: where it stands, what it says, who takes part, which mix."""

    file: str
    sentence: str
    people: str
    mix: str


class Recorder:
    """Notes what pytest collects, and how each of it ended."""

    def __init__(self) -> None:
        self.cells: dict[str, Cell] = {}
        self.failed: set[str] = set()
        self.passed: set[str] = set()

    def pytest_collection_modifyitems(self, items: Iterable[pytest.Item]) -> None:
        for item in items:
            self.cells[item.nodeid] = cell_of(item.nodeid, parameters_of(item))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)


def parameters_of(item: pytest.Item) -> Mapping[str, Any]:
    spec = getattr(item, "callspec", None)
    return {} if spec is None else spec.params


def cell_of(node: str, parameters: Mapping[str, Any]) -> Cell:
    """What a test says of itself, by its name and what it was given."""
    path, _, name = node.partition("::")
    words = name.split("[")[0].split("::")[-1].removeprefix("test_").replace("_", " ")
    people, mix, rest = [], "", []
    for argument, value in parameters.items():
        if argument == "bench":
            people, mix = ["owner", "runner", "sender"], "".join(LETTERS[side] for side in value)
        elif value in LETTERS:
            people.append(argument.removesuffix("_side"))
            mix += LETTERS[value]
        else:
            rest.append(repr(str(value)) if not str(value).isidentifier() else str(value))
    return Cell(Path(path).name, words, ", ".join(people), " ".join([mix or "T", *rest]))


def page(cells: Mapping[str, Cell], passed: set[str]) -> str:
    """The document."""
    parts = [HEAD]
    for file, title in CHAPTERS.items():
        rows: dict[tuple[str, str], list[str]] = {}
        for node, cell in cells.items():
            if cell.file == file:
                mark = "✓" if node in passed else "**failed**"
                rows.setdefault((cell.sentence, cell.people), []).append(f"{cell.mix} {mark}")
        parts.append(f"\n## {title}\n| what happens | people | seen |\n|---|---|---|\n")
        parts += [
            f"| {what} | {who} | {' · '.join(seen)} |\n" for (what, who), seen in rows.items()
        ]
    parts.append(f"\n{len(passed)} of {len(cells)} cells hold.\n")
    return "".join(parts)


def main() -> int:
    os.chdir(ROOT)
    where = ["tests/interop", "-q", "-m", "slow or not slow"]
    recorder = Recorder()
    if status := pytest.main([*where, "--collect-only", "-qq"], plugins=[recorder]):
        return int(status)
    status = pytest.main([*where, "-n", "2", "--dist", "worksteal"], plugins=[recorder])
    PAGE.write_text(page(recorder.cells, recorder.passed - recorder.failed), encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
