"""The whole runner as an ordinary user: no part of it needs root."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox import Session
from support.machines import RelayProgram, RunnerProgram
from support.ordinary_runner import OrdinaryRunner, ordinary_home
from support.parts import require

RUNTIME = f"python3.{sys.version_info[1]}"
WAIT_S = 60.0


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    require("user namespaces")
    folder = tmp_path_factory.mktemp("session")
    limits = {"runtime": RUNTIME, "kinds": ["python", "shell"], "approve_runners": False}
    with (
        RelayProgram(folder / "relay") as relay,
        Session.create(
            relay.url, mode="execute", job_limits=limits, cache_dir=folder / "owner"
        ) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def runner(session: Session) -> Iterator[RunnerProgram]:
    with (
        ordinary_home() as home,
        OrdinaryRunner(session.invites["runner"], home, sandbox="local") as program,
    ):
        program.note("ready")
        yield program
        assert program.stop() == 0


def test_a_shell_job_ends_in_a_signed_result(session: Session, runner: RunnerProgram) -> None:
    result = session.run_shell("id -un; ls /home; exit 3", runner="box").wait(WAIT_S)
    assert (result.status, result.exit_code, result.signed) == ("completed", 3, True), result
    assert result.stdout.split() == ["job", "job"]
    assert result.env is not None
    assert result.env.sandbox == "local"
    assert result.env.layers["uid"] == result.env.layers["seccomp"] == 1


def test_a_python_job_writes_out_files(session: Session, runner: RunnerProgram) -> None:
    code = "import os; open(os.environ['AIRLOX_OUT'] + '/a', 'w').write('made')"
    result = session.run_python(code, runner="box").wait(WAIT_S)
    assert result.read("a") == b"made", result


def test_bubblewrap_builds_it_where_it_is_named(session: Session) -> None:
    require("bwrap")
    given = {"name": "wrapped", "sandbox": "local", "builder": "bwrap", "allow_userns": True}
    with (
        ordinary_home() as home,
        OrdinaryRunner(session.invites["runner"], home, **given) as program,
    ):
        program.note("ready")
        result = session.run_shell("id -un; exit 3", runner="wrapped").wait(WAIT_S)
        assert (result.exit_code, result.stdout, result.signed) == (3, "job\n", True), result
        assert result.env is not None
        assert (result.env.builder, result.env.layers["userns_limit"]) == ("bwrap", 0)
        assert program.stop() == 0


def test_a_tree_comes_over_what_the_last_job_closed(
    session: Session, runner: RunnerProgram, tmp_path: Path
) -> None:
    """Root could write there anyway; an ordinary user must give itself the rights again."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a").write_text("first")
    spoil = "cat sub/a; chmod 000 sub/a sub .; cd /; chmod 000 $HOME"
    assert session.run_shell(spoil, runner="box", tree=tmp_path).wait(WAIT_S).stdout == "first"
    (tmp_path / "sub/a").write_text("second")
    result = session.run_shell("cat sub/a", runner="box", tree=tmp_path).wait(WAIT_S)
    assert result.stdout == "second", result


def test_a_killed_runner_leaves_nothing(session: Session, runner: RunnerProgram) -> None:
    job = session.run_shell("sleep 600 & setsid sleep 600 & echo begun; wait", runner="box")
    assert next(job.output(WAIT_S)).data == b"begun\n"
    inside = below(runner.pid)
    assert len(inside) >= 4
    runner.kill()
    until = time.monotonic() + WAIT_S
    while any(Path(f"/proc/{pid}").exists() for pid in inside):
        assert time.monotonic() < until
        time.sleep(0.05)
    runner.start()
    result = job.wait(WAIT_S)
    assert result.cause is not None
    assert (result.signed, result.cause.kind) == (True, "runner_lost")
    runner.note("ready")
    assert session.run_shell(["true"], runner="box").wait(WAIT_S).ok


def below(root: int) -> list[int]:
    """All processes that descend from one, at present."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]
