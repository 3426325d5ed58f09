"""Configurations by which other programs start the MCP server of Airlox as a worker's.

The link comes from AIRLOX_INVITE and is never written down: each client has its own way of handing
an environment variable on. The server itself offers a worker's tools alone; where a configuration
can name tools, it names them too.

The names used here are those of the clients' documents: Claude Code, "MCP" (where `${VAR}` and
`${VAR:-default}` are filled in) and "CLI reference"; Codex, "Configuration reference"; Cursor,
"MCP" (`${env:NAME}`); VS Code, "MCP configuration reference"; opencode, "MCP servers"
(`{env:NAME}`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from airlox.errors import UsageError

SERVER_NAME: Final = "airlox"
INVITE: Final = "AIRLOX_INVITE"
PASSED_ON: Final = (INVITE, "AIRLOX_NAME", "AIRLOX_CACHE_DIR", "AIRLOX_DESCRIPTION")
"""Variables that say who the server is in the session."""

READING: Final = (
    "delivery_status",
    "get_item",
    "list_items",
    "list_runners",
    "session_info",
)
"""Tools that look and change nothing."""
REPLYING: Final = ("send_text",)
FILES: Final = ("get_result", "save_file", "send_file")
"""Tools that reach into the allowed folder; a result's text is to be had by `get_item` too."""
WORKER_TOOLS: Final = tuple(sorted((*READING, *REPLYING, *FILES, "run_python")))
"""What a worker needs. Not `join_session`: the link comes with the start, and one that stands in a
message must not lead an agent elsewhere. Not `run`: that reaches machines of this user."""

TOOL_TIMEOUT_S: Final = 660
"""A tool may wait for 600 s."""
START_TIMEOUT_S: Final = 30


class Server(NamedTuple):
    """How the server is started: the words of its command, and the one folder for files. It offers
    a worker's tools alone, whatever its client lets through."""

    argv: Sequence[str]
    allow_dir: str | None = None

    @property
    def words(self) -> list[str]:
        folder = [] if self.allow_dir is None else ["--allow-dir", self.allow_dir]
        return [*self.argv, "mcp", "--tools", "worker", *folder]


class Config(NamedTuple):
    """A configuration: its text, the file it belongs into, and what else to do, in words."""

    text: str
    file: str
    advice: str


def claude(server: Server) -> Config:
    """For Claude Code: a file for `--mcp-config`, or `.mcp.json`."""
    allowed = ",".join(claude_tool(tool) for tool in WORKER_TOOLS)
    return Config(
        _json({"mcpServers": {SERVER_NAME: claude_server(server)}}),
        "airlox.mcp.json",
        'claude -p "$(airlox mcp prompt)" --mcp-config airlox.mcp.json --strict-mcp-config '
        f"--allowedTools {allowed}",
    )


def codex(server: Server) -> Config:
    """For Codex: tables of its `config.toml`."""
    lines = [f"[mcp_servers.{SERVER_NAME}]"]
    lines += [f"{key} = {value}" for key, value in codex_server(server, WORKER_TOOLS).items()]
    return Config(
        "\n".join(lines) + "\n",
        "~/.codex/config.toml",
        'codex exec -c \'shell_environment_policy.exclude=["AIRLOX_*"]\' "$(airlox mcp prompt)"',
    )


def cursor(server: Server) -> Config:
    """For Cursor: its `mcp.json`."""
    command, *args = server.words
    entry = {"command": command, "args": args, "env": {INVITE: f"${{env:{INVITE}}}"}}
    return Config(
        _json({"mcpServers": {SERVER_NAME: entry}}),
        ".cursor/mcp.json",
        f"start Cursor with {INVITE} set; it asks before a tool is used",
    )


def vscode(server: Server) -> Config:
    """For Visual Studio Code: its `mcp.json`."""
    command, *args = server.words
    entry = {
        "type": "stdio",
        "command": command,
        "args": args,
        "env": {INVITE: f"${{env:{INVITE}}}"},
    }
    return Config(
        _json({"servers": {SERVER_NAME: entry}}),
        ".vscode/mcp.json",
        f"start VS Code with {INVITE} set; it asks before a tool is used",
    )


def opencode(server: Server) -> Config:
    """For opencode: its `opencode.json`. Tools are named there: no other of Airlox is offered."""
    tools = {f"{SERVER_NAME}_*": False}
    tools |= {f"{SERVER_NAME}_{tool}": True for tool in WORKER_TOOLS}
    document = {
        "$schema": "https://opencode.ai/config.json",
        "mcp": {
            SERVER_NAME: {
                "type": "local",
                "command": server.words,
                "enabled": True,
                "environment": {INVITE: f"{{env:{INVITE}}}"},
            }
        },
        "tools": tools,
    }
    return Config(
        _json(document), "opencode.json", f'{INVITE}=… opencode run "$(airlox mcp prompt)"'
    )


CLIENTS: Final[Mapping[str, Callable[[Server], Config]]] = {
    "claude": claude,
    "codex": codex,
    "cursor": cursor,
    "vscode": vscode,
    "opencode": opencode,
}


def config_for(client: str, server: Server) -> Config:
    """The configuration for a client of `CLIENTS`. Raises UsageError for another."""
    if client not in CLIENTS:
        raise UsageError(
            f"no configuration for {client[:40]!r}", hint=f"one of {', '.join(CLIENTS)}"
        )
    return CLIENTS[client](server)


# -- parts that `airlox listen` uses too --------------------------------------------------------


def claude_server(server: Server) -> dict[str, Any]:
    """The entry of one server. What is not set arrives as nothing."""
    command, *args = server.words
    env = {INVITE: f"${{{INVITE}}}"}
    env |= {name: f"${{{name}:-}}" for name in PASSED_ON if name != INVITE}
    return {"type": "stdio", "command": command, "args": args, "env": env}


def claude_tool(tool: str) -> str:
    """How permission rules of Claude Code name a tool."""
    return f"mcp__{SERVER_NAME}__{tool}"


def codex_server(server: Server, tools: Sequence[str]) -> dict[str, str]:
    """Keys and values, in TOML, of one server's table. Only `tools` are offered, without asking."""
    command, *args = server.words
    return {
        "command": toml_text(command),
        "args": toml_list(args),
        "env_vars": toml_list(PASSED_ON),
        "enabled_tools": toml_list(tools),
        "default_tools_approval_mode": toml_text("approve"),
        "startup_timeout_sec": str(START_TIMEOUT_S),
        "tool_timeout_sec": str(TOOL_TIMEOUT_S),
    }


def toml_text(text: str) -> str:
    """A basic string of TOML: escapes are JSON's, but for one more character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_list(words: Sequence[str]) -> str:
    """A list of TOML."""
    return "[" + ", ".join(toml_text(word) for word in words) + "]"


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
