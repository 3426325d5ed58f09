"""The plan of a job: what it runs, with which environment, and what it sees of the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airlox.protocol.job import AnyRunner, PythonJob, ShellJob
from airlox.runner.options import RunnerOptions
from airlox.runner.packages import Interpreter
from airlox.runner.plan import plan_of, redactions_of
from airlox.runner.workspace import Places
from airlox.sandbox.base import Layout, Mount, Network

STATE = Path("/var/lib/box")
PLACES = Places(STATE / "run/1", STATE / "work", STATE / "home", STATE / "run/1/out", None)
LAYOUT = Layout(work="/work", out="/out", home="/home/job", tmp="/tmp")
PYTHON = Interpreter(
    Path("/srv/python/bin/python3.12"),
    "3.12.1",
    "system",
    (Mount(Path("/srv/python"), "/srv/python"),),
    {},
)


def bench(**options: Any) -> Any:
    """As much of a Bench as a plan needs."""
    given: dict[str, Any] = {"name": "box", "cache_root": STATE, "host": "lab"}
    given |= {"path": "/usr/bin:/bin", **options}
    return SimpleNamespace(
        options=RunnerOptions(**given),
        session=SimpleNamespace(memory_mb=512),
        network=Network.OFF,
        sandbox=SimpleNamespace(layout=lambda work, out, home: LAYOUT),
        redactions=((str(STATE), "$JOB"), ("/home/ann", "~")),
    )


def shell(**fields: Any) -> ShellJob:
    command = {} if "script" in fields else {"command": ("make", "test")}
    return ShellJob(files=(), memory_mb=None, target=AnyRunner(), timeout_s=9, **(command | fields))


def python(**fields: Any) -> PythonJob:
    return PythonJob(
        code="",
        filename="main.py",
        files=(),
        memory_mb=None,
        requirements=(),
        runtime="python3.12",
        target=AnyRunner(),
        timeout_s=9,
        **fields,
    )


class TestWords:
    def test_a_command_is_run_as_it_is(self) -> None:
        assert plan_of(bench(), shell(), PLACES, None).argv == ("make", "test")

    def test_a_script_goes_to_the_shell_or_to_whom_it_names(self) -> None:
        path = "/home/job/.airlox-script"
        assert plan_of(bench(), shell(script="make"), PLACES, None).argv == ("/bin/sh", path)
        assert plan_of(bench(), shell(script="#!/bin/awk"), PLACES, None).argv == (path,)

    def test_a_python_program_is_run_as_0_1_0_runs_it(self) -> None:
        assert plan_of(bench(), python(), PLACES, PYTHON).argv == (
            *("/srv/python/bin/python3.12", "-E", "-s", "-u", "-B", "-X", "utf8"),
            "main.py",
        )

    def test_it_starts_in_its_folder_of_the_tree(self) -> None:
        assert plan_of(bench(), shell(), PLACES, None).cwd == "/work"
        assert plan_of(bench(), shell(cwd="a/b"), PLACES, None).cwd == "/work/a/b"


class TestEnvironment:
    def test_python_gets_exactly_the_promised_variables(self) -> None:
        assert dict(plan_of(bench(), python(), PLACES, PYTHON).env) == {
            "AIRLOX_OUT": "/out",
            "HOME": "/home/job",
            "LANG": "C.UTF-8",
            "MPLBACKEND": "Agg",
            "PATH": "/srv/python/bin:/usr/local/bin:/usr/bin:/bin",
            "TMPDIR": "/tmp",
        }

    def test_a_shell_finds_what_the_runner_finds_as_far_as_it_can_be_seen(self) -> None:
        chosen = bench(
            path="/home/ann/bin:relative::/usr/games:/opt/tool/bin",
            toolchains=(Path("/srv/node"),),
        )
        path = dict(plan_of(chosen, shell(), PLACES, None).env)["PATH"].split(":")
        assert path[:3] == ["/srv/node/bin", "/usr/games", "/opt/tool/bin"]
        assert "/home/ann/bin" not in path
        assert "/usr/bin" in path
        assert "" not in path

    def test_in_an_image_it_finds_what_the_image_has(self) -> None:
        chosen = bench(sandbox="docker", path="/usr/games", toolchains=(Path("/srv/node"),))
        of_image = replace(LAYOUT, path="/image/bin:/bin")
        chosen.sandbox = SimpleNamespace(layout=lambda work, out, home: of_image)
        found = dict(plan_of(chosen, shell(), PLACES, None).env)["PATH"]
        assert found == "/srv/node/bin:/image/bin:/bin"
        found = dict(plan_of(chosen, python(), PLACES, PYTHON).env)["PATH"]
        assert found == "/srv/python/bin:/srv/node/bin:/image/bin:/bin"

    def test_without_walls_it_finds_all_of_it(self) -> None:
        chosen = bench(sandbox="process", path="/home/ann/bin")
        assert dict(plan_of(chosen, shell(), PLACES, None).env)["PATH"].startswith("/home/ann/bin:")


class TestNetwork:
    def test_named_hosts_and_the_way_to_them(self) -> None:
        chosen = bench(allow_hosts=("api.example.net",))
        chosen.network = Network.ALLOW_LIST
        for job, interpreter in ((shell(), None), (python(), PYTHON)):
            plan = plan_of(chosen, job, PLACES, interpreter)
            assert (plan.network, plan.hosts) == (Network.ALLOW_LIST, ("api.example.net:443",))
            env = dict(plan.env)
            for name in ("http_proxy", "https_proxy", "all_proxy"):
                assert env[name] == env[name.upper()] == "http://127.0.0.1:3128"
            assert env["no_proxy"] == env["NO_PROXY"] == "localhost,127.0.0.1,::1"

    @pytest.mark.parametrize("network", [Network.OFF, Network.ON])
    def test_otherwise_there_are_none(self, network: Network) -> None:
        chosen = bench(allow_hosts=("api.example.net",))
        chosen.network = network
        plan = plan_of(chosen, shell(), PLACES, None)
        assert (plan.network, plan.hosts) == (network, ())
        assert not [name for name, _ in plan.env if "proxy" in name.lower()]


class TestWhatItMayUse:
    def test_it_sees_its_interpreter_and_the_operators_toolchains_only(self) -> None:
        chosen = bench(toolchains=(Path("/srv/node"), Path("/srv/python")))
        mounts = plan_of(chosen, python(), PLACES, PYTHON).toolchains
        assert [mount.target for mount in mounts] == ["/srv/node", "/srv/python"]
        assert plan_of(bench(), shell(), PLACES, None).toolchains == ()

    @pytest.mark.parametrize(
        ("asked", "operator", "given"),
        [(None, None, 512), (64, None, 64), (None, 128, 128), (64, 128, 64)],
    )
    def test_the_lowest_memory_limit_counts(
        self, asked: int | None, operator: int | None, given: int
    ) -> None:
        job = ShellJob(
            command=("true",), files=(), memory_mb=asked, target=AnyRunner(), timeout_s=9
        )
        used = plan_of(bench(memory_mb=operator), job, PLACES, None).limits
        assert used.memory_bytes == given << 20
        assert used.timeout_s == 9


def test_every_path_a_job_could_print_has_a_name() -> None:
    named = dict(redactions_of(bench(), PLACES, PYTHON))
    assert named["/work"] == named[str(PLACES.work)] == "$WORK"
    assert named["/out"] == named[str(PLACES.out)] == "$AIRLOX_OUT"
    assert named["/home/job"] == named[str(PLACES.home)] == "~"
    assert named[str(PLACES.job)] == named[str(STATE)] == "$JOB"
    assert named["/srv/python"] == "$RUNTIME"
