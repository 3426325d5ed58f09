"""A relay whose limits are met: a crew that meets them, and a stranger who must not notice."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from airlox.protocol import wire
from airlox.protocol.keys import Role
from support.clock import Clock
from support.crew import Crew
from support.relay import Answer, Http, Member, RelayThread, create, join, new_world, now_ms, until
from support.world import World


class Scene:
    """A relay with a crew that meets a limit, and the owner of another session, who must not."""

    def __init__(self, relay: RelayThread, clock: Clock, held: ExitStack) -> None:
        self.relay = relay
        self.clock = clock
        self.held = held
        self.http = Http(relay.url)
        self.crew = Crew(relay, full=True)
        self.owner, self.sender, self.sid = self.crew.owner, self.crew.sender, self.crew.sid
        other = new_world()
        create(self.http, other)
        self.stranger = join(self.http, other.person(Role.OWNER))

    def create(self, world: World | None = None, **headers: str) -> Answer:
        document = (world or new_world()).document
        return self.http.ask("POST", wire.SESSIONS, document, connection=None, **headers)

    def join(self, role: Role = Role.SENDER, **headers: str) -> Answer:
        join_of = self.crew.world.person(role).join
        path = wire.participants(self.sid)
        return self.http.ask("POST", path, join_of, connection=None, **headers)

    def text(self, member: Member, text: str = "x") -> Answer:
        return member.send(member.person.say(text, at_ms=now_ms()))

    def stream(self, member: Member, **headers: str) -> None:
        """Opens one that stays open."""
        opened = member.http.connect()
        self.held.callback(opened.close)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        authorization = {"authorization": f"Bearer {member.token}"}
        opened.request("GET", wire.stream(member.sid), headers=authorization | named)
        answer = opened.getresponse()
        self.held.callback(answer.close)
        assert answer.status == 200

    def no_stream(self, member: Member, **headers: str) -> Answer:
        """Of a stream that is refused."""
        return member.ask("GET", wire.stream(member.sid), **headers)

    def half(self, member: Member, *lines: str) -> None:
        """A large upload that stops half way, and holds its place."""
        self.unfinished(member, 120_000, "_transfers", "all", *lines)

    def unfinished(
        self, member: Member, size: int, gate: str, holder: str, *lines: str
    ) -> socket.socket:
        """A post that stops half way; when it has its place in a gate."""

        def held_now() -> int:
            held: int = getattr(self.relay.relay.core.quotas, gate).held(0, holder)
            return held

        before = held_now()
        frame = member.person.say("x" * size, at_ms=now_ms()).frame()
        line = socket.create_connection((self.http.host, self.http.port), timeout=60)
        self.held.callback(line.close)
        head = [
            f"POST {wire.items(member.sid)} HTTP/1.1",
            "host: x",
            f"authorization: Bearer {member.token}",
            f"content-length: {len(frame)}",
            *lines,
        ]
        line.sendall("\r\n".join([*head, "", ""]).encode() + frame[: len(frame) // 2])
        until(lambda: held_now() > before, "the upload")
        return line

    def let_go(self) -> None:
        """Ends whatever is held."""
        self.held.close()
        core = self.relay.relay.core
        session = core.session(self.sid)
        until(lambda: not (core.quotas._transfers.held(0, "all") or core.hub.count))
        until(lambda: not session.incoming_bytes)


def large_of(member: Member, **headers: str) -> Answer:
    """Of an upload that goes to a file of its own."""
    item = member.person.say("x" * 120_000, at_ms=now_ms())
    return member.post(wire.items(member.sid), item.frame(), **headers)
