"""Streams: reconnect at the cursor, deadline, close from another thread, end of the session."""

from __future__ import annotations

import threading

import pytest

from airlox.client import stream as stream_module
from airlox.client.deadline import Deadline
from airlox.client.relay_api import RelayApi
from airlox.client.stream import Feed, Poll
from airlox.errors import ConnectionLost, RelayError, SessionClosed
from airlox.protocol.sse import SseEvent, comment, encode_event
from support.scripted import Peer, Scripted, always

SID = "ax_" + "a" * 26
PATIENT = 15.0


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "RECONNECT_S", 0.01)


class Reader:
    """A feed with a cursor that follows what was handed out."""

    def __init__(self, server: Scripted, poll: Poll | None = None) -> None:
        self.api = RelayApi.connect(server.base_url, SID, token="t")
        self.cursor: int | None = None
        self.warnings: list[str] = []
        self.feed = Feed(
            self.api,
            lambda: "/s",
            cursor=lambda: self.cursor,
            poll=poll,
            on_warning=self.warnings.append,
        )

    def next(self, seconds: float = PATIENT) -> str | None:
        event = self.feed.next(Deadline.after(seconds))
        if event is None:
            return None
        if event.id is not None:
            self.cursor = int(event.id)
        return event.data

    def close(self) -> None:
        self.feed.close()
        self.api.close()


def test_events_arrive_as_they_are_sent() -> None:
    more = threading.Event()

    def script(peer: Peer) -> None:
        peer.read()
        peer.start_stream()
        peer.chunk(encode_event(0, "item", "a") + encode_event(1, "item", "b"))
        peer.chunk(comment())
        assert more.wait(PATIENT)
        data = encode_event(2, "item", "c")
        peer.chunk(data[:5])
        peer.chunk(data[5:])
        peer.gone()

    with Scripted(script) as server:
        reader = Reader(server)
        assert [reader.next(), reader.next()] == ["a", "b"]
        assert reader.next(0.05) is None
        more.set()
        assert reader.next() == "c"
        reader.close()
        assert reader.next() is None
    assert reader.warnings == []


def test_a_broken_stream_goes_on_at_the_cursor() -> None:
    cursors: list[str | None] = []

    def script(peer: Peer) -> None:
        request = peer.read()
        assert request is not None
        cursors.append(request.headers.get("last-event-id"))
        peer.start_stream()
        start = int(cursors[-1] or -1) + 1
        # two events, then the line breaks inside a third
        for seq in (start, start + 1):
            peer.chunk(encode_event(seq, "item", str(seq)))
        peer.send(b"ff\r\nid: 9")

    with Scripted(script) as server:
        reader = Reader(server)
        assert [reader.next() for _ in range(5)] == ["0", "1", "2", "3", "4"]
        reader.close()
    assert cursors == [None, "1", "3"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_relay_that_says_later_is_asked_again(status: int) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        if peer.number < 2:
            peer.answer(status, {"error": "busy"}, Connection="close")
            return
        peer.start_stream()
        peer.chunk(encode_event(0, "item", "at last"))
        peer.gone()

    with Scripted(script) as server:
        reader = Reader(server)
        assert reader.next() == "at last"
        reader.close()
    assert len(reader.warnings) == 1


@pytest.mark.parametrize(("status", "code"), [(401, "cut_off"), (404, "session_gone")])
def test_the_end_of_the_session_ends_the_feed(status: int, code: str) -> None:
    with Scripted(always(status, {"error": "x"})) as server:
        reader = Reader(server)
        with pytest.raises(SessionClosed) as caught:
            reader.next()
        reader.close()
    assert caught.value.code == code


def test_another_refusal_is_raised() -> None:
    with Scripted(always(403, {"error": "forbidden"})) as server:
        reader = Reader(server)
        with pytest.raises(RelayError):
            reader.next()
        reader.close()


def test_the_deadline_holds_while_the_relay_drips() -> None:
    ended = threading.Event()

    def script(peer: Peer) -> None:
        peer.read()
        peer.start_stream()
        while not ended.wait(0.02):
            peer.chunk(comment())

    with Scripted(script) as server:
        reader = Reader(server)
        assert reader.next(0.3) is None
        ended.set()
        reader.close()


def test_a_silent_line_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "SILENCE_S", 0.1)

    def script(peer: Peer) -> None:
        peer.read()
        peer.start_stream()
        if peer.number > 0:
            peer.chunk(encode_event(0, "item", "heard"))
        peer.gone()

    with Scripted(script) as server:
        reader = Reader(server)
        assert reader.next() == "heard"
        reader.close()
    assert "silent" in reader.warnings[0]


def test_an_event_without_end_costs_the_line_not_the_client() -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_stream()
        if peer.number == 0:
            while True:
                peer.chunk(b"data: " + b"x" * 100_000)
        peer.chunk(encode_event(0, "item", "fine"))
        peer.gone()

    with Scripted(script) as server:
        reader = Reader(server)
        assert reader.next() == "fine"
        reader.close()


@pytest.mark.parametrize("answered", [True, False])
def test_close_from_another_thread_ends_a_wait(answered: bool) -> None:
    asked = threading.Event()

    def script(peer: Peer) -> None:
        peer.read()
        if answered:
            peer.start_stream()
            peer.chunk(comment())
        asked.set()
        peer.gone()

    got: list[str | None] = []
    with Scripted(script) as server:
        reader = Reader(server)
        thread = threading.Thread(target=lambda: got.append(reader.next(60)))
        thread.start()
        assert asked.wait(PATIENT)
        reader.feed.close()
        thread.join(PATIENT)
        assert not thread.is_alive()
        reader.close()
    assert got == [None]


def test_its_owner_says_how_long_it_waits_before_it_comes_back() -> None:
    asked: list[int] = []

    def wait_s(losses: int) -> float:
        asked.append(losses)
        return 0.01

    def once(peer: Peer) -> None:
        peer.read()
        peer.start_stream()
        peer.chunk(comment())

    api = RelayApi.connect("http://127.0.0.1:1", SID, token="t")
    with Feed(api, lambda: "/s", wait_s=wait_s) as feed:
        until = Deadline.after(PATIENT)
        while len(asked) < 3 and not until.passed:
            feed.next(Deadline.after(0.05))
    assert asked[:3] == [0, 1, 2]
    api.close()
    with Scripted(once) as server:
        asked.clear()
        api = RelayApi.connect(server.base_url, SID, token="t")
        with Feed(api, lambda: "/s", wait_s=wait_s) as feed:
            while len(asked) < 3 and not until.passed:
                feed.next(Deadline.after(0.05))
        api.close()
    assert asked[:3] == [0, 0, 0], "a line that gave something counts as good"


def test_close_ends_the_wait_before_a_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "RECONNECT_S", 60.0)
    lost = threading.Event()
    api = RelayApi.connect("http://127.0.0.1:1", SID, token="t")
    feed = Feed(api, lambda: "/s", on_warning=lambda _: lost.set())
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(feed.next(Deadline.after(None))))
    thread.start()
    assert lost.wait(PATIENT)
    feed.close()
    thread.join(PATIENT)
    assert not thread.is_alive()
    assert got == [None]


def test_closing_the_api_ends_its_feeds() -> None:
    asked = threading.Event()

    def script(peer: Peer) -> None:
        peer.read()
        peer.start_stream()
        peer.chunk(comment())
        asked.set()
        peer.gone()

    got: list[str | None] = []
    with Scripted(script) as server:
        reader = Reader(server)
        thread = threading.Thread(target=lambda: got.append(reader.next(60)))
        thread.start()
        assert asked.wait(PATIENT)
        reader.api.close()
        thread.join(PATIENT)
        assert not thread.is_alive()
    assert got == [None]


# -- streams that are held back on their way ------------------------------------------------------


class News:
    """What a feed is told when it asks; knows how often it asked."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.waiting: list[SseEvent] = []
        self.error: Exception | None = None

    def __call__(self, api: RelayApi) -> list[SseEvent]:
        self.asked.set()
        if self.error is not None:
            raise self.error
        found, self.waiting = self.waiting, []
        return found


@pytest.fixture
def news(monkeypatch: pytest.MonkeyPatch) -> News:
    monkeypatch.setattr(stream_module, "FIRST_BYTE_S", 0.1)
    monkeypatch.setattr(stream_module, "POLL_S", 0.02)
    return News()


def told(*seqs: int) -> list[SseEvent]:
    return [SseEvent(str(seq), "item", str(seq)) for seq in seqs]


@pytest.mark.parametrize("what", ["head", "body"])
def test_news_are_asked_for_while_a_stream_is_held_back(news: News, what: str) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        if what == "body":
            peer.start_stream()
        peer.gone()

    news.waiting = told(0, 1)
    with Scripted(script) as server:
        reader = Reader(server, news)
        assert [reader.next(), reader.next()] == ["0", "1"]
        news.waiting = told(2)
        assert reader.next() == "2"
        assert reader.next(0.1) is None
        reader.close()
    [warning] = reader.warnings
    assert "held back" in warning


def test_a_stream_that_shows_itself_ends_the_asking(news: News) -> None:
    more = threading.Event()

    def script(peer: Peer) -> None:
        peer.read()
        peer.start_stream()
        assert more.wait(PATIENT)
        peer.chunk(encode_event(1, "item", "1"))
        assert more.wait(PATIENT)
        peer.chunk(encode_event(2, "item", "2"))
        peer.gone()

    news.waiting = told(0)
    with Scripted(script) as server:
        reader = Reader(server, news)
        assert reader.next() == "0"
        more.set()
        assert reader.next() == "1"
        news.asked.clear()
        assert reader.next() == "2"
        assert reader.next(0.2) is None
        assert not news.asked.is_set()
        reader.close()


def test_a_stream_that_begins_is_never_asked_beside(
    news: News, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_stream()
        peer.chunk(comment("open"))
        peer.gone()

    monkeypatch.setattr(stream_module, "FIRST_BYTE_S", 2.0)  # in which it must begin
    with Scripted(script) as server:
        reader = Reader(server, news)
        assert reader.next(2.5) is None
        assert not news.asked.is_set()
        reader.close()


def test_where_asking_fails_too_the_stream_is_opened_again(news: News) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        if peer.number > 0:
            peer.start_stream()
            peer.chunk(encode_event(0, "item", "back"))
        peer.gone()

    news.error = ConnectionLost("away")
    with Scripted(script) as server:
        reader = Reader(server, news)
        assert reader.next() == "back"
        reader.close()
    assert "away" in reader.warnings[0]


def test_a_short_wait_says_nothing_of_the_line(news: News) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.gone()

    with Scripted(script) as server:
        reader = Reader(server, news)
        for _ in range(20):
            assert reader.next(0.01) is None
        assert news.asked.is_set()
        reader.close()
    assert reader.warnings == []


@pytest.mark.timeout(60)
def test_asking_ends_at_the_deadline_when_nobody_answers(news: News) -> None:
    """A question that lasts until the deadline is not put again after it."""
    questions = []

    def unanswered(api: RelayApi) -> list[SseEvent]:
        questions.append(api)
        threading.Event().wait(0.5)
        raise ConnectionLost("no answer in time", code="relay_timeout")

    def script(peer: Peer) -> None:
        peer.read()
        peer.gone()

    with Scripted(script) as server:
        reader = Reader(server, unanswered)
        while not questions:
            assert reader.next(0.3) is None
        assert len(questions) == 1
        reader.close()


def test_asking_ends_with_the_session(news: News) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.gone()

    news.error = SessionClosed("gone")
    with Scripted(script) as server:
        reader = Reader(server, news)
        with pytest.raises(SessionClosed):
            reader.next()
        reader.close()


@pytest.mark.parametrize("status", [401, 404])
def test_a_stranger_s_refusal_ends_no_feed(status: int) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        if peer.number == 0:
            peer.answer(status, b"<html>who are you?</html>", Connection="close")
            return
        peer.start_stream()
        peer.chunk(encode_event(0, "item", "at last"))
        peer.gone()

    with Scripted(script) as server:
        reader = Reader(server)
        assert reader.next() == "at last"
        reader.close()
