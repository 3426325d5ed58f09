"""Following a job until it ends: live output, its state, and the runner's questions.

In full sessions the relay has a stream per job. Where it has not, or the session is a floor one,
the session's own stream tells when the result arrives, and the job's state is asked for now and
then. Live output is verified segment by segment against the runner's key; what is missing is
counted and told, never made up: the signed result is the authority.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from airlox.client.answers import JobStatus
from airlox.client.core import Core
from airlox.client.deadline import Deadline
from airlox.client.stream import Feed
from airlox.client.timeline import STANDING_KINDS
from airlox.errors import (
    ConnectionLost,
    OrderError,
    PolicyError,
    ProtocolError,
    RelayError,
    SessionClosed,
)
from airlox.protocol import canonical, wire
from airlox.protocol.encoding import PublicKey, b64u_decode
from airlox.protocol.job import CauseKind, LiveTotals
from airlox.protocol.keys import parse_public_key
from airlox.protocol.live import STDOUT, LiveReader, Piece, Segment
from airlox.protocol.manifest import Feature
from airlox.protocol.sse import SseEvent
from airlox.protocol.wire import EventKind, JobState

if TYPE_CHECKING:
    from airlox.client.jobs import Job

POLL_S: Final = 2.0
"""How often the job's state is asked for where no stream tells it."""
SILENT_S: Final = 30.0
"""After this long without new live output the job's state is asked for, whatever else its stream
says."""
END_GRACE_S: Final = 3.0
"""After the result was announced, how long the stream may take to end."""
WARNINGS: Final = 10
"""Most warnings of one wait."""
ROUNDS: Final = 32
"""Most questions for what is held at a time: a job may print faster than it is read."""

_FORGOTTEN: Final = frozenset({CauseKind.RUNNER_LOST, CauseKind.RUNNER_ERROR})


class Output(NamedTuple):
    """Bytes the job printed; `stream` is `stdout` or `stderr`, `offset` where they begin in the
    live output (redacted bytes of both streams, in the order they were printed)."""

    stream: str
    data: bytes
    offset: int


class _Frame(msgspec.Struct):
    frame: str


class _Lack(msgspec.Struct):
    lack: str


class Follower:
    """One wait for one job, and its output from a byte on. `close` ends it from any thread."""

    def __init__(
        self,
        core: Core,
        job: Job,
        deadline: Deadline,
        from_byte: int = 0,
        on_status: Callable[[JobStatus], None] | None = None,
    ) -> None:
        self._core = core
        self._job = job
        self._deadline = deadline
        self._from_byte = from_byte
        self._on_status = on_status
        self._api = core.api.scope(deadline)
        self._feed: Feed | None = None
        self._reader: LiveReader | None = None
        self._warnings = 0
        self._closing = threading.Lock()
        self._closed = False

    def close(self) -> None:
        with self._closing:
            self._closed = True
            feed = self._feed
        self._api.close()
        if feed is not None:
            feed.close()

    @property
    def closed(self) -> bool:
        """Whether this wait was ended by `close`, or with all others of its session."""
        return self._closed or self._core.disconnected

    def follow(self) -> Iterator[Output]:
        """Yields output until the job has ended (`job.final`), the deadline, or `close`."""
        has_live = self._core.manifest.has(Feature.LIVE)
        if not (has_live and (yield from self._follow_job())):
            self._follow_session()
        self._compare()

    def held(self) -> Iterator[Output]:
        """Yields what the relay has now of the live output, and does not wait for more.

        Nothing in floor sessions, and where the relay has no live output. Raises ConnectionLost,
        RelayError.
        """
        if not self._core.manifest.has(Feature.LIVE):
            return
        for _ in range(ROUNDS):
            before = self._last()
            try:
                news = self._api.job_news(*self._place()[1:])
            except SessionClosed as error:
                self._warn(f"no live output: {error.message}")
                return
            yield from self._segments(news)
            if self._last() is before:
                return

    # -- the job's own stream ----------------------------------------------------------------

    def _follow_job(self) -> Generator[Output, None, bool]:
        """True when the wait is over; False when the relay has no stream for the job."""
        feed = Feed(
            self._core.api,
            lambda: wire.job_stream(*self._place()),
            poll=lambda api: api.job_news(*self._place()[1:]),
            on_warning=self._core.on_warning,
        )
        with self._core.using(self._watched(feed)):
            until, silence = self._deadline, Deadline.after(SILENT_S)
            while True:
                if silence.passed:
                    silence = Deadline.after(SILENT_S)
                    if self._has_ended():
                        yield from self._rest()
                        return True
                try:
                    event = feed.next(until.sooner(silence))
                except SessionClosed as error:
                    # the relay may only lack this stream: the session's own tells
                    self._warn(f"no live output: {error.message}")
                    return False
                if event is None:
                    if feed.closed or until.passed:
                        # one that stayed open beyond a result says no more: the session's tells
                        return feed.closed or self._deadline.passed
                    continue
                if event.event == EventKind.SEGMENT:
                    before = self._reader
                    yield from self._segment(event)
                    if self._reader is not before:
                        silence = Deadline.after(SILENT_S)
                elif event.event == EventKind.LACK:
                    self._answer(event)
                elif event.event == EventKind.ITEM:
                    until = self._deadline.sooner(Deadline.after(END_GRACE_S))
                elif event.event == EventKind.END or self._failed(event):
                    return self._has_ended()

    def _has_ended(self) -> bool:
        """Ask what the relay has now, whatever the job's stream says or keeps to itself. Its own
        word counts only where there is no signed one."""
        self._catch_up()
        if self._job.settle(api=self._api) is not None:
            return True
        return self._job.settle(self._ask(), api=self._api) is not None

    def _rest(self) -> Iterator[Output]:
        """What the relay still has of output whose end its stream did not bring.

        Where nothing came at all the result's output stands in its place.
        """
        live = None if self._job.final is None else self._job.final.live
        while live is not None and (last := self._last()) is not None and not _is_end(last, live):
            try:
                news = self._api.job_news(self._job.id, last.end)
            except (ConnectionLost, RelayError, SessionClosed, ProtocolError):
                return
            yield from self._segments(news)
            if (now := self._last()) is None or now.end <= last.end:
                return

    def _place(self) -> tuple[str, str, int | None]:
        """Session, job, and the byte of its live output to go on at."""
        last = self._last()
        session_id = self._core.manifest.session_id
        return session_id, self._job.id, (self._from_byte or None) if last is None else last.end

    def _last(self) -> Segment | None:
        """The newest segment of the live output that came."""
        return None if self._reader is None else self._reader.last

    def _failed(self, event: SseEvent) -> bool:
        if event.event != EventKind.JOB:
            return False
        try:
            status = canonical.decode_loose(event.data, JobStatus, "job event")
        except ProtocolError:
            return False
        return self._note(status.of(self._job.id)).state == JobState.FAILED

    def _note(self, status: JobStatus) -> JobStatus:
        """Remember and tell what the relay says of the job."""
        self._job.note(status)
        if self._on_status is not None:
            self._on_status(status)
        return status

    def _segments(self, news: list[SseEvent]) -> Iterator[Output]:
        for event in news:
            if event.event == EventKind.SEGMENT:
                yield from self._segment(event)

    def _segment(self, event: SseEvent) -> Iterator[Output]:
        try:
            text = canonical.decode_loose(event.data, _Frame, "segment event").frame
            pieces = self._read(base64.b64decode(text, validate=True))
        except (ProtocolError, ValueError) as error:
            self._warn(f"live output was refused: {error}")
            return
        last = self._last()
        at = 0 if last is None else last.header.offset
        for stream, data in pieces:
            end = at + len(data)
            if end > self._from_byte:
                at = max(at, self._from_byte)
                yield Output("stdout" if stream == STDOUT else "stderr", data[at - end :], at)
            at = end

    def _read(self, frame: bytes) -> list[Piece]:
        """The pieces of the next segment; after a gap reading starts anew. Raises ProtocolError."""
        reader = self._reader or self._new_reader()
        if not self._may_take_jobs(reader.runner):
            raise PolicyError("it is by a runner that was rejected or cut off meanwhile")
        try:
            pieces, self._reader = reader.read(frame)
        except OrderError:
            pieces, self._reader = self._new_reader().read(frame)
            self._warn("some live output was missed; the result has what is kept")
        return pieces

    def _new_reader(self) -> LiveReader:
        """A reader of the runner's segments. Raises ProtocolError."""
        keys = self._core.membership.keys
        return LiveReader(
            session_key=keys.of(0),
            later_key=self._key_of,
            session_id=self._core.manifest.session_id,
            job=self._job.ref,
            runner=self._runner(),
        )

    def _key_of(self, epoch: int) -> bytes:
        """The session key of an epoch, which may have begun just now. Raises DecryptError."""
        keys = self._core.membership.keys
        if epoch > keys.number:
            self._catch_up()
        return keys.of(epoch)

    def _runner(self) -> PublicKey:
        """The job's runner: the one it was aimed at, else the one the relay names.

        Raises ProtocolError for a runner the owner's signed events do not allow.
        """
        runner = parse_public_key(self._job.runner or "")
        if not self._may_take_jobs(runner):
            self._catch_up()
            if not self._may_take_jobs(runner):
                raise PolicyError("it is by a runner that the owner did not approve")
        return runner

    def _may_take_jobs(self, runner: PublicKey) -> bool:
        return self._core.timeline.read(lambda view: view.may_take_jobs(runner))

    def _compare(self) -> None:
        """Tell it when the live output is not all of what the signed result names.

        Whoever saw nothing of it has the result's output in its place, and is told nothing. Nor
        is there anything to compare where the runner itself lost what the job had printed.
        """
        reader, final = self._reader, self._job.final
        if reader is None or reader.last is None or final is None or final.live is None:
            return
        if final.cause is not None and final.cause.kind in _FORGOTTEN:
            return
        last, live = reader.last, final.live
        total = live.stdout_bytes + live.stderr_bytes
        if _is_end(last, live):
            return
        if final.runner == reader.runner and last.header.n + 1 < live.segments:
            what = f"the end of the live output is missing, from byte {last.end} to {total}"
        else:
            what = "the live output is not the one that the signed result names"
        self._warn(f"{what}; the result has what is kept")

    def _answer(self, event: SseEvent) -> None:
        """The runner lacks content of the tree: send exactly that."""
        upload = self._job.upload
        if upload is None:
            return
        try:
            text = canonical.decode_loose(event.data, _Lack, "lack event").lack
            upload.answer(b64u_decode(text), self._runner(), self._api)
        except ProtocolError as error:
            self._warn(f"a question for tree content was refused: {error}")
        except (ConnectionLost, RelayError) as error:
            # the job may have ended; else the runner, or the relay on a new line, asks again
            self._warn(f"tree content could not be sent: {error}")

    def _warn(self, text: str) -> None:
        """Tell it, but not without end: relay and runner decide how often there is cause."""
        self._warnings += 1
        if self._warnings <= WARNINGS:
            self._core.on_warning(text)

    # -- the session's stream ----------------------------------------------------------------

    def _follow_session(self) -> None:
        timeline = self._core.timeline
        self._catch_up()
        with self._core.using(self._watched(timeline.feed())) as feed:
            poll = Deadline.after(0)
            while not feed.closed:
                status = None
                if poll.passed:
                    status, poll = self._ask(), Deadline.after(POLL_S)
                ended = self._job.settle(status, api=self._api)
                if ended is not None or self._deadline.passed:
                    return
                self._core.check_open()
                try:
                    event = feed.next(self._deadline.sooner(poll))
                except SessionClosed as error:
                    timeline.end(error)
                    continue
                if event is not None:
                    timeline.take_live(event, STANDING_KINDS, api=self._api)

    def _catch_up(self) -> None:
        """Fetch news. Where the relay cannot be had now, the stream brings them when it can."""
        with suppress(ConnectionLost, RelayError):
            self._core.timeline.sync(STANDING_KINDS, api=self._api)

    def _ask(self) -> JobStatus | None:
        """The relay's word on the job; None when it has none now."""
        try:
            return self._note(self._api.job(self._job.id))
        except (ConnectionLost, RelayError, ProtocolError):
            return None

    def _watched(self, feed: Feed) -> Feed:
        """Remember the feed that `close` has to end."""
        with self._closing:
            self._feed = feed
            closed = self._closed
        if closed:
            feed.close()
        return feed


def _is_end(last: Segment, live: LiveTotals) -> bool:
    """Whether this is the last segment of the output that a signed result names."""
    total = live.stdout_bytes + live.stderr_bytes
    return (last.link, last.header.n + 1, last.end) == (live.head, live.segments, total)
