"""A relay whose disk is full: it says so, keeps what it has, lives on, and takes more later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.protocol import wire
from airlox.protocol.keys import Role
from airlox.protocol.payload import File
from support.relay import Http, Member, RelayThread, create, join, new_world, now_ms, until
from support.small_disk import small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "3m") as mount:
        yield mount


def test_a_full_disk_is_507_and_nothing_is_lost(disk: Path) -> None:
    data = str(disk / "data")
    with RelayThread(data=data, journal_segment_age_s=1) as relay:
        http, world, other = Http(relay.url), new_world(), new_world()
        for each in (world, other):
            create(http, each)
        owner = join(http, world.person(Role.OWNER))
        filler = join(http, other.person(Role.OWNER))
        kept = [owner.say(f"before {n}") for n in range(5)]
        assert fill(filler, 300_000) == "507 full"
        assert fill(filler, 20_000) == "507 full"
        while (
            small := owner.send(item := owner.person.say("x" * 200, at_ms=now_ms()))
        ).status == 201:
            kept.append(item)
        assert small.error == "507 full"

        # Reading goes on, and so does every stream.
        assert texts(owner) == [item.envelope for item in kept]
        assert owner.get(wire.blob(owner.sid, kept[0].ref.id)).body == kept[0].blob
        with owner.stream() as events:
            assert events.next() is not None

        # The end of a session makes room; what was refused can then be posted.
        assert filler.post(wire.close(filler.sid)).status == 200
        until(lambda: owner.send(item).status == 201, "room")
        kept.append(item)
        assert texts(owner) == [each.envelope for each in kept]
    with RelayThread(data=data) as relay:
        owner.http = Http(relay.url)
        assert texts(owner) == [each.envelope for each in kept]
        for item in kept:
            assert owner.get(wire.blob(owner.sid, item.ref.id)).body == item.blob


def test_below_the_watermark_nothing_new_is_taken(disk: Path) -> None:
    with RelayThread(data=str(disk / "data"), min_free_bytes=1 << 20) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        sender = join(http, world.person(Role.SENDER))
        item = owner.say("before")
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(5 << 19))
        until(lambda: relay.relay.core.quotas.disk_is_full, "the watermark")
        assert owner.send(owner.person.say("x", at_ms=now_ms())).error == "507 full"
        assert http.ask("POST", wire.SESSIONS, new_world().document).error == "507 full"
        # What makes room, or ends something, still passes.
        assert sender.post(wire.ack(owner.sid, item.ref.id)).status == 204
        assert owner.post(wire.revoke(owner.sid, "sender")).status == 200
        ballast.unlink()
        until(lambda: not relay.relay.core.quotas.disk_is_full, "room")
        owner.say("after")


def fill(member: Member, size: int) -> str:
    """Posts files of a size until one is refused; gives the refusal."""
    for n in range(1000):
        meta = File(mime="text/x-python", name=f"f{n}.py")
        body = os.urandom(size // 2).hex().encode()
        answer = member.send(member.person.post(meta, body=body, subkind="py", at_ms=now_ms()))
        if answer.status != 201:
            return answer.error
    raise AssertionError("the disk never filled up")


def texts(member: Member) -> list[str]:
    return [e["data"]["envelope"] for e in member.events() if e["kind"] == "item"]
