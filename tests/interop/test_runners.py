"""Runners of either software: let in, turned away, cut off, started again, lost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import old, parts
from support.commands import Cli
from support.machines import RelayProgram
from support.mixed import EITHER, Room, RoomMaker, Side, mixes, names_of
from support.ordinary import folder_of
from support.relay import until
from support.server import server

RUNNER_KEYS = {
    *("approved", "description", "host", "job", "labels", "name", "network_unblocked", "online"),
    *("participant_pub", "rejected", "sandbox"),
}
MIXES = [pytest.param(*mix, id=names_of(mix)) for mix in mixes(2)]
SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


def run(sender: Cli, *words: str, code: str = "print(1)", exit_code: int | None = 0) -> Any:
    assert sender.cwd is not None
    (sender.cwd / "main.py").write_text(code)
    return sender("run", "main.py", "--json", *words, code=exit_code).document


def send_off(sender: Cli) -> str:
    """The id of a job that runs by now."""
    job: str = run(sender, "--no-wait", code=SLEEPER)["job"]

    def runs() -> bool:
        said = sender("result", "--json", "--", job, code=75).document
        return bool(said["status"] == "running")

    until(runs, "a claim")
    return job


@pytest.mark.slow
@pytest.mark.parametrize(("owner_side", "runner_side"), MIXES)
def test_nothing_runs_before_the_owner_says_so(
    execute_room_by: RoomMaker, owner_side: Side, runner_side: Side
) -> None:
    room = execute_room_by(owner_side)
    people = [room.person("sender", side, side) for side in EITHER]
    with room.runner(runner_side, "--labels", "a,b", "--description", "a box", approved=False):
        (seen,) = room.runners()
        assert set(seen) >= RUNNER_KEYS
        assert (seen["name"], seen["labels"], seen["description"]) == ("box", ["a", "b"], "a box")
        assert (seen["approved"], seen["rejected"], seen["online"]) == (False, False, True)
        for sender in people:
            assert run(sender, exit_code=1)["reason"] == "no_runner_available"
            assert sender("run", "main.py", "--runner", "box", code=1).err
        room.owner("runner", "approve", "box")
        for sender in people:
            assert run(sender, "--runner", "box")["status"] == "completed"
            (listed,) = sender("runner", "list", "--json").document["runners"]
            assert (listed["approved"], listed["sandbox"]) == (True, "local")


@pytest.mark.slow
@pytest.mark.parametrize(("owner_side", "runner_side"), MIXES)
class TestTheEndOfARunner:
    def test_a_rejected_one_ends_and_stays_out(
        self, execute_room_by: RoomMaker, owner_side: Side, runner_side: Side
    ) -> None:
        room = execute_room_by(owner_side)
        with room.runner(runner_side, approved=False) as machine:
            room.owner("runner", "reject", "box", "--reason", "wrong machine")
            machine.wait()
            for reader in (room.owner, *(room.person("sender", side, side) for side in EITHER)):
                (seen,) = reader("runner", "list", "--json").document["runners"]
                assert (seen["rejected"], seen["approved"], seen["online"]) == (True, False, False)
            rejection = room.owner("items", "--json").lines[-1]["meta"]
            assert (rejection["event"], rejection["reason"]) == ("runner_reject", "wrong machine")
            assert run(room.owner, exit_code=1)["reason"] == "no_runner_available"

    def test_a_revoked_role_ends_it(
        self, execute_room_by: RoomMaker, owner_side: Side, runner_side: Side
    ) -> None:
        room = execute_room_by(owner_side)
        with room.runner(runner_side) as machine:
            room.owner("session", "revoke", "runner")
            machine.wait()
        assert run(room.owner, exit_code=1)["reason"] == "no_runner_available"

    def test_the_end_of_the_session_ends_it_well(
        self, execute_room_by: RoomMaker, owner_side: Side, runner_side: Side
    ) -> None:
        room = execute_room_by(owner_side)
        with room.runner(runner_side) as machine:
            room.owner("session", "close")
            assert machine.wait() == 0

    def test_a_job_under_way_is_answered_when_it_is_interrupted(
        self, execute_room_by: RoomMaker, owner_side: Side, runner_side: Side
    ) -> None:
        room = execute_room_by(owner_side)
        with room.runner(runner_side) as machine:
            job = send_off(room.owner)
            machine.interrupt()
            done = room.owner("result", "--wait", "90s", "--json", "--", job, code=1).document
            assert (done["status"], done["signed"]) == ("cancelled", True)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), MIXES)
def test_a_runner_comes_back_as_itself_from_either_s_cache(
    execute_room_by: RoomMaker, first: Side, second: Side
) -> None:
    parts.require("user namespaces")  # a runner that says something else of its sandbox joins anew
    room = execute_room_by(Side.THEIRS)
    with folder_of(old.OWNER_UID) as home:
        with room.runner(first, home=home, sandboxed=True) as machine:
            (before,) = room.runners()
            assert run(room.owner)["status"] == "completed"
            machine.interrupt()
        give(home, os.geteuid() if second is Side.OURS else old.OWNER_UID)
        with room.runner(second, home=home, approved=False, sandboxed=True):
            (after,) = room.runners()
            assert after["participant_pub"] == before["participant_pub"]
            assert after["approved"]
            assert run(room.owner)["status"] == "completed"


def give(folder: Path, uid: int) -> None:
    """Where the tests run as root, so does our runner, and theirs as an ordinary user."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)


@pytest.mark.slow
@pytest.mark.parametrize(("runner_side", "newcomer_side"), MIXES)
def test_newcomers_trust_a_runner_that_was_approved_before(
    execute_room_by: RoomMaker, runner_side: Side, newcomer_side: Side
) -> None:
    """The approval stays on the relay although everybody who was there has it."""
    room = execute_room_by(Side.THEIRS)
    with room.runner(runner_side):
        assert run(room.owner)["status"] == "completed"  # the runner has seen its approval
        for number in range(2):
            newcomer = room.person("sender", newcomer_side, f"newcomer-{number}")
            assert run(newcomer, "--runner", "box", "--wait", "90s")["status"] == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("runner_side", EITHER)
def test_a_session_without_approval(execute_room_by: RoomMaker, runner_side: Side) -> None:
    room = execute_room_by(Side.THEIRS, "--no-approval")
    with room.runner(runner_side, approved=False):
        for side in EITHER:
            sender = room.person("sender", side, side)
            assert run(sender, "--runner", "box")["status"] == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("runner_side", EITHER)
def test_two_runners_of_either_side_share_the_work(
    execute_room_by: RoomMaker, runner_side: Side
) -> None:
    room = execute_room_by(Side.OURS)
    sender = room.person("sender", Side.THEIRS)
    with room.runner(Side.OURS, name="new"), room.runner(Side.THEIRS, name="old"):
        keys = {runner["name"]: runner["participant_pub"] for runner in room.runners()}
        name = "new" if runner_side is Side.OURS else "old"
        job = run(sender, "--no-wait", "--runner", name, code=SLEEPER)["job"]
        other = run(sender)
        assert other["runner"] == keys["old" if name == "new" else "new"]
        sender("cancel", "--", job)
        ended = sender("result", "--wait", "90s", "--json", "--", job, code=1).document
        assert ended["runner"] == keys[name]


@pytest.fixture(scope="module")
def hasty_relay() -> Iterator[str]:
    with server("--ephemeral", "--runner-grace", "2s") as running:
        yield running.url


@pytest.mark.slow
@pytest.mark.parametrize(("runner_side", "sender_side"), MIXES)
def test_the_wait_for_a_lost_runner_ends(
    hasty_relay: str, tmp_path: Path, runner_side: Side, sender_side: Side
) -> None:
    room = Room(hasty_relay, tmp_path, Side.THEIRS, "--execute", "--runtime", old.runtime())
    sender = room.person("sender", sender_side)
    with room.runner(runner_side) as machine:
        job = send_off(sender)
        machine.kill()
        ended = sender("result", "--wait", "90s", "--json", "--", job, code=1).document
        assert (ended["status"], ended["signed"]) == ("failed", False)
        assert "lost" in ended["reason"]


def test_our_process_sandbox_stays_out_of_such_sessions(
    execute_room_by: RoomMaker, tmp_path: Path
) -> None:
    """0.1.0 would drop a runner with a sandbox that it does not know."""
    room = execute_room_by(Side.THEIRS)
    runner = Cli(room.relay, tmp_path / "runner", invite=room.links["runner"])
    assert "process" in runner("runner", "join", "--name", "box", "--unsandboxed", code=1).err
    assert room.runners() == []


@pytest.mark.slow
def test_theirs_find_back_to_a_relay_that_was_killed(tmp_path: Path) -> None:
    with RelayProgram(tmp_path / "relay") as relay:
        flags = ("--execute", "--runtime", old.runtime())
        room = Room(relay.url, tmp_path, Side.THEIRS, *flags)
        sender = room.person("sender", Side.THEIRS)
        with room.runner(Side.THEIRS), sender.started("watch", "--json") as watching:
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline())["kind"] == "event"  # the approval
            relay.kill()
            relay.start()
            room.owner("send", "text", "here again")
            assert json.loads(watching.stdout.readline())["text"] == "here again"
            until(lambda: run(room.owner, exit_code=None)["status"] == "completed", "a job")
