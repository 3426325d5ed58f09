"""What the demo claims of the parties is looked at, not assumed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from airlox.cli import demo
from airlox.client.jobs import Result
from airlox.protocol.job import AnyRunner, ShellJob


class FakeSession:
    """A session whose relay tells what the test wants."""

    def __init__(self, *trail: dict[str, Any]) -> None:
        self.trail = list(trail)

    def sync(self) -> None: ...

    def audit(self) -> list[dict[str, Any]]:
        return self.trail

    def records(self) -> list[Any]:
        return [SimpleNamespace(envelope=SimpleNamespace(blob_size=100)) for _ in range(3)]


JOB: Any = SimpleNamespace(
    meta=ShellJob(
        files=(), memory_mb=None, target=AnyRunner(), timeout_s=10, command=("make", "secret")
    ),
    upload=SimpleNamespace(digest="D"),
)


def result(**changes: Any) -> Result:
    values: dict[str, Any] = {
        "status": "completed",
        "exit_code": 0,
        "reason": None,
        "runner": "K",
        "tree": "D",
    }
    return Result(job="j", stdout="the output\nok\n", **(values | changes))


def look(*trail: dict[str, Any]) -> dict[str, Any]:
    session: Any = FakeSession(*trail)
    return demo._look_at_relay(session, JOB, result())


class TestRelay:
    def test_what_it_passed_on(self) -> None:
        found = look({"event": "created"}, {"event": "item"})
        assert found == {"bytes": 300, "entries": 2, "items": 3, "plaintext_found": False}

    @pytest.mark.parametrize("leak", ["make secret", "prefix the output suffix"])
    def test_a_leak_is_seen(self, leak: str) -> None:
        assert look({"event": "item", "envelope": leak})["plaintext_found"] is True

    def test_a_short_word_may_stand_there_by_chance(self) -> None:
        assert look({"event": "ok"})["plaintext_found"] is False


class TestChecks:
    def test_all_hold(self) -> None:
        runner: Any = SimpleNamespace(participant_pub="K")
        assert demo._checks(runner, JOB, result()) == {
            "signed_result": True,
            "approved_runner": True,
            "tree_digest": True,
        }

    def test_each_can_fail(self) -> None:
        runner: Any = SimpleNamespace(participant_pub="other")
        checks = demo._checks(runner, JOB, result(signed=False, tree=None))
        assert not any(checks.values())


class TestThisMachine:
    def test_the_runtime_is_the_one_we_run_on(self) -> None:
        assert demo._runtime() == f"python3.{sys.version_info.minor}"

    def test_system_folders_need_no_naming(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "prefix", "/home/ann/.venv")
        monkeypatch.setattr(sys, "base_prefix", "/usr")
        assert demo._toolchains() == ["/home/ann/.venv"]
        monkeypatch.setattr(sys, "base_prefix", "/home/ann/python")
        assert demo._toolchains() == ["/home/ann/.venv", "/home/ann/python"]

    def test_the_sample_is_shipped(self) -> None:
        assert sorted(path.name for path in demo.SAMPLE.glob("*")) == ["README.md", "roman"]
