"""Who has stored what a participant posted, as its author is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from airlox.protocol import limits, wire
from airlox.protocol.item import SealedItem
from airlox.protocol.keys import Role
from support.crew import Crew
from support.relay import Http, Member, RelayThread, file_item, join
from support.server import server
from support.world import World


def told(member: Member, limit: int | str = limits.DELIVERIES) -> list[dict[str, Any]]:
    answer = member.get(wire.delivery(member.sid, 0)[:-1] + str(limit))
    assert answer.status == 200, answer.body
    items: list[dict[str, Any]] = msgspec.json.decode(answer.body)["items"]
    return items


def reached(member: Member, item: SealedItem) -> tuple[list[str], list[str]]:
    (found,) = [each for each in told(member) if each["item"] == item.ref.id]
    assert set(found) == {"item", "delivered", "waiting"}
    return found["delivered"], found["waiting"]


def ack(member: Member, item: SealedItem) -> None:
    assert member.post(wire.ack(member.sid, item.ref.id)).status == 204


class TestWhoHasIt:
    """[P-ADR-7]"""

    def test_each_reader_moves_from_one_list_to_the_other(
        self, http: Http, world: World, owner: Member, sender: Member
    ) -> None:
        observer = join(http, world.person(Role.OBSERVER))
        item = owner.say("hello")
        assert reached(owner, item) == ([], [sender.public, observer.public])
        ack(observer, item)
        assert reached(owner, item) == ([observer.public], [sender.public])
        ack(sender, item)
        assert reached(owner, item) == ([sender.public, observer.public], [])

    def test_only_the_author_is_told(self, owner: Member, sender: Member) -> None:
        first, second = owner.say("one"), sender.say("two")
        assert [each["item"] for each in told(owner)] == [first.ref.id]
        assert [each["item"] for each in told(sender)] == [second.ref.id]

    def test_who_left_is_not_waited_for(
        self, http: Http, world: World, owner: Member, sender: Member
    ) -> None:
        other = join(http, world.person(Role.SENDER))
        item = owner.say("hello")
        ack(other, item)
        assert other.post(wire.leave(other.sid)).status == 200
        assert reached(owner, item) == ([other.public], [sender.public])
        assert sender.post(wire.leave(sender.sid)).status == 200
        assert reached(owner, item) == ([other.public], [])

    def test_who_asks_for_it_back_is_waited_for(
        self, http: Http, world: World, owner: Member, sender: Member
    ) -> None:
        item = owner.say("hello")
        ack(sender, item)
        assert reached(owner, item) == ([sender.public], [])
        newcomer = join(http, world.person(Role.OBSERVER))
        assert reached(owner, item) == ([sender.public], [])
        assert newcomer.post(wire.want(newcomer.sid, item.ref.id)).status == 200
        assert reached(owner, item) == ([sender.public], [newcomer.public])

    def test_who_lost_it_is_waited_for_again(self, owner: Member, sender: Member) -> None:
        item = owner.say("hello")
        ack(sender, item)
        assert sender.post(wire.want(sender.sid, item.ref.id)).status == 200
        assert reached(owner, item) == ([], [sender.public])


class TestRunners:
    def test_they_are_waited_for_where_they_read(self, relay: RelayThread) -> None:
        crew = Crew(relay)
        runner = crew.runner()
        text = crew.sender.say("not for machines")
        file = file_item(crew.sender.person, b"print(1)")
        assert crew.sender.send(file).status == 201
        assert reached(crew.sender, text) == ([], [crew.owner.public])
        assert reached(crew.sender, file) == ([], [crew.owner.public, runner.public])
        for item in (text, file):
            ack(runner, item)
        assert reached(crew.sender, text) == ([], [crew.owner.public])
        assert reached(crew.sender, file) == ([runner.public], [crew.owner.public])

    def test_of_a_job_the_one_that_has_it(self, relay: RelayThread) -> None:
        crew = Crew(relay)
        runner, other = crew.runner("one"), crew.runner("two")
        job = crew.job()
        assert crew.submit(job).json["runner"] == runner.public
        assert reached(crew.sender, job) == ([], [crew.owner.public, runner.public])
        assert crew.claim(runner, job).status == 200
        for member in (runner, other):
            ack(member, job)
        assert runner.send(crew.result(runner, job)).status == 201
        assert reached(crew.sender, job) == ([runner.public], [crew.owner.public])


class TestTheList:
    def test_the_newest_in_their_order(self, owner: Member) -> None:
        items = [owner.say(str(number)).ref.id for number in range(5)]
        assert [each["item"] for each in told(owner)] == items
        assert [each["item"] for each in told(owner, 2)] == items[-2:]
        assert told(owner, 0) == []

    def test_it_is_bounded(self, owner: Member) -> None:
        assert wire.delivery(owner.sid, 7).endswith("/delivery?limit=7")
        items = [owner.say("x").ref.id for _ in range(limits.DELIVERIES + 1)]
        assert [each["item"] for each in told(owner, 10**9)] == items[1:]

    @pytest.mark.parametrize("limit", ["-1", "x", "1e3", "9" * 20])
    def test_no_number(self, owner: Member, limit: str) -> None:
        answer = owner.get(wire.delivery(owner.sid, 0)[:-1] + limit)
        assert answer.error == "400 bad_request"

    def test_it_needs_a_token(self, owner: Member) -> None:
        owner.token = "nobody's"
        assert owner.get(wire.delivery(owner.sid, 1)).error == "401 unauthorized"


def test_a_kill_changes_nothing_of_this(tmp_path: Path) -> None:
    options = ("--data", str(tmp_path / "data"))
    with server(*options) as running:
        crew = Crew(running)
        item, newer = crew.owner.say("hello"), crew.owner.say("again")
        ack(crew.sender, item)
        running.kill()
    with server(*options) as running:
        crew.owner.http = Http(running.url)
        assert reached(crew.owner, item) == ([crew.sender.public], [])
        assert reached(crew.owner, newer) == ([], [crew.sender.public])
