"""Whom an item is for: a table of cases for each function over plain values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import EncodingError, LimitError, ValidationError
from airlox.protocol import limits
from airlox.protocol.addressing import (
    Post,
    Reason,
    check_recipients,
    count_hops,
    encode_recipients,
    parse_recipient,
    reasons_for,
    role_word,
    woken,
)
from airlox.protocol.cert import ClientKind
from airlox.protocol.encoding import PublicKey
from airlox.protocol.item import Kind
from airlox.protocol.keys import Role, SigningKey

OWNER, ALICE, BOB, EVE, GPU = (SigningKey.from_seed(bytes([n]) * 32).public for n in range(5))
PEOPLE = {
    OWNER: Role.OWNER,
    ALICE: Role.SENDER,
    BOB: Role.SENDER,
    EVE: Role.OBSERVER,
    GPU: Role.RUNNER,
}


def post(author: PublicKey, kind: Kind = Kind.TEXT, *to: str, **known: PublicKey) -> Post:
    return Post(author=author, author_role=PEOPLE[author], kind=kind, to=to, **known)


A, R, Y, S, E = Reason.ADDRESSED, Reason.ROLE, Reason.REPLY, Reason.RESULT, Reason.EVERYONE
ALL_BUT_OWNER = dict.fromkeys((ALICE, BOB, EVE, GPU), (E,))

CASES = {
    "the owner's message to nobody": (post(OWNER), ALL_BUT_OWNER),
    "anyone else's message to nobody": (post(ALICE), {}),
    "one key": (post(ALICE, Kind.TEXT, BOB), {BOB: (A,)}),
    "the owner's message to one": (post(OWNER, Kind.TEXT, BOB), {BOB: (A,)}),
    "oneself": (post(ALICE, Kind.TEXT, ALICE), {}),
    "a role": (post(OWNER, Kind.TEXT, "role:sender"), {ALICE: (R,), BOB: (R,)}),
    "one's own role": (post(ALICE, Kind.TEXT, "role:sender"), {BOB: (R,)}),
    "observers and runners": (
        post(ALICE, Kind.TEXT, "role:observer", "role:runner"),
        {EVE: (R,), GPU: (R,)},
    ),
    "key and role": (post(ALICE, Kind.TEXT, BOB, "role:sender"), {BOB: (A, R)}),
    "a key that nobody here has": (
        post(ALICE, Kind.TEXT, SigningKey.from_seed(b"z" * 32).public),
        {},
    ),
    "a reply": (post(BOB, replied_author=ALICE), {ALICE: (Y,)}),
    "a reply to oneself": (post(BOB, replied_author=BOB), {}),
    "a reply, addressed to another": (
        post(BOB, Kind.TEXT, EVE, replied_author=ALICE),
        {ALICE: (Y,), EVE: (A,)},
    ),
    "a reply, addressed to the same": (
        post(BOB, Kind.TEXT, ALICE, replied_author=ALICE),
        {ALICE: (A, Y)},
    ),
    "the owner's reply to nobody in particular": (
        post(OWNER, replied_author=ALICE),
        ALL_BUT_OWNER | {ALICE: (Y, E)},
    ),
    "the owner's reply, addressed": (
        post(OWNER, Kind.TEXT, BOB, replied_author=ALICE),
        {ALICE: (Y,), BOB: (A,)},
    ),
    "a result": (post(GPU, Kind.RESULT, job_author=ALICE), {ALICE: (S,)}),
    "a result of a job that is not known": (post(GPU, Kind.RESULT), {}),
    "the owner's file to nobody": (post(OWNER, Kind.FILE), {}),
    "a file, addressed": (post(GPU, Kind.FILE, "role:owner"), {OWNER: (R,)}),
    "a file as a reply": (post(BOB, Kind.FILE, replied_author=ALICE), {ALICE: (Y,)}),
    "the owner's job": (post(OWNER, Kind.JOB), {}),
    "the owner's approval": (post(OWNER, Kind.EVENT), {}),
    "what a runner offers": (post(GPU, Kind.RUNNER_INFO), {}),
}


@pytest.mark.parametrize(("item", "expected"), CASES.values(), ids=CASES)
def test_whom_an_item_is_for(item: Post, expected: dict[PublicKey, tuple[Reason, ...]]) -> None:
    """[P-ADR-4] [P-ADR-5]"""
    found = {who: reasons_for(item, who, role) for who, role in PEOPLE.items()}
    assert {who: why for who, why in found.items() if why} == expected


@pytest.mark.parametrize("item", [item for item, _ in CASES.values()], ids=CASES)
def test_who_is_woken_is_whom_it_is_for(item: Post) -> None:
    people = list(PEOPLE.items())
    expected = [who for who, role in people if reasons_for(item, who, role)]
    assert list(woken(item, people)) == expected
    assert item.author not in expected


ANYONE = st.sampled_from(list(PEOPLE))
WORD = ANYONE | st.sampled_from([role_word(role) for role in Role])
MAYBE = st.none() | ANYONE
POSTS = st.builds(
    Post,
    author=ANYONE,
    author_role=st.sampled_from(Role),
    kind=st.sampled_from(Kind),
    to=st.lists(WORD, max_size=6).map(tuple),
    replied_author=MAYBE,
    job_author=MAYBE,
)


@given(POSTS)
def test_nobody_is_woken_by_their_own_post(item: Post) -> None:
    assert item.author not in woken(item, PEOPLE.items())


@given(POSTS, st.lists(WORD, max_size=6).map(tuple))
def test_more_recipients_wake_no_fewer_but_for_everyone(item: Post, more: tuple[str, ...]) -> None:
    """Only the owner's message to nobody loses readers by being addressed."""
    wider = Post(
        author=item.author,
        author_role=item.author_role,
        kind=item.kind,
        to=item.to + more,
        replied_author=item.replied_author,
        job_author=item.job_author,
    )
    for who, role in PEOPLE.items():
        lost = set(reasons_for(item, who, role)) - set(reasons_for(wider, who, role))
        assert lost <= {Reason.EVERYONE}


# -- hops -----------------------------------------------------------------------------------------

CLI, WEB, SDK, RUNNER = ClientKind.CLI, ClientKind.WEB, ClientKind.SDK, ClientKind.RUNNER


@pytest.mark.parametrize(
    ("authors", "hops"),
    [
        ([], 0),
        ([WEB], 0),
        ([CLI], 1),
        ([SDK], 1),
        ([RUNNER, CLI], 2),
        ([CLI, WEB, CLI, CLI], 1),
        ([WEB, CLI, CLI], 0),
        ([CLI, SDK] * 5, 10),
        ([CLI] * 8 + [WEB] + [SDK] * 8, 8),
    ],
)
def test_hops_are_counted_back_to_the_last_person(authors: list[ClientKind], hops: int) -> None:
    """[P-ADR-6]"""
    assert count_hops(authors) == hops


def test_no_more_of_the_chain_is_looked_at_than_decides() -> None:
    def chain() -> Iterator[ClientKind]:
        yield CLI
        yield WEB
        raise AssertionError("the chain was followed beyond a person")

    assert count_hops(chain()) == 1


# -- the signed form ------------------------------------------------------------------------------


@given(st.lists(WORD, min_size=1, max_size=12))
def test_a_set_of_recipients_has_one_form(words: list[str]) -> None:
    """[P-ADR-1]"""
    to = encode_recipients(words)
    assert encode_recipients(reversed(to)) == to
    check_recipients(to)
    named = {parse_recipient(word) for word in to}
    assert named == {parse_recipient(word) for word in words}


@pytest.mark.parametrize(
    "to",
    [
        (),
        ("role:sender", "role:owner"),
        ("role:sender", "role:sender"),
        ("role:admin",),
        ("role:",),
        ("role:Owner",),
        ("role: owner",),
        ("role:owner\x1b[31m",),
        ("",),
        ("coder",),
        (OWNER + "=",),
        (OWNER[:-1],),
        (OWNER, ""),
    ],
)
def test_other_forms_are_refused(to: tuple[str, ...]) -> None:
    """[P-ADR-1]"""
    with pytest.raises(ValidationError):
        check_recipients(to)


def test_a_key_is_a_point_of_the_curve() -> None:
    with pytest.raises(EncodingError):
        check_recipients(("Ag" + "A" * 41,))


def test_recipients_are_bounded() -> None:
    """[P-ADR-1]"""
    keys = [SigningKey.from_seed(n.to_bytes(32)).public for n in range(limits.RECIPIENTS + 1)]
    check_recipients(sorted(keys[1:]))
    with pytest.raises(LimitError):
        encode_recipients(keys)
