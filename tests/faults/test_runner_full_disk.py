"""A runner whose disk is full: every job gets a signed end, nothing is lost, and it lives on."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox import Session
from airlox.client.jobs import Job
from support.machines import RelayProgram, RunnerProgram
from support.small_disk import small_disk

WAIT_S = 60.0
MIB = 1 << 20


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProgram]:
    with RelayProgram(tmp_path_factory.mktemp("relay")) as program:
        yield program


@pytest.fixture(scope="module")
def session(relay: RelayProgram, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    made = Session.create(
        relay.url,
        mode="execute",
        job_limits={"kinds": ["shell"], "approve_runners": False},
        cache_dir=tmp_path_factory.mktemp("owner"),
    )
    with made:
        yield made


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with small_disk(tmp_path_factory.mktemp("disks") / "small", "24m") as mount:
        yield mount


@pytest.fixture(scope="module")
def runner(session: Session, disk: Path) -> Iterator[RunnerProgram]:
    """All of its folders are on the small disk."""
    invite = session.invites["runner"]
    with RunnerProgram(invite, disk / "cache", disk_floor_bytes=2 * MIB) as program:
        program.note("ready")
        yield program
        assert program.stop() == 0


@pytest.fixture
def filler(disk: Path) -> Iterator[Path]:
    path = disk / "filler"
    yield path
    path.unlink(missing_ok=True)


def fill(filler: Path, leave_bytes: int = 0) -> None:
    """Write until no more than `leave_bytes` are free."""
    found = os.statvfs(filler.parent)
    size = found.f_bavail * found.f_frsize - leave_bytes
    with filler.open("ab", buffering=0) as file:
        try:
            for piece in (size, *[4096] * (0 if leave_bytes else 100)):
                file.write(bytes(piece))
        except OSError:
            assert leave_bytes == 0


def run(session: Session, script: str, **options: object) -> Job:
    return session.run_shell(script, runner="box", **options)  # type: ignore[arg-type]


def assert_refused_for_want_of_room(job: Job) -> None:
    result = job.wait(WAIT_S)
    assert (result.status, result.signed) == ("refused", True), result
    assert result.cause is not None
    assert result.cause.code == "disk_full"
    assert "disk is nearly full" in (result.reason or "")


def assert_lives_on(session: Session, disk: Path) -> None:
    result = run(session, "echo fine").wait(WAIT_S)
    assert (result.stdout, result.reason) == ("fine\n", None)
    left = [path for path in disk.glob("cache/runner/ax_*/box/run/*/*") if path.name != "tmp"]
    assert left == []


def test_a_job_is_refused_before_it_starts(
    session: Session, runner: RunnerProgram, disk: Path, filler: Path
) -> None:
    fill(filler, leave_bytes=MIB)
    assert_refused_for_want_of_room(run(session, "true"))
    filler.unlink()
    assert_lives_on(session, disk)


def test_inputs_that_do_not_fit(session: Session, runner: RunnerProgram, disk: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(30):
            archive.writestr(f"{number}", os.urandom(16 * 1024) * 64)
    ref = session.send_file(buffer.getvalue(), name="data.zip")
    assert_refused_for_want_of_room(run(session, "true", files=[ref]))
    assert_lives_on(session, disk)


def test_a_tree_that_does_not_fit(
    session: Session, runner: RunnerProgram, disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "zeros").write_bytes(bytes(30 * MIB))
    assert_refused_for_want_of_room(run(session, "true", tree=tmp_path))
    (tmp_path / "zeros").write_bytes(b"few")
    assert run(session, "cat zeros", tree=tmp_path).wait(WAIT_S).stdout == "few"
    assert_lives_on(session, disk)


def test_a_job_that_fills_the_disk(session: Session, runner: RunnerProgram, disk: Path) -> None:
    result = run(session, "cat /dev/zero > filler; sleep 60").wait(WAIT_S)
    assert (result.status, result.signed) == ("failed", True), result
    assert result.cause is not None
    assert result.cause.kind == "disk"
    assert "disk" in (result.reason or "")
    assert_lives_on(session, disk)


def test_others_fill_the_disk_to_the_last_byte_while_a_job_runs(
    session: Session, runner: RunnerProgram, disk: Path, filler: Path
) -> None:
    """There is no room for its result, which is then kept in memory until the relay has it."""
    job = run(session, "echo begun; sleep 60")
    assert next(job.output(WAIT_S)).data == b"begun\n"
    fill(filler)
    result = job.wait(WAIT_S)
    assert (result.status, result.signed, result.stdout) == ("failed", True, "begun\n"), result
    assert result.cause is not None
    assert result.cause.kind == "disk"
    filler.unlink()
    assert_lives_on(session, disk)


def test_a_job_that_comes_while_there_is_no_room_for_its_news(
    session: Session, runner: RunnerProgram, disk: Path, filler: Path
) -> None:
    fill(filler)
    for _ in range(10):
        session.send_text("what is still free in the page that holds the news is used up by these")
    runner.wait_for(lambda line: "news of the session wait" in line, "complaint")
    job = run(session, "echo late")
    runner.note("job_started")
    filler.unlink()
    assert job.wait(WAIT_S).stdout == "late\n"
    assert_lives_on(session, disk)
