"""Networks that are cut for long: beyond the runner grace, and for less.

A runner, a reader and somebody who waits for a job are cut off in one run, each in a network
namespace of their own; a runner and a sender who are not cut go on meanwhile. TEST_LONG_CUT_S says
how long the cut lasts; from ten times the usual 12 s on, the relay's own grace of 120 s counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from airlox import Job, Result, Session
from airlox.client.jobs import JobNotTaken
from airlox.protocol.job import Result as ResultMeta
from faults.campaign.surroundings import Line, Network
from support.commands import Cli
from support.machines import RelayProgram, RunnerProgram
from support.networks import own_network
from support.relay import until

CUT_S = float(os.environ.get("TEST_LONG_CUT_S", "12"))
IS_FULL = CUT_S >= 120
GRACE_S = 120 if IS_FULL else 6
SHORT_CUT_S = 60 if IS_FULL else 2
SETTINGS: dict[str, int] = (
    {}
    if IS_FULL
    else {"runner_grace_s": GRACE_S, "online_timeout_s": 2, "keepalive_s": 1, "stall_timeout_s": 3}
)
WAIT_S = 150.0
"""A client may take a minute to notice that a relay is silent, and another try half of that."""
STEP_S = 5.0 if IS_FULL else 0.5


class Others:
    """A sender and a runner who are not cut: what they sent and ran so far."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.texts = 0
        self.jobs = 0

    def go_on(self) -> None:
        """One text, and one job that must end well; then a pause."""
        self._session.send_text(f"text {self.texts}")
        self.texts += 1
        result = self._session.run_shell(f"echo {self.jobs}", runner="kept").wait(WAIT_S)
        assert (result.stdout, result.signed) == (f"{self.jobs}\n", True), result
        self.jobs += 1
        time.sleep(STEP_S)

    def go_on_until(self, done: Callable[[], bool], within_s: float, what: str) -> float:
        """How long it took, in seconds."""
        began = time.monotonic()
        while not done():
            assert time.monotonic() < began + within_s, f"no {what} within {within_s} s"
            self.go_on()
        return round(time.monotonic() - began, 1)


class Cast(NamedTuple):
    """Everybody of one run."""

    session: Session
    cut_runner: RunnerProgram
    runner_line: Line
    people_line: Line
    kept_person: Cli
    cut_person: Cli
    reader: Cli
    others: Others


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Cast]:
    with (
        own_network() as network,
        RelayProgram(tmp_path / "relay", way_in=(), **SETTINGS) as relay,
        Session.create(
            relay.url,
            mode="execute",
            job_limits={"kinds": ["shell"], "approve_runners": False, "timeout_s": 3600},
            cache_dir=tmp_path / "owner",
        ) as session,
    ):
        yield from _assemble(network, relay.url, session, tmp_path)


def _assemble(network: Network, url: str, session: Session, tmp_path: Path) -> Iterator[Cast]:
    invites = session.invites
    runner_line, people_line = network.add(), network.add()

    def person(name: str, role: str, line: Line | None = None) -> Cli:
        way_in = () if line is None else line.way_in
        return Cli(url, tmp_path / name, invite=invites[role], way_in=way_in)

    def runner(name: str, line: Line | None = None) -> RunnerProgram:
        way_in = () if line is None else line.way_in
        options = {"name": name, "concurrency": 2}
        return RunnerProgram(invites["runner"], tmp_path / name, way_in=way_in, **options)

    with runner("cut", runner_line) as cut, runner("kept") as kept:
        for each in (cut, kept):
            each.note("ready")
        yield Cast(
            session,
            cut,
            runner_line,
            people_line,
            person("sender", "sender"),
            person("cut-sender", "sender", people_line),
            person("reader", "observer", people_line),
            Others(session),
        )
        for each in (cut, kept):
            assert each.stop() == 0


class Command:
    """A command line that goes on, with its output in files."""

    def __init__(self, process: subprocess.Popen[str], out: Path, err: Path) -> None:
        self.process = process
        self._out, self._err = out, err

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def has_ended(self) -> bool:
        return self.process.poll() is not None


@contextmanager
def started(person: Cli, name: str, *words: str) -> Iterator[Command]:
    folder = person.home.parent
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        streams: dict[str, IO[bytes]] = {"stdout": stdout, "stderr": stderr}
        with person.started(*words, **streams) as process:
            yield Command(process, out, err)


def run_words(tmp_path: Path, name: str, runner: str) -> list[str]:
    """A job that prints, goes on until its flag is there, and prints again."""
    script = tmp_path / f"{name}.sh"
    flag = tmp_path / f"{name}.flag"
    script.write_text(f"echo begun {name}\nuntil [ -e {flag} ]; do sleep 0.2; done\necho {name}\n")
    return ["run", "--runner", runner, "--timeout", "1h", "--shell", str(script)]


@contextmanager
def watching(cast: Cast) -> Iterator[Command]:
    """The reader, who has come before anything is posted: what was posted earlier may have left
    the relay, and is shown when somebody has brought it back."""

    def is_there() -> bool:
        return any(who.role == "observer" for who in cast.session.participants())

    with started(cast.reader, "watch", "watch", "--json") as watch:
        until(is_there, "the reader")
        yield watch


def results_of(session: Session, job: str) -> int:
    session.sync()
    metas = [record.item.meta for record in session.records() if record.item is not None]
    return sum(isinstance(meta, ResultMeta) and meta.job.id == job for meta in metas)


@pytest.mark.slow
@pytest.mark.timeout(240 + 2 * CUT_S + 3 * GRACE_S)
def test_a_cut_beyond_the_grace_loses_nothing(cast: Cast, tmp_path: Path) -> None:
    figures: dict[str, Any] = {"cut_s": CUT_S, "grace_s": GRACE_S}
    others = cast.others
    with (
        watching(cast) as watch,
        started(cast.kept_person, "lost", *run_words(tmp_path, "lost", "cut")) as lost,
        started(cast.cut_person, "waiting", *run_words(tmp_path, "waiting", "kept")) as waiting,
    ):
        others.go_on_until(
            lambda: "begun lost" in lost.out and "begun waiting" in waiting.out, WAIT_S, "jobs"
        )
        others.go_on_until(lambda: '"text 0"' in watch.out, WAIT_S, "text at the reader")
        job = next(job for job in cast.session.jobs() if "lost" in str(job.meta))
        began = time.monotonic()
        cast.runner_line.cut()
        cast.people_line.cut()

        figures["runner_lost after"] = others.go_on_until(lost.has_ended, 4 * GRACE_S + 120, "end")
        assert lost.process.returncode == 1
        assert "runner lost" in lost.err
        assert job.id in lost.err
        found = cast.kept_person("result", "--json", "--", job.id, code=1).document
        assert (found["status"], found["reason"], found["signed"]) == (
            "failed",
            "runner_lost",
            False,
        )
        seen_before = watch.out
        for name in ("lost", "waiting"):
            (tmp_path / f"{name}.flag").touch()
        cast.cut_runner.note("job_ended")
        others.go_on_until(lambda: time.monotonic() > began + CUT_S, CUT_S + 60, "end of the cut")
        assert watch.out == seen_before
        assert not watch.has_ended()
        assert not waiting.has_ended()
        figures["cut lasted"] = round(time.monotonic() - began, 1)
        figures["told meanwhile"] = [others.texts, others.jobs]
        cast.runner_line.mend()
        cast.people_line.mend()

        figures["late result after"] = others.go_on_until(
            lambda: results_of(cast.session, job.id) > 0, WAIT_S, "late result"
        )
        late = cast.kept_person("result", "--json", "--", job.id).document
        assert (late["status"], late["signed"], late["stdout"]) == (
            "completed",
            True,
            "begun lost\nlost\n",
        )
        figures["waiting run ended after"] = others.go_on_until(
            waiting.has_ended, WAIT_S, "end of the run that was cut"
        )
        assert (waiting.process.returncode, waiting.out) == (0, "begun waiting\nwaiting\n")
        cast.session.send_text("the last one")
        figures["reader has all after"] = others.go_on_until(
            lambda: '"the last one"' in watch.out, WAIT_S, "last text at the reader"
        )
        assert run_when_back(cast, "echo again").stdout == "again\n"
        assert results_of(cast.session, job.id) == 1
        check_reader(cast, watch)
        figures["told in all"] = [others.texts, others.jobs]
    print(figures)
    print(f"`run` said: {lost.err}")
    print(f"the reader was told: {watch.err}")
    print(f"the run that was cut was told: {waiting.err}")


def run_when_back(cast: Cast, command: str) -> Result:
    """By the runner that was cut, as soon as its stream is there again."""
    given: list[Job] = []

    def is_taken() -> bool:
        with suppress(JobNotTaken):
            given.append(cast.session.run_shell(command, runner="cut"))
        return bool(given)

    cast.others.go_on_until(is_taken, WAIT_S, "runner that was cut")
    return given[0].wait(WAIT_S)


def check_reader(cast: Cast, watch: Command) -> None:
    """What the reader printed is what the session holds: each item once, in order."""

    def read() -> list[tuple[int, str]]:
        shown = [json.loads(line) for line in watch.out.splitlines(True) if line.endswith("\n")]
        return [(shape["seq"], shape["id"]) for shape in shown]

    cast.session.sync()
    held = [(r.seq, str(r.envelope.id)) for r in cast.session.records() if r.envelope is not None]
    until = time.monotonic() + WAIT_S
    while len(read()) < len(held) and time.monotonic() < until:
        time.sleep(0.1)
    assert read() == held


@pytest.mark.slow
@pytest.mark.timeout(240 + 2 * SHORT_CUT_S)
def test_in_a_cut_shorter_than_the_grace_the_job_simply_completes(
    cast: Cast, tmp_path: Path
) -> None:
    others = cast.others
    with started(cast.kept_person, "short", *run_words(tmp_path, "short", "cut")) as run:
        others.go_on_until(lambda: "begun short" in run.out, WAIT_S, "job")
        began = time.monotonic()
        cast.runner_line.cut()
        (tmp_path / "short.flag").touch()
        cast.cut_runner.note("job_ended")
        others.go_on_until(lambda: time.monotonic() > began + SHORT_CUT_S, SHORT_CUT_S + 60, "end")
        assert not run.has_ended()
        cast.runner_line.mend()
        took = others.go_on_until(run.has_ended, WAIT_S, "end of the run")
        assert (run.process.returncode, run.out) == (0, "begun short\nshort\n"), run.err
        assert "lost" not in run.err.replace("connection lost", "")
    assert others.jobs > 0
    print({"short cut_s": SHORT_CUT_S, "run ended after": took, "run said": run.err})
