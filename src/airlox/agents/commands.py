"""What is run for a batch: a command of the user's, Claude Code, or Codex.

A batch is passed on as item ids, never as what others wrote. The invite and the settings of the
listener travel in the environment. Claude Code and Codex hand them to their Airlox server, which
so takes part as the listener; what Codex runs in its shell is started without them, and Claude Code
runs no command that its own settings do not allow. Only the tools for reading and replying may be
used without asking, which is to say, in a program that nobody watches: at all.

The names of options are those of "CLI reference" and "Headless mode" of Claude Code, and of
`codex exec --help` and "Configuration reference" of Codex.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from airlox import safefs
from airlox.agents import configs
from airlox.agents.configs import Server
from airlox.agents.keeping import Command
from airlox.agents.ledger import Batch
from airlox.agents.prompts import woken_prompt
from airlox.errors import AirloxError, StorageError, UsageError

ITEMS: Final = "AIRLOX_ITEMS"
BATCH: Final = "AIRLOX_BATCH"
START: Final = "AIRLOX_START"
SESSION: Final = "AIRLOX_SESSION"

CommandFor = Callable[[Batch], Command]

_CONFIG_BYTES: Final = 1024 * 1024
_CONVERSATION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class Wake(msgspec.Struct, frozen=True):
    """What agents are woken with. `settings` are the variables of `configs.PASSED_ON` that say who
    the listener is; `resume` is a conversation to go on with, None for a new one each time."""

    settings: Mapping[str, str]
    session_id: str
    server: Server
    resume: str | None

    @property
    def tools(self) -> tuple[str, ...]:
        """May be used without asking. Files only where a folder was named for them: without one
        the server would take them from the folder the agent works in."""
        files = configs.FILES if self.server.allow_dir is not None else ()
        return (*configs.READING, *configs.REPLYING, *files)

    @property
    def environ(self) -> dict[str, str]:
        """This process's environment, in which of Airlox there are the listener's settings only."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("AIRLOX_")}
        return kept | dict(self.settings)


def exec_command(argv: Sequence[str], settings: Mapping[str, str], session_id: str) -> CommandFor:
    """Run the user's own command: what it is to look at stands in its environment."""
    program = _find(argv[0])

    def command_for(batch: Batch) -> Command:
        told = {
            ITEMS: " ".join(batch.items),
            BATCH: batch.id,
            START: str(batch.starts),
            SESSION: session_id,
        }
        env = {**os.environ, **settings, **told}
        return Command((program, *argv[1:]), env, os.getcwd())

    return command_for


def claude_command(wake: Wake) -> CommandFor:
    """Run Claude Code. Its other MCP servers stay out: they are none of the senders' business, and
    one of them may be called `airlox` too."""
    program = _find("claude")
    resume = () if wake.resume is None else ("--resume", wake.resume)
    servers = {"mcpServers": {configs.SERVER_NAME: configs.claude_server(wake.server)}}
    options = (
        *resume,
        "--mcp-config",
        json.dumps(servers),
        "--strict-mcp-config",
        "--permission-mode",
        "default",
        "--allowedTools",
        ",".join(configs.claude_tool(tool) for tool in wake.tools),
    )

    def command_for(batch: Batch) -> Command:
        prompt = woken_prompt(batch, wake.session_id)
        return Command((program, "-p", prompt, *options), wake.environ, os.getcwd())

    return command_for


def codex_command(wake: Wake) -> CommandFor:
    """Run Codex, which wants a git repository around it. Raises UsageError without one."""
    program = _find("codex")
    _check_repository(Path.cwd())
    resume, conversation = ([], []) if wake.resume is None else (["resume"], [wake.resume])
    table = configs.codex_server(wake.server, wake.tools) | {"required": "true"}
    values = {f"mcp_servers.{configs.SERVER_NAME}.{key}": value for key, value in table.items()}
    excluded = [*_own_excludes(), "AIRLOX_*"]
    values["shell_environment_policy.exclude"] = configs.toml_list(excluded)
    options = [word for key, value in values.items() for word in ("-c", f"{key}={value}")]

    def command_for(batch: Batch) -> Command:
        prompt = woken_prompt(batch, wake.session_id)
        argv = (program, "exec", *resume, *options, *conversation, prompt)
        return Command(argv, wake.environ, os.getcwd())

    return command_for


AGENTS: Final[Mapping[str, Callable[[Wake], CommandFor]]] = {
    "claude": claude_command,
    "codex": codex_command,
}


def check_conversation(word: str) -> str:
    """An id of a conversation, which must not read as an option. Raises UsageError."""
    if not _CONVERSATION.match(word):
        raise UsageError(
            f"--resume: {word[:40]!r} is no id of a conversation",
            hint="the agent shows the id of each of its conversations; --fresh begins a new one",
        )
    return word


def _find(program: str) -> str:
    """The path of a program. Raises AirloxError when there is none."""
    found = shutil.which(program)
    if found is None:
        raise AirloxError(
            f"there is no program {program[:80]!r} to run",
            code="no_program",
            hint="give program and arguments as words of their own: --exec ./handle.sh ARGUMENT"
            if " " in program
            else "install it, or check PATH",
        )
    return os.path.abspath(found)


def _check_repository(folder: Path) -> None:
    """Codex refuses to work elsewhere, after it was started; here that is said before."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        raise UsageError(
            f"codex works in a git repository only, and {folder} is in none",
            code="no_repository",
            hint="start listen in a repository, or make one: git init",
        )


def _own_excludes() -> list[str]:
    """What the user's Codex keeps from its shell already: a list on the command line takes the
    place of the one in the file, and must not let out what that holds back."""
    home = os.environ.get("CODEX_HOME") or os.path.expanduser("~/.codex")
    try:
        data = safefs.read_bounded(os.path.join(home, "config.toml"), _CONFIG_BYTES)
        policy = tomllib.loads(data.decode()).get("shell_environment_policy", {})
        found = policy.get("exclude", []) if isinstance(policy, dict) else []
    except (StorageError, ValueError):  # Codex says what is wrong with its file
        return []
    return [word for word in found if isinstance(word, str)] if isinstance(found, list) else []
