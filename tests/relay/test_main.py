"""`airlox-server` as a program: its first line, its end, its logs, its errors."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

from airlox.protocol import wire
from airlox.protocol.keys import Role
from support.relay import Http, create, join, new_world
from support.server import server


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "airlox.relay", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_it_says_where_it_listens_and_stops_when_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with server("--data", str(tmp_path / "data"), log=log) as running:
        assert re.fullmatch(r"listening on http://127\.0\.0\.1:\d+\n", running.first_line)
        http, world = Http(running.url), new_world()
        assert http.ask("GET", wire.HEALTH).json["status"] == "ok"
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        owner.say("kept")
        with owner.stream() as events:
            assert events.next() is not None
            assert running.stop() == 0
            assert [event.event for event in events.rest()] == ["item"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert "session created" in [line["message"] for line in lines]
    assert all(line["level"] in ("info", "warning") for line in lines)
    text = log.read_text()
    for secret in (owner.token, world.owner_seed.hex(), owner.person.join):
        assert secret not in text
    with server("--data", str(tmp_path / "data")) as again:
        owner.http = Http(again.url)
        assert len(owner.events()) == 2


def test_version_and_help() -> None:
    assert re.match(r"airlox-server \d", run("--version").stdout)
    assert "--max-item-bytes" in run("--help").stdout


def test_wrong_usage_is_explained_in_one_line() -> None:
    for options in ([], ["--ephemeral", "--max-items", "x"], ["--ephemeral", "--nonsense"]):
        done = run(*options)
        assert done.returncode == 2
        assert done.stderr.startswith("airlox-server: ")
        assert len(done.stderr.splitlines()) == 1


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("--ephemeral", "--listen", address)
    assert done.returncode == 2
    assert address in done.stderr
    assert "--listen" in done.stderr


def test_two_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with server("--data", data):
        done = run("--data", data, "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert "another relay uses" in done.stderr


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run("--data", str(tmp_path / "file" / "data"), "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert "file/data" in done.stderr
