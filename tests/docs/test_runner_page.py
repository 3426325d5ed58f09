"""docs/runner.md tells the truth: its commands run, its codes exist, its figures are the code's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airlox.protocol import limits
from airlox.runner import checks, options
from airlox.sandbox import probe
from airlox.sandbox.base import NICE, Limits
from support import parts

PAGE = (Path(__file__).parents[2] / "docs" / "runner.md").read_text()
BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = {
    'sudo "$(command -v airlox)" runner install-apparmor': "tests/runner/test_apparmor.py",
    "airlox runner install-service --name box --invite-file box.link": "tests/e2e/test_service.py",
}
"""Commands that change the system, and what runs them on one made up."""
GIB = 1024**3
TIMEOUT_S = 100


def commands() -> list[str]:
    return [line for block in BLOCK.findall(PAGE) for line in block.splitlines()]


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def run(command: str, home: Path) -> subprocess.CompletedProcess[str]:
    assert command in commands()
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    return subprocess.run(
        ["sh", "-c", command],
        env={"HOME": str(home), "PATH": path, "LANG": "C.UTF-8"},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_a_healthy_machine(tmp_path: Path) -> None:
    parts.require("user namespaces")
    done = run("airlox runner doctor", tmp_path)
    assert done.returncode == 0, done
    assert "12 attacks held" in done.stdout


def test_without_walls(tmp_path: Path) -> None:
    done = run("airlox runner doctor --sandbox process --json", tmp_path)
    assert done.returncode == 1
    held = [attack["name"] for attack in json.loads(done.stdout)["attacks"] if attack["held"]]
    if os.geteuid() == 0:
        assert held == ["left-behind", "memory"]


@pytest.mark.parametrize("place", ELSEWHERE.values())
def test_the_other_commands_are_run_where_it_is_said(place: str) -> None:
    assert (Path(__file__).parents[2] / place).exists()


def test_every_command_that_looks_is_run_here() -> None:
    mine = {line for line in commands() if " doctor" in line or " install-" in line}
    tried = {"airlox runner doctor", "airlox runner doctor --sandbox process --json"}
    assert mine == tried | ELSEWHERE.keys()


def test_every_code_in_the_table_is_one_that_is_given() -> None:
    rows = [line for line in section("Checking a machine").splitlines() if line.startswith("| `")]
    codes = {code for row in rows for code in re.findall(r"`(\w+)`", row.split("|")[1])}
    given = Path(checks.__file__).read_text()
    assert len(codes) >= 8
    assert [code for code in codes if code not in probe._CAUSES and f'"{code}"' not in given] == []


def test_figures() -> None:
    used = Limits(timeout_s=1, memory_bytes=None)
    table = section("Limits")
    for said in (
        f"| processes | {used.processes} |",
        f"{used.disk_bytes // GIB} GiB, {used.disk_files:,} files, {used.file_bytes // GIB} GiB a",
        f"{options.DISK_FLOOR_BYTES // limits.MIB} MiB of the disk stay free",
        f"{used.tmp_bytes // limits.MIB} MiB, {used.shm_bytes // limits.MIB} MiB",
        f"| open files | {used.open_files} |",
        f"{limits.OUTPUT_BYTES // limits.MIB} MiB of each stream",
        f"{options.WORKSPACES_BYTES // GIB} GiB of all senders",
        f"unused for {options.WORKSPACE_DAYS} days",
        f"(nice {NICE})",
    ):
        assert said in table
