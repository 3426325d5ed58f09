"""A runner whose relay lies: jobs given again, jobs of others, streams that say nothing without
end, swapped blobs and packs. It runs what is its own, once, keeps its size, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox.client.jobs import Job
from hostile.conftest import Scene
from support import lying
from support.lying import ASSIGNMENTS, BLOB, CLAIM, EVENTS, PACK, STREAM, Call, LyingRelay, Told
from support.machines import RunnerProgram
from support.measured import peak_kb
from support.relay import until

pytestmark = pytest.mark.slow

WAIT_S = 60.0
PEAK_MB = 200


class Shop:
    """A sender on the real relay, and a runner process that goes through the liar."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.liar: LyingRelay = scene.liar
        self.log = scene.folder / "log"
        self.programs: list[RunnerProgram] = []
        self.program = self.start("box")

    def start(self, name: str) -> RunnerProgram:
        program = RunnerProgram(self.scene.links["runner"], self.scene.folder / name, name=name)
        self.programs.append(program)
        program.start()
        program.note("ready")
        return program

    def restart(self, endpoint: str | None = None, lie: lying.Lie = lying.stall) -> None:
        """Have the relay lie to it from its start on: not before, to what the runner that goes had
        still to ask."""
        assert self.program.stop() == 0
        if endpoint is not None:
            self.liar.lies[endpoint] = lie
        self.program.start()

    def job(self, runner: str = "box", **options: Any) -> Job:
        """One that leaves a line in the log each time it runs."""
        return self.scene.owner.run_shell(f"echo ran >> {self.log}", runner=runner, **options)

    def runs(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def shop(scene: Scene) -> Iterator[Shop]:
    made = Shop(scene)
    yield made
    made.liar.honest()
    for program in made.programs:
        program.__exit__(None, None, None)


def test_jobs_given_again_and_again(shop: Shop) -> None:
    old: list[Told] = []

    def repeat(told: Told) -> list[Told]:
        old.append(told)
        return [*old, *old, told]

    shop.restart(ASSIGNMENTS, lambda call: call.pass_on_events(repeat))
    shop.program.note("ready")
    for count in (1, 2, 3):
        assert shop.job().wait(WAIT_S).ok
        assert shop.runs() == count
    # and after a start, by a relay that has no end of old assignments
    shop.restart()
    shop.program.note("ready")
    assert shop.job().wait(WAIT_S).ok
    assert shop.runs() == 4


def test_a_job_given_to_two_runners(shop: Shop) -> None:
    """The second is told that it may; the relay takes one result, and both go on."""
    shop.start("second")
    given: list[str] = []

    def give_to_all(call: Call) -> None:
        call.start_stream()
        told = 0
        while not call.relay.released.wait(0.02):
            for job in given[told:]:
                call.tell({"seq": None, "kind": "job_assigned", "data": {"job": job}})
                told += 1

    def grant(call: Call) -> None:
        call.fetch()
        call.answer(200, {})

    shop.liar.lies = {ASSIGNMENTS: give_to_all, CLAIM: grant}
    for program in shop.programs:
        assert program.stop() == 0
        program.start()
        program.note("ready")
    job = shop.scene.owner.run_shell(f"echo ran >> {shop.log}")
    given.append(job.id)
    result = job.wait(WAIT_S)
    assert result.ok
    assert result.others == ()
    until(lambda: shop.runs() == 2, "the run by both")
    shop.liar.honest()
    for name in ("box", "second"):
        assert shop.job(name).wait(WAIT_S).ok


@pytest.mark.parametrize("endpoint", [ASSIGNMENTS, STREAM])
@pytest.mark.parametrize("flood", lying.STREAM_FLOODS.values(), ids=lying.STREAM_FLOODS)
def test_streams_without_end(shop: Shop, endpoint: str, flood: lying.Lie) -> None:
    shop.restart(endpoint, flood)
    shop.program.note("ready")
    until(shop.liar.lied.is_set, "the lie")
    # assignments come in the session's events too
    assert shop.job().wait(WAIT_S).ok
    assert peak_kb(shop.program.pid) / 1024 < PEAK_MB
    shop.liar.honest()
    assert shop.job().wait(WAIT_S).ok


@pytest.mark.parametrize("bomb", [b"0," * 16_000_000, b"{}," * 10_000_000])
def test_events_that_unpack_to_far_more(shop: Shop, bomb: bytes) -> None:
    """Without the session's events nothing can be begun, and the runner says why."""
    shop.restart(EVENTS, lying.say(200, b'{"events":[' + bomb + b"0]}"))
    assert shop.program.note("error")["code"] == "answer_too_large"
    assert shop.program.wait() != 0
    shop.liar.honest()
    shop.program.start()
    shop.program.note("ready")
    assert shop.job().wait(WAIT_S).ok


def change_bytes(call: Call) -> None:
    """The right answer with one of its bytes changed."""
    status, body = call.fetch()
    middle = len(body) // 2
    call.answer(status, body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :])


def test_packs_that_were_changed(shop: Shop, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a.txt").write_text("content")
    shop.liar.lies[PACK] = change_bytes
    result = shop.job(tree=tree).wait(WAIT_S)
    assert not result.ok
    assert shop.runs() == 0
    assert result.reason
    shop.liar.honest()
    assert shop.job(tree=tree).wait(WAIT_S).ok


def test_a_job_whose_bytes_were_changed(shop: Shop) -> None:
    """It waits for the right ones; they are what it runs."""
    shop.liar.lies[BLOB] = change_bytes
    job = shop.job()
    until(lambda: shop.liar.asked(BLOB) > 2, "the question")
    assert shop.runs() == 0
    shop.liar.honest()
    assert job.wait(WAIT_S).ok
    assert shop.runs() == 1
