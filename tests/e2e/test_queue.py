"""Jobs that wait for a slot, on a real relay with real runners that take one at a time."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airlox import Session
from airlox.client.answers import JobStatus
from airlox.client.jobs import Job
from airlox.errors import JobRefused, PolicyError, UsageError
from airlox.protocol.job import Result
from support.commands import Cli, on_terminal
from support.machines import RelayProgram, RunnerProgram
from support.relay import until

RUNTIME = f"python3.{sys.version_info[1]}"
WAIT_S = 60.0


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProgram]:
    with RelayProgram(tmp_path / "relay") as program:
        yield program


class Office:
    """A session with a queue, some senders, and runners that are started by name. What jobs did,
    they wrote to `log`; those that were told to stay wait for `gate`."""

    def __init__(self, relay: RelayProgram, folder: Path) -> None:
        self.relay = relay
        self.folder = folder
        self.log = self.folder / "log"
        self.gate = self.folder / "gate"
        self.owner = Session.create(
            relay.url,
            mode="execute",
            ttl="1h",
            job_limits={
                "runtime": RUNTIME,
                "kinds": ["python", "shell"],
                "approve_runners": False,
                "timeout_s": 120,
            },
            features=["history", "queue"],
            cache_dir=folder / "owner",
        )
        self.runners: list[RunnerProgram] = []
        self._people: list[Session] = [self.owner]

    def runner(self, name: str = "box") -> RunnerProgram:
        program = RunnerProgram(self.owner.invites["runner"], self.folder / name, name=name)
        self.runners.append(program)
        program.start()
        program.note("ready")
        return program

    def sender(self, name: str) -> Session:
        person = Session.join(
            self.owner.invites["sender"], display_name=name, cache_dir=self.folder / name
        )
        self._people.append(person)
        return person

    def job(self, sender: Session, mark: str, **options: Any) -> Job:
        """One that writes its mark and is over."""
        given = {"queue": True, **options}
        return sender.run_shell(f"echo {mark} >> {self.log}", **given)

    def stay(self, sender: Session, mark: str, runner: str | None = None) -> Job:
        """One that has a slot until the gate opens."""
        script = (
            f"echo up; while [ ! -e {self.gate} ]; do sleep 0.02; done; echo {mark} >> {self.log}"
        )
        job = sender.run_shell(script, runner=runner)
        assert next(job.output(WAIT_S)).data == b"up\n"
        return job

    def open_gate(self) -> None:
        self.gate.touch()

    def marks(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    def check_ends(self, *jobs: Job) -> None:
        """Each job has run once, with one end that was told once."""
        self.owner.sync()
        metas = [item.meta for item in self.owner.items()]
        results = Counter(meta.job.id for meta in metas if isinstance(meta, Result))
        assert results == Counter({job.id: 1 for job in jobs})
        assert self.owner.alarms() == []

    def go_home(self) -> None:
        self.open_gate()
        for person in self._people:
            person.disconnect()
        for runner in self.runners:
            runner.__exit__(None, None, None)


@pytest.fixture
def office(relay: RelayProgram, tmp_path: Path) -> Iterator[Office]:
    made = Office(relay, tmp_path)
    yield made
    made.go_home()


def test_senders_take_turns_and_each_job_runs_once(office: Office) -> None:
    """P-QUE-4"""
    office.runner()
    ann, bob = office.sender("ann"), office.sender("bob")
    first = office.stay(ann, "first", "box")
    jobs = [office.job(ann, f"a{n}", runner="box") for n in range(4)]
    jobs += [office.job(bob, f"b{n}") for n in range(2)]
    until(lambda: [job.state().place for job in jobs] == [2, 4, 5, 6, 1, 3], "the places")
    assert jobs[0].waiting is not None
    with pytest.raises(JobRefused) as refused:
        office.job(ann, "never", queue=None)
    assert refused.value.code == "runner_busy"
    assert "--queue" in str(refused.value.hint)
    office.open_gate()
    assert all(job.wait(WAIT_S).ok for job in (first, *jobs))
    assert office.marks() == ["first", "b0", "a0", "b1", "a1", "a2", "a3"]
    office.check_ends(first, *jobs)


@pytest.mark.slow
def test_the_relay_is_killed_while_jobs_wait(office: Office) -> None:
    """P-QUE-6: everything that waits runs, once, on whichever runner is free."""
    office.runner("one")
    office.runner("two")
    people = [office.sender(name) for name in ("ann", "bob", "cy")]
    staying = [office.stay(people[0], "one", "one"), office.stay(people[0], "two", "two")]
    jobs = [
        office.job(person, f"{at}-{n}", runner="one" if n == 2 else None)
        for at, person in enumerate(people)
        for n in range(4)
    ]
    office.relay.kill()
    office.relay.start()
    assert {job.state().state for job in jobs} == {"queued"}
    office.open_gate()
    office.relay.kill()
    office.relay.start()
    for job in (*staying, *jobs):
        assert job.wait(WAIT_S).ok
    assert len(office.marks()) == len(set(office.marks())) == 14
    office.check_ends(*staying, *jobs)


@pytest.mark.slow
def test_a_runner_leaves_while_jobs_wait_and_comes_back(office: Office) -> None:
    runner = office.runner()
    ann = office.sender("ann")
    staying = office.stay(ann, "first", "box")
    job, cancelled = office.job(ann, "second", runner="box"), office.job(ann, "third", runner="box")
    assert runner.stop() == 0
    assert staying.wait(WAIT_S).status == "cancelled"
    until(lambda: job.state().reason == "no_runner", "the reason")
    cancelled.cancel()
    ended = cancelled.wait(WAIT_S)
    assert (ended.status, ended.reason, ended.signed) == ("cancelled", "cancelled", False)
    runner.start()
    result = job.wait(WAIT_S)
    assert (result.ok, result.runner_name) == (True, "box")
    assert office.marks() == ["second"]


@pytest.mark.slow
def test_a_runner_is_killed_while_jobs_wait(office: Office) -> None:
    """P-QUE-6: the job it had is lost, and those that wait go to nobody until it is back."""
    runner = office.runner()
    ann = office.sender("ann")
    staying = office.stay(ann, "first", "box")
    jobs = [office.job(ann, f"{n}", runner="box") for n in range(3)]
    runner.kill()
    until(lambda: {job.state().reason for job in jobs} == {"no_runner"}, "the reason")
    runner.start()
    lost = staying.wait(WAIT_S)
    assert lost.cause is not None
    assert (lost.signed, str(lost.cause.kind)) == (True, "runner_lost")
    assert all(job.wait(WAIT_S).ok for job in jobs)
    assert office.marks() == ["0", "1", "2"]
    office.check_ends(staying, *jobs)


def test_a_job_waits_for_a_runner_that_has_not_joined(office: Office) -> None:
    """Live output and the runner's name come though it was unknown at first."""
    ann = office.sender("ann")
    job = ann.run_shell("echo out; echo err >&2", queue=30)
    assert (job.runner, job.state().reason) == (None, "no_runner")
    told: list[tuple[str, int | None]] = []

    def hear(status: JobStatus) -> None:
        told.append((status.state, status.place))

    with ThreadPoolExecutor(1) as thread:
        output = thread.submit(list, job.output(WAIT_S, on_status=hear))
        until(lambda: told, "the first word")
        office.runner()
        assert {piece.data for piece in output.result(WAIT_S)} == {b"out\n", b"err\n"}
    assert told[0] == ("queued", 1)
    assert "running" in dict(told)
    assert job.runner == job.wait().runner


def test_a_wait_ends_in_time(office: Office) -> None:
    """P-QUE-5"""
    ann = office.sender("ann")
    result = office.job(ann, "never", queue=1).wait(WAIT_S)
    assert (result.signed, result.status, result.reason) == (False, "failed", "queue_expired")
    assert office.marks() == []


def test_a_sender_need_not_be_there_when_the_turn_comes(office: Office, tmp_path: Path) -> None:
    """P-QUE-7: its tree is on the relay, for whichever runner that is."""
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "a.txt").write_text("content\n")
    ann = office.sender("ann")
    job = ann.run_shell(["cat", "a.txt"], tree=folder, queue=60)
    assert job.waiting is not None
    ann.disconnect()
    office.runner()
    assert office.owner.job(job.id).wait(WAIT_S).stdout == "content\n"


def test_who_may_not_wait(office: Office, tmp_path: Path) -> None:
    for seconds in (0.5, -1, 8 * 86_400):
        with pytest.raises(UsageError):
            office.job(office.owner, "never", queue=seconds)
    for limits in ({"kinds": ["shell"]}, {}):
        with Session.create(
            office.relay.url, mode="execute", job_limits=limits, cache_dir=tmp_path / "other"
        ) as other:
            with pytest.raises((UsageError, PolicyError)) as refused:
                other.run_python("1", queue=True)
            assert refused.value.code == "no_queue"


def test_the_command_line(office: Office, tmp_path: Path) -> None:
    """What waits is listed with its place; its tree is complete though its sender has gone."""
    office.runner()
    staying = office.stay(office.sender("ann"), "first", "box")
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "a.txt").write_text("content\n")
    person = Cli(office.relay.url, tmp_path / "bob", invite=office.owner.invites["sender"])
    sent = person.at(folder)(
        "run", "--runner", "box", "--tree", "--queue", "--no-wait", "--", "cat", "a.txt"
    )
    job = sent.out.strip()
    assert "waits: place 1, box is busy" in sent.err
    short = person("run", "--queue=1", "--runner", "box", "--", "true", code=1)
    assert short.err.splitlines()[1] == "waits: place 2, box is busy"
    assert "queue_expired" in short.err
    shown = on_terminal(person, "run", "--queue=1", "--runner", "box", "--", "true")
    assert "waits: place 2, box is busy\r\x1b[2K" in shown
    listed = [line for line in person("job", "ls").out.splitlines() if line.startswith(job)]
    assert "waits: place 1, busy" in listed[0]
    document = person("result", "--json", "--", job, code=75).document
    assert document == {"job": job, "place": 1, "reason": "busy", "status": "queued"}
    with person.started("run", "--json", "--queue", "--runner", "box", "--", "true") as running:
        assert running.stderr is not None
        event = json.loads(running.stderr.readline())
        assert (event["event"], event["place"], event["reason"]) == ("waiting", 2, "busy")
        person("cancel", "--", event["job"])
        assert running.wait(WAIT_S) == 1
    office.open_gate()
    assert person("result", "--wait", "60", "--", job).out == "content\n"
    assert staying.wait(WAIT_S).ok


def test_logs_of_a_job_that_waits(office: Office) -> None:
    office.runner()
    office.stay(office.owner, "first", "box")
    job = office.owner.run_shell("echo mine", queue=True)
    person = Cli(office.relay.url, office.folder / "owner", invite=office.owner.invites["owner"])
    (last,) = person("logs", "--json", "--", job.id).lines
    assert (last["next"], last["status"]) == (0, "queued")
    with person.started("logs", "-f", "--", job.id) as following:
        assert following.stderr is not None
        assert following.stdout is not None
        assert following.stderr.readline().startswith("waits: place 1")
        office.open_gate()
        assert following.stdout.read() == "mine\n"
        assert following.wait(WAIT_S) == 0
