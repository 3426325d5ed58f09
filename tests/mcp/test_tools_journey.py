"""The tools from a new session to its audit, over a real relay and a real runner."""

from __future__ import annotations

from pathlib import Path

from support.mcp_journey import journey
from support.relay import RelayThread
from support.tools import Bench, RecordingCaller


def test_from_a_new_session_to_its_verified_trail(tmp_path: Path) -> None:
    with RelayThread() as relay, Bench(tmp_path, relay=relay.url) as bench:
        handle = journey(bench.call, bench.work, tmp_path / "runner")
        owner = bench.owner_link(handle)
        person = RecordingCaller({"Close the session": True})
        assert bench.call("close_session", person)["closed"]
        assert len(person.asked) == 1
        for secret in (owner, owner.partition("#")[2], owner.partition("ok=")[2]):
            assert secret
            assert not [said for said in bench.said if secret in said]
