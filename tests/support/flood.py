"""Somebody who asks a relay for everything at once, as fast as it goes, from one address.

An act does one thing and says whether the relay did it. `Flood` repeats acts until it is told to
stop, and counts.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from airlox.protocol import wire
from airlox.protocol.item import SealedItem
from airlox.protocol.keys import Role
from airlox.protocol.live import STDOUT, Piece
from support.crew import Crew, writer_for
from support.relay import Http, Member, new_world, now_ms

ADDRESS: Final = "127.0.0.2"
LARGE: Final = 200_000
SMALL: Final = 60_000
ANSWER_S: Final = 0.05
"""How long a line is waited for to say no."""
KEPT: Final = 200
"""Lines that are kept open; what is done after that was done too."""

Act = Callable[[], bool]


class Flood:
    """`with Flood(acts):` goes on until the block ends; each act has a thread."""

    def __init__(self, acts: Sequence[Act]) -> None:
        self.done = 0
        self.refused = 0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(act,), daemon=True) for act in acts
        ]

    @property
    def tries(self) -> int:
        return self.done + self.refused

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _run(self, act: Act) -> None:
        while not self._stop.is_set():
            try:
                did = act()
            except (OSError, http.client.HTTPException):
                did = False
            if did:
                self.done += 1
            else:
                self.refused += 1


class Flooder:
    """The acts of one participant, and the lines it keeps open."""

    def __init__(self, url: str, member: Member) -> None:
        self.http = Http(url, ADDRESS)
        self.member = Member(self.http, member.person, member.token)
        self.lines: list[socket.socket] = []
        self._connections: list[http.client.HTTPConnection] = []

    def close(self) -> None:
        for line in self.lines:
            line.close()
        for connection in self._connections:
            connection.close()

    # ── what is over when it was answered ────────────────────────────────────────────────────

    def posts(self) -> Act:
        kept = self._connection()
        path = wire.items(self.member.sid)

        def act() -> bool:
            frame = self.member.person.say("flood", at_ms=now_ms()).frame()
            with _closed_on_error(kept):
                return self.http.ask("POST", path, frame, self.member.token, kept).status == 201

        return act

    def output(self, crew: Crew, job: SealedItem) -> Act:
        """Segments of a job's live output."""
        kept = self._connection()
        path = wire.job_output(crew.sid, job.ref.id)
        writers = [writer_for(crew, self.member, job)]

        def act() -> bool:
            frame, after = writers[0].write([Piece(STDOUT, b"x" * 30_000)])
            with _closed_on_error(kept):
                answer = self.http.ask("POST", path, frame, self.member.token, kept)
            writers[0] = after
            return answer.status == 204

        return act

    def joins(self) -> Act:
        world, path = self.member.person.world, wire.participants(self.member.sid)
        return lambda: self.http.ask("POST", path, world.person(Role.SENDER).join).status == 201

    def creates(self) -> Act:
        return lambda: self.http.ask("POST", wire.SESSIONS, new_world().document).status == 201

    def _connection(self) -> http.client.HTTPConnection:
        self._connections.append(made := self.http.connect())
        return made

    # ── what stays open ──────────────────────────────────────────────────────────────────────

    def idle_connections(self) -> Act:
        return lambda: self._keep(self.http.line())

    def heads_without_end(self) -> Act:
        return lambda: self._begin(b"GET /v1/health HTTP/1.1\r\nx: ")

    def streams(self) -> Act:
        head = self._head("GET", wire.stream(self.member.sid))
        return lambda: self._begin(head, b"HTTP/1.1 200")

    def downloads(self, item: str) -> Act:
        """Large ones of which nothing is read."""
        head = self._head("GET", wire.blob(self.member.sid, item))
        return lambda: self._begin(head, b"HTTP/1.1 200")

    def uploads(self, size: int) -> Act:
        """Some that stop half way."""
        frame = self.member.person.say("x" * size, at_ms=now_ms()).frame()
        path = wire.items(self.member.sid)
        head = self._head("POST", path, f"content-length: {len(frame)}")
        return lambda: self._begin(head + frame[: size // 2])

    def _head(self, method: str, path: str, *headers: str) -> bytes:
        token = f"authorization: Bearer {self.member.token}"
        return "\r\n".join(
            [f"{method} {path} HTTP/1.1", "host: x", token, *headers, "", ""]
        ).encode()

    def _begin(self, data: bytes, taken: bytes | None = None) -> bool:
        line = self.http.line(receive_bytes=4096)
        with _closed_on_error(line):
            line.sendall(data)
        return self._keep(line, taken)

    def _keep(self, line: socket.socket, taken: bytes | None = None) -> bool:
        """Keeps a line on which the relay says `taken`, or nothing yet."""
        line.settimeout(ANSWER_S)
        said = None
        with _closed_on_error(line), contextlib.suppress(TimeoutError):
            said = line.recv(12)
        if said != taken or len(self.lines) >= KEPT:
            line.close()
        else:
            self.lines.append(line)
        return said == taken


@contextlib.contextmanager
def _closed_on_error(line: socket.socket | http.client.HTTPConnection) -> Iterator[None]:
    """A connection of http.client begins anew with its next request."""
    try:
        yield
    except (OSError, http.client.HTTPException):
        line.close()
        raise
