"""Through the world's proxies: nginx and Caddy in front of the relay, tunnels and scanners in front
of the client. Everything works, or says what to do; streams deliver or are replaced."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from airlox import Session
from airlox.client.connection import tls_context
from airlox.client.jobs import Job
from airlox.client.relay_api import RelayApi
from airlox.errors import ConnectionLost, RelayError
from airlox.protocol import wire
from airlox.protocol.sse import SseParser
from support import fronts
from support.commands import Cli
from support.fronts import Front
from support.machines import RelayProgram, RunnerProgram
from support.middle import holding, tunnelling
from support.relay import Http, new_world
from support.scripted import Scripted

WAIT_S = 60.0
LARGE = b"# large\n" + os.urandom(10 << 20).hex().encode()
"""A little more than 20 MB, of a kind that no front can compress much."""

Start = Callable[[Path, str], AbstractContextManager[Front]]
FRONTS: dict[str, Start] = {
    "stock-nginx": fronts.nginx,
    "nginx": fronts.documented_nginx,
    "caddy": fronts.documented_caddy,
}


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProgram]:
    with RelayProgram(tmp_path_factory.mktemp("relay")) as program:
        yield program


@pytest.fixture(scope="module", params=FRONTS)
def front(
    request: pytest.FixtureRequest, relay: RelayProgram, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("front")
    with FRONTS[request.param](folder, relay.url) as running, trusting(running):
        yield running


class trusting:
    """For a block, this process and those it starts know the root certificate of a front."""

    def __init__(self, front: Front) -> None:
        self._root = front.root
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> None:
        if self._root is not None:
            self._patch.setenv("SSL_CERT_FILE", str(self._root))
        tls_context.cache_clear()

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        tls_context.cache_clear()


class Pair:
    """An owner and a sender in one session, seen through one address."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        self.owner = Session.create(url, cache_dir=folder / "owner", **options)
        self.agent = Session.join(self.owner.invites["sender"], cache_dir=folder / "agent")

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.owner.disconnect()
        self.agent.disconnect()

    @property
    def warnings(self) -> list[str]:
        return [*self.owner.warnings, *self.agent.warnings]


def machine(url: str, folder: Path, **options: Any) -> Session:
    return Session.create(
        url,
        mode="execute",
        job_limits={"kinds": ["shell"], "approve_runners": False},
        cache_dir=folder / "owner",
        **options,
    )


class Told:
    """What a session complained of; the first complaint lets a stopped relay go on."""

    def __init__(self, relay: RelayProgram) -> None:
        self._pid = relay.pid
        self._is_over = False
        self.said: list[str] = []

    def __call__(self, text: str) -> None:
        self.said.append(text)
        self.go_on()

    def stopping(self, post: Callable[..., Any]) -> Callable[..., Any]:
        def stop_and_post(*given: Any) -> Any:
            if not self._is_over:
                os.kill(self._pid, signal.SIGSTOP)
            return post(*given)

        return stop_and_post

    def go_on(self) -> None:
        self._is_over = True
        os.kill(self._pid, signal.SIGCONT)


def run_with_a_gate(session: Session, folder: Path) -> Job:
    """A job that prints, waits until that was seen, and prints again."""
    gate = folder / "gate"
    script = f"echo first; while [ ! -e {gate} ]; do sleep 0.05; done; echo second"
    job = session.run_shell(script, runner="box")
    printed = b""
    for piece in job.output(WAIT_S):
        printed += piece.data
        if printed == b"first\n":
            assert job.final is None
            gate.touch()
    assert printed == b"first\nsecond\n"
    return job


class TestThroughAFront:
    def test_messages_and_files(self, front: Front, tmp_path: Path) -> None:
        with Pair(front.url, tmp_path) as pair:
            pair.owner.send_text("hello")
            pair.agent.send_file(b"# report\n", name="report.md")
            for session in (pair.owner, pair.agent):
                assert [item.text or item.name for item in session.items()] == [
                    "hello",
                    "report.md",
                ]
            assert pair.warnings == []

    def test_a_session_s_stream_delivers(self, front: Front, tmp_path: Path) -> None:
        with Pair(front.url, tmp_path) as pair, pair.agent.stream(WAIT_S) as stream:
            for number in range(5):
                pair.owner.send_text(str(number))
                assert next(stream).text == str(number)
            assert pair.warnings == []

    def test_a_runner_hears_of_jobs_and_live_output_arrives_while_they_run(
        self, front: Front, tmp_path: Path
    ) -> None:
        with (
            machine(front.url, tmp_path) as session,
            RunnerProgram(session.invites["runner"], tmp_path / "runner") as runner,
        ):
            runner.note("ready")
            assert run_with_a_gate(session, tmp_path).wait(WAIT_S).ok
            assert list(session.warnings) == []
            assert runner.stop() == 0
            assert [note for note in runner.notes("warning") if "stream" in note["text"]] == []

    def test_a_large_file(
        self, front: Front, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        stock = "stock-nginx" in request.node.callspec.id
        with Pair(front.url, tmp_path) as pair:
            if stock:
                with pytest.raises(RelayError) as caught:
                    pair.owner.send_file(LARGE, name="large.md")
                assert caught.value.code == "proxy_limit"
                assert "proxy" in caught.value.message
                assert "client_max_body_size" in (caught.value.hint or "")
                assert pair.owner.send_text("still there")
                return
            ref = pair.owner.send_file(LARGE, name="large.md")
            item = pair.agent.item(ref.id)
            assert item is not None
            assert item.body == LARGE

    def test_a_relay_that_is_away_for_a_while(
        self, front: Front, relay: RelayProgram, tmp_path: Path
    ) -> None:
        with Pair(front.url, tmp_path) as pair, pair.agent.stream(WAIT_S) as stream:
            pair.owner.send_text("before")
            assert next(stream).text == "before"
            relay.kill()
            posting = threading.Event()
            owner = Session.join(
                pair.owner.invites["owner"],
                cache_dir=tmp_path / "owner",
                on_warning=lambda text: posting.set(),
            )
            thread = threading.Thread(target=owner.send_text, args=("meanwhile",))
            thread.start()
            assert posting.wait(WAIT_S)
            relay.start()
            thread.join(WAIT_S)
            assert not thread.is_alive()
            owner.disconnect()
            pair.owner.send_text("after")
            assert [next(stream).text for _ in range(2)] == ["meanwhile", "after"]
            assert [item.text for item in pair.agent.items()] == ["before", "meanwhile", "after"]


class TestIdleStreams:
    """nginx with a read time-out of a few seconds."""

    @pytest.mark.slow
    def test_keepalives_hold_a_stream_open(self, tmp_path: Path) -> None:
        with (
            RelayProgram(tmp_path / "data", keepalive_s=1) as relay,
            fronts.nginx(tmp_path / "nginx", relay.url, "proxy_read_timeout 3s;") as front,
            Pair(front.url, tmp_path) as pair,
            pair.agent.stream(6) as stream,
        ):
            assert list(stream) == []  # six seconds of nothing
            pair.owner.send_text("awake")
            with pair.agent.stream(WAIT_S) as again:
                assert next(again).text == "awake"
            assert pair.warnings == []

    def test_one_that_is_cut_goes_on_at_its_cursor(
        self, relay: RelayProgram, tmp_path: Path
    ) -> None:
        cut = threading.Event()
        with fronts.nginx(tmp_path / "nginx", relay.url, "proxy_read_timeout 1s;") as front:
            owner = Session.create(front.url, cache_dir=tmp_path / "owner")
            with (
                owner,
                Session.join(
                    owner.invites["sender"],
                    cache_dir=tmp_path / "agent",
                    on_warning=lambda text: cut.set(),
                ) as agent,
                agent.stream(WAIT_S) as stream,
            ):
                got: list[str | None] = []
                reader = threading.Thread(target=lambda: got.extend(_texts(stream, 6)))
                reader.start()
                for number in range(3):
                    assert cut.wait(WAIT_S)
                    cut.clear()
                    owner.send_text(f"{number} a")
                    owner.send_text(f"{number} b")
                reader.join(WAIT_S)
                assert got == [f"{number} {half}" for number in range(3) for half in "ab"]


def _texts(stream: Iterator[object], count: int) -> Iterator[str | None]:
    for _ in range(count):
        yield next(stream).text  # type: ignore[attr-defined]


QUIRKS = {
    "answers that close their connection": "keepalive_timeout 0;",
    "an upgrade that nobody asked for": "proxy_http_version 1.1;"
    'proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade";',
    "buffers that the relay's wish does not turn off": "proxy_buffering on;"
    "proxy_ignore_headers X-Accel-Buffering; proxy_buffers 8 64k; proxy_buffer_size 64k;",
    "answers kept": "proxy_force_ranges on; expires 1h; etag on;",
}


@pytest.mark.parametrize("settings", QUIRKS.values(), ids=QUIRKS)
def test_what_people_put_into_nginx(relay: RelayProgram, tmp_path: Path, settings: str) -> None:
    with (
        fronts.nginx(tmp_path / "nginx", relay.url, settings) as front,
        Pair(front.url, tmp_path) as pair,
        pair.agent.stream(WAIT_S) as stream,
    ):
        for text in ("one", "two"):
            pair.owner.send_text(text)
            assert next(stream).text == text
        assert [item.text for item in pair.owner.items()] == ["one", "two"]
        assert pair.warnings == []


class TestAProxyThatGivesUpWaiting:
    """nginx answers 504 to a post while the relay, stopped for a while, has it still before it."""

    @pytest.fixture
    def front(self, relay: RelayProgram, tmp_path: Path) -> Iterator[Front]:
        with fronts.nginx(tmp_path / "nginx", relay.url, "proxy_read_timeout 1s;") as front:
            yield front

    @pytest.fixture
    def told(self, relay: RelayProgram, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
        """Stops the relay at the next post; it goes on once the poster has complained."""
        told = Told(relay)
        for name in ("post_item", "post_job"):
            monkeypatch.setattr(RelayApi, name, told.stopping(getattr(RelayApi, name)))
        yield told
        told.go_on()

    def test_an_item_is_there_once(self, front: Front, told: Told, tmp_path: Path) -> None:
        with Pair(front.url, tmp_path, on_warning=told) as pair:
            pair.owner.send_text("once")
            assert "504" in told.said[0]
            assert [item.text for item in pair.agent.items()] == ["once"]

    def test_a_job_runs_once(self, front: Front, told: Told, tmp_path: Path) -> None:
        with (
            machine(front.url, tmp_path, on_warning=told) as session,
            RunnerProgram(session.invites["runner"], tmp_path / "runner") as runner,
        ):
            runner.note("ready")
            job = session.run_shell(f"echo ran >> {tmp_path}/runs", runner="box")
            assert "504" in told.said[0]
            assert job.wait(WAIT_S).ok
            assert [each.id for each in session.jobs()] == [job.id]
            assert (tmp_path / "runs").read_text() == "ran\n"


class TestCompression:
    def test_what_nginx_compresses_is_passed_on_at_once(
        self, relay: RelayProgram, tmp_path: Path
    ) -> None:
        """Our clients ask for plain bytes; others, such as 0.1.0, accept gzip."""
        with fronts.nginx(tmp_path, relay.url) as front:
            line = _CompressedStream(front.url)
            assert line.answer.getheader("content-encoding") == "gzip"
            line.owner.send_text("one")
            assert line.until("item")
            line.owner.send_text("two")
            assert line.until("item")
            line.close()


class _CompressedStream:
    """A session's stream as a client reads it that accepts gzip."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.owner = Session.create(url)
        token = self.owner._core.api.token
        self._connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=WAIT_S
        )
        self._connection.request(
            "GET",
            wire.stream(self.owner.session_id),
            headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip"},
        )
        self.answer = self._connection.getresponse()
        self._plain = zlib.decompressobj(wbits=31)
        self._parser = SseParser()

    def until(self, kind: str) -> bool:
        """Read until an event of a kind is there."""
        while data := self.answer.read1(65536):
            if any(e.event == kind for e in self._parser.feed(self._plain.decompress(data))):
                return True
        return False

    def close(self) -> None:
        self._connection.close()
        self.answer.close()
        self.owner.disconnect()


class TestAddresses:
    def test_the_guide_s_nginx_tells_the_relay_who_asks(self, tmp_path: Path) -> None:
        """The relay counts new sessions by address: nobody behind nginx may choose his own."""
        with (
            RelayProgram(tmp_path / "data", creates_per_minute=1) as relay,
            fronts.documented_nginx(tmp_path / "nginx", relay.url) as front,
            trusting(front),
        ):
            parts = urlsplit(front.url)
            statuses = []
            for number in range(2):
                connection = http.client.HTTPSConnection(
                    parts.hostname or "", parts.port, timeout=WAIT_S, context=tls_context()
                )
                connection.request(
                    "POST",
                    wire.SESSIONS,
                    new_world().document,
                    {"X-Forwarded-For": f"203.0.113.{number}"},
                )
                statuses.append(connection.getresponse().status)
                connection.close()
            assert statuses == [201, 429]
            answer = Http(relay.url).ask(
                "POST", wire.SESSIONS, new_world().document, x_forwarded_for="203.0.113.9"
            )
            assert answer.status == 201


class TestPrivateAuthority:
    def test_caddy_s_own(self, relay: RelayProgram, tmp_path: Path) -> None:
        with fronts.documented_caddy(tmp_path / "caddy", relay.url) as front:
            cli = Cli(front.url, tmp_path / "home")
            done = cli("session", "create", "--json", code=1)
            assert done.error["code"] == "tls"
            said = json.dumps(done.error)
            assert f"the certificate of {front.url} does not verify" in said
            assert "SSL_CERT_FILE" in said
            made = cli("session", "create", "--json", SSL_CERT_FILE=str(front.root))
            assert front.url in made.out


class TestOnTheClientsSide:
    """A proxy between the client and nginx with https."""

    LOGIN = "Basic bWU6czNjcmV0"

    @pytest.fixture
    def https(self, relay: RelayProgram, tmp_path: Path) -> Iterator[Front]:
        with fronts.documented_nginx(tmp_path / "nginx", relay.url) as front, trusting(front):
            yield front

    def test_https_goes_through_a_tunnel(
        self, https: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[str] = []
        with Scripted(tunnelling(seen, login=self.LOGIN)) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", f"http://me:s3cret@127.0.0.1:{proxy.port}")
            with Pair(https.url, tmp_path) as pair, pair.agent.stream(WAIT_S) as stream:
                for text in ("one", "two"):
                    pair.owner.send_text(text)
                    assert next(stream).text == text
                assert pair.warnings == []
        assert set(seen) == {https.url.removeprefix("https://")}

    def test_a_proxy_that_wants_a_login_says_so(
        self, https: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Scripted(tunnelling([], login=self.LOGIN)) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", f"http://me:wrong-one@127.0.0.1:{proxy.port}")
            with pytest.raises(ConnectionLost) as caught:
                Session.create(https.url, cache_dir=tmp_path)
        assert caught.value.code == "proxy"
        assert "407" in caught.value.message
        assert "NAME:PASSWORD" in (caught.value.hint or "")
        assert "wrong-one" not in str(caught.value)

    def test_no_proxy_names_who_needs_none(
        self, https: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[str] = []
        with Scripted(tunnelling(seen)) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
            monkeypatch.setenv("NO_PROXY", "example.org,localhost")
            with Session.create(https.url, cache_dir=tmp_path) as session:
                session.send_text("direct")
        assert seen == []


@pytest.mark.parametrize("passes_head", [False, True], ids=["all", "body"])
class TestHeldBack:
    """A proxy that passes on only what is complete, which a stream never is (P-REL-6)."""

    def test_a_session_s_news_arrive(
        self, relay: RelayProgram, tmp_path: Path, passes_head: bool
    ) -> None:
        with (
            Scripted(holding(relay.url, passes_head=passes_head)) as proxy,
            Pair(proxy.base_url, tmp_path) as pair,
            pair.agent.stream(WAIT_S) as stream,
        ):
            for text in ("one", "two", "three"):
                pair.owner.send_text(text)
                assert next(stream).text == text
            assert [w for w in pair.warnings if "held back" not in w] == []

    @pytest.mark.slow
    def test_jobs_run_and_live_output_arrives_while_they_do(
        self, relay: RelayProgram, tmp_path: Path, passes_head: bool
    ) -> None:
        with (
            Scripted(holding(relay.url, passes_head=passes_head)) as proxy,
            machine(proxy.base_url, tmp_path) as session,
            RunnerProgram(session.invites["runner"], tmp_path / "runner") as runner,
        ):
            runner.note("ready")
            assert run_with_a_gate(session, tmp_path).wait(WAIT_S).ok
            endless = session.run_shell("echo up; sleep 600", runner="box")
            assert next(endless.output(WAIT_S)).data == b"up\n"
            endless.cancel()
            assert endless.wait(WAIT_S).status == "cancelled"
            assert any("held back" in warning for warning in session.warnings)
