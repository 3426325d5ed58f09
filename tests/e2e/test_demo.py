"""`airlox demo` shows a whole job and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import parts
from support.commands import TIMEOUT_S, Cli


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """Someone whose temporary folder and cache are looked through when it is over."""
    temporary, home, here = tmp_path / "tmp", tmp_path / "home", tmp_path / "here"
    for folder in (temporary, home, here):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    yield Cli("", home, cwd=here)
    assert os.listdir(temporary) == []
    assert os.listdir(home) == []
    assert processes_of(temporary) == []


def processes_of(folder: Path) -> list[str]:
    """Processes that were started with this temporary folder, this one and its kin aside."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={folder}".encode() in path.read_bytes():
                found.append(path.with_name("cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


class TestDemo:
    def test_the_sample(self, person: Cli) -> None:
        done = person("demo")
        assert "Ran 3 tests" in done.err
        assert "\nOK\n" in done.err
        assert "exit 0" in done.err
        assert "signed by runner demo-box" in done.err
        assert "holds neither the command nor its output" in done.err
        assert "approved exactly that key" in done.err

    def test_a_command_in_this_tree_passes_on_its_exit_code(self, person: Cli) -> None:
        parts.require("git")
        assert person.cwd is not None
        subprocess.run(["git", "init", "-q", str(person.cwd)], check=True, timeout=60)
        (person.cwd / "hello.txt").write_text("hello")
        done = person("demo", "--tree", "--", "sh", "-c", "cat hello.txt; exit 6", code=6)
        assert done.out == "hello"

    def test_json(self, person: Cli) -> None:
        shape = person(
            "demo", "--json", "--sandbox", "process", "--", "echo", "some words"
        ).document
        assert shape["checks"] == {"signed_result": True, "approved_runner": True}
        assert shape["relay"]["plaintext_found"] is False
        assert shape["relay"]["items"] > 2
        assert shape["result"]["stdout"] == "some words\n"
        assert shape["sandbox"] == "process"

    def test_a_tree_that_cannot_be_sent(self, person: Cli) -> None:
        assert person.cwd is not None
        (person.cwd / ".env").write_text("KEY=1")
        done = person("demo", "--tree", "--", "true", code=1)
        assert ".env" in done.err

    def test_a_tree_without_a_command(self, person: Cli) -> None:
        person("demo", "--tree", code=2)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_being_ended_cleans_up_too(self, person: Cli, number: signal.Signals) -> None:
        with person.started("demo", "--", "sh", "-c", "echo ready; sleep 600") as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            running.send_signal(number)
            assert running.wait(TIMEOUT_S) == (130 if number == signal.SIGINT else 143)
