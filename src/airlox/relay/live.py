"""Live output: a bounded ring of sealed segments per job, in memory.

The relay checks that a segment is signed by the job's runner and comes after the one before; it
cannot read it. The last bytes are always kept, the first ones go when the ring is full. Output
is not durable: the signed result holds what counts.
"""

from __future__ import annotations

import base64
from collections import deque
from typing import NamedTuple

import msgspec

from airlox.errors import ProtocolError
from airlox.protocol import limits
from airlox.protocol.encoding import ItemId, SessionId, b64u_encode
from airlox.protocol.item import ItemRef
from airlox.protocol.live import parse_segment
from airlox.protocol.manifest import Feature
from airlox.protocol.sse import encode_event
from airlox.protocol.wire import EventKind
from airlox.relay.config import setting_of
from airlox.relay.entities import Job, Participant
from airlox.relay.epochs import check_epoch
from airlox.relay.gates import Place
from airlox.relay.hub import Mailbox
from airlox.relay.jobs import describe
from airlox.relay.refusals import Refusal, refuse
from airlox.relay.service import Core
from airlox.relay.state import Session

SEGMENT_FRAME_BYTES = 2 * limits.SEGMENT_BYTES + limits.BLOB_OVERHEAD_BYTES + 4096
"""Most bytes of one segment's frame: its pieces may be short."""

LIVE_S = 2.0
"""When to look again for room."""

_Key = tuple[SessionId, ItemId]


class _Held(NamedTuple):
    end: int
    message: bytes


class _Ring:
    __slots__ = ("held", "lack", "number", "size")

    def __init__(self) -> None:
        self.held: deque[_Held] = deque()
        self.size = 0
        self.number = -1
        self.lack: bytes | None = None
        """The newest list of what the runner lacks, as it goes to the author."""


class Live:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._rings: dict[_Key, _Ring] = {}
        self._holding: dict[_Key, _Ring] = {}
        """Those that hold segments, the one that got none for longest first."""
        self._total_bytes = 0

    def post(self, session: Session, runner: Participant, job: Job, frame: bytes) -> None:
        """Takes a segment from the job's runner. One that came before is taken as said again."""
        self._check_runner(session, runner, job, Feature.LIVE)
        ref = ItemRef(blob_sha256=b64u_encode(job.blob_sha256), id=job.id)
        try:
            segment = parse_segment(frame, session_id=session.id, job=ref, runner=runner.key)
        except ProtocolError as error:
            raise refuse("invalid_item", error) from None
        ring = self._rings.setdefault((session.id, job.id), _Ring())
        if segment.header.n <= ring.number:
            return
        check_epoch(session, segment.header.epoch_number, "a segment of live output")
        ring.number = segment.header.n
        data = msgspec.json.encode({"frame": base64.b64encode(frame).decode()}).decode()
        message = encode_event(None, EventKind.SEGMENT, data)
        self._hold((session.id, job.id), ring, _Held(segment.end, message))
        self._core.hub.tell_job(session.id, job.id, message)

    def post_lack(
        self, session: Session, runner: Participant, job: Job, sealed: bytes, epoch: int
    ) -> None:
        """Forwards to the job's author what its runner lacks of the tree; the newest is kept."""
        self._check_runner(session, runner, job, Feature.TREES)
        check_epoch(session, epoch, "a list of content")
        data = msgspec.json.encode({"lack": b64u_encode(sealed)}).decode()
        message = encode_event(None, EventKind.LACK, data)
        ring = self._rings.setdefault((session.id, job.id), _Ring())
        self._count(len(message) - len(ring.lack or b""))
        ring.lack = message
        self._core.hub.tell_job(session.id, job.id, message, only=job.author)

    def open(
        self,
        session: Session,
        reader: Participant,
        job: Job,
        from_byte: int,
        result: str | None,
        place: Place,
    ) -> Mailbox:
        """A stream of the job: what is held from a byte on, then what comes.

        `result` is the data of the `item` event of a job that has its result.
        """
        box = self._core.hub.open_job(session, job.id, reader.key, place)
        for message in self.told(session, reader, job, from_byte, result):
            box.put(message)
        if job.is_over:
            box.end()
        return box

    def told(
        self, session: Session, reader: Participant, job: Job, from_byte: int, result: str | None
    ) -> list[bytes]:
        """What a stream of the job says at once; see `open`."""
        ring = self._rings.get((session.id, job.id))
        said: list[bytes] = []
        if ring is not None:
            said += [held.message for held in ring.held if held.end > from_byte]
            if ring.lack is not None and reader.key == job.author and job.is_active:
                said.append(ring.lack)
        if result is not None:
            said.append(encode_event(None, EventKind.ITEM, result))
        said.append(encode_event(None, EventKind.JOB, msgspec.json.encode(describe(job)).decode()))
        if job.is_over:
            said.append(encode_event(None, EventKind.END, "{}"))
        return said

    def forget(self, sid: SessionId, job: ItemId) -> None:
        ring = self._rings.pop((sid, job), None)
        self._holding.pop((sid, job), None)
        if ring is not None:
            self._total_bytes -= ring.size + len(ring.lack or b"")

    def forget_ended(self) -> None:
        """Drops what is held of sessions that are gone and of jobs that ended a while ago."""
        oldest_ms = self._core.clock.ticks_ms() - self._core.config.live_retention_s * 1000
        for sid, job_id in list(self._rings):
            session = self._core.sessions.get(sid)
            job = None if session is None else session.jobs.get(job_id)
            if job is None or (job.is_over and job.since_ms < oldest_ms):
                self.forget(sid, job_id)

    def _check_runner(
        self, session: Session, runner: Participant, job: Job, feature: Feature
    ) -> None:
        if not session.manifest.has(feature):
            raise Refusal("policy", f"this session was created without the feature {feature}")
        if session.is_closed or not runner.is_here:
            raise Refusal("unauthorized", "this participant was cut off meanwhile")
        if job.runner != runner.key or not job.is_active:
            raise Refusal("not_assigned", "this job is not assigned to this runner")

    def _hold(self, key: _Key, ring: _Ring, held: _Held) -> None:
        """Adds to a ring. Room is made by its own oldest segments, then by those of the ring that
        got none for longest; the newest of all always stays."""
        config = self._core.config
        ring.held.append(held)
        self._add(ring, len(held.message))
        self._holding.pop(key, None)
        self._holding[key] = ring
        while len(ring.held) > 1 and ring.size > config.live_ring_bytes:
            self._drop_oldest(key, ring)
        while self._total_bytes > config.live_total_bytes:
            oldest_key, oldest = next(iter(self._holding.items()))
            if oldest is ring and len(ring.held) == 1:
                return
            self._drop_oldest(oldest_key, oldest)

    def _drop_oldest(self, key: _Key, ring: _Ring) -> None:
        self._add(ring, -len(ring.held.popleft().message))
        if not ring.held:
            del self._holding[key]

    def _add(self, ring: _Ring, size: int) -> None:
        ring.size += size
        self._total_bytes += size

    def _count(self, size: int) -> None:
        if self._total_bytes + size > self._core.config.live_total_bytes:
            setting = setting_of(self._core.config, "live_total_bytes")
            message = "the relay holds as much live output as it may"
            raise Refusal("busy", message, setting=setting, retry_s=LIVE_S)
        self._total_bytes += size
