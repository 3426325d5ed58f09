"""Who may wake: what `--from` means, and what is said of it."""

from __future__ import annotations

import pytest

from airlox.agents.senders import Senders, parse_senders
from airlox.errors import UsageError
from airlox.protocol.keys import Role, fingerprint
from airlox.protocol.view import SessionView
from support.world import Person, Timeline, World


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def people(world: World) -> dict[str, Person]:
    return {
        "owner": world.person(Role.OWNER, "boss"),
        "sender": world.person(Role.SENDER, "coder"),
        "mimic": world.person(Role.SENDER, "owner"),
        "observer": world.person(Role.OBSERVER, "role:owner"),
    }


def woken_by(senders: Senders, people: dict[str, Person], world: World) -> set[str]:
    view, line = SessionView(world.manifest, world.keyring()), Timeline()
    for person in people.values():
        view.step(line.join(person))
    return {name for name, p in people.items() if senders.may_wake(view.participants[p.public])}


def test_nobody_named_is_everybody(people: dict[str, Person], world: World) -> None:
    assert woken_by(parse_senders([]), people, world) == people.keys()


def test_owner_is_who_holds_the_owners_link_whatever_others_are_called(
    people: dict[str, Person], world: World
) -> None:
    for word in ("owner", "role:owner"):
        senders = parse_senders([word])
        assert woken_by(senders, people, world) == {"owner"}
        assert senders.warnings == ()


def test_a_key_is_one_participant(people: dict[str, Person], world: World) -> None:
    senders = parse_senders([str(people["sender"].public)])
    assert woken_by(senders, people, world) == {"sender"}
    assert senders.warnings == ()


def test_a_fingerprint_is_refused_since_it_would_be_a_name(people: dict[str, Person]) -> None:
    word = fingerprint(people["sender"].public)
    with pytest.raises(UsageError) as refused:
        parse_senders([word])
    assert "whole key" in str(refused.value.hint)


def test_names_and_roles_are_taken_with_a_warning(people: dict[str, Person], world: World) -> None:
    senders = parse_senders(["coder", "role:observer"])
    assert woken_by(senders, people, world) == {"sender", "observer"}
    name, role = senders.warnings
    assert "coder" in name
    assert "anyone" in name
    assert "role:observer" in role


@pytest.mark.parametrize("word", ["", "  ", "role:", "role:admin"])
def test_words_that_name_nobody(word: str) -> None:
    with pytest.raises(UsageError):
        parse_senders([word])
