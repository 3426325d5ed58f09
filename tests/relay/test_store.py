"""What every store promises, and what the disk store does about crashes and full disks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import hashlib
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import StorageError
from airlox.protocol.encoding import SessionId
from airlox.relay.config import Config
from airlox.relay.store import checkpoint, journal, layout, places, session_log
from airlox.relay.store import disk as disk_module
from airlox.relay.store.base import Store
from airlox.relay.store.disk import DiskStore
from airlox.relay.store.framing import Append, encode_purge, frame, read_frames
from airlox.relay.store.layout import remove, sync_all
from airlox.relay.store.memory import MemoryStore
from airlox.relay.store.session_log import Flush
from support.small_disk import small_disk

SID = SessionId("ax_" + "a" * 26)
OTHER = SessionId("ax_" + "b" * 26)
BIG = os.urandom(700_000)

Open = Callable[[], Store]


@pytest.fixture(params=["memory", "disk"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "memory":
        return MemoryStore
    return lambda: DiskStore(tmp_path / "data", Config())


@asynccontextmanager
async def running(store: Store) -> AsyncIterator[Store]:
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


async def read_blob(store: Store, sid: SessionId, name: str) -> bytes:
    reader = await store.open_blob(sid, name)
    try:
        parts = []
        while part := await reader.read(100_000):
            parts.append(part)
        assert sum(map(len, parts)) == reader.size
        return b"".join(parts)
    finally:
        reader.close()


async def upload(store: Store, sid: SessionId, name: str, data: bytes) -> None:
    target = store.new_upload()
    try:
        for at in range(0, len(data), 65536):
            await target.write(data[at : at + 65536])
        assert await target.digest() == hashlib.sha256(data).digest()
        await target.keep(sid, name)
    finally:
        await target.drop()


# ── every store ──────────────────────────────────────────────────────────────────────────────


async def test_entries_keep_their_order(open_store: Open) -> None:
    async with running(open_store()) as store:
        futures = [store.append(SID, [b"%d" % n, b"%d!" % n]) for n in range(200)]
        other = store.append(OTHER, [b"x"])
        await asyncio.gather(*futures, other)
        assert await store.read(SID) == [e for n in range(200) for e in (b"%d" % n, b"%d!" % n)]
        assert await store.read(OTHER) == [b"x"]
        assert sorted(store.sessions()) == [SID, OTHER]


async def test_small_blob_comes_with_its_entry(open_store: Open) -> None:
    async with running(open_store()) as store:
        await store.append(SID, [b"e"], ("blob-1", b"bytes"))
        assert await read_blob(store, SID, "blob-1") == b"bytes"


async def test_large_blob_is_uploaded_and_read_in_parts(open_store: Open) -> None:
    async with running(open_store()) as store:
        await store.append(SID, [b"e"])
        await upload(store, SID, "big", BIG)
        assert await read_blob(store, SID, "big") == BIG


async def test_an_open_blob_outlives_its_deletion(open_store: Open) -> None:
    async with running(open_store()) as store:
        await store.append(SID, [b"e"])
        await upload(store, SID, "big", BIG)
        reader = await store.open_blob(SID, "big")
        await store.purge(SID)
        parts = []
        while part := await reader.read(100_000):
            parts.append(part)
        reader.close()
        assert b"".join(parts) == BIG


async def test_names_that_differ_in_case_are_two(open_store: Open) -> None:
    async with running(open_store()) as store:
        await store.append(SID, [b"e"], ("Name", b"1"))
        await store.append(SID, [b"e"], ("name", b"2"))
        assert await read_blob(store, SID, "Name") == b"1"
        assert await read_blob(store, SID, "name") == b"2"


async def test_what_was_never_there_is_not_found(open_store: Open) -> None:
    async with running(open_store()) as store:
        assert await store.read(SID) == []
        with pytest.raises(StorageError) as caught:
            await store.open_blob(SID, "nothing")
        assert caught.value.code == "not_found"
        with pytest.raises(StorageError) as caught:
            await upload(store, SID, "orphan", b"x")
        assert caught.value.code == "not_found"


async def test_purge_leaves_nothing_and_the_id_is_free_again(open_store: Open) -> None:
    async with running(open_store()) as store:
        await store.append(SID, [b"old"], ("blob", b"x"))
        await store.purge(SID)
        assert await store.read(SID) == []
        assert store.sessions() == []
        with pytest.raises(StorageError):
            await store.open_blob(SID, "blob")
        await store.append(SID, [b"new"])
        assert await store.read(SID) == [b"new"]


async def test_retain_deletes_what_is_not_named(open_store: Open) -> None:
    async with running(open_store()) as store:
        await store.append(SID, [b"e"])
        await upload(store, SID, "kept", b"1")
        await upload(store, SID, "stray", b"2")
        await store.retain(SID, {"kept"})
        assert await read_blob(store, SID, "kept") == b"1"
        with pytest.raises(StorageError):
            await store.open_blob(SID, "stray")


async def test_a_blob_that_comes_back_survives_its_late_deletion(open_store: Open) -> None:
    async with running(open_store()) as store:
        await store.append(SID, [b"e"], ("blob", b"1"))
        for _ in range(20):
            store.drop_blob(SID, "blob")
            await store.append(SID, [b"again"], ("blob", b"1"))
            assert await read_blob(store, SID, "blob") == b"1"
            store.drop_blob(SID, "blob")
            await upload(store, SID, "blob", b"1")
        await store.stop()
    async with running(open_store()) as store:
        if store.sessions():  # memory forgets
            assert await read_blob(store, SID, "blob") == b"1"


async def test_a_full_memory_refuses_and_lives_on() -> None:
    async with running(MemoryStore(100_000)) as store:
        await store.append(SID, [bytes(10_000)], ("blob", bytes(20_000)))
        with pytest.raises(StorageError) as caught:
            await store.append(SID, [b"e"], ("blob-2", bytes(80_000)))
        assert caught.value.code == "full"
        with pytest.raises(StorageError) as caught:
            await upload(store, SID, "big", BIG)
        assert caught.value.code == "full"
        assert store.free_bytes() == 70_000
        await upload(store, SID, "big", BIG[:60_000])
        await upload(store, SID, "big", BIG[:5_000])
        assert store.free_bytes() == 65_000
        store.drop_blob(SID, "big")
        assert store.free_bytes() == 70_000
        await store.purge(SID)
        assert store.free_bytes() == 100_000


# ── the disk store over restarts ─────────────────────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


def disk(folder: Path, **settings: int) -> DiskStore:
    return DiskStore(folder, Config(**settings))  # type: ignore[arg-type]


async def test_everything_is_there_after_a_restart(folder: Path) -> None:
    async with running(disk(folder)) as store:
        await store.append(SID, [b"1"], ("small", b"s"))
        await store.append(OTHER, [b"gone"], ("small", b"s"))
        await upload(store, SID, "big", BIG)
        await store.append(SID, [b"2"])
        await store.purge(OTHER)
    for _ in range(2):
        async with running(disk(folder)) as store:
            assert await store.read(SID) == [b"1", b"2"]
            assert await read_blob(store, SID, "small") == b"s"
            assert await read_blob(store, SID, "big") == BIG
            assert store.sessions() == [SID]


async def test_a_checkpoint_moves_blobs_and_deletes_segments(folder: Path) -> None:
    blobs = {f"blob-{n}": os.urandom(3000) for n in range(40)}
    async with running(disk(folder, journal_segment_bytes=4096)) as store:
        for name, data in blobs.items():
            await store.append(SID, [name.encode()], (name, data))
        store.drop_blob(SID, "blob-3")
        await until(lambda: segments(folder) <= 1)
        for name in blobs.keys() - {"blob-3"}:
            assert await read_blob(store, SID, name) == blobs[name]
        with pytest.raises(StorageError):
            await store.open_blob(SID, "blob-3")
    async with running(disk(folder)) as store:
        assert await store.read(SID) == [name.encode() for name in blobs]
        assert await read_blob(store, SID, "blob-39") == blobs["blob-39"]


async def test_a_dropped_blob_is_gone_at_once(folder: Path) -> None:
    """Whatever the deletion of its bytes still waits for."""
    async with running(disk(folder)) as store:
        await store.append(SID, [b"entry"], ("small", b"s" * 100))
        await upload(store, SID, "large", b"l" * 100_000)
        for name in ("small", "large"):
            store.drop_blob(SID, name)
            with pytest.raises(StorageError):
                await store.open_blob(SID, name)


async def test_nothing_of_a_purged_session_stays_on_the_disk(folder: Path) -> None:
    secret = b"sealed-bytes-that-must-go" * 100
    async with running(disk(folder, journal_segment_age_s=1)) as store:
        await store.append(SID, [secret], ("blob", secret))
        await upload(store, SID, "big", secret * 40)
        await store.purge(SID)
        await until(lambda: not any(secret[:25] in content for content in contents(folder)))
        await until(lambda: not list((folder / "sessions").iterdir()))
        await until(lambda: not list((folder / "tmp").iterdir()))


def crash_copy(folder: Path) -> Path:
    """What a crash at this moment leaves: the files as they are."""
    copy = folder.with_name(f"{folder.name}-{os.urandom(4).hex()}")
    shutil.copytree(folder, copy)
    return copy


async def test_after_a_crash_the_journal_repairs_logs_and_blobs(folder: Path) -> None:
    async with running(disk(folder)) as store:
        for n in range(20):
            await store.append(SID, [b"%d" % n], (f"b{n}", b"x%d" % n))
        crashed = crash_copy(folder)
    log = crashed / "sessions" / SID / "log"
    whole = b"".join(frame(b"%d" % n) for n in range(20))
    for content in (whole, whole[:-3], whole[:50], b""):
        log.write_bytes(content)
        copy = crash_copy(crashed)
        async with running(disk(copy)) as store:
            assert await store.read(SID) == [b"%d" % n for n in range(20)]
            assert await read_blob(store, SID, "b7") == b"x7"
    shutil.rmtree(crashed / "sessions")
    async with running(disk(crashed)) as store:
        assert len(await store.read(SID)) == 20


async def test_a_torn_journal_loses_only_its_torn_record(folder: Path) -> None:
    async with running(disk(folder)) as store:
        for n in range(5):
            await store.append(SID, [b"entry %d" % n])
        crashed = crash_copy(folder)
    segment = next((crashed / "journal").iterdir())
    whole = segment.read_bytes()
    shutil.rmtree(crashed / "sessions")
    for tail in (whole[:-4], whole[:-4] + b"\0" * 4, whole[:-1] + b"?", whole + b"\0" * 4096):
        segment.write_bytes(tail)
        async with running(disk(crash_copy(crashed))) as store:
            read = await store.read(SID)
            assert read == [b"entry %d" % n for n in range(5 if len(tail) > len(whole) else 4)]


async def test_a_session_that_ended_and_came_back_replays_in_order(folder: Path) -> None:
    async with running(disk(folder)) as store:
        for n in range(9):
            await store.append(SID, [b"old %d" % n])
        await store.purge(SID)
        await store.append(SID, [b"new"])
        crashed = crash_copy(folder)
    async with running(disk(crashed)) as store:
        assert await store.read(SID) == [b"new"]


async def test_a_second_life_of_an_id_keeps_its_large_blobs(folder: Path) -> None:
    """Replaying the end of the first life must not take what belongs to the second."""
    async with running(disk(folder)) as store:
        await store.append(SID, [b"old"])
        await upload(store, SID, "first", BIG)
        await store.purge(SID)
        await store.append(SID, [b"new"])
        await upload(store, SID, "second", BIG)
        crashed = crash_copy(folder)
    async with running(disk(crashed)) as store:
        assert await store.read(SID) == [b"new"]
        assert await read_blob(store, SID, "second") == BIG


async def test_what_has_ended_does_not_come_back_while_logs_are_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session ends just when the keeper has begun to write the logs."""
    store = disk(folder)
    loop = asyncio.get_running_loop()
    write = Flush.write
    purges: list[concurrent.futures.Future[None]] = []

    async def purge() -> None:
        await store.purge(SID)

    def write_late(flush: Flush) -> None:
        if not purges:
            purges.append(asyncio.run_coroutine_threadsafe(purge(), loop))
            purges[0].result(20)
        write(flush)

    async with running(store):
        await store.append(OTHER, [b"other"])
        await store.append(SID, [b"gone"])
        monkeypatch.setattr(Flush, "write", write_late)
        assert await asyncio.to_thread(store._logs.flush)
        assert {path.name for path in (folder / "sessions").iterdir()} == {OTHER}


async def test_folders_are_private(folder: Path) -> None:
    async with running(disk(folder, journal_segment_bytes=4096)) as store:
        await store.append(SID, [b"e"], ("blob", bytes(5000)))
        await until(lambda: any((folder / "sessions" / SID / "blobs").iterdir()))
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        assert path.stat().st_mode & 0o777 == 0o700, path


async def test_two_stores_never_share_a_folder(folder: Path) -> None:
    async with running(disk(folder)):
        with pytest.raises(StorageError) as caught:
            await disk(folder).start()
        assert caught.value.code == "locked"
    async with running(disk(folder)):
        pass


async def test_a_folder_of_another_version_is_refused(folder: Path) -> None:
    async with running(disk(folder)):
        pass
    (folder / "version").write_text("airlox-relay-store 99\n")
    with pytest.raises(StorageError, match="does not know"):
        await disk(folder).start()


async def test_leftovers_of_uploads_are_gone_after_a_start(folder: Path) -> None:
    async with running(disk(folder)) as store:
        target = store.new_upload()
        await target.write(BIG)
        assert list((folder / "tmp").iterdir())
    async with running(disk(folder)):
        assert not list((folder / "tmp").iterdir())


async def test_more_than_may_wait_is_refused_as_busy(folder: Path) -> None:
    async with running(disk(folder, max_pending_bytes=1 << 20)) as store:
        futures = [store.append(SID, [bytes(200_000)]) for _ in range(30)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        refused = [r for r in results if isinstance(r, StorageError)]
        assert refused
        assert {r.code for r in refused} == {"busy"}
        assert len(await store.read(SID)) == results.count(None)


# ── a disk that fails ────────────────────────────────────────────────────────────────────────


async def test_a_sync_that_fails_refuses_what_it_was_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(disk(folder)) as store:
        await store.append(SID, [b"before"])
        with monkeypatch.context() as patch:
            patch.setattr(journal, "_sync_data", fail)
            with pytest.raises(StorageError) as caught:
                await store.append(SID, [b"refused"], ("blob", b"refused"))
            assert caught.value.code == "storage"
        await store.append(SID, [b"after"])
        assert await store.read(SID) == [b"before", b"after"]
        crashed = crash_copy(folder)
    for copy in (folder, crashed):
        async with running(disk(copy)) as store:
            assert await store.read(SID) == [b"before", b"after"]
            with pytest.raises(StorageError):
                await store.open_blob(SID, "blob")


async def test_nothing_is_taken_until_what_failed_can_be_taken_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the segment left for another: what was refused is never read back."""
    made = disk(folder)
    async with running(made) as store:
        await store.append(SID, [b"before"])
        with monkeypatch.context() as patch:
            patch.setattr("os.ftruncate", fail)
            with monkeypatch.context() as sync:
                sync.setattr(journal, "_sync_data", fail)
                with pytest.raises(StorageError):
                    await store.append(SID, [b"refused"])
            with pytest.raises(StorageError):
                await store.append(SID, [b"refused too"])
            with pytest.raises(OSError, match="failed"):
                made._journal.rotate()
            assert segments(folder) == 1
        await store.append(SID, [b"after"])
        assert await store.read(SID) == [b"before", b"after"]
        crashed = crash_copy(folder)
    for copy in (folder, crashed):
        async with running(disk(copy)) as store:
            assert await store.read(SID) == [b"before", b"after"]


async def test_an_empty_segment_that_cannot_be_deleted_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(disk(folder)):
        monkeypatch.setattr("os.unlink", fail)
    monkeypatch.undo()
    assert segments(folder) == 1
    async with running(disk(folder)) as store:
        await store.append(SID, [b"entry"])


async def test_the_version_is_there_whole_or_not_at_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a loss of power at the first start the second must not take it for another's."""
    monkeypatch.setattr("os.rename", fail)
    with pytest.raises(StorageError):
        await disk(folder).start()
    assert not (folder / "version").exists()
    monkeypatch.undo()
    async with running(disk(folder)):
        pass


async def test_what_a_failed_sync_may_have_lost_is_written_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync the system forgets what it had not written, and the next one succeeds."""
    tries: list[int] = []

    def lose_then_sync(root: Path, files: list[Path], folders: set[Path]) -> None:
        tries.append(len(files))
        if len(tries) == 1:
            for path in files:
                path.write_bytes(bytes(path.stat().st_size))
            raise OSError(errno.EIO, "the disk failed")
        sync_all(root, files, folders)

    monkeypatch.setattr(disk_module, "RETRY_S", 0.01)
    monkeypatch.setattr(checkpoint, "sync_all", lose_then_sync)
    async with running(disk(folder, journal_segment_bytes=4096)) as store:
        await store.append(SID, [b"entry"], ("blob", bytes(5000)))
        await until(lambda: len(tries) > 1 and segments(folder) <= 1)
        assert tries[1] == tries[0] == 2
    async with running(disk(folder)) as store:
        assert await store.read(SID) == [b"entry"]
        assert await read_blob(store, SID, "blob") == bytes(5000)


async def test_a_start_writes_again_what_the_journal_holds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads of a log may be there in memory only, after a sync that failed."""
    async with running(disk(folder)) as store:
        await store.append(SID, [b"1"])
        await store.append(SID, [b"2"])
        crashed = crash_copy(folder)
    session = crashed / "sessions" / SID
    session.mkdir(exist_ok=True)
    (session / "log").write_bytes(frame(b"1") + frame(b"2"))
    written = []
    write = Flush.write

    def watch(flush: Flush) -> None:
        written.append(flush.size)
        write(flush)

    monkeypatch.setattr(Flush, "write", watch)
    async with running(disk(crashed)) as store:
        await until(lambda: segments(crashed) <= 1)
        assert written == [len(frame(b"1") + frame(b"2"))]
        assert await store.read(SID) == [b"1", b"2"]


async def test_a_blob_without_a_folder_stays_in_the_journal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "RETRY_S", 0.01)
    async with running(disk(folder, journal_segment_bytes=4096)) as store:
        with monkeypatch.context() as patch:
            patch.setattr(layout, "make_session_folders", fail)
            await store.append(SID, [b"entry"])
        assert not (folder / "sessions" / SID).exists()
        await store.append(SID, [b"entry"], ("blob", bytes(5000)))
        await until(lambda: segments(folder) <= 1)
        assert await read_blob(store, SID, "blob") == bytes(5000)
    async with running(disk(folder)) as store:
        assert await read_blob(store, SID, "blob") == bytes(5000)


async def test_a_segment_that_cannot_be_begun_is_tried_at_intervals(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Path] = []

    def fail_folder(path: Path) -> None:
        tries.append(path)
        raise OSError(errno.EIO, "the disk failed")

    async with running(disk(folder, journal_segment_bytes=4096)) as store:
        monkeypatch.setattr(disk_module, "RETRY_S", 3600.0)
        monkeypatch.setattr(journal, "sync_folder", fail_folder)
        for n in range(20):
            await store.append(SID, [bytes([n]) * 5000])
        assert len(tries) == 1
        assert segments(folder) == 1
        assert len(await store.read(SID)) == 20


# ── a slow disk ──────────────────────────────────────────────────────────────────────────────


async def test_reading_a_long_session_holds_up_no_post(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = threading.Event()

    def slow_frames(data: bytes) -> Iterator[tuple[int, bytes]]:
        assert going.wait(20)
        return read_frames(data)

    async with running(disk(folder)) as store:
        await store.append(SID, [b"1"])
        monkeypatch.setattr(session_log, "read_frames", slow_frames)
        reading = asyncio.create_task(store.read(SID))
        await asyncio.sleep(0)
        await store.append(SID, [b"2"])
        going.set()
        assert (await reading)[0] == b"1"


async def test_deleting_a_large_file_holds_up_no_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, begun = threading.Event(), threading.Event()

    def slow_remove(path: Path) -> None:
        begun.set()
        assert going.wait(20)
        remove(path)

    async with running(disk(folder)) as store:
        await store.append(SID, [b"1"], ("small", b"s"))
        await upload(store, SID, "big", BIG)
        monkeypatch.setattr(places, "remove", slow_remove)
        store.drop_blob(SID, "big")
        assert await asyncio.to_thread(begun.wait, 20)
        assert await read_blob(store, SID, "small") == b"s"
        going.set()
        await until(lambda: not any((folder / "tmp").iterdir()))
        assert not any((folder / "sessions" / SID / "blobs").iterdir())


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "the disk failed")


# ── a full disk ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "1m") as mount:
        yield mount


async def test_a_full_disk_refuses_and_lives_on(full_disk: Path) -> None:
    accepted = []
    async with running(disk(full_disk / "data")) as store:
        await store.append(OTHER, [b"other"], ("blob", bytes(60_000)))
        failure = None
        for n in range(100):
            try:
                await store.append(SID, [b"%d" % n], (f"b{n}", bytes([n]) * 50_000))
            except StorageError as error:
                failure = error
                break
            accepted.append(n)
        assert failure is not None
        assert failure.code == "full"
        with pytest.raises(StorageError) as caught:
            await upload(store, SID, "big", BIG)
        assert caught.value.code == "full"
        assert await store.read(SID) == [b"%d" % n for n in accepted]
        # What is small may still pass; what was refused is never read back.
        await store.purge(OTHER)
        crashed = [b"%d" % n for n in accepted]
        assert await store.read(SID) == crashed
    async with running(disk(full_disk / "data")) as store:
        assert await store.read(SID) == [b"%d" % n for n in accepted]
        assert await read_blob(store, SID, f"b{accepted[-1]}") == bytes([accepted[-1]]) * 50_000
        assert store.sessions() == [SID]


# ── framing ──────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=8), st.data())
def test_frames_survive_up_to_the_first_unsound_byte(bodies: list[bytes], data) -> None:  # type: ignore[no-untyped-def]
    written = b"".join(map(frame, bodies))
    assert [body for _, body in read_frames(written)] == bodies
    cut = data.draw(st.integers(0, len(written)))
    kept = [body for _, body in read_frames(written[:cut])]
    assert kept == bodies[: len(kept)]
    assert sum(len(frame(body)) for body in kept) <= cut
    if written:
        at = data.draw(st.integers(0, len(written) - 1))
        spoiled = written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :]
        read = [body for _, body in read_frames(spoiled)]
        assert read == bodies[: len(read)]
        assert len(read) < len(bodies)


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.binary(max_size=100), max_size=5),
    st.text("abcXYZ-_.", max_size=100),
    st.binary(max_size=100),
)
def test_journal_records_round_trip(
    first: int, entries: list[bytes], name: str, blob: bytes
) -> None:
    record = Append.decode(Append(SID, first, entries, name, blob).encode())
    assert (record.sid, record.first, record.entries) == (SID, first, entries)
    assert (record.name, record.blob) == (name, blob)


_RECORD = Append(SID, 3, [b"entry"], "blob", b"").encode()


@pytest.mark.parametrize(
    "body",
    [
        b"Z" + _RECORD[1:],
        b"A",
        _RECORD[:-1],
        _RECORD.replace(SID.encode(), b"../" * 9 + b"x\0"),
        _RECORD.replace(b"blob", b"bl\xffb"),
        encode_purge(SessionId("../x")),
        b"P\xff",
    ],
)
async def test_a_journal_of_another_version_is_left_as_it_is(folder: Path, body: bytes) -> None:
    """What it means is not known: guessing could lose what was acknowledged."""
    async with running(disk(folder)):
        pass
    segment = folder / "journal" / "0000000000000009.journal"
    segment.write_bytes(frame(body))
    files = len(os.listdir("/dev/fd"))
    with pytest.raises(StorageError, match="does not know") as caught:
        await disk(folder).start()
    assert len(os.listdir("/dev/fd")) == files
    assert caught.value.code == "version"
    assert segment.read_bytes() == frame(body)


# ── helpers ──────────────────────────────────────────────────────────────────────────────────


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


def segments(folder: Path) -> int:
    return len(list((folder / "journal").iterdir()))


def contents(folder: Path) -> Iterator[bytes]:
    for path in folder.rglob("*"):
        if path.is_file():
            try:
                yield path.read_bytes()
            except FileNotFoundError:
                continue


async def test_a_journal_that_takes_nothing_says_so_and_comes_back_by_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody posts to a relay that says it is not well: it must not wait for a post to recover."""
    monkeypatch.setattr(disk_module, "RETRY_S", 0.01)
    async with running(disk(folder)) as store:
        await store.append(SID, [b"before"])
        assert not store.is_failing()
        with monkeypatch.context() as patch:
            patch.setattr(journal, "_sync_data", fail)
            patch.setattr("os.ftruncate", fail)
            for _ in range(2):
                with pytest.raises(StorageError) as caught:
                    await store.append(SID, [b"refused"])
                assert caught.value.code == "failed"
            assert store.is_failing()
        await until(lambda: not store.is_failing())
        await store.append(SID, [b"after"])
        assert await store.read(SID) == [b"before", b"after"]


async def test_a_write_that_can_be_taken_back_is_a_passing_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(disk(folder)) as store:
        with monkeypatch.context() as patch:
            patch.setattr(journal, "_sync_data", fail)
            with pytest.raises(StorageError) as caught:
                await store.append(SID, [b"refused"])
        assert caught.value.code == "storage"
        assert not store.is_failing()
        await store.append(SID, [b"after"])
        assert await store.read(SID) == [b"after"]
