"""Revocation on the command line, with a real relay and a real runner that go on through it."""

from __future__ import annotations

import hashlib
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import parts
from support.commands import TIMEOUT_S, Cli, Room, create, open_room, read_note
from support.server import server


@pytest.fixture(scope="module")
def relay() -> Iterator[str]:
    with server("--ephemeral") as running:
        yield running.url


@pytest.fixture
def room(relay: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    with open_room(relay, tmp_path_factory.mktemp("homes")) as opened:
        yield opened


def test_one_participant_while_a_job_runs(room: Room, relay: str, tmp_path: Path) -> None:
    """The job, its runner and who follows it go on; who was cut off does not."""
    links = room.owner("session", "invites", "--json").document["invites"]
    alice = Cli(relay, tmp_path / "alice", invite=links["sender"])
    alice("send", "text", "hi", "--as", "alice")
    go = tmp_path / "go"
    script = f"echo one; until test -e {go}; do sleep 0.05; done; echo two"
    with room.sender.started("run", "--runner", "box", "--", "sh", "-c", script) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "one\n"
        done = room.owner("session", "revoke", "alice", "--json")
        assert done.document == {"revoked": "alice", "replaced": ["sender"]}
        go.touch()
        assert job.stdout.read() == "two\n"
        assert job.wait(TIMEOUT_S) == 0
    alice("send", "text", "me too", code=1)
    late = Cli(relay, tmp_path / "late", invite=links["sender"])
    refused = late("send", "text", "hi", code=1).err
    assert "was replaced when the owner cut somebody off" in refused
    assert "ask the owner for a new link" in refused
    new = room.owner("session", "invites", "--json").document["invites"]
    assert {role for role in new if new[role] != links[role]} == {"sender"}
    newcomer = Cli(relay, tmp_path / "newcomer", invite=new["sender"])
    assert newcomer("run", "--runner", "box", "--", "echo", "three").out == "three\n"
    room.sender("send", "text", "after")
    # a hosted agent has its link and nothing else, each time
    agent = Cli(relay, tmp_path / "agent", invite=links["observer"])
    assert "after" in agent("items", "--json").out
    trail = tmp_path / "trail.jsonl"
    room.owner("session", "audit", "--out", str(trail))
    said = room.owner("audit", "verify", str(trail)).out
    assert "VERIFIED" in said
    assert "the owner cut off alice (sender) in epoch 1" in said


@pytest.mark.slow
@pytest.mark.parametrize("who", ["runner", "box"])
def test_a_runner_that_is_cut_off_ends(relay: str, tmp_path: Path, who: str) -> None:
    people = create(relay, tmp_path, "--execute", "--kinds", "shell")
    words = ("runner", "join", "--json", "--name", "box", "--sandbox", "process")
    with people["runner"].started(*words, stderr=None) as runner:
        read_note(runner, "waiting")
        told = people["owner"]("session", "revoke", who).err
        assert ("who goes on as runner: nobody" in told) == (who == "box")
        assert read_note(runner, "ended")["code"] == "cut_off"
        assert runner.wait(TIMEOUT_S) == 1
    again = people["runner"](*words, code=1).err
    assert ("revoked by the owner" if who == "runner" else "ask the owner") in again
    assert "runner" not in people["owner"]("session", "invites").out or who == "box"


@pytest.mark.slow
def test_a_runner_that_stays_comes_back_with_its_old_link(relay: str, tmp_path: Path) -> None:
    """Its role has a new key, which it opens with its own; a newcomer needs the new link."""
    people = create(relay, tmp_path, "--execute", "--kinds", "shell")
    owner = people["owner"]

    def joining(name: str) -> tuple[str, ...]:
        return ("runner", "join", "--json", "--name", name, "--sandbox", "process")

    there = {name: Cli(relay, tmp_path / name, invite=people["runner"].invite) for name in "ab"}
    with there["a"].started(*joining("a"), stderr=None) as gone:
        read_note(gone, "waiting")
        with there["b"].started(*joining("b"), stderr=None) as stays:
            read_note(stays, "waiting")
            owner("runner", "approve", "b")
            read_note(stays, "ready")
            owner("session", "revoke", "a")
            read_note(gone, "ended")
            assert people["sender"]("run", "--runner", "b", "--", "echo", "one").out == "one\n"
    with there["b"].started(*joining("b"), stderr=None) as again:
        read_note(again, "ready")
        assert people["sender"]("run", "--runner", "b", "--", "echo", "two").out == "two\n"
    late = Cli(relay, tmp_path / "late", invite=people["runner"].invite)
    assert "ask the owner for a new link" in late(*joining("late"), code=1).err


@pytest.mark.slow
def test_a_tree_before_and_after(room: Room, tmp_path: Path) -> None:
    """Where its contents are cut follows the key: what was sent before is cut anew."""
    parts.require("git")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=60)
    large = bytearray(random.Random(1).randbytes(3_000_000))
    sender = room.sender.at(tmp_path)
    for at, gone in enumerate((None, "observer")):
        if gone is not None:
            room.owner("session", "revoke", gone)
        large[1_500_000 + at] ^= 255
        (tmp_path / "large.bin").write_bytes(large)
        digest = hashlib.sha256(large).hexdigest()
        done = sender("run", "--tree", "--runner", "box", "--", "sha256sum", "large.bin")
        assert done.out.split()[0] == digest


def test_a_floor_session_cuts_off_roles_alone(relay: str, tmp_path: Path) -> None:
    people = create(relay, tmp_path)
    people["sender"]("send", "text", "hi", "--as", "alice")
    refused = people["owner"]("session", "revoke", "alice", code=1).err
    assert "only in a session with the feature epochs" in refused
    assert people["owner"]("session", "revoke", "sender", "--json").document == {
        "revoked": "sender"
    }
