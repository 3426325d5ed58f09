"""Folders for tests of trees."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.tree import mounts
from support import parts


@pytest.fixture(autouse=True)
def as_on_a_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where temporary folders lie in memory, tests are written for a disk all the same."""
    if "in_memory" not in request.fixturenames:
        monkeypatch.setattr(mounts, "_FORGETFUL", ())


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder on a file system that does not notice every write."""
    parts.require("a tmpfs at /dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="airlox-tests-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)
