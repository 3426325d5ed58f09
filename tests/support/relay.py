"""A real relay on a free loopback port, in a thread of the test, and plain HTTP to talk to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from airlox.protocol import wire
from airlox.protocol.item import SealedItem
from airlox.protocol.payload import File
from airlox.protocol.sse import SseEvent, SseParser
from airlox.relay.clock import Clock
from airlox.relay.config import Config
from airlox.relay.server import RelayServer, bind, run
from support.world import Person, World

TIMEOUT_S = 60.0


class RelayThread:
    """`with RelayThread() as relay:` serves until the block ends. `relay.url` is its base."""

    def __init__(self, *, clock: Clock | None = None, **settings: Any) -> None:
        settings = {"port": 0, "min_free_bytes": 0, "sweep_ms": 20, **settings}
        self.config = Config(**settings)
        self._server = RelayServer(self.config, "0.0.0", bind(self.config), clock)
        self.url = self._server.url
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> RelayThread:
        self._thread.start()
        if not self._ready.wait(TIMEOUT_S) or self._failure is not None:
            raise self._failure or TimeoutError("the relay did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.stop()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the relay did not stop"
        if self._failure is not None:
            raise self._failure

    @property
    def relay(self) -> Any:
        """The parts of the relay. They belong to its thread: look, or use `call`."""
        return self._server.relay

    @property
    def doors(self) -> Any:
        """The connections of the relay."""
        return self._server.doors

    def call(self, function: Any, *arguments: Any) -> Any:
        """Runs a function, or a coroutine, in the relay's thread."""
        assert self._loop is not None

        async def work() -> Any:
            result = function(*arguments)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(TIMEOUT_S)

    def _run(self) -> None:
        def ready() -> None:
            self._loop = asyncio.get_running_loop()
            self._ready.set()

        try:
            run(self._server, ready)
        except BaseException as error:
            self._failure = error
            self._ready.set()


@dataclass
class Answer:
    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return f"{self.status} {self.json['error']}"


class Http:
    """Requests to one relay, each on its own connection unless `keep` is used. `source` is the
    address they come from; all of 127.0.0.0/8 is this machine."""

    def __init__(self, url: str, source: str | None = None) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 0
        self.source = None if source is None else (source, 0)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(
            self.host, self.port, timeout=TIMEOUT_S, source_address=self.source
        )

    def line(self, receive_bytes: int | None = None) -> socket.socket:
        """A bare connection; the system keeps about `receive_bytes` for a slow reader."""
        line = socket.socket()
        if receive_bytes is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        if self.source is not None:
            line.bind(self.source)
        line.settimeout(TIMEOUT_S)
        try:
            line.connect((self.host, self.port))
        except OSError:
            line.close()
            raise
        return line

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | Iterator[bytes] | None = None,
        token: str | None = None,
        connection: http.client.HTTPConnection | None = None,
        **headers: str,
    ) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            named["authorization"] = f"Bearer {token}"
        used = connection or self.connect()
        data = body.encode() if isinstance(body, str) else body
        try:
            used.request(method, path, data, named)
            answer = used.getresponse()
            return Answer(answer.status, answer.read(), dict(answer.headers))
        finally:
            if connection is None:
                used.close()

    @contextmanager
    def stream(self, path: str, token: str, last: int | None = None) -> Iterator[Events]:
        connection = self.connect()
        headers = {"authorization": f"Bearer {token}"}
        if last is not None:
            headers[wire.Headers.LAST_EVENT_ID] = str(last)
        try:
            connection.request("GET", path, headers=headers)
            yield Events(connection.getresponse())
        finally:
            connection.close()


class Events:
    """An open stream, read event by event."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self._answer = answer
        self._parser = SseParser()
        self._waiting: list[SseEvent] = []
        self.comments = 0

    def next(self) -> SseEvent | None:
        """The next event; None at the end of the stream. Waits for it."""
        while not self._waiting:
            data = self._answer.read1(65536)
            if not data:
                return None
            self.comments += data.count(b": keepalive")
            self._waiting += self._parser.feed(data)
        return self._waiting.pop(0)

    def until(self, kind: str) -> SseEvent:
        """The next event of a kind; what comes before it is passed over."""
        while (event := self.next()) is not None:
            if event.event == kind:
                return event
        raise AssertionError(f"the stream ended without {kind!r}")

    def rest(self) -> list[SseEvent]:
        """Everything up to the end of the stream."""
        found = []
        while (event := self.next()) is not None:
            found.append(event)
        return found


@dataclass
class Member:
    """Somebody of a world who has joined it on a relay."""

    http: Http
    person: Person
    token: str
    paths: Any = field(default=wire)

    @property
    def sid(self) -> str:
        return self.person.world.keys.session_id

    @property
    def public(self) -> str:
        return str(self.person.public)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        return self.http.ask(method, path, body, self.token, connection=None, **headers)

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.ask("POST", path, body, **headers)

    def send(self, item: SealedItem) -> Answer:
        return self.post(wire.items(self.sid), item.frame())

    def say(self, text: str) -> SealedItem:
        """Posts a text, which must be taken."""
        item = self.person.say(text, at_ms=now_ms())
        answer = self.send(item)
        assert answer.status == 201, answer.body
        return item

    def events(self, after: int | None = None) -> list[dict[str, Any]]:
        answer = self.get(wire.events(self.sid, after))
        assert answer.status == 200, answer.body
        events: list[dict[str, Any]] = answer.json["events"]
        return events

    def stream(self, last: int | None = None) -> Any:
        return self.http.stream(wire.stream(self.sid), self.token, last)


def file_item(person: Person, data: bytes, name: str = "a.py") -> SealedItem:
    meta = File(mime="text/x-python", name=name)
    return person.post(meta, body=data, subkind="py", at_ms=now_ms())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def new_world(**settings: Any) -> World:
    """A world whose session begins now."""
    return World(now_ms=now_ms(), **settings)


def create(http: Http, world: World) -> None:
    answer = http.ask("POST", wire.SESSIONS, world.document)
    assert answer.status == 201, answer.body


def join(http: Http, person: Person) -> Member:
    path = wire.participants(person.world.keys.session_id)
    answer = http.ask("POST", path, person.join)
    assert answer.status == 201, answer.body
    return Member(http, person, answer.json["token"])


def until(condition: Callable[[], Any], what: str = "it") -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)
