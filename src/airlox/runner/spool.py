"""Results on their way: sealed, on the disk, until the relay has them.

    <state>/spool/<number>-<job>/
        010-<item id> …   frames of out files
        020-<item id> …   references of out files that were sealed anew on their way
        500-<item id>     the frame of the result
        900-<item id>     the result without its out files, for when the relay refuses one
    <state>/started/<job> what is needed to report a job that was lost with the runner

Rules
- A job's frames appear whole or not at all, and are on the disk before the first is posted.
- Each frame keeps its item id through every try, restarts included: the relay's `duplicate` means
  that an earlier try arrived.
- A result goes out only after its out files; an out file the relay will never take, or has no room
  for, makes the result go without any, since a reader waits for every file that a result names.
- When the disk is full the frames stay in memory: they then survive no restart, but are not lost.
- What was sealed in an epoch that has ended is sealed anew, with the same id. The reference that
  an out file has from then on is noted before it is posted: its result names it by that.
- What a disk that became read-only does not let go is posted once, and again at the next start.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from airlox import safefs
from airlox.client.outbox import OLD_EPOCH
from airlox.errors import AirloxError, RelayError, SessionClosed, StorageError
from airlox.protocol import canonical, limits
from airlox.protocol.encoding import ItemId, parse_item_id
from airlox.protocol.item import ItemRef, SealedItem
from airlox.runner.patience import Pause, may_find_room, may_pass, patiently
from airlox.sandbox.collect import remove_tree

FRAME_BYTES: Final = limits.ITEM_BYTES + limits.ENVELOPE_BYTES + limits.META_BYTES
STARTED_BYTES: Final = 16 * limits.KIB
_FILE, _NAMED, _RESULT, _BARE = "010", "020", "500", "900"
_REF_BYTES: Final = 1024


class Started(msgspec.Struct, frozen=True):
    """A job that was begun: what a result needs that says it was lost."""

    job: ItemRef
    code_sha256: str
    input_sha256: str
    tree: str | None
    started_at_ms: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """All items of one finished job, sealed. `bare` is the result that names no out files; without
    files it is `result` itself."""

    job: ItemId
    files: tuple[SealedItem, ...]
    result: SealedItem
    bare: SealedItem


Post = Callable[[bytes], None]
Renewed = dict[str, ItemRef]
"""Items that were sealed anew, by their ids: as they are named from then on."""
Renew = Callable[[bytes, Renewed, RelayError], SealedItem]
"""A frame that the relay refused for its epoch, sealed anew; raises the refusal where that does not
help."""


class Spool:
    """What one runner has still to post. Safe to share between threads."""

    def __init__(self, folder: Path, post: Post, pause: Pause, renew: Renew) -> None:
        self._spool = folder / "spool"
        self._started = folder / "started"
        self._post = post
        self._pause = pause
        self._renew = renew
        self.on_added: Callable[[], None] = _nobody
        """Told, from any thread, when there is something to post."""
        self.on_settled: Callable[[ItemId], None] = _nobody_of
        """Told, from any thread, when the relay has the result of a job, or will never take it."""
        self._lock = threading.Lock()
        self._next = 0
        self._in_memory: list[Parcel] = []
        self._renewed: dict[ItemId, Renewed] = {}
        """Of the parcels in memory."""
        self._stuck: set[str] = set()
        for made in (self._spool, self._started):
            safefs.make_private_dir(made)
        self._drop_unfinished()

    # ── jobs under way ──────────────────────────────────────────────────────────────────────

    def begin(self, started: Started) -> None:
        """Note that a job is about to start. Raises StorageError: then it must not start."""
        safefs.write_private(self._started / started.job.id, msgspec.json.encode(started))

    def lost(self) -> list[Started]:
        """Jobs that were begun and have no result: their runner died."""
        waiting = {parcel.job for parcel in self._in_memory}
        waiting.update(ItemId(path.name.partition("-")[2]) for path in self._parcels())
        found = []
        for path in sorted(self._started.iterdir()):
            started = _read_started(path)
            if started is None or started.job.id in waiting:
                path.unlink(missing_ok=True)
            else:
                found.append(started)
        return found

    def end(self, job: ItemId) -> None:
        """The job has its result in the spool, or none is due."""
        _let_go(self._started / job)

    # ── results ─────────────────────────────────────────────────────────────────────────────

    def add(self, parcel: Parcel) -> bool:
        """Take charge of a finished job; False when it is kept in memory only."""
        try:
            self._store(parcel)
        except StorageError:
            with self._lock:
                self._in_memory.append(parcel)
            self.on_added()
            return False
        self.end(parcel.job)
        self.on_added()
        return True

    def is_empty(self) -> bool:
        with self._lock:
            return not self._in_memory and not self._parcels()

    def post_all(self, gave_up: Callable[[ItemId, str], None]) -> None:
        """Post everything, oldest first, for as long as it takes. Blocking.

        `gave_up` hears of results the relay will never take. Raises SessionClosed, and
        ConnectionLost when `pause` said to stop.
        """
        while (parcel := self._oldest()) is not None:
            job = parcel.job if isinstance(parcel, Parcel) else _job_of(parcel)
            try:
                if isinstance(parcel, Parcel):
                    self._post_parcel(parcel)
                else:
                    self._post_folder(parcel)
            except (RelayError, StorageError) as error:
                gave_up(job, error.message)
            if isinstance(parcel, Parcel):
                with self._lock:
                    self._in_memory.remove(parcel)
                self._renewed.pop(job, None)
                self.end(job)
            elif not _let_go(parcel):
                self._stuck.add(parcel.name)
            self.on_settled(job)

    def _oldest(self) -> Path | Parcel | None:
        with self._lock:
            parcels = self._parcels()
            if parcels:
                return parcels[0]
            return self._in_memory[0] if self._in_memory else None

    def _post_parcel(self, parcel: Parcel) -> None:
        renewed = self._renewed.setdefault(parcel.job, {})
        result = parcel.result
        try:
            for item in parcel.files:
                self._deliver(item.frame(), renewed, passes=may_find_room())
        except RelayError:
            result = parcel.bare
        self._deliver(result.frame(), renewed)

    def _post_folder(self, folder: Path) -> None:
        frames = sorted(folder.iterdir())
        files = [path for path in frames if path.name.startswith(_FILE)]
        result, bare = (
            next((path for path in frames if path.name.startswith(kind)), None)
            for kind in (_RESULT, _BARE)
        )
        renewed = _read_renewed(frames)
        note = partial(_note_renewed, folder)
        try:
            for path in files:
                self._deliver(_read_frame(path), renewed, passes=may_find_room(), note=note)
                _let_go(path)
        except RelayError:
            result = bare
        if result is not None:
            self._deliver(_read_frame(result), renewed)

    def _deliver(
        self,
        frame: bytes,
        renewed: Renewed,
        *,
        passes: Callable[[AirloxError], bool] = may_pass,
        note: Callable[[ItemRef], None] = lambda ref: None,
    ) -> None:
        """Post one frame until the relay has it; sealed anew, which `note` is told of before,
        whenever an epoch began meanwhile. Raises RelayError when the relay never will have it."""
        while (refused := self._refused(frame, passes)) is not None:
            sealed = patiently(partial(self._renew, frame, renewed, refused), self._pause)
            renewed[sealed.ref.id] = sealed.ref
            note(sealed.ref)
            frame = sealed.frame()

    def _refused(self, frame: bytes, passes: Callable[[AirloxError], bool]) -> RelayError | None:
        """Post one frame; None when the relay has it, else its refusal for the frame's epoch."""
        try:
            patiently(partial(self._post, frame), self._pause, passes=passes)
        except RelayError as error:
            if error.code == OLD_EPOCH:
                return error
            if error.code == "duplicate":
                return None
            if error.status in (401, 404, 410):
                raise SessionClosed(
                    "the session has ended, or this runner was cut off", code="session_gone"
                ) from error
            raise
        return None

    # ── the folder ──────────────────────────────────────────────────────────────────────────

    def _parcels(self) -> list[Path]:
        found = (path for path in self._spool.iterdir() if path.name[0] != ".")
        return sorted(path for path in found if path.name not in self._stuck)

    def _store(self, parcel: Parcel) -> None:
        with self._lock:
            number = max([self._next, *(_number_of(path) for path in self._parcels())]) + 1
            self._next = number
        unfinished = self._spool / f".{number:08d}-{parcel.job}"
        try:
            safefs.make_private_dir(unfinished)
            for count, item in enumerate(parcel.files):
                name = f"{_FILE}-{count:03d}-{item.ref.id}"
                safefs.write_private(unfinished / name, item.frame())
            safefs.write_private(
                unfinished / f"{_RESULT}-{parcel.result.ref.id}", parcel.result.frame()
            )
            if parcel.files:
                safefs.write_private(
                    unfinished / f"{_BARE}-{parcel.bare.ref.id}", parcel.bare.frame()
                )
            os.rename(unfinished, self._spool / unfinished.name[1:])
            _sync_folder(self._spool)
        except OSError as e:
            raise StorageError(
                f"cannot keep the result of job {parcel.job}: {e.strerror}"
            ) from None
        finally:
            remove_tree(unfinished)

    def _drop_unfinished(self) -> None:
        for path in self._spool.iterdir():
            if path.name.startswith("."):
                remove_tree(path)


def _nobody() -> None:
    """Nobody listens yet."""


def _nobody_of(_: ItemId) -> None:
    """Nobody listens yet."""


def _read_started(path: Path) -> Started | None:
    try:
        parse_item_id(path.name)
        data = safefs.read_bounded(path, STARTED_BYTES)
        return canonical.decode_loose(data, Started, "note of a job")
    except AirloxError:
        return None


def _read_frame(path: Path) -> bytes:
    return safefs.read_bounded(path, FRAME_BYTES)


def _note_renewed(folder: Path, ref: ItemRef) -> None:
    """Left undone, on a full disk say, it matters only if the runner dies before the result is
    out."""
    with suppress(StorageError):
        safefs.write_private(folder / f"{_NAMED}-{ref.id}", canonical.encode(ref))


def _read_renewed(frames: list[Path]) -> Renewed:
    """What out files of a parcel are named by that were sealed anew."""
    notes = (path for path in frames if path.name.startswith(_NAMED))
    found = [
        canonical.decode(safefs.read_bounded(path, _REF_BYTES), ItemRef, "reference")
        for path in notes
    ]
    return {ref.id: ref for ref in found}


def _job_of(parcel: Path) -> ItemId:
    return ItemId(parcel.name.partition("-")[2])


def _number_of(parcel: Path) -> int:
    digits = parcel.name.partition("-")[0]
    return int(digits) if digits.isdigit() else 0


def _let_go(path: Path) -> bool:
    """Remove what is needed no more; False when the disk does not let it go."""
    try:
        remove_tree(path)
    except StorageError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
