"""Targets: files that are read again after a crash, and lines that the system or our own helpers
write. Nobody hostile writes them, but a disk may tear them and another version may have."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from airlox.client.cache import Identity, SessionCache
from airlox.client.machines import Machine, Machines
from airlox.protocol.encoding import SessionId
from airlox.protocol.view import Event
from airlox.relay import records
from airlox.relay.config import Config
from airlox.relay.service import Core
from airlox.relay.store.base import RELAY_LOG
from airlox.relay.store.framing import (
    REWRITE,
    Append,
    decode_purge,
    encode_purge,
    frame,
    read_frames,
)
from airlox.relay.store.layout import Layout
from airlox.relay.store.memory import MemoryStore
from airlox.relay.store.places import Places
from airlox.relay.store.recovery import replay
from airlox.relay.store.session_log import SessionLogs
from airlox.runner.done import DoneJobs
from airlox.sandbox import proctable
from airlox.sandbox.linux import bwrap, hierarchies, launched
from airlox.sandbox.sweep import JobRecord, encode_record, parse_record
from support.clock import Clock
from support.world import NOW_MS

from .requests import history
from .session import JOB, unlogged, world

_SID: Final = SessionId("ax_" + "a" * 26)


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder in memory where the machine has such a place: each input writes files."""
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    path = Path(tempfile.mkdtemp(prefix="airlox-fuzz-", dir=place))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# ── the relay's store ────────────────────────────────────────────────────────────────────────


def read_journal(data: bytes) -> None:
    """A segment of the journal after a crash: what is sound goes into the logs again.

    The input is one record without its frame, or several frames.
    """
    framed = list(read_frames(data))
    if framed:
        assert b"".join(frame(body) for _, body in framed) == data[: framed[-1][0]]
    else:
        data = frame(data)
    with unlogged(), _folder() as root:
        layout = Layout(root / "store")
        layout.open()
        try:
            (layout.journal / f"{1:016d}.journal").write_bytes(data)
            logs, places = SessionLogs(layout), Places()
            for segment in replay(layout.journal, logs, places):
                os.close(segment.fd)
            for sid in logs.ids():
                assert len(logs.read(sid)) <= len(data)
            assert {path.name for path in layout.sessions.iterdir()} <= set(logs.ids())
        finally:
            layout.close()


def read_record(data: bytes) -> None:
    """One record of the journal encodes to the bytes it was read from."""
    if data[:1] == b"P":
        assert encode_purge(decode_purge(data)) == data
        return
    record = Append.decode(data)
    assert data[:1] + record.encode()[1:] == data


def record_seeds() -> list[bytes]:
    append = Append(_SID, 3, [b"entry", b""], "blob", b"bytes").encode()
    return [
        append,
        REWRITE + append[1:],
        Append(RELAY_LOG, 0, [b"x"]).encode(),
        encode_purge(_SID),
        b"Z" + append[1:],
    ]


def journal_seeds() -> list[bytes]:
    bodies = record_seeds()[:4]
    return [*bodies, b"".join(map(frame, bodies)), b"".join(map(frame, bodies))[:-3]]


def read_log(data: bytes) -> None:
    """A session's log, as a start reads it: the session is there, or left alone with a word.

    The input is framed entries; without any, it is one entry after those of a real session.
    """
    entries = [body for _, body in read_frames(data)] or [*history().entries, data]
    with unlogged():
        asyncio.run(_load(entries))


async def _load(entries: list[bytes]) -> None:
    store = MemoryStore()
    sid = world(full=True).keys.session_id
    await store.append(sid, entries)
    core = Core(Config(), store, Clock(NOW_MS))
    await core.load()
    for session in core.sessions.values():
        assert session.id == sid


def log_seeds() -> list[bytes]:
    entries = history().entries
    more: list[records.AnyRecord] = [
        records.Left(NOW_MS, "x"),
        records.Gaps(NOW_MS, ((3, 5),)),
        records.Forgot(NOW_MS, (JOB.id,), (JOB.id,)),
        records.Ended(NOW_MS, "s", 5),
    ]
    return [b"".join(map(frame, entries)), *entries, *map(records.encode, more)]


# ── what participants keep ───────────────────────────────────────────────────────────────────


def read_cache(data: bytes) -> None:
    """Every file of a participant's cache, with the same bytes."""
    with _folder() as root:
        cache_ = SessionCache(root, _SID)
        cache_.make()
        machines = Machines(root)
        (root / "machines").mkdir(mode=0o700, exist_ok=True)
        names = ("manifest.json", "identity-owner.json", "events.jsonl", "state/past.jsonl")
        paths = [Path(cache_.folder, name) for name in names] + [root / "machines" / "box.json"]
        paths[3].parent.mkdir(mode=0o700, exist_ok=True)
        for path in paths:
            path.write_bytes(data)
            path.chmod(0o600)
        cache_.load_manifest()
        cache_.load_identity("owner")
        _read_events(cache_)
        assert {machine.name for machine in machines.all()} <= {"box"}
        DoneJobs(str(paths[2]), bounded=True)


def _read_events(cache_: SessionCache) -> None:
    found = cache_.load_events()
    assert [event.seq for event in found] == sorted({event.seq for event in found})
    following = Event(found[-1].seq + 1 if found else 0, "item", {})
    cache_.append_events([following])
    assert cache_.load_events() == [*found, following]
    cache_.forget_events([(0, following.seq)], keep=())
    assert all(event.kind == "gap" for event in cache_.load_events())
    cache_.load_past()


def cache_seeds() -> list[bytes]:
    with _folder() as root:
        cache_, machines = SessionCache(root, _SID), Machines(root)
        cache_.make()
        cache_.save_identity("owner", Identity(bytes(32), "token", "https://relay.example"))
        cache_.append_events([Event(n, "item", {"envelope": "{}"}) for n in range(3)])
        machines.add(Machine("box", _SID, "https://relay.example", "owner", "sender", NOW_MS))
        paths = [Path(cache_.folder, name) for name in ("identity-owner.json", "events.jsonl")]
        found = [path.read_bytes() for path in (*paths, root / "machines" / "box.json")]
    gap = b'{"seq":9,"kind":"gap","data":{"first":3}}\n'
    return [*found, found[1] + gap, world(full=True).document.encode(), b"-  5\nabc 7\n"]


# ── lines of the system and of our helpers ───────────────────────────────────────────────────


def read_lines(data: bytes) -> None:
    """Each line as whatever it may be. A malformed one is a ValueError where that is promised."""
    text = data.decode("utf-8", "replace")
    for line in text.split("\n"):
        with suppress(ValueError):
            launched.parse_line(line)
        with suppress(ValueError):
            proctable.parse_stat(line.encode())
    proctable.parse_ps(text)
    assert proctable.parse_rollup(data) >= 0
    bwrap.parse_child(data)
    hierarchies.parse_mountinfo(text)
    hierarchies.parse_membership(text)
    assert parse_record(encode_record(record := parse_record(data))) == record


def line_seeds() -> list[bytes]:
    return [
        b'pid 7\nready\nexit 0 9\nerror mount 2 no\n{\n    "child-pid": 7\n}\n',
        b"1 (a) b) S 1 " + b" ".join(b"%d" % n for n in range(20)),
        b"1 0 " + b"7" * 5000 + b" S\n",
        b"Pss: " + b"7" * 5000 + b' kB\n"child-pid": ' + b"7" * 5000,
        b"Pss:  12 kB\nSwapPss: 3 kB\n",
        b"1 0 100 S\n2 1 5 Z+\n",
        b"30 23 0:26 / /sys/fs/cgroup\\040x rw shared:4 - cgroup2 cgroup rw\n0::/a\n4:cpu,io:/b\n",
        encode_record(JobRecord(JOB.id, 7, 9, "boot", ("/tmp/x",))),
    ]
