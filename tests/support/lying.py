"""A relay that lies: an HTTP server in front of a real relay, which passes everything on but for
what a test has it lie about.

So every test begins with honest traffic: sessions, joins, items and jobs are real ones, and the
lie is the only thing amiss. A lie is put at an endpoint (`relay.lies[EVENTS] = stall`), or at the
events of both `/events` and the session's stream (`relay.tell = function of an event`).
"""

from __future__ import annotations

import gzip
import json
import re
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from airlox.protocol.sse import SseParser, encode_event
from support.scripted import Peer, Request, Scripted

TIMEOUT_S = 60.0
READ_BYTES = 65536

_ID = r"/v1/sessions/[^/]+"
MANIFEST: Final = rf"GET {_ID}"
EVENTS: Final = rf"GET {_ID}/events(\?.*)?"
STREAM: Final = rf"GET {_ID}/stream"
BLOB: Final = rf"GET {_ID}/items/[^/]+/blob"
ACK: Final = rf"POST {_ID}/items/[^/]+/ack"
DELIVERY: Final = rf"GET {_ID}/delivery\?.*"
RUNNERS: Final = rf"GET {_ID}/runners"
BEAT: Final = rf"POST {_ID}/runners/me/heartbeat"
ASSIGNMENTS: Final = rf"GET {_ID}/runners/me/stream"
JOB: Final = rf"GET {_ID}/jobs/[^/]+"
CLAIM: Final = rf"POST {_ID}/jobs/[^/]+/claim"
JOB_STREAM: Final = rf"GET {_ID}/jobs/[^/]+/stream(\?.*)?"
JOB_NEWS: Final = rf"GET {_ID}/jobs/[^/]+/output(\?.*)?"
PACK: Final = rf"GET {_ID}/jobs/[^/]+/packs/[0-9]+"
LACK: Final = rf"POST {_ID}/jobs/[^/]+/lack"
AUDIT: Final = rf"GET {_ID}/audit\.jsonl"

Told = dict[str, Any]
"""An event: `seq`, `kind`, `data`."""


class Call:
    """One request of a client, and the means to answer it."""

    def __init__(self, relay: LyingRelay, peer: Peer, request: Request) -> None:
        self.relay = relay
        self.peer = peer
        self.request = request

    def fetch(self) -> tuple[int, bytes]:
        """Status and whole body of what the real relay answers."""
        with self._asked() as server:
            said = b""
            while data := server.recv(READ_BYTES):
                said += data
        head, _, body = said.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), body

    def pass_on(self) -> None:
        """The real relay's answer, as it comes."""
        with self._asked() as server:
            for data in _coming(server, self.peer.sock):
                self.peer.send(data)

    def pass_on_events(self, change: Callable[[Told], list[Told]]) -> None:
        """The real relay's stream, each event as `change` has it."""
        parser, held = SseParser(), b""
        self.start_stream()
        with self._asked() as server:
            for data in _coming(server, self.peer.sock):
                events, held = _whole_chunks(held + data)
                for event in parser.feed(events):
                    seq = None if event.id is None else int(event.id)
                    told = {"seq": seq, "kind": event.event, "data": json.loads(event.data)}
                    self.tell(*change(told))

    def tell(self, *events: Told) -> None:
        """Events on a stream."""
        for event in events:
            self.peer.send(encode_event(event["seq"], event["kind"], json.dumps(event["data"])))

    def start_stream(self) -> None:
        """The head of a stream whose end is that of the connection, and its first comment."""
        self.send_raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: here\n\n")

    def send_raw(self, data: bytes) -> None:
        self.peer.send(data)

    def answer(self, status: int, body: object = b"", **headers: str) -> None:
        self.peer.answer(status, body, **headers)

    def _asked(self) -> socket.socket:
        """A connection to the real relay on which this request was made.

        It is HTTP/1.0, so that the answer ends with the connection, without chunks.
        """
        parts = urlsplit(self.relay.real_url)
        server = socket.create_connection((parts.hostname or "", parts.port or 0), TIMEOUT_S)
        headers = {**self.request.headers, "connection": "close"}
        lines = [f"{self.request.method} {self.request.path} HTTP/1.0"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        server.sendall("\r\n".join([*lines, "", ""]).encode() + self.request.body)
        return server


Lie = Callable[[Call], None]


class LyingRelay(Scripted):
    """`with LyingRelay(relay.url) as liar:`; clients are given `liar.base_url`."""

    def __init__(self, real_url: str) -> None:
        super().__init__(self._serve_peer)
        self.real_url = real_url
        self.lies: dict[str, Lie] = {}
        """By endpoint, the constants of this module."""
        self.tell: Callable[[Told], list[Told]] | None = None
        """What becomes of each event of the session, wherever it is told."""
        self.released = threading.Event()
        self.lied = threading.Event()
        """Some lie was told."""
        self.requests: list[str] = []

    def __enter__(self) -> LyingRelay:
        super().__enter__()
        return self

    def link(self, link: str) -> str:
        """An invite of the real relay, as one that leads here."""
        return link.replace(self.real_url, self.base_url)

    def asked(self, endpoint: str) -> int:
        """How often an endpoint was asked."""
        return sum(re.fullmatch(endpoint, request) is not None for request in self.requests)

    def honest(self) -> None:
        """From now on the truth; lies that go on end."""
        self.lies, self.tell = {}, None
        self.released.set()

    def _serve_peer(self, peer: Peer) -> None:
        request = peer.read()
        if request is None:
            return
        call = Call(self, peer, request)
        asked = f"{request.method} {request.path}"
        self.requests.append(asked)
        for endpoint, lie in self.lies.items():
            if re.fullmatch(endpoint, asked):
                self.lied.set()
                lie(call)
                return
        if self.tell is not None and re.fullmatch(EVENTS, asked):
            edit_events(self.tell)(call)
        elif self.tell is not None and re.fullmatch(STREAM, asked):
            call.pass_on_events(self.tell)
        else:
            call.pass_on()


def edit_events(change: Callable[[Told], list[Told]]) -> Lie:
    """The list of events, each as `change` has it."""

    def lie(call: Call) -> None:
        status, body = call.fetch()
        if status == 200:
            events = json.loads(body)["events"]
            body = json.dumps({"events": [told for e in events for told in change(e)]}).encode()
        call.answer(status, body)

    return lie


def say(status: int, body: object = b"", **headers: str) -> Lie:
    """The same answer, whatever was asked."""
    return lambda call: call.answer(status, body, **headers)


def raw(*pieces: bytes) -> Lie:
    """These bytes, whole or not, and then the end of the connection."""

    def lie(call: Call) -> None:
        for piece in pieces:
            call.send_raw(piece)

    return lie


def stall(call: Call) -> None:
    """Take the request and say nothing."""
    call.peer.gone()


def drip(call: Call) -> None:
    """Promise a long answer and give a byte of it now and then."""
    call.send_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not call.relay.released.wait(0.01):
        call.send_raw(b" ")


def drip_head(call: Call) -> None:
    """Never come to the end of the answer's head."""
    call.send_raw(b"HTTP/1.1 200 OK\r\n")
    while not call.relay.released.wait(0.01):
        call.send_raw(b"X")


def without_end(head: bytes, piece: bytes) -> Lie:
    """`head`, and then `piece` as often as it is taken; with pauses for the rest of the test."""

    def lie(call: Call) -> None:
        call.send_raw(head)
        while not call.relay.released.wait(0.001):
            call.send_raw(piece)

    return lie


STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: here\n\n"
CHUNKED_HEAD: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY_HEAD: Final = b"HTTP/1.1 200 OK\r\n\r\n"

_ZEROS = bytes(256 * 1024)

FLOODS: Final[dict[str, Lie]] = {
    "body": without_end(BODY_HEAD, _ZEROS),
    "one chunk": without_end(CHUNKED_HEAD + b"fffffff\r\n", _ZEROS),
    "tiny chunks": without_end(CHUNKED_HEAD, b"1\r\n \r\n" * 10_000),
    "long size lines": without_end(CHUNKED_HEAD, b"1;" + b"x" * 60_000 + b"\r\n \r\n"),
    "trailers": without_end(CHUNKED_HEAD + b"0\r\n", b"x: y\r\n" * 10_000),
    "a line of the head": without_end(b"HTTP/1.1 200 OK\r\nX: ", _ZEROS),
    "continue": without_end(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
}
"""Answers that never end, for any endpoint."""

STREAM_FLOODS: Final[dict[str, Lie]] = {
    "a line": without_end(STREAM_HEAD, b"x" * 65536),
    "data": without_end(STREAM_HEAD, b"data: " + b"x" * 65536 + b"\n"),
    "empty data": without_end(STREAM_HEAD, b"data\n" * 10_000),
    "comments": without_end(STREAM_HEAD, b": still here\n\n" * 5_000),
    "ids": without_end(STREAM_HEAD, b"id: 5\n" * 10_000),
    "events of one number": without_end(STREAM_HEAD, b'id: 1\nevent: x\ndata: {"a":"b"}\n\n' * 999),
    "events without a number": without_end(STREAM_HEAD, b"data: {}\n\n" * 5_000),
}
"""Streams that never end and never say anything."""


def bombs() -> dict[str, bytes]:
    """Bodies that are small on the wire and large in the memory of who is careless."""
    many = 32 * 1024 * 1024 // 2 - 100
    return {
        "numbers": b'{"events":[' + b",".join([b"0"]) + b",0" * (many - 10) + b"]}",
        "lists": b'{"events":[{"seq":0,"kind":"x","data":{"a":[' + b"[]," * 10_000_000 + b"0]}}]}",
        "depth": b'{"events":' + b"[" * 30_000_000,
        "objects": b'{"events":[' + b"{}," * 10_000_000 + b"{}]}",
    }


def gzip_bomb() -> bytes:
    """An answer that unpacks to 1 GiB."""
    packed = gzip.compress(bytes(1 << 20), 9) * 1024
    head = f"Content-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
    return b"HTTP/1.1 200 OK\r\n" + head.encode() + packed


NONSENSE: Final[dict[str, Lie]] = {
    "no http": raw(b"\0" * 300),
    "http of another kind": raw(b"HTTP/9.9 hello\r\n\r\n"),
    "shorter than it says": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}"),
    "a negative length": raw(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}"),
    "a huge length": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n{}"),
    "chunks that are none": raw(CHUNKED_HEAD, b"zz\r\nhello\r\n0\r\n\r\n"),
    "a chunk that is cut": raw(CHUNKED_HEAD, b"ff\r\nhello"),
    "a negative chunk": raw(CHUNKED_HEAD, b"-5\r\nhello\r\n0\r\n\r\n"),
    "not json": say(200, b"<html>"),
    "other json": say(200, b'[{"events":7}]'),
    "no unicode": say(200, b'{"events":"\xff"}'),
    "deep json": say(200, b"[" * 200_000),
    "empty": say(200, b""),
    "a redirect": say(302, b"", Location="http://127.0.0.1:1/"),
    "an error that is none": say(500, b"\x1b[2J" * 1000),
    "an error of 1 MB": say(500, b'{"error":"' + b"x" * 1_000_000 + b'"}'),
    "gzip": raw(gzip_bomb()),
}
"""Answers that no relay gives."""


def _coming(server: socket.socket, client: socket.socket) -> Iterator[bytes]:
    """What the real relay says, until its end or that of the client."""
    while True:
        ready, _, _ = select.select([server, client], [], [])
        if client in ready:
            return
        data = server.recv(READ_BYTES)
        if not data:
            return
        yield data


def _whole_chunks(held: bytes) -> tuple[bytes, bytes]:
    """What the complete chunks of an answer hold, its head passed over, and the bytes left."""
    if held.startswith(b"HTTP/"):
        head, found, rest = held.partition(b"\r\n\r\n")
        if not found:
            return b"", held
        assert b"200" in head.partition(b"\r\n")[0], head
        held = rest
    found_bytes = b""
    while True:
        size, found, rest = held.partition(b"\r\n")
        if not found or len(rest) < int(size, 16) + 2:
            return found_bytes, held
        found_bytes += rest[: int(size, 16)]
        held = rest[int(size, 16) + 2 :]
