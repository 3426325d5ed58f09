"""Texts and files between people of either software."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from airlox import Session
from support import old
from support.archives import Member, build_zip
from support.commands import Cli
from support.images import chunk_names
from support.mixed import EITHER, RoomMaker, Side, mixes, names_of

ALLOWED_CHUNKS = {
    "image/png": {"IHDR", "IDAT", "IEND"},
    "image/jpeg": {"SOI", "JFIF", "SOF", "DHT", "SOS", "DQT", "EOI"},
    "image/webp": {"VP8", "VP8L", "VP8X"},
}
TEXT = "Grüße — *Markdown*, 日本語, \\u202e is not sent raw\n\ttwo lines"
QUICK = [(Side.OURS, Side.THEIRS, Side.OURS), (Side.THEIRS, Side.OURS, Side.THEIRS)]
MIXES = [
    pytest.param(*mix, id=names_of(mix), marks=[] if mix in QUICK else [pytest.mark.slow])
    for mix in mixes(3)
]
"""Owner, sender, observer."""


def image(kind: str) -> bytes:
    """A small picture with metadata that must not travel."""
    out = io.BytesIO()
    picture = Image.new("RGB", (5, 3), (200, 30, 60))
    exif = picture.getexif()
    exif[0x010E] = "where it was taken"
    picture.save(out, kind, exif=exif)
    return out.getvalue()


def write_files(folder: Path) -> dict[str, bytes]:
    """One file of each type, by name, and what it holds."""
    files = {
        "tool.py": "# ünï\nprint(1)\n".encode(),
        "notes.md": b"# Notes\n",
        "data.zip": build_zip(Member(name="a/b.txt", content=b"packed")),
        "dot.png": image("PNG"),
        "photo.jpg": image("JPEG"),
        "small.webp": image("WEBP"),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return files


def read_all(reader: Cli, folder: str) -> list[dict[str, Any]]:
    found = reader("items", "--json", "--save", folder).lines
    assert all(item["status"] == "ok" for item in found), found
    return found


def gist(item: dict[str, Any]) -> tuple[Any, ...]:
    return (
        *(item["id"], item["kind"], item["subkind"], item["author"], item["author_name"]),
        *(item["author_role"], item.get("text"), item.get("name"), item.get("mime")),
        *(item.get("content"), item.get("size"), item["ref"]["blob_sha256"], item["seq"]),
    )


@pytest.mark.parametrize(("owner_side", "sender_side", "observer_side"), MIXES)
def test_every_type_reaches_everybody(
    room_by: RoomMaker, owner_side: Side, sender_side: Side, observer_side: Side, tmp_path: Path
) -> None:
    room = room_by(owner_side)
    sender, observer = room.person("sender", sender_side), room.person("observer", observer_side)
    observer("items")  # blobs are kept for those who have joined
    files = write_files(tmp_path)
    text_ref = sender("send", "text", TEXT, "--json", "--as", "ann").document["sent"]
    file_refs = sender("send", "file", *files, "--json").document["sent"]
    room.owner("send", "text", "-", "--json", stdin="from the owner")
    readers = {"owner": room.owner, "sender": sender, "observer": observer}
    seen = {who: read_all(cli, f"saved-{who}") for who, cli in readers.items()}
    mine = seen["sender"]
    assert [item["ref"] for item in mine[:7]] == [text_ref, *(f["ref"] for f in file_refs)]
    assert (mine[0]["text"], mine[0]["author_name"]) == (TEXT, "ann")
    assert (mine[7]["text"], mine[7]["author_role"]) == ("from the owner", "owner")
    for items in seen.values():
        assert [gist(item) for item in items] == [gist(item) for item in mine]
        for item in items[1:7]:
            saved = (tmp_path / item["saved"]).read_bytes()
            if item["subkind"] == "image":
                assert chunk_names(item["mime"], saved) <= ALLOWED_CHUNKS[item["mime"]]
                with Image.open(io.BytesIO(saved)) as picture:
                    assert picture.size == (5, 3)
            else:
                assert saved == files[item["name"]]
    infos = [cli("session", "info", "--json").document for cli in readers.values()]
    assert not any(info.get("alarms") for info in infos)
    people = [
        sorted((p["display_name"], p["role"], p["left"]) for p in info["participants"])
        for info in infos
    ]
    assert people == 3 * [
        [("ann", "sender", False), ("cli", "observer", False), ("owner", "owner", False)]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("by", EITHER)
def test_our_json_has_every_key_of_theirs(room_by: RoomMaker, by: Side, tmp_path: Path) -> None:
    room = room_by(by)
    ours, theirs = (room.person("observer", side, side) for side in (Side.OURS, Side.THEIRS))
    for reader in (ours, theirs):
        reader("items")  # joins: blobs are kept for those who have
    room.owner("send", "file", *write_files(tmp_path))
    room.owner("send", "text", "x")
    for words in (("items", "--save", "saved"), ("session", "info")):
        left, right = (cli(*words, "--json").out for cli in (theirs, ours))
        assert keys(left) <= keys(right), words


def keys(output: str) -> set[str]:
    """Every path of keys in JSON or JSON lines, and what kind of value is there."""
    try:
        documents = [json.loads(output)]
    except ValueError:
        documents = [json.loads(line) for line in output.splitlines()]
    return {path for document in documents for path in paths(document, "")}


def paths(value: Any, at: str) -> set[str]:
    if isinstance(value, dict):
        return {at, *(p for name, v in value.items() for p in paths(v, f"{at}.{name}"))}
    if isinstance(value, list):
        return {at, *(p for v in value for p in paths(v, f"{at}[]"))}
    return {f"{at} {type(value).__name__}"}


@pytest.mark.parametrize(
    ("watcher_side", "sender_side"),
    [(Side.THEIRS, Side.OURS), (Side.OURS, Side.THEIRS)],
)
def test_what_is_sent_is_watched_as_it_comes(
    room_by: RoomMaker, watcher_side: Side, sender_side: Side
) -> None:
    room = room_by(Side.OURS)
    sender = room.person("sender", sender_side)
    sender("send", "text", "before")
    watcher = room.person("observer", watcher_side)
    with watcher.started("watch", "--json") as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["text"] == "before"
        sender("send", "text", "while it watches")
        assert json.loads(watching.stdout.readline())["text"] == "while it watches"
        room.owner("session", "close")
        assert watching.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("side", EITHER)
class TestWhatIsNotAllowed:
    """Refused with a word of why, and nothing is left behind."""

    def refused(self, person: Cli, *words: str) -> str:
        done = person(*words, code=1)
        assert done.err.strip()
        return done.err

    def test_an_observer_posts_nothing(self, room_by: RoomMaker, side: Side) -> None:
        room = room_by(Side.OURS)
        self.refused(room.person("observer", side), "send", "text", "x")
        assert room.owner("items", "--json").lines == []

    def test_a_type_that_the_session_does_not_have(
        self, room_by: RoomMaker, side: Side, tmp_path: Path
    ) -> None:
        room = room_by(Side.THEIRS, "--types", "text,md")
        write_files(tmp_path)
        sender = room.person("sender", side)
        assert "image" in self.refused(sender, "send", "file", "dot.png")
        sender("send", "file", "notes.md")
        assert [i["name"] for i in room.owner("items", "--json").lines] == ["notes.md"]

    def test_an_item_larger_than_the_session_s(
        self, room_by: RoomMaker, side: Side, tmp_path: Path
    ) -> None:
        room = room_by(Side.THEIRS, "--max-item-mb", "1")
        (tmp_path / "big.md").write_bytes(b"x" * (1 << 20))
        self.refused(room.person("sender", side), "send", "file", "big.md")
        assert room.owner("items", "--json").lines == []

    def test_what_the_owner_alone_may_do(self, room_by: RoomMaker, side: Side) -> None:
        room = room_by(Side.OURS)
        sender = room.person("sender", side)
        for words in (("close",), ("revoke", "observer"), ("audit",), ("invites",)):
            self.refused(sender, "session", *words)
        assert room.owner("session", "info", "--json").document["closed"] is None

    def test_a_link_of_another_key(self, room_by: RoomMaker, side: Side) -> None:
        room, other = room_by(Side.OURS), room_by(Side.OURS)
        head = room.links["sender"].partition("#")[0]
        mixed = f"{head}#{other.links['sender'].partition('#')[2]}"
        self.refused(room.person("observer", side).holding(mixed), "items")


class TestSdk:
    def test_their_owner_and_our_people(self, relay: str, tmp_path: Path) -> None:
        made = old.sdk(
            """
with Session.create(given["relay"], cache_dir=given["cache"], display_name="old") as s:
    ref = s.send_text("hello")
    answer = {"invites": s.invites, "ref": ref}
""",
            relay=relay,
            cache=tmp_path / "theirs",
        )
        with Session.join(
            made["invites"]["sender"], display_name="new", cache_dir=tmp_path / "ours"
        ) as ours:
            (hello,) = ours.items()
            assert (hello.text, hello.author_name) == ("hello", "old")
            said = ours.send_text("to you", refs=[made["ref"]])
            ours.send_file(b"print(2)", name="a.py", refs=[hello])
        seen = old.sdk(
            """
with Session.join(given["link"], cache_dir=given["cache"]) as s:
    answer = [[i.text or i.body.decode(), i.author_name, [r["id"] for r in i.refs], i.status]
              for i in s.items()]
""",
            link=made["invites"]["owner"],
            cache=tmp_path / "theirs",
        )
        to_hello = [made["ref"]["id"]]
        assert seen == [
            ["hello", "old", [], "ok"],
            ["to you", "new", to_hello, "ok"],
            ["print(2)", "new", [*to_hello, said.id], "ok"],  # the last links to what we said
        ]

    def test_they_chain_nothing_and_may_refer_to_what_they_like(
        self, relay: str, tmp_path: Path
    ) -> None:
        """P-CHN-2"""
        with Session.create(relay, cache_dir=tmp_path / "ours") as ours:
            first = ours.send_text("first")
            old.sdk(
                """
with Session.join(given["link"], cache_dir=given["cache"]) as s:
    own = s.send_text("own")
    s.send_text("to own", refs=[own])
    s.send_text("elsewhere", refs=[own, {**own, "id": "A" * 22}])
    s.send_text("after that", refs=[{**own, "id": "B" * 21 + "A"}])
    answer = None
""",
                link=ours.invites["sender"],
                cache=tmp_path / "theirs",
            )
            ours.send_text("last", refs=[first])
            assert len(ours.items()) == 6
            assert ours.alarms() == []

    def test_our_owner_and_their_people(self, relay: str, tmp_path: Path) -> None:
        with Session.create(relay, cache_dir=tmp_path / "ours") as ours:
            ref = ours.send_text("hello")
            seen = old.sdk(
                """
with Session.join(given["link"], cache_dir=given["cache"], description="an agent") as s:
    (hello,) = s.items()
    s.send_text("back", refs=[hello.ref])
    heard = [i.text for i in s.stream(timeout=4)]
    s.leave(delete_cache=True)
    answer = [hello.text, hello.author_role, hello.ref, s.closed, heard]
""",
                link=ours.invites["sender"],
                cache=tmp_path / "theirs",
            )
            plain = {"id": ref.id, "blob_sha256": ref.blob_sha256}
            assert seen == ["hello", "owner", plain, "left", ["back"]]
            back = ours.items()[-1]
            assert (back.text, list(back.envelope.header.refs), back.author.role) == (
                "back",
                [ref],
                "sender",
            )
            they = ours.participants()[-1]
            assert (they.description, they.left, they.kind) == ("an agent", True, "sdk")
