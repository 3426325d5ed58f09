"""HTTP to service and back: parse, call, answer. No rules here.

One function per endpoint; `ROUTES` maps a method and the shape of a path (a star for each id) to
it. Errors are answered in app.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

import msgspec

from airlox.errors import ProtocolError
from airlox.protocol import canonical, limits
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import Kind
from airlox.protocol.keys import Role
from airlox.protocol.wire import Headers
from airlox.relay import live, transfer_routes
from airlox.relay.audit import trail_parts
from airlox.relay.call import JSON, NO_STORE, STREAM_HEADERS, Call, Disconnected
from airlox.relay.delivery import delivery_of
from airlox.relay.entities import Participant
from airlox.relay.history import events_page, old_numbers
from airlox.relay.hub import CHUNK_BYTES, Stream
from airlox.relay.jobs import describe
from airlox.relay.refusals import Refusal
from airlox.relay.relay import Relay
from airlox.relay.runners import Heartbeat
from airlox.relay.state import Session
from airlox.relay.store.base import BlobReader

HEARTBEAT_BYTES: Final = 4096
READ_BYTES: Final = 256 << 10

Handler = Callable[[Relay, Call], Awaitable[None]]


def _enter(relay: Relay, call: Call) -> tuple[Session, Participant]:
    """The session of the path and the participant of the token."""
    session = relay.core.session(call.sid)
    return session, relay.core.authenticate(session, call.token())


def _enter_as_runner(relay: Relay, call: Call) -> tuple[Session, Participant]:
    session, who = _enter(relay, call)
    relay.core.check_role(who, Role.RUNNER, what="do this")
    return session, who


# ── sessions and participants ────────────────────────────────────────────────────────────────


async def create(relay: Relay, call: Call) -> None:
    # Before the body is read: whoever asks too often is not to fill the memory either.
    origin = call.origin
    relay.core.quotas.take_create(origin)
    sid = await relay.core.create(await call.text(limits.MANIFEST_BYTES), origin)
    await call.answer_json({"session_id": sid}, 201)


async def manifest(relay: Relay, call: Call) -> None:
    """The terms, for anybody; with many epochs sent in pieces, or whoever asks again and again
    would have the relay hold as many whole answers."""
    session = relay.core.session(call.sid)
    documents = tuple(session.epoch_documents)
    parts = _terms_parts(session.manifest.document, documents)
    await _answer_parts(relay, call, parts, sum(map(len, documents)))


def _terms_parts(signed_manifest: str, documents: tuple[str, ...]) -> Iterator[bytes]:
    part = bytearray(b'{"signed_manifest":' + msgspec.json.encode(signed_manifest))
    for at, document in enumerate(documents):
        part += b"," if at else b',"epochs":['
        part += msgspec.json.encode(document)
        if len(part) >= CHUNK_BYTES:
            yield bytes(part)
            part.clear()
    yield bytes(part + (b"]}" if documents else b"}"))


async def join(relay: Relay, call: Call) -> None:
    session = relay.core.session(call.sid)
    document = await call.text(limits.JOIN_BYTES)
    secret = call.header(Headers.JOIN_SECRET)
    is_new, token = await relay.core.join(session, document, secret, call.origin)
    await call.answer_json({"token": token}, 201 if is_new else 200)


async def leave(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    await relay.core.leave(session, who)
    await call.answer_json({})


async def close(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    await relay.core.close(session, who)
    await call.answer_json({})


async def revoke(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    gone = await relay.core.revoke(session, who, call.id)
    await call.answer_json({"participants": [each.key for each in gone]})


async def begin_epoch(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    await relay.epochs.begin(session, who, await call.text(limits.EPOCH_BYTES))
    await call.answer_json({})


async def audit(relay: Relay, call: Call) -> None:
    """The trail in pieces: a long one keeps neither the relay nor its memory."""
    session, who = _enter(relay, call)
    with relay.core.quotas.audit():
        entries = await relay.core.audit(session, who)
        async with _time_to_send(relay, sum(map(len, entries))):
            await call.begin(200, ((b"content-type", b"application/x-ndjson"), NO_STORE))
            async for part in trail_parts(relay.core, session, entries):
                await call.send_part(part)
            await call.finish()


@contextlib.asynccontextmanager
async def _time_to_send(relay: Relay, size: int) -> AsyncIterator[None]:
    """A reader that takes `size` bytes too slowly counts as gone."""
    config = relay.core.config
    try:
        async with asyncio.timeout(config.body_timeout_s + size / config.min_bytes_per_second):
            yield
    except TimeoutError:
        raise Disconnected from None


# ── events ───────────────────────────────────────────────────────────────────────────────────


async def events(relay: Relay, call: Call) -> None:
    """Every event after a number, in one answer, sent in pieces: a long list blocks nobody.

    In sessions with `history` it is one page of them.
    """
    session, _ = _enter(relay, call)
    after = call.number_after(call.query("after"), "after")
    at, end = (0 if after is None else after + 1), len(session.events)
    if session.keeps_history:
        limit = call.number_after(call.query("limit"), "limit")
        jobs = call.number_after(call.query("jobs"), "jobs")
        aside = frozenset() if jobs is None else old_numbers(session, jobs)
        page = events_page(session, at, limits.PAGE_EVENTS if limit is None else limit, aside)
        await call.answer(200, page, (JSON, NO_STORE))
        return
    await _answer_parts(relay, call, _event_parts(session, at, end), session.events_bytes)


async def _answer_parts(relay: Relay, call: Call, parts: Iterator[bytes], size: int) -> None:
    """An answer of JSON; as a whole where it has but one part."""
    first, second = next(parts), next(parts, None)
    if second is None:
        await call.answer(200, first, (JSON, NO_STORE))
        return
    async with _time_to_send(relay, size):
        await call.begin(200, (JSON, NO_STORE))
        for part in itertools.chain((first, second), parts):
            await call.send_part(part)
        await call.finish()


def _event_parts(session: Session, at: int, end: int) -> Iterator[bytes]:
    """The answer of `/events` in a floor session, in pieces."""
    part = bytearray(b'{"events":[')
    for seq in range(at, end):
        event = session.events[seq]
        assert event is not None  # nothing is forgotten in a floor session
        part += b"" if seq == at else b","
        part += f'{{"seq":{seq},"kind":"{event.kind}","data":{event.data}}}'.encode()
        if len(part) >= CHUNK_BYTES:
            yield bytes(part)
            part.clear()
    yield bytes(part + b"]}")


async def stream(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    last = call.number_after(call.header(Headers.LAST_EVENT_ID), Headers.LAST_EVENT_ID)
    place = relay.core.quotas.stream(session, who.key, call.origin)
    feed = relay.core.hub.open_feed(session, -1 if last is None else last, who.key, place)
    await _serve_stream(relay, call, session, feed)


async def _serve_stream(
    relay: Relay, call: Call, session: Session, source: Stream, job: ItemId | None = None
) -> None:
    """Writes a stream until it ends or its reader has gone."""
    source.writer = asyncio.current_task()
    watcher = asyncio.create_task(_end_at_disconnect(call, source))
    try:
        await call.begin(200, STREAM_HEADERS)
        await call.send_part(b": open\n\n")
        while chunk := await source.next_chunk():
            await call.send_part(chunk)
        await call.finish()
    finally:
        watcher.cancel()
        relay.core.hub.leave(session.id, source, job)


async def _end_at_disconnect(call: Call, source: Stream) -> None:
    await call.wait_for_disconnect()
    source.end()


# ── items and blobs ──────────────────────────────────────────────────────────────────────────


async def post_item(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    envelope, start = await relay.items.read_envelope(session, who, call.body)
    if envelope.header.kind is Kind.JOB:
        raise Refusal("bad_request", "jobs are posted to /jobs")
    if envelope.header.kind is Kind.RESULT:
        seq = await relay.jobs.post_result(session, who, envelope, start, call.body)
    else:
        seq = await relay.items.post(session, who, envelope, start, call.body)
    await call.answer_json({"seq": seq}, 201)


async def get_blob(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    reader = await relay.items.open_blob(session, call.id)
    await _send_blob(relay, call, session, who, reader)


async def _send_blob(
    relay: Relay, call: Call, session: Session, who: Participant, reader: BlobReader
) -> None:
    try:
        relay.core.quotas.take_bytes(session, who, reader.size)
        if reader.size <= READ_BYTES:
            await _send_parts(relay, call, reader)
            return
        with relay.core.quotas.transfer(session, who, call.origin):
            await _send_parts(relay, call, reader)
    finally:
        reader.close()


async def _send_parts(relay: Relay, call: Call, reader: BlobReader) -> None:
    head = (
        (b"content-type", b"application/octet-stream"),
        (b"content-length", b"%d" % reader.size),
        NO_STORE,
    )
    async with _time_to_send(relay, reader.size):
        await call.begin(200, head)
        while part := await reader.read(READ_BYTES):
            await call.send_part(part)
        await call.finish()


async def put_blob(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    await relay.items.reseed(session, who, call.id, call.body)
    await call.answer_json({})


async def ack(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    await relay.items.ack(session, who, call.id)
    await call.answer(204)


async def want(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    await relay.items.want(session, who, call.id)
    await call.answer_json({})


async def delivery(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    limit = call.number_after(call.query("limit"), "limit")
    most = limits.DELIVERIES if limit is None else min(limit, limits.DELIVERIES)
    await call.answer_json({"items": await delivery_of(session, who, most)})


# ── runners ──────────────────────────────────────────────────────────────────────────────────


async def runners(relay: Relay, call: Call) -> None:
    session, _ = _enter(relay, call)
    await call.answer_json({"runners": relay.runners.listing(session)})


async def approve(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    await relay.core.approve(session, who, call.id)
    await call.answer_json({})


async def reject(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    await relay.core.reject(session, who, call.id)
    await call.answer_json({})


async def heartbeat(relay: Relay, call: Call) -> None:
    """Answered with JSON, never with an empty body: that would end a 0.1.0 runner."""
    session, who = _enter_as_runner(relay, call)
    data = await call.body.all(HEARTBEAT_BYTES)
    try:
        beat = canonical.decode_loose(data, Heartbeat, "heartbeat")
    except ProtocolError as error:
        raise Refusal("bad_request", error.message) from None
    relay.runners.heartbeat(session, who, beat)
    await call.answer_json({})


async def runner_stream(relay: Relay, call: Call) -> None:
    session, who = _enter_as_runner(relay, call)
    place = relay.core.quotas.stream(session, who.key, call.origin)
    box = relay.core.hub.open_runner(session, who.key, place)
    relay.jobs.stream_opened(session, who)
    try:
        await _serve_stream(relay, call, session, box)
    finally:
        relay.jobs.stream_closed(who)


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────


async def post_job(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    envelope, start = await relay.items.read_envelope(session, who, call.body)
    target, wait = call.header(Headers.TARGET), call.header(Headers.QUEUE)
    job, refusal = await relay.jobs.submit(session, who, envelope, target, wait, start, call.body)
    if refusal is not None:
        raise refusal
    said: dict[str, object] = {"runner": job.runner, "seq": session.items[job.id].seq}
    await call.answer_json(said if job.runner is not None else describe(job) | said, 201)


async def get_job(relay: Relay, call: Call) -> None:
    session, _ = _enter(relay, call)
    await call.answer_json(describe(relay.jobs.look_at(session, call.id)))


async def claim(relay: Relay, call: Call) -> None:
    session, who = _enter_as_runner(relay, call)
    await relay.jobs.claim(session, who, call.id)
    await call.answer_json({})


async def cancel(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    await relay.jobs.cancel(session, who, call.id)
    await call.answer_json({})


async def post_output(relay: Relay, call: Call) -> None:
    session, who = _enter_as_runner(relay, call)
    job = relay.jobs.job(session, call.id)
    relay.live.post(session, who, job, await call.body.all(live.SEGMENT_FRAME_BYTES))
    await call.answer(204)


async def post_lack(relay: Relay, call: Call) -> None:
    session, who = _enter_as_runner(relay, call)
    job = relay.jobs.job(session, call.id)
    sealed = await call.body.all(limits.LACK_BYTES + limits.BLOB_OVERHEAD_BYTES)
    relay.live.post_lack(session, who, job, sealed, _epoch(call))
    await call.answer(204)


async def get_output(relay: Relay, call: Call) -> None:
    """What the job's stream would say at once, for readers whose streams are held back."""
    session, who = _enter(relay, call)
    job = relay.jobs.look_at(session, call.id)
    from_byte = call.number_after(call.query("from"), "from") or 0
    said = relay.live.told(session, who, job, from_byte, _result_event(session, job.result))
    await call.answer(200, b"".join(said), STREAM_HEADERS)


async def job_stream(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    job = relay.jobs.look_at(session, call.id)
    from_byte = call.number_after(call.query("from"), "from") or 0
    result = _result_event(session, job.result)
    place = relay.core.quotas.stream(session, who.key, call.origin)
    box = relay.live.open(session, who, job, from_byte, result, place)
    await _serve_stream(relay, call, session, box, job.id)


def _result_event(session: Session, result: ItemId | None) -> str | None:
    """Data of the `item` event of a job's stream: that of the session's event and its number."""
    if result is None:
        return None
    seq = session.items[result].seq
    event = session.events[seq]
    assert event is not None  # forgotten together with its job
    data = msgspec.json.decode(event.data)
    return msgspec.json.encode({**data, "seq": seq}).decode()


async def put_pack(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    size = call.number_after(call.header("content-length"), "content-length")
    if size is None:
        raise Refusal("bad_request", "a pack states its length")
    is_new = await relay.packs.put(
        session, who, call.id, _pack_number(call), size, call.body, _epoch(call)
    )
    await call.answer_json({}, 201 if is_new else 200)


def _epoch(call: Call) -> int:
    """The epoch in which something was sealed that does not say so itself."""
    return call.number_after(call.header(Headers.EPOCH), Headers.EPOCH) or 0


async def list_packs(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    await call.answer_json({"packs": relay.packs.listing(session, who, call.id)})


async def get_pack(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    reader = await relay.packs.open(session, who, call.id, _pack_number(call))
    await _send_blob(relay, call, session, who, reader)


def _pack_number(call: Call) -> int:
    number = call.number_after(call.parts[4], "the pack's number")
    if number is None:
        raise Refusal("not_found", "no such pack")
    return number


# ── the table ────────────────────────────────────────────────────────────────────────────────

ROUTES: Final[dict[tuple[str, ...], Handler]] = {
    ("POST",): create,
    ("GET", "*"): manifest,
    ("POST", "*", "participants"): join,
    ("POST", "*", "leave"): leave,
    ("POST", "*", "close"): close,
    ("POST", "*", "roles", "*", "revoke"): revoke,
    ("POST", "*", "epochs"): begin_epoch,
    ("GET", "*", "audit.jsonl"): audit,
    ("GET", "*", "events"): events,
    ("GET", "*", "stream"): stream,
    ("POST", "*", "items"): post_item,
    ("GET", "*", "items", "*", "blob"): get_blob,
    ("PUT", "*", "items", "*", "blob"): put_blob,
    ("POST", "*", "items", "*", "ack"): ack,
    ("POST", "*", "items", "*", "want"): want,
    ("GET", "*", "delivery"): delivery,
    ("GET", "*", "runners"): runners,
    ("POST", "*", "runners", "*", "approve"): approve,
    ("POST", "*", "runners", "*", "reject"): reject,
    ("POST", "*", "runners", "me", "heartbeat"): heartbeat,
    ("GET", "*", "runners", "me", "stream"): runner_stream,
    ("POST", "*", "jobs"): post_job,
    ("GET", "*", "jobs", "*"): get_job,
    ("POST", "*", "jobs", "*", "claim"): claim,
    ("POST", "*", "jobs", "*", "cancel"): cancel,
    ("POST", "*", "jobs", "*", "output"): post_output,
    ("GET", "*", "jobs", "*", "output"): get_output,
    ("POST", "*", "jobs", "*", "lack"): post_lack,
    ("GET", "*", "jobs", "*", "stream"): job_stream,
    ("GET", "*", "jobs", "*", "packs"): list_packs,
    ("PUT", "*", "jobs", "*", "packs", "*"): put_pack,
    ("GET", "*", "jobs", "*", "packs", "*"): get_pack,
    ("POST", "*", "codes"): transfer_routes.offer,
    ("GET", "*", "codes", "*"): transfer_routes.look,
    ("POST", "*", "codes", "*", "cancel"): transfer_routes.cancel,
    ("POST", "*", "codes", "*", "tries", "*"): transfer_routes.answer,
    ("POST", "*", "codes", "*", "tries", "*", "wrong"): transfer_routes.wrong,
    ("POST", "*", "codes", "*", "tries", "*", "invite"): transfer_routes.send_invite,
}

CODE_ROUTES: Final[dict[tuple[str, ...], Handler]] = {
    ("POST", "*", "tries"): transfer_routes.begin,
    ("GET", "*", "tries", "*"): transfer_routes.look_at_try,
    ("POST", "*", "tries", "*"): transfer_routes.confirm,
    ("POST", "*", "tries", "*", "done"): transfer_routes.done,
    ("POST", "*", "tries", "*", "leave"): transfer_routes.leave,
    ("GET", "*", "parked"): transfer_routes.parked_head,
    ("POST", "*", "parked"): transfer_routes.take,
}
"""What receivers of transfer codes ask: paths that begin with a nameplate."""


def find_route(method: str, parts: list[str]) -> Handler | None:
    """The handler of a path; ids are never looked at."""
    shape = _shape(parts)
    if parts[1:3] == ["runners", "me"]:
        shape[2] = "me"
    return ROUTES.get((method, *shape))


def find_code_route(method: str, parts: list[str]) -> Handler | None:
    """The handler of a path of a transfer code."""
    return CODE_ROUTES.get((method, *_shape(parts)))


def _shape(parts: list[str]) -> list[str]:
    return ["*" if place % 2 == 0 else part for place, part in enumerate(parts)]
