"""Jobs in containers: a real relay, a real runner, a real engine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airlox import Session
from airlox.sandbox.container.ready import label_of
from support import engine
from support.machines import RelayProgram, RunnerProgram, overrun
from support.parts import require

pytestmark = pytest.mark.slow

WAIT_S = 90.0
NO_ENGINE = "unix:///nowhere/engine.sock"


@pytest.fixture(scope="module", autouse=True)
def _engine() -> Iterator[engine.Engine]:
    require("a container engine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", engine.use().host)
        yield engine.use()


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProgram]:
    with RelayProgram(tmp_path_factory.mktemp("relay")) as program:
        yield program


def new_session(relay: RelayProgram, cache: Path, **limits: Any) -> Session:
    given = {"runtime": engine.runtime(), "kinds": ["python", "shell"], "approve_runners": False}
    return Session.create(
        relay.url, mode="execute", job_limits=given | limits, cache_dir=cache / "owner"
    )


def new_runner(session: Session, folder: Path, **options: Any) -> RunnerProgram:
    given = {"sandbox": "docker", "image": engine.PYTHON} | options
    return RunnerProgram(session.invites["runner"], folder / "runner", **given)


def refusal(session: Session, folder: Path, **options: Any) -> dict[str, str]:
    """What a runner says that does not start."""
    with new_runner(session, folder, **options) as runner:
        said = runner.note("error")
        assert runner.wait() != 0
    return said


def containers_of(session: Session, folder: Path) -> list[str]:
    """Those of the session's runner, whatever they do."""
    state = folder / "runner" / "runner" / session.session_id / "box"
    label = f"--filter=label={label_of(state)}"
    return engine.use().docker("ps", "--all", "--quiet", label).split()


class Bench:
    """A session with a runner that is ready."""

    def __init__(self, session: Session, runner: RunnerProgram) -> None:
        self.session = session
        self.runner = runner

    def python(self, code: str, **options: Any) -> Any:
        return self.session.run_python(code, runner="box", **options)

    def shell(self, command: str | list[str], **options: Any) -> Any:
        return self.session.run_shell(command, runner="box", **options)


@contextmanager
def working(
    relay: RelayProgram, folder: Path, session: dict[str, Any], **options: Any
) -> Iterator[Bench]:
    with (
        new_session(relay, folder, **session) as made,
        new_runner(made, folder, **options) as runner,
    ):
        runner.note("ready")
        yield Bench(made, runner)
        assert runner.stop() == 0


@pytest.fixture(scope="module")
def bench(relay: RelayProgram, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with working(
        relay, tmp_path_factory.mktemp("bench"), {"memory_mb": 256}, concurrency=2
    ) as made:
        yield made


class TestJobs:
    def test_python_with_out_files(self, bench: Bench) -> None:
        code = (
            "import os, sys; open(os.environ['AIRLOX_OUT'] + '/a.txt', 'w').write('made')\n"
            "print('out'); print('err', file=sys.stderr); sys.exit(3)"
        )
        result = bench.python(code).wait(WAIT_S)
        assert (result.status, result.exit_code) == ("completed", 3), result
        assert (result.stdout, result.stderr) == ("out\n", "err\n")
        assert result.read("a.txt") == b"made"
        assert result.signed

    def test_env_tells_where_it_ran(self, bench: Bench) -> None:
        env = bench.python("pass").wait(WAIT_S).env
        assert env is not None
        image = engine.use().docker("image", "inspect", "--format={{.Id}}", engine.PYTHON).strip()
        assert (env.sandbox, env.builder, env.image) == ("docker", "docker", image)
        assert env.interpreter == "image"
        assert (env.python or "").startswith(engine.runtime().removeprefix("python"))
        assert env.layers["network"] == env.layers["mounts"] == env.layers["uid"] == 1

    def test_shell_finds_the_system_of_the_image(self, bench: Bench) -> None:
        result = bench.shell("hostname; echo $PATH; id -un; pwd; touch /usr/x").wait(WAIT_S)
        *said, place = result.stdout.splitlines()
        assert said == [
            "airlox",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "job",
        ]
        assert place == "$WORK"
        assert result.exit_code == 1
        assert "Read-only file system" in result.stderr

    def test_paths_of_the_machine_are_not_shown(self, bench: Bench) -> None:
        result = bench.shell("cat /proc/self/mountinfo").wait(WAIT_S)
        assert str(Path.home() / ".cache") not in result.stdout

    def test_two_at_once(self, bench: Bench) -> None:
        jobs = [bench.shell(f"echo {n}; sleep 1; echo done") for n in range(2)]
        assert [job.wait(WAIT_S).stdout for job in jobs] == ["0\ndone\n", "1\ndone\n"]

    def test_a_command_that_is_not_there(self, bench: Bench) -> None:
        result = bench.shell(["no-such-program"]).wait(WAIT_S)
        assert result.exit_code == 127
        assert "no-such-program" in (result.reason or "")

    def test_the_tree_is_there_and_the_workspace_stays(self, bench: Bench, tmp_path: Path) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub/a.txt").write_text("first")
        result = bench.shell("cat sub/a.txt; echo kept > made", tree=tmp_path).wait(WAIT_S)
        assert (result.stdout, result.reason) == ("first", None)
        (tmp_path / "sub/a.txt").write_text("second")
        result = bench.shell("cat sub/a.txt made", tree=tmp_path).wait(WAIT_S)
        assert result.stdout == "secondkept\n"


class TestEnds:
    def test_time_out(self, bench: Bench) -> None:
        script = "echo begun; sleep 600"
        result, _ = overrun(
            lambda limit_s: bench.shell(script, timeout=limit_s).wait(WAIT_S), "begun\n", 1
        )
        assert (result.status, result.stdout) == ("timed_out", "begun\n")

    def test_out_of_memory(self, bench: Bench) -> None:
        code = "data = []\nwhile True: data.append(b'x' * 1_000_000)"
        result = bench.python(code, memory_mb=64).wait(WAIT_S)
        assert result.cause is not None
        assert (result.status, result.cause.kind) == ("failed", "out_of_memory"), result
        assert (result.reason or "").startswith("killed: out of memory, limit 64 MB, peak")

    def test_cancel(self, bench: Bench) -> None:
        job = bench.shell("trap 'echo goodbye; exit' TERM; echo begun; sleep 60 & wait")
        output = job.output(WAIT_S)
        assert next(output).data == b"begun\n"
        job.cancel()
        result = job.wait(WAIT_S)
        assert (result.status, result.stdout) == ("cancelled", "begun\ngoodbye\n")

    def test_a_killed_runner(self, relay: RelayProgram, tmp_path: Path) -> None:
        """The next start ends the container and tells of the job."""
        with new_session(relay, tmp_path) as session:
            with new_runner(session, tmp_path) as runner:
                runner.note("ready")
                job = session.run_shell("echo begun; sleep 1000", runner="box")
                assert next(job.output(WAIT_S)).data == b"begun\n"
                runner.kill()
            assert len(containers_of(session, tmp_path)) == 1
            with new_runner(session, tmp_path) as runner:
                assert "1 job" in runner.note("warning")["text"]
                result = job.wait(WAIT_S)
                assert result.cause is not None
                assert result.cause.kind == "runner_lost"
                runner.note("ready")
                assert session.run_shell("echo again", runner="box").wait(WAIT_S).ok
                assert runner.stop() == 0
            assert containers_of(session, tmp_path) == []

    def test_an_engine_that_dies_and_comes_back(
        self, relay: RelayProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with engine.one_more() as own:
            monkeypatch.setenv("DOCKER_HOST", own.host)
            with working(relay, tmp_path, {}) as bench:
                job = bench.shell("echo begun; sleep 1000")
                assert next(job.output(WAIT_S)).data == b"begun\n"
                own.stop(signal.SIGKILL)
                result = job.wait(WAIT_S)
                assert result.cause is not None
                assert result.cause.kind == "sandbox_unavailable"
                assert "went away while the job ran" in (result.reason or "")
                refused = bench.shell("true").wait(WAIT_S)
                assert "does not answer" in (refused.reason or "")
                own.start()
                assert bench.shell("echo again").wait(WAIT_S).stdout == "again\n"
            assert own.containers() == []


class TestImages:
    def test_packages_are_laid_into_an_image_once(
        self, relay: RelayProgram, tmp_path: Path
    ) -> None:
        require("a package index for uv")
        limits = {"packages": ["six"]}
        made = {"image": None, "image_base": engine.PYTHON}
        with working(relay, tmp_path, limits, **made) as bench:
            assert "six" in bench.runner.notes("preparing")[0]["text"]
            result = bench.python("import six; print(six.__file__)").wait(WAIT_S)
            assert result.exit_code == 0, result.stderr
            assert result.env is not None
            assert set(result.env.packages or ()) == {"six"}
        with working(relay, tmp_path / "again", limits, **made) as bench:
            assert bench.runner.notes("preparing") == []

    def test_an_image_without_python_takes_shell_jobs(
        self, relay: RelayProgram, tmp_path: Path
    ) -> None:
        with working(relay, tmp_path, {}, image=engine.SHELL) as bench:
            assert "no python" in bench.runner.notes("shell_only")[0]["text"]
            assert bench.shell("echo $((6 * 7))").wait(WAIT_S).stdout == "42\n"

    def test_an_image_without_a_shell(self, relay: RelayProgram, tmp_path: Path) -> None:
        with new_session(relay, tmp_path, kinds=["shell"]) as session:
            assert refusal(session, tmp_path, image=engine.BARE)["code"] == "no_shell"

    def test_an_image_that_nobody_has(self, relay: RelayProgram, tmp_path: Path) -> None:
        with new_session(relay, tmp_path) as session:
            said = refusal(session, tmp_path, image="127.0.0.1:1/no/such")
            assert said["code"] == "image_missing"
            assert "127.0.0.1:1/no/such" in said["text"]

    def test_another_python_than_the_sessions(self, relay: RelayProgram, tmp_path: Path) -> None:
        with new_session(relay, tmp_path, runtime="python3.99", kinds=["python"]) as session:
            assert refusal(session, tmp_path)["code"] == "no_runtime"

    def test_a_pin_that_the_image_does_not_meet(self, relay: RelayProgram, tmp_path: Path) -> None:
        with new_session(relay, tmp_path, packages=["six"]) as session:
            said = refusal(session, tmp_path)
            assert (said["code"], "six" in said["text"]) == ("package_missing", True)

    def test_no_engine(
        self, relay: RelayProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DOCKER_HOST", NO_ENGINE)
        with new_session(relay, tmp_path) as session:
            assert refusal(session, tmp_path)["code"] == "engine_unreachable"
