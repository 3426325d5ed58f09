"""What a session of the relay holds: participants, items, jobs, packs, events.

Plain values and small objects; what happens to them is state.py's to say. Fields that live only
as long as the process say so.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from airlox.protocol.cert import Join
from airlox.protocol.encoding import ItemId, PublicKey
from airlox.protocol.item import Kind
from airlox.protocol.keys import Role
from airlox.protocol.limits import KIB
from airlox.protocol.wire import JobState
from airlox.relay import records

STANDING: Final = ((Kind.EVENT, Role.OWNER), (Kind.RUNNER_INFO, Role.RUNNER))
"""What newcomers need to know who runs jobs, by kind and author: approvals, what runners offer."""
STANDING_BLOB_BYTES: Final = 32 * KIB
"""The longest reason of a rejection fits."""
RUNNERS_READ: Final = (Kind.FILE, Kind.EVENT)
"""What runners fetch of others, beside the jobs they are given."""


class Event(NamedTuple):
    """An event of the session; its number is its place in the list. `data` is one line of JSON."""

    kind: str
    data: str

    @property
    def size(self) -> int:
        """Bytes of `{"seq":N,"kind":"K","data":…},` in the answer of `/events`, at most."""
        return len(self.data.encode()) + len(self.kind) + 40


class Presence:
    """Whether a runner is there. Lives as long as the process; times are ticks."""

    __slots__ = ("capacity", "heartbeat_ms", "lost_ms", "seen_ms", "streams", "taking")

    def __init__(self, now_ms: int) -> None:
        self.streams = 0
        self.heartbeat_ms: int | None = None
        self.lost_ms: int | None = None
        """When its last stream ended."""
        self.seen_ms = now_ms
        """Last sign of life; a start of the relay counts as one."""
        self.capacity = 1
        """Jobs the runner takes at a time, by its own word."""
        self.taking: frozenset[ItemId] = frozenset()
        """Those that it last named as having its slots, and those that were given up since."""


class Participant:
    __slots__ = (
        "approved",
        "bit",
        "events_bytes",
        "has_left",
        "is_cut",
        "items",
        "join",
        "presence",
        "rejected",
        "sealed_bytes",
        "secret_sha256",
        "served",
        "token_sha256",
        "wants",
    )

    def __init__(self, join: Join, bit: int, token_sha256: bytes, secret: bytes | None) -> None:
        self.join = join
        self.bit = bit
        """This participant's bit in sets that are kept as integers."""
        self.token_sha256 = token_sha256
        self.secret_sha256 = secret
        self.has_left = False
        """Left, revoked or rejected: the token is dead."""
        self.is_cut = False
        """About to be cut off: not durable yet, but nothing more is taken from this key."""
        self.approved = False
        self.rejected = False
        self.presence = Presence(0)
        self.served = -1
        """Number of the event that gave its newest job to a runner."""
        # what of the session's room this participant fills
        self.items = 0
        self.sealed_bytes = 0
        self.events_bytes = 0
        """Of items and wants, without those that were forgotten."""
        self.wants: dict[ItemId, int] = {}
        """Evicted blobs this participant asked for and did not get yet, and when."""

    @property
    def key(self) -> PublicKey:
        return self.join.participant_pub

    @property
    def is_here(self) -> bool:
        return not self.has_left and not self.is_cut

    @property
    def role(self) -> Role:
        return self.join.role


class StoredItem:
    __slots__ = (
        "acks",
        "author",
        "blob_sha256",
        "envelope_sha256",
        "has_blob",
        "is_leaving",
        "kind",
        "named",
        "names",
        "present",
        "seq",
        "size",
        "stands",
        "wants",
    )

    def __init__(
        self,
        record: records.Posted,
        seq: int,
        author: Participant,
        present: int,
        envelope_sha256: bytes,
    ) -> None:
        self.seq = seq
        self.present = present
        """Those who had joined when it was posted, as a set of bits."""
        self.kind = record.kind
        self.size = record.size
        self.blob_sha256 = record.blob_sha256
        self.envelope_sha256 = envelope_sha256
        self.author = author
        self.acks = 0
        self.has_blob = True
        self.is_leaving = False
        """Its eviction is on the way to the disk. Lives as long as the process."""
        self.stands = record.size <= STANDING_BLOB_BYTES and (record.kind, author.role) in STANDING
        """Its blob stays: whoever joins later can trust no runner without it."""
        self.wants: dict[str, int] | None = None
        """Who asked for the evicted blob, and when."""
        self.names: tuple[ItemId, ...] = ()
        """The files it names, in sessions with `history`."""
        self.named = 0
        """How many items name this file."""


class Job:
    __slots__ = (
        "author",
        "blob_sha256",
        "cancel_since_ms",
        "cancels",
        "ended_at_ms",
        "id",
        "keeps",
        "others",
        "place",
        "reason",
        "result",
        "runner",
        "since_ms",
        "state",
        "target",
        "told",
        "wait_s",
    )

    def __init__(
        self, job: ItemId, author: str, blob_sha256: bytes, target: str, wait_s: int = 0
    ) -> None:
        self.id = job
        self.author = author
        self.blob_sha256 = blob_sha256
        self.target = target
        self.wait_s = wait_s
        """How long it may wait for a slot."""
        self.state = JobState.FAILED
        self.runner: PublicKey | None = None
        self.reason: str | None = None
        self.since_ms = 0
        """When it got its state, in ticks."""
        self.cancel_since_ms: int | None = None
        """When its end was asked for, in ticks."""
        self.cancels = 0
        """Signed cancels that were taken although there was no room. Lives as long as the
        process."""
        self.ended_at_ms = 0
        """When it ended, by the clock."""
        self.result: ItemId | None = None
        self.place: int | None = None
        """Among those that wait, as it was when somebody looked. Lives as long as the process, as
        does what its streams were told last, place and reason."""
        self.told: tuple[int | None, str | None] | None = None
        self.keeps: tuple[ItemId, ...] = ()
        """Blobs that stay until it is over, since it had to wait: its own and its files."""
        self.others: list[ItemId] = []
        """Its result and its cancels: they are forgotten with it."""

    @property
    def is_active(self) -> bool:
        """Whether a runner has it."""
        return self.state in (JobState.ASSIGNED, JobState.RUNNING)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a slot."""
        return self.state == JobState.QUEUED

    @property
    def is_over(self) -> bool:
        return not self.is_active and not self.is_waiting


class Pack(NamedTuple):
    size: int
    sha256: bytes


class PackSet:
    """The packs of one job's tree; `author` alone may add to them. `since_ms` is in ticks."""

    __slots__ = ("author", "packs", "since_ms")

    def __init__(self, author: str, since_ms: int) -> None:
        self.author = author
        self.since_ms = since_ms
        self.packs: dict[int, Pack] = {}
