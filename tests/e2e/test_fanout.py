"""`airlox run` on several machines at once: real relay, two machines, and a pool of two runners."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from support import parts
from support.commands import RUNTIME, TIMEOUT_S, Cli, on_terminal, read_note
from support.server import server


class Fleet(NamedTuple):
    """Machines `a` and `b` with a runner each, `pool` with the runners `one` and `two`, and
    `empty`, which has none."""

    mine: Cli
    home: Path


@contextmanager
def runner(
    mine: Cli, machine: str, link: str, home: Path, name: str, labels: str
) -> Iterator[None]:
    there = Cli(mine.relay, home / f"{machine}-{name}", invite=link)
    words = ("--name", name, "--labels", labels, "--sandbox", "process")
    with there.started(
        "runner", "join", "--json", *words, "--python", sys.executable, stderr=None
    ) as running:
        read_note(running, "waiting")
        mine("machine", "approve", machine, name)
        read_note(running, "ready")
        yield
        running.send_signal(signal.SIGTERM)
        assert running.wait(TIMEOUT_S) == 0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    home = tmp_path_factory.mktemp("fleet")
    machines = {"a": ["box"], "b": ["box"], "pool": ["one", "two"], "empty": []}
    with ExitStack() as stack:
        relay = stack.enter_context(server("--ephemeral")).url
        mine = Cli(relay, home / "mine")
        for machine, names in machines.items():
            add = ("machine", "add", machine, "--wait", "0", "--runtime", RUNTIME)
            link = mine(*add).out.partition("'")[2].partition("'")[0]
            for name in names:
                labels = f"grey,{name}"
                stack.enter_context(runner(mine, machine, link, home, name, labels))
        yield Fleet(mine, home)


class TestMachines:
    def test_each_line_says_whose_it_is(self, fleet: Fleet) -> None:
        done = fleet.mine("run", "--on", "a,b", "--", "sh", "-c", "echo out; echo err >&2")
        assert sorted(done.out.splitlines()) == ["a | out", "b | out"]
        lines = done.err.splitlines()
        assert all(line.startswith(("a | ", "b | ")) for line in lines)
        for name in "ab":
            mine = [line[4:] for line in lines if line.startswith(name)]
            assert mine[0].startswith(f"{name} · job ")
            assert mine[1] == "err"
            assert mine[-1].startswith("── completed · exit 0 · ")

    def test_the_first_that_is_not_0_is_the_exit_code(self, fleet: Fleet, tmp_path: Path) -> None:
        for name in ("a", "b"):
            fleet.mine("run", "--on", name, "--", "true")
        script = "[ -e {0} ] && exit 3; touch {0}; exit 4".format(tmp_path / "second")
        # whichever comes first touches the file: both fail, each with its own code
        done = fleet.mine("run", "--json", "--on", "b,a", "--shell", "-", stdin=script, code=None)
        codes = {line["machine"]: line["exit_code"] for line in done.lines}
        assert set(codes.values()) <= {3, 4}
        assert done.code == codes["b"]
        done = fleet.mine("run", "--on", "a,b", "--", "sh", "-c", "exit 7", code=7)
        assert done.err.splitlines()[-1] == "0 of 2 succeeded; not: a, b"

    def test_a_machine_that_is_not_there_fails_and_the_others_go_on(self, fleet: Fleet) -> None:
        done = fleet.mine("run", "--on", "empty,a", "--", "echo", "here", code=1)
        assert done.out == "a     | here\n"
        assert "empty | airlox: " in done.err
        assert done.err.splitlines()[-1] == "1 of 2 succeeded; not: empty"
        lines = fleet.mine("run", "--json", "--on", "a,empty", "--", "true", code=1).lines
        told = {line["machine"]: line for line in lines}
        assert (told["a"]["status"], told["a"]["signed"]) == ("completed", True)
        assert told["empty"]["reason"] == "no_runner_available"

    def test_a_name_that_is_unknown_sends_nothing(self, fleet: Fleet) -> None:
        before = len(fleet.mine("job", "ls", "--on", "a", "--json").document["jobs"])
        done = fleet.mine("run", "--on", "a,typo", "--", "true", code=1)
        assert "typo" in done.err
        assert len(fleet.mine("job", "ls", "--on", "a", "--json").document["jobs"]) == before

    def test_a_script_from_standard_input_goes_to_all(self, fleet: Fleet) -> None:
        done = fleet.mine("run", "--on", "a,b", "--shell", "-", stdin="echo script")
        assert sorted(done.out.splitlines()) == ["a | script", "b | script"]

    def test_files_and_a_tree(self, fleet: Fleet, tmp_path: Path) -> None:
        parts.require("git")
        here = tmp_path / "checkout"
        subprocess.run(["git", "init", "-q", str(here)], check=True, timeout=60)
        (here / "new.txt").write_text("new\n")
        (tmp_path / "in.md").write_text("data\n")
        script = "cat new.txt in.md; cp new.txt $AIRLOX_OUT/back.txt"
        words = ("--tree", "--input", "../in.md", "--out-dir", "../out", "--", "sh", "-c", script)
        done = fleet.mine.at(here)("run", "--on", "a,b,pool/two", *words)
        for name in ("a", "b", "pool/two"):
            lines = [line for line in done.out.splitlines() if line.startswith(name)]
            assert [line.partition(" | ")[2] for line in lines] == ["new", "data"]
            assert (tmp_path / "out" / name / "back.txt").read_text() == "new\n"

    def test_no_wait_prints_the_ids(self, fleet: Fleet) -> None:
        lines = fleet.mine("run", "--no-wait", "--json", "--on", "a,b", "--", "true").lines
        for line in lines:
            words = ("--on", line["machine"], "--", line["job"])
            fleet.mine("result", "--wait", "90s", *words)
        done = fleet.mine("run", "--no-wait", "--on", "a,b", "--", "true")
        assert [line[:4] for line in sorted(done.out.splitlines())] == ["a | ", "b | "]

    def test_a_wait_that_is_over(self, fleet: Fleet) -> None:
        words = ("run", "--json", "--wait", "1s", "--on", "a,b", "--", "sleep", "600")
        for line in fleet.mine(*words, code=75).lines:
            assert line["status"] in ("assigned", "running")
            job = ("--on", line["machine"], "--", line["job"])
            fleet.mine("cancel", *job)
            fleet.mine("result", "--wait", "90s", *job, code=1)

    def test_ctrl_c_cancels_all(self, fleet: Fleet) -> None:
        words = ("run", "--on", "a,b", "--", "sh", "-c", "echo ready; sleep 600")
        with fleet.mine.started(*words) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            assert {running.stdout.readline() for _ in "ab"} == {"a | ready\n", "b | ready\n"}
            running.send_signal(signal.SIGINT)
            assert running.wait(TIMEOUT_S) == 130
            said = running.stderr.read()
        assert said.count(" | ── cancelled · ") == 2

    def test_a_second_ctrl_c_leaves_at_once(self, fleet: Fleet) -> None:
        """A job that does not end at a friendly word."""
        script = "trap '' TERM; echo ready; sleep 600"
        with fleet.mine.started("run", "--on", "a,b", "--", "sh", "-c", script) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            for _ in "ab":
                assert running.stdout.readline().endswith("ready\n")
            running.send_signal(signal.SIGINT)
            while "cancelling" not in running.stderr.readline():
                pass
            running.send_signal(signal.SIGINT)
            assert running.wait(TIMEOUT_S) == 130
        for name in "ab":
            last = fleet.mine("job", "ls", "--on", name, "--json").document["jobs"][-1]["job"]
            fleet.mine("cancel", "--on", name, "--", last, code=None)
            fleet.mine("result", "--wait", "90s", "--on", name, "--", last, code=1)

    def test_a_reader_that_leaves_ends_all_jobs(self, fleet: Fleet) -> None:
        words = ("run", "--on", "a,b", "--", "sh", "-c", "while echo y; do sleep 0.05; done")
        with fleet.mine.started(*words) as running:
            assert running.stdout is not None
            assert running.stdout.readline().endswith(" | y\n")
            running.stdout.close()
            assert running.wait(TIMEOUT_S) == 141
        for name in "ab":
            last = fleet.mine("job", "ls", "--on", name, "--json").document["jobs"][-1]["job"]
            fleet.mine("result", "--wait", "90s", "--on", name, "--", last, code=1)

    def test_on_a_terminal(self, fleet: Fleet) -> None:
        program = r"printf '\033[31mred\n\033[2J\b\b\b\b\b\b\b\rb | mine\n'"
        shown = on_terminal(fleet.mine, "run", "--on", "a,b", "--", "sh", "-c", program)
        assert "\x1b[36ma\x1b[0m | \x1b[31mred\x1b[0m\r\n" in shown
        assert "\x1b[33mb\x1b[0m | b | mine\r\n" in shown
        assert "\b" not in shown
        assert "\x1b[2J" not in shown


class TestAll:
    def test_every_runner_of_a_pool(self, fleet: Fleet) -> None:
        done = fleet.mine("run", "--on", "pool", "--all", "--", "echo", "x")
        assert sorted(done.out.splitlines()) == ["one | x", "two | x"]
        assert (
            "airlox: " not in done.err
        )  # nothing about the chain of what one sender posts at once
        done = fleet.mine("run", "--on", "pool/one,pool/grey", "--all", "--", "echo", "x")
        assert sorted(done.out.splitlines()) == ["pool/one | x", "pool/two | x"]

    def test_those_with_a_label(self, fleet: Fleet) -> None:
        done = fleet.mine("run", "--on", "pool/two", "--all", "--", "echo", "x")
        assert done.out == "two | x\n"
        done = fleet.mine("run", "--on", "pool/grey,a", "--all", "--json", "--", "echo", "x")
        assert {line["machine"] for line in done.lines} == {"pool/one", "pool/two", "a/box"}
        done = fleet.mine("run", "--on", "pool/blue", "--all", "--", "echo", "x", code=1)
        assert "no runner of pool with blue is online and approved" in done.err


@pytest.mark.parametrize(
    "words",
    [
        ("--all", "--", "true"),
        ("--on", "a,b", "--runner", "box", "--", "true"),
        ("--on", "a,b,a", "--", "true"),
    ],
)
def test_nonsense(tmp_path: Path, words: tuple[str, ...]) -> None:
    Cli("http://127.0.0.1:9", tmp_path)("run", *words, code=2)
