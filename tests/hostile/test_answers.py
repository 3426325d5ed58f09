"""A relay whose answers are no answers: without end, far larger than they look, cut, garbled, slow
or none. Its clients end, in bounded time and memory, and say what is wrong."""

from __future__ import annotations

import pytest

from hostile.conftest import Scene
from support import lying
from support.lying import AUDIT, EVENTS, JOB_NEWS, RUNNERS, STREAM, say

PEAK_MB = 400
"""The largest answer has 32 MiB, that of an audit 128 MiB; then there is the interpreter."""

SMALL = "[]," * 1_900_000
BOMBS = {
    "numbers": '{"events":[' + "0," * 16_000_000 + "0]}",
    "just as many as may be": '{"events":[' + "0," * 3_900_000 + "0]}",
    "lists in an event": '{"events":[{"seq":2,"kind":"x","data":{"a":[' + SMALL + "0]}}]}",
    "depth": '{"events":' + "[" * 30_000_000,
    "objects": '{"events":[' + "{}," * 10_000_000 + "{}]}",
}


@pytest.fixture
def joined(scene: Scene) -> Scene:
    """Somebody has joined and has read nothing yet."""
    scene.owner.send_text("hello")
    scene.join("observer")
    return scene


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_list_of_events_that_unpacks_to_far_more(joined: Scene, bomb: str) -> None:
    joined.liar.lies[EVENTS] = say(200, bomb.encode())
    told = joined.victim("items")
    assert told.peak_mb < PEAK_MB
    # an event that is large and harmless is passed over; all else is no answer
    assert told.found == [] or "relay" in str(told.failed)
    joined.liar.honest()
    assert joined.victim("items").failed is None


def test_entries_that_are_no_events_have_an_end(joined: Scene) -> None:
    joined.liar.lies[EVENTS] = say(200, {"events": [0] * 20_000})
    with pytest.raises(Exception, match="not what a relay says"):
        joined.join("sender").items()


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", [b"\n" * (100 << 20), b"{}\n" * (40 << 20), b"[" + b"[]," * (40 << 20)]
)
def test_a_trail_that_unpacks_to_far_more(joined: Scene, body: bytes) -> None:
    joined.liar.lies[AUDIT] = say(200, body)
    told = joined.victim("audit")
    assert told.peak_mb < PEAK_MB
    assert "audit trail" in str(told.failed)


@pytest.mark.slow
def test_more_runners_than_anybody_has(joined: Scene) -> None:
    joined.liar.lies[RUNNERS] = say(200, b'{"runners":[' + b"0," * 3_000_000 + b"0]}")
    told = joined.victim("runners")
    assert told.peak_mb < PEAK_MB
    assert told.found == 0


FLOODS = [
    pytest.param(lie, id=name, marks=() if name == "one chunk" else pytest.mark.slow)
    for name, lie in lying.FLOODS.items()
]


@pytest.mark.parametrize("flood", FLOODS)
def test_an_answer_without_end(joined: Scene, flood: lying.Lie) -> None:
    joined.liar.lies[EVENTS] = flood
    told = joined.victim("stream", 1.0)
    assert told.peak_mb < PEAK_MB
    assert told.took_s < 60


QUICK = {"a negative chunk", "not json", "empty", "a redirect", "an error that is none", "gzip"}
NONSENSE = [
    pytest.param(lie, id=name, marks=() if name in QUICK else pytest.mark.slow)
    for name, lie in lying.NONSENSE.items()
]


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_an_answer_that_is_none(joined: Scene, nonsense: lying.Lie) -> None:
    victim = joined.join("observer")
    joined.liar.lies[EVENTS] = nonsense
    with pytest.raises(Exception, match="relay") as caught:
        victim.items()
    assert type(caught.value).__module__ == "airlox.errors"
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    joined.liar.honest()
    assert [item.text for item in victim.items()] == ["hello"]


STREAM_FLOODS = [
    pytest.param(lie, id=name, marks=() if name == "a line" else pytest.mark.slow)
    for name, lie in lying.STREAM_FLOODS.items()
]


@pytest.mark.parametrize("flood", STREAM_FLOODS)
def test_a_stream_without_end(joined: Scene, flood: lying.Lie) -> None:
    joined.liar.lies[STREAM] = flood
    told = joined.victim("stream", 1.0)
    assert told.failed is None
    assert told.found == ["hello"]
    assert told.peak_mb < 150
    assert told.took_s < 60


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        (say(200, b'{"events":[' + b"{}," * 2_500_000 + b"{}]}"), "has more than 4000000 values"),
        (say(200, b"<html>"), "is not what a relay says"),
        (say(500, b'{"error":"\\u001b[2J","message":"\\u001b[2J"}'), "relay answered 500"),
        (lying.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}"), "no connection"),
    ],
)
def test_the_command_line_says_what_is_wrong(joined: Scene, lie: lying.Lie, told: str) -> None:
    joined.liar.lies[EVENTS] = lie
    done = joined.cli("items")
    assert done.code == 1
    assert told in done.err
    assert "\x1b" not in done.err
    assert done.out == ""
    assert done.peak_mb < PEAK_MB


@pytest.mark.slow
def test_news_of_a_job_without_end(joined: Scene) -> None:
    """The answer that stands for a held-back stream."""
    victim = joined.join("sender")
    joined.liar.lies[JOB_NEWS] = say(200, b"data\n\n" * 5_000_000)
    news = victim._core.api.job_news("x", None)
    assert len(news) < 100_000
