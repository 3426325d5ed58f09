"""The command of `make fuzz`, as far as it needs no fuzzer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .__main__ import ROOT
from .targets import TARGETS


def fuzz(*words: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "tests"])}
    command = (sys.executable, "-m", "fuzz", *words)
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize(("cut", "word"), [(None, "accepted"), (-1, "refused")])
def test_an_input_is_replayed(tmp_path: Path, cut: int | None, word: str) -> None:
    file = tmp_path / "input"
    file.write_bytes(next(iter(TARGETS["index"].seeds()))[:cut])
    done = fuzz("--target", "index", "--replay", str(file))
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["index:", word]), done.stderr


def test_a_replay_says_which_parser(tmp_path: Path) -> None:
    done = fuzz("--replay", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "--target" in done.stderr


def test_a_target_that_cannot_run_is_no_success(tmp_path: Path) -> None:
    """Here: its module is not there, since nobody says where."""
    code = (
        "import sys; sys.path[:0] = ['src', 'tests']; from fuzz import __main__ as driver; "
        f"sys.argv = ['fuzz', '--folder', {str(tmp_path)!r}, '--target', 'index']; "
        "sys.exit(driver.main())"
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        (sys.executable, "-c", code),
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert "no input, see" in done.stdout
    assert "findings: 1" in done.stdout
