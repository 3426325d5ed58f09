"""Processes beside a command: told in private, always ended."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from airlox.cli.children import Child
from airlox.errors import AirloxError

TIMEOUT_S = 60.0


def child(folder: Path, program: str, **environ: str) -> Child:
    """A process that runs `program`, as a module of that folder."""
    (folder / "program_for_test.py").write_text(program)
    return Child("test", ("program_for_test",), folder=folder, environ=environ)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class TestChild:
    def test_speaks_and_is_ended(self, tmp_path: Path) -> None:
        program = "import time; print('ready', flush=True); time.sleep(600)"
        with child(tmp_path, program) as running:
            assert running.first_line(TIMEOUT_S) == "ready"
            running.check()
            assert not running.wait(0.0)
        assert not is_there(running.pid)

    def test_hears_what_it_is_told_and_no_setting_of_ours(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRLOX_NAME", "ann")
        program = "import os; print(sorted(k for k in os.environ if k.startswith('AIRLOX_')))"
        with child(tmp_path, program + "\ninput()", AIRLOX_INVITE="s3cret") as running:
            assert running.first_line(TIMEOUT_S) == "['AIRLOX_INVITE']"

    def test_an_early_end_is_told_with_its_last_words(self, tmp_path: Path) -> None:
        program = "import sys; sys.exit('no room\\nfor me')"
        with (
            child(tmp_path, program) as running,
            pytest.raises(AirloxError, match="test ended with exit code 1: for me"),
        ):
            running.first_line(TIMEOUT_S)

    def test_silence_ends_the_wait(self, tmp_path: Path) -> None:
        with (
            child(tmp_path, "import time; time.sleep(600)") as running,
            pytest.raises(AirloxError, match="said nothing"),
        ):
            running.first_line(0.0)

    def test_one_that_does_not_listen_is_made_to_end_with_all_it_started(
        self, tmp_path: Path
    ) -> None:
        program = (
            "import signal, subprocess, sys, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
            "print(other.pid, flush=True); time.sleep(600)"
        )
        running = child(tmp_path, program)
        other = int(running.first_line(TIMEOUT_S))
        grandchild = os.pidfd_open(other)
        running.end(grace_s=0.2)
        assert not is_there(running.pid)
        ended, _, _ = select.select([grandchild], [], [], TIMEOUT_S)
        os.close(grandchild)
        assert ended
