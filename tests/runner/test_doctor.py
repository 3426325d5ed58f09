"""The doctor on this machine: twelve attacks, held by walls, and not held without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airlox.errors import SandboxError, UsageError
from airlox.runner.attacks import ATTACKS
from airlox.runner.checks import Check, State
from airlox.runner.doctor import Diagnosis, diagnose
from airlox.runner.options import RunnerOptions
from airlox.runner.trials import Trial
from airlox.sandbox.base import Report
from support import parts

NEEDS_NO_WALLS = {"left-behind", "memory"}
"""What `process` keeps, too."""


def options(root: Path, **chosen: object) -> RunnerOptions:
    plain = RunnerOptions(
        name="doctor", cache_root=root / "cache", host="lab", path="/usr/bin:/bin", work_root=root
    )
    return replace(plain, **chosen)  # type: ignore[arg-type]


def held(found: Diagnosis) -> dict[str, bool | None]:
    return {trial.attack.name: trial.held for trial in found.trials}


def test_there_are_twelve() -> None:
    assert len({attack.name for attack in ATTACKS}) == 12


def test_walls_hold(tmp_path: Path) -> None:
    parts.require("user namespaces")
    found = diagnose(options(tmp_path), "python3.12", "nobody-here")
    assert held(found) == {attack.name: True for attack in ATTACKS}, found.trials
    assert found.healthy
    assert list(tmp_path.iterdir()) == []


def test_walls_hold_with_named_hosts(tmp_path: Path) -> None:
    """They are the only way out, and none for what is not named."""
    parts.require("user namespaces")
    chosen = options(tmp_path, allow_hosts=("example.org",))
    found = diagnose(chosen, "python3.12", "nobody-here")
    layers = {layer.name: layer for layer in found.report.layers}
    assert "example.org" in layers["network"].detail
    assert held(found) == {attack.name: True for attack in ATTACKS}, found.trials


def test_user_namespaces_that_were_allowed_are_no_breach(tmp_path: Path) -> None:
    parts.require("user namespaces")
    found = diagnose(options(tmp_path, allow_userns=True), "python3.12", "nobody-here")
    trials = {trial.attack.name: trial for trial in found.trials}
    assert (trials["user-namespace"].held, trials["user-namespace"].seen) == (True, "done")
    assert found.healthy


def test_attacks_have_teeth(tmp_path: Path) -> None:
    """Without walls each gets something; as another user than root only some do."""
    parts.require("linux")
    parts.require("root")
    found = diagnose(options(tmp_path, sandbox="process"), "python3.12", "nobody-here")
    assert {name for name, held in held(found).items() if held} == NEEDS_NO_WALLS
    assert None not in held(found).values()
    assert not found.healthy
    assert list(tmp_path.iterdir()) == []


def test_a_job_user_without_walls(tmp_path: Path) -> None:
    """Its jobs come to their folders by the folders' paths."""
    parts.require("root")
    with pytest.raises(UsageError) as refused:
        diagnose(options(tmp_path, sandbox="process", job_user="nobody"), "python3.12", "")
    assert refused.value.code == "work_root_closed"


def test_a_sandbox_that_cannot_be_built_is_not_attacked(tmp_path: Path) -> None:
    chosen = options(tmp_path, sandbox="process", require_layers=("seccomp",))
    found = diagnose(chosen, "python3.12", "nobody-here")
    assert found.report.refusal is not None
    assert found.trials == ()
    assert not found.healthy


@pytest.mark.parametrize(
    ("refusal", "held", "state", "healthy"),
    [
        (None, True, State.OK, True),
        (None, True, State.WARNING, True),
        (None, True, State.FAILED, False),
        (None, False, State.OK, False),
        (None, None, State.OK, False),
        (SandboxError("no"), True, State.OK, False),
    ],
)
def test_healthy(
    refusal: SandboxError | None, held: bool | None, state: State, healthy: bool
) -> None:
    report = Report("local", "own", (), refusal is None, refusal)
    trials = (Trial(ATTACKS[0], True, ""), Trial(ATTACKS[1], held, ""))
    found = Diagnosis(report, (Check("disk", state, ""),), trials)
    assert found.healthy is healthy
