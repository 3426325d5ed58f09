"""What was handed out to whoever listens, kept so that no crash loses or repeats a batch.

One file in the cache of a participant, replaced whole each time (`safefs.write_private`):

    floor      every event up to this number is settled: what concerned this participant was handed
               out, the rest did not concern them or was given up
    given      numbers above the floor that are settled too
    batch      the items that are being handed out now, if any

A batch goes through two states before it is gone from the file. `taken`: its items are chosen, and
nothing was started for it. `started`: a command was, or was about to be. What a restart does with
either is `wake.py`'s matter; the id of a batch never changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from airlox import safefs
from airlox.errors import StorageError

FILE_BYTES: Final = 256 * 1024
GIVEN: Final = 4096
"""Numbers kept above the floor. Whoever settles more of them raises the floor."""


class State(StrEnum):
    TAKEN = "taken"
    STARTED = "started"


class Batch(msgspec.Struct, frozen=True):
    """Items that are handed out together, oldest first. `starts` counts commands started for it."""

    id: str
    items: tuple[str, ...]
    seqs: tuple[int, ...]
    state: State = State.TAKEN
    starts: int = 0


class _File(msgspec.Struct, frozen=True):
    floor: int
    given: tuple[int, ...] = ()
    batch: Batch | None = None


class Ledger:
    """The file of one participant. Whoever holds it holds the lock beside it."""

    def __init__(self, path: str) -> None:
        """Reads what is there. Raises StorageError, also for a file that makes no sense."""
        self._path = path
        self._file = _load(path)

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever handed out here."""
        return self._file is None

    @property
    def floor(self) -> int:
        return -1 if self._file is None else self._file.floor

    @property
    def batch(self) -> Batch | None:
        """The batch that is being handed out."""
        return None if self._file is None else self._file.batch

    def is_settled(self, seq: int) -> bool:
        """Whether the event of this number needs no more thought."""
        return self._file is not None and (seq <= self._file.floor or seq in self._file.given)

    def settle(self, floor: int, given: Iterable[int] = ()) -> None:
        """Raise the floor, and settle numbers above it. Raises StorageError."""
        self._save(floor, given, self.batch)

    def take(self, batch: Batch, floor: int) -> None:
        """Keep a batch that was chosen. Raises StorageError, and then it is not taken."""
        self._save(floor, (), batch)

    def start(self) -> Batch:
        """Note that a command is about to be started for the batch. Raises StorageError."""
        batch = self.batch
        assert batch is not None
        batch = msgspec.structs.replace(batch, state=State.STARTED, starts=batch.starts + 1)
        self._save(self.floor, (), batch)
        return batch

    def unstart(self) -> None:
        """Note that nothing was started for the batch after all. Raises StorageError."""
        batch = self.batch
        assert batch is not None
        batch = msgspec.structs.replace(batch, state=State.TAKEN, starts=batch.starts - 1)
        self._save(self.floor, (), batch)

    def finish(self) -> None:
        """Note that the batch was handed out. Raises StorageError."""
        batch = self.batch
        assert batch is not None
        self._save(self.floor, batch.seqs, None)

    def _save(self, floor: int, given: Iterable[int], batch: Batch | None) -> None:
        floor = max(floor, self.floor)
        known = () if self._file is None else self._file.given
        above = sorted({seq for seq in (*known, *given) if seq > floor})
        if len(above) > GIVEN:
            floor, above = above[-GIVEN - 1], above[-GIVEN:]
        changed = _File(floor, tuple(above), batch)
        if changed != self._file:
            safefs.write_private(self._path, msgspec.json.encode(changed))
            self._file = changed


def _load(path: str) -> _File | None:
    try:
        return msgspec.json.decode(safefs.read_bounded(path, FILE_BYTES, own=True), type=_File)
    except StorageError as error:
        if error.code == "not_found":
            return None
        raise
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise StorageError(
            f"{path} is damaged: what was handed out is not known",
            code="damaged",
            hint="remove it to have everything since you joined handed out again",
        ) from None
