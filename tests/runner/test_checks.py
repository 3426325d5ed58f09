"""What the doctor finds on made-up and on real machines."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from airlox.runner import checks
from airlox.runner.checks import State
from airlox.runner.options import RunnerOptions
from support import parts

NOW_S = 1_900_000_000
OPTIONS = RunnerOptions(name="box", cache_root=Path("/nonexistent"), host="lab", path="/bin")


def states(*found: checks.Check) -> list[tuple[State, str | None]]:
    return [(check.state, check.code) for check in found]


class TestPython:
    def test_one_that_is_here(self, tmp_path: Path) -> None:
        chosen = replace(OPTIONS, cache_root=tmp_path)
        found = checks.check_python(chosen, f"python3.{sys.version_info.minor}")
        assert states(found) == [(State.OK, None)]

    def test_one_that_may_be_fetched_is_a_warning(self, tmp_path: Path) -> None:
        found = checks.check_python(replace(OPTIONS, cache_root=tmp_path), "python3.99")
        assert states(found) == [(State.WARNING, "no_runtime")]
        assert found.remedy is not None
        assert "uv python install 3.99" in found.remedy

    def test_one_that_was_named_must_work(self, tmp_path: Path) -> None:
        chosen = replace(OPTIONS, cache_root=tmp_path, python=Path("/bin/false"))
        assert states(checks.check_python(chosen, "python3.12")) == [(State.FAILED, "no_runtime")]


class TestWorkRoot:
    def test_is_made(self, tmp_path: Path) -> None:
        root = tmp_path / "a/b"
        assert states(*checks.check_work_root(root, "ada", walls=True)) == [(State.OK, None)]
        assert root.is_dir()

    def test_is_left_as_it_is(self, tmp_path: Path) -> None:
        """Where jobs run as another user they must pass through."""
        tmp_path.chmod(0o711)
        checks.check_work_root(tmp_path, "ada", walls=True)
        assert tmp_path.stat().st_mode & 0o777 == 0o711

    def test_that_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        found = checks.check_work_root(tmp_path / "file/below", "ada", walls=True)
        assert states(*found) == [(State.FAILED, "work_root")]

    @pytest.mark.parametrize(
        ("name", "account", "state"),
        [
            ("home/ada/.cache", "ada", State.WARNING),
            ("home/team-ada_x", "ada", State.WARNING),
            ("home/adamant", "ada", State.OK),
            ("root/.cache", "root", State.OK),
            ("anything", "", State.OK),
        ],
    )
    def test_that_names_the_account(
        self, tmp_path: Path, name: str, account: str, state: State
    ) -> None:
        (found,) = checks.check_work_root(tmp_path / name, account, walls=True)
        assert found.state is state

    def test_without_walls_a_path_hides_nothing(self, tmp_path: Path) -> None:
        (found,) = checks.check_work_root(tmp_path / "ada", "ada", walls=False)
        assert found.state is State.OK


def test_room(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert checks.check_room(tmp_path, 2 * free).code == "disk_full"
    assert checks.check_room(tmp_path, 0).state is not State.FAILED
    assert checks.check_room(tmp_path / "missing", 0).state is State.FAILED


class TestClock:
    def test_that_is_years_behind(self) -> None:
        found = checks.check_clock(86_400, synchronised=True)
        assert states(found) == [(State.FAILED, "clock_wrong")]
        assert "1970-01-02" in found.detail

    @pytest.mark.parametrize(
        ("synchronised", "state"), [(True, State.OK), (False, State.WARNING), (None, State.OK)]
    )
    def test_that_nobody_keeps(self, synchronised: bool | None, state: State) -> None:
        assert checks.check_clock(NOW_S, synchronised=synchronised).state is state

    def test_the_kernel_answers(self) -> None:
        parts.require("linux")
        assert checks.is_clock_synchronised() in (True, False)


def test_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    assert checks.check_uv(str(tmp_path)).code == "uv_missing"
    (tmp_path / "uv").touch(0o755)
    assert checks.check_uv("/nonexistent").state is State.OK
