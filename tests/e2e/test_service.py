"""`airlox runner install-service`, typed by an ordinary user: the unit it leaves really joins.

No systemd runs here. A stand-in takes its commands, and the test starts what the unit says.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.cli.main import EXIT_TRANSFER
from support import parts
from support.commands import RUNTIME, TIMEOUT_S, Cli
from support.ordinary_runner import as_user, open_python, ordinary_home
from support.server import server

NAME = "box"


@pytest.fixture(scope="module")
def relay() -> Iterator[str]:
    with server("--ephemeral") as running:
        yield running.url


@pytest.fixture
def home() -> Iterator[Path]:
    parts.require("linux")
    with ordinary_home() as made:
        yield made


class Operator:
    """The ordinary user's command line, with a `systemctl` that writes down what it is told."""

    def __init__(self, home: Path) -> None:
        self.home = home
        tools = home / "bin"
        tools.mkdir()
        self.log = home / "told"
        stand_in = tools / "systemctl"
        stand_in.write_text(f'#!/bin/sh\necho "$@" >> {self.log}\n')
        home.chmod(0o777)
        stand_in.chmod(0o755)
        self.environ = {
            "HOME": str(home),
            "PATH": f"{tools}:/usr/bin:/bin",
            "PYTHONPATH": str(home / "lib"),
            "LANG": "C.UTF-8",
        }

    def __call__(self, *words: str, code: int = 0, invite: str = "") -> str:
        done = subprocess.run(
            [*as_user(), open_python(), "-m", "airlox.cli", *words],
            env=self.environ | {"AIRLOX_INVITE": invite},
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == code, done
        return done.stdout + done.stderr


def test_a_unit_that_joins(relay: str, home: Path, tmp_path: Path) -> None:
    made = ("session", "create", "--json", "--execute", "--kinds", "shell", "--runtime", RUNTIME)
    owner = Cli(relay, tmp_path / "owner")
    invites = owner(*made).document["invites"]
    link = invites["runner"]
    operator = Operator(home)
    words = ("runner", "install-service", "--name", NAME, "--sandbox", "process")
    said = operator(*words, "--labels", "small,grey", invite=link)
    unit_path = home / ".config/systemd/user/airlox-box.service"
    link_path = home / ".config/airlox/box.invite"
    assert str(unit_path) in said
    unit = unit_path.read_text()
    assert link.rpartition("#")[2] not in unit + said
    assert link_path.read_text().strip() == link
    assert link_path.stat().st_mode & 0o777 == 0o600
    assert operator.log.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable airlox-box.service",
        "--user restart airlox-box.service",
    ]

    command = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    argv = shlex.split(command.partition("=")[2])
    with subprocess.Popen([*as_user(), *argv], env=operator.environ, cwd="/") as service:
        try:
            keeper = owner.holding(invites["owner"])
            runner = _wait_for_runner(keeper)
            assert (runner["name"], runner["labels"]) == (NAME, ["small", "grey"])
        finally:
            service.send_signal(signal.SIGTERM)
        assert service.wait(TIMEOUT_S) == 0

    operator(*words, "--uninstall")
    assert not unit_path.exists()
    assert not link_path.exists()


@pytest.mark.slow
def test_one_by_a_code(relay: str, home: Path, tmp_path: Path) -> None:
    """The code is spent when the service is installed; what it keeps is the link."""
    made = ("session", "create", "--json", "--execute", "--kinds", "shell", "--runtime", RUNTIME)
    owner = Cli(relay, tmp_path / "owner")
    invites = owner(*made).document["invites"]
    offered = owner.holding(invites["owner"])("session", "code", "runner", "--json").document
    operator, code = Operator(home), offered["code"]
    words = ("runner", "install-service", "--name", NAME, "--sandbox", "process")
    said = operator(*words, "--relay", relay, "--code", code)
    assert (home / ".config/airlox/box.invite").read_text().strip() == invites["runner"]
    unit = (home / ".config/systemd/user/airlox-box.service").read_text()
    assert code not in unit + said
    assert "--relay" not in unit
    other = owner.holding(invites["owner"])("session", "code", "runner", "--json").document["code"]
    again = operator(*words, "--relay", relay, "--code", other, code=1)
    assert "--uninstall" in again
    assert owner("receive", other).out.strip() == invites["runner"], "the code was spent"
    elsewhere = [word if word != NAME else "second" for word in words]
    operator(*elsewhere, "--relay", relay, "--code", code, code=EXIT_TRANSFER["code_used"])


def _wait_for_runner(owner: Cli) -> dict[str, object]:
    for _ in range(100):
        found = owner("runner", "list", "--json").document["runners"]
        if found:
            return dict(found[0])
    raise AssertionError("no runner joined")


def test_a_dry_run_changes_nothing(home: Path) -> None:
    operator = Operator(home)
    words = ("runner", "install-service", "--name", NAME, "--sandbox", "process", "--dry-run")
    shown = operator(*words, "--toolchain", "tools", "--work-root", "w")
    assert f"--toolchain={home}/tools" in shown
    assert f"--work-root={home}/w" in shown
    assert 'Environment="PATH=' in shown
    assert not (home / ".config").exists()
    assert not operator.log.exists()


def test_a_sender_s_link_is_refused(relay: str, home: Path, tmp_path: Path) -> None:
    invites = Cli(relay, tmp_path)("session", "create", "--json").document["invites"]
    operator = Operator(home)
    said = operator("runner", "install-service", "--name", NAME, code=1, invite=invites["sender"])
    assert "sender invite" in said
    assert not (home / ".config").exists()


def test_options_that_cannot_be_are_refused_now(home: Path) -> None:
    words = ("runner", "install-service", "--name", NAME, "--sandbox", "process", "--no-network")
    Operator(home)(*words, code=1)
