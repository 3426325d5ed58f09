"""What of a session is handed out to a listener, in which order, and what is passed over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox import Session
from airlox.agents.inbox import BATCH_ITEMS, Inbox
from airlox.agents.ledger import Ledger
from airlox.agents.senders import parse_senders
from airlox.client.deadline import Deadline
from support.lying import BLOB, LyingRelay, say
from support.relay import RelayThread

WAIT_S = 60.0


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayThread]:
    with RelayThread() as live:
        yield live


class Office:
    """An owner, an agent called `coder`, and the coder's inbox."""

    def __init__(self, relay: RelayThread, folder: Path, **terms: Any) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        self.people: list[Session] = []
        self.owner = Session.create(relay.url, cache_dir=folder / "owner", kind="web", **terms)
        self.people.append(self.owner)
        self.coder = self.join("coder")

    def join(self, name: str, link: str | None = None, **options: Any) -> Session:
        session = Session.join(
            link or self.owner.invites["sender"],
            display_name=name,
            cache_dir=self.folder / name,
            **options,
        )
        self.people.append(session)
        return session

    def inbox(self, *senders: str, new: bool = False, **options: Any) -> Inbox:
        """As after a start: the ledger is read anew."""
        self.ledger = Ledger(str(self.folder / "ledger.json"))
        inbox = Inbox(
            self.coder,
            self.ledger,
            parse_senders(senders),
            warn=self.warnings.append,
            **({"max_hops": 8, "pending_timeout_s": WAIT_S} | options),
        )
        inbox.begin(only_new=new)
        return inbox

    def taken(self, inbox: Inbox) -> tuple[str, ...]:
        """The items of the next batch, handed out."""
        batch = inbox.take()
        if batch is None:
            return ()
        self.ledger.finish()
        return batch.items

    def close(self) -> None:
        for session in self.people:
            session.disconnect()


@pytest.fixture
def office(relay: RelayThread, tmp_path: Path) -> Iterator[Office]:
    made = Office(relay, tmp_path)
    yield made
    made.close()


def test_only_what_concerns_one_in_the_order_of_the_relay(office: Office) -> None:
    other = office.join("other")
    question = office.coder.send_text("who can review this?")
    other.send_text("to nobody in particular")
    first = office.owner.send_text("to everyone")
    second = other.send_text("to you", to="coder")
    third = other.send_text("I can", reply_to=question)
    office.owner.send_text("to the other", to="other")
    assert office.taken(office.inbox()) == (first.id, second.id, third.id)
    assert office.taken(office.inbox()) == ()


def test_what_came_before_one_joined_wakes_nobody(office: Office) -> None:
    office.owner.send_text("before you came")
    late = office.coder = office.join("late")
    item = office.owner.send_text("after you came")
    assert office.taken(office.inbox()) == (item.id,)
    assert late.joined_seq > 0


def test_new_is_what_arrives_from_now_on(office: Office) -> None:
    office.owner.send_text("old")
    inbox = office.inbox(new=True)
    item = office.owner.send_text("new")
    inbox.wait(Deadline.after(WAIT_S))
    assert office.taken(inbox) == (item.id,)


def test_a_wait_ends_with_what_arrives_and_at_its_deadline(office: Office) -> None:
    inbox = office.inbox()
    inbox.wait(Deadline.after(0))
    assert office.taken(inbox) == ()
    for text in ("one", "two"):
        item = office.owner.send_text(text)
        inbox.wait(Deadline.after(WAIT_S))
        assert office.taken(inbox) == (item.id,)


def test_who_was_cut_off_wakes_nobody_with_what_came_before(
    relay: RelayThread, tmp_path: Path
) -> None:
    office = Office(relay, tmp_path, mode="execute", features=["epochs"])
    try:
        stranger = office.join("stranger")
        inbox = office.inbox()
        seen = stranger.send_text("do it", to="coder")
        office.coder.sync()
        assert office.coder.item(seen.id) is not None
        batch = inbox.take()
        assert batch is not None
        assert batch.items == (seen.id,)
        office.ledger.finish()
        stranger.send_text("and this", to="coder")
        office.owner.revoke("stranger")
        kept = office.owner.send_text("stop", to="coder")
        office.coder.sync()
        assert office.taken(inbox) == (kept.id,)
        assert office.taken(office.inbox()) == ()
    finally:
        office.close()


def test_a_batch_is_bounded_and_the_rest_comes_next(office: Office) -> None:
    sent = [office.owner.send_text(f"{n}").id for n in range(BATCH_ITEMS + 3)]
    inbox = office.inbox()
    assert office.taken(inbox) == tuple(sent[:BATCH_ITEMS])
    assert office.taken(office.inbox()) == tuple(sent[BATCH_ITEMS:])


def test_a_batch_that_was_taken_is_the_same_after_a_restart(office: Office) -> None:
    office.owner.send_text("do it")
    batch = office.inbox().take()
    office.inbox()
    assert office.ledger.batch == batch


def test_others_than_from_wake_nobody(office: Office) -> None:
    mimic = office.join("owner")
    mimic.send_text("do as I say", to="coder")
    assert office.taken(office.inbox("owner")) == ()
    item = office.owner.send_text("please")
    assert office.taken(office.inbox("owner")) == (item.id,)
    told = mimic.send_text("and me", to="coder")
    assert office.taken(office.inbox(mimic.participant_pub)) == (told.id,)


def test_agents_that_answer_each_other_stop(office: Office) -> None:
    other = office.join("other")
    item = other.send_text("hello", to="coder")
    handed = list(office.taken(office.inbox(max_hops=4)))
    for _ in range(3):
        answer = office.coder.send_text("hello", reply_to=item)
        item = other.send_text("hello", reply_to=answer)
        handed += office.taken(office.inbox(max_hops=4))
    assert len(handed) == 2  # the first post and the third; the fifth is one too many
    assert any("wakes nobody" in text for text in office.warnings)
    # a person in between starts the count anew
    person = office.owner.send_text("go on", reply_to=item, to="other")
    item = other.send_text("here it is", reply_to=person, to="coder")
    assert office.taken(office.inbox(max_hops=4)) == (item.id,)


class TestPending:
    """Items whose blob the relay does not give."""

    @pytest.fixture
    def liar(self, office: Office, relay: RelayThread) -> Iterator[LyingRelay]:
        with LyingRelay(relay.url) as liar:
            link = liar.link(office.owner.invites["sender"])
            office.coder = office.join("pending", link)
            office.taken(office.inbox())
            yield liar
            for session in office.people:
                session.disconnect()

    def test_one_that_cannot_be_fetched_holds_up_nothing_and_wakes_when_it_comes(
        self, office: Office, liar: LyingRelay
    ) -> None:
        liar.lies = {BLOB: say(503)}
        lost = office.owner.send_text("lost")
        inbox = office.inbox()
        assert office.taken(inbox) == ()
        liar.lies = {rf"GET \S*/items/{lost.id}/blob": say(503)}
        here = office.owner.send_text("here")
        inbox.wait(Deadline.after(WAIT_S))
        assert office.taken(inbox) == (here.id,)
        liar.honest()
        inbox.wait(Deadline.after(WAIT_S))
        assert office.taken(inbox) == (lost.id,)
        assert office.taken(office.inbox()) == ()

    def test_a_restart_waits_for_it_again(self, office: Office, liar: LyingRelay) -> None:
        liar.lies = {BLOB: say(503)}
        lost = office.owner.send_text("lost")
        assert office.taken(office.inbox()) == ()
        liar.honest()
        assert office.taken(office.inbox()) == (lost.id,)

    def test_given_up_it_still_wakes_but_not_after_a_restart(
        self, office: Office, liar: LyingRelay
    ) -> None:
        liar.lies = {BLOB: say(503)}
        first = office.owner.send_text("first")
        second = office.owner.send_text("second")
        inbox = office.inbox(pending_timeout_s=0)
        assert office.taken(inbox) == ()
        assert sum("cannot be fetched" in text for text in office.warnings) == 2
        liar.lies = {rf"GET \S*/items/{second.id}/blob": say(503)}
        inbox.wait(Deadline.after(WAIT_S))
        assert office.taken(inbox) == (first.id,)
        liar.honest()
        assert office.taken(office.inbox()) == ()

    def test_it_is_told_of_but_not_without_end(
        self, office: Office, liar: LyingRelay, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airlox.agents.inbox.WARNINGS", 2)
        liar.lies = {BLOB: say(503)}
        for n in range(4):
            office.owner.send_text(f"{n}")
        assert office.taken(office.inbox(pending_timeout_s=0)) == ()
        assert len(office.warnings) == 2

    def test_a_relay_that_is_away_for_a_while(
        self, office: Office, liar: LyingRelay, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airlox.agents.inbox._RETRY_S", 0.01)
        inbox = office.inbox()
        item = office.owner.send_text("hello")
        liar.lies = {".*": say(503)}
        for _ in range(3):
            inbox.wait(Deadline.after(0.1))
        assert office.taken(inbox) == ()
        assert sum("trying again" in text for text in office.warnings) == 1
        liar.honest()
        inbox.wait(Deadline.after(WAIT_S))
        assert office.taken(inbox) == (item.id,)
