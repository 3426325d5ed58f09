"""Targets: what a relay, or whatever stands in its place, answers."""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, cast

import msgspec

from airlox.client.answers import parse_event
from airlox.client.relay_api import RelayApi
from airlox.client.transport import _NETWORK_ERRORS, Answer, Transport, _Chunks, _read_body
from airlox.errors import ConnectionLost, ProtocolError
from airlox.protocol.audit import TrailCheck
from airlox.protocol.keys import Role
from airlox.protocol.payload import RunnerApprove, Text
from airlox.protocol.sse import SseEvent, SseParser, encode_event
from airlox.protocol.trail import encode_entry, parse_entry
from airlox.protocol.view import ItemStatus, SessionView
from airlox.runner.worker import _job_in
from support.trails import TrailMaker
from support.world import Timeline

from .session import JOB, ROLES, person, world

_LIMIT_BYTES: Final = 10_000


def _cuts(data: bytes) -> list[list[bytes]]:
    """`data` whole, in single bytes, and in pieces of an odd length."""
    return [[data], *([data[at : at + n] for at in range(0, len(data), n)] for n in (1, 7))]


# ── server-sent events ───────────────────────────────────────────────────────────────────────


def read_sse(data: bytes) -> None:
    """However a stream is cut, it gives the same events."""
    whole, *others = (_events(pieces) for pieces in _cuts(data))
    assert all(events == whole for events in others)
    for event in whole:
        if "\r" not in event.data and "\r" not in event.event:
            again = _events([encode_event(None, event.event, event.data)])
            assert again == [SseEvent(None, event.event, event.data)]


def _events(pieces: Iterable[bytes]) -> list[SseEvent]:
    parser = SseParser(_LIMIT_BYTES)
    return [event for piece in pieces for event in parser.feed(piece)]


def sse_seeds() -> list[bytes]:
    return [
        encode_event(7, "item", '{"a":1}') + b": keepalive\n\n" + encode_event(None, None, "x\ny"),
        b"\xef\xbb\xbfid: 1\r\nevent: a\r\ndata: x\r\rdata\n\nretry: 5\ndata: \xff\n\n",
        b"data: unfinished\n",
    ]


# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────


class _Wire:
    """What `http.client` needs of a socket that holds a whole answer."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(cast(io.RawIOBase, io.BytesIO(self._data)))


def read_http(data: bytes) -> None:
    """An answer as the transport reads it: head, then a body of at most its limit."""
    response = http.client.HTTPResponse(cast(socket.socket, _Wire(data)), method="GET")
    try:
        response.begin()
        body = _read_body(response, _LIMIT_BYTES, "the relay")
    except _NETWORK_ERRORS:
        raise ConnectionLost("the line broke") from None
    assert len(body) <= _LIMIT_BYTES
    for name in ("date", "retry-after", "transfer-encoding"):
        assert isinstance(response.getheader(name), str | None)


def http_seeds() -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nDate: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
    return [
        head + b"Content-Length: 5\r\n\r\nhello",
        head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        head + b"Connection: close\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 503 Busy\r\nRetry-After: 1\r\n\r\n",
    ]


def read_chunks(data: bytes) -> None:
    """The framing of a stream's chunks, however it is cut."""
    whole, *others = (_unchunked(pieces) for pieces in _cuts(data))
    assert all(result == whole for result in others)


def _unchunked(pieces: Iterable[bytes]) -> tuple[bytes, str]:
    chunks, out = _Chunks(), bytearray()
    for piece in pieces:
        try:
            out += chunks.feed(piece)
        except http.client.HTTPException:
            # What came with the same piece as the fault may be lost; it is a fault either way.
            return b"", "broken"
        assert len(chunks._held) <= len(piece) + 300
    return bytes(out), "ended" if chunks.ended else "open"


def chunk_seeds() -> list[bytes]:
    return [b"5\r\nhello\r\n0\r\n\r\n", b"A;x=y\r\n0123456789\r\n1 \r\nx\r\n", b"00000005\r\nhe"]


# ── what answers say ─────────────────────────────────────────────────────────────────────────


class _Canned(Transport):
    """A transport whose every call has the same answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("http://localhost", user_agent="fuzz/1", environ={})
        self._answer = answer

    def request(self, *_: Any, **__: Any) -> Answer:
        return self._answer


_CALLS: Final[tuple[Callable[[RelayApi], Any], ...]] = (
    lambda api: api.fetch_manifest(),
    lambda api: api.join("{}", "s"),
    lambda api: api.events(),
    lambda api: api.events_page(3),
    lambda api: api.job_news(JOB.id, 0),
    lambda api: api.runners(),
    lambda api: api.job(JOB.id),
    lambda api: api.packs(JOB.id),
    lambda api: api.post_job(b"", "{}"),
    lambda api: api.audit(),
)
_STATUSES: Final = (200, 201, 204, 301, 400, 401, 403, 404, 409, 410, 413, 500)


def read_answer(data: bytes) -> None:
    """Two bytes choose the call and the status, a line gives the date, the rest is the body."""
    choice, (date, _, body) = data[:2].ljust(2, b"\0"), data[2:].partition(b"\n")
    status = _STATUSES[choice[1] % len(_STATUSES)]
    answer = Answer(status, date.decode("latin-1"), None, body)
    api = RelayApi(_Canned(answer), world(full=True).keys.session_id, token="t", clock=lambda: 0.0)
    _CALLS[choice[0] % len(_CALLS)](api)


def answer_seeds() -> list[bytes]:
    someone = person(Role.RUNNER, full=True)
    key, runner = someone.public, {"signed_join": someone.join, "online": True, "job": JOB.id}
    pack = {"n": 0, "size": 9, "sha256": JOB.blob_sha256}
    bodies: list[Any] = [
        {"signed_manifest": "{}"},
        {"token": "t"},
        {"events": [{"seq": 4, "kind": "item", "data": {"envelope": "{}"}}, 5]},
        {"events": [{"seq": 4, "kind": ["x"]}], "more": True},
        None,
        {"runners": [runner]},
        {"job": JOB.id, "state": "running", "runner": key, "reason": None, "result": None},
        {"packs": [pack]},
        {"runner": key},
        {"seq": 1},
    ]
    documents = [msgspec.json.encode(body) for body in bodies]
    documents[4] = encode_event(1, "item", "{}")
    date = b"Tue, 14 Nov 2023 22:13:20 GMT\n"
    refusals = [bytes([4, n]) + b'\n{"error":"gone","message":"m"}' for n in range(3, 12)]
    return [bytes([n, 0]) + date + body for n, body in enumerate(documents)] + refusals


# ── events ───────────────────────────────────────────────────────────────────────────────────


def read_events(data: bytes) -> None:
    """Events, one a line, as a reader takes them in; none stops it, whatever it holds."""
    terms = world(full=True)
    view = SessionView(terms.manifest, terms.keyring())
    for line in data.split(b"\n"):
        event = parse_event(line)
        if event is not None:
            change = view.step(event)
            assert change.fault is None or len(change.fault) < 1000
        text = line.decode("utf-8", "replace")
        _job_in(SseEvent(None, "job_assigned", text))
    for item, record in view.records.items():
        if record.status is ItemStatus.PENDING:
            with suppress(ProtocolError):
                view.open(item, bytes(40))
    for someone in view.participants.values():
        view.may_take_jobs(someone.public)


def event_seeds() -> list[bytes]:
    timeline = Timeline()
    people = [person(role, full=True) for role in ROLES]
    for someone in people:
        timeline.join(someone)
    post = timeline.post(people[1].say("hello"))
    item = msgspec.json.decode(post.data["envelope"])["header"]["id"]
    key = people[1].public
    timeline.add("evicted", item=item)
    timeline.add("reseeded", item=item)
    timeline.add("want", item=item, by=key)
    timeline.add("job", job=item, state="running", runner=people[3].public, reason="r")
    timeline.add("left", participant_pub=key)
    timeline.add("revoked", role="sender", participants=[key])
    timeline.add("forgotten", ranges=[[4, 5], [7, 7]])
    timeline.add("gap", first=len(timeline.events))
    timeline.add("closed", reason="bye")
    lines = [msgspec.json.encode(event) for event in timeline.events]
    return [b"\n".join(lines), *lines, b'{"job":"' + JOB.id.encode() + b'"}']


# ── the audit trail ──────────────────────────────────────────────────────────────────────────


def read_trail(data: bytes) -> None:
    """A trail is checked to its end, whatever its lines hold; then its first line alone."""
    check = TrailCheck(invite=world(full=True).invite("https://relay.example", Role.OWNER))
    lines = data.split(b"\n")
    for line in lines:
        check.step(line)
    report = check.report()
    for problem in report.problems:
        assert problem.text.isprintable()
        assert len(problem.text) < 1000
    msgspec.json.encode(report)
    entry = parse_entry(lines[0])
    assert parse_entry(encode_entry(entry)) == entry


def trail_seeds() -> list[bytes]:
    trail = TrailMaker(world(full=True))
    owner, sender, box = (trail.join(role) for role in (Role.OWNER, Role.SENDER, Role.RUNNER))
    trail.add("approved", participant_pub=box.public)
    trail.post(owner, RunnerApprove(participant_pub=box.public), blob=True)
    said = trail.post(sender, Text(text="hello"))
    trail.add("ack", item=said.ref.id, participant_pub=owner.public)
    trail.run(sender, box)
    trail.add("forgotten", jobs=[JOB.id], ranges=[[1, 2]])
    trail.add("left", participant_pub=sender.public)
    trail.add("closed", reason="bye")
    return [b"\n".join(trail.lines), *trail.lines]
