"""Who is listening: open streams, how they are woken, kept alive and cut.

A stream of a session's events is a cursor into the session's list (`Feed`): nothing is buffered
for a slow reader, and a reader that comes back at its cursor misses nothing. A stream of
messages that have no number (a runner's, a job's) is a bounded queue (`Mailbox`); a reader that
lets it overflow is cut. Either way a reader that takes nothing for a while is cut, so that it
holds no memory and no connection.

One ticking task serves all streams: an idle stream has no timer of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Final, TypeVar

from airlox.protocol import limits
from airlox.protocol.encoding import ItemId, PublicKey, SessionId
from airlox.protocol.sse import comment, encode_event
from airlox.protocol.wire import EventKind
from airlox.relay.clock import Clock
from airlox.relay.config import Config
from airlox.relay.gates import Place
from airlox.relay.state import Session

S = TypeVar("S", bound="Stream")

CHUNK_BYTES: Final = 64 << 10
KEEPALIVE: Final = comment()


class Stream:
    """One open stream. The writer of the connection calls `next_chunk` until it is empty."""

    __slots__ = ("_at_ms", "_clock", "_is_over", "_ping", "_waiter", "owner", "place", "writer")

    def __init__(self, clock: Clock, owner: PublicKey | None, place: Place) -> None:
        self.owner = owner
        self.place = place
        self.writer: asyncio.Task[None] | None = None
        """The task to cancel when the reader takes nothing."""
        self._clock = clock
        self._at_ms = clock.ticks_ms()
        self._is_over = False
        self._ping = False
        self._waiter: asyncio.Future[None] | None = None

    async def next_chunk(self) -> bytes:
        """What to send next, up to a bound; empty when the stream has ended and was read out."""
        while True:
            chunk = self._take()
            if chunk or self._is_over:
                self._at_ms = self._clock.ticks_ms()
                return chunk
            if self._ping:
                self._ping = False
                self._at_ms = self._clock.ticks_ms()
                return KEEPALIVE
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self) -> None:
        """Ends the stream once the reader has what is there."""
        self._is_over = True
        self.wake()

    def tick(self, now_ms: int, keepalive_ms: int, stall_ms: int) -> None:
        """Sends a keepalive to a silent stream, and cuts one whose reader has stalled."""
        silent_ms = now_ms - self._at_ms
        if self._waiter is not None:
            if silent_ms >= keepalive_ms:
                self._ping = True
                self.wake()
        elif silent_ms >= stall_ms and self.writer is not None:
            self.writer.cancel()

    def _take(self) -> bytes:
        raise NotImplementedError


class Feed(Stream):
    """The events of a session from a number on."""

    __slots__ = ("_cursor", "_session")

    def __init__(
        self, session: Session, after: int, clock: Clock, owner: PublicKey, place: Place
    ) -> None:
        super().__init__(clock, owner, place)
        self._session = session
        self._cursor = after + 1

    def _take(self) -> bytes:
        end = len(self._session.events)
        if self._cursor == end - 1 and self._session.events[end - 1] is not None:
            self._cursor = end
            return self._session.sse(end - 1)
        parts, size = [], 0
        while self._cursor < end and size < CHUNK_BYTES:
            if self._session.events[self._cursor] is None:
                first, self._cursor = self._cursor, self._session.gap_end(self._cursor)
                parts.append(encode_event(self._cursor, EventKind.GAP, f'{{"first":{first}}}'))
            else:
                parts.append(self._session.sse(self._cursor))
            size += len(parts[-1])
            self._cursor += 1
        return b"".join(parts)


class Mailbox(Stream):
    """Messages for one reader, at most `limit_bytes` of them waiting."""

    __slots__ = ("_bytes", "_limit_bytes", "_waiting", "overflowed")

    def __init__(
        self, limit_bytes: int, clock: Clock, owner: PublicKey | None, place: Place
    ) -> None:
        super().__init__(clock, owner, place)
        self.overflowed = False
        self._limit_bytes = limit_bytes
        self._waiting: deque[bytes] = deque()
        self._bytes = 0

    def put(self, message: bytes) -> None:
        """Adds a message; one that finds no room ends the stream and drops what waits."""
        if self._is_over:
            return
        if self._bytes + len(message) > self._limit_bytes:
            self.overflowed = True
            self._waiting.clear()
            self._bytes = 0
            self.end()
            return
        self._waiting.append(message)
        self._bytes += len(message)
        self.wake()

    def _take(self) -> bytes:
        parts, size = [], 0
        while self._waiting and size < CHUNK_BYTES:
            parts.append(self._waiting.popleft())
            size += len(parts[-1])
        self._bytes -= size
        return b"".join(parts)


class _Room:
    """The open streams of one session."""

    __slots__ = ("count", "feeds", "jobs", "runners")

    def __init__(self) -> None:
        self.feeds: set[Feed] = set()
        self.runners: dict[PublicKey, Mailbox] = {}
        self.jobs: dict[ItemId, set[Mailbox]] = {}
        self.count = 0

    def streams(self) -> Iterator[Stream]:
        yield from list(self.feeds)
        yield from list(self.runners.values())
        for readers in list(self.jobs.values()):
            yield from list(readers)


class Hub:
    """All open streams of the relay."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._rooms: dict[SessionId, _Room] = {}
        self._ending = False

    @property
    def count(self) -> int:
        """Streams that are open."""
        return sum(room.count for room in self._rooms.values())

    # ── opening and leaving ──────────────────────────────────────────────────────────────────

    def open_feed(self, session: Session, after: int, owner: PublicKey, place: Place) -> Feed:
        """`place` is given back when the stream leaves."""
        room = self._enter(session.id)
        feed = Feed(session, after, self._clock, owner, place)
        room.feeds.add(feed)
        return self._begin(feed)

    def open_runner(self, session: Session, owner: PublicKey, place: Place) -> Mailbox:
        """A runner has one stream: a new one ends the one before."""
        room = self._enter(session.id)
        earlier = room.runners.pop(owner, None)
        if earlier is not None:
            earlier.end()
        box = Mailbox(self._config.stream_queue_bytes, self._clock, owner, place)
        room.runners[owner] = box
        return self._begin(box)

    def open_job(self, session: Session, job: ItemId, owner: PublicKey, place: Place) -> Mailbox:
        room = self._enter(session.id)
        # What is held comes all at once: the ring, and a list of lacking content in base64.
        held = self._config.live_ring_bytes + 2 * limits.LACK_BYTES
        limit = self._config.stream_queue_bytes + held
        box = Mailbox(limit, self._clock, owner, place)
        room.jobs.setdefault(job, set()).add(box)
        return self._begin(box)

    def leave(self, sid: SessionId, stream: Stream, job: ItemId | None = None) -> None:
        """The connection is gone. To be called once for every stream opened."""
        stream.place.give()
        stream.end()
        room = self._rooms[sid]
        room.count -= 1
        room.feeds.discard(stream)
        owner = stream.owner
        if owner is not None and room.runners.get(owner) is stream:
            del room.runners[owner]
        if job is not None:
            readers = room.jobs[job]
            readers.discard(stream)
            if not readers:
                del room.jobs[job]
        if not room.count:
            del self._rooms[sid]

    def _enter(self, sid: SessionId) -> _Room:
        room = self._rooms.setdefault(sid, _Room())
        room.count += 1
        return room

    def _begin(self, stream: S) -> S:
        if self._ending:
            stream.end()
        return stream

    # ── waking ───────────────────────────────────────────────────────────────────────────────

    def ring(self, sid: SessionId) -> None:
        """There are new events in a session."""
        room = self._rooms.get(sid)
        if room is not None:
            for feed in room.feeds:
                feed.wake()

    def tell_runner(self, sid: SessionId, runner: PublicKey, message: bytes) -> bool:
        """Puts a message on a runner's stream; False when it has none open."""
        room = self._rooms.get(sid)
        box = None if room is None else room.runners.get(runner)
        if box is None:
            return False
        box.put(message)
        return True

    def tell_job(
        self, sid: SessionId, job: ItemId, message: bytes, *, only: str | None = None
    ) -> None:
        """Puts a message on the streams of a job: all of them, or those of one participant."""
        for box in self._job_streams(sid, job):
            if only is None or box.owner == only:
                box.put(message)

    def hears_job(self, sid: SessionId, job: ItemId) -> bool:
        """Whether somebody has a stream of a job open."""
        return bool(self._job_streams(sid, job))

    def end_job(self, sid: SessionId, job: ItemId) -> None:
        for box in self._job_streams(sid, job):
            box.end()

    def _job_streams(self, sid: SessionId, job: ItemId) -> list[Mailbox]:
        room = self._rooms.get(sid)
        return [] if room is None else list(room.jobs.get(job, ()))

    # ── ending ───────────────────────────────────────────────────────────────────────────────

    def cut(self, sid: SessionId, owners: set[PublicKey]) -> None:
        """Ends the streams of participants, after what is already there for them."""
        room = self._rooms.get(sid)
        if room is not None:
            for stream in room.streams():
                if stream.owner in owners:
                    stream.end()

    def end_session(self, sid: SessionId) -> None:
        room = self._rooms.get(sid)
        if room is not None:
            for stream in room.streams():
                stream.end()

    def end_all(self) -> None:
        """Ends every stream, and those that come from now on: the relay stops."""
        self._ending = True
        for sid in list(self._rooms):
            self.end_session(sid)

    def tick(self) -> None:
        """Keepalives and stalled readers; to be called about once a second."""
        now_ms = self._clock.ticks_ms()
        keepalive_ms = self._config.keepalive_s * 1000
        stall_ms = self._config.stall_timeout_s * 1000
        for room in list(self._rooms.values()):
            for stream in room.streams():
                stream.tick(now_ms, keepalive_ms, stall_ms)
