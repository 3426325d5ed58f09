"""A disk that becomes read-only under a living relay, runner or client.

Each says so and acknowledges nothing that it did not keep; once the disk is mended and the program
started again, everything that was acknowledged is there and the rest can be done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.protocol import wire
from airlox.protocol.keys import Role
from airlox.protocol.payload import File
from support.frail_disk import FrailDisk, frail_disk
from support.machines import RelayProgram
from support.relay import Answer, Http, Member, create, join, new_world, now_ms


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FrailDisk]:
    with frail_disk(tmp_path / "frail") as made:
        yield made


# -- the relay --------------------------------------------------------------------------------


def large(member: Member) -> Answer:
    """A file that goes to a blob file of its own."""
    item = member.person.post(
        File(mime="text/x-python", name="f.py"), body=b"#" * 300_000, subkind="py", at_ms=now_ms()
    )
    return member.send(item)


def texts(member: Member) -> list[str]:
    return [e["data"]["envelope"] for e in member.events() if e["kind"] == "item"]


def test_a_relay_refuses_what_it_cannot_keep_and_goes_on_reading(disk: FrailDisk) -> None:
    settings = {"min_free_bytes": 1 << 20, "journal_segment_age_s": 1}
    with RelayProgram(disk.mount / "data", **settings) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        kept = [owner.say(f"before {n}") for n in range(5)]
        assert large(owner).status == 201
        held = texts(owner)

        disk.break_down()
        refused = [owner.person.say(f"after {n}", at_ms=now_ms()) for n in range(3)]
        answers = [owner.send(item) for item in refused]
        answers += [
            large(owner),
            http.ask("POST", wire.SESSIONS, new_world().document),
            owner.post(wire.revoke(owner.sid, "sender")),
            owner.post(wire.close(owner.sid)),
        ]
        for answer in answers:
            assert answer.error == "503 busy"
            assert "disk failed" in answer.json["message"]

        # Reading goes on, and so does every stream; of what was refused nobody hears.
        assert texts(owner) == held
        for item in kept:
            assert owner.get(wire.blob(owner.sid, item.ref.id)).body == item.blob
        with owner.stream() as events:
            seen = [events.until("item").data for _ in held]
        assert [text for text in held if any(json.dumps(text) in data for data in seen)] == held
        assert http.ask("GET", wire.HEALTH).status == 200
        assert relay.stop() == 0

        disk.mend()
        relay.start()
        assert texts(owner) == held
        for item in refused:
            assert owner.send(item).status == 201
        assert texts(owner) == held + [item.envelope for item in refused]
        assert relay.stop() == 0
