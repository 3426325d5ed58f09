"""Packs of a tree: who may store and read them, and that they go with their job."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from airlox.protocol import wire
from airlox.protocol.digest import hash_of
from airlox.protocol.encoding import new_item_id
from airlox.protocol.keys import Role
from support.clock import Clock
from support.crew import Crew
from support.relay import Answer, Http, Member, RelayThread, join, now_ms, until

SMALL, LARGE = os.urandom(100), os.urandom(300_000)


@pytest.fixture(params=["memory", "disk"])
def relay(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RelayThread]:
    data = None if request.param == "memory" else str(tmp_path / "data")
    with RelayThread(data=data) as running:
        yield running


def put(member: Member, job: str, number: int, data: bytes) -> Answer:
    return member.ask("PUT", wire.pack(member.sid, job, number), data)


def test_packs_before_and_after_the_job(relay: RelayThread) -> None:
    crew = Crew(relay, full=True)
    runner, sender = crew.runner(), crew.sender
    item = crew.job()
    job = item.ref.id
    assert put(sender, job, 0, SMALL).status == 201
    assert put(sender, job, 1, LARGE).status == 201
    assert runner.get(wire.packs(crew.sid, job)).error == "403 forbidden"
    with crew.http.stream(wire.runner_stream(crew.sid), runner.token) as stream:
        assert crew.submit(item).status == 201
        stream.until("job_assigned")
        assert put(sender, job, 7, SMALL).status == 201
        assert json.loads(stream.until("pack").data) == {"job": job, "n": 7}
    listed = runner.get(wire.packs(crew.sid, job)).json["packs"]
    assert listed == [
        {"n": 0, "size": 100, "sha256": hash_of(SMALL)},
        {"n": 1, "size": 300_000, "sha256": hash_of(LARGE)},
        {"n": 7, "size": 100, "sha256": hash_of(SMALL)},
    ]
    for reader in (runner, sender):
        assert reader.get(wire.pack(crew.sid, job, 1)).body == LARGE
        assert reader.get(wire.pack(crew.sid, job, 0)).body == SMALL
    assert runner.get(wire.pack(crew.sid, job, 2)).error == "404 not_found"
    assert runner.get(wire.packs(crew.sid, job) + "/x").error == "400 bad_request"


def test_packs_go_when_the_job_ends(relay: RelayThread) -> None:
    crew = Crew(relay, full=True)
    runner = crew.runner()
    item = crew.job()
    for number, data in enumerate((SMALL, LARGE)):
        put(crew.sender, item.ref.id, number, data)
    crew.submit(item)
    crew.claim(runner, item)
    session = relay.relay.core.session(crew.sid)
    held = session.sealed_bytes
    assert runner.send(crew.result(runner, item)).status == 201
    assert crew.sender.get(wire.packs(crew.sid, item.ref.id)).json == {"packs": []}
    assert session.sealed_bytes < held - len(LARGE) + 1000  # less the packs, more the result
    assert put(crew.sender, item.ref.id, 2, SMALL).error == "410 gone"
    if relay.config.data:
        blobs = Path(relay.config.data, "sessions", crew.sid, "blobs")
        until(lambda: len(LARGE) not in sizes_in(blobs), "deletion")


def sizes_in(folder: Path) -> set[int]:
    """Of the files that are there; one may go while it is looked at."""
    sizes = set()
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            sizes.add(path.stat().st_size)
    return sizes


def test_a_number_keeps_its_bytes(relay: RelayThread) -> None:
    crew = Crew(relay, full=True)
    job = new_item_id(os.urandom(16))
    for data, other in ((SMALL, bytes(100)), (LARGE, bytes(300_000))):
        number = len(data)
        number = 0 if data is SMALL else 1
        assert put(crew.sender, job, number, data).status == 201
        assert put(crew.sender, job, number, data).status == 200
        assert put(crew.sender, job, number, other).error == "409 duplicate"
        assert crew.sender.get(wire.pack(crew.sid, job, number)).body == data


def test_an_id_belongs_to_whoever_stored_first(relay: RelayThread) -> None:
    crew = Crew(relay, full=True)
    crew.runner()
    other = join(crew.http, crew.world.person(Role.SENDER))
    item = crew.job()
    job = item.ref.id
    assert put(other, job, 0, SMALL).status == 201
    assert put(crew.sender, job, 1, SMALL).error == "409 duplicate"
    assert crew.submit(item).error == "409 duplicate"
    assert crew.sender.get(wire.packs(crew.sid, job)).error == "403 forbidden"
    text = crew.sender.say("x")
    assert put(crew.sender, text.ref.id, 0, SMALL).error == "409 duplicate"
    mine = crew.job()
    crew.submit(mine)
    assert put(other, mine.ref.id, 0, SMALL).error == "403 forbidden"


def test_who_may_not_send_trees(relay: RelayThread) -> None:
    crew = Crew(relay, full=True)
    job = new_item_id(os.urandom(16))
    observer = join(crew.http, crew.world.person(Role.OBSERVER))
    for member in (observer, crew.runner()):
        assert put(member, job, 0, SMALL).error == "403 forbidden"
    floor = Crew(relay)
    assert put(floor.sender, job, 0, SMALL).error == "403 policy"


def test_bounds(relay: RelayThread) -> None:
    crew = Crew(relay, full=True)
    job = new_item_id(os.urandom(16))
    assert put(crew.sender, job, 5000, SMALL).error == "413 too_large"
    assert put(crew.sender, job, 0, b"").error == "413 too_large"
    assert put(crew.sender, job, 0, bytes(28)).error == "413 too_large"
    assert put(crew.sender, job, 0, bytes((16 << 20) + 29)).error == "413 too_large"
    assert put(crew.sender, "short", 0, SMALL).error == "400 bad_request"
    unsized = crew.sender.ask("PUT", wire.pack(crew.sid, job, 0), iter([SMALL]))
    assert unsized.error == "400 bad_request"
    for _ in range(4):
        assert put(crew.sender, new_item_id(os.urandom(16)), 0, SMALL).status == 201
    fifth = put(crew.sender, new_item_id(os.urandom(16)), 0, SMALL)
    assert fifth.error == "429 rate_limited"


def test_packs_without_a_job_are_dropped_after_a_while() -> None:
    clock = Clock(now_ms())
    with RelayThread(clock=clock) as relay:
        crew = Crew(relay, full=True)
        job = new_item_id(os.urandom(16))
        put(crew.sender, job, 0, LARGE)
        clock.turn(601)
        until(lambda: not relay.relay.core.session(crew.sid).pack_sets, "dropping")
        assert crew.sender.get(wire.packs(crew.sid, job)).error == "403 forbidden"


def test_packs_survive_a_restart_and_strays_do_not(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with RelayThread(data=data) as relay:
        crew = Crew(relay, full=True)
        item = crew.job()
        put(crew.sender, item.ref.id, 0, SMALL)
        put(crew.sender, item.ref.id, 1, LARGE)
        stray = Path(data, "sessions", crew.sid, "blobs", b"stray".hex())
        stray.write_bytes(b"left by a crash")
    with RelayThread(data=data) as relay:
        crew.sender.http = Http(relay.url)
        assert crew.sender.get(wire.pack(crew.sid, item.ref.id, 0)).body == SMALL
        assert crew.sender.get(wire.pack(crew.sid, item.ref.id, 1)).body == LARGE
        assert not stray.exists()
