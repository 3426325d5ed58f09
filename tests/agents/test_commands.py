"""What is started for a batch, word by word: options, environment, and what is never in either."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from airlox.agents import commands, configs
from airlox.agents.commands import AGENTS, Wake
from airlox.agents.configs import Server
from airlox.agents.ledger import Batch, State
from airlox.errors import AirloxError, UsageError

LINK = "http://relay.example/s/ax_secret#key"
SETTINGS = {"AIRLOX_INVITE": LINK, "AIRLOX_CACHE_DIR": "/cache", "AIRLOX_NAME": "coder"}
BATCH = Batch("b-id", ("item-1", "item-2"), (4, 7), State.STARTED, 2)
SERVER = Server(("/usr/bin/python3", "-m", "airlox.cli"))


@pytest.fixture(autouse=True)
def _programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty programs of those names, and a repository to be in."""
    for name in ("claude", "codex", "handle"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("AIRLOX_RELAY", "http://other.example")
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "no codex"))
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    (tmp_path / "repository" / "below").mkdir()
    monkeypatch.chdir(tmp_path / "repository" / "below")


def wake(resume: str | None = None, server: Server = SERVER) -> Wake:
    return Wake(SETTINGS, "ax_session", server, resume)


def codex_settings(argv: list[str]) -> dict[str, Any]:
    """What `-c` says, as Codex reads it: dotted keys, values of TOML."""
    words = [argv[i + 1] for i, word in enumerate(argv) if word == "-c"]
    return tomllib.loads("\n".join(words))


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("resume", [None, "0199-abc"])
def test_an_agent_gets_ids_and_the_environment(agent: str, resume: str | None) -> None:
    command = AGENTS[agent](wake(resume))(BATCH)
    assert command.argv[0] == f"{os.environ['PATH']}/{agent}"
    text = " ".join(command.argv)
    for told in ("item-1", "item-2", "b-id", "ax_session"):
        assert told in text
    assert "ax_secret" not in text
    given = {name: value for name, value in command.env.items() if name.startswith("AIRLOX_")}
    assert given == SETTINGS
    assert command.cwd == os.getcwd()
    assert ("0199-abc" in command.argv) is (resume is not None)


def test_claude() -> None:
    _, *argv = commands.claude_command(wake("0199-abc"))(BATCH).argv
    assert argv[0] == "-p"
    assert not argv[1].startswith("-")
    options = argv[2:]
    assert options[:2] == ["--resume", "0199-abc"]
    assert "--strict-mcp-config" in options
    assert options[options.index("--permission-mode") + 1] == "default"
    servers = json.loads(options[options.index("--mcp-config") + 1])["mcpServers"]
    assert list(servers) == ["airlox"]
    assert [servers["airlox"]["command"], *servers["airlox"]["args"]] == [
        *SERVER.argv,
        "mcp",
        "--tools",
        "worker",
    ]
    # the last option: it takes every word behind it
    assert options[-2] == "--allowedTools"
    assert "Bash" not in options[-1]


def test_codex() -> None:
    _, *argv = commands.codex_command(wake("0199-abc"))(BATCH).argv
    assert argv[:2] == ["exec", "resume"]
    assert argv[-2] == "0199-abc"
    assert not argv[-1].startswith("-")
    settings = codex_settings(argv)
    assert settings["shell_environment_policy"]["exclude"] == ["AIRLOX_*"]
    server = settings["mcp_servers"]["airlox"]
    assert [server["command"], *server["args"]] == [*SERVER.argv, "mcp", "--tools", "worker"]
    assert server["env_vars"] == list(configs.PASSED_ON)
    assert server["required"] is True
    assert server["enabled_tools"] == [*configs.READING, *configs.REPLYING]
    fresh = commands.codex_command(wake())(BATCH).argv
    assert "resume" not in fresh


@pytest.mark.parametrize(
    ("config", "excluded"),
    [
        ('[shell_environment_policy]\nexclude = ["AWS_*", "MY KEY"]\n', ["AWS_*", "MY KEY"]),
        ('shell_environment_policy = "none"\n', []),
        ("[shell_environment_policy]\nexclude = 7\n", []),
        ("[broken", []),
        ("\xff", []),
        (None, []),
    ],
)
def test_what_codex_kept_from_its_shell_stays_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str | None, excluded: list[str]
) -> None:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path))
    if config is not None:
        (tmp_path / "config.toml").write_text(config, "latin-1")
    settings = codex_settings([*commands.codex_command(wake())(BATCH).argv])
    assert settings["shell_environment_policy"]["exclude"] == [*excluded, "AIRLOX_*"]


@pytest.mark.parametrize("agent", AGENTS)
def test_files_are_for_a_folder_that_was_named(agent: str) -> None:
    for folder in (None, "/home/me/inbox"):
        text = " ".join(AGENTS[agent](wake(server=SERVER._replace(allow_dir=folder)))(BATCH).argv)
        assert ("/home/me/inbox" in text) is (folder is not None)
        for tool in configs.FILES:
            assert (tool in text) is (folder is not None)
        for tool in ("run_python", "join_session", "approve_runner"):
            assert tool not in text


def test_codex_wants_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        commands.codex_command(wake())
    assert caught.value.code == "no_repository"
    assert "git init" in (caught.value.hint or "")
    commands.claude_command(wake())


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_that_is_not_installed(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(AirloxError, match=f"'{agent}'") as caught:
        AGENTS[agent](wake())
    assert caught.value.code == "no_program"


def test_the_users_own_command() -> None:
    command = commands.exec_command(("handle", "-v"), SETTINGS, "ax_session")(BATCH)
    assert [*command.argv] == [f"{os.environ['PATH']}/handle", "-v"]
    assert command.env["AIRLOX_ITEMS"] == "item-1 item-2"
    assert (command.env["AIRLOX_BATCH"], command.env["AIRLOX_START"]) == ("b-id", "2")
    assert command.env["AIRLOX_SESSION"] == "ax_session"
    assert command.env["AIRLOX_INVITE"] == LINK


def test_a_command_in_one_word() -> None:
    with pytest.raises(AirloxError) as caught:
        commands.exec_command(("handle -v",), SETTINGS, "ax_session")
    assert caught.value.code == "no_program"
    assert "words of their own" in (caught.value.hint or "")


@pytest.mark.parametrize("word", ["", "-", "--last", "-c", "a b", "x/../y", "a" * 129, "ü"])
def test_no_conversation_reads_as_an_option(word: str) -> None:
    with pytest.raises(UsageError):
        commands.check_conversation(word)


def test_ids_of_both_agents_are_conversations() -> None:
    for word in ("0199a8f3-1111-7abc-8def-0123456789ab", "my-thread", "T.1_x"):
        assert commands.check_conversation(word) == word
