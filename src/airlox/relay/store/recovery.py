"""What a start does with the journal of the process before: its records go into the logs again.

What the journal holds is written again, whatever the files seem to hold: nobody knows whether
they had reached the disk. Nothing is written here yet, so that a start needs no room.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from airlox.errors import StorageError
from airlox.protocol.encoding import SessionId
from airlox.relay.store.framing import PURGE, REWRITE, Append, decode_purge, read_frames
from airlox.relay.store.journal import Segment, segment_files
from airlox.relay.store.places import Place, Places
from airlox.relay.store.session_log import SessionLogs

log = logging.getLogger("airlox.relay.store")


def replay(journal: Path, logs: SessionLogs, places: Places) -> list[Segment]:
    """Adds to the logs what they lack; gives the segments, to be settled.

    Raises OSError, and StorageError for a record of another version.
    """
    replay = _Replay(logs, places)
    paths = segment_files(journal)
    segments: list[Segment] = []
    try:
        for path in paths:
            segments.append(Segment(path, new=False))
            replay.segment(segments[-1], is_last=path is paths[-1])
    except (OSError, StorageError):
        for segment in segments:
            os.close(segment.fd)
        raise
    return segments


class _Replay:
    def __init__(self, logs: SessionLogs, places: Places) -> None:
        self._logs = logs
        self._places = places
        self._met: set[SessionId] = set()

    def segment(self, segment: Segment, *, is_last: bool) -> None:
        data = segment.path.read_bytes()
        sound = 0
        for end, body in read_frames(data):
            sound = end
            if body[:1] == PURGE:
                self._purge(decode_purge(body))
            elif body[:1] == REWRITE:
                self._rewrite(Append.decode(body))
            else:
                self._append(Append.decode(body), segment, end)
        if sound < len(data):
            _say_cut(segment.path, len(data) - sound, is_last=is_last)
            segment.cut(sound)

    def _append(self, record: Append, segment: Segment, end: int) -> None:
        found = self._logs.find(record.sid)
        if record.first > found.count:
            log.error(
                "entries of a session are missing",
                extra={"session": record.sid, "have": found.count, "next": record.first},
            )
        if record.sid not in self._met and record.first < found.count:
            found.write_again(record.first)
        self._met.add(record.sid)
        found.add(record.entries[max(0, found.count - record.first) :])
        if record.name:
            size = len(record.blob)
            self._places.put(record.sid, record.name, Place(segment, end - size, size))

    def _rewrite(self, record: Append) -> None:
        """Whatever the file holds: it may have been written anew already, with later entries."""
        self._met.add(record.sid)
        self._logs.rewrite(record.sid, record.entries)

    def _purge(self, sid: SessionId) -> None:
        """Forgets a session, but not its folder: it may be that of another life of the same id,
        and then holds large blobs that are in no journal. `retain` knows what belongs there."""
        self._met.add(sid)
        self._places.forget_session(sid)
        self._logs.begin(sid)


def _say_cut(path: Path, size: int, *, is_last: bool) -> None:
    """Only the newest segment may end in a record that nobody was told about."""
    log.log(
        logging.INFO if is_last else logging.ERROR,
        "cut the tail of a journal segment",
        extra={"segment": path.name, "bytes": size},
    )
