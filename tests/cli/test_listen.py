"""`airlox listen`: which flags go together. What it does is in tests/e2e/test_listen.py."""

from __future__ import annotations

import pytest

from airlox.agents import configs
from airlox.cli import listen, options
from airlox.cli.main import EXIT_USAGE, main

WRONG = {
    "one of --once, --agent and --exec": ["--once", "--exec", "true"],
    "--agent needs one of --resume": ["--agent", "claude", "--from", "owner"],
    "of --resume ID and --fresh": [
        *("--agent", "claude", "--from", "owner", "--fresh", "--resume", "x")
    ],
    "--agent needs --from": ["--agent", "codex", "--fresh"],
    "--exec needs a command": ["--exec"],
    "is for --exec": ["--once", "--", "true"],
    "go with --agent": ["--fresh"],
    "--timeout goes with --once": ["--timeout", "5"],
    "--run-timeout is": ["--run-timeout", "0"],
    "invalid choice": ["--agent", "cursor"],
    "no session given": ["--once"],
}


@pytest.mark.parametrize("said", WRONG)
def test_flags_that_make_no_sense(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["listen", *WRONG[said]]) == EXIT_USAGE
    assert said in capsys.readouterr().err


def test_defaults_are_those_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["listen", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (listen.RUN_TIMEOUT_S, listen.PENDING_TIMEOUT_S, listen.MAX_HOPS) == (1800, 60, 8)
    for default in ("[30m]", "[60s]", "[8]"):
        assert default in shown


def test_what_makes_another_program_the_listener_is_handed_on() -> None:
    mine = {options.INVITE, options.NAME, options.CACHE_DIR, options.DESCRIPTION}
    assert set(configs.PASSED_ON) == mine
