"""A file system of a few megabytes, for tests of what happens when it is full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.parts import require


@contextmanager
def small_disk(mount: Path, size: str) -> Iterator[Path]:
    """Mounts an empty tmpfs of `size` at a new folder."""
    require("linux")
    require("root")
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount)]
    done = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)
    if done.returncode != 0:
        missing = f"needs a mounted tmpfs, which root may not make here: {done.stderr.strip()}"
        if os.environ.get("CI"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True, timeout=60)
