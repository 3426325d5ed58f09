"""The front door: finds the command, runs it, and turns what happened into an exit code.
The codes stand in `topics/exit-codes.txt`.

Each command lives in a module of its own, imported when it is chosen, with
`add_arguments(parser, command)` and `run(args, voice) -> exit code`. This is the only place that
turns errors into codes. `--version` and `--help` import nothing but the table below.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from airlox.cli.output import Voice

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NOT_VERIFIED = 65
EXIT_NO_RESULT = 75
EXIT_NO_SANDBOX = 78
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141
EXIT_RECIPIENT = {
    "no_recipients": 66,
    "no_such_participant": 67,
    "ambiguous_name": 68,
    "participant_left": 69,
    "no_such_role": 70,
}
"""Why nobody can be told whom a message is for, by the error's code."""
EXIT_TRANSFER = {
    "code_mistyped": 40,
    "code_unknown": 41,
    "code_wrong": 42,
    "code_expired": 43,
    "code_used": 44,
    "code_void": 45,
    "code_cancelled": 46,
    "code_busy": 47,
    "code_gone": 48,
    "not_compared": 49,
    "wrong_role": 50,
    "too_many_guesses": 51,
    "not_received": 52,
}
"""Why a transfer code brought nothing over, by the error's code."""

# command: (module, what it does); in the order of the help
COMMANDS = {
    "demo": ("demo", "see a job run through a relay, all on this machine"),
    "machine": ("machine", "add, ls, invite, approve, rm: machines you run things on"),
    "run": ("run", "run a command, a script or a Python file on another machine"),
    "logs": ("logs", "what a job prints, while it runs and after"),
    "result": ("job", "get a job's result"),
    "cancel": ("job", "end a job"),
    "job": ("job", "ls: the jobs of a session"),
    "runner": ("runner", "join, serve, doctor, list, approve, …: what runs jobs"),
    "session": ("session", "create, info, invites, code, revoke, audit, close"),
    "receive": ("receive", "take an invite by its one-time code"),
    "audit": ("audit", "verify: check a session's audit trail, without a relay"),
    "send": ("send", "text, file: send to a session"),
    "items": ("items", "print what a session holds"),
    "watch": ("items", "print what arrives in a session"),
    "delivery": ("delivery", "print who has fetched what you sent"),
    "listen": ("listen", "wait for what concerns you; print it, or start an agent for it"),
    "mcp": ("mcp", "serve agents that speak MCP; config, prompt: set them up"),
    "completion": ("completion", "print what lets bash, zsh or fish complete commands"),
    "help": ("help", "explain a topic, or a command"),
}
TAKES_COMMAND = ("run", "demo", "listen")
"""Commands that take everything after `--` as the words of a command of their own."""

_HELP = """Run commands on machines you own, through a relay that cannot read them.

usage: airlox COMMAND …

{commands}

airlox COMMAND --help says more; airlox --version prints the version.
airlox help TOPIC explains a topic; airlox help topics lists them.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        if not words or words == ["help"] or words[0] in ("-h", "--help", "-V", "--version"):
            return _print_front(words)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        return _guarded(words)
    finally:
        _flush()


def _print_front(words: list[str]) -> int:
    """The version or the help; neither needs a parser."""
    if words and words[0] in ("-V", "--version"):
        from airlox import __version__

        print(f"airlox {__version__}")
        return 0
    table = "\n".join(f"  {name:<10} {what}" for name, (_, what) in COMMANDS.items())
    print(_HELP.format(commands=table), end="", file=sys.stdout if words else sys.stderr)
    return 0 if words else EXIT_USAGE


def _guarded(words: list[str]) -> int:
    from airlox.cli.output import Voice

    voice = Voice(json="--json" in _own_words(words), environ=os.environ)
    try:
        module, args_voice, args = _prepare(words)
        voice = args_voice
        code: int = module.run(args, voice)
        return code
    except SystemExit as leaving:  # argparse, after it printed a help
        return leaving.code if isinstance(leaving.code, int) else EXIT_ERROR
    except BaseException as error:
        return exit_code(error, voice)


def _prepare(words: list[str]) -> tuple[ModuleType, Voice, object]:
    """The module of the command, and what its parser made of the words."""
    from airlox.cli.output import Voice
    from airlox.cli.parsers import parser_of

    name = words[0]
    if name not in COMMANDS:
        raise _unknown(name)
    module, parser = parser_of(name)
    own = _own_words(words)
    args = parser.parse_args(own[1:])
    if name in TAKES_COMMAND:
        args.command = tuple(words[len(own) + 1 :])
    args.verb = name
    return module, Voice(json=args.json, quiet=args.quiet, environ=os.environ), args


def _own_words(words: list[str]) -> list[str]:
    """The words that are for us: without the command after `--`."""
    if words[0] in TAKES_COMMAND and "--" in words:
        return words[: words.index("--")]
    return words


def _unknown(name: str) -> Exception:
    from difflib import get_close_matches

    from airlox.cli.options import CommandLineError

    near = get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else "airlox --help lists them"
    return CommandLineError(f"there is no command {name[:40]!r}", code="no_command", hint=hint)


def exit_code(error: BaseException, voice: Voice) -> int:
    """Say what went wrong, and return the code of the table above."""
    from airlox.cli.options import CommandLineError
    from airlox.errors import AirloxError, RecipientError, SandboxError, TransferError, WaitTimeout

    if isinstance(error, KeyboardInterrupt):
        voice.note("interrupted")
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):
        _drop_output()
        return EXIT_PIPE
    if isinstance(error, OSError):
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        error = AirloxError(f"{where}{error.strerror or error}", code="storage")
    if not isinstance(error, AirloxError):
        return _report_bug(error, voice)
    voice.fail(error)
    if isinstance(error, CommandLineError):
        return EXIT_USAGE
    if isinstance(error, RecipientError):
        return EXIT_RECIPIENT.get(error.code, EXIT_ERROR)
    if isinstance(error, TransferError) or error.code == "code_mistyped":
        return EXIT_TRANSFER.get(error.code, EXIT_ERROR)
    if isinstance(error, WaitTimeout):
        return EXIT_NO_RESULT
    return EXIT_NO_SANDBOX if isinstance(error, SandboxError) else EXIT_ERROR


def _report_bug(error: BaseException, voice: Voice) -> int:
    """An exception nobody expected. Its text may hold a secret, so only its place is told."""
    from airlox import __version__
    from airlox.errors import AirloxError, place_of

    voice.fail(
        AirloxError(
            f"airlox {__version__} has a bug: {type(error).__name__} at {place_of(error)}",
            code="bug",
            hint="please report what you did and this line; AIRLOX_DEBUG=1 shows a traceback, "
            "which may hold secrets",
        )
    )
    if os.environ.get("AIRLOX_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    return EXIT_ERROR


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    try:
        sys.stderr.flush()
    except OSError:
        pass  # nobody is left to be told


def _drop_output() -> None:
    """Nobody reads any more: let the interpreter's last flush go nowhere instead of failing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
