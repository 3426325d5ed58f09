"""A hostile or broken relay: what it forges, withholds or garbles never gets into the timeline."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airlox.client import membership as members
from airlox.client.answers import EventsPage
from airlox.client.cache import SessionCache
from airlox.client.relay_api import RelayApi
from airlox.client.timeline import ALL_KINDS, STANDING_KINDS
from airlox.client.timeline import Timeline as ClientTimeline
from airlox.errors import ConnectionLost, RelayError, SessionClosed
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import SealedItem
from airlox.protocol.keys import Role
from airlox.protocol.payload import RunnerApprove
from airlox.protocol.sse import SseEvent
from airlox.protocol.view import Event
from support.epochs import Epochs
from support.world import NOW_MS, Person, Timeline, World


class Relay:
    """The calls a timeline makes, answered from lists; stands where a RelayApi does."""

    def __init__(self) -> None:
        self.events_: list[Event] = []
        self.blobs: dict[str, bytes] = {}
        self.acked: list[str] = []
        self.fetched: list[str] = []
        self.wanted: list[str] = []
        self.given: dict[str, bytes] = {}
        self.refuse: Exception | None = None
        self.present = False
        self.over = False

    def events(self, after: int | None = None) -> list[Event]:
        if self.refuse is not None:
            raise self.refuse
        return [event for event in self.events_ if after is None or event.seq > after]

    def events_page(self, after: int | None = None, *, jobs: int | None = None) -> EventsPage:
        return EventsPage(self.events(after), more=False)

    def fetch_blob(self, item: str, limit_bytes: int) -> bytes:
        self.fetched.append(item)
        if self.refuse is not None:
            raise self.refuse
        if item not in self.blobs:
            raise RelayError(410, "evicted", "no longer here")
        return self.blobs[item]

    def ack(self, item: str) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.acked.append(item)

    def want(self, item: str) -> bool:
        self.wanted.append(item)
        return self.present

    def put_blob(self, item: str, blob: bytes) -> None:
        self.given[item] = blob


class Scene:
    """A world, its relay, and the timeline of its owner."""

    def __init__(self, folder: Path, *, full: bool = True, epochs: bool = False) -> None:
        self.world = World(full=full, epochs=epochs)
        self.relay = Relay()
        self.line = Timeline()
        self.relay.events_ = self.line.events
        self.owner = self.person(Role.OWNER)
        self.warnings: list[str] = []
        self.folder = folder
        self.timeline = self.reopen()

    def reopen(self) -> ClientTimeline:
        cache = SessionCache(self.folder, self.world.manifest.session_id)
        cache.make()
        api: Any = self.relay
        self.me = members.Membership(
            self.world.invite("https://relay.example", Role.OWNER),
            self.world.manifest,
            self.owner.key,
            self.world.keyring(Role.OWNER, self.owner.key),
            api,
            cache,
        )
        self.timeline = ClientTimeline(self.me, on_warning=self.warnings.append)
        return self.timeline

    @property
    def api(self) -> RelayApi:
        return self.me.api

    def person(self, role: Role, name: str | None = None) -> Person:
        person = self.world.person(role, name)
        self.line.join(person)
        return person

    def post(self, sealed: SealedItem, blob: bytes | None = None) -> SealedItem:
        self.line.post(sealed)
        self.relay.blobs[sealed.ref.id] = sealed.blob if blob is None else blob
        return sealed

    def texts(self) -> list[str | None]:
        return [item.text for item in self.timeline.items_after(-1)]

    def status(self, sealed: SealedItem) -> str:
        return self.timeline.read(lambda view: view.records[ItemId(sealed.ref.id)].status)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_items_are_opened_stored_and_acknowledged(scene: Scene) -> None:
    sealed = scene.post(scene.owner.say("hello"))
    scene.timeline.sync()
    assert scene.texts() == ["hello"]
    assert scene.relay.acked == [sealed.ref.id]
    # a later process needs no relay for it
    scene.reopen()
    scene.relay.refuse = SessionClosed("gone", code="session_gone")
    scene.timeline.sync()
    assert scene.texts() == ["hello"]
    assert scene.relay.fetched == [sealed.ref.id]
    assert scene.timeline.ended is not None


FORGED: dict[str, Callable[[Scene], SealedItem]] = {
    "by somebody who never joined": lambda s: s.world.person(Role.SENDER).say("x"),
    "by an observer": lambda s: s.person(Role.OBSERVER).say("x"),
    "of another session": lambda s: World().person(Role.SENDER, key=s.owner.key).say("x"),
    "dated before the session": lambda s: s.owner.say("x", at_ms=NOW_MS - 1),
    "dated after its end": lambda s: s.owner.say("x", at_ms=NOW_MS + 10**10),
    "under another key": lambda s: s.owner.say("x", session_key=os.urandom(32)),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_forged_item_is_refused_and_stops_nothing(
    scene: Scene, forge: Callable[[Scene], SealedItem]
) -> None:
    forged = scene.post(forge(scene))
    scene.post(scene.owner.say("fine"))
    scene.timeline.sync()
    assert scene.texts() == ["fine"]
    assert scene.status(forged) == "refused"
    # what is refused is not acknowledged
    assert forged.ref.id not in scene.relay.acked


def test_a_forged_approval_approves_nobody(scene: Scene) -> None:
    runner = scene.person(Role.RUNNER, "box")
    sender = scene.person(Role.SENDER)
    scene.post(sender.post(RunnerApprove(participant_pub=runner.public)))
    scene.post(runner.post(RunnerApprove(participant_pub=runner.public)))
    scene.timeline.sync(STANDING_KINDS)
    assert not scene.timeline.read(lambda view: view.may_take_jobs(runner.public))
    scene.post(scene.owner.post(RunnerApprove(participant_pub=runner.public)))
    scene.timeline.sync(STANDING_KINDS)
    assert scene.timeline.read(lambda view: view.may_take_jobs(runner.public))


def test_an_altered_envelope_is_refused(scene: Scene) -> None:
    sealed = scene.owner.say("hello")
    altered = sealed.envelope.replace('"size":', '"size":1')
    assert altered != sealed.envelope
    scene.line.add("item", envelope=altered)
    scene.relay.blobs[sealed.ref.id] = sealed.blob
    scene.post(scene.owner.say("fine"))
    scene.timeline.sync()
    assert scene.texts() == ["fine"]


@pytest.mark.parametrize("garble", [lambda b: b[:-1], lambda b: b + b"x", lambda b: bytes(len(b))])
def test_wrong_bytes_are_neither_kept_nor_the_end(
    scene: Scene, garble: Callable[[bytes], bytes]
) -> None:
    sealed = scene.owner.say("hello")
    scene.post(sealed, garble(sealed.blob))
    scene.timeline.sync()
    assert scene.texts() == []
    assert scene.relay.acked == []
    # the item itself is sound: when the relay comes to its senses it is read
    scene.relay.blobs[sealed.ref.id] = sealed.blob
    scene.timeline.sync()
    assert scene.texts() == ["hello"]


@pytest.mark.parametrize("data", [{}, {"envelope": 5}, {"envelope": "{"}, {"envelope": "[" * 9999}])
def test_nonsense_events_stop_nothing(scene: Scene, data: dict[str, Any]) -> None:
    for kind in ("item", "participant", "evicted", "want", "job", "revoked", "left", "reseeded"):
        scene.line.add(kind, **data)
    scene.post(scene.owner.say("fine"))
    scene.timeline.sync()
    assert scene.texts() == ["fine"]
    assert scene.timeline.ended is None
    scene.reopen()
    assert scene.timeline.read(lambda view: view.last_seq) == len(scene.line.events) - 1


def test_live_nonsense_stops_nothing(scene: Scene) -> None:
    scene.timeline.sync()
    for event in (
        SseEvent(None, "item", "{}"),
        SseEvent("x", "item", "{}"),
        SseEvent("99", "item", "[" * 99_999),
        SseEvent("1", "item", "null"),
    ):
        [change] = scene.timeline.take_live(event)
        assert change.fault
    scene.post(scene.owner.say("fine"))
    scene.timeline.sync()
    assert scene.texts() == ["fine"]


def test_a_jump_of_the_numbering_is_dropped(scene: Scene) -> None:
    scene.timeline.sync()
    far = Event(50_000, "item", {"envelope": scene.owner.say("x").envelope})
    [change] = scene.timeline.take([far])
    assert change.fault
    scene.post(scene.owner.say("fine"))
    scene.timeline.sync()
    assert scene.texts() == ["fine"]


def test_a_revocation_that_is_known_and_not_shown(tmp_path: Path) -> None:
    """P-EPO-7: also where no item tells of it, as after the loss of the cached events."""
    scene = Scene(tmp_path, epochs=True)
    epochs = Epochs(scene.world)
    epoch = epochs.begin(Role.RUNNER)
    scene.timeline.sync()
    assert scene.warnings == []
    scene.me.keys.learn_all(epochs.documents)
    for _ in range(2):
        scene.timeline.sync()
        assert len(scene.warnings) == 1
        assert "does not show epoch 1" in scene.warnings[0]
    scene.line.add("epoch", document=epoch.document)
    scene.reopen().sync()
    assert len(scene.warnings) == 1


def test_only_the_kinds_asked_for_are_downloaded(scene: Scene) -> None:
    runner = scene.person(Role.RUNNER, "box")
    text = scene.post(scene.owner.say("not now"))
    event = scene.post(scene.owner.post(RunnerApprove(participant_pub=runner.public)))
    scene.timeline.sync(STANDING_KINDS)
    assert scene.relay.fetched == [event.ref.id]
    scene.timeline.sync(ALL_KINDS)
    assert scene.relay.fetched == [event.ref.id, text.ref.id]


@pytest.mark.parametrize("refusal", [RelayError(503, "busy", "x"), ConnectionLost("x")])
def test_a_blob_that_cannot_be_had_now_is_had_later(scene: Scene, refusal: Exception) -> None:
    sealed = scene.post(scene.owner.say("hello"))
    scene.timeline.take(scene.relay.events())
    scene.relay.refuse = refusal
    scene.timeline.fetch(ALL_KINDS, scene.api)
    assert scene.status(sealed) == "pending"
    scene.relay.refuse = None
    scene.timeline.fetch(ALL_KINDS, scene.api)
    assert scene.texts() == ["hello"]


def test_a_failed_acknowledgement_is_made_up_for(scene: Scene) -> None:
    sealed = scene.post(scene.owner.say("hello"))
    scene.timeline.take(scene.relay.events())
    refuse, scene.relay.ack = scene.relay.ack, _refuse  # type: ignore[method-assign]
    scene.timeline.fetch(ALL_KINDS, scene.api)
    assert scene.texts() == ["hello"]
    scene.relay.ack = refuse  # type: ignore[method-assign]
    scene.timeline.fetch(ALL_KINDS, scene.api)
    assert scene.relay.acked == [sealed.ref.id]


def _refuse(item: str) -> None:
    raise ConnectionLost("not now")


class TestEvictedBlobs:
    def test_they_are_wanted_once_and_read_when_they_are_back(self, scene: Scene) -> None:
        sealed = scene.owner.say("old")
        scene.line.post(sealed)
        scene.line.add("evicted", item=sealed.ref.id)
        scene.timeline.sync()
        assert scene.status(sealed) == "evicted"
        for _ in range(3):
            scene.timeline.want_missing(scene.api)
        assert scene.relay.wanted == [sealed.ref.id]
        scene.relay.blobs[sealed.ref.id] = sealed.blob
        scene.line.add("reseeded", item=sealed.ref.id)
        scene.timeline.sync()
        assert scene.texts() == ["old"]

    def test_present_after_all(self, scene: Scene) -> None:
        sealed = scene.owner.say("old")
        scene.line.post(sealed)
        scene.timeline.sync()
        assert scene.status(sealed) == "evicted"
        scene.relay.blobs[sealed.ref.id] = sealed.blob
        scene.relay.present = True
        scene.timeline.want_missing(scene.api)
        assert scene.texts() == ["old"]

    def test_what_others_want_is_given_from_the_cache(self, scene: Scene) -> None:
        other = scene.person(Role.SENDER)
        sealed = scene.post(scene.owner.say("old"))
        scene.timeline.sync()
        scene.line.add("want", item=sealed.ref.id, by=scene.owner.public)
        scene.timeline.sync()
        assert scene.relay.given == {}
        scene.line.add("want", item=sealed.ref.id, by=other.public)
        scene.line.add("want", item="A" * 22, by=other.public)
        scene.timeline.sync()
        assert scene.relay.given == {sealed.ref.id: sealed.blob}

    def test_wants_of_the_past_are_not_answered_again(self, scene: Scene) -> None:
        other = scene.person(Role.SENDER)
        sealed = scene.post(scene.owner.say("old"))
        scene.line.add("want", item=sealed.ref.id, by=other.public)
        scene.timeline.sync()
        scene.relay.given.clear()
        scene.reopen().sync()
        assert scene.relay.given == {}

    def test_whoever_is_faster_saves_the_others_the_upload(self, scene: Scene) -> None:
        sealed = scene.post(scene.owner.say("old"))
        scene.timeline.sync()
        scene.timeline.blobs.schedule_gift(sealed.ref.id)
        assert scene.timeline.blobs.next_gift_s() is not None
        scene.line.add("reseeded", item=sealed.ref.id)
        scene.timeline.sync()
        assert scene.timeline.blobs.next_gift_s() is None


class TestTheEnd:
    def test_closed(self, scene: Scene) -> None:
        scene.line.add("closed", reason="expired")
        scene.timeline.sync()
        assert scene.timeline.ended is not None
        assert "expired" in scene.timeline.ended.message

    def test_revoked_names_me_or_not(self, scene: Scene) -> None:
        other = scene.person(Role.SENDER)
        scene.line.add("revoked", role="sender", participants=[other.public])
        scene.timeline.sync()
        assert self.code(scene) is None
        scene.line.add("revoked", role="owner", participants=[scene.owner.public])
        scene.timeline.sync()
        assert self.code(scene) == "cut_off"

    def code(self, scene: Scene) -> str | None:
        ended = scene.timeline.ended
        return None if ended is None else ended.code

    def test_it_is_known_again_from_the_cache(self, scene: Scene) -> None:
        scene.line.add("closed", reason="closed")
        scene.timeline.sync()
        scene.reopen()
        assert scene.timeline.read(lambda view: view.closed) == "closed"
        assert scene.timeline.ended is not None
