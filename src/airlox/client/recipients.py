"""Whom a message is for, as people say it: names, keys and roles become what is signed.

Nothing leaves before all of it is settled. A word in the form of a key, a fingerprint or a role is
never taken for a name: anyone may choose a name, also one that looks like somebody's key. Names
are those of verified joins; who has left is the relay's word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NoReturn

import msgspec
from msgspec import UNSET, UnsetType

from airlox.client.answers import known_key
from airlox.client.core import Core
from airlox.client.shown import ParticipantInfo, participant_info
from airlox.errors import RecipientError, UsageError, ValidationError
from airlox.protocol.addressing import ROLE_PREFIX, encode_recipients, parse_recipient
from airlox.protocol.chain import read_mark
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import ItemRef
from airlox.protocol.keys import Role, is_fingerprint
from airlox.protocol.view import Item, ItemStatus, SessionView

To = str | Iterable[str]
ReplyTo = str | Item | ItemRef

_SHOWN: Final = 8
_WORD_CHARS: Final = 64


class Address(msgspec.Struct, frozen=True):
    """The two signed fields, as `payload.Addressed` has them."""

    to: tuple[str, ...] | UnsetType = UNSET
    reply_to: str | UnsetType = UNSET


def address(core: Core, to: To | None, reply_to: ReplyTo | None) -> Address:
    """What `to` and `reply_to` mean in this session, after asking the relay who is here.

    None leaves a field out; an empty list does not. Warns of recipients whose clients will refuse
    the message, and of roles that nobody has now. Raises RecipientError, UsageError, RelayError,
    ConnectionLost.
    """
    if to is None and reply_to is None:
        return Address()
    words = None if to is None else _words(to)
    item = None if reply_to is None else _item_id(reply_to)
    if words is not None or not core.timeline.knows(ItemId(item or "")):
        core.timeline.sync(())
    if item is not None:
        _check_reply(core, item)
    me = core.membership.key.public
    people = core.timeline.read(lambda v: [participant_info(p) for p in v.participants.values()])
    keys = UNSET if words is None else resolve(people, words, me)
    _warn(core, people, () if keys is UNSET else keys, item)
    return Address(to=keys, reply_to=UNSET if item is None else item)


def resolve(people: Sequence[ParticipantInfo], words: Sequence[str], me: str) -> tuple[str, ...]:
    """The signed form of `words` among `people`, whoever they were given by. Raises
    RecipientError, LimitError."""
    found = [_resolve(people, word, me) for word in words]
    if not found:
        raise _nobody("the message is addressed to nobody")
    if set(found) == {me}:
        raise _nobody("the message is addressed to nobody but yourself")
    return encode_recipients(found)


def _resolve(people: Sequence[ParticipantInfo], word: str, me: str) -> str:
    """The key or role that one word means."""
    if not word.strip():
        raise _nobody("the message is addressed to an empty name")
    if word.startswith(ROLE_PREFIX):
        return _role(word)
    if known_key(word) is not None:
        return _present(people, [p for p in people if p.participant_pub == word], word)
    if is_fingerprint(word):
        return _present(people, [p for p in people if p.fingerprint == word], word)
    named = [p for p in people if p.display_name == word]
    others = [p for p in named if p.participant_pub != me]
    return _present(people, others or named, word)


def _role(word: str) -> str:
    try:
        parse_recipient(word)
    except ValidationError:
        known = ", ".join(f"{ROLE_PREFIX}{role.value}" for role in Role)
        raise RecipientError(
            f"{word[:_WORD_CHARS]!r} is no role", code="no_such_role", hint=f"one of {known}"
        ) from None
    return word


def _present(people: Sequence[ParticipantInfo], found: list[ParticipantInfo], word: str) -> str:
    """The one of `found` that is here."""
    here = [p for p in found if not p.left]
    if len(here) == 1:
        return here[0].participant_pub
    if here:
        _ambiguous(here, word)
    names = ", ".join(sorted({p.display_name for p in people if not p.left})[:_SHOWN])
    hint = f"here are: {names}; `airlox session info` lists all"
    if found:
        raise RecipientError(
            f"{word[:_WORD_CHARS]!r} has left the session", code="participant_left", hint=hint
        )
    raise RecipientError(
        f"nobody in this session is {word[:_WORD_CHARS]!r}", code="no_such_participant", hint=hint
    )


def _ambiguous(here: list[ParticipantInfo], word: str) -> NoReturn:
    keys = ", ".join(f"{p.fingerprint} ({p.role})" for p in here[:_SHOWN])
    more = f" and {len(here) - _SHOWN} more" if len(here) > _SHOWN else ""
    raise RecipientError(
        f"{len(here)} participants are called {word[:_WORD_CHARS]!r}",
        code="ambiguous_name",
        hint=f"name one by its key: {keys}{more}",
    )


def _nobody(message: str) -> RecipientError:
    return RecipientError(
        message, code="no_recipients", hint="without recipients it is posted to the whole session"
    )


def _words(to: To) -> tuple[str, ...]:
    words = (to,) if isinstance(to, str) else tuple(to)
    if not all(isinstance(word, str) for word in words):
        raise UsageError("recipients are words", hint="a name, a key or role:sender")
    return words


# -- replies -------------------------------------------------------------------------------------


def _item_id(reply_to: ReplyTo) -> str:
    return reply_to if isinstance(reply_to, str) else reply_to.id


def _check_reply(core: Core, item: str) -> None:
    """Raises UsageError unless `item` is one of this session that readers take.

    One that the relay may have forgotten is refused too: it cannot be told from a slip of the pen.
    """
    if not core.timeline.knows(ItemId(item)):
        forgotten = core.timeline.forgotten(item)  # which brings in what was put aside
        if forgotten is not None:
            raise forgotten
    record = core.timeline.read(lambda view: view.records.get(ItemId(item)))
    if record is None or record.status is ItemStatus.REFUSED:
        what = "was refused here" if record is not None else "is not in this session"
        raise UsageError(
            f"the item {item[:_WORD_CHARS]!r} to reply to {what}",
            code="no_such_item",
            hint="`airlox items` lists them with their ids",
        )


# -- warnings ------------------------------------------------------------------------------------


def _warn(
    core: Core, people: Sequence[ParticipantInfo], to: tuple[str, ...], reply_to: str | None
) -> None:
    """Tell what the sender could not know: it is sent all the same."""
    present = [p for p in people if not p.left and p.participant_pub != core.membership.key.public]
    for word in to:
        if word.startswith(ROLE_PREFIX) and not any(_is_meant(p, (word,)) for p in present):
            core.on_warning(f"nobody else here has the role {word.removeprefix(ROLE_PREFIX)} now")
    for person in present:
        if person.role == Role.RUNNER and _is_meant(person, to):
            core.on_warning(f"{person.display_name} is a runner: it reads no messages, only jobs")
    if core.manifest.is_full:
        return  # 0.1.0 cannot join it
    author = core.timeline.read(lambda view: _author_of(view, reply_to))
    meant = [p for p in present if _is_meant(p, to) or p.participant_pub == author]
    keys = {p.participant_pub for p in meant}
    old = core.timeline.read(lambda view: _without_chain(view, keys))
    for person in meant:
        if person.participant_pub in old:
            core.on_warning(
                f"{person.display_name} seems to use a client as old as 0.1.0, which refuses "
                "messages that are addressed or replies"
            )


def _is_meant(person: ParticipantInfo, to: Sequence[str]) -> bool:
    return person.participant_pub in to or f"{ROLE_PREFIX}{person.role}" in to


def _author_of(view: SessionView, item: str | None) -> str | None:
    record = None if item is None else view.records.get(ItemId(item))
    return None if record is None or record.author is None else record.author.public


def _without_chain(view: SessionView, keys: set[str]) -> set[str]:
    """Of `keys` those whose newest item has no mark of the chain: 0.1.0 knows neither."""
    left, old = set(keys), set[str]()
    for record in reversed(view.records.values()):
        if not left:
            break
        if record.envelope is not None and record.envelope.author in left:
            left.discard(record.envelope.author)
            if read_mark(record.envelope.header) is None:
                old.add(record.envelope.author)
    return old
