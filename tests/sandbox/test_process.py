"""The sandbox without walls: what it says of itself, what it limits, and that nothing stays.

What it shares with the others is in `test_suite.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airlox.errors import SandboxError
from airlox.sandbox import NAMES, open_sandbox, proctable
from airlox.sandbox.base import STDERR, STDOUT, Cause, Limits, Outcome, Plan, SandboxOptions
from airlox.sandbox.process import ProcessSandbox
from support import ordinary, parts

MIB = 1 << 20
PYTHON = (sys.executable, "-I", "-S", "-c")


class Job:
    """One job in folders of its own; what it printed is kept."""

    def __init__(self, folder: Path, *, user: str | None = None) -> None:
        self.folder = folder
        self.options = SandboxOptions(folder / "state", job_user=user)
        for name in ("work", "out", "home", "state"):
            (folder / name).mkdir(exist_ok=True)
        self.output = {STDOUT: b"", STDERR: b""}
        self.on_output: Callable[[], None] = lambda: None
        self.keeper_pid = 0
        self.cancel = asyncio.Event()

    def run(self, *argv: str, **limits: Any) -> Outcome:
        async def main() -> Outcome:
            self.cancel = asyncio.Event()
            return await asyncio.wait_for(self._run(argv, limits), 90)

        fds = len(os.listdir("/dev/fd"))
        outcome = asyncio.run(main())
        assert len(os.listdir("/dev/fd")) == fds
        assert self.keeper_pid
        assert proctable.find(self.keeper_pid) is None
        return outcome

    async def _run(self, argv: tuple[str, ...], limits: dict[str, Any]) -> Outcome:
        sandbox = open_sandbox("process", self.options)
        sandbox.prepare()
        work, out, home = (self.folder / name for name in ("work", "out", "home"))
        layout = sandbox.layout(work, out, home)
        plan = Plan(
            argv=argv,
            env=(("PATH", "/usr/bin:/bin"), ("TMPDIR", layout.tmp)),
            cwd=layout.work,
            work=work,
            out=out,
            home=home,
            limits=Limits(**{"timeout_s": 60.0, "memory_bytes": None} | limits),
        )
        return await sandbox.run(
            plan, on_output=self._hear, cancel=self.cancel, on_started=self._started
        )

    def _started(self, pid: int) -> None:
        self.keeper_pid = pid

    def _hear(self, stream: int, chunk: bytes) -> None:
        self.output[stream] += chunk
        self.on_output()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def alive(words: bytes) -> list[int]:
    """Those of the printed pids that still run."""
    found = [proctable.find(int(word)) for word in words.split()]
    return [process.pid for process in found if process is not None and not process.zombie]


class TestWhatItSays:
    def test_it_is_opened_by_name_only(self, tmp_path: Path) -> None:
        assert isinstance(open_sandbox("process", SandboxOptions(tmp_path)), ProcessSandbox)
        assert next(iter(NAMES)) != "process"

    def test_nothing_confines_the_job(self, tmp_path: Path) -> None:
        report = ProcessSandbox(SandboxOptions(tmp_path)).probe()
        assert report.usable
        assert report.refusal is None
        layers = {layer.name: layer for layer in report.layers}
        for name in ("namespaces", "network", "mounts", "seccomp", "landlock", "cgroup"):
            assert not layers[name].on
            assert layers[name].code == "no_walls"
            assert layers[name].remedy
        assert layers["watcher"].on

    def test_it_says_whom_jobs_run_as(self, tmp_path: Path) -> None:
        report = ProcessSandbox(SandboxOptions(tmp_path)).probe()
        (uid,) = [layer for layer in report.layers if layer.name == "uid"]
        assert uid.on == (os.geteuid() != 0)

    def test_layers_it_lacks_are_refused(self, tmp_path: Path) -> None:
        options = SandboxOptions(tmp_path, require_layers=("rlimits", "landlock", "cgroup"))
        sandbox = ProcessSandbox(options)
        with pytest.raises(SandboxError, match="landlock, cgroup") as raised:
            sandbox.prepare()
        assert raised.value.code == "layer_missing"
        assert not sandbox.probe().usable

    def test_an_unknown_job_user_is_refused(self, tmp_path: Path) -> None:
        options = SandboxOptions(tmp_path, job_user="nobody-has-this-name")
        report = ProcessSandbox(options).probe()
        assert not report.usable
        assert report.refusal is not None
        assert report.refusal.code == "root_no_user"

    def test_only_root_has_a_job_user(self, tmp_path: Path) -> None:
        script = (
            "import pathlib\n"
            "from airlox.sandbox.base import SandboxOptions\n"
            "from airlox.sandbox.process import ProcessSandbox\n"
            "sandbox = ProcessSandbox(SandboxOptions(pathlib.Path('/'), 'daemon'))\n"
            "print(sandbox.probe().refusal.code)"
        )
        done = ordinary.run_script(script)
        assert done.stdout == "root_no_user\n", done.stderr


class TestUser:
    def test_a_job_user_is_put_on_for_good(self) -> None:
        parts.require("root")
        with ordinary.folder_of(0) as folder:
            job = Job(folder, user="nobody")
            owner = ProcessSandbox(job.options).owner()
            assert owner is not None
            for name in ("work", "out", "home"):
                os.chown(folder / name, *owner)
            job.run("/bin/sh", "-c", "id -u; id -G; touch $TMPDIR/x made; ls -n made")
        uid, groups, *listing = job.output[STDOUT].decode().split()
        assert (int(uid), int(groups)) == owner
        assert listing[2:4] == [uid, groups]


class TestEnd:
    def test_what_double_forked_away_is_ended(self, job: Job) -> None:
        script = (
            "import os, signal, time\n"
            "waiting, told = os.pipe()\n"
            "def hide():\n"
            "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "    signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
            "    os.write(1, b'%d ' % os.getpid())\n"
            "    os.closerange(0, 100)\n"
            "    time.sleep(1000)\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    os.fork()\n"
            "    hide()\n"
            "os.close(told)\n"
            "os.read(waiting, 1)  # ends when both have closed it\n"
        )
        assert job.run(*PYTHON, script).exit_code == 0
        assert len(job.output[STDOUT].split()) == 2
        assert alive(job.output[STDOUT]) == []

    def test_a_subreaper_of_its_own_hides_nothing(self, job: Job) -> None:
        parts.require("linux")
        script = (
            "import ctypes, os, time\n"
            "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
            "ready, done = os.pipe()\n"
            "if os.fork() == 0:\n"
            "    if os.fork() == 0:\n"
            "        os.write(1, b'%d ' % os.getpid()); os.close(done); time.sleep(1000)\n"
            "    os._exit(0)\n"
            "os.close(done); os.read(ready, 1)\n"
            "os.write(1, b'%d ' % os.getpid()); time.sleep(1000)"
        )
        job.on_output = lambda: job.cancel.set() if len(job.output[STDOUT].split()) == 2 else None
        assert job.run(*PYTHON, script, grace_s=0.1).cause is Cause.CANCELLED
        assert alive(job.output[STDOUT]) == []

    def test_stopping_everything_stops_no_clock(self, job: Job) -> None:
        outcome = job.run("/bin/sh", "-c", "kill -STOP $$", timeout_s=0.3, grace_s=0.1)
        assert (outcome.cause, outcome.limit) == (Cause.TIME_OUT, 300)

    def test_a_job_that_kills_its_keeper_gains_nothing_but_an_end(self, job: Job) -> None:
        outcome = job.run("/bin/sh", "-c", "echo $$; kill -KILL $PPID; sleep 1000")
        assert (outcome.cause, outcome.signal) == (Cause.SIGNAL, signal.SIGKILL)
        assert "keeper" in (outcome.detail or "")
        assert alive(job.output[STDOUT]) == []

    def test_a_job_dies_with_its_runner(self, tmp_path: Path) -> None:
        runner = (
            "import sys, pathlib; sys.path[:0] = sys.argv[2:]\n"
            "from sandbox.test_process import Job\n"
            "job = Job(pathlib.Path(sys.argv[1]))\n"
            "job.on_output = lambda: print(job.keeper_pid, job.output[1].decode(), flush=True)\n"
            "job.run('/bin/sh', '-c', 'setsid sleep 1000 & echo $! $$; wait')"
        )
        with subprocess.Popen(
            [sys.executable, "-c", runner, str(tmp_path), *sys.path], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            try:
                pids = [int(word) for word in process.stdout.readline().split()]
                assert len(pids) == 3
            finally:
                process.kill()
        for pid in pids:
            wait_until_gone(pid)

    def test_an_error_of_the_caller_leaves_nothing(self, job: Job) -> None:
        def refuse(pid: int) -> None:
            job.keeper_pid = pid
            raise LookupError("no")

        job._started = refuse  # type: ignore[method-assign]
        with pytest.raises(LookupError):
            job.run("/bin/sh", "-c", "echo ran; sleep 1000")
        assert job.output[STDOUT] == b""
        assert proctable.find(job.keeper_pid) is None

    def test_a_cancelled_run_leaves_nothing(self, job: Job) -> None:
        async def main() -> None:
            running = asyncio.ensure_future(job._run(("/bin/sh", "-c", "echo $$; sleep 1000"), {}))
            heard = asyncio.Event()
            job.on_output = heard.set
            await asyncio.wait_for(heard.wait(), 60)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        asyncio.run(main())
        assert alive(job.output[STDOUT]) == []
        assert proctable.find(job.keeper_pid) is None


class TestLimits:
    def test_memory_over_all_processes(self, job: Job) -> None:
        script = (
            "import os, time\n"
            "for _ in range(8):\n"
            f"    if os.fork() == 0: x = bytearray(b'x') * {24 * MIB}; time.sleep(1000)\n"
            "time.sleep(1000)"
        )
        outcome = job.run(*PYTHON, script, memory_bytes=100 * MIB)
        assert (outcome.cause, outcome.limit) == (Cause.OUT_OF_MEMORY, 100 * MIB)
        assert outcome.peak_source == "watcher"
        assert (outcome.peak_bytes or 0) > 100 * MIB

    def test_a_job_within_its_memory_is_measured(self, job: Job) -> None:
        outcome = job.run(*PYTHON, f"x = bytearray(b'x') * {50 * MIB}", memory_bytes=500 * MIB)
        assert outcome.cause is Cause.EXIT
        assert 50 * MIB < (outcome.peak_bytes or 0) < 500 * MIB

    def test_disk_growth(self, job: Job) -> None:
        script = "import time; open('big', 'wb').write(bytes(8 << 20)); time.sleep(1000)"
        outcome = job.run(*PYTHON, script, disk_bytes=4 * MIB)
        assert (outcome.cause, outcome.limit) == (Cause.DISK, 4 * MIB)
        assert outcome.detail == "bytes written"

    def test_the_floor_of_free_space(self, job: Job) -> None:
        outcome = job.run("/bin/sleep", "1000", disk_floor_bytes=1 << 60)
        assert outcome.cause is Cause.DISK
        assert outcome.detail == "free space of the disk"

    def test_file_size_core_and_open_files(self, job: Job) -> None:
        outcome = job.run(
            *PYTHON,
            "import resource as r; names = ('RLIMIT_CORE', 'RLIMIT_FSIZE', 'RLIMIT_NOFILE')\n"
            "print([r.getrlimit(getattr(r, name)) for name in names])",
            file_bytes=5 * MIB,
            open_files=99,
        )
        assert outcome.exit_code == 0
        assert json.loads(job.output[STDOUT].replace(b"(", b"[").replace(b")", b"]")) == [
            [0, 0],
            [5 * MIB, 5 * MIB],
            [99, 99],
        ]

    def test_a_file_beyond_the_limit_is_refused(self, job: Job) -> None:
        outcome = job.run("/bin/sh", "-c", "exec head -c 2000000 /dev/zero > big", file_bytes=MIB)
        assert (outcome.cause, outcome.signal) == (Cause.SIGNAL, signal.SIGXFSZ)
        assert (job.folder / "work" / "big").stat().st_size == MIB


class TestSurroundings:
    def test_only_the_three_streams_are_open(self, job: Job) -> None:
        parts.require("linux")
        job.run("/bin/sh", "-c", "ls -l /proc/self/fd | sed -n 's/.* \\([0-9]*\\) -> .*/\\1/p'")
        # The fourth is the listing's own.
        assert job.output[STDOUT].split() == [b"0", b"1", b"2", b"3"]

    def test_signals_are_the_defaults(self, job: Job) -> None:
        parts.require("linux")
        job.run("/bin/sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status")
        of_the_c_library = 0b11 << 31  # 32 and 33: it lets nobody set them, whatever was inherited
        for line in job.output[STDOUT].splitlines():
            assert int(line.split()[1], 16) & ~of_the_c_library == 0, line

    def test_neither_keeper_nor_runner_tells_of_the_plan(self, job: Job) -> None:
        parts.require("linux")
        job.run("/bin/sh", "-c", "tr '\\0' ' ' < /proc/$PPID/cmdline; cat /proc/$PPID/environ")
        words = job.output[STDOUT].decode().split()
        assert words[1:5] == ["-I", "-S", "-B", "-c"]
        assert "tr" not in words
        assert not [word for word in words if "PATH" in word or str(job.folder) in word]

    def test_tmp_is_new_for_each_job(self, job: Job) -> None:
        job.run("/bin/sh", "-c", "touch $TMPDIR/left; mkdir -p $TMPDIR/a/b; chmod 0 $TMPDIR/a")
        assert list((job.folder / "home").iterdir()) == []
        (job.folder / "home" / ".airlox-tmp").symlink_to(job.folder / "work")
        (job.folder / "work" / "kept").touch()
        job.run("/bin/sh", "-c", "ls -A $TMPDIR")
        assert job.output[STDOUT] == b""
        assert (job.folder / "work" / "kept").exists()

    def test_odd_bytes_in_arguments_survive(self, job: Job) -> None:
        argument = os.fsdecode(b"a\xffb\n\xc3\xa9")
        job.run("/bin/sh", "-c", 'printf %s "$1"', "sh", argument)
        assert job.output[STDOUT] == os.fsencode(argument)

    @pytest.mark.parametrize("word", ["a\0b", ""])
    def test_what_cannot_be_run_is_said(self, job: Job, word: str) -> None:
        outcome = job.run(word)
        assert outcome.cause is Cause.EXIT
        assert outcome.exit_code in (126, 127)
        assert outcome.detail

    def test_a_folder_that_is_gone_is_an_error(self, job: Job) -> None:
        (job.folder / "work").rmdir()
        with pytest.raises(SandboxError, match="No such file") as raised:
            job.run("/bin/true")
        assert raised.value.code == "not_started"


def wait_until_gone(pid: int) -> None:
    """Fail unless the process ends in time."""
    parts.require("linux")
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], 30)[0], f"process {pid} lives on"
    finally:
        os.close(fd)
