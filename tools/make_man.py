"""Writes man/: a page for each command and each topic, from the parsers and the texts of `help`.

`--check` writes nothing and says which pages are not as they would be written.

Section 1 holds the commands (man1/airlox-run.1), section 7 the topics (man7/airlox-trees.7). They
carry the version of the package and no date, so that they are the same wherever they are made.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from airlox import __version__
from airlox.cli import parsers, topics
from airlox.cli.main import COMMANDS

FOLDER = Path(__file__).parent.parent / "man"
SEE_ALSO = "airlox(1)"
RELAY = "The relay itself is airlox-server; airlox-server --help says more."


def main() -> int:
    """Write the pages, or compare them."""
    options = argparse.ArgumentParser(description="write the man pages")
    options.add_argument("--check", action="store_true", help="compare only")
    check = options.parse_args().check
    pages = dict(all_pages())
    found = FOLDER.glob("man*/*")
    old = {f"{path.parent.name}/{path.name}": path.read_text("utf-8") for path in found}
    wrong = sorted(name for name in pages.keys() | old.keys() if pages.get(name) != old.get(name))
    if check:
        for name in wrong:
            print(f"man/{name} is not as `make man` writes it", file=sys.stderr)
        return 1 if wrong else 0
    for name in wrong:
        path = FOLDER / name
        if name in pages:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(pages[name], "utf-8")
        else:
            path.unlink()
    return 0


def all_pages() -> Iterator[tuple[str, str]]:
    """File names and their texts."""
    yield "man1/airlox.1", front_page()
    for name in COMMANDS:
        yield f"man1/airlox-{name}.1", command_page(name)
    for name in topics.TOPICS:
        yield f"man7/airlox-{name}.7", topic_page(name)


# ── the pages ────────────────────────────────────────────────────────────────────────────────


def front_page() -> str:
    """airlox(1): what there is."""
    lines = [
        *_head("airlox", 1, parsers.SUMMARY),
        ".SH SYNOPSIS",
        r"\fBairlox\fR \fICOMMAND\fR …",
        ".SH COMMANDS",
    ]
    for name, (_, what) in COMMANDS.items():
        lines += _item(rf"\fBairlox-{_quote(name)}\fR(1)", parsers.sentence(what))
    lines.append(".SH TOPICS")
    for name in topics.TOPICS:
        lines += _item(rf"\fBairlox-{_quote(name)}\fR(7)", topics.read(name)[0])
    return _page([*lines, ".SH NOTES", _quote(RELAY)])


def command_page(name: str) -> str:
    """One command, with each of its actions."""
    _, parser = parsers.parser_of(name)
    actions = list(parsers.actions_of(parser))
    lines = _head(f"airlox-{name}", 1, parser.description or "")
    lines += [".SH SYNOPSIS"]
    calls = [_usage(each) for each in [found for _, found in actions] or [parser]]
    lines += [".nf", *map(_literal, calls), ".fi"]
    lines += [".SH DESCRIPTION", _quote(parser.description or "")]
    if actions:
        for action, found in actions:
            lines += [f".SH {_quote(action.upper())}", _quote(found.description or "")]
            lines += _arguments(found, ".SS")
            lines += _example(found)
    else:
        lines += _arguments(parser, ".SH")
        lines += _example(parser)
    return _page([*lines, ".SH SEE ALSO", SEE_ALSO])


def topic_page(name: str) -> str:
    """A topic: paragraphs, and lines that stand as they are."""
    summary, text = topics.read(name)
    lines = [*_head(f"airlox-{name}", 7, summary), ".SH DESCRIPTION"]
    for number, block in enumerate(text.strip("\n").split("\n\n")):
        rows = block.split("\n")
        if number:
            lines.append(".PP")
        literal = [row.startswith(" ") for row in rows]
        if any(literal):
            first = literal.index(True)
            lines += [*map(_quote, rows[:first]), ".nf", *map(_literal, rows[first:]), ".fi"]
        else:
            lines += map(_quote, rows)
    return _page([*lines, ".SH SEE ALSO", SEE_ALSO])


# ── their parts ──────────────────────────────────────────────────────────────────────────────


def _head(name: str, section: int, summary: str) -> list[str]:
    title = f'.TH {name.upper()} {section} "" "airlox {__version__}" "Airlox"'
    return [title, ".SH NAME", rf"{_quote(name)} \- {_quote(_one_line(summary))}"]


def _one_line(text: str) -> str:
    """The first sentence, without its full stop."""
    return text.partition(". ")[0].rstrip(".")


def _usage(parser: argparse.ArgumentParser) -> str:
    """How the command is called, in a line that no version of argparse and no terminal changes."""
    if parser.usage:
        return parser.usage % {"prog": parser.prog}
    words = [parser.prog, "[options]"]
    for action in parser._actions:
        if not action.option_strings and action.help is not argparse.SUPPRESS:
            value = _value(action)
            several = action.nargs in ("*", "+")
            value = f"{value} …" if several else value
            words.append(f"[{value}]" if action.nargs in ("*", "?") else value)
    return " ".join(words)


def _arguments(parser: argparse.ArgumentParser, heading: str) -> Iterator[str]:
    for group in parser._action_groups:
        shown = [
            action
            for action in group._group_actions
            if action.help is not argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)
        ]
        if shown and not any(hasattr(action, "_choices_actions") for action in shown):
            yield f"{heading} {_quote(_title(group))}"
            for action in shown:
                yield from _item(_names(action), _expanded(action, parser))


def _title(group: argparse._ArgumentGroup) -> str:
    title = group.title or "options"
    return "ARGUMENTS" if title == "positional arguments" else title.upper()


def _names(action: argparse.Action) -> str:
    """The flags with what follows them, or the name of a word."""
    value = _value(action)
    if not action.option_strings:
        return rf"\fI{_quote(value)}\fR"
    flags = ", ".join(rf"\fB{_quote(flag)}\fR" for flag in action.option_strings)
    return flags if action.nargs == 0 else rf"{flags} \fI{_quote(value)}\fR"


def _value(action: argparse.Action) -> str:
    if action.metavar is not None:
        return action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    if action.choices is not None:
        return "|".join(map(str, action.choices))
    return action.dest.upper()


def _expanded(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _example(parser: argparse.ArgumentParser) -> list[str]:
    if not parser.epilog:
        return []
    _, _, example = parser.epilog.partition("\n")
    return [".PP", "Example:", ".PP", ".nf", *map(_literal, example.split("\n")), ".fi"]


def _item(term: str, text: str) -> list[str]:
    return [".TP", term, _quote(text)]


# ── roff ─────────────────────────────────────────────────────────────────────────────────────


def _page(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def _literal(line: str) -> str:
    return _quote(line) or r"\&"


def _quote(text: str) -> str:
    """Text that means itself: no escapes, hyphens that can be searched for, no requests."""
    quoted = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^(?=[.'])", r"\\&", quoted, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main())
