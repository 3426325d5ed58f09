"""Long uploads and downloads over a slow line: what a person sees of them, and what a program."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import parts
from support.archives import Member, build_zip
from support.commands import Cli, Room, on_terminal, open_room
from support.cutting import Network
from support.server import server

SIZE = 6_000_000
"""More than sockets hold between a writer and the line, by far."""
BYTES_PER_S = 1_500_000
ERASED = "\r\x1b[2K"


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    with (
        server("--ephemeral") as running,
        Network(running.url, bytes_per_s=BYTES_PER_S) as network,
        open_room(network.url, tmp_path_factory.mktemp("homes")) as opened,
    ):
        yield opened


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A tree that no runner has seen, and that does not shrink."""
    parts.require("git")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=60)
    (tmp_path / "large.bin").write_bytes(os.urandom(SIZE))
    return tmp_path


def tree_job(*flags: str) -> tuple[str, ...]:
    return ("run", "--tree", *flags, "--runner", "box", "--", "ls")


class TestTree:
    def test_a_bar_on_a_terminal(self, room: Room, checkout: Path) -> None:
        shown = on_terminal(room.sender.at(checkout), *tree_job())
        assert re.search(r"sending the tree \[=* *\] \d+ % of 6\.0 MB, ", shown)
        *_, last = shown.rpartition(ERASED)
        assert "large.bin\r\n" in last  # the bar is gone before the job's own words
        assert "sending" not in last

    def test_lines_elsewhere(self, room: Room, checkout: Path) -> None:
        done = room.sender.at(checkout)(*tree_job())
        assert done.out == "large.bin\n"
        told = [line for line in done.err.splitlines() if line.startswith("sending")]
        assert re.fullmatch(r"sending the tree \d+ % of 6\.0 MB, .*/s", told[0])
        assert "\x1b" not in done.err

    @pytest.mark.slow
    def test_nothing_in_json(self, room: Room, checkout: Path) -> None:
        assert room.sender.at(checkout)(*tree_job("--json")).err == ""


@pytest.mark.slow
def test_a_file_goes_and_comes(room: Room, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(build_zip(Member(name="r", content=os.urandom(SIZE))))
    sender, owner = room.sender.at(tmp_path), Cli("", room.owner.home, invite=room.owner.invite)
    assert re.search(
        r"sending \[=* *\] \d+ % of 6\.0 MB", on_terminal(sender, "send", "file", "a.zip")
    )
    assert sender("send", "file", "a.zip", "--quiet").err == ""
    shown = on_terminal(owner, "items", "--save", str(tmp_path / "in"))
    assert re.search(r"fetching \[=* *\] \d+ % of 6\.0 MB", shown)
    assert (tmp_path / "in" / "a.zip").stat().st_size > SIZE
