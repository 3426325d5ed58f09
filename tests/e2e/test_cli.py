"""The command line from end to end: real relay, real runner, every command a process."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import parts
from support.commands import (
    RUNTIME,
    TIMEOUT_S,
    Cli,
    Done,
    Room,
    create,
    create_document,
    on_terminal,
    open_room,
    read_note,
)
from support.relay import until
from support.server import server

RESULT_KEYS = {
    *("exit_code", "job", "out_files", "peak_mem_mb", "reason", "runner", "saved", "signed"),
    *("status", "stderr", "stderr_truncated", "stdout", "stdout_truncated", "wall_ms"),
}
RUNNER_KEYS = {
    *("approved", "description", "host", "job", "labels", "name", "network_unblocked", "online"),
    *("participant_pub", "rejected", "sandbox"),
}


@pytest.fixture(scope="module")
def relay() -> Iterator[str]:
    with server("--ephemeral") as running:
        yield running.url


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(scope="module")
def room(relay: str, home: Path) -> Iterator[Room]:
    with open_room(relay, home) as opened:
        yield opened


class TestSession:
    def test_create_prints_a_link_per_role(self, relay: str, tmp_path: Path) -> None:
        made = create_document(relay, tmp_path)
        assert set(made) >= {"expires_at_ms", "invites", "session_id"}
        assert set(made["invites"]) == {"owner", "sender", "observer"}
        assert all(link.startswith(f"{relay}/s/") for link in made["invites"].values())

    def test_the_owner_s_link_goes_to_a_file_alone(self, relay: str, tmp_path: Path) -> None:
        path = tmp_path / "owner.link"
        done = Cli(relay, tmp_path)("session", "create", "--json", "--owner-invite-file", str(path))
        assert set(done.document["invites"]) == {"sender", "observer"}
        assert done.document["owner_invite_file"] == str(path)
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.read_text().strip() not in done.out + done.err
        links = Cli(relay, tmp_path)("session", "invites", "--json", "--invite-file", str(path))
        assert links.document["invites"]["owner"] == path.read_text().strip()

    def test_a_session_s_life(self, relay: str, tmp_path: Path) -> None:
        people = create(relay, tmp_path, "--ttl", "10m", "--types", "text,md")
        owner, sender = people["owner"], people["sender"]
        sender("send", "text", "hi", "--as", "ann", "--description", "a tester")
        info = owner("session", "info", "--json").document
        assert set(info) >= {
            *("allowed_types", "closed", "expires_at_ms", "job_limits", "max_item_bytes", "mode"),
            *("participants", "relay", "session_id", "your_role"),
        }
        assert (info["mode"], info["job_limits"], info["closed"]) == ("relay", None, None)
        assert info["allowed_types"] == ["text", "md"]
        ann = info["participants"][1]
        assert (ann["display_name"], ann["description"], ann["role"]) == (
            "ann",
            "a tester",
            "sender",
        )
        assert "ann" in owner("session", "info").out

        trail = owner("session", "audit").lines
        assert [line["event"] for line in trail[:3]] == ["created", "joined", "joined"]
        path = tmp_path / "trail.jsonl"
        assert owner("session", "audit", "--out", str(path)).out == ""
        assert [json.loads(line) for line in path.read_text().splitlines()][: len(trail)] == trail

        assert owner("session", "revoke", "sender", "--json").document == {"revoked": "sender"}
        assert sender("send", "text", "still here?", code=1).err.startswith("airlox: ")
        closed = owner("session", "close", "--json").document
        assert closed == {"closed": info["session_id"]}
        after = owner("session", "info", "--json").document
        assert after["closed"] is not None

    def test_who_may_not_is_told(self, relay: str, tmp_path: Path) -> None:
        people = create(relay, tmp_path)
        for words in (
            ("session", "close"),
            ("session", "invites"),
            ("session", "revoke", "sender"),
        ):
            assert people["sender"](*words, code=1).err.startswith("airlox: ")
        assert people["observer"]("send", "text", "x", code=1).out == ""

    def test_a_damaged_link_is_not_quoted(self, relay: str, tmp_path: Path) -> None:
        link = create_document(relay, tmp_path)["invites"]["sender"]
        bad = link[:-8] + "!" * 8
        done = Cli(relay, tmp_path / "x", invite=bad)("send", "text", "x", "--json", code=1)
        assert done.out == ""
        assert link[-30:-8] not in done.err
        assert done.error["error"]

    def test_the_same_person_comes_back(self, relay: str, tmp_path: Path) -> None:
        people = create(relay, tmp_path)
        people["sender"]("send", "text", "one")
        people["sender"]("send", "text", "two", "--as", "someone else")
        shown = people["owner"]("items", "--json").lines
        assert len({item["author"] for item in shown}) == 1


class TestItems:
    def test_messages_and_files(self, relay: str, tmp_path: Path) -> None:
        people = create(relay, tmp_path)
        owner, sender = people["owner"], people["sender"]
        report = tmp_path / "report.md"
        report.write_text("# Done\n")
        sent = sender("send", "text", "hello", "--json").document["sent"]
        assert set(sent) == {"blob_sha256", "id"}
        sender("send", "text", "-", stdin="from\nstdin\n")
        files = sender("send", "file", str(report), "--json").document["sent"]
        assert [file["path"] for file in files] == [str(report)]

        shown = owner("items", "--json", "--save", str(tmp_path / "in")).lines
        assert [item.get("text") for item in shown] == ["hello", "from\nstdin\n", None]
        assert shown[0]["ref"] == sent
        assert shown[2]["content"] == "# Done\n"
        assert Path(shown[2]["saved"]).read_text() == "# Done\n"
        owner("items", "--save", str(tmp_path / "in"))
        assert os.listdir(tmp_path / "in") == ["report.md"]
        assert "from\n    stdin" in owner("items").out

    def test_a_file_that_cannot_be_sent_ends_it(self, relay: str, tmp_path: Path) -> None:
        sender = create(relay, tmp_path)["sender"]
        (tmp_path / "a.md").write_text("a")
        done = sender(
            "send", "file", str(tmp_path / "a.md"), str(tmp_path / "b.exe"), "--json", code=1
        )
        assert set(done.document) == {"error", "failed", "sent"}
        assert done.document["failed"] == str(tmp_path / "b.exe")
        assert len(done.document["sent"]) == 1

    def test_watch_prints_what_arrives(self, relay: str, tmp_path: Path) -> None:
        people = create(relay, tmp_path)
        people["sender"]("send", "text", "before")
        with people["owner"].started("watch", "--json", "--timeout", "60") as watching:
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline())["text"] == "before"
            people["sender"]("send", "text", "after")
            assert json.loads(watching.stdout.readline())["text"] == "after"
            people["owner"]("session", "close")
            assert watching.stdout.read() == ""
            assert watching.wait(TIMEOUT_S) == 0

    def test_watch_new_starts_now_and_stops_in_time(self, relay: str, tmp_path: Path) -> None:
        people = create(relay, tmp_path)
        people["sender"]("send", "text", "before")
        assert people["owner"]("watch", "--new", "--timeout", "1").out == ""

    def test_what_is_for_one_is_watched_and_saved(self, relay: str, tmp_path: Path) -> None:
        people = create(relay, tmp_path)
        owner, sender = people["owner"], people["sender"].at(tmp_path)
        (tmp_path / "a.md").write_text("# for you\n")
        sender("send", "text", "before", "--to", "owner", "--as", "ann")
        words = ("watch", "--json", "--for-me", "--new", "--timeout", "60", "--save", "in")
        with owner.at(tmp_path).started(*words) as watching:
            assert watching.stdout is not None
            probe = iter(range(1000))
            seen = threading.Event()

            def ask() -> None:  # until it listens: what came before that is not new to it
                while not seen.wait(0.2):
                    sender("send", "text", f"probe {next(probe)}", "--to", "owner")

            asking = threading.Thread(target=ask)
            asking.start()
            first = json.loads(watching.stdout.readline())
            seen.set()
            asking.join(TIMEOUT_S)
            assert first["text"].startswith("probe ")
            sender("send", "text", "not for the owner", "--to", "role:observer")
            sender("send", "file", "a.md", "--to", "owner")
            last = json.loads(watching.stdout.readline())
            while last["kind"] == "text":
                assert last["text"].startswith("probe ")
                last = json.loads(watching.stdout.readline())
            owner("session", "close")
            assert watching.stdout.read() == ""
            assert watching.wait(TIMEOUT_S) == 0
        assert (last["name"], last["for_me"]) == ("a.md", ["addressed"])
        assert (tmp_path / last["saved"]).read_text() == "# for you\n"

    def test_escapes_are_shown_and_not_obeyed(self, relay: str, tmp_path: Path) -> None:
        people = create(relay, tmp_path)
        people["sender"]("send", "text", "\x1b]0;owned\x07\u202etxt")
        shown = people["owner"]("items").out
        assert r"\x1b]0;owned\x07\u202etxt" in shown
        assert people["owner"]("items", "--json").lines[0]["text"] == "\x1b]0;owned\x07\u202etxt"


class TestRun:
    def test_a_command(self, room: Room) -> None:
        done = room.sender("run", "--", "sh", "-c", "echo out; echo err >&2; exit 3", code=3)
        assert done.out == "out\n"
        lines = done.err.splitlines()
        assert lines[0].startswith("box · job ")
        assert lines[1] == "err"
        assert lines[-2].startswith("env: sandbox process")
        assert lines[-1].startswith("── completed · exit 3 · ")
        assert lines[-1].endswith(" · signed by runner box")

    def test_json(self, room: Room) -> None:
        done = room.sender(
            "run", "--json", "--runner", "box", "--", "sh", "-c", "echo x; exit 3", code=3
        )
        assert set(done.document) >= RESULT_KEYS
        assert done.document["stdout"] == "x\n"
        assert done.document["signed"] is True
        assert done.document["runner"] == room.runner["participant_pub"]
        assert done.document["env"]["sandbox"] == "process"
        assert done.err == ""

    def test_python_with_an_input_and_files_back(self, room: Room, tmp_path: Path) -> None:
        (tmp_path / "in.md").write_text("data")
        (tmp_path / "job.py").write_text(
            "import os, pathlib\n"
            "out = pathlib.Path(os.environ['AIRLOX_OUT'])\n"
            "(out / 'sub').mkdir()\n"
            "(out / 'sub' / 'copy.txt').write_text(pathlib.Path('in.md').read_text() * 2)\n"
        )
        done = room.sender.at(tmp_path)(
            "run", "job.py", "--input", "in.md", "--out-dir", "back", "--json"
        )
        assert done.document["saved"] == ["back/sub/copy.txt"]
        assert (tmp_path / "back/sub/copy.txt").read_text() == "datadata"

    def test_scripts(self, room: Room, tmp_path: Path) -> None:
        (tmp_path / "ci.sh").write_text("echo from a script\n")
        assert room.sender("run", "--shell", str(tmp_path / "ci.sh")).out == "from a script\n"
        assert room.sender("run", "--shell", "-", stdin="echo from stdin").out == "from stdin\n"

    def test_labels(self, room: Room) -> None:
        assert room.sender("run", "--label", "small,grey", "--", "echo", "x").out == "x\n"
        done = room.sender("run", "--json", "--label", "blue", "--", "echo", code=1)
        assert set(done.document) >= {"job", "message", "reason", "status"}
        assert done.document["reason"] == "no_runner_available"
        assert room.sender("run", "--runner", "nobody", "--", "echo", code=1).out == ""

    def test_a_tree_from_where_one_stands(self, room: Room, tmp_path: Path) -> None:
        parts.require("git")
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=60)
        here = tmp_path / "sub"
        here.mkdir()
        (tmp_path / ".gitignore").write_text("*.log\n")
        (tmp_path / "noise.log").write_text("x")
        (tmp_path / ".env").write_text("KEY=1")
        (here / "new.txt").write_text("new")
        person = room.sender.at(here)
        words = ("run", "--runner", "box", "--tree")
        refused = person(*words, "--", "ls", code=1)
        assert ".env" in refused.err
        assert "--tree-allow" in refused.err
        done = person(*words, "--tree-exclude", ".env", "--", "sh", "-c", "ls; ls -A ..")
        assert done.out.split() == ["new.txt", ".gitignore", "sub"]
        assert "· tree 2 files, " in done.err.splitlines()[0]
        again = person(*words, "--tree-allow", ".env", "--cwd", "sub", "--", "cat", "../.env")
        assert again.out == "KEY=1"
        assert "(1 changed)" in again.err.splitlines()[0]

    def test_a_time_limit(self, room: Room) -> None:
        done = room.sender("run", "--json", "--timeout", "1", "--", "sleep", "60", code=1)
        assert done.document["status"] == "timed_out"
        assert done.document["signed"] is True
        assert done.document["exit_code"] is None

    def test_layers_that_the_runner_lacks(self, room: Room) -> None:
        words = ("--runner", "box", "--require-layers", "seccomp,landlock")
        done = room.sender("run", "--json", *words, "--", "true", code=1)
        assert done.document["status"] == "refused"
        assert done.document["signed"] is True

    def test_a_limit_beyond_the_session_s_is_refused_before_anything_is_sent(
        self, room: Room
    ) -> None:
        before = len(room.sender("job", "ls", "--json").document["jobs"])
        room.sender("run", "--timeout", "2h", "--", "true", code=1)
        assert len(room.sender("job", "ls", "--json").document["jobs"]) == before

    def test_output_comes_while_it_runs_and_ctrl_c_cancels(self, room: Room) -> None:
        words = ("run", "--", "sh", "-c", "echo ready; sleep 600")
        with room.sender.started(*words) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            assert running.stdout.readline() == "ready\n"
            running.send_signal(signal.SIGINT)
            assert running.wait(TIMEOUT_S) == 130
            said = running.stderr.read()
        assert "cancelling the job" in said
        assert said.splitlines()[-1].startswith("── cancelled · ")

    def test_a_reader_that_leaves_ends_the_job(self, room: Room) -> None:
        words = ("run", "--", "sh", "-c", "while echo y; do sleep 0.05; done")
        with room.sender.started(*words) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "y\n"
            running.stdout.close()
            assert running.wait(TIMEOUT_S) == 141
        last = room.sender("job", "ls", "--json").document["jobs"][-1]
        room.sender("result", "--wait", "90s", "--", last["job"], code=1)

    def test_a_terminal_gets_colours_and_nothing_worse(self, room: Room) -> None:
        program = r"printf '\033[31mred\033[0m \033[2J\033]0;t\007end'"
        shown = on_terminal(room.sender, "run", "--", "sh", "-c", program)
        assert "\x1b[31mred\x1b[0m" in shown
        assert r"\x1b[2J\x1b]0;t\x07end" in shown
        assert "\x1b[2J" not in shown
        assert "\x1b]" not in shown
        # the job's unfinished line is ended before ours begins
        assert "end\x1b[0m\r\n" in shown or "end\r\n" in shown


class TestJobs:
    def test_sent_off_looked_for_and_cancelled(self, room: Room) -> None:
        sent = room.sender("run", "--no-wait", "--json", "--", "sleep", "600").document
        assert sent["runner"] == room.runner["participant_pub"]
        job = sent["job"]
        pending = room.sender("result", "--json", "--", job, code=75)
        assert pending.document["job"] == job
        assert pending.document["status"] in ("assigned", "running")
        room.sender("result", "--wait", "1s", "--", job, code=75)
        # only what was begun has a signed end
        ask = ("result", "--json", "--", job)
        until(lambda: room.sender(*ask, code=75).document["status"] == "running", "a claim")
        listed = {j["job"]: j for j in room.sender("job", "ls", "--json").document["jobs"]}
        assert listed[job]["exit_code"] is None
        assert listed[job]["what"] == "sleep 600"

        assert room.sender("cancel", "--json", "--", job).document == {"cancelled": job}
        ended = room.sender("result", "--wait", "90s", "--json", "--", job, code=1).document
        assert set(ended) >= RESULT_KEYS
        assert (ended["status"], ended["exit_code"], ended["signed"]) == ("cancelled", None, True)
        assert "has ended" in room.sender("cancel", "--", job, code=1).err

    def test_a_result_passes_on_output_and_exit_code(self, room: Room) -> None:
        job = room.sender(
            "run", "--no-wait", "--", "sh", "-c", "echo out; echo err >&2; exit 4"
        ).out.strip()
        done = room.sender("result", "--wait", "90s", "--", job, code=4)
        assert done.out == "out\n"
        assert done.err.splitlines()[0] == "err"
        assert done.err.splitlines()[-1].endswith("signed by runner box")
        assert room.owner("result", "--json", "--", job, code=4).document["stdout"] == "out\n"

    def test_an_unknown_job(self, room: Room) -> None:
        assert room.sender("result", "nope", "--json", code=1).error["code"] == "no_such_job"

    def test_results_are_items_that_say_whether_they_are_bound(self, room: Room) -> None:
        room.sender("run", "--", "echo", "x")
        kinds = {item["kind"]: item for item in room.owner("items", "--json").lines}
        assert set(kinds) >= {"job", "result", "event", "runner_info"}
        assert kinds["result"]["valid"] is True
        assert kinds["event"]["meta"]["event"] in ("runner_approve", "job_cancel")


class TestRunners:
    def test_list(self, room: Room) -> None:
        (runner,) = room.owner("runner", "list", "--json").document["runners"]
        assert set(runner) >= RUNNER_KEYS
        assert (runner["approved"], runner["online"], runner["rejected"]) == (True, True, False)
        assert runner["labels"] == ["small", "grey"]
        assert runner["info"]["slots"] == 1
        assert "small,grey" in room.owner("runner", "list").out

    def test_rejection_is_final_and_ends_the_runner(self, relay: str, tmp_path: Path) -> None:
        people = create(relay, tmp_path, "--execute", "--kinds", "shell")
        words = ("runner", "join", "--json", "--name", "b", "--sandbox", "process")
        with people["runner"].started(*words) as runner:
            read_note(runner, "waiting")
            done = people["owner"]("runner", "reject", "b", "--reason", "wrong machine", "--json")
            assert set(done.document["rejected"]) >= RUNNER_KEYS
            assert done.document["rejected"]["rejected"] is True
            assert runner.wait(TIMEOUT_S) != 0
        assert people["owner"]("runner", "approve", "b", code=1).out == ""

    def test_a_layer_that_is_not_there_is_said_with_its_own_code(
        self, relay: str, tmp_path: Path
    ) -> None:
        people = create(relay, tmp_path, "--execute", "--kinds", "shell")
        done = people["runner"](
            *("runner", "join", "--name", "b", "--sandbox", "process"),
            *("--require-layers", "seccomp", "--json"),
            code=78,
        )
        assert "seccomp" in done.error["error"]

    def test_a_floor_session_takes_no_process_runner(self, relay: str, tmp_path: Path) -> None:
        people = create(relay, tmp_path, "--execute")
        words = ("runner", "join", "--name", "b", "--sandbox", "process")
        assert people["runner"](*words, code=1).err.startswith("airlox: ")

    def test_only_a_runner_s_link_makes_a_runner_and_nothing_else(
        self, room: Room, tmp_path: Path
    ) -> None:
        done = room.sender("runner", "join", "--name", "b", "--json", code=1)
        assert done.error["code"] == "wrong_role"
        link = room.owner("session", "invites", "--json").document["invites"]["runner"]
        done = Cli(room.owner.relay, tmp_path, invite=link)("items", "--json", code=1)
        assert done.error["code"] == "wrong_role"


class TestMachine:
    @pytest.fixture
    def mine(self, relay: str, tmp_path: Path) -> Cli:
        return Cli(relay, tmp_path / "mine")

    def added(self, mine: Cli, process: subprocess.Popen[str]) -> str:
        """The link in the command that `machine add` prints."""
        assert process.stderr is not None
        for line in process.stderr:
            if "AIRLOX_INVITE=" in line:
                return line.partition("AIRLOX_INVITE='")[2].partition("'")[0]
        raise AssertionError("no command was printed")

    def test_from_add_to_rm(self, mine: Cli, relay: str, tmp_path: Path) -> None:
        add = ("machine", "add", "box", "--yes", "--json", "--link", "--runtime", RUNTIME)
        with mine.started(*add) as adding:
            link = self.added(mine, adding)
            there = Cli(relay, tmp_path / "there", invite=link)
            words = ("--name", "box", "--sandbox", "process", "--python", sys.executable)
            with there.started("runner", "join", "--json", *words, stderr=None) as runner:
                read_note(runner, "ready")
                assert adding.wait(TIMEOUT_S) == 0
                assert adding.stdout is not None
                made = json.load(adding.stdout)
                assert made["machine"]["expires_at_ms"] is None
                assert made["runner"]["sandbox"] == "process"
                assert secrets_in_process_list(link) == []
                self.use(mine, made["runner"], tmp_path)
                mine("machine", "rm", "box")
                assert runner.wait(TIMEOUT_S) == 0
        assert mine("machine", "ls", "--json").document == {"machines": []}
        assert mine("run", "--on", "box", "--", "true", code=1).out == ""

    def use(self, mine: Cli, runner: dict[str, Any], tmp_path: Path) -> None:
        (kept,) = (mine.home / "machines").glob("*.json")
        assert kept.stat().st_mode & 0o777 == 0o600
        done = mine("run", "--on", "box", "--", "echo", "there")
        assert done.out == "there\n"
        assert done.err.startswith("box · job ")
        (shown,) = mine("machine", "ls", "--json").document["machines"]
        assert shown["runners"][0]["participant_pub"] == runner["participant_pub"]
        assert shown["error"] is None
        (job,) = mine("job", "ls", "--on", "box", "--json").document["jobs"]
        assert shown["last_job"] == job["job"]
        assert "box idle" in mine("machine", "ls").out
        link = mine("machine", "invite", "box").out.strip()
        agent = Cli(mine.relay, tmp_path / "agent", invite=link)
        assert agent("run", "--", "echo", "by the agent").out == "by the agent\n"
        assert mine("machine", "add", "box", code=1).err.startswith("airlox: a machine called box")

    @pytest.mark.parametrize(("answer", "code"), [("y", 0), ("no", 1), ("", 1)])
    def test_at_a_terminal_it_asks(
        self, mine: Cli, relay: str, tmp_path: Path, answer: str, code: int
    ) -> None:
        link = mine("machine", "add", "box", "--wait", "0").out.partition("'")[2].partition("'")[0]
        there = Cli(relay, tmp_path / "there", invite=link)
        words = ("runner", "join", "--json", "--name", "b", "--sandbox", "process")
        with there.started(*words, stderr=None) as runner:
            key = read_note(runner, "joined")["fingerprint"]
            read_note(runner, "waiting")
            master, slave = pty.openpty()
            os.write(master, f"{answer}\n".encode())
            with mine.started("machine", "approve", "box", stdin=slave) as asking:
                assert asking.wait(TIMEOUT_S) == code
                assert asking.stderr is not None
                said = asking.stderr.read()
            os.close(master)
            os.close(slave)
            assert f"key {key}" in said
            assert "[y/N]" in said
            (shown,) = mine("machine", "ls", "--json").document["machines"]
            assert [r["approved"] for r in shown["runners"]] == [code == 0]
        mine("machine", "rm", "box")

    def test_a_pool(self, mine: Cli, relay: str, tmp_path: Path) -> None:
        printed = mine("machine", "add", "pool", "--wait", "0").out
        link = printed.partition("'")[2].partition("'")[0]
        assert mine("machine", "approve", "pool", "--json", code=1).error["code"] == "no_runner_yet"
        words = ("runner", "join", "--json", "--sandbox", "process", "--name")
        one, two = Cli(relay, tmp_path / "1", invite=link), Cli(relay, tmp_path / "2", invite=link)
        with one.started(*words, "one", stderr=None) as first:
            read_note(first, "waiting")
            mine("machine", "approve", "pool", "--yes")
            read_note(first, "ready")
            with two.started(*words, "two", "--labels", "big", stderr=None) as second:
                read_note(second, "waiting")
                approved = mine("machine", "approve", "pool", "two", "--json").document["approved"]
                assert approved["name"] == "two"
                read_note(second, "ready")
                done = mine("run", "--on", "pool/big", "--json", "--", "true")
                assert done.document["runner_name"] == "two"
        mine("machine", "rm", "pool")

    def test_when_the_relay_is_gone(self, tmp_path: Path) -> None:
        with server("--ephemeral") as running:
            mine = Cli(running.url, tmp_path)
            mine("machine", "add", "box", "--wait", "0")
        (shown,) = mine("machine", "ls", "--json").document["machines"]
        assert shown["error"]
        assert mine("machine", "rm", "box", code=1).err.startswith("airlox: ")
        mine("machine", "rm", "box", "--force")


def secrets_in_process_list(link: str) -> list[str]:
    """Command lines on this machine in which a part of the link's secrets stands."""
    secret = link.partition("#")[2]
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if secret in line or secret.rpartition("rk=")[2] in line:
            found.append(line)
    return found


def test_done_is_what_it_says() -> None:
    """The helper of this file fails when a command ends otherwise."""
    with pytest.raises(AssertionError, match="ended with"):
        Cli("http://127.0.0.1:1", Path("/nowhere"))("items", code=0)
    assert Done(0, '{"a":1}', "").document == {"a": 1}
