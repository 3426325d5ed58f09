"""docs/listening.md: its commands are known, its numbers and names are the code's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from airlox.agents import commands, configs, inbox, keeping
from airlox.cli import listen
from airlox.cli.main import EXIT_NO_RESULT, _prepare

PAGE = (Path(__file__).parents[2] / "docs" / "listening.md").read_text()
TEXT = " ".join(PAGE.split())
COMMANDS = re.findall(r"^airlox .*$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_make_sense(line: str) -> None:
    _, _, args = _prepare(shlex.split(line)[1:])
    listen._check(args)  # type: ignore[arg-type]


def test_there_are_some() -> None:
    assert len(COMMANDS) >= 8


def test_every_variable_is_there() -> None:
    told = (commands.ITEMS, commands.BATCH, commands.START, commands.SESSION)
    assert [name for name in (*told, *configs.PASSED_ON) if f"`{name}`" not in PAGE] == []


def test_numbers() -> None:
    assert f"the exit code is {EXIT_NO_RESULT}" in TEXT
    assert f"more than {listen.MAX_HOPS} posts in a row" in TEXT
    assert f"{inbox.BATCH_ITEMS} items at most" in TEXT
    assert f"`--run-timeout` ({listen.RUN_TIMEOUT_S // 60} minutes)" in TEXT
    assert f"`--pending-timeout` ({listen.PENDING_TIMEOUT_S} seconds)" in TEXT
    assert keeping.GRACE_S == 5
    assert "gets TERM, five seconds later KILL" in TEXT
