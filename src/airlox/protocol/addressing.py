"""Whom an item is for, who is woken by it, and how long agents have been talking among themselves.

Everything here is a total function over plain values: what an item and the view of a session make
of them is view.py's matter, how names become keys is the client's. Nobody is woken by their own
post, and being woken is never a permission: what an item may ask for is decided elsewhere.
Source: docs/protocol.md, "Addressed messages".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from airlox.errors import LimitError, ValidationError
from airlox.protocol import limits
from airlox.protocol.cert import ClientKind
from airlox.protocol.encoding import PublicKey
from airlox.protocol.item import Kind
from airlox.protocol.keys import Role, parse_public_key

ROLE_PREFIX: Final = "role:"

PERSON_KINDS: Final = frozenset({ClientKind.WEB})
"""Clients that people sit at. Agents use all others, people at a terminal too: so the count of
hops errs towards stopping. Kinds are self-declared: a net against accidents, no boundary."""


class Reason(StrEnum):
    """Why an item is for somebody."""

    ADDRESSED = "addressed"
    """`to` names their key."""
    ROLE = "role"
    """`to` names their role."""
    REPLY = "reply"
    """It replies to an item of theirs."""
    RESULT = "result"
    """It is the result of a job of theirs."""
    EVERYONE = "everyone"
    """It is a message of the owner that is addressed to nobody."""


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """What of an item decides whom it is for."""

    author: PublicKey
    author_role: Role
    kind: Kind
    to: tuple[str, ...] = ()
    """Participant keys and words such as `role:sender`; empty when it is addressed to nobody."""
    replied_author: PublicKey | None = None
    """Author of the item it replies to; None without one, or when that item is not known."""
    job_author: PublicKey | None = None
    """Author of the job it is the result of; None for everything but results of known jobs."""


def reasons_for(post: Post, reader: PublicKey, role: Role) -> tuple[Reason, ...]:
    """Why `post` is for a participant, in the order of `Reason`; empty when it is not."""
    if post.author == reader:
        return ()
    holds = {
        Reason.ADDRESSED: reader in post.to,
        Reason.ROLE: role_word(role) in post.to,
        Reason.REPLY: post.replied_author == reader,
        Reason.RESULT: post.job_author == reader,
        Reason.EVERYONE: is_for_everyone(post),
    }
    return tuple(reason for reason, is_so in holds.items() if is_so)


def is_for_everyone(post: Post) -> bool:
    """Whether it is a message of the owner to nobody in particular.

    Files do not count: most are inputs of jobs, and an agent's run costs more than a look.
    """
    return post.kind is Kind.TEXT and post.author_role is Role.OWNER and not post.to


def woken(post: Post, people: Iterable[tuple[PublicKey, Role]]) -> tuple[PublicKey, ...]:
    """Who of `people` is woken by `post`, in their order: all whom it is for."""
    return tuple(public for public, role in people if reasons_for(post, public, role))


def count_hops(authors: Iterable[ClientKind]) -> int:
    """How many posts in a row, the newest first, were by no person's client.

    `authors` are the kinds of client behind an item, the one it replies to, and so on. No more of
    them are taken than decide it.
    """
    hops = 0
    for kind in authors:
        if kind in PERSON_KINDS:
            break
        hops += 1
    return hops


# -- the signed form ----------------------------------------------------------------------------


def role_word(role: Role) -> str:
    """How `to` names everybody of a role."""
    return ROLE_PREFIX + role.value


def parse_recipient(word: str) -> PublicKey | Role:
    """The key or role that an entry of `to` names. Raises ValidationError."""
    if not word.startswith(ROLE_PREFIX):
        return parse_public_key(word)
    try:
        return Role(word.removeprefix(ROLE_PREFIX))
    except ValueError:
        raise ValidationError("a message is addressed to a role that does not exist") from None


def encode_recipients(words: Iterable[str]) -> tuple[str, ...]:
    """The one signed form of a set of recipients. Raises ValidationError, LimitError."""
    to = tuple(sorted(set(words)))
    check_recipients(to)
    return to


def check_recipients(to: Sequence[str]) -> None:
    """`to` is in its one form: keys and roles, sorted, each once, at least one and not too many.

    Raises ValidationError, LimitError.
    """
    if not to:
        raise ValidationError("a message that is addressed to nobody leaves `to` out")
    if len(to) > limits.RECIPIENTS:
        raise LimitError(f"a message is addressed to at most {limits.RECIPIENTS} recipients")
    for word in to:
        parse_recipient(word)
    if list(to) != sorted(set(to)):
        raise ValidationError("the recipients of a message are sorted, each once")
