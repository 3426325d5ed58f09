"""The chain of each author: how a reader notices that a relay drops, moves or repeats items.

An item of a client that chains says three things under its author's signature: which own item
before it was the last that the relay acknowledged (its *link*: the last of its `refs`), under
which number the relay acknowledged that one, and whether its author knew every other item that it
names. An item id carries the latter two and makes known that the item is chained at all, so that
no reference somebody chose is ever taken for a link, and clients that do not chain are none the
worse: 8 random bytes ‖ the number (4) ‖ a mark (4), or, where there is no link, 12 random bytes ‖
a mark. The mark is the start of a digest over all the item says; an id that was merely drawn at
random has it once in 2^32.

`Chain` steps over the envelopes of a session in the relay's order. It is told of ranges of numbers
that are forgotten, and takes what they may have held as forgotten, not as dropped. Several items
that link to the same one are normal: an author may have several processes.

What it says rests on envelopes. Whether their authors signed them shows when they are opened; a
relay that makes up an envelope can only bring up alarms about itself.
Source: docs/protocol.md, "The chain".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from airlox.errors import EncodingError
from airlox.protocol import canonical, limits
from airlox.protocol.digest import sha256
from airlox.protocol.encoding import ItemId, PublicKey, b64u_decode, b64u_encode
from airlox.protocol.item import Envelope, Header, ItemRef
from airlox.protocol.ranges import Ranges

RANDOM_BYTES: Final = 12
"""Random bytes for an id; where the id holds a number, the last four are not used."""
NO_NUMBER: Final = 2**32 - 1
"""Stands in an id for a number that its author was not told, or that does not fit."""

_CONTEXT: Final = b"airlox/v1/chain\0"
_NUMBER_BYTES: Final = 4
_MARK_BYTES: Final = 4


class Link(msgspec.Struct, frozen=True):
    """An own item that the relay acknowledged. `seq` is the number it gave, None when unknown."""

    ref: ItemRef
    seq: int | None = None


class Mark(msgspec.Struct, frozen=True):
    """What a chained item says. `knows`: its author knew every item that its `refs` name."""

    link: Link | None
    knows: bool


# ── the author's side ────────────────────────────────────────────────────────────────────────


def chained_refs(
    refs: Sequence[ItemRef], tips: Sequence[Link]
) -> tuple[tuple[ItemRef, ...], Link | None]:
    """The `refs` of a chained item and its link.

    `tips` are the author's own acknowledged items that none of its items links to yet, the last
    one acknowledged at the end. Others than that go before it where there is room, so that what
    several processes posted side by side hangs on one item again. Where `refs` leave no room for
    the link there is none.
    """
    room = limits.REFS - len(refs)
    if room <= 0 or not tips:
        return tuple(refs), None
    joined = [tip.ref for tip in tips[:-1] if tip.ref not in refs]
    joined = joined[max(0, len(joined) - (room - 1)) :]
    return (*refs, *joined, tips[-1].ref), tips[-1]


def chained_id(author: PublicKey, link: Link | None, *, knows: bool, random: bytes) -> ItemId:
    """The id of an item whose last reference is `link`. `random` is `RANDOM_BYTES` fresh bytes."""
    if len(random) != RANDOM_BYTES:
        raise EncodingError(f"an item id is made of {RANDOM_BYTES} random bytes")
    start = random
    if link is not None:
        seq = NO_NUMBER if link.seq is None else min(link.seq, NO_NUMBER)
        start = random[:-_NUMBER_BYTES] + seq.to_bytes(_NUMBER_BYTES, "big")
    mark = _mark(author, start, None if link is None else link.ref, knows=knows)
    return ItemId(b64u_encode(start + mark))


def _mark(author: PublicKey, start: bytes, link: ItemRef | None, *, knows: bool) -> bytes:
    form = (link is not None) + 2 * knows
    named = b"" if link is None else canonical.encode(link)
    return sha256(_CONTEXT + bytes([form]) + author.encode() + start + named)[:_MARK_BYTES]


# ── the reader's side ────────────────────────────────────────────────────────────────────────


def read_mark(header: Header) -> Mark | None:
    """What an item says of its chain; None for one that is not chained."""
    raw = b64u_decode(header.id)
    start, mark = raw[:-_MARK_BYTES], raw[-_MARK_BYTES:]
    author = PublicKey(header.author)
    last = header.refs[-1] if header.refs else None
    for knows in (True, False):
        if last is not None and mark == _mark(author, start, last, knows=knows):
            number = int.from_bytes(start[-_NUMBER_BYTES:], "big")
            return Mark(Link(last, None if number == NO_NUMBER else number), knows)
        if mark == _mark(author, start, None, knows=knows):
            return Mark(None, knows)
    return None


class AlarmKind(StrEnum):
    MISSING = "missing"
    """An item that must have been shown was not."""
    REORDERED = "reordered"
    """An item was shown after one that links to it, or under another number than its author was
    told."""
    REPEATED = "repeated"
    """An item was announced a second time."""
    ALTERED = "altered"
    """An item was shown with other bytes than those that an item linking to it names."""


class Alarm(msgspec.Struct, frozen=True):
    """Something only a relay that lies, or has lost something, can bring about.

    `item` is the one concerned, `named_by` the item whose signed references show it, `author` who
    signed those; `seq` is the number at which it showed.
    """

    kind: AlarmKind
    item: ItemId
    seq: int
    author: PublicKey
    named_by: ItemId | None = None

    def __str__(self) -> str:
        match self.kind:
            case AlarmKind.MISSING:
                return (
                    f"the relay does not show item {self.item}, which item {self.named_by} names "
                    "as posted before it"
                )
            case AlarmKind.REORDERED:
                return (
                    f"the relay shows item {self.item} out of its order: item {self.named_by} "
                    "names another place"
                )
            case AlarmKind.REPEATED:
                return f"the relay announced item {self.item} a second time"
            case AlarmKind.ALTERED:
                return (
                    f"the relay shows item {self.item} with other bytes than item "
                    f"{self.named_by} names"
                )


class _Shown(msgspec.Struct, frozen=True):
    seq: int
    blob_sha256: str | None


class Chain:
    """What the envelopes of a session say of one another; one step per envelope, in order.

    `numbered` is False where the numbers are places in a list and not the relay's: then only the
    order counts.
    """

    def __init__(self, *, numbered: bool = True) -> None:
        self._numbered = numbered
        self._shown: dict[ItemId, _Shown] = {}
        self._forgotten = Ranges()
        self._missing: dict[ItemId, Alarm] = {}
        self._others: list[Alarm] = []
        self._told: set[tuple[AlarmKind, ItemId]] = set()
        self.more = 0
        """Alarms beyond the `limits.ALARMS` that are kept."""
        self.linked = 0
        """Items seen with a link."""
        self.unchained = 0
        """Items seen of clients that do not chain."""
        self.counted_forgotten = 0
        """References to items that are not here and may have been forgotten."""

    def step(
        self, seq: int, envelope: Envelope, blob_sha256: str | None = None
    ) -> tuple[Alarm, ...]:
        """Takes the next envelope; gives what it brings up. `blob_sha256` of its blob if known."""
        header, item = envelope.header, envelope.id
        if item in self._shown:
            return self._raise(Alarm(AlarmKind.REPEATED, item, seq, envelope.author))
        self._shown[item] = _Shown(seq, blob_sha256)
        found: tuple[Alarm, ...] = ()
        if (absent := self._missing.pop(item, None)) is not None:
            self._told.discard((AlarmKind.MISSING, item))
            late = Alarm(AlarmKind.REORDERED, item, seq, absent.author, absent.named_by)
            found = self._raise(late)
        mark = read_mark(header)
        if mark is None:
            self.unchained += 1
            return found
        if mark.link is not None:
            self.linked += 1
            found += self._check(seq, envelope, mark.link)
        others = header.refs if mark.link is None else header.refs[:-1]
        for ref in others if mark.knows else ():
            found += self._check(seq, envelope, Link(ref))
        return found

    def skip(self, first: int, last: int) -> None:
        """The events numbered `first` to `last` are forgotten, or not here for another reason."""
        self._forgotten.add(first, last)

    def forget(self, item: ItemId) -> None:
        """Let go of an item whose number was or is about to be skipped."""
        self._shown.pop(item, None)

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """What came up so far, by number. An item that came late is no longer called missing."""
        return tuple(sorted([*self._others, *self._missing.values()], key=lambda each: each.seq))

    def _check(self, seq: int, envelope: Envelope, link: Link) -> tuple[Alarm, ...]:
        """Whether an item that another names has been shown, and in its place."""
        item = ItemId(link.ref.id)
        shown = self._shown.get(item)
        if shown is None:
            if self._may_be_forgotten(seq, link):
                self.counted_forgotten += 1
                return ()
            kind = AlarmKind.MISSING
        elif self._numbered and link.seq is not None and link.seq != shown.seq:
            kind = AlarmKind.REORDERED
        elif shown.blob_sha256 is not None and shown.blob_sha256 != link.ref.blob_sha256:
            kind = AlarmKind.ALTERED
        else:
            return ()
        return self._raise(Alarm(kind, item, seq, envelope.author, envelope.id))

    def _may_be_forgotten(self, seq: int, link: Link) -> bool:
        if self._numbered and link.seq is not None:
            return link.seq in self._forgotten
        return self._forgotten.any_below(seq)

    def _raise(self, alarm: Alarm) -> tuple[Alarm, ...]:
        """Keep an alarm, unless the same was raised before or there are too many."""
        if (alarm.kind, alarm.item) in self._told:
            return ()
        if len(self._told) >= limits.ALARMS:
            self.more += 1
            return ()
        self._told.add((alarm.kind, alarm.item))
        if alarm.kind is AlarmKind.MISSING:
            self._missing[alarm.item] = alarm
        else:
            self._others.append(alarm)
        return (alarm,)
