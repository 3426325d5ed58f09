"""airlox.tree.git: a program outside, held to a time-out and a bounded answer.

What it answers is tested in test_scan.py, with the real git.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airlox.errors import TreeError
from airlox.tree import git


def fake_git(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))


def test_time_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_git(tmp_path, monkeypatch, "import time; time.sleep(600)")
    with pytest.raises(TreeError) as caught:
        git.list_files(str(tmp_path), timeout_s=0.2)
    assert caught.value.code == "tree_timeout"


def test_an_endless_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "ANSWER_BYTES", 100_000)
    fake_git(tmp_path, monkeypatch, "while True: print('x' * 1000)")
    with pytest.raises(TreeError) as caught:
        git.list_files(str(tmp_path))
    assert caught.value.code == "tree_too_large"


def test_folders_it_could_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warning = "warning: could not open directory 'shut/': Permission denied\\n"
    fake_git(
        tmp_path,
        monkeypatch,
        f"import sys; sys.stderr.write({warning!r}.replace('\\\\n', chr(10)))",
    )
    assert git.list_files(str(tmp_path)) == ((), (b"shut",))
