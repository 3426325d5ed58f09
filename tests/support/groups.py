"""Control groups that runners made, looked for while others come and go."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def groups_of(pid: int) -> list[Path]:
    """The groups of jobs that this runner made and did not remove."""
    found: list[Path] = []
    for folder, names, _ in os.walk(ROOT):  # passes by what vanishes under its eyes
        found += [Path(folder, name) for name in fnmatch.filter(names, f"airlox-*-{pid}-*")]
    return found
