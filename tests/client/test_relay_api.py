"""The relay's calls: what is sent, what is repeated, how refusals and nonsense are named."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from email.utils import formatdate

import pytest

from airlox.client import relay_api
from airlox.client.answers import FOREIGN, Assigned, JobStatus, parse_event
from airlox.client.deadline import Deadline
from airlox.client.relay_api import RelayApi
from airlox.client.transport import Transport
from airlox.errors import (
    ConnectionLost,
    LimitError,
    ProtocolError,
    RelayError,
    SessionClosed,
)
from airlox.protocol.keys import SigningKey
from support.scripted import Peer, Request, Scripted, always

SID = "ax_" + "a" * 26
KEY = SigningKey.from_seed(b"k" * 32).public


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_api, "RETRY_WAIT_S", 0.001)


def api_of(server: Scripted, **options: object) -> RelayApi:
    return RelayApi.connect(server.base_url, SID, token="tok", **options)  # type: ignore[arg-type]


class Recorder:
    """Answers from a list, one request each, and keeps the requests."""

    def __init__(self, *answers: tuple[int, object]) -> None:
        self.answers: Iterator[tuple[int, object]] = iter(answers)
        self.requests: list[Request] = []

    def __call__(self, peer: Peer) -> None:
        while (request := peer.read()) is not None:
            self.requests.append(request)
            peer.answer(*next(self.answers))


def test_what_is_sent() -> None:
    recorder = Recorder((200, {"signed_manifest": "{}"}), (201, {"token": "t"}), (201, b""))
    with Scripted(recorder) as server:
        api = RelayApi.connect(server.base_url + "/base", SID)
        assert api.fetch_manifest() == "{}"
        api.token = api.join("{join}", "s" * 43)
        api.post_item(b"frame")
        api.close()
    manifest, join, item = recorder.requests
    assert manifest.path == f"/base/v1/sessions/{SID}"
    assert "authorization" not in manifest.headers
    assert (join.method, join.body) == ("POST", b"{join}")
    assert join.headers["airlox-join-secret"] == "s" * 43
    assert item.path == f"/base/v1/sessions/{SID}/items"
    assert item.headers["authorization"] == "Bearer t"
    assert item.headers["user-agent"].startswith("airlox/")


def test_a_call_before_the_join() -> None:
    api = RelayApi.connect("http://localhost:1", SID)
    with pytest.raises(SessionClosed, match="not joined"):
        api.events()


def test_malformed_events_stop_nothing() -> None:
    events: list[object] = [
        {"seq": 0, "kind": "item", "data": {"envelope": "…"}, "more": 1},
        {"seq": "1", "kind": "item", "data": {}},
        {"seq": -1, "kind": "item", "data": {}},
        "nonsense",
        {"seq": 2, "kind": ["item"], "data": None},
    ]
    recorder = Recorder((200, {"events": events, "more": True}))
    with Scripted(recorder) as server:
        api = api_of(server)
        found = api.events(after=7)
        api.close()
    assert [(event.seq, event.kind) for event in found] == [(0, "item"), (2, "malformed")]
    assert recorder.requests[0].path.endswith("/events?after=7")


@pytest.mark.parametrize(
    "raw", [b"", b"null", b"[]", b"[" * 100_000, b'{"seq":1e99,"kind":"x","data":1}', b"\xff"]
)
def test_nonsense_is_no_event(raw: bytes) -> None:
    assert parse_event(raw) is None


@pytest.mark.parametrize(
    ("status", "code"), [(401, "cut_off"), (404, "session_gone"), (410, "session_gone")]
)
def test_what_ends_a_session(status: int, code: str) -> None:
    with Scripted(always(status, {"error": "x", "message": "y"})) as server:
        api = api_of(server)
        with pytest.raises(SessionClosed) as caught:
            api.events()
        assert caught.value.code == code
        with pytest.raises(SessionClosed) as caught:
            api.open_stream(
                "/s", last_event_id=1, deadline=Deadline.after(9), started=lambda cut: None
            )
        assert caught.value.code == code
        # the same answers to a post are plain refusals
        with pytest.raises(RelayError) as refused:
            api.post_item(b"")
        assert refused.value.status == status
        api.close()


def test_an_unknown_session_names_the_relay() -> None:
    with Scripted(always(404, {"error": "not_found", "message": "no"})) as server:
        api = api_of(server)
        with pytest.raises(SessionClosed) as caught:
            api.fetch_manifest()
        api.close()
    assert server.base_url in str(caught.value)
    assert caught.value.hint is not None
    assert "another relay" in caught.value.hint


def test_a_refusal_is_named_with_its_hint() -> None:
    with Scripted(always(507, {"error": "full", "message": "disk\x1b[2Jfull\n"})) as server:
        api = api_of(server)
        with pytest.raises(RelayError) as caught:
            api.post_item(b"")
        api.close()
    error = caught.value
    assert (error.status, error.code) == (507, "full")
    assert error.message == 'relay answered 507 full: "disk [2Jfull"'
    assert error.hint is not None


@pytest.mark.parametrize("body", [b"<html>Bad Gateway</html>", b"", b"\xff\xfe", b"[]", b"{}"])
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "foreign_answer"),
        (404, "foreign_answer"),
        (413, "proxy_limit"),
        (502, "unavailable"),
        (504, "unavailable"),
    ],
)
def test_a_refusal_in_other_words_than_a_relay_s(body: bytes, status: int, code: str) -> None:
    with Scripted(always(status, body)) as server:
        api = api_of(server)
        with pytest.raises(RelayError) as caught:
            api.post_item(b"")
        api.close()
    assert (caught.value.status, caught.value.code) == (status, code)
    assert caught.value.hint is not None


@pytest.mark.parametrize("status", [401, 404, 410])
def test_only_a_relay_ends_a_session(status: int) -> None:
    with Scripted(always(status, b"<html>no such site</html>")) as server:
        api = api_of(server)
        for call in (api.events, api.fetch_manifest, api.close_session):
            with pytest.raises(RelayError) as caught:
                call()
            assert caught.value.code == FOREIGN
        api.close()


def test_redirects_are_not_followed() -> None:
    with Scripted(always(302, b"", Location="http://127.0.0.1:1/")) as server:
        api = api_of(server)
        with pytest.raises(RelayError) as caught:
            api.events()
        api.close()
    assert caught.value.code == "redirect"


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b'{"events":{}}', b"[" * 50_000, b"<html>"])
def test_an_answer_that_is_none(body: bytes) -> None:
    with Scripted(always(200, body)) as server:
        api = api_of(server)
        with pytest.raises(ProtocolError) as caught:
            api.events()
        api.close()
    assert caught.value.code == "bad_answer"


@pytest.mark.parametrize("token", ["", "a\r\nX: y", "ü", "x" * 5000])
def test_an_unusable_token_is_refused(token: str) -> None:
    with Scripted(always(200, {"token": token})) as server:
        api = RelayApi.connect(server.base_url, SID)
        with pytest.raises(ProtocolError):
            api.join("{}", "s")
        api.close()


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_may_be_repeated_is(status: int) -> None:
    recorder = Recorder((status, {"error": "busy"}), (status, b""), (200, {"events": []}))
    with Scripted(recorder) as server:
        api = api_of(server)
        assert api.events() == []
        api.close()
    assert len(recorder.requests) == 3


def test_repeating_ends() -> None:
    recorder = Recorder(*[(503, {"error": "busy"})] * 9)
    with Scripted(recorder) as server:
        api = api_of(server)
        with pytest.raises(RelayError):
            api.events()
        api.close()
    assert len(recorder.requests) == relay_api.RETRIES


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("7", 7), (" 12 ", 12), ("0", 0), ("-3", None), ("1e3", None), ("9" * 40, None)],
)
def test_a_refusal_says_when_to_come_again(said: str, seconds: int | None) -> None:
    refusal = {"error": "rate_limited", "message": "too many joins (--joins-per-minute 240)"}
    with Scripted(always(429, refusal, Retry_After=said)) as server:
        api = api_of(server)
        with pytest.raises(RelayError) as caught:
            api.post_item(b"x")
        api.close()
    assert caught.value.retry_after_s == seconds
    told = "wait a little and try again" if seconds is None else f"try again in {seconds} s"
    assert caught.value.hint == told
    assert "--joins-per-minute 240" in caught.value.message


def test_what_is_repeated_waits_as_long_as_the_relay_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    def pause(_: RelayApi, seconds: float) -> bool:
        waits.append(seconds)
        return True

    monkeypatch.setattr(RelayApi, "pause", pause)
    with Scripted(always(503, {"error": "busy"}, Retry_After="2")) as server:
        api = api_of(server)
        with pytest.raises(RelayError):
            api.events()
        assert waits == [2] * (relay_api.RETRIES - 1)
        waits.clear()
        with pytest.raises(RelayError):
            api.within(Deadline.after(1)).events()  # longer than there is time: said at once
        assert waits == []
        api.close()


def test_posts_are_tried_once() -> None:
    recorder = Recorder(*[(503, {"error": "busy"})] * 9)
    with Scripted(recorder) as server:
        api = api_of(server)
        for post in (
            lambda: api.post_item(b"x"),
            lambda: api.post_job(b"x", "{}"),
            lambda: api.claim("j"),
            lambda: api.post_output("j", b"x"),
            lambda: api.create("{}"),
        ):
            with pytest.raises(RelayError):
                post()
        api.close()
    assert len(recorder.requests) == 5


def test_a_line_that_breaks_once_is_mended() -> None:
    def script(peer: Peer) -> None:
        request = peer.read()
        if request is not None and peer.number > 0:
            peer.answer(201, {"token": "t"})

    with Scripted(script) as server:
        api = RelayApi.connect(server.base_url, SID)
        assert api.join("{}", "secret") == "t"
        api.close()


def test_gone_is_what_a_close_and_an_ack_wanted() -> None:
    with Scripted(always(410, {"error": "gone"})) as server:
        api = api_of(server)
        api.close_session()
        api.ack("item")
        with pytest.raises(RelayError):
            api.revoke("sender")
        api.close()


def test_want_says_when_the_blob_is_there() -> None:
    recorder = Recorder((204, b""), (409, {"error": "present"}), (409, {"error": "other"}))
    with Scripted(recorder) as server:
        api = api_of(server)
        assert api.want("i") is False
        assert api.want("i") is True
        with pytest.raises(RelayError):
            api.want("i")
        api.close()


def test_blobs_are_bounded_by_what_the_header_promises() -> None:
    with Scripted(always(200, b"x" * 29)) as server:
        api = api_of(server)
        assert api.fetch_blob("i", 29) == b"x" * 29
        with pytest.raises(LimitError):
            api.fetch_blob("i", 28)
        api.close()


@pytest.mark.parametrize(
    ("answer", "seq"),
    [
        ({"seq": 7, "more": 1}, 7),
        ({"seq": -1}, None),
        ({"seq": 2**53}, None),
        ({"seq": "7"}, None),
        ({}, None),
        ([7], None),
    ],
)
def test_the_number_of_a_posted_item_is_what_the_relay_says_if_it_does(
    answer: object, seq: int | None
) -> None:
    with Scripted(Recorder((201, answer))) as server:
        api = api_of(server)
        assert api.post_item(b"frame") == seq
        api.close()


def test_runners_and_jobs() -> None:
    runners = [{"signed_join": "j", "online": True, "extra": 1}, {"online": True}, 7]
    recorder = Recorder(
        (200, {"runners": runners}),
        (200, {"runner": KEY}),
        (201, {"runner": KEY, "seq": 7, "more": []}),
        (200, {"job": "j", "state": "failed", "runner": None, "reason": "cancelled"}),
        (200, {"state": "assigned", "runner": KEY}),
        (200, {"rejected": True}),
    )
    with Scripted(recorder) as server:
        api = api_of(server)
        assert [entry.signed_join for entry in api.runners()] == ["j"]
        assert api.post_job(b"frame", '{"type":"any"}') == Assigned(KEY)
        assert api.post_job(b"frame", '{"type":"any"}') == Assigned(KEY, 7)
        assert api.job("j").reason == "cancelled"
        assert api.job("j").runner == KEY
        api.heartbeat("j", 2, ["j"])
        api.close()
    assert recorder.requests[1].headers["airlox-target"] == '{"type":"any"}'
    assert json.loads(recorder.requests[5].body) == {"job": "j", "slots": 2, "jobs": ["j"]}


def test_a_job_that_waits() -> None:
    queued = {"state": "queued", "runner": None, "reason": "busy", "place": 2, "seq": 9}
    recorder = Recorder((201, queued), (201, queued), (201, {**queued, "place": -1}))
    with Scripted(recorder) as server:
        api = api_of(server)
        waiting = JobStatus("queued", reason="busy", place=2)
        assert api.post_job(b"", "{}", 60) == Assigned(None, 9, waiting)
        with pytest.raises(ProtocolError):
            api.post_job(b"", "{}")  # none was asked for
        unplaced = api.post_job(b"", "{}", 60).status
        api.close()
    assert unplaced is not None
    assert unplaced.place is None
    assert [request.headers.get("airlox-queue") for request in recorder.requests] == [
        "60",
        None,
        "60",
    ]


def test_what_the_relay_says_of_a_job_is_cut_and_cleaned() -> None:
    """Its words go to terminals, its runner is used as a key."""
    said = {"state": "x" * 99, "runner": "\x1b]0;no key", "reason": "\x1b[2J" + "y" * 9999}
    recorder = Recorder((200, said), (200, {"runner": "no key"}))
    with Scripted(recorder) as server:
        api = api_of(server)
        status = api.job("j")
        with pytest.raises(ProtocolError) as caught:
            api.post_job(b"", "{}")
        api.close()
    assert (status.job, status.runner, len(status.state)) == ("j", None, 40)
    assert status.reason is not None
    assert status.reason.isprintable()
    assert len(status.reason) <= 300
    assert caught.value.code == "bad_answer"


def test_a_list_of_runners_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_api, "RUNNERS", 3)
    with Scripted(always(200, {"runners": [{"signed_join": "j"}] * 9})) as server:
        api = api_of(server)
        assert len(api.runners()) == 3
        api.close()


class TestScopes:
    """Calls of one wait: they end with it, whatever the relay does, and the others go on."""

    def test_a_relay_that_drips_extends_nothing(self) -> None:
        """Announcing a long body must not buy the relay the time that a long body takes."""
        drip = threading.Event()

        def script(peer: Peer) -> None:
            while peer.read() is not None:
                peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 30000000\r\n\r\n")
                while not drip.wait(0.01):
                    peer.send(b"x")

        with Scripted(script) as server:
            api = api_of(server)
            for bounded in (api.within(Deadline.after(0.2)), api.scope(Deadline.after(0.2))):
                with pytest.raises(ConnectionLost) as caught:
                    bounded.events()
                assert caught.value.code == "relay_timeout"
                assert bounded.over
            assert not api.over
            drip.set()
            api.close()

    def test_close_from_another_thread_ends_its_call_alone(self) -> None:
        asked, release = threading.Event(), threading.Event()

        def script(peer: Peer) -> None:
            while (request := peer.read()) is not None:
                if request.path.endswith("/blob"):
                    asked.set()
                    assert release.wait(20)
                peer.answer(200, {"events": []})

        with Scripted(script) as server:
            api = api_of(server)
            scope = api.scope(Deadline.after(None))
            errors: list[ConnectionLost] = []

            def fetch() -> None:
                try:
                    scope.fetch_blob("i", 99)
                except ConnectionLost as error:
                    errors.append(error)

            thread = threading.Thread(target=fetch)
            thread.start()
            assert asked.wait(20)
            scope.close()
            thread.join(20)
            assert not thread.is_alive()
            assert [error.code for error in errors] == ["closed"]
            # it stays closed, also for those that were bounded from it; the others go on
            for shut in (scope, scope.within(Deadline.after(9))):
                assert shut.over
                assert not shut.pause(20)
                with pytest.raises(ConnectionLost) as caught:
                    shut.events()
                assert caught.value.code == "closed"
            assert api.events() == []
            release.set()
            api.close()

    def test_the_end_of_all_ends_each(self) -> None:
        api = RelayApi.connect("http://localhost:1", SID, token="t")
        scope = api.scope(Deadline.after(None))
        api.close()
        assert scope.over
        with pytest.raises(ConnectionLost) as caught:
            scope.events()
        assert caught.value.code == "closed"

    def test_a_scope_within_a_scope_keeps_the_earlier_end(self) -> None:
        api = RelayApi.connect("http://localhost:1", SID, token="t")
        assert api.scope(Deadline.after(0)).within(Deadline.after(60)).over
        assert not api.scope(Deadline.after(60)).within(Deadline.after(60)).over
        api.close()


def test_a_clock_far_off_is_named_once() -> None:
    warnings: list[str] = []
    now = 1_000_000_000.0
    with Scripted(always(200, {"events": []}, Date=formatdate(now, usegmt=True))) as server:
        for off in (90.0, -3600.0, 30.0):
            transport = Transport(server.base_url, user_agent="t")
            clock_at = now + off
            api = RelayApi(
                transport,
                SID,
                token="t",
                on_warning=warnings.append,
                clock=lambda clock_at=clock_at: clock_at,  # type: ignore[misc]
            )
            api.within(Deadline.after(9)).events()
            api.within(Deadline.after(9)).events()
            api.events()
            api.close()
    assert len(warnings) == 2
    assert "90 s ahead of" in warnings[0]
    assert "3600 s behind" in warnings[1]


@pytest.mark.parametrize("date", ["yesterday", "Mon, 99 Xyz 2020 99:99:99 GMT", ""])
def test_a_date_that_is_none_is_ignored(date: str) -> None:
    with Scripted(always(200, {"events": []}, Date=date)) as server:
        api = api_of(server, on_warning=pytest.fail)
        api.events()
        api.close()


def test_within_ends_a_call_sooner() -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.gone()

    with Scripted(script) as server:
        api = api_of(server)
        with pytest.raises(ConnectionLost) as caught:
            api.within(Deadline.after(0.2)).post_item(b"")
        api.close()
    assert caught.value.code == "relay_timeout"


def test_packs_and_lack() -> None:
    recorder = Recorder(
        (201, b""),
        (200, {"packs": [{"n": 0, "size": 3, "sha256": "h"}]}),
        (200, b"abc"),
        (204, b""),
    )
    with Scripted(recorder) as server:
        api = api_of(server)
        api.put_pack("j", 0, b"abc")
        assert [(pack.n, pack.size) for pack in api.packs("j")] == [(0, 3)]
        assert api.fetch_pack("j", 0) == b"abc"
        api.post_lack("j", base64.b64encode(b"x"))
        api.close()
    assert [request.method for request in recorder.requests] == ["PUT", "GET", "GET", "POST"]
