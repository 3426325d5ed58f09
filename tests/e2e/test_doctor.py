"""`airlox runner doctor` as an ordinary user types it: without root, and without control groups."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import parts
from support.commands import RUNTIME, TIMEOUT_S
from support.ordinary_runner import as_user, open_python, ordinary_home


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    parts.require("user namespaces")
    with ordinary_home() as made:
        yield made


def doctor(home: Path, *words: str) -> tuple[int, Any]:
    done = subprocess.run(
        [*as_user(), open_python(), "-m", "airlox.cli", "runner", "doctor", "--json", *words],
        env={"HOME": str(home), "PATH": os.defpath, "PYTHONPATH": str(home / "lib")},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("builder", ["own", "bwrap"])
def test_walls_hold_without_root(home: Path, builder: str) -> None:
    if builder == "bwrap":
        parts.require("bwrap")
    code, found = doctor(home, "--runtime", RUNTIME, "--sandbox-builder", builder)
    assert [attack for attack in found["attacks"] if attack["held"] is not True] == []
    assert len(found["attacks"]) == 12
    assert (code, found["healthy"], found["builder"]) == (0, True, builder)
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert layers["mounts"]["on"]
    if os.geteuid() == 0:
        assert layers["cgroup"]["code"] == "cgroup_none"
        assert "systemd-run" in layers["cgroup"]["remedy"]


def test_most_get_through_where_there_are_none(home: Path) -> None:
    """As an ordinary user, whom the system itself keeps from some."""
    code, found = doctor(home, "--runtime", RUNTIME, "--sandbox", "process")
    through = {attack["name"] for attack in found["attacks"] if attack["held"] is False}
    assert through >= {"operators-file", "other-workspace", "environments", "host-sockets"}
    assert code == 1


def test_a_layer_that_must_be_and_is_not(home: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a user of this machine may have control groups")
    code, found = doctor(home, "--runtime", RUNTIME, "--require-layers", "cgroup")
    assert (code, found["usable"], found["refusal"]["code"]) == (1, False, "cgroup_none")
