"""One address floods a real relay that has few descriptors; nobody else is kept from anything.

The one that floods is a participant, so honest people share a session with it, and others do not.
What they ask is done at the first try: counted, not timed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from airlox.protocol import wire
from airlox.protocol.keys import Role
from airlox.protocol.live import STDOUT, Piece
from support.crew import Crew, writer_for
from support.flood import LARGE, SMALL, Act, Flood, Flooder
from support.relay import Http, Member, create, join, new_world, now_ms, until
from support.server import ServerProcess, server

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs 127.0.0.2")

HONEST = "127.0.0.3"
OPEN_FILES = 256
POSTS = 25
TRIES = 100
CONNECTIONS = 4


class Town:
    """A relay, the crew in whose session somebody floods, and another crew."""

    def __init__(self, relay: ServerProcess) -> None:
        self.http = Http(relay.url, HONEST)
        self.crew, self.other = (Crew(relay, source=HONEST, full=True) for _ in range(2))
        self.blob = large(self.crew.owner)
        self.flooder = Flooder(relay.url, join(self.http, self.crew.world.person(Role.SENDER)))
        self.runner = Flooder(relay.url, self.crew.runner())
        self.job = self.crew.job()
        assert self.crew.submit(self.job).status == 201
        assert self.crew.claim(self.runner.member, self.job).status == 200


def large(member: Member) -> str:
    """Uploads a large text; its id."""
    item = member.person.say("x" * 500_000, at_ms=now_ms())
    answer = member.send(item)
    assert answer.status == 201, answer.body
    return item.ref.id


@pytest.fixture
def town() -> Iterator[Town]:
    options = ("--ephemeral", "--min-free-bytes", "0", "--creates-per-minute", "100")
    with server(*options, open_files=OPEN_FILES) as relay:
        town = Town(relay)
        with closing(town.flooder), closing(town.runner):
            yield town


FLOODS: dict[str, Callable[[Town], Act]] = {
    "posts": lambda town: town.flooder.posts(),
    "joins": lambda town: town.flooder.joins(),
    "creates": lambda town: town.flooder.creates(),
    "streams": lambda town: town.flooder.streams(),
    "uploads": lambda town: town.flooder.uploads(LARGE),
    "posts half done": lambda town: town.flooder.uploads(SMALL),
    "downloads": lambda town: town.flooder.downloads(town.blob),
    "idle connections": lambda town: town.flooder.idle_connections(),
    "heads without end": lambda town: town.flooder.heads_without_end(),
    "live output": lambda town: town.runner.output(town.crew, town.job),
}
"""Acts by name; each goes on in a few threads."""
ONE_AFTER_ANOTHER = ("live output",)
TAKEN_AS_THEY_COME = ("posts", "live output")


@pytest.mark.parametrize("kind", [*FLOODS, "everything"])
def test_one_that_floods_starves_nobody(town: Town, kind: str) -> None:
    """P-REL-8."""
    kinds = list(FLOODS) if kind == "everything" else [kind]
    acts = [
        FLOODS[each](town)
        for each in kinds
        for _ in range(1 if each in ONE_AFTER_ANOTHER or kind == "everything" else CONNECTIONS)
    ]
    with Flood(acts) as flood:
        until(lambda: flood.tries > TRIES, "the flood")
        for crew in (town.crew, town.other):
            everything_works(town, crew)
        seen = flood.tries
        until(lambda: flood.tries > seen, "more of the flood")
        if kind not in TAKEN_AS_THEY_COME:
            until(lambda: flood.refused, "a refusal")


def everything_works(town: Town, crew: Crew) -> None:
    """What people do in a session, each of it at the first try."""
    observer = join(town.http, crew.world.person(Role.OBSERVER))
    last = len(observer.events()) - 1
    with observer.stream(last) as events:
        said = [crew.sender.say(f"post {n}") for n in range(POSTS)]
        envelopes = {item.envelope for item in said}
        while envelopes:
            envelopes.discard(json.loads(events.until("item").data)["envelope"])
    item = large(crew.owner)
    assert observer.get(wire.blob(crew.sid, item)).status == 200
    assert observer.post(wire.ack(crew.sid, item)).status == 204
    other = new_world()
    create(town.http, other)
    join(town.http, other.person(Role.OWNER)).say("a new session")
    output_arrives(crew)


def output_arrives(crew: Crew) -> None:
    runner, job = crew.runner("second", labels=("second",)), crew.job()
    assert crew.submit(job, '{"labels":["second"],"type":"labels"}').status == 201
    assert crew.claim(runner, job).status == 200
    writer = writer_for(crew, runner, job)
    path = wire.job_output(crew.sid, job.ref.id)
    with crew.http.stream(wire.job_stream(crew.sid, job.ref.id), crew.sender.token) as stream:
        stream.until("job")
        for _ in range(5):
            frame, writer = writer.write([Piece(STDOUT, b"line\n")])
            assert runner.post(path, frame).status == 204
            stream.until("segment")
        assert runner.send(crew.result(runner, job)).status == 201
        stream.until("end")
