"""Which builder of `local` is taken: the first that works here, or the one that is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airlox.errors import SandboxError
from airlox.sandbox.base import Plan, SandboxOptions
from airlox.sandbox.linux import builders
from airlox.sandbox.linux.launched import Launched
from airlox.sandbox.linux.walls import Given, Walls
from airlox.sandbox.local import LocalSandbox
from support import sandbox

OPEN_TREE = 428


class Broken:
    """A builder that cannot be had on any machine."""

    name = "own"
    limits_files_of_tmpfs = True

    def check(self) -> None:
        raise SandboxError("nothing to build with", code="broken", hint="none")

    def launch(self, walls: Walls, plan: Plan, given: Given) -> Launched:
        raise AssertionError("a builder whose check failed is not used")

    def keep_ready(self, starts: int) -> None:
        raise AssertionError("a builder whose check failed is not used")


class Torn(Broken):
    name = "bwrap"

    def check(self) -> None:
        raise SandboxError("torn", code="torn", hint="none")


def test_order() -> None:
    assert [builder.name for builder in builders.candidates(None)] == ["own", "bwrap"]


@pytest.mark.parametrize("name", ["own", "bwrap"])
def test_a_named_one_is_the_only_one(name: str) -> None:
    assert [builder.name for builder in builders.candidates(name)] == [name]


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(SandboxError) as caught:
        builders.candidates("crane")
    assert (caught.value.code, "bwrap" in (caught.value.hint or "")) == ("no_builder", True)


@pytest.mark.parametrize("builder", ["own", "bwrap"])
def test_the_report_names_it(builder: str) -> None:
    assert sandbox.run("tell(1)", builder=builder, tell_report=True).builder == builder


@pytest.mark.parametrize("user", sandbox.USERS)
def test_where_a_profile_stops_ours_bubblewrap_is_taken(user: str) -> None:
    seen = sandbox.run("tell(1)", user=user, refused_call=OPEN_TREE, tell_report=True)
    assert seen.builder == "bwrap"


def test_nothing_is_put_in_place_of_a_named_one() -> None:
    with sandbox.started("", builder="own", refused_call=OPEN_TREE) as process:
        answer = json.loads(process.communicate(timeout=60)[0])
    assert "refused" in answer


def test_under_root_bubblewrap_shows_only_what_the_jobs_user_can_reach(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(0o700)
    asked: dict[str, Any] = {"user": "root", "toolchains": [str(tmp_path / "private")]}
    with sandbox.started("", builder="bwrap", **asked) as process:
        answer = json.loads(process.communicate(timeout=60)[0])
    assert answer["refused"] == "toolchain_unreadable"
    assert sandbox.run("tell(1)", builder="own", **asked).words == ["1"]


def test_of_two_that_do_not_work_the_first_gives_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"own": (__name__, "Broken"), "bwrap": (__name__, "Torn")}
    monkeypatch.setattr(builders, "TABLE", table)
    report = LocalSandbox(SandboxOptions(tmp_path)).probe()
    assert (report.usable, report.builder) == (False, "none")
    assert report.refusal is not None
    assert report.refusal.code == "broken"
