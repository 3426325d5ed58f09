"""What a runner says of itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import UNSET

from airlox.errors import UsageError, ValidationError
from airlox.protocol.cert import SandboxName
from airlox.protocol.manifest import JobKind
from airlox.runner import facts
from airlox.runner.options import RunnerOptions
from airlox.runner.packages import Interpreter
from airlox.sandbox.base import Layer, Limits, Mount, Network, Report

REPORT = Report(
    "local",
    "own",
    (
        Layer("landlock", True, "ABI 7"),
        Layer("cgroup", True, "version 2: memory and processes"),
        Layer("seccomp", False, "version 1"),
        Layer("uid", True, "jobs run as uid 61184"),
        Layer("watcher", True),
    ),
    usable=True,
)


def options(**given: object) -> RunnerOptions:
    fields = {"name": "box", "cache_root": Path("/home/ann/.cache/airlox"), "host": "lab"}
    return RunnerOptions(**(fields | {"path": "/usr/bin"} | given))  # type: ignore[arg-type]


def test_layers_have_their_version_where_that_says_something() -> None:
    assert facts.layers(REPORT, network=Network.OFF) == {
        "landlock": 7,
        "cgroup": 2,
        "seccomp": 0,
        "uid": 1,
        "watcher": 1,
    }


def test_a_job_that_has_the_hosts_network_has_no_wall_there() -> None:
    report = replace(REPORT, layers=(Layer("network", True, "own network"),))
    for network, wall in ((Network.OFF, 1), (Network.ALLOW_LIST, 1), (Network.ON, 0)):
        assert facts.layers(report, network=network) == {"network": wall}


def test_env_names_the_interpreter_and_no_path() -> None:
    place = Path("/home/ann/.cache/airlox/runtimes/x")
    python = Interpreter(
        place / "bin/python", "3.12.1", "uv-runtime", (Mount(place, str(place)),), {"six": "1.2"}
    )
    env = facts.env(REPORT, options(), network=Network.OFF, interpreter=python)
    assert (env.python, env.interpreter, env.packages) == ("3.12.1", "uv-runtime", {"six": "1.2"})
    assert "ann" not in repr(env)


def test_the_process_sandbox_says_that_its_network_is_open() -> None:
    chosen = options(sandbox="process")
    assert facts.env(REPORT, chosen, network=Network.OFF, interpreter=None).network == "open"
    assert facts.network_of(chosen, session_allows=False) is Network.ON
    assert facts.runner_info(chosen).network_unblocked
    assert facts.runner_info(chosen).sandbox is SandboxName.PROCESS


def test_the_operator_can_take_the_network_away() -> None:
    assert facts.network_of(options(), session_allows=True) is Network.ON
    assert facts.network_of(options(no_network=Network.ON), session_allows=True) is Network.OFF
    assert facts.network_of(options(), session_allows=False) is Network.OFF


def test_named_hosts_need_a_session_that_allows_the_network() -> None:
    chosen = options(allow_hosts=("api.example.net", "*.Example.org:8443"))
    assert facts.network_of(chosen, session_allows=True) is Network.ALLOW_LIST
    assert facts.network_of(chosen, session_allows=False) is Network.OFF


def test_named_hosts_are_told_where_they_count() -> None:
    chosen = options(allow_hosts=("api.example.net", "*.Example.org:8443"))
    env = facts.env(REPORT, chosen, network=Network.ALLOW_LIST, interpreter=None)
    assert (env.network, env.hosts) == ("allow_list", ("*.example.org:8443", "api.example.net:443"))
    assert facts.env(REPORT, chosen, network=Network.OFF, interpreter=None).hosts is UNSET
    note = facts.runner_info_note(
        chosen, REPORT, kinds=(JobKind.SHELL,), slots=1, network=Network.ALLOW_LIST, python=None
    )
    assert (note.network, note.hosts) == (env.network, env.hosts)


def test_the_note_says_what_is_offered() -> None:
    note = facts.runner_info_note(
        options(memory_mb=512),
        REPORT,
        kinds=(JobKind.SHELL,),
        slots=2,
        network=Network.ON,
        python=None,
    )
    assert (note.kinds, note.slots, note.network, note.memory_mb) == (("shell",), 2, "on", 512)


def test_the_image_is_named_where_there_is_one() -> None:
    without = facts.env(REPORT, options(), network=Network.OFF, interpreter=None)
    assert without.image is UNSET
    report = replace(REPORT, image="sha256:" + "a" * 64)
    found = facts.env(report, options(), network=Network.OFF, interpreter=None)
    assert found.image == "sha256:" + "a" * 64
    note = facts.runner_info_note(
        options(), report, kinds=(JobKind.SHELL,), slots=1, network=Network.OFF, python=None
    )
    assert note.image == found.image


def test_gpus_are_named_where_there_are_some() -> None:
    without = facts.env(REPORT, options(), network=Network.OFF, interpreter=None)
    assert without.gpus is UNSET
    report = replace(REPORT, gpus=2)
    assert facts.env(report, options(), network=Network.OFF, interpreter=None).gpus == 2
    note = facts.runner_info_note(
        options(), report, kinds=(JobKind.SHELL,), slots=1, network=Network.OFF, python=None
    )
    assert note.gpus == 2


def test_limits_as_they_were_applied() -> None:
    used = Limits(timeout_s=5, memory_bytes=None, processes=7)
    applied = facts.applied_limits(used, REPORT)
    assert (applied.timeout_s, applied.processes) == (5, 7)
    assert applied.memory_bytes is UNSET
    assert applied.cpus_milli is UNSET
    assert facts.applied_limits(replace(used, cpus=1.5), REPORT).cpus_milli == 1500


@pytest.mark.parametrize(("as_root", "counted"), [(True, UNSET), (False, 7)])
def test_processes_of_root_are_not_said_to_be_limited_without_walls(
    as_root: bool, counted: object
) -> None:
    report = replace(REPORT, sandbox="process", layers=(Layer("uid", not as_root),))
    used = Limits(timeout_s=5, memory_bytes=None, processes=7)
    assert facts.applied_limits(used, report).processes == counted


@pytest.mark.parametrize(
    "given",
    [
        {"concurrency": 0},
        {"concurrency": 65},
        {"memory_mb": 31},
        {"labels": tuple("abcdefghijklmnopq")},
        {"sandbox": "process", "no_network": True},
        {"gpus": "some"},
        {"cpus": 0.001},
        {"sandbox": "process", "cpus": 1.0},
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        options(**given)


@pytest.mark.parametrize("given", [{"name": "Box"}, {"labels": ("",)}, {"description": " "}])
def test_names_that_the_wire_does_not_take_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        options(**given)


def test_the_work_root_is_where_jobs_write() -> None:
    assert options().jobs_root == Path("/home/ann/.cache/airlox/runner")
    assert options(work_root=Path("/srv/jobs")).jobs_root == Path("/srv/jobs")
