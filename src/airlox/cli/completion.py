"""`airlox completion`: what makes a shell complete commands, flags, files and names of machines.

The script is written from the parsers, so it offers what the commands take. Names of machines are
asked of `airlox completion --machines` when they are needed: that reads a folder and no network.
"""

from __future__ import annotations

from airlox.cli import options

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice

EXAMPLES = {"completion": 'eval "$(airlox completion bash)"'}
SHELLS = ("bash", "zsh", "fish")
_FILES = frozenset({"FILE", "FILE.py", "PATH"})
_FOLDERS = frozenset({"DIR"})
_MACHINES = frozenset({"MACHINE", "NAME[/LABEL]"})
_LIST_MACHINES = "airlox completion --machines 2>/dev/null"


def add_arguments(parser: Parser, command: str) -> bool:
    """Build the parser; True for the usual output flags."""
    parser.add_argument(
        "shell", nargs="?", choices=SHELLS, metavar="|".join(SHELLS), help="the shell it is for"
    )
    parser.add_argument(
        "--machines", action="store_true", help="print the names of your machines instead"
    )
    return True


def run(args: argparse.Namespace, voice: Voice) -> int:
    """Print the script, or the names."""
    if args.machines:
        _print_machines(args, voice)
        return 0
    if args.shell is None:
        raise options.CommandLineError(
            "no shell given", hint=f"airlox completion {'|'.join(SHELLS)}"
        )
    text = script(args.shell)
    if voice.json:
        voice.document({"script": text, "shell": args.shell})
    else:
        voice.say(text.rstrip("\n"))
    return 0


def script(shell: str) -> str:
    """What the shell is to read."""
    import shtab

    from airlox.cli import parsers

    whole = parsers.whole()
    for action in _arguments(whole):
        _say_what_follows(action)
    text: str = shtab.complete(whole, shell=shell)
    return text


def _print_machines(args: argparse.Namespace, voice: Voice) -> None:
    import os

    from airlox.client.machines import Machines

    names = [each.name for each in Machines(options.cache_root(args, os.environ)).all()]
    if voice.json:
        voice.document({"machines": names})
    elif names:
        voice.say("\n".join(names))


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every argument of every command."""
    from airlox.cli import parsers

    yield from parser._actions
    for _, command in parsers.actions_of(parser):
        yield from _arguments(command)


def _say_what_follows(action: argparse.Action) -> None:
    """Where a metavar means a file, a folder or a machine, have the shell offer these."""
    import shtab

    metavar = action.metavar
    if metavar in _FILES:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif metavar in _FOLDERS:
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    elif metavar in _MACHINES:
        action.complete = shtab.cmd(_LIST_MACHINES)  # type: ignore[attr-defined]
