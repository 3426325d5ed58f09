"""The table of limits in docs/self-hosting.md is the relay's own."""

from __future__ import annotations

from pathlib import Path

from airlox.relay.config import Config, bounds_of, limit_fields, setting_of

PAGE = Path(__file__).parents[2] / "docs" / "self-hosting.md"


def test_every_limit_stands_in_the_table_with_its_default() -> None:
    expected = []
    for field in limit_fields():
        flag, default = setting_of(Config(), field.name).split()
        expected.append(f"| `{flag}` | {default} | {bounds_of(field).text} |")
    table = PAGE.read_text().partition("\n## Limits\n")[2]
    assert [line for line in table.splitlines() if line.startswith("| `--")] == expected
