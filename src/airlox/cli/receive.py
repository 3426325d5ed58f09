"""`airlox receive`: take an invite by its transfer code; also what `--code` of a runner does.

A code that was typed at a prompt may be typed again: a word that is none of the list is found out
here and costs nothing, other words cost one of three guesses.
"""

from __future__ import annotations

import os
import sys

from airlox.cli import handover, options
from airlox.errors import AirloxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace, _ActionsContainer

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.protocol.invite import Invite

EXAMPLES = {"receive": "airlox receive --relay https://relay.example 417-guitar-orbit"}
_AGAIN = frozenset({"code_mistyped", "code_unknown", "code_wrong", "code_busy"})
"""What may be better when the code is typed again."""
_TRIES = 10
"""Times a code is asked for at a prompt."""


def add_arguments(parser: Parser, command: str) -> bool:
    parser.add_argument(
        "code",
        nargs="*",
        metavar="CODE",
        help="such as 417-guitar-orbit; - reads it from standard input, none asks at a terminal",
    )
    parser.add_argument(
        "--role", choices=handover.ROLES, help="refuse a code for any other role, unspent"
    )
    add_relay_flags(parser)
    return True


def add_relay_flags(parser: _ActionsContainer) -> None:
    """Where a code is redeemed, and how carefully."""
    parser.add_argument(
        "--relay", metavar="URL", help=f"the relay of the code, which names none [{options.RELAY}]"
    )
    parser.add_argument(
        "--insecure-http-host",
        metavar="NAME",
        help="ask a relay under this name by plain http; its session must allow that too",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare five words with the other end before the invite comes",
    )


def run(args: Namespace, voice: Voice) -> int:
    invite = redeem(args, " ".join(args.code), voice, role=args.role)
    if voice.json:
        voice.document(
            {
                "invite": invite.url(),
                "relay": invite.base_url,
                "role": invite.role.value,
                "session_id": invite.session_id,
            }
        )
        return 0
    voice.say(invite.url())
    voice.note(f"a {invite.role}'s link: whoever holds it has that role")
    return 0


def redeem(args: Namespace, code: str, voice: Voice, *, role: str | None = None) -> Invite:
    """The invite of a code: the one given, `-` for standard input, none for a prompt.

    Raises TransferError, ValidationError for what is no code, CommandLineError, RelayError,
    ConnectionLost.
    """
    from airlox.client import transfer

    relay = _relay(args)
    verify = handover.comparing(voice) if args.verify else None
    asks = not code
    for left in reversed(range(_TRIES)):
        text = _ask(voice) if asks else _read(code)
        try:
            return transfer.redeem(
                relay,
                text,
                role=role,
                verify=verify,
                insecure_http_host=args.insecure_http_host,
            )
        except AirloxError as error:
            if not (asks and left and error.code in _AGAIN):
                raise
            voice.fail(error)
    raise AssertionError("the last try raises")


def _relay(args: Namespace) -> str:
    relay: str | None = args.relay or os.environ.get(options.RELAY)
    if not relay:
        raise options.CommandLineError(
            "no relay given, and a code names none",
            code="no_relay",
            hint=f"give --relay URL, as the other end shows it, or set {options.RELAY}",
        )
    return relay


def _read(code: str) -> str:
    return sys.stdin.readline(options.INVITE_BYTES).strip() if code == "-" else code


def _ask(voice: Voice) -> str:
    if not sys.stdin.isatty():
        raise options.CommandLineError(
            "no code given", code="no_code", hint="write it behind the command, or - for stdin"
        )
    text = voice.ask("code:")
    if not text:
        raise options.CommandLineError("no code given", code="no_code")
    return text
