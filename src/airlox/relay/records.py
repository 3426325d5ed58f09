"""What the relay writes down about a session: one record for each thing that happened.

A session's state is the fold of its records (state.py), its audit trail their list (audit.py).
They are the relay's own, read back only from its own store. Fields are only ever added at the
end, with a default.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from airlox.protocol.keys import Role


class Record(msgspec.Struct, frozen=True, array_like=True):
    """`at_ms` is the relay's time."""

    at_ms: int


class Created(Record, frozen=True, tag="created"):
    manifest: str


class Joined(Record, frozen=True, tag="joined"):
    """Of token and join secret only the SHA-256 is kept."""

    join: str
    token_sha256: bytes
    secret_sha256: bytes | None


class Posted(Record, frozen=True, tag="item"):
    """`job` is the job a result answers; `target` a job's target in clear.

    `about`, in sessions with `history`: the job a cancel names, the files any other item names.
    `wait_s`: how long a job may wait for a slot; 0 for one that does not."""

    item: str
    author: str
    kind: str
    size: int
    blob_sha256: bytes
    envelope: str
    job: str | None = None
    target: str | None = None
    about: tuple[str, ...] = ()
    wait_s: int = 0


class Acked(Record, frozen=True, tag="ack"):
    item: str
    participant: str


class Left(Record, frozen=True, tag="left"):
    participant: str


class Revoked(Record, frozen=True, tag="revoked"):
    role: Role


class Approved(Record, frozen=True, tag="approved"):
    participant: str


class Rejected(Record, frozen=True, tag="rejected"):
    participant: str


class Wanted(Record, frozen=True, tag="want"):
    item: str
    participant: str


class Evicted(Record, frozen=True, tag="evicted"):
    item: str


class Reseeded(Record, frozen=True, tag="reseeded"):
    item: str
    participant: str


class JobChanged(Record, frozen=True, tag="job"):
    job: str
    state: str
    runner: str | None
    reason: str | None


class CancelAsked(Record, frozen=True, tag="cancel"):
    job: str
    participant: str


class PackStored(Record, frozen=True, tag="pack"):
    job: str
    number: int
    author: str
    size: int
    sha256: bytes


class PacksDropped(Record, frozen=True, tag="packs_dropped"):
    job: str


class Forgot(Record, frozen=True, tag="forgot"):
    """Finished jobs are no longer known, nor are their items, themselves among them."""

    jobs: tuple[str, ...]
    items: tuple[str, ...]


class Gaps(Record, frozen=True, tag="gaps"):
    """First in a log that was written anew: numbers whose events were forgotten."""

    ranges: tuple[tuple[int, int], ...]


class EpochBegan(Record, frozen=True, tag="epoch"):
    """The owner's signed document, which says who is cut off."""

    document: str


class Ended(Record, frozen=True, tag="ended"):
    """In the relay's own log: a session was closed and is not to be opened again before then."""

    session: str
    until_ms: int


AnyRecord = (
    Created
    | Joined
    | Posted
    | Acked
    | Left
    | Revoked
    | Approved
    | Rejected
    | Wanted
    | Evicted
    | Reseeded
    | JobChanged
    | CancelAsked
    | PackStored
    | PacksDropped
    | Forgot
    | Gaps
    | EpochBegan
    | Ended
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(AnyRecord)


def encode(record: AnyRecord) -> bytes:
    return _ENCODER.encode(record)


def decode(entry: bytes) -> AnyRecord:
    """Raises msgspec.MsgspecError for bytes this version did not write."""
    record: AnyRecord = _DECODER.decode(entry)
    return record


def named_item(record: AnyRecord) -> str | None:
    """The item or job a record is about."""
    return getattr(record, "item", None) or getattr(record, "job", None)
