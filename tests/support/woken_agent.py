"""Stands where Claude Code or Codex does, by the name it is started under.

`record` writes down how it was started. `answer` starts the MCP server it was told of, as those two
start theirs, reads with its tools what it was woken for, and answers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

RECORD = "STAND_IN_RECORD"
"""Variable that names the file to which `record` adds a line."""
TIMEOUT_S = 60.0
_VARIABLE = re.compile(r"\$\{(\w+)(?::-(.*?))?\}")


def record() -> None:
    """Write down arguments, folder, environment and input."""
    started = {
        "argv": sys.argv,
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        "stdin": sys.stdin.read(),
    }
    with open(os.environ[RECORD], "a") as file:
        print(json.dumps(started), file=file)


class Told(NamedTuple):
    """What the command line said: how to start the server, what may be used of it, what to do."""

    server: list[str]
    environ: dict[str, str]
    allowed: list[str]
    prompt: str


def read_claude(argv: list[str]) -> Told:
    """Variables are filled in where the configuration names them."""
    (server,) = json.loads(argv[argv.index("--mcp-config") + 1])["mcpServers"].values()
    tools = argv[argv.index("--allowedTools") + 1].split(",")
    return Told(
        [server["command"], *server["args"]],
        {name: _filled(value) for name, value in server["env"].items()},
        [tool.removeprefix("mcp__airlox__") for tool in tools],
        argv[1],
    )


def _filled(value: str) -> str:
    return _VARIABLE.sub(lambda found: os.environ.get(found[1], found[2] or ""), value)


def read_codex(argv: list[str]) -> Told:
    """Servers get a few variables, and those that the configuration lists."""
    said = [argv[i + 1] for i, word in enumerate(argv) if word == "-c"]
    server = tomllib.loads("\n".join(said))["mcp_servers"]["airlox"]
    environ = {name: os.environ[name] for name in server["env_vars"] if name in os.environ}
    return Told([server["command"], *server["args"]], environ, server["enabled_tools"], argv[-1])


class Server:
    """A server on the other end of two pipes."""

    def __init__(self, told: Told) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self._told = told
        self._number = 0
        self.process = subprocess.Popen(
            told.server,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=kept | told.environ,
            text=True,
        )

    def say(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
        self.process.stdin.flush()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        assert self.process.stdout is not None
        self._number += 1
        self.say(id=self._number, method=method, params=params)
        for line in self.process.stdout:
            answer = json.loads(line)
            if answer.get("id") == self._number:
                result: dict[str, Any] = answer["result"]
                return result
        raise AssertionError(f"the server ended before it answered {method}")

    def call(self, tool: str, **arguments: Any) -> str:
        assert tool in self._told.allowed, tool
        result = self.ask("tools/call", name=tool, arguments=arguments)
        assert not result.get("isError"), result
        return json.dumps(result)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(TIMEOUT_S)


def answer() -> None:
    """Read each item of the prompt, and answer it with what it says in capitals."""
    name = Path(sys.argv[0]).name
    told = {"claude": read_claude, "codex": read_codex}[name](sys.argv[1:])
    server = Server(told)
    client = {"name": name, "version": "1"}
    server.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
    server.say(method="notifications/initialized")
    offered = {tool["name"] for tool in server.ask("tools/list")["tools"]}
    assert offered.issuperset(told.allowed), (offered, told.allowed)
    for item in re.findall(r"^- (\S+)$", told.prompt, re.MULTILINE):
        assert "what is 6 times 7" in server.call("get_item", item=item)
        server.call("send_text", text=f"42, says {name}", reply_to=item)
    server.end()
