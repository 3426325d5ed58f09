"""The ends of things: a role revoked, a session closed; and the trail that tells of them."""

from __future__ import annotations

import json

import pytest

from support.commands import Cli
from support.mixed import EITHER, RoomMaker, Side, mixes, names_of
from support.relay import until

pytestmark = pytest.mark.slow

MIXES = [pytest.param(*mix, id=names_of(mix)) for mix in mixes(2)]


@pytest.mark.parametrize(("owner_side", "member_side"), MIXES)
class TestRevoke:
    def test_who_is_cut_off_is_told_and_others_go_on(
        self, room_by: RoomMaker, owner_side: Side, member_side: Side
    ) -> None:
        room = room_by(owner_side)
        sender, observer = (room.person(r, member_side) for r in ("sender", "observer"))
        sender("send", "text", "mine")
        with observer.started("watch", "--json") as watching, sender.started("watch") as cut:
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline())["text"] == "mine"
            assert cut.stdout is not None
            cut.stdout.readline()  # it watches
            room.owner("session", "revoke", "sender")
            assert cut.wait(60) == 0
            assert sender("send", "text", "x", code=1).err
            assert "mine" in sender("items").out  # history stays readable
            room.owner("send", "text", "to who is left")
            assert json.loads(watching.stdout.readline())["text"] == "to who is left"
        left = {
            p["role"]: p["left"]
            for p in observer("session", "info", "--json").document["participants"]
        }
        assert left == {"owner": False, "sender": True, "observer": False}

    def test_its_link_admits_nobody(
        self, room_by: RoomMaker, owner_side: Side, member_side: Side
    ) -> None:
        room = room_by(owner_side)
        room.owner("session", "revoke", "observer")
        refused = room.person("observer", member_side)("items", code=1)
        assert "revoked" in refused.err
        assert room.person("sender", member_side)("send", "text", "x").code == 0


@pytest.mark.parametrize(("owner_side", "member_side"), MIXES)
def test_close_ends_it_for_all(room_by: RoomMaker, owner_side: Side, member_side: Side) -> None:
    room = room_by(owner_side)
    member = room.person("sender", member_side)
    member("send", "text", "last words")
    member("items")  # who only sends keeps no history
    closed = room.owner("session", "close", "--json").document
    assert closed == {"closed": room.session_id}
    assert member("session", "info", "--json").document["closed"]
    assert "last words" in member("items").out
    for words in (("send", "text", "x"), ("session", "audit")):
        assert member(*words, code=1).err
    assert room.person("observer", member_side)("items", code=1).err  # nothing to join


@pytest.mark.parametrize("owner_side", EITHER)
class TestAudit:
    def test_both_read_the_same_trail(self, room_by: RoomMaker, owner_side: Side) -> None:
        room = room_by(owner_side)
        observers = [room.person("observer", side, side) for side in EITHER]
        for observer in observers:
            observer("items")
        room.owner("send", "text", "for the record")
        for observer in observers:
            observer("items")
        room.owner("session", "revoke", "sender")
        trails = [who("session", "audit").out for who in (room.owner, *observers)]
        assert trails[0] == trails[1] == trails[2]
        records = [json.loads(line) for line in trails[0].splitlines()]
        assert [r["event"] for r in records[:3]] == ["created", "joined", "joined"]
        assert {"created", "joined", "item", "ack", "revoked"} <= {r["event"] for r in records}
        assert all(isinstance(r["at_ms"], int) for r in records)

    def test_it_goes_to_a_new_file(self, room_by: RoomMaker, owner_side: Side) -> None:
        room = room_by(owner_side)
        room.owner("session", "audit", "--out", "trail.jsonl")
        records = (room.folder / "trail.jsonl").read_text().splitlines()
        assert json.loads(records[0])["event"] == "created"
        assert room.owner("session", "audit", "--out", "trail.jsonl", code=1).err


@pytest.mark.parametrize("side", EITHER)
def test_its_time_ends_a_session(room_by: RoomMaker, side: Side) -> None:
    other = Side.OURS if side is Side.THEIRS else Side.THEIRS
    room = room_by(side, "--ttl", "3s")
    member: Cli = room.person("sender", other)
    member("send", "text", "short")
    with member.started("watch", "--json") as watching:
        assert watching.wait(60) == 0
    until(lambda: member("send", "text", "x", code=None).code == 1, "the end")
