"""`airlox items` and `airlox watch`: what a session holds, and what arrives in it."""

from __future__ import annotations

import os

from airlox.cli import opening, options
from airlox.cli.output import duration_text, path_text, size_text, time_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping
    from typing import Any

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.client.session import Session
    from airlox.protocol.view import Item

    Shape = dict[str, Any]

EXAMPLES = {
    "items": "airlox items --save inbox",
    "watch": "airlox watch --new --timeout 10m",
}
_SHOWN_LINES = 40
"""Lines of a file's or a job's text that are shown; `--json` has all of it."""


def add_arguments(parser: Parser, command: str) -> bool:
    parser.add_argument(
        "--for-me",
        action="store_true",
        help="only what concerns you: addressed to you or your role, replies to your items, "
        "results of your jobs, the owner's messages to everybody",
    )
    parser.add_argument("--save", metavar="DIR", help="save files there; nothing is overwritten")
    if command == "watch":
        parser.add_argument("--new", action="store_true", help="only what arrives from now on")
        parser.add_argument(
            "--timeout", type=options.duration, metavar="TIME", help="stop after this long"
        )
    options.add_invite_flags(parser)
    return True


def run(args: Namespace, voice: Voice) -> int:
    with opening.open_session(args, voice) as session:
        printer = _Printer(session, voice, folder=args.save, only_mine=args.for_me)
        if args.verb == "watch":
            _watch(args, session, printer, voice)
        else:
            printer.print_all()
    return 0


def _watch(args: Namespace, session: Session, printer: _Printer, voice: Voice) -> None:
    if args.new:
        session.sync()
        seen = {item.id for item in session.items()}
    for item in session.stream(args.timeout, history=not args.new):
        if not args.new or item.id not in seen:
            printer.print(item)
    if session.closed is not None:
        voice.note(f"the session is over: {session.closed}")


class _Printer:
    """Prints items, and saves the files among them where asked.

    `only_mine`: those alone that are for us, by `Item.for_me`.
    """

    def __init__(
        self, session: Session, voice: Voice, *, folder: str | None, only_mine: bool
    ) -> None:
        self._session = session
        self._folder = folder
        self._voice = voice
        self._only_mine = only_mine
        self._names: dict[str, str] = {}
        if folder is not None:
            os.makedirs(folder, exist_ok=True)

    def print_all(self) -> None:
        """Every item in the relay's order, also those that cannot be had."""
        from airlox.cli import shapes

        found = {item.id: item for item in self._session.items()}
        for record in self._session.records():
            item = None if record.envelope is None else found.get(record.envelope.id)
            if item is not None:
                self.print(item)
            elif not self._only_mine:
                self._put(shapes.unavailable(record))

    def print(self, item: Item) -> None:
        from airlox.cli import shapes

        if self._only_mine and not item.for_me:
            return
        shape = shapes.item(item, valid=is_valid(self._session, item))
        if self._folder is not None and item.kind == "file":
            shape["saved"] = path_text(save(self._folder, item))
        self._put(shape)

    def _put(self, shape: Shape) -> None:
        if self._voice.json:
            self._voice.json_line(shape)
        else:
            self._voice.say(item_text(shape, self._names_of(shape)))

    def _names_of(self, shape: Shape) -> dict[str, str]:
        """Names of those an item is addressed to, by key; ourselves as `you`."""
        keys = {word for word in shape.get("to", ()) if not word.startswith("role:")}
        if not self._names.keys() >= keys:
            people = self._session.participants(sync=False)
            self._names = {p.participant_pub: p.display_name for p in people}
            self._names[self._session.participant_pub] = "you"
        return self._names


def save(folder: str, item: Item) -> str:
    """Write a file item into `folder`, unless the same file is there already; its path."""
    from airlox import safefs

    return os.fspath(safefs.save_once(folder, item.name or item.id, item.body))


def is_valid(session: Session, item: Item) -> bool:
    """False for a result that is no valid answer to its job."""
    if item.kind != "result":
        return True
    from airlox.client.jobs import is_answer

    return is_answer(session, item)


# -- for people -------------------------------------------------------------------------------


def item_text(shape: Shape, names: Mapping[str, str] | None = None) -> str:
    """An item in one line, with its text indented below it, so that it cannot pose as another.

    `names` are those of the participants it is addressed to, by key.
    """
    when = "" if shape["created_at_ms"] is None else time_text(shape["created_at_ms"])
    author = f"{shape['author_name'] or 'unknown'} ({shape['author_role'] or 'no role'})"
    if "error" in shape:
        reason = f": {shape['error']}" if shape["error"] else ""
        what, text = f"{shape['kind']} {shape['status']}{reason}", ""
    else:
        what, text = _DESCRIBE[shape["kind"]](shape)
    saved = f" · saved as {shape['saved']}" if "saved" in shape else ""
    address = address_text(shape, names or {})
    head = f"{when}  {author}  {what}{address}{saved}  [{shape['id']}]"
    return head.replace("\n", "\\n") + _indented(text)


def address_text(shape: Shape, names: Mapping[str, str]) -> str:
    """` → coder, role:observer ↩ ITEM`: whom an item is for, and what it answers."""
    to = ", ".join(names.get(word, word) for word in shape.get("to", ()))
    reply = f" ↩ {shape['reply_to']}" if "reply_to" in shape else ""
    return (f" → {to}" if to else "") + reply


def _indented(text: str) -> str:
    lines = text.splitlines()
    more = len(lines) - _SHOWN_LINES
    if more > 1:
        lines = [*lines[:_SHOWN_LINES], f"… {more} more lines"]
    return "".join(f"\n    {line}" for line in lines)


def _text(shape: Shape) -> tuple[str, str]:
    return "text", shape["text"]


def _file(shape: Shape) -> tuple[str, str]:
    return f"file {shape['name']} · {size_text(shape['size'])}", shape.get("content", "")


def _job(shape: Shape) -> tuple[str, str]:
    return f"job · {target_text(shape['target'])}", job_text(shape)


def target_text(target: Shape) -> str:
    """Whom a job is for."""
    match target["type"]:
        case "runner":
            return f"for runner {target['name']}"
        case "labels":
            return f"for labels {', '.join(target['labels'])}"
        case _:
            return "for any runner"


def job_text(shape: Shape) -> str:
    """What a job runs."""
    if "command" in shape:
        import shlex

        return shlex.join(shape["command"])
    text: str = shape["script"] if "script" in shape else shape["code"]
    return text


def _result(shape: Shape) -> tuple[str, str]:
    parts = [f"result {shape['status']}"]
    if shape["exit_code"] is not None:
        parts.append(f"exit {shape['exit_code']}")
    parts.append(duration_text(shape["wall_ms"]))
    if shape["reason"]:
        parts.append(shape["reason"])
    if not shape["valid"]:
        parts.append("NOT VALID for its job")
    return f"{' · '.join(parts)} · job {shape['job']}", shape["stdout"] + shape["stderr"]


def _event(shape: Shape) -> tuple[str, str]:
    meta = shape["meta"]
    about = meta.get("participant_pub") or meta.get("job", {}).get("id") or ""
    return f"{meta['event'].replace('_', ' ')} {about}".rstrip(), meta.get("reason") or ""


def _runner_info(shape: Shape) -> tuple[str, str]:
    meta = shape["meta"]
    kinds = ", ".join(meta["kinds"])
    return f"runner offers {kinds} · sandbox {meta['sandbox']} · {meta['slots']} slots", ""


_DESCRIBE = {
    "text": _text,
    "file": _file,
    "job": _job,
    "result": _result,
    "event": _event,
    "runner_info": _runner_info,
}
