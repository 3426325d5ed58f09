"""Machines over their life: added by two at once, used by two at once, pooled, renewed, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import fronts
from support.commands import RUNTIME, TIMEOUT_S, Cli, read_event, read_note
from support.machines import SOURCE
from support.relay import until
from support.server import server

JOIN = ("runner", "join", "--json", "--sandbox", "process", "--python", sys.executable)
ADD = ("machine", "add", "box", "--json", "--wait", "0", "--runtime", RUNTIME)


@pytest.fixture(scope="module")
def relay() -> Iterator[str]:
    with server("--ephemeral") as running:
        yield running.url


@pytest.fixture
def mine(relay: str, tmp_path: Path) -> Cli:
    return Cli(relay, tmp_path / "mine")


def add(mine: Cli, *words: str) -> str:
    """A machine whose runner is not waited for: its link."""
    return link_of(mine(*ADD, *words).document["command"])


def link_of(command: str) -> str:
    return command.partition("AIRLOX_INVITE='")[2].partition("'")[0]


@contextmanager
def runner(
    relay: str, home: Path, link: str, *words: str, until: str = "waiting"
) -> Iterator[subprocess.Popen[str]]:
    """A runner that waits for approval; it ends with the block, or by itself before. One that
    somebody else approves as soon as it is there may say nothing before it is `ready`."""
    there = Cli(relay, home, invite=link)
    with there.started(*JOIN, *(words or ("--name", "box")), stderr=None) as running:
        read_note(running, until)
        yield running


def only(mine: Cli) -> dict[str, Any]:
    (shown,) = mine("machine", "ls", "--json").document["machines"]
    return dict(shown)


class TestTwoAtOnce:
    def test_of_two_that_add_the_same_name_one_does(self, mine: Cli) -> None:
        words = ("machine", "add", "box", "--json", "--wait", "0")
        with mine.started(*words) as one, mine.started(*words) as two:
            ended = [process.communicate(timeout=TIMEOUT_S) for process in (one, two)]
            assert sorted((one.returncode, two.returncode)) == [0, 1]
        (made,) = (json.loads(out) for out, _ in ended if out)
        assert only(mine)["session_id"] == made["machine"]["session_id"]
        (refused,) = (json.loads(err.splitlines()[-1]) for _, err in ended if err)
        assert refused["code"] == "machine_exists"
        assert "airlox machine rm box" in refused["hint"]

    @pytest.mark.slow
    def test_two_agents_with_one_cache_use_one_machine(
        self, mine: Cli, relay: str, tmp_path: Path
    ) -> None:
        link = add(mine)
        with runner(relay, tmp_path / "there", link, "--name", "box", "--concurrency", "2"):
            mine("machine", "approve", "box", "--yes")
            # each waits for the other's file: both jobs run at the same time
            script = "touch {0}/{1}; until [ -e {0}/{2} ]; do sleep 0.05; done; echo {1}"
            pairs = (("a", "b"), ("b", "a"))
            jobs = [script.format(tmp_path, ours, theirs) for ours, theirs in pairs]
            words = ("run", "--on", "box", "--json", "--", "sh", "-c")
            with mine.started(*words, jobs[0]) as one, mine.started(*words, jobs[1]) as two:
                ended = [process.communicate(timeout=TIMEOUT_S) for process in (one, two)]
            done = [json.loads(out) for out, _ in ended]
            assert [result["stdout"] for result in done] == ["a\n", "b\n"]
            assert [result["exit_code"] for result in done] == [0, 0]
            assert only(mine)["last_job"] in [result["job"] for result in done]


@pytest.mark.slow
class TestApproval:
    def test_away_from_a_terminal_the_one_that_joins_is_shown_and_approved(
        self, mine: Cli, relay: str, tmp_path: Path
    ) -> None:
        words = ("machine", "add", "box", "--json", "--link", "--runtime", RUNTIME)
        with mine.started(*words) as adding:
            link = link_of(read_event(adding, "command")["command"])
            with runner(relay, tmp_path / "there", link, until="ready"):
                shown = read_event(adding, "runner")["runner"]
                assert adding.wait(TIMEOUT_S) == 0
                assert adding.stdout is not None
                made = json.load(adding.stdout)
                assert made["runner"]["participant_pub"] == shown["participant_pub"]
                assert made["runner"]["approved"] is True

    def test_one_that_nobody_named_is_not_approved_unseen(
        self, mine: Cli, relay: str, tmp_path: Path
    ) -> None:
        with runner(relay, tmp_path / "there", add(mine)) as joined:
            refused = mine("machine", "approve", "box", "--json", code=1).error
            (waiting,) = only(mine)["runners"]
            assert refused["code"] == "not_confirmed"
            assert f"airlox machine approve box {waiting['fingerprint']}" in refused["hint"]
            assert waiting["approved"] is False
            mine("machine", "approve", "box", waiting["fingerprint"])
            read_note(joined, "ready")

    def test_of_two_that_wait_none_is_guessed(self, mine: Cli, relay: str, tmp_path: Path) -> None:
        link = add(mine)
        with (
            runner(relay, tmp_path / "1", link, "--name", "one", "--labels", "big,cpu"),
            runner(relay, tmp_path / "2", link, "--name", "two"),
        ):
            refused = mine("machine", "approve", "box", "--yes", "--json", code=1).error
            assert refused["code"] == "ambiguous_runner"
            for name in ("one", "two"):
                mine("machine", "approve", "box", name)
            head, row = mine("machine", "ls").out.splitlines()
            assert head.split()[:5] == ["NAME", "RUNNERS", "KINDS", "LABELS", "IMAGE"]
            assert "one idle, two idle" in row
            assert "big,cpu" in row
            done = mine("run", "--on", "box/cpu", "--json", "--", "true")
            assert done.document["runner_name"] == "one"


class TestEnd:
    @pytest.mark.parametrize("how", ["closed", "revoked"])
    def test_what_to_do_is_said(self, mine: Cli, how: str) -> None:
        add(mine)
        owner = mine.holding(mine("machine", "invite", "box", "owner").out.strip())
        mine("job", "ls", "--on", "box")
        owner("session", *({"closed": ("close",), "revoked": ("revoke", "sender")}[how]))
        for words in (
            ("run", "--on", "box", "--", "true"),
            ("run", "--on", "box", "--all", "--", "true"),
        ):
            refused = mine(*words, code=1).err
            assert "machine box takes no more jobs" in refused
            assert "airlox machine add box --renew" in refused
        if how == "revoked":
            assert "was revoked" in mine("machine", "invite", "box", "sender", code=1).err
        if how == "closed":
            assert only(mine)["ended"] is True
            assert "--renew" in mine("machine", "ls").err
            assert "--renew" in mine("machine", "invite", "box", code=1).err
            assert "--renew" in mine("machine", "approve", "box", "--yes", code=1).err
        mine("machine", "rm", "box")
        assert "no machine called 'box'" in mine("run", "--on", "box", "--", "true", code=1).err

    @pytest.mark.slow
    def test_one_that_expired(self, tmp_path: Path) -> None:
        flags = ("--allow-never-expires", "no", "--max-lifetime", "10s")
        with server("--ephemeral", *flags) as running:
            mine = Cli(running.url, tmp_path)
            add(mine)
            until(lambda: only(mine)["ended"], "the end of its session")
            refused = mine("run", "--on", "box", "--", "true", "--json", code=1).err
            assert "machine box takes no more jobs: its session expired" in refused
            assert "airlox machine add box --renew" in refused

    def test_one_whose_time_is_over(self, tmp_path: Path) -> None:
        with server("--ephemeral", "--allow-never-expires", "no") as running:
            mine = Cli(running.url, tmp_path)
            assert "lasts 30 days" in mine("machine", "add", "box", "--wait", "0").err
            (kept,) = (tmp_path / "machines").glob("*.json")
            machine = json.loads(kept.read_text())
            assert machine["expires_at_ms"] - machine["created_at_ms"] == 30 * 86_400_000
            kept.write_text(json.dumps(machine | {"expires_at_ms": machine["created_at_ms"]}))
            assert "--renew" in mine("machine", "ls").err


@pytest.mark.slow
class TestRenewal:
    def test_the_runner_moves_and_the_old_session_ends(
        self, mine: Cli, relay: str, tmp_path: Path
    ) -> None:
        link = add(mine, "--job-memory", "777", "--network", "--sandbox", "process")
        before = only(mine)["session_id"]
        there = tmp_path / "there"
        with runner(relay, there, link) as old:
            mine("machine", "approve", "box", "--yes")
            read_note(old, "ready")
            words = ("machine", "add", "box", "--renew", "--json", "--link", "--job-timeout", "77")
            with mine.started(*words) as renewing:
                command = read_event(renewing, "command")["command"]
                assert command.endswith("--name box --sandbox process")
                # meanwhile the old one goes on
                assert mine("run", "--on", "box", "--", "echo", "old").out == "old\n"
                with runner(relay, there, link_of(command), until="ready"):
                    assert renewing.wait(TIMEOUT_S) == 0
                    assert old.wait(TIMEOUT_S) == 0
                    assert mine("run", "--on", "box", "--", "echo", "new").out == "new\n"
                    self.check(mine, before)

    def check(self, mine: Cli, before: str) -> None:
        shown = only(mine)
        assert shown["session_id"] != before
        owner = mine.holding(mine("machine", "invite", "box", "owner").out.strip())
        limits = owner("session", "info", "--json").document["job_limits"]
        assert (limits["memory_mb"], limits["network"], limits["timeout_s"]) == (777, True, 77)
        (kept,) = (mine.home / "machines").glob("*.json")
        assert kept.stat().st_mode & 0o777 == 0o600

    def test_one_that_is_given_up_leaves_the_machine_as_it_was(
        self, mine: Cli, relay: str, tmp_path: Path
    ) -> None:
        link = add(mine)
        before = only(mine)["session_id"]
        with runner(relay, tmp_path / "there", link) as running:
            mine("machine", "approve", "box", "--yes")
            read_note(running, "ready")
            with mine.started("machine", "add", "box", "--renew", "--json", "--link") as renewing:
                new = link_of(read_event(renewing, "command")["command"])
                renewing.send_signal(signal.SIGINT)
                assert renewing.wait(TIMEOUT_S) == 130
            assert only(mine)["session_id"] == before
            assert mine("run", "--on", "box", "--", "echo", "on").out == "on\n"
            gone = Cli(relay, tmp_path / "late", invite=new)(*JOIN, "--name", "b", code=1)
            assert gone.err != ""

    def test_without_waiting(self, mine: Cli) -> None:
        add(mine)
        before = only(mine)["session_id"]
        old = mine.holding(mine("machine", "invite", "box", "owner").out.strip())
        done = mine("machine", "add", "box", "--renew", "--wait", "0", "--json").document
        assert done["renewed"] == before
        assert only(mine)["session_id"] == done["machine"]["session_id"] != before
        assert old("session", "info", "--json").document["closed"] is not None

    def test_of_a_machine_that_is_not_there(self, mine: Cli) -> None:
        refused = mine("machine", "add", "box", "--renew", "--json", code=1).error
        assert refused["code"] == "no_machine"


def test_a_hosted_agent_needs_its_link_and_https_alone(relay: str, tmp_path: Path) -> None:
    """An empty home, nothing of ours in the environment but the link, and https to the relay."""
    with fronts.documented_nginx(tmp_path / "nginx", relay) as front:
        root = str(front.root)
        you = Cli(front.url, tmp_path / "you")
        made = you(*ADD, SSL_CERT_FILE=root).document
        there = link_of(made["command"]).replace(front.url, relay)
        with runner(relay, tmp_path / "there", there):
            you("machine", "approve", "box", "--yes", SSL_CERT_FILE=root)
            link = you("machine", "invite", "box", SSL_CERT_FILE=root).out.strip()
            assert link.startswith("https://")
            home = tmp_path / "empty"
            home.mkdir()
            environ = {"HOME": str(home), "AIRLOX_INVITE": link, "SSL_CERT_FILE": root}
            done = subprocess.run(
                [sys.executable, "-m", "airlox.cli", "run", "--", "echo", "hosted"],
                env=environ | {"PYTHONPATH": str(SOURCE)},
                cwd=home,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
            assert (done.returncode, done.stdout) == (0, "hosted\n"), done.stderr
            assert os.listdir(home) == [".cache"]


class TestHostRunner:
    FLAGS = ("--max-item-bytes", "50M", "--allow-never-expires", "no", "--max-lifetime", "7d")

    def test_create_prints_the_limits_that_came_out(self, relay: str, tmp_path: Path) -> None:
        create = ("session", "create", "--profile", "host-runner")
        most = Cli(relay, tmp_path)(*create, "--json").document
        assert (most["expires_at_ms"], most["max_item_bytes"]) == (None, 100 << 20)
        limits = most["job_limits"]
        assert (limits["timeout_s"], limits["memory_mb"]) == (1800, 4096)
        assert limits["approve_runners"] is True
        with server("--ephemeral", *self.FLAGS) as strict:
            less = Cli(strict.url, tmp_path)(*create, "--job-timeout", "5m")
            assert "items up to 50 MB" in less.err
            assert "this one lasts 7 days" in less.err
            assert "5 min and 4096 MB each" in less.err
            refused = Cli(strict.url, tmp_path)(*create, "--ttl", "never", "--json", code=1).error
            assert refused["code"] == "never_expires_not_allowed"
