"""Caches taken up by the other software, and blobs that come back to the relay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.archives import Member, build_zip
from support.commands import Cli
from support.mixed import EITHER, Room, RoomMaker, Side, mixes, names_of
from support.relay import until
from support.server import server

MIXES = [pytest.param(*mix, id=names_of(mix)) for mix in mixes(2)]
CHANGES = [(Side.OURS, Side.THEIRS), (Side.THEIRS, Side.OURS)]


def texts(reader: Cli) -> list[str]:
    return [item["text"] for item in reader("items", "--json").lines]


def participants(room: Room) -> int:
    return len(room.owner("session", "info", "--json").document["participants"])


@pytest.mark.parametrize(
    "role", ["sender", *(pytest.param(r, marks=pytest.mark.slow) for r in ("owner", "observer"))]
)
@pytest.mark.parametrize(("first", "second"), CHANGES)
def test_either_goes_on_where_the_other_stopped(
    room_by: RoomMaker, first: Side, second: Side, role: str
) -> None:
    room = room_by(first)
    one, other = (room.person(role, side, role) for side in (first, second))
    one("session", "info")
    room.owner("send", "text", "before")
    assert texts(one) == ["before"]
    people = participants(room)
    assert texts(other) == ["before"]
    assert participants(room) == people
    speakers = (other, one) if role != "observer" else (room.owner,)
    for number, speaker in enumerate(speakers):
        speaker("send", "text", f"after {number}")
    expected = ["before", *(f"after {number}" for number in range(len(speakers)))]
    assert texts(one) == texts(other) == expected
    assert participants(room) == people
    authors = {item["author"] for item in one("items", "--json").lines[1:]}
    assert len(authors) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), CHANGES)
def test_history_outlives_the_session_in_a_cache_of_either(
    room_by: RoomMaker, first: Side, second: Side, tmp_path: Path
) -> None:
    room = room_by(Side.THEIRS)
    reader = room.person("observer", first)
    reader("items")
    archive = build_zip(Member(name="a.txt", content=b"kept"))
    (tmp_path / "a.zip").write_bytes(archive)
    room.owner("send", "text", "kept")
    room.owner("send", "file", "a.zip")
    reader("items")
    room.owner("session", "close")
    again = room.person("observer", second)
    text, file = again("items", "--json", "--save", "saved").lines
    assert text["text"] == "kept"
    assert (tmp_path / file["saved"]).read_bytes() == archive
    assert again("session", "info", "--json").document["closed"]
    assert again("send", "text", "x", code=1).err


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), MIXES)
def test_an_identity_goes_to_no_other_relay(
    room_by: RoomMaker, first: Side, second: Side, tmp_path: Path
) -> None:
    room = room_by(first)
    room.person("sender", first)("items")
    with server("--ephemeral") as stranger:
        link = room.links["sender"].replace(room.relay, stranger.url)
        assert room.person("sender", second).holding(link)("items", code=1).err


@pytest.mark.slow
class TestEvictedBlobs:
    """Whoever holds a blob that left the relay gives it to whoever asks."""

    @pytest.mark.parametrize(("holder_side", "newcomer_side"), MIXES)
    def test_a_newcomer_gets_what_had_left(
        self, room_by: RoomMaker, holder_side: Side, newcomer_side: Side, tmp_path: Path
    ) -> None:
        room = room_by(Side.THEIRS)
        holder = room.person("sender", holder_side)
        with holder.started("watch", "--json") as watching:
            assert watching.stdout is not None
            until(lambda: participants(room) == 2, "the holder joined")
            (tmp_path / "a.md").write_text("# once here")
            room.owner("send", "file", "a.md")
            assert json.loads(watching.stdout.readline())["name"] == "a.md"
            newcomer = room.person("observer", newcomer_side)
            (missing,) = newcomer("items", "--json").lines
            assert missing["status"] != "ok"

            def has_come_back() -> bool:
                (item,) = newcomer("items", "--json", "--save", "saved").lines
                return bool(item["status"] == "ok")

            until(has_come_back, "the blob")
        assert (tmp_path / "saved/a.md").exists() or list((tmp_path / "saved").iterdir())

    @pytest.mark.parametrize("watcher_side", EITHER)
    def test_one_that_watches_shows_it_when_it_comes(
        self, room_by: RoomMaker, watcher_side: Side
    ) -> None:
        room = room_by(Side.THEIRS)
        other = Side.OURS if watcher_side is Side.THEIRS else Side.THEIRS
        with room.person("sender", other).started("watch", "--json") as holding:
            assert holding.stdout is not None
            until(lambda: participants(room) == 2, "the holder joined")
            room.owner("send", "text", "once here")
            assert json.loads(holding.stdout.readline())["text"] == "once here"
            with room.person("observer", watcher_side).started("watch", "--json") as watching:
                assert watching.stdout is not None
                for line in watching.stdout:
                    item = json.loads(line)
                    if item["status"] == "ok":
                        break
                assert item["text"] == "once here"
