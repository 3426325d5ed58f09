"""Full sessions, which 0.1.0 does not know: it says so, and nothing comes of its try."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support import old
from support.commands import RUNTIME
from support.mixed import Room, RoomMaker, Side
from support.old import OldMcp, OldRunner
from support.ordinary import folder_of

FULL = ("--execute", "--runtime", RUNTIME, "--kinds", "python,shell")
EVERY_COMMAND = (
    ("items",),
    ("session", "info"),
    ("send", "text", "x"),
    ("runner", "list"),
    ("watch", "--timeout", "1s"),
)


@pytest.fixture
def room(room_by: RoomMaker) -> Room:
    return room_by(Side.OURS, *FULL)


def check_unharmed(room: Room) -> None:
    """Nobody has joined, nothing was posted, and ours go on."""
    info: dict[str, Any] = room.owner("session", "info", "--json").document
    assert [p["role"] for p in info["participants"]] == ["owner"]
    assert room.owner("items", "--json").lines == []
    room.person("sender", Side.OURS)("send", "text", "it works")
    assert room.owner("items", "--json").lines[0]["text"] == "it works"


@pytest.mark.parametrize("role", ["owner", "sender", "observer"])
def test_their_command_line(room: Room, role: str) -> None:
    person = room.person(role, Side.THEIRS, f"old-{role}")
    for words in EVERY_COMMAND:
        done = person(*words, code=1)
        assert "features" in done.err or "kinds" in done.err, done.err
    check_unharmed(room)


def test_their_sdk(room: Room, tmp_path: Path) -> None:
    refusal = old.sdk(
        """
try:
    Session.join(given["link"], cache_dir=given["cache"])
except Exception as error:
    answer = [type(error).__name__, str(error)]
""",
        link=room.links["sender"],
        cache=tmp_path / "theirs",
    )
    assert refusal[0] == "ValidationError"
    assert "features" in refusal[1] or "kinds" in refusal[1]
    check_unharmed(room)


def test_their_mcp_server(room: Room, tmp_path: Path) -> None:
    with OldMcp(room.relay, tmp_path) as mcp:
        refusal = mcp.refusal("join_session", invite=room.links["sender"])
    assert "features" in refusal or "kinds" in refusal
    check_unharmed(room)


def test_their_runner(room: Room) -> None:
    with folder_of(old.OWNER_UID) as home, OldRunner(room.links["runner"], home) as runner:
        assert runner.wait() == 1
        assert any("features" in line or "kinds" in line for line in runner.said)
    assert room.runners() == []
    check_unharmed(room)


def test_an_old_cache_of_a_full_session_is_no_way_in(room: Room) -> None:
    """The same folder, first used by ours."""
    sender = room.person("sender", Side.OURS)
    sender("send", "text", "ours")
    assert room.person("sender", Side.THEIRS)("send", "text", "theirs", code=1).err
    assert [i["text"] for i in sender("items", "--json").lines] == ["ours"]
