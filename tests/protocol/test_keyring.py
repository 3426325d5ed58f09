"""The keyring: which session keys a participant has, over any run of epochs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airlox.errors import DecryptError, OrderError, PolicyError, ProtocolError, ValidationError
from airlox.protocol.epochs import parse_epoch
from airlox.protocol.invite import parse_invite
from airlox.protocol.keyring import Keyring, check_link
from airlox.protocol.keys import MEMBER_ROLES, Role
from support.epochs import Epochs
from support.world import World

WORLD = World(epochs=True, owner_seed=bytes(range(32)))
PEOPLE = {role: [WORLD.person(role, f"{role}-{n}") for n in range(3)] for role in MEMBER_ROLES}
STEPS = st.lists(st.tuples(st.sampled_from(MEMBER_ROLES), st.sampled_from([None, 0, 1, 2])))


def known(keyring: Keyring) -> list[bool]:
    found = []
    for number in range(keyring.number + 1):
        try:
            keyring.of(number)
            found.append(True)
        except DecryptError:
            found.append(False)
    return found


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_everybody_has_the_keys_until_they_are_cut_off_and_none_after(
    steps: list[tuple[Role, int | None]],
) -> None:
    """P-EPO-2: whoever it is, and however often roles were renewed before."""
    epochs = Epochs(WORLD)
    last = {person.public: 0 for people in PEOPLE.values() for person in people}
    here = dict(PEOPLE)
    for role, index in steps:
        if role not in epochs.state.role_keys:
            continue
        gone = None if index is None else PEOPLE[role][index]
        kept = [] if gone is None else [each for each in here[role] if each is not gone]
        epochs.begin(role, gone, *kept)
        here = here | {role: kept}
        for person in (each for people in here.values() for each in people):
            last[person.public] = epochs.state.number
    for role, people in PEOPLE.items():
        for person in people:
            count = last[person.public] + 1
            expected = [True] * count + [False] * (epochs.state.number + 1 - count)
            assert known(epochs.keyring(role, person)) == expected
    assert known(epochs.owner) == [True] * (epochs.state.number + 1)


@settings(max_examples=15, deadline=None)
@given(STEPS)
def test_the_owner_link_alone_recovers_everything(steps: list[tuple[Role, int | None]]) -> None:
    """P-EPO-2: with the documents any relay shows, and an empty cache."""
    epochs = Epochs(WORLD)
    for role, index in steps:
        if role in epochs.state.role_keys:
            epochs.begin(role, None if index is None else PEOPLE[role][index])
    again = WORLD.keyring()
    again.learn_all(epochs.documents)
    assert again.newest_first() == epochs.owner.newest_first()
    for role in epochs.state.role_keys:
        assert again.link("https://r", role) == epochs.owner.link("https://r", role)


def test_a_newcomer_with_any_link_that_holds_reads_all_there_is() -> None:
    epochs = Epochs(WORLD)
    alice, bob, carol = PEOPLE[Role.SENDER]
    epochs.begin(Role.OBSERVER)
    epochs.begin(Role.SENDER, alice, bob, carol)
    epochs.begin(Role.SENDER, bob, carol)
    for role in (Role.SENDER, Role.RUNNER):
        link = parse_invite(epochs.owner.link("https://r", role).url())
        check_link(link, WORLD.manifest, epochs.state)
        keyring = Keyring(WORLD.manifest, link)
        keyring.learn_all(epochs.documents)
        assert keyring.newest_first() == epochs.owner.newest_first()


class TestLinks:
    """P-EPO-4: which link still opens the session."""

    def test_a_replaced_link_says_what_to_do(self) -> None:
        epochs = Epochs(WORLD)
        old = epochs.owner.link("https://r", Role.SENDER)
        epochs.begin(Role.SENDER, PEOPLE[Role.SENDER][0])
        with pytest.raises(PolicyError) as caught:
            check_link(old, WORLD.manifest, epochs.state)
        assert caught.value.code == "invite_replaced"
        assert "ask the owner for a new link" in str(caught.value)
        check_link(old, WORLD.manifest, epochs.state, has_joined=True)

    def test_a_revoked_role_has_none(self) -> None:
        epochs = Epochs(WORLD)
        old = epochs.owner.link("https://r", Role.SENDER)
        epochs.begin(Role.SENDER)
        with pytest.raises(PolicyError) as caught:
            check_link(old, WORLD.manifest, epochs.state)
        assert caught.value.code == "revoked"
        with pytest.raises(PolicyError):
            epochs.owner.link("https://r", Role.SENDER)

    def test_that_of_another_session_is_no_link_of_it(self) -> None:
        other = World(epochs=True).keyring().link("https://r", Role.SENDER)
        with pytest.raises(ValidationError):
            check_link(other, WORLD.manifest, Epochs(WORLD).state, has_joined=True)


class TestLearning:
    def test_an_epoch_learned_twice_is_fine_and_another_is_not(self) -> None:
        epochs, others = Epochs(WORLD), Epochs(WORLD)
        first = epochs.begin(Role.OBSERVER)
        keyring = epochs.keyring(Role.RUNNER)
        keyring.learn(first)
        with pytest.raises(OrderError):
            keyring.learn(others.begin(Role.OBSERVER))
        with pytest.raises(OrderError):
            keyring.learn_all(others.documents)
        assert keyring.number == 1

    def test_one_that_jumps_is_not(self) -> None:
        epochs = Epochs(WORLD)
        epochs.begin(Role.OBSERVER)
        second = epochs.begin(Role.SENDER)
        with pytest.raises(OrderError):
            WORLD.keyring(Role.RUNNER).learn(second)

    def test_a_fault_in_the_middle_keeps_what_came_before(self) -> None:
        epochs = Epochs(WORLD)
        epochs.begin(Role.OBSERVER)
        epochs.begin(Role.SENDER)
        keyring = WORLD.keyring(Role.RUNNER)
        with pytest.raises(ProtocolError):
            keyring.learn_all([epochs.documents[0], epochs.documents[1][:-9]])
        assert keyring.number == 1
        keyring.learn_all(epochs.documents)
        assert keyring.current() == epochs.owner.current()

    def test_keys_show_nowhere(self) -> None:
        epochs = Epochs(WORLD)
        epoch = epochs.begin(Role.OBSERVER)
        keyring = epochs.keyring(Role.RUNNER)
        assert repr(keyring) == "Keyring(runner, epoch 1)"
        assert parse_epoch(epoch.document, WORLD.manifest, WORLD.keyring().state) == epoch
