"""`airlox delivery`: who has fetched what one sent."""

from __future__ import annotations

from airlox.cli import opening, options
from airlox.cli.output import time_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.client.shown import Delivery, ParticipantInfo

EXAMPLES = {"delivery": "airlox delivery --last 5"}
HEAD = ("ITEM", "SENT", "KIND", "TO", "FETCHED BY", "WAITING FOR")
LAST = 20
_SHOWN_NAMES = 8
"""Names in one cell; `--json` has all of them."""


def add_arguments(parser: Parser, command: str) -> bool:
    parser.add_argument(
        "--last",
        type=options.count,
        default=LAST,
        metavar="N",
        help=f"the newest N items you sent, at most 100 [{LAST}]",
    )
    options.add_invite_flags(parser)
    return True


def run(args: Namespace, voice: Voice) -> int:
    from airlox.cli import shapes

    with opening.open_session(args, voice) as session:
        found = session.delivery(args.last)
        names = {p.participant_pub: p.display_name for p in session.participants(sync=False)}
    if voice.json:
        voice.document({"delivery": [shapes.delivery(each) for each in found]})
        return 0
    voice.table(HEAD, [_row(each, names) for each in found])
    if not found:
        voice.note("you have sent nothing to this session yet")
    return 0


def _row(value: Delivery, names: dict[str, str]) -> tuple[str, ...]:
    return (
        value.id,
        time_text(value.created_at_ms),
        value.kind,
        _list([names.get(word, word) for word in value.to]),
        _people(value.delivered),
        _people(value.waiting),
    )


def _people(people: Sequence[ParticipantInfo]) -> str:
    return _list([each.display_name for each in people])


def _list(words: Sequence[str]) -> str:
    more = len(words) - _SHOWN_NAMES
    return ", ".join(words[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
