"""A machine used for months: nobody fills up, everybody who comes finds the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox import Session, UsageError
from journeys.conftest import People
from support.clock import Clock
from support.fake_runner import FULL, FakeRunner, Task
from support.relay import RelayThread, now_ms, until

PATIENT_S = 60.0
DAY_S = 86_400
MONTHS = 5
JOBS_A_MONTH = 6


@pytest.fixture
def clock() -> Clock:
    return Clock(now_ms())


@pytest.fixture
def live(clock: Clock, tmp_path: Path) -> Iterator[RelayThread]:
    with RelayThread(clock=clock, data=str(tmp_path / "relay")) as running:
        yield running


@pytest.fixture
def people(tmp_path: Path, live: RelayThread) -> Iterator[People]:
    made = People(tmp_path, live.url)
    yield made
    made.go_home()


def lines(people: People, name: str, session: Session) -> int:
    return len(
        Path(people.cache(name), session.session_id, "events.jsonl").read_bytes().splitlines()
    )


def blobs(people: People, name: str, session: Session) -> int:
    return len(list(Path(people.cache(name), session.session_id, "blobs").iterdir()))


def test_months(people: People, live: RelayThread, clock: Clock) -> None:
    """P-HIS-2, P-HIS-3, P-HIS-8"""
    owner = people.owner(mode="execute", ttl=None, job_limits=dict(FULL), features=["history"])
    sender_link, view_link = owner.invites["sender"], owner.invites["observer"]
    away = people.join(view_link, "away")
    away.items()
    sizes, first = [], ""
    with FakeRunner(owner.invites["runner"], people.folder, Task.finish) as runner:
        owner.approve_runner(runner.public)
        for month in range(MONTHS):
            sender = people.join(sender_link, "sender")  # each month a fresh process
            sender.send_text(f"month {month}")
            for _ in range(JOBS_A_MONTH):
                job = sender.run_python("print(1)", runner="box")
                assert job.wait(PATIENT_S).ok
                first = first or job.id
            relayed = live.relay.core.sessions[owner.session_id]
            clock.turn(30 * DAY_S)
            until(lambda relayed=relayed: not relayed.jobs, "forgetting")  # type: ignore[misc]
            sender.items()
            sizes.append((lines(people, "sender", sender), blobs(people, "sender", sender)))
            assert sender.jobs() == []
            sender.disconnect()
        # one line more a month and text, and never a line of a job
        assert [size[0] - sizes[0][0] for size in sizes] == [2 * month for month in range(MONTHS)]
        assert max(size[1] for size in sizes) < JOBS_A_MONTH + MONTHS

        sender = people.join(sender_link, "sender")
        with pytest.raises(UsageError) as caught:
            sender.job(first)
        assert caught.value.code == "forgotten"

        job = sender.run_python("print(1)", runner="box")
        assert job.wait(PATIENT_S).ok
        newcomer = people.join(view_link, "newcomer")
        for reader in (away, newcomer):
            texts = [item.text for item in reader.items() if item.text]
            assert texts == [f"month {month}" for month in range(MONTHS)]
            (seen,) = reader.jobs()
            assert seen.id == job.id
            assert seen.wait(PATIENT_S).ok  # the approval is still there
            assert not any("left out" in warning for warning in reader.warnings)


def test_a_handle_whose_job_is_forgotten(people: People, live: RelayThread, clock: Clock) -> None:
    """P-HIS-8"""
    owner = people.owner(mode="execute", ttl=None, job_limits=dict(FULL), features=["history"])
    with FakeRunner(owner.invites["runner"], people.folder, Task.finish) as runner:
        owner.approve_runner(runner.public)
        job = owner.run_python("print(1)", runner="box")
        other = owner.job(job.id)
        assert job.wait(PATIENT_S).ok
        clock.turn(30 * DAY_S)
        until(lambda: not live.relay.core.sessions[owner.session_id].jobs, "forgetting")
        owner.items()
        assert job.wait(PATIENT_S).ok  # it is known here
        with pytest.raises(UsageError) as caught:
            other.result()
        assert caught.value.code == "forgotten"
        with pytest.raises(UsageError) as late:
            owner.send_text("what was that?", reply_to=job.id)
        assert late.value.code == "forgotten"


def test_input_files_go_with_their_jobs(people: People, live: RelayThread, clock: Clock) -> None:
    """P-HIS-9: from everybody's cache too; what is said of, and what others use, stays."""
    owner = people.owner(mode="execute", ttl=None, job_limits=dict(FULL), features=["history"])
    sender = people.join(owner.invites["sender"], "sender")
    with FakeRunner(owner.invites["runner"], people.folder, Task.finish) as runner:
        owner.approve_runner(runner.public)
        data, talked_of, unused = (
            sender.send_file(name.encode(), name=f"{name}.md") for name in ("a", "b", "c")
        )
        owner.sync()
        owner.send_text("look at this", refs=[talked_of])
        for _ in range(3):
            files = [data, talked_of]
            assert sender.run_python("print(1)", files=files, runner="box").wait(PATIENT_S).ok
        relayed = live.relay.core.sessions[owner.session_id]
        clock.turn(4 * DAY_S)
        young = sender.run_python("print(2)", files=[data], runner="box")
        assert young.wait(PATIENT_S).ok
        clock.turn(4 * DAY_S)
        until(lambda: list(relayed.jobs) == [young.id], "forgetting")
        readers = [owner, sender, people.join(owner.invites["observer"], "newcomer")]
        for reader in readers:
            reader.sync()
            assert {r.envelope.id for r in reader.records() if r.envelope} >= {
                *(young.id, data.id, talked_of.id, unused.id)
            }
        clock.turn(8 * DAY_S)
        until(lambda: not relayed.jobs, "forgetting")
        for reader in readers:
            reader.sync()
            known = {r.envelope.id for r in reader.records() if r.envelope}
            assert known >= {talked_of.id, unused.id}
            assert not known & {young.id, data.id}
            assert reader.alarms() == []
            assert not any("left out" in warning for warning in reader.warnings)
        assert not (people.cache("owner") / owner.session_id / "blobs" / data.id).exists()
        with pytest.raises(UsageError, match="no file of this session"):
            sender.run_python("print(1)", files=[data], runner="box")


def test_a_text_cannot_be_hidden_behind_what_was_forgotten(
    people: People, live: RelayThread, clock: Clock
) -> None:
    """P-CHN-5: a gap is no excuse for what no relay forgets."""
    owner = people.owner(mode="execute", ttl=None, job_limits=dict(FULL), features=["history"])
    with FakeRunner(owner.invites["runner"], people.folder, Task.finish) as runner:
        owner.approve_runner(runner.public)
        assert owner.run_python("print(1)", runner="box").wait(PATIENT_S).ok
        said = owner.send_text("what must not be known")
        owner.send_text("after that")
        clock.turn(30 * DAY_S)
        relayed = live.relay.core.sessions[owner.session_id]
        until(lambda: not relayed.jobs, "forgetting")
        hidden = relayed.items[said.id].seq
        live.call(relayed.events.__setitem__, hidden, None)
        reader = people.join(owner.invites["observer"], "reader")
        assert [item.text for item in reader.items() if item.text] == ["after that"]
        assert [(alarm.kind, alarm.item) for alarm in reader.alarms()] == [("missing", said.id)]
