"""Participants of a valid role who mean ill: what they write does nothing to a terminal, a folder
or the time of those who read it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox import AirloxError, Session, UsageError
from airlox.protocol import canonical, wire
from airlox.protocol.addressing import encode_recipients
from airlox.protocol.digest import NOTHING_HEX, sha256_hex
from airlox.protocol.encoding import new_item_id
from airlox.protocol.item import Kind, SealedItem, seal_item
from airlox.protocol.job import (
    AnyRunner,
    Cause,
    CauseKind,
    Env,
    LeftOut,
    LiveTotals,
    Result,
    ShellJob,
    Status,
)
from airlox.protocol.keys import Role
from airlox.protocol.payload import File, Text
from hostile.conftest import SOURCE, Measured, measure
from support.archives import Member as ZipMember
from support.archives import build_zip
from support.crew import ANY, Crew
from support.images import png_chunk
from support.lying import ACK, BLOB, EVENTS, Call, LyingRelay, say
from support.relay import Member, RelayThread, join, now_ms
from support.world import job_limits

ACTING = (
    "\x1b[2J\x1b[31mred\x1b]0;title\x07\x1b]52;c;cHduZWQ=\x07\x9b2J\x90q\x9c\b\b\b\r"
    "\u202egnp.exe\u2066\u200b\ufeff\x7f\x00"
)
"""Clears the screen, sets colour, title and clipboard, goes back, reverses, hides."""
POSING = "hello\n2026-01-01 00:00:00  owner (owner)  text  [AAAAAAAAAAAAAAAAAAAAAA]\n── completed"


class Town:
    """A session with a villain in each role, and an observer who looks by the command line."""

    def __init__(self, relay: RelayThread, folder: Path, *, full: bool = True) -> None:
        self.crew = Crew(relay, full=full, limits=job_limits(full, approve_runners=False))
        self.url = relay.url
        self.folder = folder
        self.villain = self.crew.sender
        self.runner = self.crew.runner()

    def session(self, role: Role = Role.OBSERVER) -> Session:
        link = self.crew.world.invite(self.url, role).url()
        return Session.join(link, display_name="victim", cache_dir=self.folder / "victim")

    def cli(self, *words: str, role: Role = Role.OBSERVER) -> Measured:
        link = self.crew.world.invite(self.url, role).url()
        cache = str(self.folder / "victim")
        given = {"AIRLOX_CACHE_DIR": cache, "AIRLOX_INVITE": link}
        return measure(self.folder, "airlox.cli", *words, **given)

    def on_a_terminal(self, *words: str) -> str:
        """What a terminal gets of a command that writes to it."""
        link = self.crew.world.invite(self.url, Role.OBSERVER).url()
        given = {"AIRLOX_CACHE_DIR": str(self.folder / "victim"), "AIRLOX_INVITE": link}
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "rb", buffering=0) as screen:
            process = subprocess.Popen(
                [sys.executable, "-m", "airlox.cli", *words],
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                env={**os.environ, "PYTHONPATH": str(SOURCE / "src"), **given},
            )
            os.close(theirs)
            shown = b""
            with contextlib.suppress(OSError):  # the end of a terminal is an error
                while data := screen.read(65536):
                    shown += data
            process.wait(60)
        return shown.decode()

    def send_file(self, name: str, body: bytes, subkind: str, mime: str) -> SealedItem:
        meta = File(mime=mime, name=name)
        item = self.villain.person.post(meta, body=body, subkind=subkind, at_ms=now_ms())
        assert self.villain.send(item).status == 201
        return item

    def post(self, text: Text) -> None:
        item = self.villain.person.post(text, at_ms=now_ms())
        assert self.villain.send(item).status == 201

    def job(self, script: str) -> SealedItem:
        meta = ShellJob(
            files=(), kind="shell", memory_mb=None, target=AnyRunner(), timeout_s=10, script=script
        )
        item = self.villain.person.post(meta, subkind="sh", at_ms=now_ms())
        assert self.crew.submit(item, ANY).status in (200, 201)
        assert self.crew.claim(self.runner, item).status == 200
        return item

    def answer(self, job: SealedItem, script: str, **changes: Any) -> SealedItem:
        values: dict[str, Any] = {
            "cause": Cause(kind=CauseKind.EXIT),
            "code_sha256": sha256_hex(script.encode()),
            "env": Env(airlox="0", layers={}, network="off", platform="test", sandbox="local"),
            "exit_code": 0,
            "input_sha256": NOTHING_HEX,
            "job": job.ref,
            "live": LiveTotals(
                dropped_bytes=0, head=None, segments=0, stderr_bytes=0, stdout_bytes=0
            ),
            "out_files": (),
            "peak_mem_mb": 1,
            "reason": None,
            "status": Status.COMPLETED,
            "stderr": "",
            "stderr_truncated": False,
            "stdout": "",
            "stdout_truncated": False,
            "wall_ms": 1,
        }
        result = Result(**(values | changes))
        item = self.runner.person.post(result, refs=[job.ref], at_ms=now_ms())
        assert self.runner.send(item).status == 201
        return item


@pytest.fixture
def town(relay: RelayThread, tmp_path: Path) -> Town:
    return Town(relay, tmp_path)


def harmless(text: str) -> bool:
    """Nothing in it that a terminal acts on, but for line feeds."""
    return all(c.isprintable() or c == "\n" for c in text)


class TestWhatIsShown:
    @pytest.fixture
    def town(self, relay: RelayThread, tmp_path: Path) -> Town:
        town = Town(relay, tmp_path)
        town.villain.say(ACTING)
        town.villain.say(POSING)
        address = encode_recipients([town.runner.public, town.villain.public, "role:observer"])
        town.post(Text(text=ACTING + POSING, to=address, reply_to="A" * 22))
        town.send_file("a.md", ACTING.replace("\0", "").encode(), "md", "text/markdown")
        script = f"echo '{ACTING}'".replace("\0", "")
        job = town.job(script)
        left_out = (LeftOut(path=POSING, reason=ACTING),)
        town.answer(
            job,
            script,
            stdout=ACTING + POSING,
            reason=ACTING + POSING,
            left_out=left_out,
        )
        self.job_id = job.ref.id
        return town

    @pytest.mark.parametrize(
        "words",
        [
            ("items",),
            ("items", "--json"),
            ("items", "--for-me"),
            ("watch", "--timeout", "1"),
            ("job", "ls"),
            ("runner", "list"),
            ("session", "info"),
            ("session", "audit"),
        ],
        ids=" ".join,
    )
    def test_nothing_acts(self, town: Town, words: tuple[str, ...]) -> None:
        told = town.cli(*words)
        assert told.code == 0, told
        assert harmless(told.out)
        assert harmless(told.err)

    def test_no_text_poses_as_an_item(self, town: Town) -> None:
        lines = town.cli("items").out.splitlines()
        heads = [line for line in lines if not line.startswith("    ")]
        assert len(heads) == town.crew.owner.get(wire.events(town.crew.sid)).body.count(
            b'"kind":"item"'
        )

    def test_no_result_poses_as_the_last_line(self, town: Town) -> None:
        told = town.cli("result", "--", self.job_id)
        assert told.code == 0, told
        assert harmless(told.err)
        assert sum(line.startswith("──") for line in told.err.splitlines()) == 1

    @pytest.mark.parametrize("words", [("result",), ("logs",), ("logs", "-f", "--from", "0")])
    def test_output_on_a_terminal(self, town: Town, words: tuple[str, ...]) -> None:
        """Of what a terminal acts on, colours and the like of the current line are left."""
        shown = town.on_a_terminal(*words, "--", self.job_id)
        assert "completed" in shown
        left = re.sub(r"\x1b\[[0-9;:]*[mK]", "", shown)
        assert all(c.isprintable() or c in "\r\n\b" for c in left)

    @pytest.mark.parametrize("words", [("result", "--json"), ("logs", "--json")])
    def test_output_in_json(self, town: Town, words: tuple[str, ...]) -> None:
        """It is all there but for what was written over, and nothing of it acts."""
        told = town.cli(*words, "--", self.job_id)
        assert harmless(told.out + told.err)
        assert ACTING.rpartition("\r")[2].encode("unicode_escape").decode("ascii")[:6] in told.out


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "a bomb": lambda: build_zip(ZipMember(name="a", content=bytes(600_000_000 // 8))),
    "a false size": lambda: build_zip(ZipMember(name="a", content=bytes(1000), size=10**9)),
    "a way out": lambda: build_zip(ZipMember(name="../../a")),
    "a link": lambda: build_zip(ZipMember(name="a", mode=0o120777, content=b"/etc")),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", ARCHIVES.values(), ids=ARCHIVES)
def test_archives_that_are_received(town: Town, make: Callable[[], bytes]) -> None:
    """[P-PAY-1] They are refused before anything is unpacked, and the rest is read."""
    town.send_file("a.zip", make(), "zip", "application/zip")
    town.villain.say("after")
    told = town.cli("items", "--json", "--save", str(town.folder / "in"))
    assert told.code == 0, told
    assert told.peak_mb < 150
    items = [json.loads(line) for line in told.out.splitlines()]
    assert [item["status"] for item in items if item["kind"] == "file"] == ["rejected"]
    assert items[-1]["text"] == "after"
    assert list((town.folder / "in").iterdir()) == []


@pytest.mark.slow
def test_an_image_that_unpacks_to_far_more(town: Town) -> None:
    """Whoever receives one does not unpack it."""
    head = struct.pack(">2L5B", 60_000, 60_000, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(100 << 20), 9)
    parts = ((b"IHDR", head), (b"IDAT", pixels), (b"IEND", b""))
    image = b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(kind, body) for kind, body in parts)
    town.send_file("a.png", image, "image", "image/png")
    town.villain.say("after")
    told = town.cli("items", "--json", "--save", str(town.folder / "in"))
    assert told.code == 0, told
    assert told.peak_mb < 150
    assert json.loads(told.out.splitlines()[-1])["text"] == "after"


def test_files_that_are_saved_overwrite_nothing(town: Town) -> None:
    inbox = town.folder / "in"
    inbox.mkdir()
    outside = town.folder / "outside.md"
    outside.write_text("mine")
    (inbox / "a.md").write_text("mine")
    (inbox / "b.md").symlink_to(outside)
    (inbox / "c.md").mkdir()
    for name in ("a.md", "b.md", "c.md", "a.md", "A.md"):
        town.send_file(name, b"theirs " + name.encode(), "md", "text/markdown")
    told = town.cli("items", "--save", str(inbox))
    assert told.code == 0, told
    assert outside.read_text() == (inbox / "a.md").read_text() == "mine"
    assert (inbox / "c.md").is_dir()
    saved = sorted(p.name for p in inbox.iterdir() if p.is_file() and "theirs" in p.read_text())
    assert saved == ["A.md", "a-1.md", "b-1.md", "c-1.md"]  # the same file twice is one
    # and once more saves nothing anew
    before = sorted(inbox.iterdir())
    town.cli("items", "--save", str(inbox))
    assert sorted(inbox.iterdir()) == before


@pytest.mark.parametrize("name", ["../a.md", "/etc/a.md", ".a.md", "con.md", "a\x1b.md", "a\n.md"])
def test_file_names_that_are_none(town: Town, name: str) -> None:
    meta = canonical.encode({"mime": "text/markdown", "name": name, "type": "file"})
    payload = len(meta).to_bytes(4, "big") + meta + b"x"
    item = forge(town.villain, payload)
    assert town.villain.send(item).status == 201  # it is sealed: the relay cannot know
    told = town.cli("items", "--json", "--save", str(town.folder / "in"))
    assert told.code == 0, told
    [shape] = [json.loads(line) for line in told.out.splitlines()][-1:]
    assert shape["status"] == "rejected"
    assert list((town.folder / "in").iterdir()) == []
    assert harmless(town.cli("items").out)


def forge(member: Member, payload: bytes) -> SealedItem:
    """A Markdown file with any payload."""
    world = member.person.world
    return seal_item(
        member.person.key,
        world.keys.session_key,
        session_id=world.keys.session_id,
        item_id=new_item_id(os.urandom(16)),
        kind=Kind.FILE,
        subkind="md",
        created_at_ms=now_ms(),
        payload=payload,
        nonce=os.urandom(12),
        refs=(),
    )


ADDRESSES: dict[str, dict[str, Any]] = {
    "no role": {"to": ["role:admin"]},
    "a name": {"to": ["victim"]},
    "escapes": {"to": [ACTING]},
    "nobody": {"to": []},
    "no list": {"to": "role:observer"},
    "out of order": {"to": ["role:sender", "role:observer"]},
    "an item that is none": {"reply_to": ACTING},
}


def test_addresses_that_are_none(town: Town) -> None:
    """[P-ADR-1] Each is refused by itself, and what comes after is read."""
    for fields in ADDRESSES.values():
        plain = {"mime": "text/markdown", "name": "a.md", "type": "file"}
        meta = canonical.encode(plain | fields)
        item = forge(town.villain, len(meta).to_bytes(4, "big") + meta + b"x")
        assert town.villain.send(item).status == 201
    town.post(Text(text="after", to=("role:observer",)))
    told = town.cli("items", "--json")
    assert told.code == 0, told
    *refused, last = [json.loads(line) for line in told.out.splitlines()][-len(ADDRESSES) - 1 :]
    assert [item["status"] for item in refused] == ["rejected"] * len(ADDRESSES)
    assert (last["text"], last["for_me"]) == ("after", ["role"])
    assert harmless(told.out + told.err + town.cli("items").out)


class TestNames:
    @pytest.fixture
    def sender(self, town: Town) -> Iterator[Session]:
        with town.session(Role.SENDER) as session:
            yield session

    def test_two_runners_of_one_name(self, town: Town, sender: Session) -> None:
        second = town.crew.runner("box")
        with pytest.raises(UsageError, match="2 runners are called 'box'") as caught:
            sender.run_shell("true", runner="box")
        told = str(caught.value.hint)
        keys = {runner.fingerprint for runner in sender.runners()}
        assert len(keys) == 2
        assert all(key in told for key in keys)
        done = town.cli("run", "--runner", "box", "--", "true", role=Role.SENDER)
        assert done.code == 1
        assert all(key in done.err for key in keys)
        assert sender.run_shell("true", runner=second.public).runner == second.public

    def test_a_name_that_is_another_s_key(self, town: Town, sender: Session) -> None:
        """A key means the runner it belongs to, also while that one is away."""
        [honest] = sender.runners()
        villain = town.crew.runner(honest.fingerprint)
        assert town.runner.post(wire.leave(town.crew.sid)).status in (200, 204)
        with pytest.raises(AirloxError):
            sender.run_shell("true", runner=honest.fingerprint)
        assert all(job.runner != villain.public for job in sender.jobs())

    def test_people_who_are_called_alike(self, town: Town) -> None:
        """What tells them apart is the key beside the name."""
        for name in ("owner", "owner", "ow\u200cner"):
            join(town.crew.http, town.crew.world.person(Role.SENDER, name))
        told = town.cli("session", "info")
        assert told.code == 0
        rows = [line for line in told.out.splitlines() if "ow" in line and "sender" in line]
        assert len({row.split()[-2] for row in rows}) == len(rows) == 3


def spent() -> float:
    """Seconds that ended programs kept a processor busy."""
    times = os.times()
    return times.children_user + times.children_system


@pytest.mark.slow
def test_two_thousand_participants(tmp_path: Path) -> None:
    """Four times as many take about four times the work, not sixteen."""
    with RelayThread(posts_per_second=0, joins_per_minute=0, max_participants=5_000) as relay:
        town, spent_s = Town(relay, tmp_path), []
        for many in (500, 1_500):
            for number in range(many):
                join(town.crew.http, town.crew.world.person(Role.SENDER, f"p{number}"))
            began_s = spent()
            for words in (("session", "info"), ("items",), ("runner", "list")):
                told = town.cli(*words)
                assert told.code == 0, told
                assert told.peak_mb < 200
            spent_s.append(spent() - began_s)
        assert len(town.cli("session", "info").out.splitlines()) > 2_000
        assert spent_s[1] < 10 * spent_s[0]


@pytest.mark.slow
def test_a_sender_that_floods_jobs(town: Town) -> None:
    """Jobs that no runner takes: lists stay usable, and honest work goes on."""
    for _ in range(300):
        item = town.crew.job()
        assert town.crew.submit(item, ANY).status < 500
    told = town.cli("job", "ls")
    assert told.code == 0, told
    assert len(told.out.splitlines()) >= 300
    assert town.villain.say("still here")


@pytest.mark.slow
def test_results_without_number(relay: RelayThread, tmp_path: Path) -> None:
    """A relay that hands on a thousand results of one job by one runner: each is looked at once."""
    town = Town(relay, tmp_path, full=False)
    job = town.crew.job()
    assert town.crew.submit(job).status in (200, 201)
    results = [town.crew.result(town.runner, job) for _ in range(1_000)]
    blobs = {result.ref.id: result.blob for result in results}

    def add(call: Call) -> None:
        _, body = call.fetch()
        mine = json.loads(body)["events"]
        more = [
            {"seq": len(mine) + i, "kind": "item", "data": {"envelope": result.envelope}}
            for i, result in enumerate(results)
        ]
        call.answer(200, {"events": [*mine, *more]})

    def blob(call: Call) -> None:
        held = blobs.get(call.request.path.split("/")[-2])
        if held is None:
            call.pass_on()
        else:
            call.answer(200, held)

    with LyingRelay(relay.url) as liar:
        liar.lies = {EVENTS: add, BLOB: blob, ACK: say(200, {})}
        town.url = liar.base_url
        told = town.cli("items")
        liar.honest()
    assert told.code == 0, told
    assert told.out.count("NOT VALID for its job") == 1_000
    assert told.peak_mb < 150
