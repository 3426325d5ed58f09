"""The parsers of the commands: one when it is chosen, or all as one tree.

A command is built when it is run. Completions, man pages and `airlox help` read the whole tree, so
that what they say is what the commands take.
"""

from __future__ import annotations

from argparse import _SubParsersAction
from importlib import import_module

from airlox.cli.main import COMMANDS
from airlox.cli.options import Parser, add_output_flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from types import ModuleType

SUMMARY = "Run commands on machines you own, through a relay that cannot read them."


def parser_of(name: str) -> tuple[ModuleType, Parser]:
    """The module of a command and its parser."""
    module_name, what = COMMANDS[name]
    module = import_module(f"airlox.cli.{module_name}")
    example = getattr(module, "EXAMPLES", {}).get(name, "")
    parser = Parser(prog=f"airlox {name}", description=sentence(what), example=example)
    if module.add_arguments(parser, name):
        add_output_flags(parser)
    return module, parser


def sentence(what: str) -> str:
    """What a command does, as its own help begins."""
    return f"{what[0].upper()}{what[1:]}."


def whole() -> Parser:
    """All commands below one parser."""
    top = Parser(prog="airlox", description=SUMMARY)
    top.add_argument("--version", action="version", version="airlox", help="print the version")
    commands = top.add_subparsers(dest="verb", metavar="COMMAND", parser_class=Parser)
    for name, (_, what) in COMMANDS.items():
        _, parser = parser_of(name)
        # The parser was made for itself: it is listed here as it is, not made again.
        commands.add_parser(name, help=what, add_help=False)
        commands.choices[name] = parser
    return top


def actions_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The actions of a command group, or the commands of the whole; none for a plain command."""
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            yield from action.choices.items()
