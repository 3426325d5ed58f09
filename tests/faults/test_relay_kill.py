"""A relay killed with `kill -9` during 1,000 posts: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import http.client
import itertools
import os
import random
import threading
from pathlib import Path

from airlox.protocol import wire
from airlox.protocol.item import SealedItem, parse_envelope
from airlox.protocol.keys import Role
from airlox.protocol.payload import File
from support.relay import Http, Member, create, join, new_world, now_ms
from support.server import ServerProcess, server

WRITERS = 5
POSTS_EACH = 200
KILLS = 4
GIVE_UP = 400


class Line:
    """The relay that runs at the moment, and how far the posts have come."""

    def __init__(self, data: str) -> None:
        # A small journal: the kills also hit checkpoints.
        self.options = ("--data", data, "--journal-segment-bytes", "64K")
        self.running = ServerProcess(*self.options)
        self.lock = threading.Lock()
        self.acknowledged = 0
        self.changed = threading.Condition()

    def restart(self) -> None:
        with self.lock:
            self.running.kill()
            self.running = ServerProcess(*self.options)

    def http(self) -> Http:
        with self.lock:
            return Http(self.running.url)

    def count(self) -> None:
        with self.changed:
            self.acknowledged += 1
            self.changed.notify_all()

    def wait_for(self, posts: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.acknowledged >= posts, 90)


class Writer(threading.Thread):
    """Posts its items one by one, each until it is acknowledged, always under the same id."""

    def __init__(self, line: Line, member: Member, seed: int) -> None:
        super().__init__(daemon=True)
        chance = random.Random(seed)
        self._line = line
        self._token = member.token
        self._items = [
            make_item(member, n, chance.choice((10, 300, 90_000) if n % 9 == 0 else (10, 300)))
            for n in range(POSTS_EACH)
        ]
        self._path = wire.items(member.sid)
        self.done: list[SealedItem] = []
        self.retries = 0
        self.refused: list[str] = []

    def run(self) -> None:
        for item in self._items:
            if not self._post(item):
                return
            self.done.append(item)
            self._line.count()

    def _post(self, item: SealedItem) -> bool:
        frame = item.frame()
        for attempt in itertools.count():
            try:
                answer = self._line.http().ask("POST", self._path, frame, self._token)
            except (OSError, http.client.HTTPException):
                self.retries += 1
                if attempt < GIVE_UP:
                    continue
                self.refused.append("the relay did not come back")
                return False
            if answer.status == 201:
                return True
            self.refused.append(answer.error)
            return False
        return False


def make_item(member: Member, number: int, size: int) -> SealedItem:
    meta = File(mime="text/x-python", name=f"f{number}.py")
    body = os.urandom(size).hex().encode()
    return member.person.post(meta, body=body, subkind="py", at_ms=now_ms())


def test_nothing_acknowledged_is_lost_and_nothing_comes_twice(tmp_path: Path) -> None:
    """P-REL-1, P-REL-2: over many kills."""
    data = str(tmp_path / "data")
    line = Line(data)
    try:
        world = new_world()
        create(line.http(), world)
        reader = join(line.http(), world.person(Role.OWNER))
        writers = [
            Writer(line, join(line.http(), world.person(Role.SENDER)), seed)
            for seed in range(WRITERS)
        ]
        for writer in writers:
            writer.start()
        total = WRITERS * POSTS_EACH
        for kill in range(1, KILLS + 1):
            line.wait_for(total * kill // (KILLS + 1))
            line.restart()
        for writer in writers:
            writer.join(90)
            assert not writer.is_alive()
            assert writer.refused == []
        line.restart()
        assert sum(writer.retries for writer in writers) > 0, "no kill hit a post"
        check_all_there(line.http(), reader, [item for writer in writers for item in writer.done])
    finally:
        line.running.kill()


def check_all_there(http: Http, reader: Member, items: list[SealedItem]) -> None:
    assert len(items) == WRITERS * POSTS_EACH
    reader.http = http
    events = reader.events()
    assert [event["seq"] for event in events] == list(range(len(events)))
    posted = [e["data"]["envelope"] for e in events if e["kind"] == "item"]
    assert sorted(posted) == sorted(item.envelope for item in items)
    connection = http.connect()
    try:
        for item in items:
            path = wire.blob(reader.sid, item.ref.id)
            answer = http.ask("GET", path, None, reader.token, connection)
            assert answer.body == item.blob, parse_envelope(item.envelope).id
    finally:
        connection.close()


def test_a_kill_leaves_no_file_of_what_had_ended(tmp_path: Path) -> None:
    """P-REL-4: after its end a session leaves nothing behind."""
    data = tmp_path / "data"
    with server("--data", str(data)) as running:
        http, world = Http(running.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        large = make_item(owner, 0, 90_000)
        owner.send(large)
        assert owner.post(wire.close(owner.sid)).status == 200
        running.kill()
    with server("--data", str(data)) as running:
        answer = Http(running.url).ask("GET", wire.session(owner.sid))
        assert answer.error == "404 not_found"
        assert list((data / "sessions").iterdir()) == []
        assert list((data / "tmp").iterdir()) == []
