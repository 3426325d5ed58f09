"""`airlox listen` as people and agents run it: real processes, a real relay, real deaths."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox import Session
from airlox.agents import commands, configs
from support import parts
from support.listeners import POINTS, Listener, StandIns, killed_listener
from support.relay import RelayThread, until


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayThread]:
    with RelayThread() as live:
        yield live


class Office:
    """An owner who writes, and a sender who listens in a process of its own."""

    def __init__(self, relay: RelayThread, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "coder"
        self.log = folder / "log"
        self.gate = folder / "gate"
        self.owner = Session.create(relay.url, cache_dir=folder / "owner")
        self.coder = Session.join(
            self.owner.invites["sender"], display_name="coder", cache_dir=self.cache
        )
        # a command that says for what it was started, and ends when the gate is open
        self.script = folder / "handle.sh"
        self.script.write_text(
            "#!/bin/sh\n"
            f'echo "$AIRLOX_BATCH $AIRLOX_START $AIRLOX_ITEMS" >> {self.log}\n'
            f"while ! [ -e {self.gate} ]; do sleep 0.05; done\n"
        )
        self.script.chmod(0o755)

    def say(self, text: str = "do it") -> str:
        return str(self.owner.send_text(text).id)

    def listening(self, *words: str, **options: Any) -> Listener:
        return Listener(self.coder, self.cache, *words, **options)

    def killed(self, point: str, *words: str) -> None:
        """A listener that dies at this point."""
        with killed_listener(point, self.coder, self.cache, *words) as program:
            assert program.wait() == -signal.SIGKILL, program.said

    @property
    def runs(self) -> list[list[str]]:
        """Batch, start and items of each run there was."""
        return (
            [line.split() for line in self.log.read_text().splitlines()]
            if self.log.exists()
            else []
        )

    def await_runs(self, count: int) -> None:
        until(lambda: len(self.runs) >= count, f"run {count}")


@pytest.fixture
def office(relay: RelayThread, tmp_path: Path) -> Iterator[Office]:
    made = Office(relay, tmp_path)
    yield made
    made.owner.disconnect()
    made.coder.disconnect()


def ended(line: str) -> bool:
    return "ended with exit code" in line


# -- printing -----------------------------------------------------------------------------------


def test_once_prints_what_concerns_one_and_exits(office: Office) -> None:
    with office.listening("--once", "--json") as program:
        item = office.say("to everyone")
        shape = json.loads(program.wait_for(lambda line: line.startswith("{"), "an item"))
        assert program.wait() == 0
    assert (shape["id"], shape["text"], shape["for_me"]) == (item, "to everyone", ["everyone"])
    # not again; and what came while nobody listened is not lost
    second = office.say("meanwhile")
    with office.listening("--once") as program:
        assert program.wait() == 0
    assert second in program.said[0]
    with office.listening("--once", "--timeout", "1") as program:
        assert program.wait() == 75


def test_without_once_it_goes_on_until_the_session_is_over(office: Office) -> None:
    with office.listening() as program:
        for text in ("one", "two"):
            office.say(text)
            program.wait_for(lambda line, text=text: text in line, text)  # type: ignore[misc]
        office.owner.close()
        program.wait_for(lambda line: "the session is over" in line, "the end")
        assert program.wait() == 0


def test_one_listener_at_a_time(office: Office) -> None:
    with office.listening("--once"):
        until(lambda: list(office.cache.glob("*/state/listen-sender.json")), "the first one")
        with office.listening("--once", "--json") as second:
            assert second.wait() == 1
        assert json.loads(second.said[-1])["code"] == "locked"


# -- a command ----------------------------------------------------------------------------------


def test_a_command_is_told_ids_and_nothing_else(office: Office) -> None:
    office.script.write_text('#!/bin/sh\necho "ITEMS=$AIRLOX_ITEMS"; env; cat; echo "$@"\n')
    item = office.say("the text of the message")
    words = ("--from", "owner", "--as", "coder", "--exec", str(office.script), "--", "-x")
    with office.listening(*words) as program:
        program.wait_for(ended, "the end of the run")
        assert program.stop() == 128 + signal.SIGTERM
    said = "\n".join(program.said)
    assert f"ITEMS={item}" in program.said
    assert "-x" in program.said
    assert f"AIRLOX_SESSION={office.coder.session_id}" in program.said
    assert "the text of the message" not in said


def test_what_arrives_meanwhile_is_the_next_batch(office: Office) -> None:
    with office.listening("--from", "owner", "--exec", str(office.script)) as program:
        first = office.say()
        office.await_runs(1)
        others = [office.say(), office.say()]
        office.gate.touch()
        office.await_runs(2)
        for _ in range(2):
            program.wait_for(ended, "the end of a run")
        program.stop()
    (batch, *_), (next_batch, *_) = office.runs
    assert [run[1:] for run in office.runs] == [["1", first], ["1", *others]]
    assert batch != next_batch


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_its_end_is_the_end_of_all_it_started(office: Office, number: signal.Signals) -> None:
    pid_file = office.folder / "pid"
    office.script.write_text(
        f"#!/bin/sh\nsetsid sh -c 'echo $$ > {pid_file}; exec sleep 1000' &\nwait\n"
    )
    office.say()
    with office.listening("--from", "owner", "--exec", str(office.script)) as program:
        until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), "the run")
        os.kill(program.pid, number)
        assert program.wait() == (130 if number == signal.SIGINT else 128 + number)
    until(lambda: not Path("/proc", pid_file.read_text().strip()).exists(), "the end of its own")


def test_nohup_is_heeded(office: Office) -> None:
    start = ("/bin/sh", "-c", "trap '' HUP; exec \"$@\"", "sh", sys.executable, "-m", "airlox.cli")
    with office.listening(start=start) as program:
        office.say("one")
        program.wait_for(lambda line: "one" in line, "one")
        os.kill(program.pid, signal.SIGHUP)
        office.say("two")
        program.wait_for(lambda line: "two" in line, "two")
        program.stop()


def test_a_run_that_was_stopped_is_made_again(office: Office) -> None:
    words = ("--from", "owner", "--exec", str(office.script))
    office.say()
    with office.listening(*words) as program:
        office.await_runs(1)
        program.stop()
    office.gate.touch()
    with office.listening(*words) as program:
        program.wait_for(ended, "the end of the run")
        program.stop()
    (batch, first, item), again = office.runs
    assert (first, again) == ("1", [batch, "2", item])


def test_a_run_that_takes_too_long_is_ended_and_not_made_again(office: Office) -> None:
    words = ("--from", "owner", "--run-timeout", "1", "--exec", str(office.script))
    office.say()
    with office.listening(*words) as program:
        program.wait_for(lambda line: "took longer than" in line, "the time-out")
        office.gate.touch()
        office.say()
        program.wait_for(ended, "the next batch")
        program.stop()
    assert [run[1] for run in office.runs] == ["1", "1"]


def test_json_is_all_there_is_on_standard_output(office: Office) -> None:
    office.script.write_text("#!/bin/sh\necho words\nexit 3\n")
    item = office.say()
    words = ("--json", "--from", "owner", "--exec", str(office.script))
    told = office.folder / "told"
    told.touch()
    with office.listening(*words, says=f"2>{told}") as program:
        until(lambda: told.read_text().count("\n") == 2, "the end of the run")
        program.stop()
    assert program.said == []
    words_of_script, event = told.read_text().splitlines()
    assert words_of_script == "words"
    shape = json.loads(event)
    assert (shape["event"], shape["items"]) == ("run_ended", [item])
    assert (shape["how"], shape["code"]) == ("exited", 3)


def ledger_of(office: Office) -> dict[str, Any]:
    found = list(office.cache.glob("*/state/listen-sender.json"))
    return dict(json.loads(found[0].read_text())) if found else {}


# -- sudden death -------------------------------------------------------------------------------

STARTS = {
    "taken": "1",
    "keeper ready": "1",
    "started, nothing runs": "2",
    "running": "1",
    "ended": "1",
    "finished": "1",
}
"""Which start the one run is that a batch gets, wherever its listener is killed first."""


@pytest.mark.parametrize(
    "point",
    [
        point if point == "running" else pytest.param(point, marks=pytest.mark.slow)
        for point in POINTS
    ],
)
def test_a_batch_outlives_its_listener_and_is_never_run_twice(office: Office, point: str) -> None:
    words = ("--from", "owner", "--exec", str(office.script))
    item = office.say()
    if point != "running":
        office.gate.touch()
    office.killed(point, *words)
    with office.listening(*words) as program:
        if point == "running":
            program.wait_for(lambda line: "still runs" in line, "word of the earlier run")
            assert len(office.runs) <= 1
            office.gate.touch()
        office.await_runs(1)
        last = office.say("the next one")
        office.await_runs(2)
        until(lambda: ledger_of(office)["batch"] is None, "the end of the second")
        program.stop()
    (batch, start, *items), (next_batch, next_start, *next_items) = office.runs
    assert (start, items) == (STARTS[point], [item])
    assert (next_start, next_items) == ("1", [last])
    assert batch != next_batch


def test_a_keeper_that_dies_too_costs_a_second_run_under_the_same_id(office: Office) -> None:
    words = ("--from", "owner", "--exec", str(office.script))
    item = office.say()
    with office.listening(*words) as program:
        office.await_runs(1)
        (lock,) = office.cache.glob("*/state/listen-sender.run")
        keeper = json.loads(lock.read_text())["pid"]
        os.kill(program.pid, signal.SIGSTOP)
        os.kill(keeper, signal.SIGKILL)
        program.kill()
    office.gate.touch()
    with office.listening(*words) as program:
        program.wait_for(ended, "the end of the run")
        program.stop()
    (batch, *_), again = office.runs
    assert again == [batch, "2", item]


# -- agents -------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    parts.require("git")
    folder = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(folder)], check=True, timeout=60)
    return folder


def test_claude_is_woken_as_the_listener(office: Office, tmp_path: Path) -> None:
    stand_ins = StandIns(tmp_path)
    item = office.say("do not tell")
    words = ("--agent", "claude", "--resume", "abc-123", "--from", "owner", "--as", "coder")
    with office.listening(*words, "--description", "codes", **stand_ins.environment) as program:
        program.wait_for(ended, "the end of the run")
        program.stop()
    (start,) = stand_ins.starts
    _, dash_p, prompt, *options = start["argv"]
    assert dash_p == "-p"
    assert item in prompt
    assert "do not tell" not in json.dumps(start)
    assert options[:2] == ["--resume", "abc-123"]
    allowed = options[options.index("--allowedTools") + 1].split(",")
    assert allowed == [f"mcp__airlox__{tool}" for tool in (*configs.READING, "send_text")]
    server = json.loads(options[options.index("--mcp-config") + 1])["mcpServers"]["airlox"]
    assert server["args"][-3:] == ["mcp", "--tools", "worker"]
    assert server["env"]["AIRLOX_INVITE"] == "${AIRLOX_INVITE}"
    given = {name: value for name, value in start["env"].items() if name.startswith("AIRLOX_")}
    link = office.coder._core.membership.invite.url()
    assert given == {
        "AIRLOX_INVITE": link,
        "AIRLOX_NAME": "coder",
        "AIRLOX_CACHE_DIR": str(office.cache),
        "AIRLOX_DESCRIPTION": "codes",
    }
    assert link not in json.dumps(start["argv"])
    assert start["stdin"] == ""


def test_codex_is_woken_in_a_repository_only(
    office: Office, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins = StandIns(tmp_path)
    item = office.say()
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    words = ("--agent", "codex", "--fresh", "--from", "owner", "--allow-dir", str(inbox))
    monkeypatch.chdir(tmp_path)
    with office.listening(*words, **stand_ins.environment) as program:
        assert program.wait() == 1
    assert any("git repository only" in line for line in program.said)
    monkeypatch.chdir(repository)
    with office.listening(*words, **stand_ins.environment) as program:
        program.wait_for(ended, "the end of the run")
        program.stop()
    (start,) = stand_ins.starts
    assert start["cwd"] == str(repository)
    _, verb, *options = start["argv"]
    assert verb == "exec"
    assert "resume" not in options
    assert item in options[-1]
    settings = options[1:-1:2]
    assert 'shell_environment_policy.exclude=["AIRLOX_*"]' in settings
    assert f'--allow-dir", "{inbox}"]' in next(s for s in settings if ".args=" in s)
    assert start["env"]["AIRLOX_INVITE"] not in json.dumps(start["argv"])
    assert commands.ITEMS not in start["env"]


def test_what_would_end_each_run_is_said_before_the_first(office: Office, tmp_path: Path) -> None:
    stand_ins = StandIns(tmp_path)
    item = office.say()
    words = ("--agent", "claude", "--fresh", "--from", "owner")
    for folder in ("/", str(tmp_path / "none"), str(office.cache)):
        with office.listening(*words, "--allow-dir", folder, **stand_ins.environment) as program:
            assert program.wait() == 1
        assert any("--allow-dir" in line for line in program.said)
    with office.listening("--once") as program:
        assert program.wait() == 0
    assert item in program.said[0]
    assert stand_ins.starts == []


@pytest.mark.slow
@pytest.mark.parametrize("agent", commands.AGENTS)
def test_a_woken_agent_answers_as_the_listener(
    office: Office, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    """With the real MCP server, started as the agents start theirs."""
    pytest.importorskip("mcp", reason="the SDK of the MCP server is not installed")
    monkeypatch.chdir(repository)
    item = office.say("what is 6 times 7?")
    words = ("--agent", agent, "--fresh", "--from", "owner")
    with office.listening(*words, **StandIns(tmp_path, "answer").environment) as program:
        line = program.wait_for(ended, "the end of the run")
        assert "exit code 0" in line, program.said
        program.stop()
    (answer,) = [post for post in office.owner.items() if post.reply_to == item]
    assert answer.text == f"42, says {agent}"
    assert answer.author.public == office.coder.participant_pub
