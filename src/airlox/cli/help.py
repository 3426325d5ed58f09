"""`airlox help`: a command's help, or a topic that no single command is about."""

from __future__ import annotations

from airlox.cli import options, topics
from airlox.cli.main import COMMANDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice

EXAMPLES = {"help": "airlox help trees"}
LIST = "topics"
"""Not a topic: the list of them."""


def add_arguments(parser: Parser, command: str) -> bool:
    """Build the parser; True for the usual output flags."""
    parser.add_argument("words", nargs="*", metavar="TOPIC", help="a topic, or a command")
    return True


def run(args: argparse.Namespace, voice: Voice) -> int:
    """Print the list, a topic, or a command's own help."""
    words: list[str] = args.words
    if "-".join(words) in topics.TOPICS:
        words = ["-".join(words)]
    if words in ([], [LIST]):
        _print_list(voice)
    elif len(words) == 1 and words[0] in topics.TOPICS:
        summary, text = topics.read(words[0])
        if voice.json:
            voice.document({"summary": summary, "text": text, "topic": words[0]})
        else:
            voice.say(f"{summary}\n\n{text.rstrip()}")
    else:
        voice.say(_help_of(words))
    return 0


def _print_list(voice: Voice) -> None:
    found = {name: topics.read(name)[0] for name in topics.TOPICS}
    if voice.json:
        voice.document({"topics": found})
        return
    width = max(map(len, found))
    voice.say("\n".join(f"{name:<{width}}  {summary}" for name, summary in found.items()))


def _help_of(words: list[str]) -> str:
    """The help of a command or of an action of it. Raises CommandLineError."""
    from airlox.cli import parsers

    name, *actions = words
    if name not in COMMANDS:
        raise _unknown(name)
    _, found = parsers.parser_of(name)
    parser: argparse.ArgumentParser = found
    for action in actions:
        below = dict(parsers.actions_of(parser))
        if action not in below:
            hint = f"it has {', '.join(below)}" if below else f"{parser.prog} --help"
            raise options.CommandLineError(
                f"{parser.prog} has no action {action[:40]!r}", code="no_topic", hint=hint
            )
        parser = below[action]
    return parser.format_help().rstrip()


def _unknown(name: str) -> options.CommandLineError:
    from difflib import get_close_matches

    near = get_close_matches(name, (*topics.TOPICS, *COMMANDS), n=1)
    hint = f"did you mean {near[0]}?" if near else f"airlox help {LIST} lists them"
    return options.CommandLineError(
        f"there is no topic and no command {name[:40]!r}", code="no_topic", hint=hint
    )
