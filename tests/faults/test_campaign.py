"""Campaigns of faults with seeds that stay the same; `make faults` runs others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.parts import require

TESTS = Path(__file__).parents[1]


def run_campaign(*words: str, timeout_s: float) -> dict[str, Any]:
    """The figures of a campaign in which everything held."""
    require("linux")
    done = subprocess.run(
        [sys.executable, "-m", "faults.campaign", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures: dict[str, Any]
    figures, _ = json.JSONDecoder().raw_decode(done.stdout)
    return figures


@pytest.mark.timeout(600)  # twenty seconds where nothing else runs
def test_a_short_campaign() -> None:
    figures = run_campaign("--seconds=6", "--seed=5", "--items=200", "--people=2", timeout_s=580)
    assert sum(figures["faults"].values()) > 0
    assert figures["items acknowledged"] > 0
    assert figures["jobs accepted"] > 0


@pytest.mark.slow  # minutes of faults, which must come and go
@pytest.mark.timeout(1200)
def test_a_long_campaign() -> None:
    require("root")
    require("ip")
    figures = run_campaign("--seconds=100", "--seed=11", "--items=3000", timeout_s=1150)
    assert {"kill relay", "kill runner", "long cut", "full disk"} <= figures["faults"].keys()
    assert figures["items acknowledged"] > 100
    assert figures["jobs accepted"] > 20
