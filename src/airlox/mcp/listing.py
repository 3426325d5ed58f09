"""Items of a session as a page of plain values: new ones, cut to what a model can take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from airlox.client.folding import fold
from airlox.client.jobs import is_answer
from airlox.mcp.shapes import who
from airlox.protocol.item import Kind
from airlox.protocol.job import PythonJob, Result, ShellJob
from airlox.protocol.keys import fingerprint
from airlox.protocol.payload import File, Text

if TYPE_CHECKING:
    from airlox.client.session import Session
    from airlox.protocol.view import Item, Record

    Shape = dict[str, Any]

MOST_ITEMS: Final = 50
MOST_CHARS: Final = 60_000
"""Of all texts of a page."""
_READABLE: Final = frozenset({"py", "md"})
_LINE_CHARS: Final = 200
_TEXTS: Final = ("text", "content", "code", "script", "stdout", "stderr")


@dataclass(frozen=True)
class Wish:
    """Which items: numbered after `after`, of others, for us; texts cut to `max_chars`."""

    after: int
    for_me: bool
    exclude_mine: bool
    max_chars: int

    def wants(self, session: Session, item: Item) -> bool:
        is_mine = item.author.public == session.participant_pub
        return not (self.exclude_mine and is_mine) and (bool(item.for_me) or not self.for_me)


@dataclass
class Page:
    """Items, and where to go on."""

    next_after: int
    latest_seq: int
    items: list[Shape] = field(default_factory=list)
    more: bool = False

    def shape(self) -> Shape:
        return {
            "items": self.items,
            "next_after": self.next_after,
            "latest_seq": self.latest_seq,
            "more": self.more,
        }


def read(
    session: Session, wish: Wish, wait_s: float, on_cancel: Callable[[Callable[[], None]], None]
) -> Page:
    """The next page of items; where there are none, the first one within `wait_s`."""
    page = _page(session, wish)
    if page.items or not wait_s or session.closed is not None:
        return page
    with session.stream(wait_s, after=page.next_after) as stream:
        on_cancel(stream.close)
        if any(wish.wants(session, item) for item in stream):
            return _page(session, wish)
    return _page(session, wish)


def _page(session: Session, wish: Wish) -> Page:
    found = {item.id: item for item in session.items()}
    records = session.records()
    page = Page(wish.after, max((record.seq for record in records), default=-1))
    room = MOST_CHARS
    for record in records:
        if record.seq <= wish.after:
            continue
        shape = _shape(session, wish, record, found)
        if shape is not None:
            room -= _length(shape)
            if page.items and (room < 0 or len(page.items) >= MOST_ITEMS):
                page.more = True
                break
            page.items.append(shape)
        page.next_after = record.seq
    return page


def _shape(session: Session, wish: Wish, record: Record, found: dict[Any, Item]) -> Shape | None:
    """The item of a record as it is wished for, or None. One that cannot be had is told of, unless
    only what is for us is asked for: that cannot be known of it."""
    item = None if record.envelope is None else found.get(record.envelope.id)
    if item is not None:
        return one(session, item, wish.max_chars) if wish.wants(session, item) else None
    if wish.for_me or record.envelope is None:
        return None
    return {
        "id": record.envelope.id,
        "seq": record.seq,
        "kind": record.envelope.header.kind.value,
        "unavailable": record.reason or record.status.value,
    }


def one(session: Session, item: Item, max_chars: int) -> Shape:
    """An item, its texts cut to `max_chars`."""
    shape: Shape = {
        "id": item.id,
        "seq": item.seq,
        "kind": item.kind.value,
        "author": item.author_name,
        "author_key": fingerprint(item.author.public),
        "role": item.author_role.value,
        "created_at_ms": item.created_at_ms,
    }
    if item.for_me:
        shape["for_me"] = [reason.value for reason in item.for_me]
    if item.to:
        shape["to"] = _names(session, item.to)
    if item.reply_to is not None:
        shape["reply_to"] = item.reply_to
    shape |= _content(session, item)
    for name in _TEXTS:
        if len(shape.get(name, "")) > max_chars:
            shape[name] = shape[name][:max_chars]
            shape["cut"] = True
    if _words_length(shape) > max_chars:
        shape["command"] = _first_words(shape["command"], max_chars)
        shape["cut"] = True
    return shape


def _names(session: Session, to: tuple[str, ...]) -> list[str]:
    """Whom an item is addressed to: names where they are known, else keys and roles."""
    people = {p.participant_pub: p.display_name for p in session.participants(sync=False)}
    people[session.participant_pub] = "you"
    return [people.get(word, word) for word in to]


def _content(session: Session, item: Item) -> Shape:
    match item.meta:
        case Text(text=text):
            return {"text": text}
        case File(name=name):
            shape: Shape = {"name": name, "size": len(item.body)}
            if item.subkind in _READABLE:
                shape["content"] = item.body.decode()
            return shape
        case PythonJob() as job:
            return {"filename": job.filename, "code": job.code}
        case ShellJob() as job if job.command is not msgspec.UNSET:
            return {"command": list(job.command)}
        case ShellJob() as job:
            return {"script": str(job.script)}
        case Result() as result:
            return _result(result) | {"valid": is_answer(session, item)}
        case other:
            return {"meta": msgspec.to_builtins(other)}


def _result(result: Result) -> Shape:
    return {
        "job": result.job.id,
        "status": result.status.value,
        "exit_code": result.exit_code,
        "stdout": fold(result.stdout),
        "stderr": fold(result.stderr),
        "out_files": [file.name for file in result.out_files],
    }


def _length(shape: Shape) -> int:
    return sum(len(shape.get(name, "")) for name in _TEXTS) + _words_length(shape)


def _words_length(shape: Shape) -> int:
    return sum(len(word) + 1 for word in shape.get("command", ()))


def _first_words(command: list[str], max_chars: int) -> list[str]:
    """The words of a command that fit, the last of them as far as it does."""
    kept, room = list[str](), max_chars
    for word in command:
        if room <= 0:
            break
        kept.append(word[:room])
        room -= len(word) + 1
    return kept


def line(shape: Shape) -> str:
    """An item in one line for people."""
    if "unavailable" in shape:
        return f"[{shape['id']}] {shape['kind']}: not to be had ({shape['unavailable']})"
    said = " ".join(full_text(shape).split())
    if len(said) > _LINE_CHARS:
        said = said[: _LINE_CHARS - 1] + "…"
    author = who(shape["role"], shape["author"])
    return f"[{shape['id']}] {author}, {shape['kind']}: {said}"


def full_text(shape: Shape) -> str:
    """What an item says, for people."""
    match shape["kind"]:
        case Kind.TEXT:
            return str(shape["text"])
        case Kind.FILE:
            return "\n".join((f"{shape['name']}, {shape['size']} bytes", shape.get("content", "")))
        case Kind.JOB:
            said = shape.get("code") or shape.get("script") or " ".join(shape.get("command", ()))
            return str(said)
        case Kind.RESULT:
            head = f"job {shape['job']} {shape['status']}, exit {shape['exit_code']}"
            head += "" if shape["valid"] else ", NOT VALID for its job"
            return f"{head}\n{shape['stdout']}{shape['stderr']}"
        case _:
            return ", ".join(f"{name} {value}" for name, value in shape["meta"].items())
