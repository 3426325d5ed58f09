"""What a container gets, as arguments."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import SandboxError
from airlox.sandbox.base import Limits, Mount, Network, Plan
from airlox.sandbox.container import arguments
from airlox.sandbox.container.arguments import Shape

PLAN = Plan(
    argv=("/bin/sh", "-c", "echo $SECRET"),
    env=(("PATH", "/bin"), ("SECRET", "hidden")),
    cwd="/work/sub",
    work=Path("/state/work"),
    out=Path("/state/out"),
    home=Path("/state/home"),
    limits=Limits(timeout_s=1, memory_bytes=64 << 20, cpus=1.5),
)
SHAPE = Shape(image="sha256:1", user=(61184, 61184), label="airlox.runner=abc")


def words(plan: Plan = PLAN, shape: Shape = SHAPE) -> tuple[str, ...]:
    return arguments.create(plan, shape, name="airlox-1", cgroup_parent=None)


def mounts(plan: Plan = PLAN, shape: Shape = SHAPE) -> list[list[str]]:
    """The fields of each mount, as the engine's command reads them."""
    lines = [word[len("--mount=") :] for word in words(plan, shape) if word.startswith("--mount=")]
    return [next(csv.reader([line])) for line in lines]


def test_every_wall_is_asked_for() -> None:
    assert {
        "--network=none",
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--user=61184:61184",
        "--pids-limit=513",
        "--ulimit=core=0:0",
        f"--memory={64 << 20}",
        f"--memory-swap={64 << 20}",
        "--cpus=1.50",
        "--cpu-shares=512",
        "--pull=never",
        "--init",
    } <= set(words())


def test_nothing_that_opens_a_wall_is_in_it() -> None:
    said = " ".join(words())
    for word in ("privileged", "cap-add", "docker.sock", "--device", "--volume", "=host"):
        assert word not in said


def test_the_plans_command_follows_the_image() -> None:
    *options, image, first, second = words()
    assert (options[-1], image, first, second) == (
        "--entrypoint=/bin/sh",
        "sha256:1",
        "-c",
        "echo $SECRET",
    )


def test_the_environment_is_in_no_argument() -> None:
    assert not any("hidden" in word for word in words())
    assert arguments.environment(PLAN) == b"PATH=/bin\nSECRET=hidden\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("A", value) for value in ("two\nlines", "x\r", "\0", "x" * 70_000, "\ud800")),
        *((name, "x") for name in ("", "#A", "A B", "A=B", "Ä")),
    ],
    ids=lambda text: ascii(text)[:20],
)
def test_a_variable_that_no_line_can_hold_is_refused(name: str, value: str) -> None:
    with pytest.raises(SandboxError, match="cannot be given to a container"):
        arguments.environment(replace(PLAN, env=((name, value),)))


def test_names_that_the_engine_would_add_are_taken_out() -> None:
    assert {"--env=HOSTNAME", "--env=HTTP_PROXY", "--env=no_proxy"} <= set(words())
    given = replace(PLAN, env=(("HTTP_PROXY", "http://127.0.0.1:1"),))
    assert "--env=HTTP_PROXY" not in words(given)


def test_folders_are_mounted_and_nothing_else() -> None:
    tools = Mount(Path("/opt/tools"), "/opt/tools")
    assert mounts(replace(PLAN, toolchains=(tools,))) == [
        ["type=bind", "source=/state/work", "target=/work"],
        ["type=bind", "source=/state/home", "target=/home/job"],
        ["type=bind", "source=/state/out", "target=/out"],
        ["type=bind", "source=/opt/tools", "target=/opt/tools", "readonly"],
    ]


@given(st.text(st.characters(exclude_characters="\0\r\n/", exclude_categories=["Cs"]), min_size=1))
def test_a_path_is_one_field_whatever_is_in_it(name: str) -> None:
    fields = mounts(replace(PLAN, work=Path("/state") / name))[0]
    assert fields == ["type=bind", f"source={Path('/state') / name}", "target=/work"]


def test_folders_that_an_image_wants_are_small_and_in_memory() -> None:
    shape = replace(SHAPE, volumes=("/data", "/tmp", "/a:b"))
    made = [word for word in words(PLAN, shape) if word.startswith("--tmpfs=/")]
    assert [word.split(":")[0] for word in made] == ["--tmpfs=/tmp", "--tmpfs=/data"]
    assert all("nosuid,nodev,size=" in word for word in made)


def test_the_network_is_given_only_where_the_plan_has_it() -> None:
    assert "--network=bridge" in words(replace(PLAN, network=Network.ON))
    with pytest.raises(SandboxError):
        words(replace(PLAN, network=Network.ALLOW_LIST))


def test_without_a_limit_of_memory_none_is_set() -> None:
    plan = replace(PLAN, limits=Limits(timeout_s=1, memory_bytes=None))
    assert not any(word.startswith(("--memory", "--cpus=")) for word in words(plan))


def test_options_of_the_operator() -> None:
    shape = replace(SHAPE, runtime="runsc", gpus="all")
    assert {"--runtime=runsc", "--gpus=all"} <= set(words(PLAN, shape))
    rootless = replace(SHAPE, podman=True, keep_id=True)
    assert "--userns=keep-id" in words(PLAN, rootless)
