"""A relay that does not answer, or dies, holds no call up; what went on meanwhile is not lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airlox.errors import AirloxError, WaitTimeout
from airlox.mcp import use
from support.machines import RelayProgram, RunnerProgram
from support.tools import Bench, RecordingCaller

WAIT_S = 60


@contextmanager
def silent(relay: RelayProgram) -> Iterator[None]:
    """The relay takes connections and says nothing."""
    os.kill(relay.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(relay.pid, signal.SIGCONT)


def test_no_call_waits_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RelayProgram(tmp_path / "relay") as relay, Bench(tmp_path, relay=relay.url) as bench:
        created = bench.call("create_session", execute=True, shell=True, approve_runners=False)
        (bench.work / "a.md").write_text("# A\n")
        monkeypatch.setattr(use, "WAIT_S", 0)
        monkeypatch.setattr(use, "GRACE_S", 0.3)
        calls: dict[str, dict[str, Any]] = {
            "approve_runner": {"runner": "box"},
            "create_session": {},
            "delivery_status": {},
            "export_audit": {"dir": "."},
            "get_item": {"item": "AAAAAAAAAAAAAAAAAAAAAA"},
            "get_result": {"job": "AAAAAAAAAAAAAAAAAAAAAA"},
            "join_session": {"invite": created["invites"]["sender"]},
            "list_items": {"wait_s": 0},
            "list_runners": {},
            "send_file": {"path": "a.md"},
            "send_text": {"text": "x"},
            "session_info": {},
        }
        with silent(relay):
            for name, given in calls.items():
                with pytest.raises(WaitTimeout) as late:
                    bench.call(name, **given)
                assert late.value.code == "slow", name
                assert late.value.hint
            sending = bench.call("run", script="true", wait_s=0)
            assert sending["status"] == "sending"
            assert bench.call("get_result", job=sending["job"], wait_s=0)["status"] == "sending"
        with pytest.raises(AirloxError) as refusal:  # no runner has joined
            bench.call("get_result", job=sending["job"], wait_s=WAIT_S)
        assert "list_runners" in str(refusal.value.hint)


@pytest.mark.slow
def test_a_job_outlives_its_relays_death(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with RelayProgram(tmp_path / "relay") as relay, Bench(tmp_path, relay=relay.url) as bench:
        given = {"execute": True, "shell": True, "approve_runners": False}
        created = bench.call("create_session", None, **given)
        with RunnerProgram(created["invites"]["runner"], tmp_path / "box") as runner:
            runner.note("ready")
            begun = RecordingCaller()
            begun.on_progress = lambda text: relay.kill()
            script = f"echo begun; while [ ! -e {gate} ]; do sleep 0.05; done; echo ended"
            away = bench.call("run", begun, script=script, wait_s=3)
            assert away["status"] in ("assigned", "running")
            assert "begun" in away["output_so_far"]
            relay.start()
            gate.touch()
            ended = bench.call("get_result", job=away["job"], wait_s=WAIT_S)
            assert (ended["exit_code"], ended["stdout"]) == (0, "begun\nended\n")
