"""The progress file: only what is new, only its end, and nothing a job can turn it into."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from airlox.protocol.job import AnyRunner, ShellJob
from airlox.runner.progress import TAIL_BYTES, ProgressTail, follow
from airlox.runner.workspace import Places


def test_whole_lines_come_once_and_are_marked(tmp_path: Path) -> None:
    tail, log = ProgressTail((tmp_path, "log")), tmp_path / "log"
    assert tail.look() == b""
    log.write_bytes(b"one\ntw")
    assert tail.look() == b"[progress] one\n"
    log.write_bytes(b"one\ntwo\n")
    assert tail.look() == b"[progress] two\n"
    assert tail.look() == b""


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path) -> None:
    tail, log = ProgressTail((tmp_path, "log")), tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(1 << 40)  # takes no space
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast line\n")
    shown = tail.look()
    assert shown.endswith(b"[progress] last line\n")
    assert len(shown) < TAIL_BYTES + 100


def test_a_file_that_begins_anew_is_read_anew(tmp_path: Path) -> None:
    tail, log = ProgressTail((tmp_path, "log")), tmp_path / "log"
    log.write_bytes(b"first run\n")
    tail.look()
    log.write_bytes(b"short\n")
    assert tail.look() == b"[progress] short\n"


def test_the_first_place_that_has_it_counts(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    for folder in (work, out):
        folder.mkdir()
    tail = ProgressTail((work, "sub/log"), (out, "log"))
    (out / "log").write_bytes(b"out\n")
    assert tail.look() == b"[progress] out\n"


@pytest.mark.parametrize("trick", ["link", "fifo", "folder", "link above", "link as root"])
def test_tricks_show_nothing_and_block_nothing(tmp_path: Path, trick: str) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "log").write_bytes(b"secret\n")
    work = tmp_path / "work"
    if trick == "link as root":
        work.symlink_to(secret)
    else:
        work.mkdir()
    if trick == "link":
        (work / "log").symlink_to(secret / "log")
    elif trick == "fifo":
        os.mkfifo(work / "log")
    elif trick == "folder":
        (work / "log").mkdir()
    elif trick == "link above":
        (work / "sub").symlink_to(secret)
    path = "sub/log" if trick == "link above" else "log"
    assert ProgressTail((work, path)).look() == b""


def test_the_last_lines_of_a_job_come_once(tmp_path: Path) -> None:
    job = ShellJob(
        command=("true",),
        files=(),
        memory_mb=None,
        target=AnyRunner(),
        timeout_s=9,
        progress_file="log",
    )
    places = Places(tmp_path, tmp_path, tmp_path, tmp_path, None)

    class Live:
        shown = b""

        def write(self, stream: int, chunk: bytes) -> None:
            self.shown += chunk

    async def story() -> bytes:
        live: Any = Live()
        async with follow(job, places, live):
            (tmp_path / "log").write_bytes(b"the end\n")
        shown: bytes = live.shown
        return shown

    assert asyncio.run(story()) == b"[progress] the end\n"
