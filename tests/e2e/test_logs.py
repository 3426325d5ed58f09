"""`airlox logs`: what a job printed, for anyone who may read it, while it runs and after."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import parts
from support.commands import (
    RUNTIME,
    TIMEOUT_S,
    Cli,
    Room,
    create,
    on_terminal,
    open_room,
    read_note,
)
from support.server import server

RING_BYTES = 64 * 1024


@pytest.fixture(scope="module")
def relay() -> Iterator[str]:
    with server("--ephemeral", f"--live-ring-bytes={RING_BYTES}") as running:
        yield running.url


@pytest.fixture(scope="module")
def room(relay: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    with open_room(relay, tmp_path_factory.mktemp("homes")) as opened:
        # It comes first: what was posted before may have left the relay when all others have it.
        opened.observer("items")
        yield opened


def sent(room: Room, script: str) -> str:
    """The id of a job that was sent off."""
    words = ("run", "--no-wait", "--json", "--shell", "-")
    job: str = room.sender(*words, stdin=script).document["job"]
    return job


def printed(person: Cli, job: str, until: str) -> list[Any]:
    """What `logs --json` says once the job has printed a line that holds `until`."""
    following = ("logs", "--json", "-f", "--", job)
    with person.started(*following) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if until in line:
                break
    return person("logs", "--json", "--", job).lines


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that a job waits for."""
    return tmp_path / "gate"


def waits_for(gate: Path) -> str:
    return f"while [ ! -e {gate} ]; do sleep 0.05; done"


class TestWhileItRuns:
    def test_anyone_who_may_read_results_sees_it(self, room: Room, gate: Path) -> None:
        job = sent(room, f"echo one; echo two >&2; {waits_for(gate)}; echo three; exit 3")
        for person in (room.owner, room.sender, room.observer):
            first, second, last = printed(person, job, "two")
            assert first == {"offset": 0, "stream": "stdout", "text": "one"}
            assert second == {"offset": 4, "stream": "stderr", "text": "two"}
            assert last == {"job": job, "next": 8, "status": "running"}
            plain = person("logs", "--", job)
            assert plain.out == "one\n"
            assert plain.err.splitlines()[0] == "two"
            assert f"airlox logs -f --from 8 -- {job}" in plain.err
        with room.observer.started("logs", "-f", "--from", "5", "--", job) as following:
            assert following.stderr is not None
            assert following.stdout is not None
            assert following.stderr.readline() == "wo\n"
            gate.touch()
            assert following.wait(TIMEOUT_S) == 0
            assert following.stdout.read() == "three\n"
            assert following.stderr.read().startswith("── completed · exit 3 · ")

    def test_ctrl_c_leaves_the_job_be(self, room: Room, gate: Path) -> None:
        job = sent(room, f"echo here; {waits_for(gate)}")
        with room.sender.started("logs", "-f", "--", job) as following:
            assert following.stdout is not None
            assert following.stdout.readline() == "here\n"
            following.send_signal(signal.SIGINT)
            assert following.wait(TIMEOUT_S) == 130
        gate.touch()
        room.sender("result", "--wait", "90s", "--", job)

    def test_what_is_gone_is_told(self, room: Room, gate: Path) -> None:
        """The relay's ring is bounded: the newest bytes are there, and how much is not."""
        job = sent(room, f"seq 100000; echo end; {waits_for(gate)}")
        told = printed(room.owner, job, '"end"')
        gate.touch()
        gone, first, *_, end, last = told
        assert gone["offset"] == 0
        assert gone["gone_bytes"] > 100_000
        assert first["offset"] == gone["gone_bytes"]
        assert end["text"] == "end"
        assert last["next"] == end["offset"] + len("end\n")
        assert sum(len(line["text"]) + 1 for line in told[1:-1]) <= RING_BYTES


class TestAfterItsEnd:
    def test_the_output_of_the_signed_result(self, room: Room) -> None:
        job = sent(room, "seq 400000; echo bad >&2; exit 4")
        room.sender("result", "--wait", "90s", "--", job, code=4)
        done = room.observer("logs", "--", job)
        assert done.out.startswith("1\n2\n")
        assert done.out.endswith("400000\n")
        assert "bytes left out here]" in done.out
        assert done.err.splitlines()[0] == "bad"
        assert "exit 4" in done.err.splitlines()[-1]
        *lines, last = room.observer("logs", "--json", "-f", "--", job).lines
        assert {"stream": "stdout", "text": "400000"} in lines
        assert {"stream": "stderr", "text": "bad"} in lines
        assert (last["exit_code"], last["signed"], last["stdout_truncated"]) == (4, True, True)

    def test_a_byte_goes_on_while_the_relay_holds_it(self, room: Room) -> None:
        job = sent(room, "echo one; sleep 0.3; echo two")
        room.sender("result", "--wait", "90s", "--", job)
        assert room.owner("logs", "--from", "4", "--", job).out == "two\n"
        (last,) = room.owner("logs", "--json", "--from", "8", "--", job).lines
        assert (last["next"], last["status"]) == (8, "completed")

    def test_a_byte_that_is_gone(self, room: Room) -> None:
        job = sent(room, "seq 100000")
        room.sender("result", "--wait", "90s", "--", job)
        gone, first, *_ = room.owner("logs", "--json", "--from", "5", "--", job).lines
        assert (gone["offset"], gone["gone_bytes"] > 0) == (5, True)
        assert first == {"stream": "stdout", "text": "1"}
        done = room.owner("logs", "--from", "5", "--", job)
        assert done.out.startswith("1\n2\n")
        assert "are gone" in done.err

    def test_a_job_that_printed_nothing(self, room: Room) -> None:
        job = sent(room, "true")
        (last,) = room.owner("logs", "-f", "--json", "--", job).lines
        assert last["status"] == "completed"

    def test_an_unknown_job(self, room: Room) -> None:
        assert room.owner("logs", "--json", "A" * 22, code=1).error["code"] == "no_such_job"


def test_a_floor_session(relay: str, tmp_path: Path) -> None:
    """It has no live output: what there is comes with the result."""
    parts.require("user namespaces")
    people = create(relay, tmp_path, "--execute", "--runtime", RUNTIME)
    words = ("runner", "join", "--json", "--name", "box", "--python", sys.executable)
    with people["runner"].started(*words, stderr=None) as runner:
        read_note(runner, "waiting")
        people["owner"]("runner", "approve", "box")
        read_note(runner, "ready")
        program = tmp_path / "job.py"
        program.write_text("import time; time.sleep(600)")
        sending = ("run", "--no-wait", "--json", str(program))
        job = people["sender"](*sending).document["job"]
        (last,) = people["owner"]("logs", "--json", "--", job).lines
        assert last["next"] == 0
        assert last["status"] in ("assigned", "running")
        people["sender"]("cancel", "--", job)
        people["sender"]("result", "--wait", "90s", "--", job, code=1)
        program.write_text("print('one')")
        job = people["sender"](*sending).document["job"]
        assert people["owner"]("logs", "-f", "--", job).out == "one\n"


class TestWhatItShows:
    BAR = r"i=0; while [ $i -lt 50 ]; do printf '\r%3d%%' $i; i=$((i+1)); done; printf '\r100%%\n'"

    def test_progress_bars_are_folded_in_json_alone(self, room: Room) -> None:
        job = sent(room, f"echo start; {self.BAR}; printf 'no end'")
        texts = [line["text"] for line in room.owner("logs", "-f", "--json", "--", job).lines[:-1]]
        assert texts == ["start", "100%", "no end"]
        plain = subprocess.run(
            room.owner.argv("logs", "--", job),
            env=room.owner.environ,
            capture_output=True,
            check=True,
            timeout=TIMEOUT_S,
        )
        assert plain.stdout.count(b"\r") == 51
        assert room.owner("result", "--json", "--", job).document["stdout"] == (
            "start\n100%\nno end"
        )

    def test_a_terminal_gets_bars_and_colours_and_nothing_worse(self, room: Room) -> None:
        job = sent(room, r"printf '\r 1%%\r99%%\n\033[31mred\033[0m \033[2J\033]0;t\007end'")
        for words in (("logs", "-f", "--", job), ("logs", "--", job)):
            shown = on_terminal(room.owner, *words)
            assert "\r 1%\r99%\r\n" in shown
            assert "\x1b[31mred\x1b[0m" in shown
            assert r"\x1b[2J\x1b]0;t\x07end" in shown
            assert "\x1b[2J" not in shown
            assert "\x1b]" not in shown

    def test_a_python_child_is_seen_at_once(self, room: Room, gate: Path) -> None:
        job = sent(room, f"python3 -c \"print('at once'); import time; time.sleep(600)\"; {gate}")
        with room.owner.started("logs", "-f", "--", job) as following:
            assert following.stdout is not None
            assert following.stdout.readline() == "at once\n"
        room.sender("cancel", "--", job)
