"""Whom an item is for: a table of cases for each function over plain values, and what a view makes
of items, in order and out of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import EncodingError, LimitError, ProtocolError, ValidationError
from airlox.protocol import canonical, limits
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
from airlox.protocol.encoding import ItemId, PublicKey
from airlox.protocol.item import Kind, SealedItem
from airlox.protocol.keys import Role, SigningKey
from airlox.protocol.payload import File, Text, decode_payload, encode_payload
from airlox.protocol.view import Item, SessionView
from support.crew import a_job, a_result
from support.world import Person, Timeline, World

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


# -- what a view makes of items -------------------------------------------------------------------


class Room:
    """A session as one of its people, the coder, sees it."""

    def __init__(self, *, full: bool = False) -> None:
        self.world, self.timeline = World(full=full), Timeline()
        self.me = self.world.person(Role.SENDER, "coder")
        self.view = SessionView(self.world.manifest, self.world.keyring(), self.me.public)
        self.owner = self.join(self.world.person(Role.OWNER, kind=ClientKind.WEB))
        self.join(self.me)
        self.other = self.join(self.world.person(Role.SENDER, "other", kind=ClientKind.CLI))
        self.runner = self.join(self.world.person(Role.RUNNER, "box"))

    def join(self, person: Person) -> Person:
        assert self.view.step(self.timeline.join(person)).fault is None
        return person

    def announce(self, sealed: SealedItem) -> SealedItem:
        assert self.view.step(self.timeline.post(sealed)).fault is None
        return sealed

    def open(self, sealed: SealedItem) -> Item:
        return self.view.open(ItemId(sealed.ref.id), sealed.blob)

    def read(self, sealed: SealedItem) -> Item:
        return self.open(self.announce(sealed))

    def say(self, person: Person, **address: Any) -> Item:
        return self.read(person.post(Text(text="hi", **address)))


@pytest.fixture(params=[False, True], ids=["floor", "full"])
def room(request: pytest.FixtureRequest) -> Room:
    return Room(full=request.param)


def test_an_item_says_whom_it_is_for(room: Room) -> None:
    """[P-ADR-2] [P-ADR-4]"""
    mine = room.say(room.me)
    assert (mine.to, mine.reply_to, mine.for_me) == ((), None, ())
    to = encode_recipients([room.me.public, "role:owner"])
    asked = room.say(room.other, to=to, reply_to=mine.id)
    assert (asked.to, asked.reply_to) == (to, mine.id)
    assert asked.for_me == (Reason.ADDRESSED, Reason.REPLY)
    assert room.say(room.owner).for_me == (Reason.EVERYONE,)
    assert room.say(room.owner, to=("role:sender",)).for_me == (Reason.ROLE,)
    assert room.say(room.owner, to=("role:observer",)).for_me == ()
    assert room.say(room.me, to=("role:sender",), reply_to=mine.id).for_me == ()


def test_files_say_it_too(room: Room) -> None:
    """[P-ADR-2]"""
    meta = File(mime="text/markdown", name="a.md", to=(room.me.public,))
    for author in (room.other, room.runner):
        item = room.read(author.post(meta, body=b"# hi", subkind="md"))
        assert item.for_me == (Reason.ADDRESSED,)
        assert item.to == (room.me.public,)


def test_somebody_else_s_view_says_nothing_of_us(room: Room) -> None:
    view = SessionView(room.world.manifest, room.world.keyring())
    for event in room.timeline.events:
        view.step(event)
    sealed = room.owner.post(Text(text="all of you"))
    view.step(room.timeline.post(sealed))
    assert view.open(ItemId(sealed.ref.id), sealed.blob).for_me == ()


def test_a_result_is_for_who_asked_for_it() -> None:
    """[P-ADR-4]"""
    room = Room()
    for author, reasons in ((room.me, (Reason.RESULT,)), (room.other, ())):
        job = author.post(a_job(), subkind="py")
        room.read(job)
        result = room.read(room.runner.post(a_result(job.ref), refs=[job.ref]))
        assert result.for_me == reasons


def test_a_reply_is_one_only_to_what_came_before(room: Room) -> None:
    """[P-ADR-5]"""
    later = room.me.post(Text(text="later"))
    early = room.other.post(Text(text="early", reply_to=later.ref.id))
    assert room.read(early).for_me == ()
    room.read(later)
    assert room.open(early).for_me == ()
    nothing = room.say(room.other, reply_to="A" * 22)
    assert nothing.for_me == ()


def test_a_reply_to_what_was_refused_is_none(room: Room) -> None:
    """[P-ADR-5]"""
    stale = room.me.post(Text(text="too early"), at_ms=room.world.now_ms - 1)
    assert room.view.step(room.timeline.post(stale)).fault is not None
    assert room.say(room.other, reply_to=stale.ref.id).for_me == ()


def test_a_reply_is_known_as_one_before_what_it_answers_is_opened(room: Room) -> None:
    mine = room.announce(room.me.post(Text(text="mine")))
    assert room.say(room.other, reply_to=mine.ref.id).for_me == (Reason.REPLY,)


def test_hops_follow_the_replies(room: Room) -> None:
    """[P-ADR-6]"""
    item = room.say(room.owner)
    assert room.view.hops(item) == 0
    for hops in range(1, 12):
        author = room.me if hops % 2 else room.other
        item = room.say(author, reply_to=item.id)
        assert room.view.hops(item) == hops
    assert room.view.hops(room.say(room.owner, reply_to=item.id)) == 0
    assert room.view.hops(room.say(room.other)) == 1


def test_a_chain_that_bites_its_tail_has_an_end(room: Room) -> None:
    """[P-ADR-5] [P-ADR-6] An author may name an id that is posted later, or its own."""
    one_id, two_id = ItemId("AAAAAAAAAAAAAAAAAAAAAA"), ItemId("AQAAAAAAAAAAAAAAAAAAAA")
    one = room.read(room.me.post(Text(text="1", reply_to=two_id), item_id=one_id))
    two = room.read(room.other.post(Text(text="2", reply_to=one_id), item_id=two_id))
    assert (room.view.hops(one), room.view.hops(two)) == (1, 2)
    own = ItemId("AgAAAAAAAAAAAAAAAAAAAA")
    alone = room.read(room.me.post(Text(text="3", reply_to=own), item_id=own))
    assert room.view.hops(alone) == 1
    assert alone.for_me == ()


def test_hops_end_at_what_is_not_here(room: Room) -> None:
    closed = room.announce(room.me.post(Text(text="not fetched", reply_to=room.say(room.me).id)))
    assert room.view.hops(room.say(room.other, reply_to=closed.ref.id)) == 1


@given(
    to=st.lists(WORD, min_size=1, max_size=8),
    reply=st.booleans(),
    at=st.integers(0, 10_000),
    bit=st.integers(0, 7),
)
def test_no_changed_byte_passes_for_another_address(
    to: list[str], reply: bool, at: int, bit: int
) -> None:
    """Sealed and signed like the text itself: nobody but the author says whom it is for."""
    room = Room()
    address: dict[str, Any] = {"to": encode_recipients(to)} | (
        {"reply_to": "A" * 22} if reply else {}
    )
    sealed = room.announce(room.me.post(Text(text="hi", **address)))
    blob = bytearray(sealed.blob)
    blob[at % len(blob)] ^= 1 << bit
    with pytest.raises(ProtocolError):
        room.view.open(ItemId(sealed.ref.id), bytes(blob))
    assert room.open(sealed).to == address["to"]


TEXTS = st.builds(
    Text,
    text=st.text(max_size=20),
    to=st.just(msgspec.UNSET) | st.lists(WORD, min_size=1, max_size=12).map(encode_recipients),
    reply_to=st.just(msgspec.UNSET) | st.just("A" * 22),
)


@given(TEXTS, st.booleans())
def test_what_is_written_is_read(meta: Text, full: bool) -> None:
    assert decode_payload(encode_payload(meta), full=full) == (meta, b"")
    absent = {name for name in ("to", "reply_to") if getattr(meta, name) is msgspec.UNSET}
    assert absent.isdisjoint(msgspec.json.decode(canonical.encode(meta)))
