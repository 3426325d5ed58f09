"""Addressed messages where 0.1.0 takes part: it refuses the one item, and nothing else suffers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airlox import Session
from support import old
from support.commands import Cli
from support.mixed import EITHER, RoomMaker, Side


def statuses(reader: Cli) -> list[tuple[str, str]]:
    """Kind and status of each item, as a reader of either software tells it."""
    return [(item["kind"], item["status"]) for item in reader("items", "--json").lines]


def said(person: Cli, text: str, *words: str) -> dict[str, Any]:
    sent: dict[str, Any] = person("send", "text", text, *words, "--json").document["sent"]
    return sent


@pytest.mark.parametrize("owner_side", EITHER)
def test_an_older_client_refuses_that_item_alone(
    room_by: RoomMaker, owner_side: Side, tmp_path: Path
) -> None:
    """[P-ADR-2]"""
    room = room_by(owner_side)
    ours = room.person("sender", Side.OURS)
    theirs = room.person("observer", Side.THEIRS)
    theirs("items")
    first = said(ours, "before")
    said(ours, "for the watchers", "--to", "role:observer")
    said(ours, "an answer", "--reply-to", first["id"])
    (tmp_path / "a.md").write_text("# for them\n")
    ours("send", "file", "a.md", "--to", "role:observer")
    said(ours, "after")
    plain = ("text", "ok")
    assert statuses(theirs) == [
        plain,
        ("text", "rejected"),
        ("text", "rejected"),
        ("file", "rejected"),
        plain,
    ]
    assert statuses(ours) == [plain, plain, plain, ("file", "ok"), plain]
    told = ours("delivery", "--json").document["delivery"]
    fetched = [[p["role"] for p in each["delivered"]] for each in told]
    assert fetched == [["observer"], [], [], [], ["observer"]]
    # it goes on as before: streams, files, what comes later
    with theirs.started("watch", "--json") as watching:
        assert watching.stdout is not None
        seen = [json.loads(watching.stdout.readline()) for _ in range(5)]
        assert seen[-1]["text"] == "after"
        said(room.owner, "while it watches")
        assert json.loads(watching.stdout.readline())["text"] == "while it watches"
        room.owner("session", "close")
        assert watching.wait(60) == 0


@pytest.mark.slow
def test_an_older_sdk_and_an_older_owner_go_on(relay: str, tmp_path: Path) -> None:
    made = old.sdk(
        """
with Session.create(given["relay"], cache_dir=given["cache"], display_name="old") as s:
    s.send_text("hello")
    answer = s.invites
""",
        relay=relay,
        cache=tmp_path / "theirs",
    )
    warned: list[str] = []
    with Session.join(
        made["sender"], display_name="new", cache_dir=tmp_path / "ours", on_warning=warned.append
    ) as ours:
        (hello,) = ours.items()
        ours.send_text("to you", to="old")
        ours.send_text("an answer", reply_to=hello)
        ours.send_text("plain")
        assert len([w for w in warned if "old seems to use a client as old as 0.1.0" in w]) == 2
        seen = old.sdk(
            """
with Session.join(given["link"], cache_dir=given["cache"]) as s:
    answer = [[i.text, i.status] for i in s.items()]
    s.send_text("I go on")
    heard = [i.text for i in s.stream(timeout=4)]
    answer.append(heard)
""",
            link=made["owner"],
            cache=tmp_path / "theirs",
        )
        assert [status for _, status in seen[:-1]] == ["ok", "rejected", "rejected", "ok"]
        assert [text for text, status in seen[:-1] if status == "ok"] == ["hello", "plain"]
        assert seen[-1][-1] == "I go on"
        assert [item.for_me for item in ours.items()][-1] == ("everyone",)
        delivery = ours.delivery()
        assert [[p.display_name for p in each.delivered] for each in delivery[-1:]] == [["old"]]


@pytest.mark.slow
def test_an_older_runner_works_on(execute_room_by: RoomMaker) -> None:
    """Runners acknowledge texts unread: an address makes no difference to them."""
    room = execute_room_by(Side.OURS)
    ours = room.person("sender", Side.OURS)
    with room.runner(Side.THEIRS):
        said(ours, "take care", "--to", "box", "--to", "role:runner")
        script = room.folder / "a.py"
        script.write_text("print('done')\n")
        done = ours("run", "--runner", "box", str(script), "--json").document
        assert (done["status"], done["stdout"]) == ("completed", "done\n")
