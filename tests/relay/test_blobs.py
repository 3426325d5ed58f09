"""Blobs over HTTP: they go when everybody has them and come back when they are asked for."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from airlox.protocol import wire
from airlox.protocol.encoding import SessionId, new_item_id
from airlox.protocol.keys import Role
from airlox.relay.addresses import Origin
from support.clock import Clock
from support.relay import (
    Http,
    Member,
    RelayThread,
    create,
    file_item,
    join,
    new_world,
    now_ms,
    until,
)
from support.world import World


def test_a_blob_goes_when_everybody_has_it_and_comes_back_when_asked(
    http: Http, world: World, owner: Member, sender: Member
) -> None:
    observer = join(http, world.person(Role.OBSERVER))
    item = owner.say("to be delivered")
    sid, item_id = owner.sid, item.ref.id
    assert sender.post(wire.want(sid, item_id)).error == "409 present"
    assert sender.post(wire.ack(sid, item_id)).status == 204
    assert observer.get(wire.blob(sid, item_id)).status == 200
    assert observer.post(wire.ack(sid, item_id)).status == 204
    assert observer.post(wire.ack(sid, item_id)).status == 204
    assert observer.get(wire.blob(sid, item_id)).error == "410 evicted"
    assert owner.events()[-1] == {"seq": 4, "kind": "evicted", "data": {"item": item_id}}

    put = wire.blob(sid, item_id)
    assert owner.ask("PUT", put, item.blob).error == "404 not_found"  # nobody asked
    assert observer.post(wire.want(sid, item_id)).status == 200
    assert observer.post(wire.want(sid, item_id)).status == 200
    wants = [e for e in owner.events() if e["kind"] == "want"]
    assert [e["data"] for e in wants] == [{"item": item_id, "by": observer.public}]
    spoiled = item.blob[:-1] + bytes([item.blob[-1] ^ 1])
    for bad in (spoiled, item.blob[:-1], item.blob + b"x", b""):
        assert sender.ask("PUT", put, bad).error == "400 invalid_item"
    assert sender.ask("PUT", put, item.blob).status == 200
    assert sender.ask("PUT", put, item.blob).error == "409 present"
    assert owner.events()[-1]["kind"] == "reseeded"
    assert observer.get(put).body == item.blob
    assert observer.post(wire.ack(sid, item_id)).status == 204
    assert observer.get(put).error == "410 evicted"


def test_a_large_blob_comes_back_too(owner: Member, sender: Member) -> None:
    item = file_item(owner.person, os.urandom(100_000).hex().encode())
    assert owner.send(item).status == 201
    path = wire.blob(owner.sid, item.ref.id)
    assert sender.post(wire.ack(owner.sid, item.ref.id)).status == 204
    assert sender.get(path).error == "410 evicted"
    assert sender.post(wire.want(owner.sid, item.ref.id)).status == 200
    assert owner.ask("PUT", path, item.blob).status == 200
    assert sender.get(path).body == item.blob


def test_with_nobody_to_have_it_a_blob_stays(owner: Member) -> None:
    item = owner.say("alone")
    assert owner.post(wire.ack(owner.sid, item.ref.id)).status == 204
    assert owner.get(wire.blob(owner.sid, item.ref.id)).body == item.blob


def test_who_has_left_keeps_no_blob_alive(
    http: Http, world: World, owner: Member, sender: Member
) -> None:
    observer = join(http, world.person(Role.OBSERVER))
    item = owner.say("x")
    sender.post(wire.ack(owner.sid, item.ref.id))
    observer.post(wire.leave(owner.sid))
    until(lambda: owner.get(wire.blob(owner.sid, item.ref.id)).status == 410, "eviction")


def test_blobs_of_unknown_items_are_not_found(owner: Member) -> None:
    item_id = new_item_id(os.urandom(16))
    sid = owner.sid
    assert owner.get(wire.blob(sid, item_id)).error == "404 not_found"
    assert owner.post(wire.ack(sid, item_id)).error == "404 not_found"
    assert owner.post(wire.want(sid, item_id)).error == "404 not_found"
    assert owner.ask("PUT", wire.blob(sid, item_id), b"x").error == "404 not_found"


def test_wants_are_bounded() -> None:
    with RelayThread(max_wants=2) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        sender = join(http, world.person(Role.SENDER))
        items = [owner.say(f"{n}") for n in range(3)]
        for item in items:
            sender.post(wire.ack(owner.sid, item.ref.id))
        answers = [sender.post(wire.want(owner.sid, item.ref.id)) for item in items]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert answers[2].error == "429 too_many_wants"


def test_wants_that_lapsed_do_not_count() -> None:
    clock = Clock(now_ms())
    with RelayThread(max_wants=1, clock=clock) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        sender = join(http, world.person(Role.SENDER))
        first, second = owner.say("1"), owner.say("2")
        for item in (first, second):
            sender.post(wire.ack(owner.sid, item.ref.id))
        assert sender.post(wire.want(owner.sid, first.ref.id)).status == 200
        assert sender.post(wire.want(owner.sid, second.ref.id)).status == 429
        clock.turn(relay.config.want_lifetime_s + 1)
        assert sender.post(wire.want(owner.sid, second.ref.id)).status == 200
        assert owner.ask("PUT", wire.blob(owner.sid, first.ref.id), first.blob).status == 404
        assert owner.ask("PUT", wire.blob(owner.sid, second.ref.id), second.blob).status == 200


def test_two_who_bring_the_same_blob_bring_it_once(
    relay: RelayThread, owner: Member, sender: Member
) -> None:
    item = file_item(owner.person, os.urandom(100_000).hex().encode())
    owner.send(item)
    sender.post(wire.ack(owner.sid, item.ref.id))
    sender.post(wire.want(owner.sid, item.ref.id))

    async def bring_twice() -> None:
        session = relay.relay.core.session(owner.sid)
        who = session.participants[owner.person.public]
        await asyncio.gather(
            *(
                relay.relay.items.reseed(session, who, item.ref.id, WholeBody(item.blob))
                for _ in range(2)
            )
        )

    relay.call(bring_twice)
    assert [e["kind"] for e in owner.events()].count("reseeded") == 1
    assert sender.get(wire.blob(owner.sid, item.ref.id)).body == item.blob


class WholeBody:
    """The body of a request that has come already."""

    origin = Origin("192.0.2.1", True)

    def __init__(self, data: bytes) -> None:
        self._parts = [data, b""]

    async def read(self) -> bytes:
        return self._parts.pop(0)

    def expect(self, size: int) -> None:
        pass


def test_what_many_had_is_evicted_in_few_writes(
    relay: RelayThread, http: Http, world: World, owner: Member, sender: Member
) -> None:
    observer = join(http, world.person(Role.OBSERVER))
    items = [owner.say(f"{n}") for n in range(30)]
    for item in items:
        sender.post(wire.ack(owner.sid, item.ref.id))
    store = relay.relay.core.store
    writes: list[int] = []
    append = store.append

    def count(sid: SessionId, entries: list[bytes], *more: Any) -> Any:
        writes.append(len(entries))
        return append(sid, entries, *more)

    store.append = count
    try:
        observer.post(wire.leave(owner.sid))
        until(lambda: [e["kind"] for e in owner.events()].count("evicted") == 30, "eviction")
    finally:
        del store.append
    assert writes == [1, 30]
