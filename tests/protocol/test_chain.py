"""The chain of each author: what ids say, and what a reader makes of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airlox.errors import EncodingError
from airlox.protocol import chain, limits
from airlox.protocol.chain import (
    Alarm,
    AlarmKind,
    Chain,
    Link,
    Mark,
    chosen_refs,
    find_place,
    linked_refs,
    read_mark,
    stays,
)
from airlox.protocol.encoding import ItemId, b64u_encode, new_item_id
from airlox.protocol.item import Envelope, Header, ItemRef, Kind, parse_envelope
from airlox.protocol.keys import Role, SigningKey
from airlox.protocol.payload import JobCancel, RunnerApprove, Text
from airlox.protocol.view import Event, SessionView
from support.world import Person, World

KEY = SigningKey.from_seed(b"k" * 32)


def ref() -> ItemRef:
    """A reference to something nobody has."""
    return ItemRef(blob_sha256=b64u_encode(os.urandom(32)), id=new_item_id(os.urandom(16)))


def header(item_id: str, refs: Sequence[ItemRef], author: str = KEY.public) -> Header:
    return Header(
        author=author,
        created_at_ms=1,
        id=item_id,
        kind=Kind.TEXT,
        refs=tuple(refs),
        session_id="ax_" + "a" * 26,
        size=1,
        subkind=None,
        v=1,
    )


def place(chosen: Sequence[ItemRef], tips: Sequence[Link], *, knows: bool = True) -> Header:
    found = find_place(KEY.public, chosen, tips, knows=knows, random=os.urandom(11))
    return header(found.item_id, found.refs)


# ── what an id says ──────────────────────────────────────────────────────────────────────────


@given(
    chosen=st.integers(0, 64),
    seqs=st.lists(st.none() | st.integers(0, 2**53), max_size=70),
    stays=st.booleans(),
    knows=st.booleans(),
)
@settings(max_examples=60)
def test_which_references_are_chosen_joined_and_linked(
    chosen: int, seqs: list[int | None], stays: bool, knows: bool
) -> None:
    """P-CHN-1"""
    refs, tips = [ref() for _ in range(chosen)], [Link(ref(), seq, stays) for seq in seqs]
    made = place(refs, tips, knows=knows)
    mark = read_mark(made)
    assert mark is not None
    assert len(made.refs) <= limits.REFS
    assert chosen_refs(made) == tuple(refs)
    assert mark.knows == knows
    if not tips or chosen == 64:
        assert (mark.link, mark.joined) == (None, 0)
        return
    seq = tips[-1].seq
    known = seq is not None and seq < chain.NO_NUMBER
    assert mark.link == Link(tips[-1].ref, seq if known else None, stays)
    assert mark.joined == min(len(tips) - 1, chain.JOINED, limits.REFS - chosen - 1)
    assert made.refs[chosen:] == tuple(tip.ref for tip in tips[-1 - mark.joined :])


def test_a_result_has_its_job_first_and_room_for_all_files() -> None:
    """P-CHN-1, P-FLR-9"""
    job, files = ref(), [ref() for _ in range(limits.OUT_FILES_SENT)]
    made = place([job, *files], [Link(ref(), n) for n in range(20)])
    assert made.refs[0] == job
    assert chosen_refs(made) == (job, *files)
    mark = read_mark(made)
    assert mark is not None
    assert mark.link is not None


@given(st.binary(min_size=16, max_size=16), st.integers(0, 64))
def test_an_id_that_was_merely_drawn_says_nothing(raw: bytes, count: int) -> None:
    """P-CHN-2"""
    refs = [ref() for _ in range(count)]
    assert read_mark(header(b64u_encode(raw), refs)) is None
    assert chosen_refs(header(b64u_encode(raw), refs)) == tuple(refs)


def test_a_mark_is_of_one_author_and_one_link() -> None:
    """P-CHN-2"""
    made = place([ref()], [Link(ref(), 3), Link(ref(), 4)])
    other = SigningKey.from_seed(b"o" * 32).public
    assert read_mark(made) is not None
    assert read_mark(header(made.id, made.refs, other)) is None
    assert read_mark(header(made.id, [*made.refs, ref()])) is None
    assert read_mark(header(made.id, made.refs[:-1])) is None
    assert read_mark(header(made.id, ())) is None
    assert read_mark(header(made.id, made.refs[-1:])) is None  # more joined than there are


def test_ids_are_fresh() -> None:
    tip = [Link(ref(), 7)]
    assert len({place([], tip).id for _ in range(100)}) == 100
    with pytest.raises(EncodingError):
        find_place(KEY.public, [], [], knows=True, random=bytes(16))


def test_which_items_no_relay_forgets() -> None:
    world = World(full=True)
    owner, runner = world.person(Role.OWNER), world.person(Role.RUNNER)
    approve = RunnerApprove(participant_pub=runner.public)

    def header_of(meta: Any, chosen: Sequence[ItemRef] = ()) -> Header:
        tips = [Link(ref(), 1), Link(ref(), 2)]
        found = find_place(owner.public, chosen, tips, knows=True, random=os.urandom(11))
        sealed = owner.post(meta, item_id=found.item_id, refs=found.refs)
        return parse_envelope(sealed.envelope).header

    assert stays(header_of(Text(text="x"), [ref()]))
    assert stays(header_of(approve))
    assert not stays(header_of(JobCancel(job=ref()), [ref()]))


# ── what a reader makes of it ────────────────────────────────────────────────────────────────


@dataclass
class Author:
    """Posts a chain as a client does, with numbers that the relay gave."""

    person: Person
    tips: list[Link] = field(default_factory=list)

    def seal(self, *chosen: ItemRef, knows: bool = True) -> Envelope:
        found = find_place(
            self.person.public, chosen, self.tips, knows=knows, random=os.urandom(11)
        )
        sealed = self.person.say("x", item_id=found.item_id, refs=found.refs)
        self.last = sealed.ref
        return parse_envelope(sealed.envelope)

    def post(self, seq: int | None, *chosen: ItemRef, stays: bool = False, **how: Any) -> Envelope:
        envelope = self.seal(*chosen, **how)
        self.tips = [Link(self.last, seq, stays)]
        return envelope


@pytest.fixture
def author() -> Author:
    return Author(World().person(Role.SENDER))


def run(reader: Chain, *events: tuple[int, Envelope]) -> list[tuple[str, str]]:
    """Every alarm as it comes: its kind and the item."""
    found: list[Alarm] = []
    for seq, envelope in events:
        found += reader.step(seq, envelope)
    return [(alarm.kind.value, alarm.item) for alarm in found]


def chain_of(author: Author, *seqs: int | None) -> list[tuple[int, Envelope]]:
    return [(seq or 0, author.post(seq)) for seq in seqs]


def test_a_whole_chain_brings_up_nothing(author: Author) -> None:
    reader = Chain()
    assert run(reader, *chain_of(author, 0, 3, 4, 9)) == []
    assert reader.alarms == ()
    assert (reader.linked, reader.unchained, reader.counted_forgotten) == (3, 0, 0)


@pytest.mark.parametrize("dropped", [{0}, {1}, {0, 1}, {1, 2}, {1, 3}])
def test_what_is_dropped_is_missed_by_the_next(author: Author, dropped: set[int]) -> None:
    """P-CHN-3"""
    events = chain_of(author, 0, 1, 2, 3, 4)
    missed = [(("missing"), events[n][1].id) for n in sorted(dropped) if n + 1 not in dropped]
    shown = [event for n, event in enumerate(events) if n not in dropped]
    reader = Chain()
    assert run(reader, *shown) == missed
    assert [alarm.named_by for alarm in reader.alarms] == [
        events[n + 1][1].id for n in sorted(dropped) if n + 1 not in dropped
    ]


def test_what_is_dropped_and_the_others_renumbered(author: Author) -> None:
    """P-CHN-3: also the items of others, since every later link has another number."""
    other = Author(World().person(Role.SENDER))
    hidden = other.post(2)
    first, last = author.post(3), author.post(4)
    assert hidden.id not in (first.id, last.id)
    assert run(Chain(), (2, first), (3, last)) == [("reordered", first.id)]


def test_the_newest_item_is_missed_by_nobody(author: Author) -> None:
    """What the chain does not prove."""
    events = chain_of(author, 0, 1, 2)
    assert run(Chain(), *events[:-1]) == []


def test_another_author_that_names_it_proves_it(author: Author) -> None:
    """P-CHN-3"""
    newest, other = author.post(5), Author(World().person(Role.SENDER))
    assert run(Chain(), (6, other.post(6, author.last))) == [("missing", newest.id)]


def test_late_is_reordered_and_no_longer_missing(author: Author) -> None:
    """P-CHN-4"""
    (_, first), (_, second), (_, third) = chain_of(author, 0, 1, 2)
    reader = Chain()
    assert run(reader, (0, first), (1, third), (2, second)) == [
        ("missing", second.id),
        ("reordered", second.id),
    ]
    assert [alarm.kind for alarm in reader.alarms] == [AlarmKind.REORDERED]


def test_repeated(author: Author) -> None:
    """P-CHN-4"""
    events = chain_of(author, 0, 1)
    again = [(2, events[0][1]), (3, events[0][1])]
    assert run(Chain(), *events, *again) == [("repeated", events[0][1].id)]


def test_other_bytes_than_those_named(author: Author) -> None:
    first = author.post(0)
    reader = Chain()
    reader.step(0, first, b64u_encode(bytes(32)))
    assert [alarm.kind for alarm in reader.step(1, author.post(1))] == [AlarmKind.ALTERED]
    right = Chain()
    right.step(0, first, author.last.blob_sha256)
    assert right.alarms == ()


# ── what is no alarm ─────────────────────────────────────────────────────────────────────────


def test_those_who_do_not_chain_may_name_what_they_like(author: Author) -> None:
    """P-CHN-2: clients of 0.1.0, and references that lead to other sessions."""
    person = author.person
    events = [parse_envelope(person.say("x", refs=[ref()]).envelope) for _ in range(3)]
    reader = Chain()
    assert run(reader, *enumerate(events)) == []
    assert reader.unchained == 3


def test_nor_is_it_the_relays_fault_what_an_author_did_not_know(author: Author) -> None:
    """P-CHN-2"""
    foreign = ref()
    first = author.post(0, foreign, knows=False)
    second = author.post(1, foreign, knows=False)
    third = author.post(2, foreign)
    reader = Chain()
    assert run(reader, (0, first), (1, second)) == []
    assert run(Chain(), (1, second)) == [("missing", first.id)]
    assert run(reader, (2, third)) == [("missing", foreign.id)]


def test_an_item_may_name_itself(author: Author) -> None:
    found = find_place(author.person.public, [], [], knows=True, random=os.urandom(11))
    self_ref = ItemRef(blob_sha256=ref().blob_sha256, id=found.item_id)
    twice = author.person.say("x", item_id=found.item_id, refs=[self_ref, self_ref])
    assert run(Chain(), (0, parse_envelope(twice.envelope))) == []


def test_forks_are_normal_and_joined_by_the_next(author: Author) -> None:
    """P-CHN-1: two processes of one participant, and what one of them posts then."""
    first = author.post(0)
    start = author.tips
    one = author.post(1)
    tips = author.tips
    author.tips = start
    two = author.post(2)
    author.tips = [*tips, *author.tips]
    third = author.post(3)
    events = [(0, first), (1, one), (2, two), (3, third)]
    assert run(Chain(), *events) == []
    assert run(Chain(), *events[:1], *events[2:]) == [("missing", one.id)]
    assert run(Chain(), *events[:2], *events[3:]) == [("missing", two.id)]


def test_what_was_forgotten_was_not_dropped(author: Author) -> None:
    """P-CHN-5"""
    events = chain_of(author, 0, 5, 9)
    reader = Chain()
    reader.skip(0, 5)
    assert run(reader, events[2]) == []
    assert reader.counted_forgotten == 1


def test_but_only_what_had_a_forgotten_number(author: Author) -> None:
    """P-CHN-5"""
    events = chain_of(author, 0, 5, 9)
    reader = Chain()
    reader.skip(0, 4)
    assert run(reader, events[2]) == [("missing", events[1][1].id)]


def test_nor_what_no_relay_forgets(author: Author) -> None:
    """P-CHN-5: a text stays, whatever a relay says."""
    text = author.post(5, stays=True)
    reader = Chain()
    reader.skip(0, 8)
    assert run(reader, (9, author.post(9))) == [("missing", text.id)]


def test_a_link_without_a_number_counts_as_forgotten_after_any_gap(author: Author) -> None:
    author.post(None)
    after = author.post(9)
    gap, none = Chain(), Chain()
    gap.skip(3, 4)
    assert run(gap, (9, after)) == []
    none.skip(10, 11)
    assert len(run(none, (9, after))) == 1


def test_what_a_reader_has_no_room_for_is_not_missing(
    author: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-CHN-5, P-EVT-3: also a text."""
    world, person = author.person.world, author.person
    view = SessionView(world.manifest, world.keyring())
    view.step(Event(0, "participant", {"signed_join": person.join}))
    first, second, third = (author.post(seq, stays=True) for seq in (1, 2, 3))
    room = view._held_bytes + len(first.document) + len(third.document)
    for seq, envelope in enumerate((first, second, third), 1):
        most = room if envelope is not second else 0
        monkeypatch.setattr(limits, "TIMELINE_BYTES", most)
        change = view.step(Event(seq, "item", {"envelope": envelope.document}))
        assert change.alarms == ()
    assert set(view.records) == {first.id, third.id}
    assert view.chain.counted_forgotten == 1


def test_an_id_that_was_let_go_may_come_again(author: Author) -> None:
    event = (0, author.post(0))
    reader = Chain()
    reader.step(*event)
    reader.skip(0, 0)
    reader.forget(event[1].id)
    assert run(reader, (1, event[1])) == []


def test_numbers_that_are_only_places_are_not_compared(author: Author) -> None:
    events = chain_of(author, 10, 20, 30)
    places = list(enumerate(envelope for _, envelope in events))
    assert run(Chain(numbered=False), *places) == []
    assert run(Chain(numbered=False), places[0], places[2]) == [("missing", places[1][1].id)]


# ── any honest session ───────────────────────────────────────────────────────────────────────


@dataclass
class Posting:
    """Authors with several processes each, whose posts cross; a relay that numbers them."""

    authors: list[Author]
    under_way: list[tuple[Author, Envelope, ItemRef, bool]] = field(default_factory=list)
    shown: list[tuple[int, Envelope, bool]] = field(default_factory=list)
    """Number, item, and whether a relay may forget it."""

    def seal(self, who: int, stays: bool) -> None:
        author = self.authors[who]
        chosen = [ref_of(envelope) for _, envelope, _ in self.shown[-1:]]
        envelope = author.seal(*chosen, knows=False)
        self.under_way.append((author, envelope, author.last, stays))

    def acknowledge(self, which: int) -> None:
        """One of those under way arrives, before or after others that were sealed earlier."""
        author, envelope, posted, stays = self.under_way.pop(which % len(self.under_way))
        seq = 3 * len(self.shown)  # other events have numbers, too
        self.shown.append((seq, envelope, not stays))
        names = set(envelope.header.refs)
        author.tips = [tip for tip in author.tips if tip.ref not in names]
        author.tips.append(Link(posted, seq, stays))


def ref_of(envelope: Envelope) -> ItemRef:
    return ItemRef(blob_sha256=ref().blob_sha256, id=envelope.id)


@st.composite
def postings(draw: st.DrawFn) -> Posting:
    made = Posting([Author(World().person(Role.SENDER)) for _ in range(2)])
    for _ in range(draw(st.integers(1, 25))):
        if draw(st.booleans()) and made.under_way:
            made.acknowledge(draw(st.integers(0, 9)))
        else:
            made.seal(draw(st.integers(0, 1)), draw(st.booleans()))
    while made.under_way:
        made.acknowledge(draw(st.integers(0, 9)))
    return made


@given(postings(), st.data())
@settings(max_examples=40, deadline=None)
def test_an_honest_relay_brings_up_nothing_and_one_that_drops_is_caught(
    posting: Posting, data: st.DataObject
) -> None:
    """P-CHN-1, P-CHN-3, P-CHN-5: whatever crosses, forks and is forgotten."""
    forgettable = [seq for seq, _, may_go in posting.shown if may_go]
    gone = data.draw(st.sets(st.sampled_from(forgettable))) if forgettable else set()
    rest = [(seq, envelope) for seq, envelope, _ in posting.shown if seq not in gone]

    def reader() -> Chain:
        made = Chain()
        for seq in gone:
            made.skip(seq, seq)
        return made

    assert run(reader(), *rest) == []
    for number, (_, dropped) in enumerate(rest):
        others = [*rest[:number], *rest[number + 1 :]]
        named = any(is_evidence(seq, envelope, dropped.id, gone) for seq, envelope in others)
        assert {item for _, item in run(reader(), *others)} == ({dropped.id} if named else set())


def is_evidence(seq: int, envelope: Envelope, item: str, gone: set[int]) -> bool:
    """Whether an item shows that another is missing: by its link, which has a number, or as one it
    joins, which might have been forgotten once anything was."""
    *joined, link = linked_refs(envelope.header) or (ref(),)
    may_be_gone = any(each < seq for each in gone)
    return link.id == item or (item in {each.id for each in joined} and not may_be_gone)


# ── bounds ───────────────────────────────────────────────────────────────────────────────────


def test_alarms_are_bounded_and_counted(author: Author) -> None:
    """P-CHN-6"""
    reader, count = Chain(), limits.ALARMS // limits.ALARMS_OF_ONE
    others = [Author(World().person(Role.SENDER)) for _ in range(count)]
    for seq in range(limits.ALARMS + 5):
        reader.step(seq, others[seq % count].post(seq, ref()))
    assert len(reader.alarms) == limits.ALARMS
    assert reader.more == 5
    assert list(reader.alarms) == sorted(reader.alarms, key=lambda alarm: alarm.seq)


def test_nobody_drowns_what_others_show(author: Author) -> None:
    """P-CHN-6: a participant can name what never was; the relay may be in league with it."""
    reader, other = Chain(), Author(World().person(Role.SENDER))
    for seq in range(10 * limits.ALARMS):
        reader.step(seq, other.post(seq, ref()))
    lost, after = author.post(seq + 1), author.post(seq + 2)
    (alarm,) = reader.step(seq + 2, after)
    assert (alarm.kind, alarm.item) == (AlarmKind.MISSING, lost.id)
    assert alarm in reader.alarms
    assert len(reader.alarms) == limits.ALARMS_OF_ONE + 1


def test_an_alarm_names_what_it_is_about(author: Author) -> None:
    first, second = author.post(0), author.post(1)
    (alarm,) = Chain().step(1, second)
    assert alarm == Alarm(AlarmKind.MISSING, first.id, 1, author.person.public, second.id)
    for kind in AlarmKind:
        text = str(Alarm(kind, first.id, 1, author.person.public, ItemId("b" * 22)))
        assert first.id in text
        assert text.isprintable()


def test_a_mark_costs_little_and_reads_the_same_twice() -> None:
    made = place([], [Link(ref(), 0, stays=True)])
    assert read_mark(made) == read_mark(made) == Mark(Link(made.refs[0], 0, stays=True), 0, True)
