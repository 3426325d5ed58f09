"""What a participant keeps on disk of one session: identity, events, ciphertext.

The layout is that of 0.1.0, so either software may take up the other's cache:

    <root>/<session id>/
        manifest.json             the signed manifest
        identity-<role>.json      the participant's seed and token (a runner's: runner-<name>)
        events.jsonl              one event a line, as the relay sent it
        blobs/<item id>           sealed bytes
        state/                    ours alone; 0.1.0 ignores it

Rules: folders 0700, files 0600; the session key and the invite are never stored; several
processes of one participant may share a cache (a lock file orders their writes); whatever is read
back is as untrusted as the relay's answers and is verified by the view again. A line of
`events.jsonl` that does not continue the numbering is passed over, so torn, repeated and lost
lines only cost a second fetch. In sessions with `history` a `gap` event stands for those that
were forgotten, and the file is replaced by a shorter one now and then. Caches of expired sessions
are swept.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import Final

import msgspec

from airlox import safefs
from airlox.client.answers import parse_event
from airlox.client.filelock import file_lock
from airlox.errors import StorageError
from airlox.protocol.limits import MANIFEST_BYTES, TIMELINE_BYTES
from airlox.protocol.ranges import in_ranges
from airlox.protocol.view import Event
from airlox.protocol.wire import EventKind

SWEEP_EVERY_S: Final = 3600.0
EXPIRED_KEPT_MS: Final = 3 * 86_400_000
"""What is kept of a session goes this long after its expiry: a clock that is wrong by days must
not cost anybody the identity of a session that lives."""
EVENTS_BYTES: Final = 2 * TIMELINE_BYTES
"""Bound of `events.jsonl`: what a reader keeps of a session, and room for its escapes."""
PAST: Final = "past.jsonl"
ELSEWHERE: Final = "past-at-the-relay"
"""There as long as `PAST` lacks what the relay was asked to leave out."""
EPOCHS: Final = "epochs.json"
EPOCHS_BYTES: Final = TIMELINE_BYTES
SMALL_BYTES: Final = 64 * 1024

_SESSION_FOLDER: Final = re.compile(r"ax_[a-z2-7]{26}\Z")


class Identity(msgspec.Struct, frozen=True):
    """Who this cache is in the session. Secrets never show in `repr`."""

    participant_seed: bytes
    token: str
    base_url: str

    def __repr__(self) -> str:
        return f"Identity(base_url={self.base_url!r})"


class _IdentityFile(msgspec.Struct, omit_defaults=True):
    participant_seed: str
    token: str
    base_url: str
    role: str | None = None


class _Expiry(msgspec.Struct):
    expires_at_ms: int | None = None


class _ManifestFile(msgspec.Struct):
    manifest: _Expiry


def default_root(environ: Mapping[str, str] = os.environ) -> str:
    """Where caches live: AIRLOX_CACHE_DIR, else `airlox` in the user's cache folder.

    Raises StorageError for a user without a home, as containers have them.
    """
    if chosen := environ.get("AIRLOX_CACHE_DIR"):
        return chosen
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # which is to be ignored then
        base = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        raise StorageError(
            "this user has no home folder to keep sessions in",
            code="no_home",
            hint="set AIRLOX_CACHE_DIR to a folder that this user may write to",
        )
    return os.path.join(base, "airlox")


class SessionCache:
    """The files of one participant in one session. Safe to share between threads that hold the
    session's lock, and between processes."""

    def __init__(self, root: str | os.PathLike[str], session_id: str) -> None:
        self.folder = os.path.join(os.fspath(root), session_id)
        self._events = _EventLog(os.path.join(self.folder, "events.jsonl"))

    def make(self) -> None:
        """Create the folders where they are missing. Raises StorageError.

        A root that exists keeps its mode: it may be a folder with other things in it.
        """
        root = os.path.dirname(self.folder)
        if not os.path.isdir(root):
            safefs.make_private_dir(root)
        for folder in (self.folder, self._path("blobs")):
            safefs.make_private_dir(folder)

    def locked(self) -> AbstractContextManager[None]:
        """Hold the event log against other processes, for as long as writing it takes."""
        return file_lock(self._path(".lock"), f"the cache {self.folder}")

    def joining(self) -> AbstractContextManager[None]:
        """Hold the right to join from this cache, so that two processes become one participant.

        Apart from `locked`, since joining waits for the relay. Neither is reentrant; both raise
        StorageError.
        """
        return file_lock(self._path(".join"), f"the cache {self.folder}")

    # -- who ---------------------------------------------------------------------------------

    def load_manifest(self) -> str | None:
        """The signed manifest, unverified, or None."""
        data = self._read("manifest.json", MANIFEST_BYTES)
        return None if data is None else data.decode("utf-8", "replace").strip()

    def save_manifest(self, document: str) -> None:
        safefs.write_private(self._path("manifest.json"), document.encode())

    def load_epochs(self) -> list[str]:
        """Documents of the epochs that were learned, unverified. Damaged ones are none."""
        data = self.load_state(EPOCHS, EPOCHS_BYTES)
        try:
            return [] if data is None else msgspec.json.decode(data, type=list[str])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return []

    def save_epochs(self, documents: Sequence[str]) -> None:
        """Keep them beside the events: whoever only sends reads no events first."""
        self.save_state(EPOCHS, msgspec.json.encode(documents))

    def load_identity(self, name: str) -> Identity | None:
        """The identity called `name`: a role, or `runner-<name>`. A damaged one is None."""
        data = self._read(f"identity-{name}.json", SMALL_BYTES, own=True)
        if data is None:
            return None
        try:
            found = msgspec.json.decode(data, type=_IdentityFile)
            seed = bytes.fromhex(found.participant_seed)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        usable = len(seed) == 32 and found.token.isascii() and found.token.isprintable()
        return Identity(seed, found.token, found.base_url) if usable else None

    def save_identity(self, name: str, identity: Identity) -> None:
        runner = name.startswith("runner-")
        stored = _IdentityFile(
            participant_seed=identity.participant_seed.hex(),
            token=identity.token,
            base_url=identity.base_url,
            role=None if runner else name,
        )
        safefs.write_private(self._path(f"identity-{name}.json"), msgspec.json.encode(stored))

    # -- what happened -----------------------------------------------------------------------

    def load_events(self) -> list[Event]:
        """The events stored so far, numbered from 0 without a gap that is not told of."""
        return self._events.load()

    def forget_events(self, ranges: Sequence[tuple[int, int]], keep: Collection[int]) -> None:
        """Write the log anew without the events of these ascending ranges, those numbered `keep`
        apart; a `gap` event stands for each run of them."""

        def goes(event: Event) -> bool:
            return in_ranges(event.seq, ranges) and event.seq not in keep

        with self.locked():
            past = self._load_past()
            kept = [event for event in past if not goes(event)]
            if len(kept) < len(past):
                self._save_past(kept)
            self._events.let_go(goes)

    def load_past(self) -> list[Event]:
        """Events that were put aside, ascending."""
        with self.locked():
            return self._load_past()

    def put_aside(self, numbers: Set[int]) -> None:
        """Move events from the log, which every command reads, to those that few ask for."""
        with self.locked():
            known = {event.seq: event for event in self._load_past()}
            known |= {event.seq: event for event in self._events.load() if event.seq in numbers}
            if self._save_past([known[seq] for seq in sorted(known)]):
                self._events.let_go(lambda event: event.seq in numbers)

    @property
    def has_all(self) -> bool:
        """Whether what was put aside is here, not only at the relay."""
        return not os.path.lexists(self._path("state", ELSEWHERE))

    def past_is_elsewhere(self) -> None:
        """Note, before such events are stored, that the relay left some out because it was asked
        to."""
        self.save_state(ELSEWHERE, b"")

    def take_past(self, events: Sequence[Event]) -> None:
        """Put aside what the relay had left out."""
        with self.locked():
            known = {event.seq: event for event in (*self._load_past(), *events)}
            if self._save_past([known[seq] for seq in sorted(known)]):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path("state", ELSEWHERE))

    def _load_past(self) -> list[Event]:
        data = self.load_state(PAST, EVENTS_BYTES) or b""
        events = (parse_event(line) for line in data.splitlines())
        return [event for event in events if event is not None]

    def _save_past(self, events: Sequence[Event]) -> bool:
        """False when they are more than is ever read."""
        data = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        if len(data) > EVENTS_BYTES:
            return False
        self.save_state(PAST, data)
        return True

    def append_events(self, events: Sequence[Event]) -> None:
        """Store events that continue the numbering; those another process stored are passed."""
        with self.locked():
            self._events.append(events)

    # -- sealed bytes ------------------------------------------------------------------------

    def load_blob(self, item: str, size: int) -> bytes | None:
        """The sealed bytes of an item, when exactly `size` of them are here."""
        data = self._read(os.path.join("blobs", item), size)
        return data if data is not None and len(data) == size else None

    def save_blob(self, item: str, blob: bytes) -> None:
        safefs.write_private(self._path("blobs", item), blob)

    def drop_blob(self, item: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path("blobs", item))

    # -- our own state -----------------------------------------------------------------------

    def load_state(self, name: str, limit_bytes: int) -> bytes | None:
        """A file of our own, absent in caches made by 0.1.0."""
        return self._read(os.path.join("state", name), limit_bytes)

    def save_state(self, name: str, data: bytes) -> None:
        safefs.make_private_dir(self._path("state"))
        safefs.write_private(self._path("state", name), data)

    def state_path(self, name: str) -> str:
        """Where a file of our own lives, for whoever reads and writes it alone."""
        safefs.make_private_dir(self._path("state"))
        return self._path("state", name)

    def delete(self) -> None:
        """Remove everything kept of the session."""
        _remove_folder(self.folder)

    def _path(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)

    def _read(self, name: str, limit_bytes: int, *, own: bool = False) -> bytes | None:
        try:
            return safefs.read_bounded(self._path(name), limit_bytes, own=own)
        except StorageError as error:
            if error.code in ("not_found", "too_large"):
                return None
            raise


class _EventLog:
    """`events.jsonl`: appended by any process, read in order.

    Full at `EVENTS_BYTES`: later events are not kept, and each process fetches them again. So a
    relay that talks without end fills no disk.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0
        self._file = 0
        """Which file was looked at last: forgetting puts another in its place."""
        self._last = -1

    def load(self) -> list[Event]:
        self._offset, self._last = 0, -1
        return self._catch_up()

    def append(self, events: Sequence[Event]) -> None:
        self._catch_up()  # what another process has stored meanwhile
        room = EVENTS_BYTES - self._size()
        for event in events:
            if _continues(event, self._last):
                line = msgspec.json.encode(event)
                room -= len(line) + 2  # its end, and that of a torn line before it
                if room < 0:
                    break
                safefs.append_line(self._path, line, sync=False)
                self._last = event.seq
        self._offset, self._file = self._size(), self._number()

    def let_go(self, goes: Callable[[Event], bool]) -> None:
        """Write the file anew without some events; a `gap` stands for each run of them."""
        last, first_gone, lines = self._last, None, []
        self._offset, self._last = 0, -1
        for event in self._catch_up():
            first = event.data["first"] if event.kind == EventKind.GAP else event.seq
            if event.kind == EventKind.GAP or goes(event):
                first_gone = first if first_gone is None else first_gone
                gone_to = event.seq
                continue
            if first_gone is not None:
                lines.append(msgspec.json.encode(_gap(first_gone, gone_to)))
                first_gone = None
            lines.append(msgspec.json.encode(event))
        if first_gone is not None:
            lines.append(msgspec.json.encode(_gap(first_gone, gone_to)))
        safefs.write_private(self._path, b"".join(line + b"\n" for line in lines))
        self._offset, self._file = self._size(), self._number()
        self._last = max(last, self._last)

    def _catch_up(self) -> list[Event]:
        """The events stored since the last look that continue the numbering."""
        events: list[Event] = []
        for line in self._new_lines():
            event = parse_event(line)
            if event is not None and _continues(event, self._last):
                self._last = event.seq
                events.append(event)
        return events

    def _new_lines(self) -> list[bytes]:
        size, number = self._size(), self._number()
        if number != self._file:  # replaced: what stands in it again is passed over
            self._offset, self._file = 0, number
        if size == self._offset:
            return []
        if size > EVENTS_BYTES:  # not by this client: as good as none
            self._offset = size
            return []
        data = safefs.read_bounded(self._path, EVENTS_BYTES)
        # a file that shrank was replaced: what stands in it is old news, to be passed over
        new = data[self._offset :] if len(data) >= self._offset else data
        self._offset = len(data)
        return new.split(b"\n")

    def _number(self) -> int:
        try:
            return os.stat(self._path).st_ino
        except FileNotFoundError:
            return 0

    def _size(self) -> int:
        try:
            return os.path.getsize(self._path)
        except FileNotFoundError:
            return 0


def _continues(event: Event, last: int) -> bool:
    """Whether an event is the next after number `last`, or tells of a gap that begins there."""
    if event.kind == EventKind.GAP:
        first = event.data.get("first")
        return type(first) is int and 0 <= first <= last + 1 <= event.seq
    return event.seq == last + 1


def _gap(first: int, last: int) -> Event:
    return Event(last, EventKind.GAP, {"first": first})


def sweep(root: str, now_ms: int) -> None:
    """Delete the caches under `root` whose session expired `EXPIRED_KEPT_MS` ago, and in the
    others what killed processes left unfinished; at most once an hour.

    Folders that hold no readable manifest are not deleted. Never raises.
    """
    with contextlib.suppress(OSError, StorageError):
        marker = os.path.join(root, ".swept")
        with contextlib.suppress(FileNotFoundError):
            if 0 <= time.time() - os.stat(marker).st_mtime < SWEEP_EVERY_S:
                return
        names = [name for name in os.listdir(root) if _SESSION_FOLDER.match(name)]
        safefs.write_private(marker, b"")
        for name in names:
            folder = os.path.join(root, name)
            expires_at_ms = _expiry(folder)
            if expires_at_ms is not None and expires_at_ms + EXPIRED_KEPT_MS <= now_ms:
                _remove_folder(folder)
            else:
                for part in ("", "blobs", "state"):
                    _remove_unfinished(os.path.join(folder, part))


def _expiry(folder: str) -> int | None:
    try:
        data = safefs.read_bounded(os.path.join(folder, "manifest.json"), MANIFEST_BYTES)
        return msgspec.json.decode(data, type=_ManifestFile).manifest.expires_at_ms
    except (StorageError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _remove_unfinished(folder: str) -> None:
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            if entry.name.startswith(safefs.TEMPORARY):
                age_s = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if age_s > SWEEP_EVERY_S:
                    os.unlink(entry.path)


def _remove_folder(folder: str) -> None:
    import shutil  # slow to import, rarely needed

    shutil.rmtree(folder, ignore_errors=True)
