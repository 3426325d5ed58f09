"""`airlox mcp`: a server of the Model Context Protocol, for agents that start one.

On standard input and output, as agents expect it, or with `--http` on a loopback address. Without
`--no-token` whoever calls over HTTP must show the token in a file that this user alone can read:
every program of every user of this machine can reach the address.
"""

from __future__ import annotations

import os

from airlox.cli import options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.mcp.desk import Desk
    from airlox.mcp.tool import Tool

EXAMPLES = {"mcp": "airlox mcp config claude"}
WORKER = "worker"
CLIENTS = ("claude", "codex", "cursor", "vscode", "opencode")
_PARENT = os.getppid()
"""Who started this process, asked before anything takes time: it may die soon."""


def add_arguments(parser: Parser, command: str) -> bool:
    options.add_profile_flags(parser)
    parser.add_argument("--relay", metavar="URL", help=f"to make sessions on [{options.RELAY}]")
    parser.add_argument("--invite-file", metavar="FILE", help="a session's link to begin with")
    parser.add_argument(
        "--allow-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder that tools may read from and write to; may be repeated [the current one]",
    )
    parser.add_argument(
        "--owner-invite-dir", metavar="DIR", help="where owners' links of new sessions are kept"
    )
    parser.add_argument(
        "--tools",
        type=_names,
        metavar="LIST",
        help=f"serve these tools alone; {WORKER} means those that a worker in a session needs",
    )
    group = parser.add_argument_group("over HTTP")
    group.add_argument("--http", action="store_true", help="serve on http://127.0.0.1, path /mcp")
    group.add_argument(
        "--port", type=options.count, metavar="PORT", help="instead of any that is free"
    )
    group.add_argument(
        "--no-token",
        action="store_true",
        help="let every program on this machine use it",
    )
    actions = options.Actions(parser, required=False)
    leaf = actions.add(
        "config",
        "Print how an agent is told to start this server",
        details="The session's link is not in it: the agent hands AIRLOX_INVITE on.",
        example="airlox mcp config codex --allow-dir ~/airlox-work >> ~/.codex/config.toml",
    )
    leaf.add_argument(
        "--allow-dir",
        dest="folder",
        metavar="DIR",
        help="the folder that its file tools may use: one for this work, not your project",
    )
    leaf.add_argument("client", choices=CLIENTS, metavar="CLIENT", help=", ".join(CLIENTS))
    actions.add(
        "prompt",
        "Print what an agent that works in a session is told",
        example="airlox mcp prompt >> AGENTS.md",
    )
    return True


def run(args: Namespace, voice: Voice) -> int:
    if args.action is not None:
        return {"config": _config, "prompt": _prompt}[args.action](args, voice)
    if not args.http and (args.port or args.no_token):
        raise options.CommandLineError("--port and --no-token go with --http")
    if not args.http and args.invite_file == "-":
        raise options.CommandLineError(
            "standard input is for the protocol", hint=f"give a file, or set {options.INVITE}"
        )
    _serve(args, voice)
    return 0


def _config(args: Namespace, voice: Voice) -> int:
    from airlox.agents.configs import Server, config_for

    folder = None if args.folder is None else os.path.abspath(args.folder)
    config = config_for(args.client, Server(("airlox",), folder))
    if voice.json:
        voice.document({"config": config.text, "file": config.file, "advice": config.advice})
    else:
        voice.say(config.text.rstrip("\n"))
        voice.note(f"belongs in {config.file}; then: {config.advice}")
    return 0


def _prompt(args: Namespace, voice: Voice) -> int:
    from airlox.agents.prompts import worker_prompt

    if voice.json:
        voice.document({"prompt": worker_prompt()})
    else:
        voice.say(worker_prompt().rstrip("\n"))
    return 0


def _serve(args: Namespace, voice: Voice) -> None:
    import gc

    gc.disable()  # what imports make stays: to look through it again and again costs a tenth
    try:
        from airlox.mcp.life import serve_stdio
        from airlox.mcp.tools import TOOLS
    except ModuleNotFoundError as missing:
        raise _not_installed(missing) from None
    tools = _chosen(TOOLS, args.tools)
    desk = _desk(args)
    gc.freeze()
    gc.enable()
    if not args.http:
        if os.isatty(0):
            voice.note("this is for agents to start; airlox mcp config CLIENT sets one up")
        serve_stdio(tools, desk, _PARENT)
        return
    from airlox.mcp.http import serve_http

    def tell(url: str, token_file: str | None) -> None:
        if voice.json:
            voice.json_line({"url": url, "token_file": token_file})
            return
        voice.say(f"serving on {url}")
        voice.say(f"token in {token_file}" if token_file else "no token is needed")

    token_dir = None if args.no_token else _token_dir(args)
    serve_http(tools, desk, port=args.port or 0, token_dir=token_dir, on_ready=tell)


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _chosen(tools: Sequence[Tool], names: tuple[str, ...] | None) -> Sequence[Tool]:
    """Those of `--tools`; all of them where nothing was said. Raises CommandLineError."""
    if names is None:
        return tools
    from airlox.agents.configs import WORKER_TOOLS

    wanted = {each for name in names for each in (WORKER_TOOLS if name == WORKER else (name,))}
    unknown = wanted - {tool.name for tool in tools}
    if unknown or not wanted:
        raise options.CommandLineError(
            f"--tools: there is no tool {min(unknown, default='')!r}",
            hint=f"{WORKER}, or of: {', '.join(tool.name for tool in tools)}",
        )
    return [tool for tool in tools if tool.name in wanted]


def _desk(args: Namespace) -> Desk:
    from airlox.mcp.desk import Desk, DeskOptions

    invite = options.read_invite_file(args.invite_file) if args.invite_file else None
    return Desk(
        DeskOptions(
            cache_dir=options.cache_root(args, os.environ),
            display_name=args.display_name or os.environ.get(options.NAME) or None,
            description=args.description or os.environ.get(options.DESCRIPTION) or None,
            relay=args.relay or os.environ.get(options.RELAY) or None,
            invite=invite or os.environ.get(options.INVITE) or None,
            allow_dirs=tuple(args.allow_dir),
            owner_invite_dir=args.owner_invite_dir,
            state_dirs=tuple(filter(None, [os.environ.get(options.WORK_ROOT)])),
        )
    )


def _token_dir(args: Namespace) -> str:
    return os.path.join(options.cache_root(args, os.environ), "mcp")


def _not_installed(missing: ModuleNotFoundError) -> Exception:
    """The error of an installation without the extra, or the bug that another name is."""
    from airlox.errors import AirloxError

    package = (missing.name or "").partition(".")[0]
    if package in ("airlox", ""):
        return missing
    return AirloxError(
        f"the MCP server needs {package}, which is not installed",
        code="not_installed",
        hint="pip install 'airlox[mcp]'",
    )
