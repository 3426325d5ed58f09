"""`airlox send`: a message or files."""

from __future__ import annotations

import sys

from airlox.cli import opening, options
from airlox.cli.output import path_text
from airlox.errors import AirloxError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice

TEXT_BYTES = 4 * 1024 * 1024
"""Most that is read from standard input; what a session takes is checked later."""


def add_arguments(parser: Parser, command: str) -> bool:
    actions = options.Actions(parser)
    text = actions.add(
        "text",
        "Send a message",
        details="A message that names nobody wakes only the author of the item it answers, unless "
        "the owner sends it: then it wakes everybody.",
        example='airlox send text "Review parser.py?" --to coder',
    )
    text.add_argument("text", metavar="TEXT", help="the message, Markdown; - reads it from stdin")
    _add_address_flags(text)
    options.add_invite_flags(text)
    file = actions.add(
        "file",
        "Send files",
        details="Python, Markdown, ZIP archives and images; images are encoded anew, without "
        "metadata.",
        example="airlox send file report.md chart.png",
    )
    file.add_argument("paths", nargs="+", metavar="FILE", help=".py .md .zip .png .jpg .webp")
    _add_address_flags(file)
    options.add_invite_flags(file)
    return False


def _add_address_flags(parser: Parser) -> None:
    group = parser.add_argument_group("whom it is for")
    group.add_argument(
        "--to",
        action="append",
        metavar="WHO",
        help="who should act on it: a participant's name, key or fingerprint, or role:sender and "
        "the like; may be repeated. Everybody can read it all the same",
    )
    group.add_argument("--reply-to", metavar="ITEM", help="the id of the item it answers")
    for flag in ("--to", "--reply-to"):
        parser.let_take_ids(flag)


def run(args: Namespace, voice: Voice) -> int:
    return _send_text(args, voice) if args.action == "text" else _send_files(args, voice)


def _send_text(args: Namespace, voice: Voice) -> int:
    from airlox.cli import shapes

    text = _read_text() if args.text == "-" else args.text
    with opening.open_session(args, voice) as session:
        sent = session.send_text(text, to=args.to, reply_to=args.reply_to)
    if voice.json:
        voice.document({"sent": shapes.ref(sent)})
    else:
        voice.say(f"sent {sent.id}")
    return 0


def _read_text() -> str:
    data = sys.stdin.buffer.read(TEXT_BYTES + 1)
    if len(data) > TEXT_BYTES:
        raise UsageError("the message on standard input is too long", hint="send it as a file")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError("the message on standard input is not UTF-8") from None


def _send_files(args: Namespace, voice: Voice) -> int:
    """Each file in turn; the first that cannot be sent ends it, and what was sent is told."""
    from airlox.cli import shapes

    sent: list[dict[str, Any]] = []
    with opening.open_session(args, voice) as session:
        for path in args.paths:
            try:
                ref = session.send_file(path, to=args.to, reply_to=args.reply_to)
            except AirloxError as error:
                if voice.json:
                    failed = {"error": str(error), "failed": path_text(path), "sent": sent}
                    voice.document(failed)
                raise
            sent.append({"path": path_text(path), "ref": shapes.ref(ref)})
            if not voice.json:
                voice.say(f"sent {ref.id}  {path_text(path)}")
    if voice.json:
        voice.document({"sent": sent})
    return 0
