"""What containers alone promise; the rest is in `test_suite.py`. On a real engine, as root."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airlox.errors import SandboxError
from airlox.sandbox.base import Cause, Limits, Network, Outcome, Plan, SandboxOptions
from airlox.sandbox.container.ready import label_of
from airlox.sandbox.docker import DockerSandbox
from support import engine, parts, sandbox
from support.sandbox_driver import SECRET

pytestmark = pytest.mark.slow

MIB = 1 << 20
SERVER = """
import socket
with socket.create_server(("0.0.0.0", 8000)) as server:
    print("listens", flush=True)
    server.accept()
"""


@pytest.fixture(scope="module", autouse=True)
def _engine() -> Iterator[None]:
    parts.require("a container engine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", engine.use().host)
        yield


class Runner:
    """A sandbox with a folder, and what a plan of it prints."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.sandbox = DockerSandbox(SandboxOptions(folder, **{"image": engine.PYTHON, **options}))
        self.folder = folder
        self.said = bytearray()

    def plan(self, *argv: str, **fields: Any) -> Plan:
        work, out, home = (self.folder / name for name in ("work", "out", "home"))
        for place in (work, out, home):
            place.mkdir(exist_ok=True)
            os.chown(place, *(self.sandbox.owner() or (0, 0)))
        limits = fields.pop("limits", Limits(timeout_s=60, memory_bytes=256 * MIB))
        return Plan(argv, (), "/work", work, out, home, limits, **fields)

    def run(
        self,
        *argv: str,
        cancel_after_s: float | None = None,
        cancel_on: bytes | None = None,
        **fields: Any,
    ) -> Outcome:
        plan = self.plan(*argv, **fields)

        async def go() -> Outcome:
            cancel = asyncio.Event()
            if cancel_after_s is not None:
                asyncio.get_running_loop().call_later(cancel_after_s, cancel.set)

            def hear(stream: int, chunk: bytes) -> None:
                self.hear(stream, chunk)
                if cancel_on is not None and cancel_on in self.said:
                    cancel.set()

            return await self.sandbox.run(plan, on_output=hear, cancel=cancel)

        return asyncio.run(go())

    def hear(self, stream: int, chunk: bytes) -> None:
        self.said += chunk


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def refusal(**options: Any) -> SandboxError:
    report = DockerSandbox(SandboxOptions(**options)).probe()
    assert not report.usable
    assert report.refusal is not None
    return report.refusal


def make_image(name: str, *changes: str, files: dict[str, bytes], platform: str = "") -> str:
    """An image of these files with a busybox, and changes such as `VOLUME /data`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o755
            archive.addfile(info, io.BytesIO(content))
    words = [f"--change={change}" for change in changes]
    words += [f"--platform={platform}"] if platform else []
    engine.use().docker("import", *words, "-", name, stdin=buffer.getvalue())
    return name


class TestSecrets:
    def test_no_list_of_processes_shows_the_environment(self) -> None:
        with sandbox.started(
            "tell('begun'); time.sleep(1000)", user="root", sandbox="docker", announce=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            lines = [_read(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
        assert any(b"time.sleep(1000)" in line for line in lines)
        assert not any(SECRET[::-1].encode() in line for line in lines)

    def test_nobody_but_the_runner_may_read_it_on_the_disk(self, runner: Runner) -> None:
        runner.sandbox.prepare()
        assert runner.folder.stat().st_mode & 0o077 == 0
        assert sorted(path.name for path in (runner.folder / "etc").iterdir()) == [
            "group",
            "passwd",
            "seccomp.json",
        ]


class TestEnds:
    @pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2, 0.35, 0.5, 0.8])
    def test_nothing_stays_of_a_cancel_at_any_moment(self, runner: Runner, after_s: float) -> None:
        runner.sandbox.prepare()
        outcome = runner.run("/bin/sleep", "1000", cancel_after_s=after_s)
        assert outcome.cause is Cause.CANCELLED
        assert _containers_of(runner) == []
        assert _groups() == []

    def test_term_reaches_every_process(self, runner: Runner) -> None:
        child = "trap 'echo child; exit' TERM; sleep 1000 & echo begun; wait"
        script = f"trap '' TERM; (trap - TERM; {child}) & wait; sleep 1000"
        limits = Limits(timeout_s=60, memory_bytes=256 * MIB, grace_s=3)
        outcome = runner.run("/bin/sh", "-c", script, cancel_on=b"begun", limits=limits)
        assert outcome.cause is Cause.CANCELLED
        assert bytes(runner.said) == b"begun\nchild\n"

    def test_term_comes_once(self, runner: Runner) -> None:
        code = (
            "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {15})\n"
            "print('ready', flush=True)\n"
            "while signal.sigwait({15}): print('term', flush=True)"
        )
        limits = Limits(timeout_s=60, memory_bytes=256 * MIB, grace_s=3)
        runner.run("/usr/bin/python3", "-c", code, cancel_on=b"ready", limits=limits)
        assert bytes(runner.said) == b"ready\nterm\n"

    def test_a_grandchild_without_memory(self, runner: Runner) -> None:
        code = (
            "import os, sys\n"
            "if os.fork() == 0:\n"
            "    if os.fork() == 0: x = bytes([1]) * (400 << 20)\n"
            "    os._exit(os.wait()[1] != 0)\n"
            "sys.exit(os.wait()[1] != 0)"
        )
        outcome = runner.run("/usr/bin/python3", "-c", code)
        assert (outcome.cause, outcome.limit) == (Cause.OUT_OF_MEMORY, 256 * MIB)
        assert outcome.peak_source == "cgroup"
        assert 200 * MIB < (outcome.peak_bytes or 0) < 260 * MIB

    def test_a_short_peak_is_exact(self, runner: Runner) -> None:
        """Nobody looks in the moment in which the memory is there: the kernel counts it."""
        outcome = runner.run("/usr/bin/python3", "-c", "x = bytes([1]) * (100 << 20)")
        assert outcome.peak_source == "cgroup"
        assert 100 * MIB < (outcome.peak_bytes or 0) < 200 * MIB

    def test_many_at_once(self, runner: Runner) -> None:
        plans = [runner.plan("/bin/sh", "-c", f"echo {n}; exit {n}") for n in range(4)]

        async def go() -> list[Outcome]:
            runs = [
                runner.sandbox.run(plan, on_output=runner.hear, cancel=asyncio.Event())
                for plan in plans
            ]
            return await asyncio.gather(*runs)

        assert sorted(outcome.exit_code or 0 for outcome in asyncio.run(go())) == [0, 1, 2, 3]
        assert _containers_of(runner) == []

    def test_ends_at_once_remove_each_their_own_and_what_was_left_once(
        self, runner: Runner
    ) -> None:
        tried: list[tuple[str, ...]] = []
        both = threading.Barrier(2, timeout=60)

        def remove(names: tuple[str, ...]) -> None:
            tried.append(names)
            both.wait()
            if "stubborn" in names:
                raise SandboxError("it resists", code="engine_failed")

        ready: Any = SimpleNamespace(engine=SimpleNamespace(remove=remove))
        gauge: Any = SimpleNamespace(close=lambda: None)

        async def end(*names: str) -> None:
            await asyncio.gather(*(runner.sandbox._remove(ready, name, gauge) for name in names))

        asyncio.run(end("stubborn", "one"))
        assert sorted(tried) == [("one",), ("stubborn",)]
        tried.clear()
        asyncio.run(end("two", "three"))
        assert sorted(tried, key=len) == [("three",), ("two", "stubborn")]

    def test_what_a_dead_runner_left_is_removed_and_no_more(self, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir(0o700)
        other = Runner(tmp_path / "other")
        other.sandbox.prepare()
        with sandbox.started(
            "tell('begun'); time.sleep(1000)", user="root", sandbox="docker", announce=True
        ) as process:
            assert process.stdout is not None
            pid = json.loads(process.stdout.readline())["runner"]
            folder = _state_of(pid)
            os.kill(pid, signal.SIGKILL)
        left = Runner(folder)
        assert len(_containers_of(left)) == 1
        Runner(other.folder).sandbox.prepare()
        assert len(_containers_of(left)) == 1
        left.sandbox.prepare()
        assert _containers_of(left) == []


class TestNetwork:
    def test_a_job_with_a_network_reaches_it_and_others_do_not(self, runner: Runner) -> None:
        parts.require("nsenter")
        code = f"import socket; socket.create_connection(('{engine.BRIDGE}', 8000), 10)"
        with _server():
            outcome = runner.run("/usr/bin/python3", "-c", code)
            assert (outcome.exit_code, b"unreachable" in runner.said) == (1, True)
            outcome = runner.run("/usr/bin/python3", "-c", code, network=Network.ON)
            assert outcome.exit_code == 0, bytes(runner.said)


class TestImages:
    def test_what_the_image_would_start_is_not_started(self, tmp_path: Path) -> None:
        image = make_image(
            "airlox-test/odd",
            'ENTRYPOINT ["/no/such"]',
            "VOLUME /data",
            "USER nobody",
            "ENV PATH=/tools:/bin",
            files={"bin/sh": Path("/bin/busybox").read_bytes()},
        )
        runner = Runner(tmp_path, image=image)
        script = "echo $PATH; echo x > /data/file && exit 4"
        outcome = runner.run("/bin/sh", "-c", script)
        assert outcome.exit_code == 4, bytes(runner.said)
        path = runner.said.split(b"\n")[0].decode()
        assert path == "/tools:/bin"
        assert runner.sandbox.layout(tmp_path, tmp_path, tmp_path).path == path
        assert engine.use().docker("volume", "ls", "--quiet") == ""

    def test_one_for_another_processor(self, tmp_path: Path) -> None:
        other = "arm64" if os.uname().machine == "x86_64" else "amd64"
        machine = {"arm64": b"\xb7\x00", "amd64": b"\x3e\x00"}[other]
        program = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + machine + bytes(100)
        image = make_image(
            "airlox-test/other", files={"bin/sh": program}, platform=f"linux/{other}"
        )
        assert refusal(state_dir=tmp_path, image=image).code == "image_architecture"

    def test_one_that_is_not_there(self, tmp_path: Path) -> None:
        error = refusal(state_dir=tmp_path, image="no/such:1")
        assert (error.code, "no/such:1" in error.message) == ("image_missing", True)

    def test_none_is_named(self, tmp_path: Path) -> None:
        assert refusal(state_dir=tmp_path).code == "no_image"

    def test_one_without_a_shell_runs_programs(self, tmp_path: Path) -> None:
        runner = Runner(tmp_path, image=engine.BARE)
        assert not runner.sandbox.has_shell
        assert runner.run("/bin/echo", "hello").exit_code == 0
        assert bytes(runner.said) == b"hello\n"


class TestRefusals:
    def test_no_engine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
        assert refusal(state_dir=tmp_path, image=engine.PYTHON).code == "engine_unreachable"

    def test_an_engine_that_this_user_may_not_use(self) -> None:
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            Path(folder).chmod(0o755)
            listener.bind(f"{folder}/engine.sock")
            Path(folder, "engine.sock").chmod(0o600)
            host = f"unix://{folder}/engine.sock"
            with pytest.raises(AssertionError, match="may not use the container engine"):
                sandbox.run("", user="user", sandbox="docker", docker_host=host)

    def test_a_runtime_that_the_engine_lacks(self, tmp_path: Path) -> None:
        options = {"state_dir": tmp_path, "image": engine.PYTHON, "container_runtime": "no-such"}
        error = refusal(**options)
        assert (error.code, "no-such" in error.message) == ("container_refused", True)

    def test_gpus_that_the_engine_does_not_give(self, tmp_path: Path) -> None:
        error = refusal(state_dir=tmp_path, image=engine.PYTHON, gpus="all")
        assert (error.code, "gpu" in error.message) == ("container_refused", True)

    def test_a_layer_that_containers_lack(self, tmp_path: Path) -> None:
        options = {"state_dir": tmp_path, "image": engine.PYTHON}
        assert refusal(**options, require_layers=("landlock",)).code == "landlock_off"

    def test_a_folder_with_an_odd_name(self, tmp_path: Path) -> None:
        folder = tmp_path / 'a,b "c" d'
        folder.mkdir()
        runner = Runner(folder)
        assert runner.run("/bin/sh", "-c", "echo x > /out/made").exit_code == 0
        assert (folder / "out/made").read_text() == "x\n"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _containers_of(runner: Runner) -> list[str]:
    label = label_of(runner.folder)
    return engine.use().docker("ps", "--all", "--quiet", f"--filter=label={label}").split()


def _groups() -> list[Path]:
    """Groups around containers that this process made."""
    return list(Path("/sys/fs/cgroup").glob(f"*/airlox-*-{os.getpid()}-*"))


def _state_of(pid: int) -> Path:
    """The state folder of a driver, from the container of its job: that knows the driver's pid."""
    for name in engine.use().containers():
        told = json.loads(engine.use().docker("inspect", name))[0]
        if f'"pid": {pid},' in " ".join(told["Config"]["Env"]):
            sources = [mount["Source"] for mount in told["Mounts"]]
            return next(Path(path).parents[1] for path in sources if path.endswith("/etc/passwd"))
    raise AssertionError(f"no container of {pid}")


@contextmanager
def _server() -> Iterator[None]:
    """A server in the engine's own network."""
    enter = ["nsenter", f"--net=/proc/{engine.use().pid}/ns/net"]
    process = subprocess.Popen(
        [*enter, "/usr/bin/python3", "-c", SERVER], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        yield
    finally:
        process.kill()
        process.communicate()
