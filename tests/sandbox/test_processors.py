"""Jobs that keep every core busy: they stand back behind the runner, and can be held to a share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airlox.errors import SandboxError
from airlox.sandbox.base import NICE, SandboxOptions
from airlox.sandbox.linux.cgroups import open_driver
from airlox.sandbox.local import LocalSandbox
from support import parts, sandbox

SAYS = "tell(os.nice(0))"


def nicer(by: int) -> str:
    """What a job says that is so much nicer than these tests are."""
    return str(min(os.nice(0) + by, 19))


def has_groups() -> bool:
    try:
        return open_driver().cpu_parent is not None
    except SandboxError:
        return False


@pytest.mark.parametrize("user", sandbox.USERS)
def test_without_a_group_a_job_is_nice(user: str) -> None:
    seen = sandbox.run(SAYS, user=user, without=["cgroup"])
    assert seen.words == [nicer(NICE)]


def test_in_a_group_it_need_not_be() -> None:
    """The group's weight counts, and beside it only what the job's own processes are worth."""
    parts.require("root")
    if not has_groups():
        pytest.skip("no controller of processors may be used here")
    assert sandbox.run(SAYS, user="root").words == [nicer(0)]


def test_without_walls_it_is_nice() -> None:
    assert sandbox.run(SAYS, user="user", sandbox="process").words == [nicer(NICE)]


@pytest.mark.parametrize("user", sandbox.USERS)
def test_it_cannot_take_it_back(user: str) -> None:
    seen = sandbox.run("attempt(os.nice, -5)", user=user, without=["cgroup"])
    assert set(seen.words) <= {"EPERM", "EACCES"}


def test_a_share_that_nothing_enforces_is_refused(tmp_path: Path) -> None:
    parts.require("linux")
    options = SandboxOptions(state_dir=tmp_path, cpus=1.5)
    report = LocalSandbox(options, without=frozenset({"cgroup"})).probe()
    assert report.refusal is not None
    assert report.refusal.code == "cpus_none"


def test_a_share_is_enforced(tmp_path: Path) -> None:
    """By the group that a job gets; that the kernel obeys it is tested with the groups."""
    parts.require("root")
    if not has_groups():
        pytest.skip("no controller of processors may be used here")
    options = SandboxOptions(state_dir=tmp_path, cpus=1.5)
    assert LocalSandbox(options).probe().usable
    seen = sandbox.run("tell('ran')", user="root", limits={"cpus": 0.5})
    assert seen.words == ["ran"]
