"""A relay that leaves out, repeats, reorders, replays, forges and renumbers events: only what its
author signed gets into a session, each item once; what is missing is told, and is read as soon as
the relay comes to its senses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from airlox import Session
from airlox.protocol.keys import Role
from hostile.conftest import Scene
from support.lying import BLOB, EVENTS, STREAM, Call, LyingRelay, Told
from support.relay import Http, Member, join, new_world

TEXTS = ["one", "two", "three", "four"]


@pytest.fixture
def scene(scene: Scene) -> Scene:
    for text in TEXTS:
        scene.owner.send_text(text)
    return scene


def texts(session: Session) -> list[str | None]:
    return [item.text for item in session.items()]


def streamed(session: Session, timeout_s: float = 0.5) -> list[str | None]:
    return [item.text for item in session.stream(timeout_s, history=True)]


READERS = pytest.mark.parametrize("read", [texts, streamed])


def honest_again(scene: Scene) -> list[str | None]:
    """What the same participant reads of an honest relay, as a process that begins."""
    scene.liar.honest()
    return texts(scene.join("observer"))


def numbered(*numbers: int) -> Callable[[Told], bool]:
    return lambda told: told["seq"] in numbers


@READERS
def test_left_out(scene: Scene, read: Callable[[Session], list[str | None]]) -> None:
    victim = scene.join("observer")
    items = [record.seq for record in scene_records(scene)]
    scene.liar.tell = lambda told: [] if told["seq"] == items[1] else [told]
    assert read(victim) == ["one", "three", "four"]
    alarm, told = victim.warnings
    assert "does not show item" in alarm
    assert told == f"the relay left out its events {items[1]} to {items[1]}"
    assert honest_again(scene) == TEXTS


def scene_records(scene: Scene) -> list[Any]:
    scene.owner.sync()
    return [r for r in scene.owner.records() if r.item is not None and r.item.text in TEXTS]


@READERS
def test_repeated(scene: Scene, read: Callable[[Session], list[str | None]]) -> None:
    victim = scene.join("observer")
    scene.liar.tell = lambda told: [told, told, told]
    assert read(victim) == TEXTS
    assert list(victim.warnings) == []


def test_in_another_order(scene: Scene) -> None:
    victim = scene.join("observer")

    def backwards(call: Call) -> None:
        status, body = call.fetch()
        call.answer(status, {"events": json.loads(body)["events"][::-1]})

    scene.liar.lies[EVENTS] = backwards
    assert texts(victim) == []
    assert "left out" in victim.warnings[0]
    assert honest_again(scene) == TEXTS


def renumber(told: Told, by: int) -> Told:
    return {**told, "seq": told["seq"] + by}


@pytest.mark.parametrize("jump", [10, 20_000, 2**53])
def test_with_numbers_that_jump(scene: Scene, jump: int) -> None:
    victim = scene.join("observer")
    scene.liar.tell = lambda told: [told, renumber(told, jump)]
    assert texts(victim) in (TEXTS, [])
    assert any("left out" in text or "jumps" in text for text in victim.warnings)
    assert len(victim.warnings) <= 10
    assert honest_again(scene) == TEXTS


@pytest.mark.parametrize("cursor", ["", "0", "999999"])
def test_whatever_it_makes_of_the_cursor(scene: Scene, cursor: str) -> None:
    """Last-Event-ID is the client's word; a relay may begin anywhere."""
    victim = scene.join("observer")
    assert texts(victim) == TEXTS

    def begin_anywhere(call: Call) -> None:
        call.request.headers["last-event-id"] = cursor
        call.pass_on()

    scene.liar.lies[STREAM] = begin_anywhere
    assert streamed(victim) == TEXTS


class Strangers:
    """Another session on the same relay: all of it is well signed, and foreign."""

    def __init__(self, liar: LyingRelay) -> None:
        http, world = Http(liar.real_url), new_world()
        assert http.ask("POST", "/v1/sessions", world.document).status == 201
        self.member: Member = join(http, world.person(Role.SENDER))
        self.item = self.member.say("foreign")
        self.events = self.member.events()


def test_events_of_another_session(scene: Scene) -> None:
    victim = scene.join("observer")
    foreign = Strangers(scene.liar).events

    def mix(call: Call) -> None:
        status, body = call.fetch()
        mine = json.loads(body)["events"]
        mixed = [*mine, *(renumber(told, len(mine)) for told in foreign)]
        call.answer(status, {"events": mixed})

    scene.liar.lies[EVENTS] = mix
    assert texts(victim) == TEXTS
    assert {p.display_name for p in victim.participants(sync=False)} == {"owner", "victim"}
    assert sum("join was refused" in text for text in victim.warnings) == 1


def test_blobs_swapped(scene: Scene) -> None:
    victim = scene.join("observer")
    blobs = [r.envelope.id for r in scene_records(scene)]

    def swap(call: Call) -> None:
        path = call.request.path
        here = next((i for i, blob in enumerate(blobs) if blob in path), None)
        if here is not None:
            call.request = call.request._replace(path=path.replace(blobs[here], blobs[here - 1]))
        call.pass_on()

    scene.liar.lies[BLOB] = swap
    assert texts(victim) == []
    scene.liar.honest()
    assert texts(victim) == TEXTS


def add(scene: Scene, *events: dict[str, Any]) -> None:
    """Tell these events after all others."""

    def insert(call: Call) -> None:
        status, body = call.fetch()
        mine = json.loads(body)["events"]
        more = [{"seq": len(mine) + i, **event} for i, event in enumerate(events)]
        call.answer(status, {"events": [*mine, *more]})

    scene.liar.lies[EVENTS] = insert


def test_it_may_cut_off_whom_it_likes_and_says_so(scene: Scene) -> None:
    """Being there is all that a relay is trusted for: what was read stays readable."""
    victim = scene.join("observer")
    keys = [victim.participant_pub] * 5_000
    add(scene, {"kind": "revoked", "data": {"role": "observer", "participants": keys}})
    assert texts(victim) == TEXTS
    assert "cut off" in str(victim.closed)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"envelope": None},
        {"envelope": "x" * 100_000},
        {"envelope": "[" * 10_000},
        {"signed_join": "{}"},
        {"role": ["x"], "participants": {"a": 1}},
        {"item": "../../etc", "by": "\x1b[2J"},
        {"job": "x", "state": 7, "runner": [], "reason": {}},
    ],
)
def test_nonsense_of_every_kind(scene: Scene, data: dict[str, Any]) -> None:
    victim = scene.join("observer")
    kinds = ["item", "participant", "left", "revoked", "evicted", "want", "reseeded", "job", "x"]

    add(scene, *({"kind": kind, "data": data} for kind in kinds))
    assert texts(victim) == TEXTS
    assert victim.closed is None
    assert all(text.isprintable() for text in victim.warnings)


def test_more_joins_than_fit(scene: Scene) -> None:
    """Joins of strangers without end are neither kept nor each told."""
    victim = scene.join("observer")
    joins = [os.urandom(8).hex() * 500 for _ in range(2_000)]
    add(scene, *({"kind": "participant", "data": {"signed_join": join}} for join in joins))
    assert texts(victim) == TEXTS
    assert len(victim.warnings) == 10
    assert len(victim.participants(sync=False)) == 2
