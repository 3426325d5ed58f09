"""Epochs: documents that only the owner can make, and what a reader takes once one began."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import OrderError, PolicyError, ProtocolError
from airlox.protocol import canonical
from airlox.protocol.chain import AlarmKind
from airlox.protocol.encoding import b64u_encode
from airlox.protocol.epochs import Epoch, EpochState, parse_epoch
from airlox.protocol.item import SealedItem, parse_envelope
from airlox.protocol.keys import MEMBER_ROLES, Role, SigningKey
from airlox.protocol.payload import RunnerApprove
from airlox.protocol.signature import Label
from airlox.protocol.view import Change, Item, ItemStatus, SessionView
from support.epochs import Epochs
from support.world import Person, Timeline, World

WORLD = World(epochs=True, owner_seed=bytes(range(32)))
ALICE, BOB = (WORLD.person(Role.SENDER, name) for name in ("alice", "bob"))
DOCUMENT = Epochs(WORLD).make(Role.SENDER, ALICE, BOB)
BEGIN = EpochState.begin(WORLD.manifest)


def refused(document: str, state: EpochState = BEGIN) -> None:
    with pytest.raises(ProtocolError):
        parse_epoch(document, WORLD.manifest, state)


class TestDocuments:
    @given(at=st.integers(0, len(DOCUMENT) - 1), by=st.integers(1, 127))
    def test_any_changed_character_is_refused(self, at: int, by: int) -> None:
        """P-EPO-1: the owner signs every byte of it."""
        changed = chr(ord(DOCUMENT[at]) ^ by)
        refused(DOCUMENT[:at] + changed + DOCUMENT[at + 1 :])

    @given(st.integers(0, len(DOCUMENT) - 1))
    def test_any_cut_is_refused(self, end: int) -> None:
        refused(DOCUMENT[:end])

    @given(st.binary(min_size=32, max_size=32))
    def test_nobody_but_the_owner_signs_it(self, seed: bytes) -> None:
        """P-EPO-1: neither a role's key nor a participant's, nor any other."""
        body = json.loads(DOCUMENT)["epoch"]
        role_key = SigningKey.from_seed(WORLD.keys.role_seed(Role.SENDER))
        for signer in (WORLD.person(Role.OWNER).key, role_key, ALICE.key):
            signature = signer.sign(Label.EPOCH, canonical.encode(body))
            refused(canonical.encode({"epoch": body, "sig": signature}).decode())
        refused(canonical.encode({"epoch": body, "sig": b64u_encode(seed * 2)}).decode())

    @given(st.lists(st.sampled_from(MEMBER_ROLES), min_size=1, max_size=3, unique=True))
    def test_they_follow_one_another_and_nothing_else_does(self, roles: list[Role]) -> None:
        """P-EPO-1: numbers neither repeat nor jump, and each names the one before."""
        epochs, states = Epochs(WORLD), [BEGIN]
        for role in roles:
            epochs.begin(role)
            states.append(epochs.state)
        for at, document in enumerate(epochs.documents):
            for number, state in enumerate(states):
                if number == at:
                    assert parse_epoch(document, WORLD.manifest, state).number == at + 1
                else:
                    refused(document, state)

    def test_one_that_follows_another_first_is_refused(self) -> None:
        ours, others = Epochs(WORLD), Epochs(WORLD)
        ours.begin(Role.OBSERVER)
        others.begin(Role.OBSERVER)
        second = others.make(Role.SENDER)
        with pytest.raises(OrderError):
            parse_epoch(second, WORLD.manifest, ours.state)

    def test_a_session_without_the_feature_has_none(self) -> None:
        """P-EPO-9: nor do floor sessions."""
        for world in (World(full=True), World()):
            with pytest.raises(PolicyError) as caught:
                parse_epoch(DOCUMENT, world.manifest, EpochState.begin(world.manifest))
            assert caught.value.code == "no_epochs"

    def test_two_of_one_number_have_different_keys(self) -> None:
        """What a relay refused must not hand the key of the one it took to who is cut off there."""
        ours, others = Epochs(WORLD), Epochs(WORLD)
        ours.begin(Role.SENDER)
        others.begin(Role.OBSERVER)
        assert ours.owner.of(1) != others.owner.of(1)


# ── readers ──────────────────────────────────────────────────────────────────────────────────


class Story:
    """A session with epochs, and what its runner makes of it."""

    def __init__(self) -> None:
        self.world = World(epochs=True)
        self.line = Timeline()
        self.epochs = Epochs(self.world)
        self.owner, self.alice, self.bob, self.watcher, self.runner = (
            self.world.person(role, name)
            for role, name in (
                (Role.OWNER, "owner"),
                (Role.SENDER, "alice"),
                (Role.SENDER, "bob"),
                (Role.OBSERVER, "watcher"),
                (Role.RUNNER, "box"),
            )
        )
        self.views = {
            person.public: SessionView(
                self.world.manifest, self.world.keyring(person.role, person.key)
            )
            for person in (self.owner, self.alice, self.bob, self.watcher, self.runner)
        }
        for person in (self.owner, self.alice, self.bob, self.watcher, self.runner):
            self.tell(self.line.join(person))

    def tell(self, event: Any) -> list[Change]:
        return [view.step(event) for view in self.views.values()]

    def begin(self, role: Role, cut_off: Person | None = None, *kept: Person) -> Epoch:
        epoch = self.epochs.begin(role, cut_off, *kept)
        changes = self.tell(self.line.add("epoch", document=epoch.document))
        assert {change.fault for change in changes} == {None}
        return epoch

    def post(self, sealed: SealedItem) -> dict[str, str]:
        """Who could open it, and why others could not; by name."""
        self.tell(self.line.post(sealed))
        return {
            name: self._open(self.views[person.public], sealed)
            for name, person in (
                ("owner", self.owner),
                ("alice", self.alice),
                ("bob", self.bob),
                ("watcher", self.watcher),
                ("runner", self.runner),
            )
        }

    def _open(self, view: SessionView, sealed: SealedItem) -> str:
        try:
            item = view.open(parse_envelope(sealed.envelope).id, sealed.blob)
        except ProtocolError as error:
            return error.code
        assert isinstance(item, Item)
        return item.text or ""


@pytest.fixture
def story() -> Story:
    return Story()


class TestReaders:
    def test_who_was_cut_off_opens_nothing_later_and_the_others_all(self, story: Story) -> None:
        """P-EPO-2: two epochs, one for a participant and one for a role."""
        everybody = ["owner", "alice", "bob", "watcher", "runner"]
        found = story.post(story.epochs.say(story.owner, "a"))
        assert found == dict.fromkeys(everybody, "a")
        story.begin(Role.SENDER, story.alice, story.bob)
        found = story.post(story.epochs.say(story.bob, "b"))
        assert found == dict.fromkeys(everybody, "b") | {"alice": "cut_off"}
        story.begin(Role.OBSERVER)
        found = story.post(story.epochs.say(story.owner, "c"))
        assert found == dict.fromkeys(everybody, "c") | dict.fromkeys(
            ["alice", "watcher"], "cut_off"
        )

    def test_an_item_of_an_epoch_that_ended_is_refused(self, story: Story) -> None:
        """P-EPO-3: also one that its author sealed before."""
        late = story.epochs.say(story.bob, "late")
        story.begin(Role.OBSERVER)
        assert set(story.post(late).values()) == {"policy"}
        record = story.views[story.owner.public].records[parse_envelope(late.envelope).id]
        assert record.status is ItemStatus.REFUSED
        assert "epoch 0, which ended" in (record.reason or "")

    def test_an_item_of_an_epoch_not_shown_raises_an_alarm(self, story: Story) -> None:
        """P-EPO-7: a relay that keeps a revocation back is noticed at the first item after it."""
        hidden = story.epochs.begin(Role.OBSERVER)
        sealed = story.epochs.say(story.owner, "after")
        changes = story.tell(story.line.post(sealed))
        assert {alarm.kind for change in changes for alarm in change.alarms} == {AlarmKind.EPOCH}
        assert all("last one shown here is 0" in (change.fault or "") for change in changes)
        changes = story.tell(story.line.add("epoch", document=hidden.document))
        assert {change.fault for change in changes} == {None}

    def test_a_reader_that_keeps_no_more_takes_it(
        self, story: Story, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P-EPO-4: whoever fills a session does not keep a revocation from its readers."""
        monkeypatch.setattr("airlox.protocol.limits.TIMELINE_BYTES", 0)
        story.begin(Role.SENDER, story.alice, story.bob)
        assert all(story.alice.public in view.cut_off for view in story.views.values())

    def test_nothing_by_who_was_cut_off_counts(self, story: Story) -> None:
        """P-EPO-4: whatever key it is sealed under, and whatever the relay says."""
        story.begin(Role.SENDER, story.alice, story.bob)
        sealed = story.epochs.say(story.alice, "me again")
        assert set(story.post(sealed).values()) == {"policy"}
        assert story.views[story.owner.public].participants[story.alice.public].left

    @pytest.mark.parametrize("whole", [True, False])
    def test_certificates_of_the_old_role_key_let_nobody_in(
        self, story: Story, whole: bool
    ) -> None:
        """P-EPO-4"""
        late = story.world.person(Role.SENDER, "late")
        story.begin(Role.SENDER, *(() if whole else (story.alice, story.bob)))
        faults = {change.fault for change in story.tell(story.line.join(late))}
        word = "revoked by the owner" if whole else "was replaced"
        assert all(word in (fault or "") for fault in faults)
        if not whole:
            new = story.epochs.newcomer(Role.SENDER, "new")
            assert {change.fault for change in story.tell(story.line.join(new))} == {None}
            assert story.post(story.epochs.say(new, "hi"))["bob"] == "hi"

    def test_a_runner_that_was_cut_off_may_take_no_jobs(self, story: Story) -> None:
        view = story.views[story.owner.public]
        story.post(story.owner.post(RunnerApprove(participant_pub=story.runner.public)))
        assert view.may_take_jobs(story.runner.public)
        story.begin(Role.RUNNER, story.runner)
        assert not view.may_take_jobs(story.runner.public)

    @pytest.mark.parametrize(
        "change",
        [
            lambda document: document.replace('"number":1', '"number":2'),
            lambda document: document[:-5],
            lambda document: "{}",
            lambda document: "x" * 300_000,
            lambda document: None,
            lambda document: 5,
        ],
    )
    def test_a_bad_document_changes_nothing(
        self, story: Story, change: Callable[[str], object]
    ) -> None:
        document = story.epochs.make(Role.OBSERVER)
        changes = story.tell(story.line.add("epoch", document=change(document)))
        assert None not in {change.fault for change in changes}
        assert story.views[story.owner.public].epochs.number == 0
        assert story.post(story.epochs.say(story.owner, "on"))["watcher"] == "on"

    def test_no_item_of_a_session_without_epochs_names_one(self) -> None:
        """P-EPO-9"""
        for world in (World(full=True), World()):
            view = SessionView(world.manifest, world.keyring())
            owner, line = world.person(Role.OWNER), Timeline()
            view.step(line.join(owner))
            change = view.step(line.post(owner.say("x", epoch=1)))
            assert change.fault == "this session has no epochs"
