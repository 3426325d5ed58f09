"""Which jobs a runner has carried out: never the same one twice, whatever the relay sends again.

One job a line, on the disk before the job starts: its id, and in sessions with `history` when its
author says to have made it, which is signed. There the file is bounded: beyond `MOST` jobs those
with the newest times are kept, and the first line says up to which time others were let go of. A
job from before then that is not among those kept may be one of them, so it is refused. In floor
sessions, where 0.1.0 may take up the file, nothing is let go of.
"""

from __future__ import annotations

import threading
from typing import Final

from airlox import safefs
from airlox.errors import StorageError
from airlox.protocol import limits
from airlox.protocol.encoding import ItemId

DONE_BYTES: Final = 64 * limits.MIB
MOST: Final = 20_000
KEPT: Final = 10_000
_HORIZON: Final = "-"
"""Stands where others have their id in the line that says up to which time jobs were let go of."""


class DoneJobs:
    """Safe to share between threads."""

    def __init__(self, path: str, *, bounded: bool, most: int = MOST, kept: int = KEPT) -> None:
        """Raises StorageError."""
        self._path = path
        self._bounded = bounded
        self._most = most
        self._kept = kept
        self._lock = threading.Lock()
        self._times: dict[str, int] = _read(path)
        self._horizon_ms = self._times.pop(_HORIZON, -1)

    def __contains__(self, job: ItemId) -> bool:
        with self._lock:
            return job in self._times

    def add(self, job: ItemId, created_at_ms: int) -> None:
        """On the disk when this returns. Raises StorageError."""
        with self._lock:
            if job in self._times:
                return
            line = f"{job} {created_at_ms}" if self._bounded else job
            safefs.append_line(self._path, line.encode())
            self._times[job] = created_at_ms
            if self._bounded and len(self._times) > self._most:
                self._let_go()

    def may_be_forgotten(self, job: ItemId, created_at_ms: int) -> bool:
        """Whether a job of this time may be one that was carried out and let go of."""
        with self._lock:
            return job not in self._times and created_at_ms <= self._horizon_ms

    def _let_go(self) -> None:
        newest = sorted(self._times.items(), key=lambda each: each[1], reverse=True)
        times = dict(newest[: self._kept])
        horizon_ms = max(self._horizon_ms, newest[self._kept][1])
        lines = [f"{_HORIZON} {horizon_ms}", *(f"{job} {at_ms}" for job, at_ms in times.items())]
        safefs.write_private(self._path, "".join(f"{line}\n" for line in lines).encode())
        self._times, self._horizon_ms = times, horizon_ms


def _read(path: str) -> dict[str, int]:
    """Each id with its time; 0 where none is given, which is let go of first."""
    try:
        data = safefs.read_bounded(path, DONE_BYTES)
    except StorageError as error:
        if error.code == "not_found":
            return {}
        raise
    found: dict[str, int] = {}
    for line in data.decode("ascii", "replace").splitlines():
        job, _, time = line.strip().partition(" ")
        if job:
            at_ms = int(time) if time.isdigit() and len(time) <= 16 else 0
            found[job] = max(at_ms, found.get(job, 0))
    return found
