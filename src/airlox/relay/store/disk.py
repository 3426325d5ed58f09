"""A store in one folder: a journal with group commit, a log and blob files per session.

One thread, the *writer*, takes everything that waits, writes it to the journal, syncs once, adds
it to the session logs (in memory) and only then tells the event loop. When a segment of the
journal is full or old, a second thread, the *keeper*, writes the logs, moves the small blobs that
are still wanted into files, syncs all of it, and deletes the segment. Reads and uploads use a
small pool.

A start: lock, cut torn tails, replay the journal into the logs (recovery.py); then the keeper
settles the old segments like any other (checkpoint.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from airlox.errors import StorageError
from airlox.protocol.encoding import SessionId
from airlox.relay.config import Config
from airlox.relay.store.base import RELAY_LOG, Pending
from airlox.relay.store.blobs import DiskReader, DiskUpload
from airlox.relay.store.checkpoint import Checkpoint
from airlox.relay.store.framing import REWRITE, Append, encode_purge, frame
from airlox.relay.store.journal import Journal, Segment, sync_folder
from airlox.relay.store.layout import Layout, remove
from airlox.relay.store.places import Place, Places
from airlox.relay.store.recovery import replay
from airlox.relay.store.session_log import SessionLogs

T = TypeVar("T")
Change = Callable[[list[bytes]], list[bytes]]

GROUP_BYTES: Final = 4 << 20
RETRY_S: Final = 1.0
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

log = logging.getLogger("airlox.relay.store")


class _Request:
    """Something the writer must make durable: entries of a session, others in place of all that
    it has (`change`), or its end."""

    __slots__ = ("blob", "change", "entries", "future", "sid", "size")

    def __init__(
        self,
        sid: SessionId,
        future: Pending,
        entries: list[bytes] | None,
        blob: tuple[str, bytes] | None = None,
        change: Change | None = None,
    ) -> None:
        self.sid = sid
        self.change = change
        self.future = future
        self.entries = entries
        self.blob = blob
        self.size = sum(map(len, entries or ())) + (len(blob[1]) if blob else 0) + 64

    @property
    def is_purge(self) -> bool:
        return self.entries is None


class DiskStore:
    """See the module and `base.Store`."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._layout = Layout(folder)
        self._config = config
        self._logs = SessionLogs(self._layout)
        self._places = Places()
        self._checkpoint = Checkpoint(self._layout, self._logs, self._places)
        self._journal: Journal
        self._loop: AbstractEventLoop
        self._wake = threading.Condition()
        self._gathered: list[_Request] = []
        self._queue: list[_Request] = []
        self._queued_bytes = 0
        self._stopping = False
        self._closed_segments: list[Segment] = []
        self._checkpoint_running = False
        self._next_try_s = 0.0
        """When a rotation or checkpoint that failed may be tried again."""
        self._keeper = ThreadPoolExecutor(1, "airlox-keeper")
        self._pool = ThreadPoolExecutor(4, "airlox-blobs")
        self._writer = threading.Thread(target=self._write_loop, name="airlox-writer", daemon=True)

    # ── start and stop ───────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._loop.run_in_executor(self._keeper, self._recover)
        self._writer.start()

    async def stop(self) -> None:
        self._hand_over()
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._writer.is_alive():
            await asyncio.to_thread(self._writer.join)
        # Deletions that still wait are made up for at the next start.
        await asyncio.to_thread(lambda: self._keeper.shutdown(cancel_futures=True))
        self._pool.shutdown(wait=False)
        self._layout.close()

    def _recover(self) -> None:
        try:
            self._layout.open()
            for sid in self._layout.session_ids():
                self._logs.open(sid)
            self._closed_segments = replay(self._layout.journal, self._logs, self._places)
            for sid in self._logs.ids():
                if self._logs.count(sid) == 0:  # ended, or made for entries never durable
                    self._delete_session(sid)
            self._journal = Journal(
                self._layout.journal,
                segment_bytes=self._config.journal_segment_bytes,
                segment_s=self._config.journal_segment_age_s,
            )
        except OSError as error:
            self._layout.close()
            raise _storage_error("open the store", error) from None
        except StorageError:
            self._layout.close()
            raise

    # ── what the event loop calls ────────────────────────────────────────────────────────────

    def sessions(self) -> list[SessionId]:
        return [sid for sid in self._logs.ids() if sid != RELAY_LOG]

    async def read(self, sid: SessionId) -> list[bytes]:
        return await self._in_pool("read a session", lambda: self._logs.read(sid))

    def append(
        self,
        sid: SessionId,
        entries: Sequence[bytes],
        blob: tuple[str, bytes] | None = None,
        then: Callable[[], None] | None = None,
    ) -> Pending:
        return self._submit(_Request(sid, Pending(then), list(entries), blob))

    def purge(self, sid: SessionId) -> Pending:
        return self._submit(_Request(sid, Pending(), None))

    def rewrite(
        self, sid: SessionId, change: Change, then: Callable[[], None] | None = None
    ) -> Pending:
        return self._submit(_Request(sid, Pending(then), [], change=change))

    def _submit(self, request: _Request) -> Pending:
        """Gathers what comes in one turn of the loop: the writer is woken once for all of it.

        Waking it at the first would have both threads contend for the interpreter, and would
        sync for two or three posts at a time.
        """
        waiting = self._queued_bytes + request.size
        if self._stopping or (waiting > self._config.max_pending_bytes and not request.is_purge):
            request.future.fail(StorageError("too much is waiting for the disk", code="busy"))
            return request.future
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(request)
        with self._wake:
            self._queued_bytes += request.size
        return request.future

    def _hand_over(self) -> None:
        with self._wake:
            self._queue += self._gathered
            self._wake.notify()
        self._gathered = []

    def new_upload(self) -> DiskUpload:
        return DiskUpload(self._layout, self._places, self._in_pool)

    async def open_blob(self, sid: SessionId, name: str) -> DiskReader:
        small = self._places.read(sid, name)
        if small is not None:
            return DiskReader.of_bytes(small, self._in_pool)
        if self._places.is_doomed(sid, name):
            raise StorageError("cannot open a blob: it is not there", code="not_found")
        path = self._layout.blob(sid, name)
        return await self._in_pool("open a blob", lambda: DiskReader.open(path, self._in_pool))

    def drop_blob(self, sid: SessionId, name: str) -> None:
        # The keeper deletes after a checkpoint under way, which may just be writing the file.
        self._places.doom(sid, name)
        path, aside = self._layout.blob(sid, name), self._layout.new_temporary()
        self._keeper.submit(self._places.delete, sid, name, path, aside)

    async def retain(self, sid: SessionId, names: set[str]) -> None:
        keep = {self._layout.blob(sid, name) for name in names}

        def retain() -> None:
            self._places.retain(sid, names)
            with contextlib.suppress(FileNotFoundError):
                for path in self._layout.blobs(sid).iterdir():
                    if path not in keep:
                        remove(path)

        await self._in_pool("tidy a session", retain)

    def is_failing(self) -> bool:
        return self._journal.is_torn

    def free_bytes(self) -> int:
        found = os.statvfs(self._layout.root)
        return found.f_bavail * found.f_frsize

    async def _in_pool(self, doing: str, call: Callable[[], T]) -> T:
        try:
            return await self._loop.run_in_executor(self._pool, call)
        except OSError as error:
            raise _storage_error(doing, error) from None

    # ── the writer thread ────────────────────────────────────────────────────────────────────

    def _write_loop(self) -> None:
        while (group := self._next_group()) is not None:
            for part in _apart(group):
                self._journal.touch()
                self._commit(part)
            self._rotate_if_due()
        self._journal.close()

    def _next_group(self) -> list[_Request] | None:
        """What waits, up to a size; empty when a segment is due; None at the end."""
        with self._wake:
            if not self._queue and not self._stopping:
                self._wake.wait(self._pause_s())
            if not self._queue:
                return None if self._stopping else []
            size, taken = 0, 0
            while taken < len(self._queue) and (taken == 0 or size < GROUP_BYTES):
                size += self._queue[taken].size
                taken += 1
            group, self._queue = self._queue[:taken], self._queue[taken:]
            self._queued_bytes -= size
            return group

    def _pause_s(self) -> float | None:
        """How long to wait for the next thing to do; None: until something comes."""
        due = self._journal.due_in_s()
        if self._journal.is_torn or (self._closed_segments and not self._checkpoint_running):
            due = 0.0
        return None if due is None else max(due, self._next_try_s - time.monotonic())

    def _commit(self, group: list[_Request]) -> None:
        """Makes a group durable and tells the loop. A full disk still lets sessions end."""
        try:
            self._write_group(group)
        except OSError as error:
            failure = self._failed_write(error)
            log.error("the journal took nothing", extra={"reason": failure.message})
            purges = [request for request in group if request.is_purge]
            self._tell([request for request in group if not request.is_purge], failure)
            if not purges:
                return
            try:
                self._write_group(purges)
            except OSError as again:
                self._tell(purges, self._failed_write(again))
            else:
                self._tell(purges, None)
        else:
            self._tell(group, None)

    def _failed_write(self, error: OSError) -> StorageError:
        failure = _storage_error("write", error)
        if self._journal.is_torn:
            return StorageError(failure.message, code="failed")
        return failure

    def _write_group(self, group: list[_Request]) -> None:
        counts: dict[SessionId, int] = {}
        frames = []
        for request in group:
            if request.entries is None:
                counts[request.sid] = 0
                frames.append(frame(encode_purge(request.sid)))
                continue
            if request.change is not None:
                request.entries = self._changed(request.sid, request.change)
                body = Append(request.sid, 0, request.entries).encode()
                frames.append(frame(REWRITE + body[1:]))
                continue
            first = counts.get(request.sid)
            if first is None:
                first = self._logs.count(request.sid)
            counts[request.sid] = first + len(request.entries)
            name, blob = request.blob or ("", b"")
            frames.append(frame(Append(request.sid, first, request.entries, name, blob).encode()))
        offset = self._journal.commit(frames)
        for request, data in zip(group, frames, strict=True):
            offset += len(data)
            self._put_in_place(request, offset)

    def _changed(self, sid: SessionId, change: Change) -> list[bytes]:
        """Raises OSError, whatever goes wrong: the writer must live on."""
        entries = self._logs.read(sid)
        try:
            return change(entries)
        except Exception:
            log.exception("a log cannot be rewritten", extra={"session": sid})
            raise OSError(errno.EIO, "a log cannot be rewritten") from None

    def _put_in_place(self, request: _Request, end: int) -> None:
        sid = request.sid
        if request.entries is None:
            self._delete_session(sid)
            return
        if request.change is not None:
            self._logs.rewrite(sid, request.entries)
            return
        self._logs.add(sid, request.entries)
        if request.blob is not None:
            name, blob = request.blob
            place = Place(self._journal.current, end - len(blob), len(blob))
            self._places.put(sid, name, place)

    def _delete_session(self, sid: SessionId) -> None:
        self._logs.forget(sid)
        self._places.forget_session(sid)
        aside = self._layout.set_aside(sid)
        if aside is not None:
            self._keeper.submit(remove, aside)

    def _tell(self, group: list[_Request], failure: StorageError | None) -> None:
        self._loop.call_soon_threadsafe(_resolve, group, failure)

    def _rotate_if_due(self) -> None:
        if time.monotonic() < self._next_try_s:
            return
        if self._journal.is_torn:
            # Not left to the next post: nobody posts to a relay that says it is not well.
            try:
                self._journal.mend()
            except OSError:
                self._next_try_s = time.monotonic() + RETRY_S
                return
            log.warning("the journal takes writes again")
        if self._journal.due_in_s() == 0.0:
            try:
                self._closed_segments.append(self._journal.rotate())
            except OSError as error:
                log.error("no new segment", extra={"reason": str(error)})
                self._next_try_s = time.monotonic() + RETRY_S
                return
        if self._closed_segments and not self._checkpoint_running:
            self._checkpoint_running = True
            self._keeper.submit(self._settle_all)

    # ── the keeper thread ────────────────────────────────────────────────────────────────────

    def _settle_all(self) -> None:
        """Empties closed segments, oldest first. What fails is tried again a little later."""
        try:
            while self._closed_segments:
                segment = self._closed_segments[0]
                self._checkpoint.settle(segment)
                segment.remove()
                sync_folder(self._layout.journal)
                self._closed_segments.pop(0)
        except OSError as error:
            log.error("a journal segment must wait", extra={"reason": str(error)})
            self._next_try_s = time.monotonic() + RETRY_S
        finally:
            self._checkpoint_running = False
            with self._wake:
                self._wake.notify()  # the writer may have closed another one meanwhile


def _apart(group: list[_Request]) -> list[list[_Request]]:
    """A group cut so that whoever rewrites a log finds in place what was appended before."""
    parts: list[list[_Request]] = []
    for request in group:
        if not parts or request.change is not None or parts[-1][-1].change is not None:
            parts.append([])
        parts[-1].append(request)
    return parts


def _resolve(group: list[_Request], failure: StorageError | None) -> None:
    for request in group:
        if failure is None:
            request.future.arrive()
        else:
            request.future.fail(failure)


def _storage_error(doing: str, error: OSError) -> StorageError:
    if error.errno in _FULL:
        return StorageError(f"cannot {doing}: the disk is full", code="full")
    if error.errno == errno.EROFS:
        return StorageError(f"cannot {doing}: the disk is read-only", code="failed")
    if error.errno == errno.ENOENT:
        return StorageError(f"cannot {doing}: it is not there", code="not_found")
    return StorageError(f"cannot {doing}: {error.strerror or 'the disk failed'}", code="storage")
