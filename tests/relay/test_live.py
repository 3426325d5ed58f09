"""Live output through the relay: who may write it, what is held, how a stream of a job ends."""

from __future__ import annotations

import base64
import json
import os
import socket
from collections.abc import Iterator

import pytest

from airlox.protocol import live, pack, wire
from airlox.protocol.encoding import ItemId, b64u_decode, b64u_encode
from airlox.protocol.keys import Role
from airlox.protocol.live import LiveReader, Piece
from airlox.protocol.sse import SseEvent, SseParser
from support.clock import Clock
from support.crew import Crew, writer_for
from support.relay import RelayThread, join, now_ms, until


@pytest.fixture
def relay() -> Iterator[RelayThread]:
    with RelayThread(live_ring_bytes=64 * 1024) as running:
        yield running


class Running:
    """A full session in which a job runs."""

    def __init__(self, relay: RelayThread) -> None:
        self.crew = Crew(relay, full=True)
        self.runner = self.crew.runner()
        self.item = self.crew.job()
        self.crew.submit(self.item)
        self.crew.claim(self.runner, self.item)
        self.writer = writer_for(self.crew, self.runner, self.item)

    def frame(self, text: bytes) -> bytes:
        frame, self.writer = self.writer.write([Piece(live.STDOUT, text)])
        return frame

    def print(self, text: bytes) -> None:
        answer = self.runner.post(self.path("output"), self.frame(text))
        assert answer.status == 204, answer.body

    def path(self, what: str) -> str:
        return f"{wire.job(self.crew.sid, self.item.ref.id)}/{what}"

    def reader(self) -> LiveReader:
        world = self.crew.world
        return LiveReader(
            world.keys.session_key, world.keys.session_id, self.item.ref, self.runner.person.public
        )


def printed(reader: LiveReader, events: list[SseEvent]) -> bytes:
    text = b""
    for event in events:
        if event.event == "segment":
            pieces, reader = reader.read(base64.b64decode(json.loads(event.data)["frame"]))
            text += b"".join(piece.data for piece in pieces)
    return text


def test_output_arrives_while_the_job_runs_then_its_result_and_the_end(
    relay: RelayThread,
) -> None:
    job = Running(relay)
    job.print(b"before ")
    observer = join(job.crew.http, job.crew.world.person(Role.OBSERVER))
    with observer.http.stream(job.path("stream"), observer.token) as stream:
        first = stream.until("job")
        assert json.loads(first.data)["state"] == "running"
        job.print(b"during")
        seen = [stream.until("segment")]
        assert printed(job.reader(), seen) == b"during"
        result = job.crew.result(job.runner, job.item)
        assert job.runner.send(result).status == 201
        rest = stream.rest()
    assert [event.event for event in rest] == ["item", "job", "end"]
    item = json.loads(rest[0].data)
    assert item["envelope"] == result.envelope
    assert job.crew.owner.events()[item["seq"]]["data"] == {"envelope": result.envelope}
    assert json.loads(rest[1].data)["state"] == "finished"

    # Whoever comes later sees the same, and the stream ends at once.
    with observer.http.stream(job.path("stream"), observer.token) as stream:
        again = stream.rest()
    assert [event.event for event in again] == ["segment", "segment", "item", "job", "end"]
    assert json.loads(again[2].data) == item
    assert printed(job.reader(), again) == b"before during"


def test_what_a_stream_would_begin_with_can_be_asked_for(relay: RelayThread) -> None:
    job = Running(relay)
    for text in (b"0123", b"4567"):
        job.print(text)
    sender = job.crew.sender

    def ask(query: str = "") -> list[SseEvent]:
        answer = sender.get(job.path("output") + query)
        assert answer.status == 200
        return SseParser().feed(answer.body)

    running = ask("?from=4")
    assert [event.event for event in running] == ["segment", "job"]
    assert printed(job.reader(), running) == b"4567"
    job.runner.send(job.crew.result(job.runner, job.item))
    with sender.http.stream(job.path("stream"), sender.token) as stream:
        assert ask() == stream.rest()
    assert sender.get(job.path("output") + "?from=x").error == "400 bad_request"
    stranger = sender.http.ask("GET", job.path("output"), token="x" * 43)
    assert stranger.error == "401 unauthorized"


def test_a_stream_begins_at_a_byte(relay: RelayThread) -> None:
    job = Running(relay)
    for text in (b"0123", b"4567", b"89"):
        job.print(text)
    sender = job.crew.sender
    for start, expected in ((0, b"0123456789"), (3, b"0123456789"), (4, b"456789"), (9, b"89")):
        with sender.http.stream(f"{job.path('stream')}?from={start}", sender.token) as stream:
            until_job = []
            while (event := stream.next()) is not None and event.event != "job":
                until_job.append(event)
        assert printed(job.reader(), until_job) == expected
    bad = sender.get(f"{job.path('stream')}?from=x")
    assert bad.error == "400 bad_request"


def test_the_ring_keeps_the_last_bytes(relay: RelayThread) -> None:
    job = Running(relay)
    texts = [b"%04d" % n * 1000 for n in range(40)]
    for text in texts:
        job.print(text)
    job.runner.send(job.crew.result(job.runner, job.item))
    with job.crew.sender.http.stream(job.path("stream"), job.crew.sender.token) as stream:
        held = stream.rest()
    output = printed(job.reader(), held)
    assert 0 < len(output) < 64 * 1024
    assert b"".join(texts).endswith(output)


def test_a_segment_said_again_is_one(relay: RelayThread) -> None:
    job = Running(relay)
    frame = job.frame(b"once")
    assert job.runner.post(job.path("output"), frame).status == 204
    assert job.runner.post(job.path("output"), frame).status == 204
    job.runner.send(job.crew.result(job.runner, job.item))
    with job.crew.sender.http.stream(job.path("stream"), job.crew.sender.token) as stream:
        assert [event.event for event in stream.rest()].count("segment") == 1


def test_foreign_segments_are_refused(relay: RelayThread) -> None:
    job = Running(relay)
    other = job.crew.runner("other")
    frame = job.frame(b"x")
    path = job.path("output")
    assert job.crew.sender.post(path, frame).error == "403 forbidden"
    assert other.post(path, frame).error == "409 not_assigned"
    forged = writer_for(job.crew, other, job.item).write([Piece(1, b"forged")])[0]
    elsewhere = writer_for(job.crew, job.runner, job.crew.job()).write([Piece(1, b"x")])[0]
    for body in (b"", b"x" * 50, frame[:-1], frame[:-1] + b"\0", forged, elsewhere):
        assert job.runner.post(path, body).error == "400 invalid_item"
    assert job.runner.post(path, bytes(400_000)).error == "413 too_large"
    job.runner.send(job.crew.result(job.runner, job.item))
    assert job.runner.post(path, frame).error == "409 not_assigned"  # the job has ended


def test_a_floor_session_has_no_live_output(relay: RelayThread) -> None:
    crew = Crew(relay)
    runner = crew.runner()
    item = crew.job()
    crew.submit(item)
    frame, _ = writer_for(crew, runner, item).write([Piece(1, b"x")])
    path = wire.job_output(crew.sid, item.ref.id)
    assert runner.post(path, frame).error == "403 policy"
    assert runner.post(wire.lack(crew.sid, item.ref.id), b"x" * 60).error == "403 policy"


def test_what_a_runner_lacks_goes_to_the_author_only(relay: RelayThread) -> None:
    job = Running(relay)
    keys = job.crew.world.keys
    sender, owner = job.crew.sender, job.crew.owner

    def lack(*digests: bytes) -> bytes:
        return pack.seal_lack(
            keys.session_key,
            keys.session_id,
            job=ItemId(job.item.ref.id),
            runner=job.runner.person.public,
            plain=b"".join(digests),
            nonce=os.urandom(12),
        )

    older, newer = lack(b"1" * 32), lack(b"2" * 32)
    with (
        sender.http.stream(job.path("stream"), sender.token) as mine,
        owner.http.stream(job.path("stream"), owner.token) as theirs,
    ):
        mine.until("job")
        theirs.until("job")
        for sealed in (older, newer):
            assert job.runner.post(job.path("lack"), sealed).status == 204
            assert b64u_decode(json.loads(mine.until("lack").data)["lack"]) == sealed
        job.print(b"x")
        seen = theirs.next()
        assert seen is not None
        assert seen.event == "segment"
    with sender.http.stream(job.path("stream"), sender.token) as late:
        assert json.loads(late.until("lack").data) == {"lack": b64u_encode(newer)}
    assert sender.post(job.path("lack"), newer).error == "403 forbidden"
    assert job.runner.post(job.path("lack"), bytes(1_100_000)).error == "413 too_large"


def test_a_lost_runner_ends_the_stream(relay: RelayThread) -> None:
    job = Running(relay)
    sender = job.crew.sender
    with sender.http.stream(job.path("stream"), sender.token) as stream:
        stream.until("job")
        job.runner.post(wire.leave(job.crew.sid))
        rest = stream.rest()
    assert [event.event for event in rest] == ["job", "end"]
    assert json.loads(rest[0].data)["reason"] == "runner_lost"


def test_output_is_forgotten_some_time_after_the_job() -> None:
    clock = Clock(now_ms())
    with RelayThread(clock=clock, live_retention_s=60) as relay:
        job = Running(relay)
        job.print(b"x")
        job.runner.send(job.crew.result(job.runner, job.item))
        live_part = relay.relay.live
        relay.call(live_part.forget_ended)
        assert live_part._total_bytes > 0
        clock.turn(61)
        relay.call(live_part.forget_ended)
        assert live_part._total_bytes == 0
        second = Running(relay)
        second.print(b"y")
        second.crew.owner.post(wire.close(second.crew.sid))
        relay.call(live_part.forget_ended)
        assert live_part._total_bytes == 0


def test_one_job_holds_so_much_output() -> None:
    with RelayThread(live_ring_bytes=128 * 1024) as relay:
        job = Running(relay)
        for n in range(10):
            job.print(b"%02d" % n * 15_000)
        (ring,) = relay.relay.live._rings.values()
        assert 64 * 1024 < ring.size <= 128 * 1024
        assert until_last(job).endswith(b"09")


def test_who_reads_no_output_is_cut() -> None:
    """And nobody waits for it: the job's other readers get everything."""
    with RelayThread(stream_queue_bytes=64 * 1024, live_ring_bytes=64 * 1024) as relay:
        job = Running(relay)
        sender = job.crew.sender
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        line.settimeout(20)
        line.connect((sender.http.host, sender.http.port))
        head = f"GET {job.path('stream')} HTTP/1.1\r\nhost: x\r\n"
        line.sendall(f"{head}authorization: Bearer {sender.token}\r\n\r\n".encode())
        until(lambda: relay.relay.core.hub.count == 1, "the stream")

        def print_until_cut() -> bool:
            job.print(os.urandom(30_000))
            boxes = relay.relay.core.hub._job_streams(job.crew.sid, job.item.ref.id)
            return all(box.overflowed for box in boxes)

        until(print_until_cut, "cutting")
        line.close()
        job.print(b"the end")
        assert until_last(job).endswith(b"the end")


def test_output_of_all_jobs_together_is_bounded() -> None:
    with RelayThread(live_total_bytes=1 << 20) as relay:
        job = Running(relay)
        for n in range(40):
            job.print(b"%02d" % n * 20_000)
        assert relay.relay.live._total_bytes <= 1 << 20
        last = until_last(job)
        assert last.endswith(b"39")


def test_new_output_takes_the_place_of_the_output_that_rests() -> None:
    """Many jobs with one segment each are bounded too."""
    with RelayThread(live_total_bytes=1 << 20, creates_per_minute=0) as relay:
        jobs = [Running(relay) for _ in range(12)]
        for job in jobs:
            for text in (b"a" * 60_000, b"b" * 60_000):
                job.print(text)
        assert relay.relay.live._total_bytes <= 1 << 20
        assert until_last(jobs[-1]) == b"a" * 60_000 + b"b" * 60_000
        assert until_last(jobs[0]) == b""


def test_a_segment_of_a_runner_that_was_cut_off_meanwhile_is_refused(relay: RelayThread) -> None:
    """Revoked while its segment was on the way."""
    job = Running(relay)
    frame = job.frame(b"late")
    head = (
        f"POST {job.path('output')} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        f"authorization: Bearer {job.runner.token}\r\ncontent-length: {len(frame)}\r\n"
        "expect: 100-continue\r\n\r\n"
    )
    with socket.create_connection((job.crew.http.host, job.crew.http.port), timeout=60) as line:
        line.sendall(head.encode())
        assert line.recv(65536).startswith(b"HTTP/1.1 100")  # its token was good
        assert job.crew.owner.post(wire.revoke(job.crew.sid, "runner")).status == 200
        line.sendall(frame)
        assert line.recv(65536).startswith(b"HTTP/1.1 401")
    assert relay.relay.live._rings == {}


def until_last(job: Running) -> bytes:
    job.runner.send(job.crew.result(job.runner, job.item))
    sender = job.crew.sender
    with sender.http.stream(job.path("stream"), sender.token) as stream:
        return printed(job.reader(), stream.rest())


def test_streams_of_jobs_are_left_behind_cleanly(relay: RelayThread) -> None:
    job = Running(relay)
    with job.crew.sender.http.stream(job.path("stream"), job.crew.sender.token) as stream:
        stream.until("job")
    until(lambda: relay.relay.core.hub.count == 0, "leaving")
