"""airlox.tree.mounts: where times say nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airlox.tree.mounts import keeps_times


@pytest.fixture
def as_on_a_disk() -> None:
    """Here it is looked at."""


def test_memory_keeps_none(in_memory: Path) -> None:
    (in_memory / "below").mkdir()
    assert not keeps_times(in_memory)
    assert not keeps_times(os.fsencode(in_memory / "below"))


@pytest.mark.parametrize(
    ("kind", "keeps"), [("ext4", True), ("tmpfs", False), ("ramfs", False), ("overlay", True)]
)
def test_the_kind_decides(tmp_path: Path, kind: str, keeps: bool) -> None:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 28 9999:9 / /other rw shared:7 - tmpfs tmpfs rw\n"
        f"23 28 {number} / /a\\040-\\040b rw,nosuid shared:8 master:1 - {kind} tmpfs rw - tmpfs\n"
        "torn"
    )
    assert keeps_times(tmp_path, mounts=str(mounts)) is keeps


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    assert keeps_times(tmp_path, mounts=str(tmp_path / "none"))
    assert keeps_times(tmp_path / "none")
