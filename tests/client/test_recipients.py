"""Whom a message is for, as people say it: names, keys, fingerprints and roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.client.recipients import _without_chain, resolve
from airlox.client.shown import ParticipantInfo
from airlox.errors import LimitError, RecipientError
from airlox.protocol import limits
from airlox.protocol.addressing import check_recipients
from airlox.protocol.chain import find_place
from airlox.protocol.keys import Role, SigningKey, fingerprint
from airlox.protocol.view import SessionView
from support.world import Person, Timeline, World


def key(number: int) -> str:
    return SigningKey.from_seed(number.to_bytes(32, "big")).public


def person(number: int, name: str, role: str = "sender", **changes: Any) -> ParticipantInfo:
    public = key(number)
    values: dict[str, Any] = {
        "participant_pub": public,
        "display_name": name,
        "role": role,
        "kind": "cli",
        "description": None,
        "left": False,
        "fingerprint": fingerprint(SigningKey.from_seed(number.to_bytes(32, "big")).public),
    }
    return ParticipantInfo(**(values | changes))


ME = person(0, "me")
CODER = person(1, "coder")
TWIN, OTHER_TWIN = person(2, "twin"), person(3, "twin", "observer")
GONE = person(4, "gone", left=True)
OLD, NEW = person(5, "box", "runner", left=True), person(6, "box", "runner")
NAMESAKE = person(7, "me", "owner")
KEY_NAMED = person(8, key(9))
"""Calls itself by a key that somebody else may come with."""
PRINT_NAMED = person(10, CODER.fingerprint[::-1])
ROLE_NAMED = person(11, "role:owner")
PEOPLE = [
    *(ME, CODER, TWIN, OTHER_TWIN, GONE, OLD, NEW, NAMESAKE, KEY_NAMED, PRINT_NAMED, ROLE_NAMED)
]


def to(*words: str, people: Sequence[ParticipantInfo] = PEOPLE) -> tuple[str, ...]:
    return resolve(people, words, ME.participant_pub)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("coder", CODER.participant_pub),
        (CODER.participant_pub, CODER.participant_pub),
        (CODER.fingerprint, CODER.participant_pub),
        (OTHER_TWIN.participant_pub, OTHER_TWIN.participant_pub),
        ("role:owner", "role:owner"),
        ("role:observer", "role:observer"),
        ("box", NEW.participant_pub),
        ("me", NAMESAKE.participant_pub),
    ],
    ids=["name", "key", "fingerprint", "key-of-a-twin", "role", "role-of-none", "back", "namesake"],
)
def test_what_a_word_means(word: str, meant: str) -> None:
    """[P-ADR-3]"""
    assert to(word) == (meant,)


def test_several_at_once_and_each_once() -> None:
    found = to("coder", "role:observer", CODER.fingerprint, NEW.participant_pub)
    assert set(found) == {CODER.participant_pub, "role:observer", NEW.participant_pub}
    check_recipients(found)


def test_oneself_among_others() -> None:
    assert set(to(ME.participant_pub, "coder")) == {ME.participant_pub, CODER.participant_pub}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), "no_recipients"),
        (("",), "no_recipients"),
        (("coder", " "), "no_recipients"),
        ((ME.participant_pub,), "no_recipients"),
        (("nobody",), "no_such_participant"),
        (("Coder",), "no_such_participant"),
        (("coder ",), "no_such_participant"),
        ((key(9),), "no_such_participant"),
        ((CODER.fingerprint[::-1],), "no_such_participant"),
        (("gone",), "participant_left"),
        ((GONE.participant_pub,), "participant_left"),
        ((OLD.fingerprint,), "participant_left"),
        (("twin",), "ambiguous_name"),
        (("coder", "twin"), "ambiguous_name"),
        (("role:admin",), "no_such_role"),
        (("role:",), "no_such_role"),
        (("role:Owner",), "no_such_role"),
    ],
)
def test_each_refusal_has_a_code_of_its_own(words: tuple[str, ...], code: str) -> None:
    """[P-ADR-3]"""
    with pytest.raises(RecipientError) as caught:
        to(*words)
    assert caught.value.code == code
    assert caught.value.hint


def test_those_of_one_name_are_told_apart_by_their_keys() -> None:
    with pytest.raises(RecipientError) as caught:
        to("twin")
    assert caught.value.message == "2 participants are called 'twin'"
    assert caught.value.hint == (
        f"name one by its key: {TWIN.fingerprint} (sender), {OTHER_TWIN.fingerprint} (observer)"
    )


def test_a_crowd_of_one_name_is_cut() -> None:
    crowd = [person(100 + n, "bot") for n in range(50)]
    with pytest.raises(RecipientError) as caught:
        to("bot", people=crowd)
    assert caught.value.hint is not None
    assert caught.value.hint.endswith(" and 42 more")
    assert len(caught.value.hint) < 400


def test_who_is_alone_is_told_so() -> None:
    with pytest.raises(RecipientError) as caught:
        to("me", people=[ME])
    assert caught.value.code == "no_recipients"


def test_what_is_asked_for_is_quoted_short_and_printable() -> None:
    with pytest.raises(RecipientError) as caught:
        to("\x1b[31m" + "x" * 500)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 120


def test_too_many_are_refused() -> None:
    crowd = [person(100 + n, f"bot-{n}") for n in range(limits.RECIPIENTS + 1)]
    with pytest.raises(LimitError):
        to(*(each.display_name for each in crowd), people=crowd)


@given(st.lists(st.sampled_from([*(p.display_name for p in PEOPLE), "x", "role:runner", ""])))
def test_whatever_is_named_is_signed_as_it_should_or_refused(words: list[str]) -> None:
    try:
        found = to(*words)
    except RecipientError:
        return
    check_recipients(found)
    here = {p.participant_pub for p in PEOPLE if not p.left}
    assert set(found) <= here | {f"role:{role}" for role in Role}


def test_a_client_that_does_not_chain_is_an_old_one() -> None:
    """[P-ADR-2] Its newest item says so; of who posted nothing nothing is said."""
    world, timeline = World(), Timeline()
    view = SessionView(world.manifest, world.keyring())
    old, new, moved, silent = (world.person(Role.SENDER, name) for name in "onms")

    def chained(author: Person) -> None:
        place = find_place(author.public, (), (), knows=True, random=bytes(range(11)))
        view.step(timeline.post(author.say("x", item_id=place.item_id, refs=place.refs)))

    for each in (old, new, moved, silent):
        view.step(timeline.join(each))
    for each in (old, moved):
        view.step(timeline.post(each.say("x")))
    for each in (new, moved):
        chained(each)
    keys = {each.public for each in (old, new, moved, silent)}
    assert _without_chain(view, keys) == {old.public}
    assert _without_chain(view, {new.public}) == set()
