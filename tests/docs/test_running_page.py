"""docs/running.md: its commands are known to the command line, its numbers are the code's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from airlox.cli import progress
from airlox.cli.main import _prepare
from airlox.protocol.limits import KIB, MIB, OUTPUT_BYTES
from airlox.relay.config import Config, flag_of
from airlox.runner import live

PAGE = (Path(__file__).parents[2] / "docs" / "running.md").read_text()
TEXT = " ".join(PAGE.split())
COMMANDS = re.findall(r"^airlox .*$", PAGE, re.MULTILINE)


def test_there_are_some() -> None:
    assert len(COMMANDS) > 5


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_known(line: str) -> None:
    _prepare(shlex.split(line)[1:])


def test_numbers() -> None:
    assert f"up to {live.BYTES_PER_S // KIB} KiB a second" in TEXT
    assert f"the last {OUTPUT_BYTES // 2 // KIB} KiB of each stream" in TEXT
    config = Config()
    assert (config.live_ring_bytes, config.live_retention_s) == (MIB, 600)
    assert "the last MiB, until ten minutes after the end" in TEXT
    for name in ("live_ring_bytes", "live_retention_s"):
        assert f"`{flag_of(name)}`" in TEXT
    assert (progress.SILENT_S, progress.LINE_S) == (1, 5)
    assert "takes longer than a second" in TEXT
    assert "every five seconds" in TEXT
    assert live.HOLD_S <= 0.1
