"""README.md tells the truth: each of its commands runs here as it is written there.

Only two things are put in place of what the page says: the relay's port, which may be taken on
this machine, and the links and the code that the commands before have printed.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support import parts
from support.ports import free_port

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 60.0
BY_CI = {"make demo", "make setup", "make test"}
"""Commands that are run by other means: `tests/e2e/test_clone.py` and `.ci/run`."""


def _commands() -> list[str]:
    """Lines of the page's shell blocks, without comments."""
    found = []
    for language, text in BLOCK.findall(README):
        if not language and "│" not in text:
            found += [line.split(" #")[0].strip() for line in text.splitlines() if line.strip()]
    return found


def _python() -> str:
    (text,) = [text for language, text in BLOCK.findall(README) if language == "python"]
    return str(text)


class Terminal:
    """A shell at a terminal of its own. What it shows is kept, for the tests to look at."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.screen = ""
        self.before = ""
        ours, theirs = pty.openpty()
        self._fd = ours
        self._shell = subprocess.Popen(
            ["setsid", "--ctty", "/bin/bash", "--norc", "--noprofile"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env=environ | {"PS1": "", "TERM": "dumb"},
        )
        os.close(theirs)
        self.type("echo up")
        self.wait_for(r"^up$")

    def type(self, line: str) -> None:
        os.write(self._fd, line.encode() + b"\n")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first match in what has been shown since the last one that was waited for."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = re.search(pattern, self.screen, re.MULTILINE)
            if found:
                self.before, self.screen = self.screen[: found.start()], self.screen[found.end() :]
                return found
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                pytest.fail(f"{pattern!r} did not come; the screen shows:\n{self.screen}")
            self.screen += os.read(self._fd, 65536).decode("utf-8", "replace").replace("\r\n", "\n")

    def run(self, line: str) -> str:
        """Types a command and gives what it shows; fails when it fails."""
        self.type(f"{line}; echo status=$?=")
        self.wait_for(r"status=\$\?=")
        found = self.wait_for(r"status=(\d+)=\n")
        assert found[1] == "0", f"{line} ended with {found[1]}:\n{self.before}"
        return self.before

    def close(self) -> None:
        """Ctrl-C to what runs, then the end of the shell.

        A shell that gets its terminal back throws away what was typed before: it is told again.
        """
        deadline = time.monotonic() + 20
        os.write(self._fd, b"\x03")
        while self._shell.poll() is None and time.monotonic() < deadline:
            with suppress(OSError):  # the terminal goes with the shell
                self.type("exit")
                while select.select([self._fd], [], [], 0.3)[0]:
                    os.read(self._fd, 65536)
        self._shell.kill()
        self._shell.wait(10)
        os.close(self._fd)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A checkout such as a person has: git, a test, and a report to send."""
    parts.require("git")
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "test_sum.py").write_text(
        "from unittest import TestCase\n\n"
        "class Sum(TestCase):\n"
        "    def test(self):\n"
        "        self.assertEqual(1 + 1, 2)\n"
    )
    (checkout / "report.md").write_text("# Report\n")
    subprocess.run(["git", "init", "-q", str(checkout)], check=True, timeout=60)
    return checkout


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def terminals(home: Path, port: int) -> Iterator[list[Terminal]]:
    environ = {
        "HOME": str(home.parent),
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "AIRLOX_LISTEN": f"127.0.0.1:{port}",
    }
    opened = [Terminal(home, environ) for _ in range(3)]
    yield opened
    for terminal in reversed(opened):
        terminal.close()


def test_the_walk_through(terminals: list[Terminal], home: Path, port: int) -> None:
    parts.require("user namespaces")
    left = [line.replace("8080", str(port)) for line in _commands() if line not in BY_CI]
    server, you, machine = terminals

    def take(start: str) -> str:
        (line,) = [line for line in left if line.startswith(start)][:1]
        left.remove(line)
        return line

    server.type(take("airlox-server"))
    server.wait_for("listening on http")
    you.run(take("export AIRLOX_RELAY"))
    you.type(take("airlox machine add box"))
    printed = you.wait_for(r"^\s*(airlox runner join .* --name box.*)$")[1]
    assert re.sub(r"(?<=--code )\S+", "417-guitar-orbit", printed) == take("airlox runner join")
    machine.type(printed)
    you.wait_for(r"\?.*$")
    you.type("y")
    machine.wait_for("takes jobs")
    assert "Linux" in you.run(take("airlox run --on box -- uname"))
    assert "Ran 1 test" in you.run(take("airlox run --on box --tree"))
    assert "pulled report.md" in you.run(take("airlox run --on box --tree --pull"))
    assert (home / "report.md").read_text() == "# Results\n"
    assert "box | " in you.run(take("airlox run --on box --all"))
    job = re.search(r"^\S{22}$", you.run(take("airlox run --on box --no-wait")), re.MULTILINE)
    assert job is not None
    assert "completed" in you.run(take("airlox logs -f --on box").replace("JOB", job[0]))
    _room(you, take)
    assert left == []


def _room(you: Terminal, take: object) -> None:
    assert callable(take)
    shown = you.run(take("airlox session create --json"))
    invites = json.loads(shown[shown.index("{") : shown.rindex("}") + 1])["invites"]
    you.run(take("export AIRLOX_INVITE").replace("<sender link>", invites["sender"]))
    you.run(take("airlox send text"))
    you.run(take("airlox send file"))
    shown = you.run(take("airlox items"))
    assert "Build finished." in shown
    assert "report.md" in shown


def test_the_python_example(terminals: list[Terminal], port: int, tmp_path: Path) -> None:
    server = terminals[0]
    server.type(f"airlox-server --ephemeral --listen 127.0.0.1:{port}")
    server.wait_for("listening on http")
    done = subprocess.run(
        [sys.executable, "-c", _python().replace("8080", str(port))],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ | {"AIRLOX_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert (done.stdout, done.stderr) == ("build-agent text Build finished.\n", "")


def test_each_command_is_known_here() -> None:
    """A new command on the page needs a line in the walk-through above."""
    known = BY_CI | {line for line in _commands() if line.startswith(("airlox", "export "))}
    assert set(_commands()) <= known
