"""Where small blobs lie that are still in the journal only, and which blobs are to go.

Safe between threads: a blob that comes back while its deletion still waits is kept. The lock is
held for moments only, since the event loop takes it too: no file is deleted under it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple

from airlox.protocol.encoding import SessionId
from airlox.relay.store.journal import Segment
from airlox.relay.store.layout import remove


class Place(NamedTuple):
    """Bytes inside a segment of the journal."""

    segment: Segment
    offset: int
    size: int

    def read(self) -> bytes:
        return os.pread(self.segment.fd, self.size, self.offset)


class Places:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[SessionId, dict[str, Place]] = {}
        self._doomed: set[tuple[SessionId, str]] = set()

    def put(self, sid: SessionId, name: str, place: Place) -> None:
        with self._lock:
            self._doomed.discard((sid, name))
            self._found.setdefault(sid, {})[name] = place

    def put_file(self, sid: SessionId, name: str, temporary: Path, path: Path) -> None:
        """Gives a received file its name. Raises OSError."""
        with self._lock:
            self._doomed.discard((sid, name))
            os.rename(temporary, path)

    def read(self, sid: SessionId, name: str) -> bytes | None:
        """The blob if it lies in the journal. The lock keeps its segment open."""
        with self._lock:
            place = self._found.get(sid, {}).get(name)
            doomed = (sid, name) in self._doomed
            return None if place is None or doomed else place.read()

    def is_doomed(self, sid: SessionId, name: str) -> bool:
        """Whether the blob is only waiting for its deletion."""
        with self._lock:
            return (sid, name) in self._doomed

    def in_segment(self, segment: Segment) -> list[tuple[SessionId, str, Place]]:
        """What lay in a segment a moment ago. Copies of dictionaries need no lock."""
        return [
            (sid, name, place)
            for sid, places in self._found.copy().items()
            for name, place in places.copy().items()
            if place.segment is segment
        ]

    def forget(self, sid: SessionId, name: str, place: Place) -> None:
        """The blob has a file now (unless it has been put anew meanwhile)."""
        with self._lock:
            if self._found.get(sid, {}).get(name) is place:
                self._discard(sid, name)

    def forget_session(self, sid: SessionId) -> None:
        with self._lock:
            self._found.pop(sid, None)

    def retain(self, sid: SessionId, names: set[str]) -> None:
        """Forgets the blobs of a session that are not in `names`."""
        with self._lock:
            for name in self._found.get(sid, {}).keys() - names:
                self._discard(sid, name)

    def doom(self, sid: SessionId, name: str) -> None:
        """Announces a deletion that `delete` carries out."""
        with self._lock:
            self._doomed.add((sid, name))

    def delete(self, sid: SessionId, name: str, path: Path, aside: Path) -> None:
        """Deletes a doomed blob; `aside` is a name for it until the system has freed its bytes."""
        with self._lock:
            if (sid, name) not in self._doomed:
                return
            self._doomed.discard((sid, name))
            self._discard(sid, name)
            try:
                os.rename(path, aside)
            except FileNotFoundError:
                return
            except OSError:  # a full disk has no room for the new name
                aside = path
        remove(aside)

    def _discard(self, sid: SessionId, name: str) -> None:
        places = self._found.get(sid)
        if places is not None:
            places.pop(name, None)
            if not places:
                del self._found[sid]
