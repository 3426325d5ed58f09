"""Messages to somebody, over the real relay: sent, read, woken by, counted."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from airlox import (
    AsyncSession,
    PolicyError,
    RecipientError,
    Session,
    SessionClosed,
    UsageError,
)
from airlox.protocol.keys import fingerprint
from journeys.conftest import People
from support.fake_runner import FakeRunner, Task

PATIENT_S = 60.0


def reasons(session: Session) -> list[tuple[str, ...]]:
    return [tuple(item.for_me) for item in session.items()]


@pytest.mark.parametrize("features", [None, ["history"]], ids=["floor", "full"])
def test_in_sessions_of_either_kind(people: People, features: list[str] | None) -> None:
    """[P-ADR-2]"""
    owner = people.owner(mode="execute", features=features)
    coder = people.join(owner.invites["sender"], "coder")
    asked = owner.send_text("Review?", to="coder")
    coder.send_file(b"# ok\n", name="a.md", to=["owner", "role:observer"], reply_to=asked)
    first, second = owner.items()
    assert (first.to, first.reply_to, first.for_me) == ((coder.participant_pub,), None, ())
    assert second.to == tuple(sorted([owner.participant_pub, "role:observer"]))
    assert (second.reply_to, second.for_me) == (asked.id, ("addressed", "reply"))
    assert reasons(coder) == [("addressed",), ()]


def test_every_form_of_an_item_to_reply_to(people: People) -> None:
    owner = people.owner()
    coder = people.join(owner.invites["sender"], "coder")
    ref = owner.send_text("hello")
    (item,) = coder.items()
    for reply_to in (ref, ref.id, item):
        coder.send_text("yes", reply_to=reply_to)
    assert reasons(owner) == [(), ("reply",), ("reply",), ("reply",)]


def test_every_form_of_a_recipient(people: People) -> None:
    owner = people.owner()
    coder = people.join(owner.invites["sender"], "coder")
    key = coder.participant_pub
    for to in ("coder", ["coder"], key, (fingerprint(key), "role:owner"), iter(["coder", key])):  # type: ignore[arg-type]
        owner.send_text("hi", to=to)
    assert reasons(coder) == 5 * [("addressed",)]


def test_nothing_leaves_where_it_is_not_clear(people: People) -> None:
    """[P-ADR-3]"""
    owner = people.owner()
    coder = people.join(owner.invites["sender"], "coder")
    watcher = people.join(owner.invites["observer"], "watcher")
    with pytest.raises(RecipientError) as caught:
        owner.send_text("secret", to=[])
    assert caught.value.code == "no_recipients"
    with pytest.raises(RecipientError):
        owner.send_file(b"# secret", name="a.md", to="nobody")
    with pytest.raises(UsageError):
        owner.send_text("secret", to=[coder])  # type: ignore[list-item]
    with pytest.raises(UsageError) as unknown:
        owner.send_text("secret", reply_to="A" * 22)
    assert unknown.value.code == "no_such_item"
    with pytest.raises(PolicyError):
        watcher.send_text("secret", to="coder")
    assert owner.items() == []
    coder.leave()
    with pytest.raises(RecipientError) as left:
        owner.send_text("secret", to="coder")
    assert left.value.code == "participant_left"
    with pytest.raises(SessionClosed):
        coder.send_text("secret", to="owner")
    assert owner.items() == []


def test_who_came_a_moment_ago_is_known(people: People) -> None:
    owner = people.owner()
    owner.items()
    people.join(owner.invites["sender"], "late")
    owner.send_text("welcome", to="late")
    people.join(owner.invites["sender"], "twin")
    cache = people.folder / "the other"
    with (
        Session.join(owner.invites["sender"], display_name="twin", cache_dir=cache),
        pytest.raises(RecipientError) as caught,
    ):
        owner.send_text("which of you?", to="twin")
    assert caught.value.code == "ambiguous_name"


def test_a_reply_to_what_was_just_posted(people: People) -> None:
    owner = people.owner()
    coder = people.join(owner.invites["sender"], "coder")
    coder.items()
    news = owner.send_text("news")
    coder.send_text("noted", reply_to=news)
    assert reasons(owner) == [(), ("reply",)]


def test_a_reader_that_comes_back_sees_the_same(people: People) -> None:
    owner = people.owner()
    coder = people.join(owner.invites["sender"], "coder")
    mine = coder.send_text("mine")
    owner.send_text("an answer", reply_to=mine, to="coder")
    before = reasons(coder)
    coder.disconnect()
    again = people.join(owner.invites["sender"], "coder")
    found = again.item(again.records()[-1].envelope.id) if again.records() else None  # type: ignore[union-attr]
    assert found is not None
    assert found.for_me == before[-1] == ("addressed", "reply")


def test_hops_of_agents_among_themselves(people: People) -> None:
    """[P-ADR-6]"""
    owner = people.owner(kind="web")
    one = people.join(owner.invites["sender"], "one")
    two = people.join(owner.invites["sender"], "two")
    last = owner.send_text("talk")
    for author in itertools.islice(itertools.cycle((one, two)), 5):
        last = author.send_text("and then?", reply_to=last)
    owner.send_text("enough", reply_to=last)
    assert [two.hops(item) for item in two.items()] == [0, 1, 2, 3, 4, 5, 0]


def test_who_addresses_a_runner_is_told_that_it_does_not_read(people: People) -> None:
    owner = people.owner(mode="execute", job_limits={"approve_runners": False})
    with FakeRunner(owner.invites["runner"], people.folder, Task.finish):
        for to in ("box", "role:runner"):
            owner.send_text("take care", to=to)
    told = [warning for warning in owner.warnings if "is a runner" in warning]
    assert told == 2 * ["box is a runner: it reads no messages, only jobs"]


def test_delivery(people: People) -> None:
    """[P-ADR-7]"""
    owner = people.owner()
    coder = people.join(owner.invites["sender"], "coder")
    people.join(owner.invites["observer"], "watcher")
    refs = [owner.send_text(str(number), to="coder") for number in range(3)]
    coder.items()
    told = owner.delivery()
    assert [each.id for each in told] == [ref.id for ref in refs]
    for each in told:
        assert each.to == (coder.participant_pub,)
        assert [p.display_name for p in each.delivered] == ["coder"]
        assert [p.display_name for p in each.waiting] == ["watcher"]
    assert [each.id for each in owner.delivery(1)] == [refs[-1].id]
    assert coder.delivery() == []
    for limit in (0, -1, 101):
        with pytest.raises(UsageError):
            owner.delivery(limit)
    owner.close()
    with pytest.raises(SessionClosed):
        owner.delivery()


def test_the_same_for_asyncio(people: People, tmp_path: Path) -> None:
    async def talk() -> None:
        owner = await AsyncSession.create(people.relay_url, cache_dir=tmp_path / "o")
        coder = await AsyncSession.join(
            owner.invites["sender"], display_name="coder", cache_dir=tmp_path / "c"
        )
        try:
            ref = await owner.send_text("Review?", to=["coder"])
            await coder.send_file(b"# ok\n", name="a.md", reply_to=ref)
            async for item in owner.stream(PATIENT_S):
                if item.for_me:
                    assert (item.name, item.reply_to) == ("a.md", ref.id)
                    assert await owner.hops(item) == 2
                    break
            (sent,) = await coder.delivery()
            assert [p.role for p in sent.delivered] == ["owner"]
        finally:
            await coder.disconnect()
            await owner.disconnect()

    asyncio.run(talk())
