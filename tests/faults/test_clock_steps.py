"""Wall clocks that step back, by minutes and by days, under a relay, a runner and clients.

The campaign turns everybody's clock too, at random and those of relay and runners by minutes only.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from airlox import Session
from airlox.protocol import wire
from faults.campaign.surroundings import Clock
from support.commands import Cli
from support.machines import RelayProgram, RunnerProgram
from support.relay import Http, until

CLOCKED = Path(__file__).parent / "campaign" / "clocked.py"
WAIT_S = 60.0
WHO = ("relay", "runner", "sender", "reader")


def under(clock: Clock) -> tuple[str, ...]:
    """The words that put a Python program under a clock."""
    return sys.executable, str(CLOCKED), str(clock.path)


class Scene:
    """A relay, a runner, a sender and a reader, each with a clock of its own."""

    def __init__(self, session: Session, clocks: dict[str, Clock], folder: Path) -> None:
        self.session = session
        self.clocks = clocks
        self.folder = folder
        self.rounds = 0
        self.sender = self.person("sender", "sender")
        self.reader = self.person("reader", "observer")
        self.seen = folder / "seen"

    def person(self, name: str, role: str) -> Cli:
        invite = self.session.invites[role]
        way_in = under(self.clocks[name])
        return Cli(self.session.relay, self.folder / name, invite=invite, way_in=way_in)

    def step(self, whose: tuple[str, ...], offset_s: int) -> None:
        """Turn clocks while a job runs: it ends well and takes no longer than it did; then what
        is sent arrives, and another job runs."""
        flag, name = self.folder / f"flag {self.rounds}", f"round {self.rounds}"
        self.rounds += 1
        script = f"echo begun\nuntil [ -e '{flag}' ]; do sleep 0.05; done\necho {name}"
        job = self.session.run_shell(script, runner="box")
        assert next(job.output(WAIT_S)).data == b"begun\n"
        for who in whose:
            self.clocks[who].set(offset_s)
        flag.touch()
        result = job.wait(WAIT_S)
        assert (result.status, result.signed) == ("completed", True), result
        assert result.stdout == f"begun\n{name}\n"
        assert 0 <= result.wall_ms < WAIT_S * 1000
        self.sender("send", "text", name)
        until(lambda: name in self.texts(), f"{name} at the reader")
        assert self.sender("run", "--runner", "box", "--", "echo", name).out == f"{name}\n"

    def texts(self) -> list[str]:
        """What the reader printed so far."""
        lines = self.seen.read_text().splitlines(keepends=True)
        shapes = [json.loads(line) for line in lines if line.endswith("\n")]
        return [shape["text"] for shape in shapes if shape["kind"] == "text"]


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    clocks = {who: Clock(folder / f"clock-{who}") for who in WHO}
    limits = {"kinds": ["shell"], "approve_runners": False}
    with (
        RelayProgram(folder / "data", way_in=under(clocks["relay"])) as relay,
        Session.create(
            relay.url, mode="execute", job_limits=limits, cache_dir=folder / "owner"
        ) as session,
        RunnerProgram(
            session.invites["runner"], folder / "runner", way_in=under(clocks["runner"])
        ) as runner,
    ):
        runner.note("ready")
        made = Scene(session, clocks, folder)
        with (
            made.seen.open("wb") as stdout,
            made.reader.started("watch", "--json", stdout=stdout),
        ):
            yield made
        assert runner.stop() == 0
        assert relay.stop() == 0


@pytest.mark.parametrize("back_s", [300, 172_800])
def test_clocks_step_back(tmp_path: Path, back_s: int) -> None:
    with scene(tmp_path) as made:
        for who in WHO:
            made.step((who,), -back_s)
        date = Http(made.session.relay).ask("GET", wire.HEALTH).headers["date"]
        behind_s = time.time() - parsedate_to_datetime(date).timestamp()
        assert back_s <= behind_s < back_s + WAIT_S, "the clock was not turned"
        made.step(WHO, 0)  # forward again
        made.step(WHO, -back_s)
        assert made.texts() == [f"round {number}" for number in range(made.rounds)]
        jobs = made.session.jobs()
        assert len(jobs) == 2 * made.rounds
        assert all(job.wait(WAIT_S).ok for job in jobs)
