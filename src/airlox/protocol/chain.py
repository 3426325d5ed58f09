"""The chain of each author: how a reader notices that a relay drops, moves or repeats items.

The `refs` of a chained item are those its author chose, then own items that are *joined*, then its
*link*: the own item before it that the relay acknowledged last. Which is which stands in its id, so
that nothing somebody chose is ever taken for a link, and clients that do not chain are none the
worse. The id is 7 random bytes ‖ form (1) ‖ number (4) ‖ mark (4):

* form: bit 0 there is a link, bit 1 the author knew every item that `refs` name, bit 2 the linked
  item is one that no relay forgets, bits 3 to 7 how many items are joined;
* number: that of the linked item's event, as the relay told its author; random without a link;
* mark: the start of a digest over all this. An id that was merely drawn has it once in 2^32.

`Chain` steps over the envelopes of a session in the relay's order. It is told of numbers whose
events are forgotten, and takes what they may have held as forgotten, not as dropped. Several items
that link to the same one are normal: an author may have several processes.

What it says rests on envelopes. Whether their authors signed them shows when they are opened, or
when an item that links to them is; a relay that makes one up brings up alarms about itself.
Source: docs/protocol.md, "The chain".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from airlox.errors import EncodingError
from airlox.protocol import canonical, limits
from airlox.protocol.digest import sha256
from airlox.protocol.encoding import ITEM_ID_BYTES, ItemId, PublicKey, b64u_decode, b64u_encode
from airlox.protocol.item import Envelope, Header, ItemRef, Kind
from airlox.protocol.ranges import Ranges

RANDOM_BYTES: Final = 11
"""Random bytes for an id; where it holds a number, the last four are not used."""
JOINED: Final = 8
"""Items joined at once; the form has room for 31."""
NO_NUMBER: Final = 2**32 - 1
"""Stands in an id for a number that its author was not told, or that does not fit."""

_CONTEXT: Final = b"airlox/v1/chain\0"
_FORM_AT: Final = 7
_MARK_AT: Final = 12
_LINKED, _KNOWS, _STAYS, _JOINED_SHIFT = 1, 2, 4, 3


class Link(msgspec.Struct, frozen=True):
    """An own item that the relay acknowledged.

    `seq` is the number it gave, None when unknown. `stays`: no relay forgets it.
    """

    ref: ItemRef
    seq: int | None = None
    stays: bool = False


class Mark(msgspec.Struct, frozen=True):
    """What a chained item says of its `refs`. `knows`: its author knew every item they name."""

    link: Link | None
    joined: int
    knows: bool


# ── the author's side ────────────────────────────────────────────────────────────────────────


class Place(msgspec.Struct, frozen=True):
    """Where an item stands in the chain of its author: its id and its `refs`."""

    item_id: ItemId
    refs: tuple[ItemRef, ...]


def find_place(
    author: PublicKey,
    chosen: Sequence[ItemRef],
    tips: Sequence[Link],
    *,
    knows: bool,
    random: bytes,
) -> Place:
    """The place of a new item that names `chosen`. `random` is `RANDOM_BYTES` fresh bytes.

    `tips` are own items the relay acknowledged that none of the author's items names yet, the one
    acknowledged last at the end. It becomes the link; others are joined where there is room, so
    that what several processes posted side by side hangs on one item again. Where `chosen` leaves
    no room there is no link.
    """
    if len(random) != RANDOM_BYTES:
        raise EncodingError(f"a chained id is made of {RANDOM_BYTES} random bytes")
    room = limits.REFS - len(chosen)
    link = tips[-1] if tips and room > 0 else None
    others = [] if link is None else [tip.ref for tip in tips[:-1] if tip.ref not in chosen]
    joined = others[max(0, len(others) - min(JOINED, room - 1)) :]
    form = (_KNOWS if knows else 0) | len(joined) << _JOINED_SHIFT
    number = random[_FORM_AT:]
    if link is not None:
        form |= _LINKED | (_STAYS if link.stays else 0)
        number = (NO_NUMBER if link.seq is None else min(link.seq, NO_NUMBER)).to_bytes(4, "big")
    last = () if link is None else (link.ref,)
    start = random[:_FORM_AT] + bytes([form]) + number
    item_id = ItemId(b64u_encode(start + _mark(author, start, last)))
    return Place(item_id, (*chosen, *joined, *last))


def _mark(author: PublicKey, start: bytes, link: tuple[ItemRef, ...]) -> bytes:
    named = b"".join(canonical.encode(ref) for ref in link)
    return sha256(_CONTEXT + author.encode() + start + named)[: ITEM_ID_BYTES - _MARK_AT]


def stays(header: Header) -> bool:
    """Whether an item is of those that no relay forgets, as far as its header tells."""
    if header.kind is Kind.EVENT:
        return not chosen_refs(header)  # else a cancel, which goes with its job
    return header.kind in (Kind.TEXT, Kind.RUNNER_INFO)


# ── the reader's side ────────────────────────────────────────────────────────────────────────


def read_mark(header: Header) -> Mark | None:
    """What an item says of its place in the chain; None for one that is not chained."""
    raw = b64u_decode(header.id)
    form, start = raw[_FORM_AT], raw[:_MARK_AT]
    joined = form >> _JOINED_SHIFT
    last = header.refs[-1:] if form & _LINKED else ()
    if len(last) != form & _LINKED or joined + len(last) > len(header.refs):
        return None
    if raw[_MARK_AT:] != _mark(PublicKey(header.author), start, last):
        return None
    link = None
    if last:
        number = int.from_bytes(start[_FORM_AT + 1 :], "big")
        seq = None if number == NO_NUMBER else number
        link = Link(last[0], seq, bool(form & _STAYS))
    return Mark(link, joined, bool(form & _KNOWS))


def chosen_refs(header: Header) -> tuple[ItemRef, ...]:
    """The references that an author chose: those of the chain apart."""
    mark = read_mark(header)
    if mark is None:
        return header.refs
    return header.refs[: len(header.refs) - mark.joined - (mark.link is not None)]


def linked_refs(header: Header) -> tuple[ItemRef, ...]:
    """The references of the chain: joined items and the link."""
    return header.refs[len(chosen_refs(header)) :]


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
    EPOCH = "epoch"
    """An item was shown that is of an epoch whose beginning was not."""


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
            case AlarmKind.EPOCH:
                return (
                    f"the relay does not show the revocation after which item {self.item} was "
                    "posted"
                )


class _Shown(msgspec.Struct, frozen=True):
    seq: int
    blob_sha256: str | None


class Chain:
    """What the envelopes of a session say of one another; one step per envelope, in order.

    `numbered` is False where the numbers are places in a list and not the relay's: then only the
    order counts. `whole` is False where some of the items are shown by intent: then none is missed.
    """

    def __init__(self, *, numbered: bool = True, whole: bool = True) -> None:
        self._numbered = numbered
        self._whole = whole
        self._shown: dict[ItemId, _Shown] = {}
        self._forgotten = Ranges()
        self._unread = Ranges()
        self._missing: dict[ItemId, Alarm] = {}
        self._others: list[Alarm] = []
        self._told: set[tuple[AlarmKind, ItemId]] = set()
        self._raised_by: Counter[PublicKey] = Counter()
        self.more = 0
        """Alarms beyond those that are kept, see `limits`."""
        self.linked = 0
        """Items seen with a link."""
        self.unchained = 0
        """Items seen of clients that do not chain."""
        self.counted_forgotten = 0
        """References to items that are not here and may have been forgotten, or were not kept."""

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
        named = header.refs if mark.link is None else header.refs[:-1]
        for ref in named if mark.knows else named[len(named) - mark.joined :]:
            found += self._check(seq, envelope, Link(ref))
        return found

    def skip(self, first: int, last: int) -> None:
        """The events numbered `first` to `last` are forgotten."""
        self._forgotten.add(first, last)

    def pass_over(self, seq: int) -> None:
        """The event of this number came, and what it announced is not kept here."""
        self._unread.add(seq, seq)

    def forget(self, item: ItemId) -> None:
        """Let go of an item whose number was or is about to be skipped."""
        self._shown.pop(item, None)

    def note_altered(self, seq: int, envelope: Envelope, item: ItemId) -> tuple[Alarm, ...]:
        """An item was announced, but not as `envelope`, which was opened, names it."""
        return self._raise(Alarm(AlarmKind.ALTERED, item, seq, envelope.author, envelope.id))

    def note_epoch(self, seq: int, envelope: Envelope) -> tuple[Alarm, ...]:
        """An item is of an epoch whose beginning was not shown."""
        return self._raise(Alarm(AlarmKind.EPOCH, envelope.id, seq, envelope.author))

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """What came up so far, by number. An item that came late is no longer called missing."""
        return tuple(sorted([*self._others, *self._missing.values()], key=lambda each: each.seq))

    def _check(self, seq: int, envelope: Envelope, link: Link) -> tuple[Alarm, ...]:
        """Whether an item that another names has been shown, and in its place."""
        item = ItemId(link.ref.id)
        shown = self._shown.get(item)
        if shown is None:
            if self._is_excused(seq, link):
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

    def _is_excused(self, seq: int, link: Link) -> bool:
        """Whether what is not here may have been forgotten, or came and was not kept."""
        if not self._whole:
            return True
        if link.seq is None or not self._numbered:
            gone = self._forgotten.any_below(seq) and not link.stays
            return gone or self._unread.any_below(seq)
        return (link.seq in self._forgotten and not link.stays) or link.seq in self._unread

    def _raise(self, alarm: Alarm) -> tuple[Alarm, ...]:
        """Keep an alarm, unless the same was raised before or there are too many."""
        if (alarm.kind, alarm.item) in self._told:
            return ()
        too_many = self._raised_by[alarm.author] >= limits.ALARMS_OF_ONE
        if too_many or len(self._told) >= limits.ALARMS:
            self.more += 1
            return ()
        self._raised_by[alarm.author] += 1
        self._told.add((alarm.kind, alarm.item))
        if alarm.kind is AlarmKind.MISSING:
            self._missing[alarm.item] = alarm
        else:
            self._others.append(alarm)
        return (alarm,)
