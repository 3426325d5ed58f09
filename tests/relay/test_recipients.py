"""For whom a blob is kept, and for whom not: it leaves once all of them have stored it.

In memory and on a disk; the last test kills the relay between the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.protocol import wire
from airlox.protocol.item import SealedItem
from airlox.protocol.keys import Role
from airlox.protocol.payload import RunnerApprove
from support.clock import Clock
from support.crew import Crew
from support.relay import Http, Member, RelayThread, create, join, new_world, now_ms, until
from support.server import ServerProcess

GRACE_S = 60
SIZES = {"small": 10, "large": 100_000}
"""In the journal, and in a file of its own."""


class Hall:
    """A crew on a relay whose clock is turned by hand."""

    def __init__(self, relay: RelayThread, clock: Clock) -> None:
        self.relay = relay
        self.clock = clock
        self.crew = Crew(relay, full=True)
        self.owner, self.sender, self.sid = self.crew.owner, self.crew.sender, self.crew.sid

    def join(self, role: Role = Role.OBSERVER) -> Member:
        return join(self.crew.http, self.crew.world.person(role))

    def post(self, member: Member, size: str = "small") -> SealedItem:
        return member.say("x" * SIZES[size])

    def ack(self, member: Member, item: SealedItem) -> None:
        assert member.post(wire.ack(self.sid, item.ref.id)).status == 204

    def want(self, member: Member, item: SealedItem) -> None:
        assert member.post(wire.want(self.sid, item.ref.id)).status == 200

    def bring(self, member: Member, item: SealedItem) -> None:
        answer = member.ask("PUT", wire.blob(self.sid, item.ref.id), item.blob)
        assert answer.status == 200, answer.body

    def is_there(self, item: SealedItem) -> bool:
        answer = self.owner.get(wire.blob(self.sid, item.ref.id))
        if answer.status == 200:
            assert answer.body == item.blob
            return True
        assert answer.error == "410 evicted"
        return False

    def wait(self, seconds: float) -> None:
        """And for what the sweeper does about it."""
        self.clock.turn(seconds)
        passes = self.relay.relay.sweeper.passes
        until(lambda: self.relay.relay.sweeper.passes > passes + 22, "a slow pass")


@pytest.fixture(params=["memory", "disk"])
def hall(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hall]:
    data = None if request.param == "memory" else str(tmp_path / "data")
    clock = Clock(now_ms())
    with RelayThread(data=data, clock=clock, newcomer_grace_s=GRACE_S, sweep_ms=10) as relay:
        yield Hall(relay, clock)


# ── who leaves, or never comes ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", SIZES)
def test_it_is_kept_for_everybody_who_was_there(hall: Hall, size: str) -> None:
    observer = hall.join()
    item = hall.post(hall.owner, size)
    hall.ack(hall.sender, item)
    hall.wait(10 * GRACE_S)
    assert hall.is_there(item)
    hall.ack(observer, item)
    assert not hall.is_there(item)


def test_it_is_not_kept_for_who_was_revoked_or_left(hall: Hall) -> None:
    observer, second = hall.join(), hall.join(Role.SENDER)
    item = hall.post(hall.owner)
    hall.ack(hall.sender, item)
    assert hall.owner.post(wire.revoke(hall.sid, "observer")).status == 200
    assert observer.get(wire.events(hall.sid)).status == 401
    assert hall.is_there(item)
    assert second.post(wire.leave(hall.sid)).status == 200
    until(lambda: not hall.is_there(item), "eviction")


def test_it_is_not_kept_for_a_runner_that_was_rejected(hall: Hall) -> None:
    runner = hall.crew.runner(ready=False)
    approval = hall.owner.person.post(RunnerApprove(participant_pub=runner.public), at_ms=now_ms())
    cancel = hall.post(hall.owner)
    assert hall.owner.send(approval).status == 201
    hall.ack(hall.sender, cancel)
    assert hall.owner.post(wire.reject(hall.sid, runner.public)).status == 200
    until(lambda: not hall.is_there(cancel), "eviction")


def test_who_joined_later_may_fetch_it_for_a_while(hall: Hall) -> None:
    """P-REL-9."""
    item = hall.post(hall.owner)
    newcomer = hall.join()
    hall.ack(hall.sender, item)
    hall.wait(GRACE_S - 1)
    assert hall.is_there(item)
    hall.ack(newcomer, item)
    assert not hall.is_there(item)


def test_who_joined_later_and_never_comes_keeps_nothing(hall: Hall) -> None:
    """P-REL-9."""
    item = hall.post(hall.owner)
    hall.join()
    hall.ack(hall.sender, item)
    hall.wait(GRACE_S)
    assert not hall.is_there(item)
    after = hall.post(hall.owner)
    hall.ack(hall.sender, after)
    hall.wait(GRACE_S)
    assert hall.is_there(after)  # for this one it was there


def test_what_nobody_was_there_for_is_kept_until_somebody_has_it(hall: Hall) -> None:
    """P-REL-9: the bytes are nowhere but with the author."""
    assert hall.sender.post(wire.leave(hall.sid)).status == 200
    item = hall.post(hall.owner)
    hall.ack(hall.owner, item)
    late = hall.join()
    hall.wait(10 * GRACE_S)
    assert hall.is_there(item)
    hall.ack(late, item)
    assert not hall.is_there(item)


# ── asked back ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", SIZES)
def test_who_joined_late_asks_it_back(hall: Hall, size: str) -> None:
    item = hall.post(hall.owner, size)
    hall.ack(hall.sender, item)
    assert not hall.is_there(item)
    late = hall.join()
    hall.wait(GRACE_S)
    hall.want(late, item)
    hall.bring(hall.sender, item)
    assert hall.is_there(item)
    hall.ack(hall.sender, item)  # who brought it has it: that is not who asked
    hall.wait(GRACE_S)
    assert hall.is_there(item)
    assert late.get(wire.blob(hall.sid, item.ref.id)).body == item.blob
    hall.ack(late, item)
    assert not hall.is_there(item)


def test_all_who_asked_are_waited_for(hall: Hall) -> None:
    item = hall.post(hall.owner)
    hall.ack(hall.sender, item)
    first, second = hall.join(), hall.join()
    hall.wait(GRACE_S)
    hall.want(first, item)
    hall.want(second, item)
    hall.bring(hall.owner, item)
    hall.ack(first, item)
    assert hall.is_there(item)
    assert second.post(wire.leave(hall.sid)).status == 200
    until(lambda: not hall.is_there(item), "eviction")


def test_who_asked_and_does_not_come_keeps_it_for_a_while_only(hall: Hall) -> None:
    item = hall.post(hall.owner)
    hall.ack(hall.sender, item)
    late = hall.join()
    hall.want(late, item)
    hall.bring(hall.owner, item)
    hall.wait(hall.relay.config.want_lifetime_s - 1)
    assert hall.is_there(item)
    hall.wait(1)
    assert not hall.is_there(item)


def test_who_was_there_and_lost_it_is_waited_for_again(hall: Hall) -> None:
    item = hall.post(hall.owner)
    hall.ack(hall.sender, item)
    hall.want(hall.sender, item)
    hall.bring(hall.owner, item)
    assert hall.is_there(item)
    hall.ack(hall.sender, item)
    assert not hall.is_there(item)


# ── runners ──────────────────────────────────────────────────────────────────────────────────


def test_no_runner_keeps_what_it_does_not_read(hall: Hall) -> None:
    """P-REL-9: texts, jobs and results are not for runners, whether they say they have them or
    not."""
    crew, box = hall.crew, hall.crew.runner("box")
    crew.runner("idle")
    text = hall.post(hall.owner)
    hall.ack(hall.sender, text)
    assert not hall.is_there(text)
    job = crew.job()
    assert crew.submit(job).status == 201
    assert crew.claim(box, job).status == 200
    result = crew.result(box, job)
    hall.ack(hall.owner, job)
    assert hall.is_there(job)  # the one that runs it may come back for it
    assert box.send(result).status == 201
    assert not hall.is_there(job)
    for member in (hall.owner, hall.sender):
        assert hall.is_there(result)
        hall.ack(member, result)
    assert not hall.is_there(result)


def test_a_runner_that_gave_its_job_up_keeps_it_no_more(hall: Hall) -> None:
    runner, job = hall.crew.runner(), hall.crew.job()
    assert hall.crew.submit(job).status == 201
    hall.ack(hall.owner, job)
    assert hall.is_there(job)
    assert hall.sender.post(wire.cancel(hall.sid, job.ref.id)).status == 200
    assert hall.crew.claim(runner, job).error == "409 not_assigned"
    assert not hall.is_there(job)


def test_what_only_a_runner_says_to_have_stays(hall: Hall) -> None:
    """0.1.0 runners acknowledge texts without fetching them."""
    runner = hall.crew.runner()
    assert hall.sender.post(wire.leave(hall.sid)).status == 200
    text = hall.post(hall.owner)
    hall.ack(runner, text)
    hall.wait(10 * GRACE_S)
    assert hall.is_there(text)


# ── over kill -9 ─────────────────────────────────────────────────────────────────────────────


class Killed:
    """A relay process that is killed between any two steps."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.running = ServerProcess("--data", str(data))
        self.members: list[Member] = []

    def again(self) -> None:
        self.running.kill()
        self.running = ServerProcess("--data", str(self.data))
        for member in self.members:
            member.http = Http(self.running.url)


@pytest.mark.parametrize("size", SIZES)
def test_a_kill_changes_nothing_of_this(tmp_path: Path, size: str) -> None:
    killed = Killed(tmp_path / "data")
    try:
        http, world = Http(killed.running.url), new_world()
        create(http, world)
        people = [join(http, world.person(role)) for role in (Role.OWNER, Role.SENDER)]
        owner, sender = people
        killed.members += people
        item = owner.say("x" * SIZES[size])
        path = wire.blob(owner.sid, item.ref.id)
        killed.again()
        assert sender.get(path).body == item.blob
        late = join(Http(killed.running.url), world.person(Role.OBSERVER))
        killed.members.append(late)
        assert sender.post(wire.ack(owner.sid, item.ref.id)).status == 204
        killed.again()
        assert late.get(path).body == item.blob
        assert late.post(wire.ack(owner.sid, item.ref.id)).status == 204
        killed.again()
        assert late.get(path).error == "410 evicted"
        assert not files_with(killed.data, item)
        assert late.post(wire.want(owner.sid, item.ref.id)).status == 200
        killed.again()
        assert sender.ask("PUT", path, item.blob).status == 200
        killed.again()
        assert late.get(path).body == item.blob
        assert late.post(wire.ack(owner.sid, item.ref.id)).status == 204
        killed.again()
        assert late.get(path).error == "410 evicted"
        kinds = [event["kind"] for event in owner.events()]
        assert kinds[2:] == ["item", "participant", "evicted", "want", "reseeded", "evicted"]
    finally:
        killed.running.kill()


def files_with(folder: Path, item: SealedItem) -> list[Path]:
    """Blob files of an item."""
    return list(folder.glob(f"sessions/*/blobs/{item.ref.id.encode().hex()}"))
