"""Configurations for other programs: each is what its format asks for, and a worker's at most."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from typing import Any

import pytest

from airlox.agents import configs
from airlox.agents.configs import CLIENTS, WORKER_TOOLS, Config, Server, config_for
from airlox.errors import UsageError
from airlox.mcp.tools import TOOLS

FOLDER = '/home/me/air "lox" work\\ü'
SERVER = Server(("airlox",), FOLDER)
WORDS = ["mcp", "--tools", "worker", "--allow-dir", FOLDER]


def parsed(client: str, server: Server = SERVER) -> dict[str, Any]:
    text = config_for(client, server).text
    document = tomllib.loads(text) if client == "codex" else json.loads(text)
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("client", CLIENTS)
def test_none_holds_a_link_and_each_says_where_it_comes_from(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRLOX_INVITE", "http://relay.example/s/ax_secret")
    config = config_for(client, SERVER)
    assert "ax_secret" not in "".join(config)
    assert "AIRLOX_INVITE" in config.text
    assert config.text.endswith("\n")


def test_claude() -> None:
    server = parsed("claude")["mcpServers"]["airlox"]
    assert (server["type"], server["command"], server["args"]) == ("stdio", "airlox", WORDS)
    assert server["env"] == {
        "AIRLOX_INVITE": "${AIRLOX_INVITE}",
        "AIRLOX_NAME": "${AIRLOX_NAME:-}",
        "AIRLOX_CACHE_DIR": "${AIRLOX_CACHE_DIR:-}",
        "AIRLOX_DESCRIPTION": "${AIRLOX_DESCRIPTION:-}",
    }
    advice = config_for("claude", SERVER).advice
    allowed = advice.rpartition("--allowedTools ")[2].split(",")
    assert allowed == [f"mcp__airlox__{tool}" for tool in WORKER_TOOLS]


def test_codex() -> None:
    table = parsed("codex")["mcp_servers"]["airlox"]
    assert (table["command"], table["args"]) == ("airlox", WORDS)
    assert table["env_vars"] == list(configs.PASSED_ON)
    assert table["enabled_tools"] == list(WORKER_TOOLS)
    assert table["default_tools_approval_mode"] == "approve"
    assert table["tool_timeout_sec"] > 600


def test_codex_goes_behind_what_a_file_holds() -> None:
    before = 'model = "x"\n\n[tools]\nweb_search = true\n'
    both = tomllib.loads(before + config_for("codex", SERVER).text)
    assert both["tools"] == {"web_search": True}
    assert both["mcp_servers"]["airlox"]["command"] == "airlox"


def test_cursor() -> None:
    server = parsed("cursor")["mcpServers"]["airlox"]
    assert (server["command"], server["args"]) == ("airlox", WORDS)
    assert server["env"] == {"AIRLOX_INVITE": "${env:AIRLOX_INVITE}"}


def test_vscode() -> None:
    server = parsed("vscode")["servers"]["airlox"]
    assert (server["type"], server["command"], server["args"]) == ("stdio", "airlox", WORDS)
    assert server["env"] == {"AIRLOX_INVITE": "${env:AIRLOX_INVITE}"}


def test_opencode() -> None:
    document = parsed("opencode")
    server = document["mcp"]["airlox"]
    assert (server["type"], server["command"]) == ("local", ["airlox", *WORDS])
    assert server["environment"] == {"AIRLOX_INVITE": "{env:AIRLOX_INVITE}"}
    assert {name for name, offered in document["tools"].items() if offered} == {
        f"airlox_{tool}" for tool in WORKER_TOOLS
    }
    assert document["tools"]["airlox_*"] is False


def test_a_worker_looks_answers_and_runs_python() -> None:
    """Nothing that makes, ends or opens sessions, lets anybody in, or hands out links."""
    assert {*configs.READING, *configs.REPLYING, *configs.FILES, "run_python"} == {*WORKER_TOOLS}
    refused = {
        *("create_session", "close_session", "join_session", "get_invites", "revoke_role"),
        *("approve_runner", "reject_runner", "export_audit", "run"),
    }
    assert {tool.name for tool in TOOLS} == refused | {*WORKER_TOOLS}
    assert refused.isdisjoint(WORKER_TOOLS)


def test_what_is_said_to_read_only_reads() -> None:
    hints = {tool.name: tool.hints for tool in TOOLS}
    assert [name for name in configs.READING if not hints[name].read_only] == []


def test_without_a_folder_none_is_named() -> None:
    assert parsed("claude", Server(("airlox",)))["mcpServers"]["airlox"]["args"] == WORDS[:3]


@pytest.mark.parametrize("text", ["", 'a"b\\c', "tab\tnewline\n", "\x00\x1f\x7f", "ü 漢 🦊"])
def test_any_text_is_one_of_toml(text: str) -> None:
    assert tomllib.loads(f"x = {configs.toml_text(text)}") == {"x": text}


def test_another_client() -> None:
    with pytest.raises(UsageError) as caught:
        config_for("emacs", SERVER)
    assert "claude" in (caught.value.hint or "")


@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no sh")
@pytest.mark.parametrize("client", ["claude", "codex"])
def test_the_advice_is_a_command_a_shell_reads(client: str) -> None:
    config: Config = config_for(client, SERVER)
    done = subprocess.run(["sh", "-n", "-c", config.advice], timeout=20, check=False)
    assert done.returncode == 0
