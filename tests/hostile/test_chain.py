"""A relay that drops, moves, repeats or renumbers what people posted: whoever reads it is told of
which item. An honest relay is never called a liar."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airlox import Alarm, Session
from hostile.conftest import Scene
from support.lying import EVENTS, Call, Told, say

TEXTS = ["one", "two", "three", "four", "five"]


@pytest.fixture
def posted(scene: Scene) -> dict[str, Any]:
    """What was posted, by its text: the numbers and ids of items."""
    scene.join("observer")
    for text in TEXTS:
        scene.owner.send_text(text)
    scene.owner.sync()
    records = [r for r in scene.owner.records() if r.item is not None]
    return {r.item.text: r for r in records if r.item is not None and r.item.text in TEXTS}


def drop(*numbers: int) -> Callable[[Told], list[Told]]:
    """Leave events out and close the gap, so that the numbers show nothing."""

    def tell(told: Told) -> list[Told]:
        before = sum(number < told["seq"] for number in numbers)
        return [] if told["seq"] in numbers else [{**told, "seq": told["seq"] - before}]

    return tell


def in_place(*numbers: int) -> Callable[[Told], list[Told]]:
    """Something else in the place of events, so that no number is missing."""
    noise = {"kind": "noise", "data": {}}
    return lambda told: [{**told, **noise}] if told["seq"] in numbers else [told]


def texts(session: Session) -> list[str | None]:
    return [item.text for item in session.items()]


def streamed(session: Session) -> list[str | None]:
    return [item.text for item in session.stream(0.5, history=True)]


READERS = pytest.mark.parametrize("read", [texts, streamed])


def kinds(alarms: list[Alarm]) -> list[tuple[str, str]]:
    return [(alarm.kind.value, alarm.item) for alarm in alarms]


@READERS
def test_one_item_dropped_in_the_middle(
    scene: Scene, posted: dict[str, Any], read: Callable[[Session], list[str | None]]
) -> None:
    """P-CHN-3"""
    victim = scene.join("observer")
    scene.liar.tell = in_place(posted["three"].seq)
    assert read(victim) == ["one", "two", "four", "five"]
    missing, by = posted["three"].envelope.id, posted["four"].envelope.id
    assert kinds(victim.alarms()) == [("missing", missing)]
    assert [text for text in victim.warnings if missing in text and by in text]


@READERS
def test_many_dropped(
    scene: Scene, posted: dict[str, Any], read: Callable[[Session], list[str | None]]
) -> None:
    """P-CHN-3: the last of those in a row is named, and each row by itself."""
    victim = scene.join("observer")
    scene.liar.tell = in_place(*(posted[text].seq for text in ("one", "two", "four")))
    assert read(victim) == ["three", "five"]
    missing = [posted[text].envelope.id for text in ("two", "four")]
    assert kinds(victim.alarms()) == [("missing", item) for item in missing]


@READERS
def test_dropped_and_renumbered(
    scene: Scene, posted: dict[str, Any], read: Callable[[Session], list[str | None]]
) -> None:
    """P-CHN-3: whatever came later stands under another number than its author was told."""
    victim = scene.join("observer")
    scene.liar.tell = drop(posted["two"].seq)
    assert read(victim) == ["one", "three", "four", "five"]
    ids = {text: posted[text].envelope.id for text in TEXTS}
    assert kinds(victim.alarms()) == [
        ("missing", ids["two"]),
        ("reordered", ids["three"]),
        ("reordered", ids["four"]),
    ]


def test_the_newest_is_missed_when_its_author_posts_again(
    scene: Scene, posted: dict[str, Any]
) -> None:
    victim = scene.join("observer")
    scene.liar.tell = in_place(posted["five"].seq)
    assert texts(victim) == TEXTS[:-1]
    assert victim.alarms() == []
    scene.owner.send_text("six")
    assert texts(victim) == [*TEXTS[:-1], "six"]
    assert kinds(victim.alarms()) == [("missing", posted["five"].envelope.id)]


def test_the_newest_is_missed_when_somebody_else_names_it(
    scene: Scene, posted: dict[str, Any]
) -> None:
    """P-CHN-3"""
    other = Session.join(scene.owner.invites["sender"], cache_dir=scene.folder / "other")
    other.sync()
    other.send_text("an answer", refs=[posted["five"].item])
    other.disconnect()
    victim = scene.join("observer")
    scene.liar.tell = in_place(posted["five"].seq)
    assert texts(victim) == [*TEXTS[:-1], "an answer"]
    assert kinds(victim.alarms()) == [("missing", posted["five"].envelope.id)]


def told_as(order: Callable[[list[Told]], list[Told]]) -> Callable[[Call], None]:
    """All events in an order of the relay's own, numbered so that nothing shows."""

    def lie(call: Call) -> None:
        status, body = call.fetch()
        events = order(json.loads(body)["events"])
        call.answer(status, {"events": [{**told, "seq": n} for n, told in enumerate(events)]})

    return lie


def test_two_items_change_places(scene: Scene, posted: dict[str, Any]) -> None:
    """P-CHN-4"""
    victim = scene.join("observer")
    two, three = posted["two"], posted["three"]

    def swap(events: list[Told]) -> list[Told]:
        events[two.seq], events[three.seq] = events[three.seq], events[two.seq]
        return events

    scene.liar.lies[EVENTS] = told_as(swap)
    assert sorted(map(str, texts(victim))) == sorted(TEXTS)
    found = kinds(victim.alarms())
    assert ("reordered", two.envelope.id) in found
    assert not [kind for kind, _ in found if kind == "missing"]
    assert any(two.envelope.id in text for text in victim.warnings)


def test_an_item_announced_again(scene: Scene, posted: dict[str, Any]) -> None:
    """P-CHN-4: old events as new ones."""
    victim = scene.join("observer")
    scene.liar.lies[EVENTS] = told_as(lambda events: [*events, *events[posted["one"].seq :]])
    assert texts(victim) == TEXTS
    assert [kind for kind, _ in kinds(victim.alarms())] == ["repeated"] * len(TEXTS)


@READERS
def test_something_that_nobody_can_open_in_the_place_of_an_item(
    scene: Scene, posted: dict[str, Any], read: Callable[[Session], list[str | None]]
) -> None:
    """P-CHN-3: announced under its id, and its blob never comes: that is not what was signed."""
    victim = scene.join("observer")
    three = posted["three"]

    def forge(told: Told) -> list[Told]:
        if told["seq"] != three.seq:
            return [told]
        at_ms = three.envelope.header.created_at_ms
        forged = told["data"]["envelope"].replace(str(at_ms), str(at_ms + 1))
        return [{**told, "data": {"envelope": forged}}]

    scene.liar.tell = forge
    scene.liar.lies[rf"GET .*/items/{three.envelope.id}/blob"] = say(410, {"error": "evicted"})
    assert read(victim) == ["one", "two", "four", "five"]
    assert kinds(victim.alarms()) == [("altered", three.envelope.id)]
    assert any(three.envelope.id in text for text in victim.warnings)


@READERS
def test_old_events_told_again_are_no_sign(
    scene: Scene, posted: dict[str, Any], read: Callable[[Session], list[str | None]]
) -> None:
    """A stream may begin anywhere: what has a number that was seen is passed over."""
    victim = scene.join("observer")
    scene.liar.tell = lambda told: [told, told]
    assert read(victim) == TEXTS
    assert victim.alarms() == []


def test_a_relay_that_comes_to_its_senses_is_forgiven_by_the_next_process(
    scene: Scene, posted: dict[str, Any]
) -> None:
    """A hole in the numbers is not kept: the events are asked for again."""
    victim = scene.join("observer")
    scene.liar.tell = lambda told: [] if told["seq"] == posted["three"].seq else [told]
    assert len(texts(victim)) == 4
    assert kinds(victim.alarms()) == [("missing", posted["three"].envelope.id)]
    scene.liar.honest()
    again = scene.join("observer")
    assert texts(again) == TEXTS
    assert again.alarms() == []


def test_alarms_are_not_drowned_in_complaints(scene: Scene, posted: dict[str, Any]) -> None:
    """P-CHN-6"""
    victim = scene.join("observer")
    noise = [{"kind": "participant", "data": {"signed_join": "{}"}}] * 50

    def lie(events: list[Told]) -> list[Told]:
        """Noise in the place of an item, and before it, without a shift of numbers."""
        events[posted["two"].seq] = {"kind": "participant", "data": {"signed_join": "{}"}}
        return [*events, *noise]

    scene.liar.lies[EVENTS] = told_as(lie)
    victim.sync()
    assert any(posted["two"].envelope.id in text for text in victim.warnings)


def test_the_command_line_names_the_item(scene: Scene, posted: dict[str, Any]) -> None:
    """P-CHN-6"""
    scene.liar.tell = in_place(posted["three"].seq)
    told = scene.cli("session", "info", "--json")
    assert told.code == 0
    (alarm,) = json.loads(told.out)["alarms"]
    missing = posted["three"].envelope.id
    assert (alarm["kind"], alarm["item"]) == ("missing", missing)
    assert alarm["named_by"] == posted["four"].envelope.id
    assert missing in alarm["message"]
    assert missing in json.loads(told.err.splitlines()[0])["warning"]
    plain = scene.cli("session", "info")
    assert f"alarm: the relay does not show item {missing}" in plain.out


@pytest.fixture
def quiet(scene: Scene) -> Iterator[list[Session]]:
    """Sessions that must not have heard a single alarm in the end."""
    sessions: list[Session] = [scene.owner]
    yield sessions
    for session in sessions:
        assert session.alarms() == []


def test_an_honest_relay_brings_up_nothing(
    scene: Scene, posted: dict[str, Any], quiet: list[Session]
) -> None:
    victim, sender = scene.join("observer"), scene.join("sender")
    quiet += [victim, sender]
    file = sender.send_file(b"x = 1\n", name="a.py")
    sender.send_text("look", refs=[file, posted["one"].item])
    sender.send_text("and at what is elsewhere", refs=[{**_ref_of(file), "id": "A" * 22}])
    assert len(texts(victim)) == len(TEXTS) + 3
    assert victim.alarms() == []


def _ref_of(ref: Any) -> dict[str, str]:
    return {"blob_sha256": ref.blob_sha256, "id": ref.id}
