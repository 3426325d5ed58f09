"""docs/mcp.md: its commands are known, its numbers and names are the code's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from airlox.cli.main import _prepare
from airlox.mcp import use
from airlox.mcp.shapes import UNTRUSTED
from airlox.mcp.tools import TOOLS

PAGE = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text()
TEXT = " ".join(PAGE.split())
COMMANDS = re.findall(r"^airlox .*$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_known(line: str) -> None:
    _prepare(shlex.split(line)[1:])


def test_there_are_some() -> None:
    assert len(COMMANDS) >= 4


def test_numbers_and_words() -> None:
    assert f"{len(TOOLS)} tools" in TEXT
    assert use.WAIT_S + use.GRACE_S <= 50
    assert use.GRACE_S <= 5
    assert "answers within 50 s, unless `wait_s`" in TEXT
    assert f"(at most {use.LONGEST_WAIT_S}) asks for more; then at most 5 s later" in TEXT
    assert f"`{use.HIDDEN}`" in TEXT
    assert all(f"`{name}`" in TEXT for name in UNTRUSTED)


def test_names_of_tools_and_parameters() -> None:
    known = {tool.name for tool in TOOLS}
    known |= {name for tool in TOOLS for name in tool.input_schema["properties"]}
    words = set(re.findall(r"`([a-z]+_[a-z_]+)`", PAGE))
    assert words <= known
    assert {"get_result", "save_dir", "tree_dir", "wait_s"} <= words
