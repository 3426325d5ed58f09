"""skills/airlox/SKILL.md: whoever follows it gets somewhere. Each of its commands runs here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.client.machines import Machine, Machines
from support import parts
from support.commands import Cli, Room, open_room
from support.relay import RelayThread

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "skills" / "airlox" / "SKILL.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
TIMEOUT_S = 120.0


def front_matter() -> dict[str, str]:
    """Plain `key: value` lines, which are all that it holds."""
    head = PAGE.split("---\n")[1]
    return dict(line.split(": ", 1) for line in head.splitlines())


def test_the_front_matter_is_one_of_a_skill() -> None:
    head = front_matter()
    assert head["name"] == (ROOT / "skills" / "airlox").name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", head["name"])
    assert 0 < len(head["description"]) <= 1024
    assert "Use it when" in head["description"]
    assert ": " not in head["description"]  # it needs no quotes
    assert len(head["compatibility"]) <= 500
    assert head["license"] == "MIT OR Apache-2.0"


def test_it_is_short() -> None:
    assert len(PAGE.splitlines()) < 200
    assert len(PAGE) < 10_000


def test_every_code_is_one_that_is_given() -> None:
    table = PAGE.partition("## When something fails")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    codes = {code for row in rows for code in re.findall(r"`(\w+)`", row)}
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert len(codes) > 10
    assert [code for code in codes if f'"{code}"' not in source] == []


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    homes = tmp_path_factory.mktemp("homes")
    with RelayThread() as relay, open_room(relay.url, homes, "--features", "pull") as opened:
        yield opened


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    parts.require("git")
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "test_sum.py").write_text(
        "import unittest\n\n\nclass Sum(unittest.TestCase):\n"
        "    def test(self) -> None:\n        self.assertEqual(1 + 1, 2)\n"
    )
    (folder / "make_report.py").write_text("open('report.md', 'w').write('# Results\\n')\n")
    (folder / "report.md").write_text("# Report\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True, timeout=60)
    return folder


class Follower:
    """An agent that does what the page says, with a machine called box and a link."""

    def __init__(self, sender: Cli, folder: Path) -> None:
        self._sender = sender
        self._folder = folder
        self.ran: list[str] = []

    def run(self, start: str, code: int = 0, **named: str) -> str:
        """Run the first line that begins so, as it stands, but for names in capitals."""
        (line,) = [line for line in COMMANDS if line.startswith(start) and line not in self.ran][:1]
        self.ran.append(line)
        for name, value in named.items():
            line = line.replace(name, value)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self._folder,
            env={**self._sender.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == code, f"{line}: {done}"
        return done.stdout


def add_machine(room: Room) -> None:
    """What `airlox machine add box` keeps."""
    info = room.sender("session", "info", "--json").document
    machine = Machine(
        name="box",
        session_id=info["session_id"],
        relay=room.sender.relay,
        owner_invite=room.owner.invite,
        sender_invite=room.sender.invite,
        created_at_ms=time.time_ns() // 1_000_000,
        runner=room.runner["participant_pub"],
    )
    Machines(room.sender.home).add(machine)


@pytest.mark.slow
def test_each_command_as_it_is_written(room: Room, checkout: Path) -> None:
    add_machine(room)
    agent = Follower(room.sender, checkout)
    assert "box" in agent.run("airlox machine ls")
    agent.run("airlox run --on box --tree -- python3 -m unittest")
    assert "Linux" in agent.run("airlox run --on box -- uname")
    agent.run("airlox run --on box --tree --pull")
    assert (checkout / "report.md").read_text() == "# Results\n"
    assert "test_sum.py" in agent.run("airlox run --on box --tree --dry-run")
    job = agent.run("airlox run --on box --no-wait").strip()
    assert agent.run("airlox result", JOB=job) == "trained\n"
    assert agent.run("airlox logs", JOB=job) == "trained\n"

    room.observer("session", "info", "--as", "coder")
    assert "coder" in agent.run("airlox session info")
    room.owner("send", "text", "How are the tests?")
    items = [json.loads(line) for line in agent.run("airlox items --for-me").splitlines()]
    (asked,) = [item["id"] for item in items if item["kind"] == "text"]
    agent.run("airlox send text", ITEM=asked)
    agent.run("airlox send text")
    agent.run("airlox send file")
    assert "coder" in agent.run("airlox delivery")
    heard = [json.loads(line) for line in agent.run("airlox listen").splitlines()]
    assert asked in [item["id"] for item in heard]
    assert job in [item.get("job") for item in heard]
    assert sorted(agent.ran) == sorted(COMMANDS)


@pytest.mark.slow
def test_without_a_machine_the_link_is_enough(room: Room, checkout: Path) -> None:
    """`leave --on box out`."""
    room.sender.at(checkout)("run", "--tree", "--", "python3", "-m", "unittest")
