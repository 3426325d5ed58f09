"""Live output: in order, redacted, bounded, and never in the way of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from airlox.errors import ConnectionLost, RelayError
from airlox.protocol.encoding import ItemId, b64u_encode
from airlox.protocol.item import ItemRef
from airlox.protocol.job import LiveTotals
from airlox.protocol.keys import SessionKeys, SigningKey
from airlox.protocol.live import STDERR, STDOUT, LiveReader, LiveWriter, parse_segment
from airlox.runner import live
from airlox.runner.live import LiveOutput
from airlox.runner.redact import Redactor

KEYS = SessionKeys.derive(b"\1" * 32)
RUNNER = SigningKey.from_seed(b"\2" * 32)
JOB = ItemRef(blob_sha256=b64u_encode(b"\3" * 32), id=ItemId(b64u_encode(b"\4" * 16)))
REDACTOR = Redactor([("/home/ann", "~")])


class Relay:
    """Takes segments, or fails as told, and reads them as a follower would."""

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.frames: list[bytes] = []
        self.arrived = asyncio.Event()

    async def send(self, frame: bytes) -> None:
        if self.faults:
            raise self.faults.pop(0)
        self.frames.append(frame)
        self.arrived.set()

    def text(self, stream: int = STDOUT) -> bytes:
        reader = LiveReader(KEYS.session_key, KEYS.session_id, JOB, RUNNER.public)
        shown = b""
        for frame in self.frames:
            pieces, reader = reader.read(frame)
            shown += b"".join(piece.data for piece in pieces if piece.stream == stream)
        return shown

    def head(self) -> str:
        last = parse_segment(
            self.frames[-1], session_id=KEYS.session_id, job=JOB, runner=RUNNER.public
        )
        return last.link


def followed(
    story: Callable[[LiveOutput], Awaitable[None]], *faults: Exception
) -> tuple[Relay, LiveTotals]:
    """The relay and the totals after `story` has written to a live output."""

    async def run() -> tuple[Relay, LiveTotals]:
        relay = Relay(*faults)
        writer = LiveWriter(RUNNER, KEYS.session_key, KEYS.session_id, JOB, b"\5" * 16)
        output = LiveOutput(writer, REDACTOR, relay.send)
        output.relay = relay  # type: ignore[attr-defined]
        await story(output)
        return relay, await output.close()

    return asyncio.run(run())


def test_both_streams_arrive_in_order_and_the_totals_name_the_head() -> None:
    async def story(output: LiveOutput) -> None:
        output.write(STDOUT, b"one\n")
        output.write(STDERR, b"two\n")
        output.write(STDOUT, b"three\n")

    relay, totals = followed(story)
    assert relay.text() == b"one\nthree\n"
    assert relay.text(STDERR) == b"two\n"
    assert totals.head == relay.head()
    assert totals.segments == len(relay.frames)
    assert (totals.stdout_bytes, totals.stderr_bytes, totals.dropped_bytes) == (10, 4, 0)


def test_output_arrives_while_the_job_runs() -> None:
    async def story(output: LiveOutput) -> None:
        output.write(STDOUT, b"started")
        await asyncio.wait_for(output.relay.arrived.wait(), 20)  # type: ignore[attr-defined]

    relay, _ = followed(story)
    assert relay.text() == b"started"


def test_silence_has_no_head() -> None:
    async def story(output: LiveOutput) -> None:
        pass

    _, totals = followed(story)
    assert (totals.head, totals.segments) == (None, 0)


def test_paths_are_redacted_across_writes() -> None:
    async def story(output: LiveOutput) -> None:
        output.write(STDOUT, b"see /home/")
        output.write(STDOUT, b"ann/x")

    relay, _ = followed(story)
    assert relay.text() == b"see ~/x"


def test_what_looks_like_the_start_of_a_path_is_not_held_for_ever() -> None:
    async def story(output: LiveOutput) -> None:
        output.write(STDOUT, b"/home")
        await asyncio.wait_for(output.relay.arrived.wait(), 20)  # type: ignore[attr-defined]

    relay, _ = followed(story)
    assert relay.text() == b"/home"


def test_a_flood_keeps_its_end_and_says_what_is_missing() -> None:
    lines = [b"line %06d\n" % n for n in range(200_000)]

    async def story(output: LiveOutput) -> None:
        for at in range(0, len(lines), 1000):
            output.write(STDOUT, b"".join(lines[at : at + 1000]))

    relay, totals = followed(story)
    assert relay.text().endswith(lines[-1])
    assert b"bytes left out of the live output" in relay.text(STDERR)
    assert totals.stdout_bytes + totals.dropped_bytes == len(lines) * 12
    assert totals.stdout_bytes < 1_000_000


def test_many_tiny_pieces_stay_within_a_segment() -> None:
    async def story(output: LiveOutput) -> None:
        for n in range(20_000):
            output.write(STDOUT if n % 2 else STDERR, b"x")

    relay, totals = followed(story)
    assert totals.segments > 1
    assert len(relay.text()) + len(relay.text(STDERR)) > 10_000


@pytest.mark.parametrize(
    "fault", [ConnectionLost("gone"), RelayError(503, "busy", "later"), RelayError(429, "x", "y")]
)
def test_a_broken_line_is_tried_again(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    monkeypatch.setattr(live, "RETRY_S", 0.001)

    async def story(output: LiveOutput) -> None:
        output.write(STDOUT, b"kept")

    relay, totals = followed(story, fault, fault)
    assert relay.text() == b"kept"
    assert totals.segments == 1


def test_a_segment_the_relay_has_already_is_fine() -> None:
    async def story(output: LiveOutput) -> None:
        output.write(STDOUT, b"a")

    _, totals = followed(story, RelayError(409, "duplicate", "known"))
    assert (totals.segments, totals.dropped_bytes) == (1, 0)


def test_what_is_printed_after_a_revocation_is_under_the_new_key() -> None:
    """P-EPO-6: also what was sealed just before, which the relay refuses."""
    new_key = bytes(32)
    known = [0]

    def rekey(writer: LiveWriter) -> LiveWriter:
        if not known[0]:
            return writer
        return msgspec.structs.replace(writer, session_key=new_key, epoch=1)

    class Revoking(Relay):
        async def send(self, frame: bytes) -> None:
            if len(self.frames) == 1 and not known[0]:
                known[0] = 1
                raise RelayError(409, "old_epoch", "it has ended")
            await super().send(frame)

    async def run() -> tuple[Relay, LiveTotals]:
        relay = Revoking()
        writer = LiveWriter(RUNNER, KEYS.session_key, KEYS.session_id, JOB, b"\5" * 16)
        output = LiveOutput(writer, REDACTOR, relay.send, rekey)
        for text in (b"one\n", b"two\n", b"three\n"):
            relay.arrived.clear()
            output.write(STDOUT, text)
            await relay.arrived.wait()
        return relay, await output.close()

    relay, totals = asyncio.run(run())
    epochs = [
        parse_segment(frame, session_id=KEYS.session_id, job=JOB, runner=RUNNER.public).header
        for frame in relay.frames
    ]
    assert [header.epoch_number for header in epochs] == [0, 1, 1]
    reader = LiveReader(
        KEYS.session_key, KEYS.session_id, JOB, RUNNER.public, later_key=lambda _: new_key
    )
    shown = b""
    for frame in relay.frames:
        pieces, reader = reader.read(frame)
        shown += b"".join(piece.data for piece in pieces)
    assert shown == b"one\ntwo\nthree\n"
    assert (totals.head, totals.segments) == (relay.head(), 3)


def test_a_relay_that_refuses_ends_the_live_output_only() -> None:
    async def story(output: LiveOutput) -> None:
        output.write(STDOUT, b"a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        output.write(STDOUT, b"bc")

    relay, totals = followed(story, RelayError(409, "not_assigned", "no"))
    assert relay.frames == []
    assert totals.dropped_bytes == 2


def test_a_relay_that_is_away_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "CLOSE_S", 0.05)

    async def story(output: LiveOutput) -> None:
        output.write(STDOUT, b"lost")

    _, totals = followed(story, *[ConnectionLost("gone")] * 1000)
    assert totals.segments == 1
