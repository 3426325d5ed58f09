"""A checkpoint: everything a closed segment of the journal holds is put in its place, durably.

Small blobs become files, waiting entries go into the logs, one sync makes all of it durable. Only
then may the segment go. Every step can be tried again from the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from airlox.protocol.encoding import SessionId
from airlox.relay.store.journal import Segment
from airlox.relay.store.layout import Layout, sync_all, write_file
from airlox.relay.store.places import Places
from airlox.relay.store.session_log import Flush, SessionLogs


class Checkpoint:
    def __init__(self, layout: Layout, logs: SessionLogs, places: Places) -> None:
        self._layout = layout
        self._logs = logs
        self._places = places

    def settle(self, segment: Segment) -> None:
        """Raises OSError."""
        flushes = self._logs.flush()
        moved = [
            (sid, name, place)
            for sid, name, place in self._places.in_segment(segment)
            if self._move_blob(sid, name)
        ]
        self._sync(flushes, [self._layout.blob(sid, name) for sid, name, _ in moved])
        self._logs.settle(flushes.values())
        for sid, name, place in moved:
            self._places.forget(sid, name, place)

    def _move_blob(self, sid: SessionId, name: str) -> bool:
        """Gives a blob its file; False when it is not wanted any more. Raises OSError."""
        data = self._places.read(sid, name)
        if data is None:
            return False
        try:
            write_file(self._layout.blob(sid, name), data)
        except FileNotFoundError:
            if sid in self._logs:
                raise
            return False
        return True

    def _sync(self, flushes: Mapping[SessionId, Flush], blobs: Sequence[Path]) -> None:
        """Makes logs, blobs and all names of sessions durable. Raises OSError."""
        folders = {folder for sid in flushes for folder in self._layout.folders(sid)}
        files = [*blobs, *(flush.log.path for flush in flushes.values())]
        sync_all(self._layout.root, files, {*folders, self._layout.sessions})
