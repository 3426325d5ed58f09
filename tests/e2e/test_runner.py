"""Jobs through a real relay on a real runner, each a process of its own."""

from __future__ import annotations

import io
import random
import sys
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from airlox import Session
from airlox.client.jobs import Job
from airlox.errors import JobRefused
from airlox.protocol.chain import read_mark
from airlox.protocol.item import Kind
from airlox.protocol.limits import OUTPUT_BYTES
from support.commands import Cli
from support.images import build_png
from support.machines import RelayProgram, RunnerProgram, overrun
from support.ordinary import folder_of
from support.parts import require

RUNTIME = f"python3.{sys.version_info[1]}"
WAIT_S = 60.0
PNG = build_png(2, 2, bytes(2 * (1 + 3 * 2)))


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProgram]:
    with RelayProgram(tmp_path_factory.mktemp("relay")) as program:
        yield program


def new_session(relay: RelayProgram, cache: Path, **limits: Any) -> Session:
    """A full session with both kinds of jobs, unless `kinds` says otherwise."""
    item_bytes = (
        {"max_item_bytes": limits.pop("max_item_bytes")} if "max_item_bytes" in limits else {}
    )
    given = {"runtime": RUNTIME, "kinds": ["python", "shell"], "approve_runners": False}
    return Session.create(
        relay.url,
        mode="execute",
        job_limits=given | limits,
        cache_dir=cache / "owner",
        **item_bytes,
    )


class Bench:
    """A session with a runner that is ready."""

    def __init__(self, session: Session, runner: RunnerProgram) -> None:
        self.session = session
        self.runner = runner

    def python(self, code: str, **options: Any) -> Job:
        return self.session.run_python(code, runner="box", **options)

    def shell(self, command: str | list[str], **options: Any) -> Job:
        return self.session.run_shell(command, runner="box", **options)


@pytest.fixture(scope="module", params=["process", "local"])
def bench(
    request: pytest.FixtureRequest, relay: RelayProgram, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bench")
    with (
        new_session(relay, folder, memory_mb=256) as session,
        RunnerProgram(
            session.invites["runner"], folder / "runner", sandbox=request.param
        ) as runner,
    ):
        runner.note("ready")
        yield Bench(session, runner)
        assert_chained(session)
        assert runner.stop() == 0


def assert_chained(session: Session) -> None:
    """P-CHN-1: whatever was posted in it has its place, and nothing is amiss."""
    assert session.alarms() == []
    headers = [r.envelope.header for r in session.records() if r.envelope is not None]
    assert {header.kind for header in headers} >= {Kind.JOB, Kind.RESULT, Kind.RUNNER_INFO}
    assert all(read_mark(header) is not None for header in headers)


class TestPython:
    def test_output_exit_code_and_environment(self, bench: Bench) -> None:
        result = bench.python(
            "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
        ).wait(WAIT_S)
        assert (result.status, result.exit_code) == ("completed", 3)
        assert (result.stdout, result.stderr) == ("out\n", "err\n")
        assert result.signed
        assert result.env is not None
        assert result.env.python == ".".join(map(str, sys.version_info[:3]))
        assert result.wall_ms > 0
        assert result.peak_mem_mb > 0

    def test_only_the_promised_variables_are_set(self, bench: Bench) -> None:
        result = bench.python("import os; print(sorted(os.environ))").wait(WAIT_S)
        names = ["AIRLOX_OUT", "HOME", "LANG", "MPLBACKEND", "PATH", "TMPDIR"]
        assert set(eval(result.stdout)) - {"LC_CTYPE"} == set(names)

    def test_inputs_lie_beside_the_program_and_archives_are_unpacked(self, bench: Bench) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("data/a.txt", "from the archive")
        refs = [
            bench.session.send_file(b"# notes", name="notes.md"),
            bench.session.send_file(buffer.getvalue(), name="data.zip"),
        ]
        result = bench.python(
            "print(open('notes.md').read(), open('data/a.txt').read())", files=refs
        ).wait(WAIT_S)
        assert result.stdout == "# notes from the archive\n"
        assert result.ok

    def test_an_input_called_like_the_program_is_refused(self, bench: Bench) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("main.py", "print(1)")
        ref = bench.session.send_file(buffer.getvalue(), name="archive.zip")
        result = bench.python("print(2)", filename="main.py", files=[ref]).wait(WAIT_S)
        assert result.status == "refused"
        assert result.cause is not None
        assert result.cause.code == "input_collision"
        assert "main.py" in (result.reason or "")

    def test_paths_of_the_machine_are_not_shown(self, bench: Bench) -> None:
        result = bench.python(
            "import os, sys; print(os.getcwd(), os.environ['AIRLOX_OUT'], os.environ['HOME'], "
            "sys.executable, __file__); raise RuntimeError"
        ).wait(WAIT_S)
        work, out, home, python, program = result.stdout.split()
        assert (work, out, home) == ("$WORK", "$AIRLOX_OUT", "~")
        assert program == "$WORK/main.py"
        assert 'File "$WORK/main.py", line 1' in result.stderr
        assert not python.startswith(("/root", "/home"))


class TestShell:
    def test_words_are_run_as_they_are(self, bench: Bench) -> None:
        result = bench.shell(["printf", "%s|", "a b", "$HOME", "*"]).wait(WAIT_S)
        assert result.stdout == "a b|$HOME|*|"

    def test_a_script_runs_in_a_shell(self, bench: Bench) -> None:
        assert bench.shell("echo one; exit 4").wait(WAIT_S).exit_code == 4

    def test_a_script_with_an_interpreter_is_run_by_it(self, bench: Bench) -> None:
        result = bench.shell("#!/usr/bin/awk -f\nBEGIN { print 6 * 7 }\n").wait(WAIT_S)
        assert result.stdout == "42\n", result

    def test_a_command_that_is_not_there_says_so(self, bench: Bench) -> None:
        result = bench.shell(["no-such-program"]).wait(WAIT_S)
        assert result.exit_code == 127

    def test_output_arrives_while_the_job_runs(self, bench: Bench) -> None:
        job = bench.shell("echo started; cat")  # standard input is empty: cat ends at once
        assert b"".join(piece.data for piece in job.output(WAIT_S)) == b"started\n"
        result = job.wait(WAIT_S)
        assert result.live is not None
        assert result.live.stdout_bytes == len("started\n")


class TestOutFiles:
    def test_images_come_alone_and_the_rest_in_an_archive(self, bench: Bench) -> None:
        code = (
            "import os; out = os.environ['AIRLOX_OUT']\n"
            f"open(out + '/chart.png', 'wb').write({PNG!r})\n"
            "os.mkdir(out + '/sub'); open(out + '/sub/a.txt', 'w').write('hello')\n"
            "os.symlink('/etc/passwd', out + '/link')\n"
        )
        result = bench.python(code).wait(WAIT_S)
        assert [file.name for file in result.out_files] == ["chart.png", "out.zip"]
        assert result.read("sub/a.txt") == b"hello"
        assert [(left.path, left.reason) for left in result.left_out] == [("link", "symbolic link")]

    def test_zeros_come_back_though_they_look_like_a_bomb(self, bench: Bench) -> None:
        result = bench.shell("head -c 5000000 /dev/zero > $AIRLOX_OUT/zeros").wait(WAIT_S)
        assert result.read("zeros") == bytes(5_000_000)

    def test_more_images_than_a_result_can_name(self, bench: Bench) -> None:
        code = (
            "import os; out = os.environ['AIRLOX_OUT']\n"
            f"for n in range(70): open(f'{{out}}/{{n:02}}.png', 'wb').write({PNG!r})"
        )
        result = bench.python(code).wait(WAIT_S)
        assert result.status == "completed"
        assert len(result.out_files) == 62
        assert len(result.paths()) == 70


class TestLimits:
    def test_time_out(self, bench: Bench) -> None:
        script = "echo begun; sleep 600"
        result, limit_s = overrun(
            lambda limit_s: bench.shell(script, timeout=limit_s).wait(WAIT_S), "begun\n", 1
        )
        assert (result.status, result.exit_code) == ("timed_out", None)
        assert result.stdout == "begun\n"
        more = f"try --timeout {2 * limit_s}"
        assert result.reason == f"killed: time limit of {limit_s} s reached; {more}"
        assert result.cause is not None
        assert result.cause.limit == limit_s

    def test_out_of_memory(self, bench: Bench) -> None:
        code = "data = []\nwhile True: data.append(b'x' * 1_000_000)"
        result = bench.python(code, memory_mb=64).wait(WAIT_S)
        assert result.status == "failed", result
        assert result.cause is not None
        assert result.cause.kind == "out_of_memory"
        assert (result.reason or "").startswith("killed: out of memory, limit 64 MB, peak")
        assert "try --memory 128" in (result.reason or "")

    def test_a_signal_is_named(self, bench: Bench) -> None:
        result = bench.shell("kill -TERM $$").wait(WAIT_S)
        assert result.status == "failed"
        assert "SIGTERM" in (result.reason or "")

    @pytest.mark.parametrize("printed", [r"\0", "x"])
    def test_a_flood_of_output_is_cut_and_the_result_arrives(
        self, bench: Bench, printed: str
    ) -> None:
        code = (
            f"import sys\nfor _ in range(64): sys.stdout.write({printed!r} * 65536)\nprint('end')"
        )
        code += "\nfor _ in range(64): sys.stderr.write('\\x01' * 65536)"
        result = bench.python(code).wait(WAIT_S)
        assert (result.status, result.stdout_truncated) == ("completed", True)
        assert len(result.stdout.encode()) <= OUTPUT_BYTES
        assert result.stdout.endswith("end\n")


class TestCancel:
    def test_a_running_job_stops_and_says_who_did_it(self, bench: Bench) -> None:
        job = bench.shell("echo begun; sleep 60")
        output = job.output(WAIT_S)
        assert next(output).data == b"begun\n"
        job.cancel()
        result = job.wait(WAIT_S)
        assert result.status == "cancelled"
        assert result.signed
        assert result.cause is not None
        assert result.cause.by == bench.session.participant_pub


class TestTree:
    def test_the_tree_is_there_and_the_workspace_stays(self, bench: Bench, tmp_path: Path) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "a.txt").write_text("first")
        (tmp_path / "sub/b.txt").write_text("b")
        job = bench.shell("cat a.txt sub/b.txt; echo kept > made-here", tree=tmp_path)
        result = job.wait(WAIT_S)
        assert (result.stdout, result.reason) == ("firstb", None)
        assert result.tree is not None
        (tmp_path / "a.txt").write_text("second")
        (tmp_path / "sub/b.txt").unlink()
        result = bench.shell("cat a.txt made-here; ls sub", tree=tmp_path).wait(WAIT_S)
        assert result.stdout == "secondkept\n"
        assert result.exit_code != 0  # the folder went with its last file
        result = bench.shell("ls", tree=tmp_path, fresh=True).wait(WAIT_S)
        assert result.stdout == "a.txt\n"

    def test_inputs_of_a_tree_job_do_not_stay(self, bench: Bench, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("x")
        ref = bench.session.send_file(b"# n", name="input.md")
        result = bench.shell("ls", tree=tmp_path, files=[ref], fresh=True).wait(WAIT_S)
        assert result.stdout == "a.txt\ninput.md\n"
        assert bench.shell("ls", tree=tmp_path).wait(WAIT_S).stdout == "a.txt\n"

    def test_workspaces_are_listed_and_removed(self, relay: RelayProgram, tmp_path: Path) -> None:
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "a").write_text("x")
        with (
            new_session(relay, tmp_path) as session,
            RunnerProgram(session.invites["runner"], tmp_path / "runner") as runner,
        ):
            runner.note("ready")
            job = session.run_shell(["true"], runner="box", tree=tmp_path / "tree")
            assert job.wait(WAIT_S).ok
            assert runner.stop() == 0
        here = Cli(relay.url, tmp_path / "runner", cwd=tmp_path)
        [listed] = here("runner", "workspaces", "ls", "--json").document["workspaces"]
        assert (listed["runner"], listed["in_use"]) == ("box", False)
        assert listed["size_bytes"] > 0
        assert here("runner", "workspaces", "gc", "--unused", "1d").out.startswith("removed 0 ")
        assert here("runner", "workspaces", "gc", "--unused", "0").out.startswith("removed 1 ")
        assert here("runner", "workspaces", "ls", "--json").document == {"workspaces": []}


class TestLargeFiles:
    """Of a large file that changed only what changed travels."""

    SIZE = 12 * 1024 * 1024
    FEW_BYTES = 2 * 1024 * 1024

    @pytest.fixture
    def big(self, tmp_path: Path) -> Path:
        path = tmp_path / "tree" / "big"
        path.parent.mkdir()
        path.write_bytes(random.Random(8).randbytes(self.SIZE))
        return path

    def run(self, bench: Bench, path: Path, command: str = "true", **options: Any) -> int:
        """Run a command beside the file, check what it found there, and say how much was sent."""
        job = bench.shell(f"sha256sum < big && {command}", tree=path.parent, **options)
        result = job.wait(WAIT_S)
        assert (result.exit_code, result.reason) == (0, None)
        assert result.stdout.split()[0] == sha256(path.read_bytes()).hexdigest()
        assert job.upload is not None
        return job.upload.sent_bytes

    def insert(self, path: Path, text: bytes = b"!", at: int = 0) -> None:
        data = path.read_bytes()
        path.write_bytes(data[:at] + text + data[at:])

    def test_an_inserted_byte(self, bench: Bench, big: Path) -> None:
        assert self.run(bench, big, fresh=True) > self.SIZE
        assert self.run(bench, big) == 0
        self.insert(big)
        assert 0 < self.run(bench, big) < self.FEW_BYTES
        self.insert(big, at=self.SIZE // 2)
        assert self.run(bench, big) < self.FEW_BYTES

    def test_a_renamed_and_changed_file(self, bench: Bench, big: Path) -> None:
        self.run(bench, big, fresh=True)
        other = big.with_name("other")
        other.write_bytes(big.read_bytes() + b"more")
        assert self.run(bench, big, "sha256sum other") < self.FEW_BYTES

    def test_the_job_changed_it(self, bench: Bench, big: Path) -> None:
        """What is lacking is asked for; what the job left of it serves again."""
        self.run(bench, big, "printf x | dd of=big conv=notrunc", fresh=True)
        assert self.run(bench, big, "rm big; mkfifo big") < self.FEW_BYTES
        assert self.run(bench, big) > self.SIZE

    def test_a_sender_that_forgot_what_it_sent(self, bench: Bench, big: Path) -> None:
        """Not aimed at a runner, nothing is sent unasked: recipes first, then a few chunks."""
        self.run(bench, big, fresh=True)
        self.insert(big, at=100)
        job = bench.session.run_shell("sha256sum < big", tree=big.parent)
        result = job.wait(WAIT_S)
        assert result.stdout.split()[0] == sha256(big.read_bytes()).hexdigest()
        assert job.upload is not None
        assert job.upload.sent_bytes < self.FEW_BYTES


class TestFloorSession:
    def test_a_job_of_the_old_form(self, relay: RelayProgram, tmp_path: Path) -> None:
        with (
            new_session(relay, tmp_path, kinds=None) as session,
            RunnerProgram(
                session.invites["runner"], tmp_path / "runner", sandbox="local", concurrency=3
            ) as runner,
        ):
            runner.note("ready")
            code = "import os; os.mkfifo(os.environ['AIRLOX_OUT'] + '/pipe'); print('hi')"
            result = session.run_python(code, runner="box").wait(WAIT_S)
            assert (result.status, result.stdout) == ("completed", "hi\n")
            assert result.stderr == "[airlox: left out pipe: pipe]\n"
            assert (result.cause, result.env, result.live) == (None, None, None)
            result = session.run_python("while True: pass", runner="box", timeout=1).wait(WAIT_S)
            assert (result.reason or "").startswith("time_out: ")

    def test_the_process_sandbox_is_refused(self, relay: RelayProgram, tmp_path: Path) -> None:
        with new_session(relay, tmp_path, kinds=None) as session:
            with RunnerProgram(session.invites["runner"], tmp_path / "runner") as runner:
                assert runner.wait() == 1
            assert runner.notes("error")[0]["code"] == "process_in_floor"
            assert session.runners() == []


class TestTinySession:
    def test_a_result_always_fits(self, relay: RelayProgram, tmp_path: Path) -> None:
        with (
            new_session(relay, tmp_path, max_item_bytes=6000) as session,
            RunnerProgram(session.invites["runner"], tmp_path / "runner") as runner,
        ):
            runner.note("ready")
            result = session.run_shell(
                "yes | head -c 100000; echo the end; echo data > $AIRLOX_OUT/a", runner="box"
            ).wait(WAIT_S)
            assert result.status == "completed"
            assert result.stdout_truncated
            assert result.stdout.endswith("the end\n")

    def test_a_session_too_small_for_results_refuses_or_fails_at_once(
        self, relay: RelayProgram, tmp_path: Path
    ) -> None:
        with (
            new_session(relay, tmp_path, max_item_bytes=1500) as session,
            RunnerProgram(session.invites["runner"], tmp_path / "runner") as runner,
        ):
            runner.note("ready")
            result = session.run_shell(["true"], runner="box").wait(WAIT_S)
            assert result.status == "refused"
            assert result.cause is not None
            assert result.cause.code == "result_too_large"


class TestApprovalAndKinds:
    def test_a_runner_waits_for_the_owners_word(self, relay: RelayProgram, tmp_path: Path) -> None:
        with (
            new_session(relay, tmp_path, approve_runners=True) as session,
            RunnerProgram(session.invites["runner"], tmp_path / "runner") as runner,
        ):
            runner.note("waiting")
            session.approve_runner("box")
            runner.note("ready")
            assert session.run_shell(["true"], runner="box").wait(WAIT_S).ok

    def test_a_rejected_runner_ends(self, relay: RelayProgram, tmp_path: Path) -> None:
        with (
            new_session(relay, tmp_path, approve_runners=True) as session,
            RunnerProgram(session.invites["runner"], tmp_path / "runner") as runner,
        ):
            runner.note("waiting")
            session.reject_runner("box", "no")
            assert runner.wait() == 1
            assert runner.notes("ended")[0]["code"] in ("rejected", "cut_off")

    def test_without_the_python_it_takes_shell_jobs_and_says_so(
        self, relay: RelayProgram, tmp_path: Path
    ) -> None:
        with (
            new_session(relay, tmp_path, runtime="python3.99") as session,
            RunnerProgram(session.invites["runner"], tmp_path / "runner") as runner,
        ):
            assert "python3.99" in runner.note("shell_only")["text"]
            runner.note("ready")
            assert session.run_shell(["true"], runner="box").wait(WAIT_S).ok

    def test_a_python_only_session_needs_its_python(
        self, relay: RelayProgram, tmp_path: Path
    ) -> None:
        with new_session(relay, tmp_path, runtime="python3.99", kinds=["python"]) as session:
            with RunnerProgram(session.invites["runner"], tmp_path / "runner") as runner:
                assert runner.wait() == 1
            assert runner.notes("error")[0]["code"] == "no_runtime"

    def test_a_closed_session_ends_the_runner_well(
        self, relay: RelayProgram, tmp_path: Path
    ) -> None:
        with (
            new_session(relay, tmp_path) as session,
            RunnerProgram(session.invites["runner"], tmp_path / "runner") as runner,
        ):
            runner.note("ready")
            session.close()
            assert runner.wait() == 0
        assert not list((tmp_path / "runner/runner").glob("ax_*/box"))


class TestJobUser:
    """Without walls, but as a user of its own."""

    def test_jobs_run_as_that_user(self, relay: RelayProgram, tmp_path: Path) -> None:
        require("root")
        with (
            folder_of(0) as work_root,
            new_session(relay, tmp_path) as session,
            RunnerProgram(
                session.invites["runner"],
                tmp_path / "runner",
                job_user="nobody",
                work_root=str(work_root / "jobs"),
            ) as runner,
        ):
            runner.note("ready")
            script = "id -un; echo x > made; cat made; cp made $AIRLOX_OUT; touch ~/kept"
            result = session.run_shell(script, runner="box").wait(WAIT_S)
            assert result.stdout == "nobody\nx\n", result
            assert result.read("made") == b"x\n"
            assert session.run_shell("ls ..; ls ../..", runner="box").wait(WAIT_S).exit_code != 0
            assert runner.stop() == 0

    def test_a_way_that_is_closed_to_it_is_told_before_the_first_job(
        self, relay: RelayProgram, tmp_path: Path
    ) -> None:
        require("root")
        tmp_path.chmod(0o700)
        with new_session(relay, tmp_path) as session:
            options = {"job_user": "nobody"}
            with RunnerProgram(session.invites["runner"], tmp_path / "runner", **options) as runner:
                assert runner.wait() == 1
            assert runner.notes("error")[0]["code"] == "work_root_closed"


class TestConcurrency:
    def test_two_jobs_at_once_and_a_third_is_told(
        self, relay: RelayProgram, tmp_path: Path
    ) -> None:
        with (
            new_session(relay, tmp_path) as session,
            RunnerProgram(session.invites["runner"], tmp_path / "runner", concurrency=2) as runner,
        ):
            runner.note("ready")
            first, second = (session.run_shell("echo up; sleep 60", runner="box") for _ in range(2))
            for job in (first, second):
                assert next(job.output(WAIT_S)).data == b"up\n"
            with pytest.raises(JobRefused) as refusal:
                session.run_shell(["true"], runner="box")
            assert refusal.value.code == "runner_busy"
            for job in (first, second):
                job.cancel()
                assert job.wait(WAIT_S).status == "cancelled"
