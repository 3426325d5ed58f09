"""docs/messages.md: its commands are known, its tables are the code's, its Python runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from airlox import Session
from airlox.cli import delivery
from airlox.cli.main import EXIT_ERROR, EXIT_RECIPIENT, _prepare
from airlox.client import recipients
from airlox.protocol import limits
from airlox.protocol.addressing import Reason, role_word
from airlox.protocol.keys import Role
from support.relay import RelayThread

PAGE = (Path(__file__).parents[2] / "docs" / "messages.md").read_text()
TEXT = " ".join(PAGE.split())
COMMANDS = re.findall(r"^airlox .*$", PAGE, re.MULTILINE)
CODE = re.compile(r'code="(\w+)"')
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_known(line: str) -> None:
    _prepare(shlex.split(line)[1:])


def test_there_are_some() -> None:
    assert len(COMMANDS) >= 8


def rows_after(title: str) -> list[str]:
    return ROW.findall(PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0])


def test_every_refusal_and_every_reason_is_there() -> None:
    codes = CODE.findall(Path(recipients.__file__).read_text())
    assert sorted([*EXIT_RECIPIENT, "no_such_item"]) == sorted(set(codes))
    assert rows_after("Sending") == list(EXIT_RECIPIENT)
    for code, status in EXIT_RECIPIENT.items():
        assert f"\n| `{code}` | {status} | " in PAGE
    assert rows_after("What is for you") == [reason.value for reason in Reason]


def test_numbers_and_words() -> None:
    assert f"is `no_such_item`, with status {EXIT_ERROR}" in TEXT
    assert f"the newest {delivery.LAST} items" in TEXT
    assert f"at most {limits.DELIVERIES}" in TEXT
    assert f"at most {limits.RECIPIENTS} recipients" in TEXT
    assert ", ".join(f"`{role_word(role)}`" for role in Role) in TEXT


def test_the_python_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = SNIPPET.findall(PAGE)
    assert "timeout=60" in code
    with (
        RelayThread() as relay,
        Session.create(relay.url, cache_dir=tmp_path / "owner") as owner,
        Session.join(owner.invites["sender"], display_name="a", cache_dir=tmp_path / "a") as agent,
        Session.join(owner.invites["sender"], display_name="coder", cache_dir=tmp_path / "c"),
    ):
        exec(code.replace("timeout=60", "timeout=0.5"), {"agent": agent, "owner": owner})
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("owner (<Reason.REPLY: 'reply'>, <Reason.EVERYONE: 'everyone'>) ()")
    assert said[1].endswith("['owner', 'coder']")
