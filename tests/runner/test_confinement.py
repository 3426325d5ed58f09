"""The sandbox a runner gets is the one its operator asked for, and it is told of."""

from __future__ import annotations

import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from airlox.errors import SandboxError, UsageError
from airlox.runner.confinement import check_confinement, in_one_line, open_tried, sandbox_options
from airlox.runner.notes import Note
from airlox.runner.options import RunnerOptions
from airlox.sandbox.base import Layer, Network, Report
from support import parts

OPTIONS = RunnerOptions(name="box", cache_root=Path("/nonexistent"), host="lab", path="/bin")


def test_the_sandbox_is_told_where_toolchains_may_lie(tmp_path: Path) -> None:
    """Else a folder of its own could cover the operator's interpreter."""
    chosen = replace(OPTIONS, toolchains=(Path("/work/node"),))
    asked = sandbox_options(chosen, tmp_path, Network.OFF)
    assert asked.toolchain_roots == chosen.toolchain_roots
    assert Path("/work/node") in asked.toolchain_roots


def test_what_stands_is_said_at_the_start(tmp_path: Path) -> None:
    parts.require("user namespaces")
    said: list[Note] = []
    _, report = open_tried(OPTIONS, tmp_path, Network.OFF, said.append)
    assert report.usable
    assert [note.kind for note in said] == ["sandbox"]
    assert "seccomp" in said[0].text


def test_what_cannot_be_had_is_known_before_a_session_is_asked(tmp_path: Path) -> None:
    options = RunnerOptions("box", tmp_path, "h", "/bin", sandbox="process")
    check_confinement(options)
    with pytest.raises(SandboxError):
        check_confinement(replace(options, require_layers=("landlock",)))
    assert list(tmp_path.iterdir()) == []


def test_no_walls_is_a_warning(tmp_path: Path) -> None:
    said: list[Note] = []
    open_tried(replace(OPTIONS, sandbox="process"), tmp_path, Network.ON, said.append)
    assert [note.kind for note in said] == ["warning"]


def test_bubblewrap_under_root_gets_a_way_to_the_folders_of_jobs(tmp_path: Path) -> None:
    parts.require("bwrap")
    parts.require("root")
    with TemporaryDirectory() as top:  # pytest's own folders are closed to other users
        Path(top).chmod(0o711)
        state = Path(top, "runner/state")
        state.mkdir(0o700, parents=True)
        chosen = replace(OPTIONS, builder="bwrap", work_root=Path(top, "runner"))
        with suppress(SandboxError):  # the tests' interpreter may lie in a private home
            open_tried(chosen, state, Network.OFF, print)
        assert stat.S_IMODE(state.stat().st_mode) == 0o711


def test_a_way_that_is_closed_to_bubblewrap_is_told(tmp_path: Path) -> None:
    parts.require("bwrap")
    parts.require("root")
    (tmp_path / "closed").mkdir(0o700)
    state = tmp_path / "closed/runner/state"
    state.mkdir(parents=True)
    chosen = replace(OPTIONS, builder="bwrap", work_root=tmp_path / "closed/runner")
    with pytest.raises(UsageError) as refused:
        open_tried(chosen, state, Network.OFF, print)
    assert refused.value.code == "work_root_closed"


def test_a_wall_that_is_asked_for_and_missing_is_refused(tmp_path: Path) -> None:
    chosen = replace(OPTIONS, sandbox="process", require_layers=("seccomp",))
    with pytest.raises(SandboxError) as refused:
        open_tried(chosen, tmp_path, Network.ON, print)
    assert refused.value.code == "layer_missing"


def test_one_line_names_what_is_off_and_why() -> None:
    layers = (Layer("uid", True, "5"), Layer("cgroup", False, "none may be made"))
    text = in_one_line(Report("local", "own", layers, usable=True))
    assert text == "sandbox local, built by own: uid; off: cgroup (none may be made)"
