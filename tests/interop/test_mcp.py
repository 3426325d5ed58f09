"""The MCP server of 0.1.0 in sessions with ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox import Session
from support.mixed import EITHER, Room, RoomMaker, Side
from support.old import OldMcp


@pytest.fixture
def mcp(relay: str, tmp_path: Path) -> Iterator[OldMcp]:
    with OldMcp(relay, tmp_path) as server:
        yield server


def test_a_session_it_made(mcp: OldMcp, tmp_path: Path) -> None:
    mcp.call("create_session", description="an agent")
    link = mcp.call("get_invites")["invites"]["sender"]
    mcp.call("send_text", text="from the agent")
    with Session.join(link, cache_dir=tmp_path / "ours", display_name="ann") as ours:
        (hello,) = ours.items()
        assert (hello.text, hello.author_name) == ("from the agent", "mcp")
        ours.send_text("to the agent")
        ours.send_file(b"# notes", name="notes.md")
        items = mcp.call("list_items", wait_s=30)["items"]
        assert [item.get("text") for item in items] == ["from the agent", "to the agent", None]
        saved = mcp.call("save_file", item=items[2]["id"], dir=str(tmp_path))["saved"]
        assert Path(saved).read_bytes() == b"# notes"
        people = mcp.call("session_info")["participants"]
        assert {p["display_name"] for p in people} == {"mcp", "ann"}
        mcp.call("close_session")
        ours.sync()
        assert ours.closed


def test_a_session_of_ours(mcp: OldMcp, room_by: RoomMaker, tmp_path: Path) -> None:
    room = room_by(Side.OURS)
    joined = mcp.call("join_session", invite=room.links["sender"], description="an agent")
    assert (joined["session"], joined["role"]) == (room.session_id, "sender")
    room.owner("send", "text", "hello")
    assert mcp.call("list_items", wait_s=30)["items"][0]["text"] == "hello"
    (tmp_path / "tool.py").write_text("print(1)\n")
    mcp.call("send_file", path=str(tmp_path / "tool.py"))
    assert room.owner("items", "--json").lines[1]["content"] == "print(1)\n"


@pytest.mark.slow
@pytest.mark.parametrize("runner_side", EITHER)
def test_it_owns_a_session_with_jobs(
    mcp: OldMcp, execute_room_by: RoomMaker, runner_side: Side
) -> None:
    room: Room = execute_room_by(Side.OURS)
    mcp.call("join_session", invite=room.links["owner"])
    with room.runner(runner_side, approved=False) as machine:
        mcp.call("approve_runner", runner="box")
        (runner,) = mcp.call("list_runners")["runners"]
        assert (runner["name"], runner["approved"], runner["online"]) == ("box", True, True)
        (room.folder / "notes.md").write_text("read me")
        notes = mcp.call("send_file", path=str(room.folder / "notes.md"))["sent"]
        code = (
            "import os; print(open('notes.md').read()); "
            "open(os.environ['AIRLOX_OUT'] + '/made.txt', 'w').write('x')"
        )
        done = mcp.call("run_python", code=code, runner="box", files=[notes])["result"]
        assert (done["status"], done["stdout"], done["exit_code"]) == ("completed", "read me\n", 0)
        again = mcp.call("get_result", job=done["job"], save_dir=str(room.folder))
        assert len(again["saved"]) == 1
        trail = mcp.call("export_audit", dir=str(room.folder))
        assert len(Path(trail["saved"]).read_text().splitlines()) == trail["lines"]
        mcp.call("reject_runner", runner="box")
        machine.wait()
