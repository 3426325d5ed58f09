"""Flags and variables that several commands share, and how their values are read.

| flag            | variable             |                                                      |
|-----------------|----------------------|------------------------------------------------------|
| `--invite`      | `AIRLOX_INVITE`      | the link of the session                              |
| `--relay`       | `AIRLOX_RELAY`       | the relay on which a session is made                 |
| `--as`          | `AIRLOX_NAME`        | the name others see, taken at the first join         |
| `--description` | `AIRLOX_DESCRIPTION` | what one is or does, taken at the first join         |
| `--cache-dir`   | `AIRLOX_CACHE_DIR`   | where sessions, machines and runtimes are kept       |
| `--work-root`   | `AIRLOX_WORK_ROOT`   | where a runner keeps the folders that jobs write to  |
| `--image-base`  | `AIRLOX_IMAGE_BASE`  | what a runner's container image is made from         |

A flag wins over its variable. A link in an argument can be read by every user of the machine
(`ps`); the variable and `--invite-file` cannot.
"""

from __future__ import annotations

import argparse
import os
import re

from airlox.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

INVITE = "AIRLOX_INVITE"
RELAY = "AIRLOX_RELAY"
NAME = "AIRLOX_NAME"
DESCRIPTION = "AIRLOX_DESCRIPTION"
CACHE_DIR = "AIRLOX_CACHE_DIR"
WORK_ROOT = "AIRLOX_WORK_ROOT"
IMAGE_BASE = "AIRLOX_IMAGE_BASE"

DEFAULT_RUNTIME = "python3.12"
"""The Python of sessions that are made for machines."""
INVITE_BYTES = 8 * 1024
_FOREVER_S = 10 * 365 * 86_400
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_UNITS_MB = {"": 1, "m": 1, "mb": 1, "g": 1024, "gb": 1024}
_OFFSET_DIGITS = 15
_COLUMNS = 80
_ID = re.compile(r"-(?:[A-Za-z0-9_-]{21}|[A-Za-z0-9_-]{42})\Z")
"""An item's id or a participant's key that could be taken for a flag. No flag is so long."""
_NUMBER = re.compile(r"([0-9]{1,9})([a-zA-Z]*)\Z")


class CommandLineError(UsageError):
    """The command line makes no sense, whatever the session holds: exit code 2."""


class _Formatter(argparse.HelpFormatter):
    """Wraps texts as usual, but leaves an example as it is written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example:") else super()._fill_text(text, width, indent)


def _columns() -> int:
    """How wide the help may be. A parser asks with each flag it is given, and what argparse would
    look it up with brings three compressors along."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    try:
        return os.get_terminal_size(1).columns or _COLUMNS
    except OSError:
        return _COLUMNS


class Parser(argparse.ArgumentParser):
    """Wrong usage is an error like any other, so that `main.py` alone prints errors."""

    def __init__(self, *, example: str = "", **settings: Any) -> None:
        self._bare: dict[str, str] = {}
        self._takes_ids: set[str] = set()
        super().__init__(
            formatter_class=_Formatter,
            allow_abbrev=False,
            epilog=f"example:\n  {example}" if example else None,
            **settings,
        )

    def error(self, message: str) -> NoReturn:
        raise CommandLineError(message, hint=f"{self.prog} --help shows the options")

    def let_stand_alone(self, flag: str, value: str) -> None:
        """`flag` alone means `flag=value`. Another value goes with `=` only: the next word may be
        what is to be run."""
        self._bare[flag] = value

    def let_take_ids(self, flag: str) -> None:
        """The value of `flag` may be an id or a key, of which some begin with a dash."""
        self._takes_ids.add(flag)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words: list[str] = []
        for word in args:
            if words and words[-1] in self._takes_ids and _ID.match(word):
                words[-1] += f"={word}"
            else:
                words.append(f"{word}={self._bare[word]}" if word in self._bare else word)
        return super().parse_known_args(words, namespace)


class Actions:
    """The actions of a command group, such as `create` of `session`."""

    def __init__(self, parser: argparse.ArgumentParser, *, required: bool = True) -> None:
        self._actions = parser.add_subparsers(
            dest="action", metavar="ACTION", required=required, parser_class=Parser
        )

    def add(self, name: str, summary: str, *, example: str, details: str = "") -> Parser:
        parser: Parser = self._actions.add_parser(
            name, help=summary, description=f"{summary}. {details}".strip(), example=example
        )
        add_output_flags(parser)
        return parser


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output and cache")
    group.add_argument("--json", action="store_true", help="print JSON instead of text")
    group.add_argument("--quiet", action="store_true", help="print results and errors only")
    group.add_argument(
        "--cache-dir", metavar="DIR", help=f"where sessions are kept [{CACHE_DIR}; ~/.cache/airlox]"
    )


def add_invite_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("session")
    group.add_argument(
        "--invite",
        metavar="LINK",
        help=f"the session's link; other users of this machine can see it in ps, so rather set "
        f"{INVITE}",
    )
    group.add_argument("--invite-file", metavar="FILE", help="read the link from a file")
    add_profile_flags(group)


def add_http_host_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--insecure-http-host",
        metavar="NAME",
        help="let participants reach the relay under this name by plain http, such as a service "
        "inside a cluster: tokens then cross that network in the clear",
    )


def add_profile_flags(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--as",
        dest="display_name",
        metavar="NAME",
        help=f"your name, taken at the first join [{NAME}]",
    )
    group.add_argument(
        "--description",
        metavar="TEXT",
        help=f"what you are or do, taken at the first join [{DESCRIPTION}]",
    )


def read_invite(args: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """The link a command works with. Raises CommandLineError when there is none."""
    if args.invite and args.invite_file:
        raise CommandLineError("give --invite or --invite-file, not both")
    if args.invite:
        return str(args.invite).strip()
    if args.invite_file:
        return read_invite_file(args.invite_file)
    if environ.get(INVITE):
        return environ[INVITE].strip()
    raise CommandLineError(
        "no session given",
        code="no_invite",
        hint=f"set {INVITE} to the session's link, or give --invite-file FILE",
    )


def read_invite_file(path: str) -> str:
    """The link in a file, `-` being standard input. Raises StorageError."""
    from airlox import safefs

    if path == "-":
        import sys

        return sys.stdin.read(INVITE_BYTES).strip()
    return safefs.read_bounded(path, INVITE_BYTES).decode("utf-8", "replace").strip()


def read_relay(given: str | None, environ: Mapping[str, str]) -> str:
    """The relay to make a session on. Raises CommandLineError when there is none."""
    relay = given or environ.get(RELAY)
    if not relay:
        raise CommandLineError(
            "no relay given",
            code="no_relay",
            hint=f"give --relay URL or set {RELAY}; "
            "`airlox-server --ephemeral` starts one at http://127.0.0.1:8080",
        )
    return relay


def cache_root(args: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """The folder of sessions, machines and runtimes."""
    if args.cache_dir:
        return str(args.cache_dir)
    from airlox.client.cache import default_root

    return default_root(environ)


def add_cache_to(environ: dict[str, str], args: argparse.Namespace) -> None:
    """Let processes started by a command use its cache."""
    if args.cache_dir:
        environ[CACHE_DIR] = os.path.abspath(args.cache_dir)


# -- values -----------------------------------------------------------------------------------


def duration(text: str) -> int:
    """Seconds of `90`, `30s`, `10m`, `2h` or `7d`."""
    seconds = _scaled(text, _UNITS_S)
    if seconds is None or seconds > _FOREVER_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 90, 30s, 10m, 2h or 7d")
    return seconds


def lifetime(text: str) -> int | None:
    """Seconds of a duration, or None for `never`."""
    if text == "never":
        return None
    seconds = duration(text)
    if seconds == 0:
        raise argparse.ArgumentTypeError("a session lives for at least a second, or `never` ends")
    return seconds


def memory(text: str) -> int:
    """Megabytes of `512`, `512M` or `4G`."""
    megabytes = _scaled(text, _UNITS_MB)
    if not megabytes:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory; write 512, 512M or 4G")
    return megabytes


def count(text: str) -> int:
    """A whole number from 1 on."""
    match = _NUMBER.match(text)
    if match is None or match[2] or int(match[1]) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(match[1])


def offset(text: str) -> int:
    """A number of bytes from 0 on."""
    if not (text.isascii() and text.isdigit() and len(text) <= _OFFSET_DIGITS):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of bytes")
    return int(text)


def words(text: str) -> list[str]:
    """The parts of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def one_of(*choices: str) -> Callable[[str], list[str]]:
    """A comma-separated list of known words."""

    def parse(text: str) -> list[str]:
        found = words(text)
        unknown = [word for word in found if word not in choices]
        if unknown or not found:
            raise argparse.ArgumentTypeError(
                f"{(unknown or [text])[0]!r} is none of {', '.join(choices)}"
            )
        return found

    return parse


def flat(lists: list[list[str]] | None) -> tuple[str, ...]:
    """The values of a flag that may be repeated and that takes lists."""
    return tuple(word for part in lists or () for word in part)


def _scaled(text: str, units: Mapping[str, int]) -> int | None:
    match = _NUMBER.match(text.strip())
    factor = None if match is None else units.get(match[2].lower())
    return None if match is None or factor is None else int(match[1]) * factor
