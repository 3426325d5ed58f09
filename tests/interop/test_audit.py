"""Audit trails of sessions in which 0.1.0 takes part: whoever exports them, ours verifies them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.mixed import Room, RoomMaker, Side, mixes, names_of
from support.old import OldMcp

CODE = (
    "import os; print(open('notes.md').read()); "
    "open(os.environ['AIRLOX_OUT'] + '/made.txt', 'w').write('x')"
)
QUICK = (Side.OURS, Side.THEIRS, Side.THEIRS)
MIXES = [
    pytest.param(*mix, id=names_of(mix), marks=[] if mix == QUICK else [pytest.mark.slow])
    for mix in mixes(3)
]
"""Owner, sender, runner."""


def verified(room: Room, name: str) -> Any:
    """The report on a trail that must verify."""
    auditor = room.person("observer", Side.OURS, "auditor")
    words = ("audit", "verify", str(room.folder / name), "--session-id", room.session_id)
    report = auditor(*words, "--json").document
    assert report["problems"] == []
    assert report["verified"]
    return report


@pytest.mark.parametrize(("owner_side", "sender_side", "runner_side"), MIXES)
def test_the_trail_of_a_session_with_a_job(
    execute_room_by: RoomMaker, owner_side: Side, sender_side: Side, runner_side: Side
) -> None:
    """P-AUD-2, P-AUD-5: links of ours count, and nobody misses those of 0.1.0."""
    room = execute_room_by(owner_side)
    sender = room.person("sender", sender_side)
    (room.folder / "notes.md").write_text("read me")
    (room.folder / "job.py").write_text(CODE)
    with room.runner(runner_side) as machine:
        done = sender("run", "job.py", "--input", "notes.md", "--json").document
        assert done["status"] == "completed"
        sender("send", "text", "thanks")
        machine.interrupt()
    room.owner("items")
    room.owner("session", "revoke", "sender")
    room.owner("session", "audit", "--out", "trail.jsonl")
    report = verified(room, "trail.jsonl")
    (job,) = report["jobs"]
    assert job["result"]
    assert job["state"] == "finished"
    roles = {person["role"]: person for person in report["people"]}
    assert roles["owner"]["items"] == {"event": 1}
    assert roles["sender"]["items"] == {"file": 1, "job": 1, "text": 1}
    assert roles["sender"]["cut_off"] == "revoked"
    assert roles["sender"]["linked"] == (2 if sender_side is Side.OURS else 0)
    assert roles["runner"]["items"] == {"file": 1, "result": 1}
    posted = ((owner_side, 1), (sender_side, 3), (runner_side, 2))
    assert report["unchained"] == sum(count for side, count in posted if side is Side.THEIRS)


def test_what_their_mcp_server_exports(relay: str, tmp_path: Path, room_by: RoomMaker) -> None:
    """P-AUD-2"""
    room = room_by(Side.THEIRS)
    room.person("sender", Side.OURS)("send", "text", "ours")
    with OldMcp(relay, room.folder) as mcp:
        mcp.call("join_session", invite=room.links["owner"])
        mcp.call("send_text", text="theirs")
        saved = Path(mcp.call("export_audit", dir=str(room.folder))["saved"])
    report = verified(room, saved.name)
    assert (report["items"], report["linked"], report["unchained"]) == (2, 0, 1)
    lines = saved.read_text().splitlines()
    changed = [line.replace("ours", "ourz") for line in lines]  # in no line, as all is sealed
    assert changed == lines
    cut = [line for line in lines if json.loads(line)["event"] != "joined"]
    (room.folder / "cut.jsonl").write_text("\n".join(cut))
    auditor = room.person("observer", Side.OURS, "auditor")
    assert "NOT VERIFIED" in auditor("audit", "verify", "cut.jsonl", code=65).out
