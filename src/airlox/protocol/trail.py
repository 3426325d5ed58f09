"""The audit trail: its entries, one JSON object a line, as relays write and auditors read them.

What an entry says is the relay's claim. The signed documents in it (manifest, joins, envelopes)
are what audit.py checks; everything else proves nothing, and a field that is not known here is
passed over.
Source: docs/protocol.md, "The audit trail".
"""

from __future__ import annotations

from collections.abc import Mapping
from json import JSONDecoder
from typing import Any, Final, NoReturn

import msgspec
from msgspec import UNSET, UnsetType

from airlox.errors import EncodingError, LimitError
from airlox.protocol import limits
from airlox.protocol.canonical import U53, TimeMs
from airlox.protocol.encoding import b64u_decode, parse_hash, parse_item_id
from airlox.protocol.keys import Role, parse_public_key


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """`at_ms` is the relay's time."""

    at_ms: TimeMs


class Created(Entry, frozen=True, kw_only=True, tag="created"):
    """The first entry of every trail."""

    signed_manifest: str


class Joined(Entry, frozen=True, kw_only=True, tag="joined"):
    signed_join: str


class Posted(Entry, frozen=True, kw_only=True, tag="item", omit_defaults=True):
    """`seq` is the number the relay gave; 0.1.0 had none in its trails. `blob`, in full sessions:
    the sealed bytes of the owner's events, which say what became of runners."""

    envelope: str
    blob_sha256: str
    seq: U53 | UnsetType = UNSET
    blob: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        parse_hash(self.blob_sha256)


class _OfItem(Entry, frozen=True, kw_only=True):
    item: str

    def __post_init__(self) -> None:
        parse_item_id(self.item)


class _OfParticipant(Entry, frozen=True, kw_only=True):
    participant_pub: str

    def __post_init__(self) -> None:
        parse_public_key(self.participant_pub)


class _OfBoth(Entry, frozen=True, kw_only=True):
    item: str
    participant_pub: str

    def __post_init__(self) -> None:
        parse_item_id(self.item)
        parse_public_key(self.participant_pub)


class Acked(_OfBoth, frozen=True, kw_only=True, tag="ack"):
    """A participant says that it stored an item."""


class Wanted(_OfBoth, frozen=True, kw_only=True, tag="want"):
    """A participant asks for a blob the relay let go of."""


class Reseeded(_OfBoth, frozen=True, kw_only=True, tag="reseeded"):
    """A participant brought a blob back."""


class Evicted(_OfItem, frozen=True, kw_only=True, tag="evicted"):
    """The relay let go of a blob."""


class Left(_OfParticipant, frozen=True, kw_only=True, tag="left"):
    """A participant is gone, by its own wish."""


class Approved(_OfParticipant, frozen=True, kw_only=True, tag="approved"):
    """The owner told the relay that a runner may have jobs."""


class Rejected(_OfParticipant, frozen=True, kw_only=True, tag="rejected"):
    """The owner told the relay to turn a runner away."""


class Revoked(Entry, frozen=True, kw_only=True, tag="revoked"):
    """The owner told the relay to cut off a role."""

    role: Role


class EpochBegan(Entry, frozen=True, kw_only=True, tag="epoch"):
    """The owner cut somebody off: the signed document that says whom."""

    signed_epoch: str


class OfJob(Entry, frozen=True, kw_only=True):
    """What becomes of a job, and by whom."""

    job: str
    participant_pub: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        parse_item_id(self.job)
        if self.participant_pub is not None:
            parse_public_key(self.participant_pub)
        if self.reason is not None:
            _check_text(self.reason)


class Queued(OfJob, frozen=True, kw_only=True, tag="queued"):
    """A job waits for a free slot."""


class Assigned(OfJob, frozen=True, kw_only=True, tag="assigned"):
    """A job was given to a runner."""


class Claimed(OfJob, frozen=True, kw_only=True, tag="claimed"):
    """The runner began."""


class Finished(OfJob, frozen=True, kw_only=True, tag="finished"):
    """The runner's result came."""


class Failed(OfJob, frozen=True, kw_only=True, tag="failed"):
    """The relay ended a job, for a reason of its own."""


class CancelAsked(OfJob, frozen=True, kw_only=True, tag="cancel"):
    """A participant told the relay to end a job."""


class Forgotten(Entry, frozen=True, kw_only=True, tag="forgotten", omit_defaults=True):
    """Finished jobs are not told of any more: their names, or, where the relay has let go of their
    entries since, `ranges` of numbers whose events are in no trail any more, ascending."""

    jobs: tuple[str, ...] = ()
    ranges: tuple[tuple[U53, U53], ...] = ()

    def __post_init__(self) -> None:
        last = -1
        for low, high in self.ranges:
            if not last < low <= high:
                raise EncodingError("ranges out of order")
            last = high


class Extract(Entry, frozen=True, kw_only=True, tag="extract"):
    """This trail tells of these jobs alone, and of who took part: written before they were
    forgotten."""

    jobs: tuple[str, ...]


class Closed(Entry, frozen=True, kw_only=True, tag="closed"):
    """The session is over."""

    reason: str | None = None

    def __post_init__(self) -> None:
        if self.reason is not None:
            _check_text(self.reason)


AnyEntry = (
    Created
    | Joined
    | Posted
    | Acked
    | Wanted
    | Reseeded
    | Evicted
    | Left
    | Approved
    | Rejected
    | Revoked
    | EpochBegan
    | Queued
    | Assigned
    | Claimed
    | Finished
    | Failed
    | CancelAsked
    | Forgotten
    | Extract
    | Closed
)

_KINDS: Final[Mapping[str, type[Any]]] = {
    str(kind.__struct_config__.tag): kind for kind in AnyEntry.__args__
}


def encode_entry(entry: AnyEntry) -> bytes:
    """The line of an entry, without its end."""
    return msgspec.json.encode(entry)


def parse_entry(line: bytes | str | Mapping[str, Any]) -> AnyEntry:
    """The entry of a line, or of what a line was parsed to. Raises EncodingError or LimitError.

    Code `unknown_entry`: a kind that is not known here.
    """
    found = line if isinstance(line, Mapping) else _parse_json(line)
    word = found.get("event")
    if not isinstance(word, str) or word not in _KINDS:
        raise EncodingError(
            f"a kind of entry this version does not know: {_short(word)}",
            code="unknown_entry",
            hint="a newer airlox may know it",
        )
    try:
        entry: AnyEntry = msgspec.convert(dict(found), _KINDS[word], strict=True)
    except (msgspec.ValidationError, EncodingError):
        raise EncodingError(f"a malformed entry of kind {word}") from None
    return entry


def entry_blob(entry: Posted) -> bytes | None:
    """The sealed bytes that came with an item, if any. Raises EncodingError."""
    return None if entry.blob is UNSET else b64u_decode(entry.blob)


def _parse_json(line: bytes | str) -> dict[str, Any]:
    if len(line) > limits.TRAIL_LINE_BYTES:
        raise LimitError("a line that is too long for any entry")
    try:
        text = line if isinstance(line, str) else line.decode()
        found = _DECODER.decode(text)
    except (ValueError, RecursionError):
        raise EncodingError("a line that is no JSON object, each field once") from None
    if not isinstance(found, dict):
        raise EncodingError("a line that is no JSON object, each field once")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two readers could take a field that stands twice for two things."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _refuse(_: str) -> NoReturn:
    raise ValueError


_DECODER: Final = JSONDecoder(object_pairs_hook=_once, parse_float=_refuse, parse_constant=_refuse)


def _check_text(text: str) -> None:
    if len(text) > limits.REASON or not text.isprintable():
        raise EncodingError("a text that is too long or not printable")


def _short(word: object) -> str:
    return ascii(word)[:40] if isinstance(word, str) else "none"
