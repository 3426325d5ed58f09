"""What one participant knows of a session, kept in step with the relay and the cache.

One lock guards the verified view and the cache's event log; network calls are made outside it, so
posts and streams run beside each other. Events are stored before the view takes them: a full disk
stops the reader before anything is missed. Blobs are fetched one at a time, in timeline order, and
only those of the kinds asked for: a sender that waits for its job needs not download the rest.

A bad event, envelope or blob is reported and skipped; it never stops a reader.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from airlox.client.answers import EventsPage
from airlox.client.blobs import BlobMissing, Blobs
from airlox.client.membership import Membership
from airlox.client.relay_api import RelayApi, WarningSink
from airlox.client.stream import Feed, soon
from airlox.client.transport import one_line
from airlox.errors import (
    ConnectionLost,
    DecryptError,
    EncodingError,
    ProtocolError,
    RelayError,
    SessionClosed,
    StorageError,
    UsageError,
)
from airlox.protocol import wire
from airlox.protocol.chain import Alarm, chosen_refs
from airlox.protocol.encoding import ItemId, PublicKey
from airlox.protocol.forgetting import forgotten_ranges, inputs_of, named_alone
from airlox.protocol.item import Envelope, Kind
from airlox.protocol.keys import Role
from airlox.protocol.limits import EVENT_JUMP
from airlox.protocol.manifest import Feature
from airlox.protocol.pack import open_with_any
from airlox.protocol.sse import SseEvent
from airlox.protocol.view import (
    Change,
    Event,
    Item,
    ItemStatus,
    Record,
    SessionView,
    parse_event,
)
from airlox.protocol.wire import EventKind, JobState

ALL_KINDS: Final = frozenset(Kind)
STANDING_KINDS: Final = frozenset({Kind.EVENT, Kind.RUNNER_INFO})
"""What says who may do what; small, and needed before anything is sent to a runner."""
ADDRESSED_KINDS: Final = frozenset({Kind.TEXT, Kind.FILE})
"""What may say whom it is for."""
WANTS_A_PASS: Final = 64
READ_EVENTS: Final = 2000
RECENT_JOBS: Final = 100
"""When a start reads more events than that, those of all finished jobs but the newest are put
aside: what a command costs does not grow with the jobs there ever were."""
_CUTTING: Final = frozenset({EventKind.REVOKED, EventKind.LEFT, EventKind.EPOCH})
MAX_PAGES: Final = 200
"""In one go: a relay that always has one more is not listened to for ever."""
COMPLAINTS: Final = 10
"""Most warnings about events of one session, and most about alarms, half of it of one author."""

T = TypeVar("T")


class Timeline:
    """The state of a session for one participant; safe to share between threads."""

    def __init__(self, membership: Membership, *, on_warning: WarningSink) -> None:
        self._me = membership
        self._on_warning = on_warning
        self._lock = threading.RLock()
        self._view = self._new_view()
        self._loaded = False
        self._recalled = False
        self._first_new_seq = 0
        self._not_held: set[ItemId] = set()
        """Items looked for in the cache in vain; what is fetched later is opened at once."""
        self._ended: SessionClosed | None = None
        self._complaints = 0
        self._epochs_told = False
        self._alarms_told: Counter[PublicKey] = Counter()
        self.blobs = Blobs(membership.cache)

    def _new_view(self) -> SessionView:
        me = self._me
        return SessionView(me.manifest, me.keys, me.key.public)

    def read(self, ask: Callable[[SessionView], T]) -> T:
        """What `ask` finds in the view. It runs under the lock: look, copy, return."""
        with self._lock:
            self._load()
            return ask(self._view)

    @property
    def ended(self) -> SessionClosed | None:
        """Why the session is over for this participant, or None."""
        with self._lock:
            return self._ended

    @property
    def first_new_seq(self) -> int:
        """Number of the first event that was not in the cache when this was opened."""
        return self.read(lambda view: self._first_new_seq)

    # -- taking events in --------------------------------------------------------------------

    def sync(
        self, kinds: Collection[Kind] = ALL_KINDS, *, api: RelayApi | None = None
    ) -> list[Change]:
        """Fetch the events since the last, and the blobs of items of `kinds`.

        After the session's end local history is all there is: then nothing is fetched, and
        `ended` says why. Raises RelayError, ConnectionLost, StorageError.
        """
        api = api or self._me.api
        if self.ended is not None:
            self.open_held()
            return []
        try:
            changes = self._catch_up(api)
        except SessionClosed as error:
            self.end(error)
            self.open_held()
            return []
        for change in changes:
            self._answer_want(change)
        self.give_due(api, at_once=True)
        self.fetch(kinds, api)
        return changes

    def _catch_up(self, api: RelayApi) -> list[Change]:
        """Take what happened since the last event; page by page where the session has pages.

        Whoever knows nothing yet asks for the newest of the finished jobs alone.
        """
        changes: list[Change] = []
        known = self._me.keys.number
        jobs = RECENT_JOBS if self.read(lambda view: view.last_seq) < 0 else None
        for _ in range(MAX_PAGES):
            last = self.read(lambda view: view.last_seq)
            page = self._ask(api, last if last >= 0 else None, jobs)
            if jobs is not None and any(event.kind == EventKind.GAP for event in page.events):
                self._me.cache.past_is_elsewhere()
            changes += self.take(page.events)
            if not page.more:
                self._check_epochs(known)
                break
            if self.read(lambda view: view.last_seq) <= last:
                break
        return changes

    def _check_epochs(self, known: int) -> None:
        """A relay that has shown all it has has shown the epochs that were known here before it was
        asked: by the cache, or since it told them at the join."""
        shown = self.read(lambda view: view.epochs.number)
        if shown < known and not self._epochs_told:
            self._epochs_told = True
            self._on_warning(
                f"the relay does not show epoch {shown + 1} of this session: what it shows may be "
                "by somebody whom the owner cut off"
            )

    def _ask(self, api: RelayApi, after: int | None, jobs: int | None = None) -> EventsPage:
        if self._me.manifest.has(Feature.HISTORY):
            return api.events_page(after, jobs=jobs)
        return EventsPage(api.events(after), more=False)

    def take(self, events: Sequence[Event]) -> list[Change]:
        """Store events and let the view step over them. Raises StorageError."""
        with self._lock:
            self._load()
            if any(event.kind == EventKind.FORGOTTEN for event in events):
                self._recall()  # what was put aside is forgotten too
            last = self._view.last_seq
            fresh = [event for event in events if event.seq > last]
            if not fresh:
                return []
            self._me.cache.append_events(fresh)
            changes = [self._view.step(event) for event in fresh]
            if any(event.kind == EventKind.EPOCH for event in fresh):
                self._me.cache.save_epochs(self._me.keys.documents)
            for event, change in zip(fresh, changes, strict=True):
                self._note_end(event, change)
            self._let_go(fresh, changes)
        self._complain(last, fresh, changes)
        return changes

    def _complain(self, last: int, events: Sequence[Event], changes: Sequence[Change]) -> None:
        """Tell of events that a relay should have sent and did not, and of joins that are none.

        A refused item needs no word here: it has a record that says why.
        """
        for event, change in zip(events, changes, strict=True):
            for alarm in change.alarms:
                self._tell_alarm(alarm)
            if change.kind == EventKind.PARTICIPANT and change.fault is not None:
                self._warn(f"a join was refused: {change.fault}")
            if event.seq <= last:
                continue
            if event.seq > last + EVENT_JUMP and event.kind != EventKind.GAP:
                self._warn(f"event {event.seq} was refused: its number jumps too far")
                continue
            if event.seq > last + 1 and event.kind != EventKind.GAP:
                self._warn(f"the relay left out its events {last + 1} to {event.seq - 1}")
            last = event.seq

    def _warn(self, text: str) -> None:
        """Tell it, but not without end: the relay decides how often there is cause."""
        self._complaints += 1
        if self._complaints <= COMPLAINTS:
            self._on_warning(text)

    def _tell_alarm(self, alarm: Alarm) -> None:
        """Bounded apart from complaints, so that a relay cannot drown it in those, and for each
        author, so that no participant can."""
        told = self._alarms_told
        if told.total() < COMPLAINTS and told[alarm.author] < COMPLAINTS // 2:
            told[alarm.author] += 1
            self._on_warning(str(alarm))

    def feed(self, *, wait_s: Callable[[int], float] = soon) -> Feed:
        """The session's live events after what the view has seen. `wait_s`: see Feed."""
        session_id = self._me.manifest.session_id

        def cursor() -> int | None:
            last = self.read(lambda view: view.last_seq)
            return last if last >= 0 else None

        return Feed(
            self._me.api,
            lambda: wire.stream(session_id),
            cursor=cursor,
            poll=lambda api: [_as_told(event) for event in self._ask(api, cursor()).events],
            on_warning=self._on_warning,
            wait_s=wait_s,
        )

    def take_live(
        self,
        event: SseEvent,
        kinds: Collection[Kind] = ALL_KINDS,
        *,
        api: RelayApi | None = None,
    ) -> list[Change]:
        """Take one event of `feed`: fetch the blob it announces, remember whom to help."""
        try:
            parsed = parse_event(event.id, event.event, event.data)
        except EncodingError as error:
            return [Change(event.event, fault=error.message)]
        changes = self.take([parsed])
        for change in changes:
            self._answer_want(change)
            if change.kind in (EventKind.ITEM, EventKind.RESEEDED):
                self.fetch(kinds, api or self._me.api)
        return changes

    # -- items -------------------------------------------------------------------------------

    def fetch(self, kinds: Collection[Kind], api: RelayApi) -> None:
        """Open every pending item of `kinds`, downloading what is not here.

        A blob that cannot be had now, or not in the time `api` has, stays pending. Raises
        StorageError.
        """
        self.blobs.retry_acknowledging(api)
        self.open_held(kinds)
        for envelope in self._in_status(kinds, ItemStatus.PENDING):
            if api.over:
                return
            self.open(envelope, api)

    def open_held(self, kinds: Collection[Kind] = ALL_KINDS) -> None:
        """Open what the cache holds of `kinds`, evicted or not, without asking the relay."""
        for envelope in self._in_status(kinds, ItemStatus.PENDING, ItemStatus.EVICTED):
            if envelope.id in self._not_held:
                continue
            blob = self.blobs.held(envelope)
            if blob is not None:
                self._accept(envelope, blob)
            else:
                self._not_held.add(envelope.id)

    def open(self, envelope: Envelope, api: RelayApi) -> Item | None:
        """The item behind an envelope that the view announced, or None when it cannot be had."""
        blob = self.blobs.held(envelope)
        if blob is not None:
            return self._accept(envelope, blob)
        try:
            blob = self.blobs.fetch(envelope, api)
        except BlobMissing as missing:
            if missing.evicted:
                self._mark_evicted(envelope.id)
            return None
        item = self._accept(envelope, blob)
        if item is not None:
            self.blobs.keep(envelope, blob, api)
        return item

    def find(self, item_id: str, api: RelayApi | None = None) -> Item | None:
        """The item of an id, fetched when it is announced but not here; None otherwise."""
        record = self.read(lambda view: view.records.get(ItemId(item_id)))
        if record is None:
            self.recall()
            record = self.read(lambda view: view.records.get(ItemId(item_id)))
        if record is None or record.envelope is None:
            return None
        if record.item is not None or record.status is ItemStatus.REFUSED:
            return record.item
        return self.open(record.envelope, api or self._me.api)

    def want_missing(self, api: RelayApi) -> None:
        """Ask for evicted items that are not here, and fetch what comes back at once."""
        missing = self.read(
            lambda view: [
                record.envelope
                for record in view.records.values()
                if record.status is ItemStatus.EVICTED and record.envelope is not None
            ]
        )
        for envelope in missing[-WANTS_A_PASS:]:
            if api.over:
                return
            if self.blobs.want(envelope, api):
                self.open(envelope, api)

    def announced(self, item_id: ItemId, api: RelayApi) -> str | None:
        """The envelope that the relay announced under an id, after asking for news."""
        self._catch_up(api)
        record = self.read(lambda view: view.records.get(item_id))
        if record is None or record.envelope is None:
            return None
        return record.envelope.document

    def knows(self, item_id: ItemId) -> bool:
        """Whether the relay has announced an item here."""
        return self.read(lambda view: item_id in view.records)

    def in_current_epoch(self, attempt: Callable[[], T], api: RelayApi) -> T:
        """What `attempt` gives, which seals something and sends it; once more whenever the relay
        refuses it for its epoch and news tell of a newer one."""
        while True:
            before = self._me.keys.number
            try:
                return attempt()
            except RelayError as error:
                if error.code != "old_epoch":
                    raise
                self._catch_up(api)
                if self._me.keys.number <= before:
                    raise

    def open_sealed(self, open_under: Callable[[bytes], bytes], api: RelayApi) -> bytes:
        """What opens under one of the session's keys, those of epochs included that began just now.

        Raises as `open_under`, ConnectionLost, RelayError.
        """
        keys = self._me.keys
        try:
            return open_with_any(keys.newest_first(), open_under)
        except DecryptError:
            before = keys.number
            self._catch_up(api)
            if keys.number <= before:
                raise
            return open_with_any(keys.newest_first(), open_under)

    def alarms(self) -> tuple[Alarm, ...]:
        """Signs that the relay drops, moves or repeats items, in all that is kept here."""
        self.recall()
        return self.read(lambda view: view.chain.alarms)

    def records(self) -> list[Record]:
        """Every announced item with what is known of it, in the relay's order."""
        return self.read(lambda view: sorted(view.records.values(), key=lambda r: r.seq))

    def items_after(self, seq: int) -> Iterator[Item]:
        """The opened items numbered after `seq`, in the relay's order."""
        items = self.read(lambda view: [item for item in view.items() if item.seq > seq])
        return iter(items)

    # -- helping others ----------------------------------------------------------------------

    def give_due(self, api: RelayApi, *, at_once: bool = False) -> None:
        """Put back blobs that others want and this cache holds."""
        for item in self.blobs.take_gifts(all_of_them=at_once):
            record = self.read(lambda view, item=item: view.records.get(ItemId(item)))  # type: ignore[misc]
            if record is not None and record.envelope is not None:
                self.blobs.give(record.envelope, api)

    def _answer_want(self, change: Change) -> None:
        if change.item is None or change.fault is not None:
            return
        if change.kind == EventKind.WANT and change.participant != self._me.key.public:
            self.blobs.schedule_gift(change.item)
        elif change.kind == EventKind.RESEEDED:
            self.blobs.cancel_gift(change.item)

    # -- the lock's side ---------------------------------------------------------------------

    def _load(self) -> None:
        """Bring in what the cache knows, once; of finished jobs only the newest."""
        if not self._loaded:
            self._loaded = True
            events = self._me.cache.load_events()
            self._replay(events)
            self._first_new_seq = self._view.last_seq + 1
            if len(events) > READ_EVENTS and self._me.manifest.has(Feature.HISTORY):
                self._put_aside(events)

    def _put_aside(self, events: Sequence[Event]) -> None:
        """Left undone, on a full disk say, it only costs time."""
        past = past_numbers(self._view, events, RECENT_JOBS)
        if len(past) >= READ_EVENTS // 2:
            with suppress(StorageError):
                self._me.cache.put_aside(past)

    def _replay(self, events: Sequence[Event]) -> None:
        changes = [self._view.step(event) for event in events]
        for event, change in zip(events, changes, strict=True):
            self._note_end(event, change)
        self._let_go(events, changes)

    def recall(self) -> None:
        """Bring in the finished jobs that were put aside: for lists, and for who asks for one.

        Where they are at the relay only they are fetched; that they cannot be had is told.
        """
        if self._me.cache.has_all:
            self._recall()
            return
        try:
            left_out = self._all_events()
        except (ConnectionLost, RelayError, SessionClosed) as error:
            self._warn(f"of finished jobs only the newest are known here: {error.message}")
            self._recall()
            return
        with self._lock:
            self._load()
            last = self._view.last_seq
            here = {event.seq for event in self._me.cache.load_events() if not _is_gap(event)}
            past = [e for e in left_out if e.seq <= last and e.seq not in here and not _is_gap(e)]
            self._me.cache.take_past(past)
            self._recalled = False
            self._recall(past)

    def _all_events(self) -> list[Event]:
        """Every event that the relay has."""
        found: list[Event] = []
        for _ in range(MAX_PAGES):
            page = self._ask(self._me.api, found[-1].seq if found else None)
            found += page.events
            if not page.more or not page.events:
                break
        return found

    def _recall(self, fetched: Sequence[Event] = ()) -> None:
        """Bring in what the cache put aside, and what was just fetched."""
        with self._lock:
            self._load()
            if self._recalled or not self._me.manifest.has(Feature.HISTORY):
                return
            self._recalled = True
            past = [*self._me.cache.load_past(), *fetched]
            if not past:
                return
            known = {event.seq: event for event in [*self._me.cache.load_events(), *past]}
            self._view = self._new_view()
            self._replay([known[seq] for seq in sorted(known)])
            self._not_held.clear()
            self.open_held(STANDING_KINDS)

    def _let_go(self, events: Sequence[Event], changes: Sequence[Change]) -> None:
        """Have the cache forget what the view forgot. Left undone, it is done at the next start."""
        ranges: list[tuple[int, int]] = []
        for event, change in zip(events, changes, strict=True):
            if change.forgotten:
                ranges += forgotten_ranges(event)
                self._not_held.difference_update(change.forgotten)
        gone = [item for change in changes for item in change.forgotten]
        if not gone:
            return
        keep = {record.seq for record in self._view.records.values()}
        keep.update(participant.seq for participant in self._view.participants.values())
        keep.update(self._view.epoch_seqs)
        with suppress(StorageError, OSError):
            for item in gone:
                self._me.cache.drop_blob(item)
            self._me.cache.forget_events(sorted(set(ranges)), keep)

    def forgotten(self, item: str) -> UsageError | None:
        """The error for an item that is not known, where the relay may have forgotten it."""
        self.recall()
        gone = self.read(lambda v: v.has_forgotten and ItemId(item) not in v.records)
        if not gone:
            return None
        return UsageError(
            f"{item[:40]!r} is not in this session any more, or never was: "
            "its relay forgets finished jobs after a while",
            code="forgotten",
            hint="list those it still knows with: airlox job ls",
        )

    def _in_status(self, kinds: Collection[Kind], *statuses: ItemStatus) -> list[Envelope]:
        return self.read(
            lambda view: [
                record.envelope
                for record in view.records.values()
                if record.status in statuses
                and record.envelope is not None
                and record.envelope.header.kind in kinds
            ]
        )

    def _accept(self, envelope: Envelope, blob: bytes) -> Item | None:
        """The view's word on a blob; a refusal is told once and final."""
        try:
            with self._lock:
                item = self._view.open(envelope.id, blob)
                alarms = self._view.check_links(item)
                is_new = item.seq >= self._first_new_seq
        except ProtocolError as error:
            self._on_warning(f"item {envelope.id} was refused: {error.message}")
            return None
        for alarm in alarms if is_new else ():
            self._tell_alarm(alarm)
        return item

    def _mark_evicted(self, item: ItemId) -> None:
        with self._lock:
            record = self._view.records.get(item)
            if record is not None and record.status is ItemStatus.PENDING:
                record.status = ItemStatus.EVICTED

    def _note_end(self, event: Event, change: Change) -> None:
        """Whether this event ends the session for this participant."""
        mine = self._me.key.public
        if event.kind == EventKind.CLOSED and change.fault is None:
            reason = self._view.closed or "closed"
            self._ended = SessionClosed(
                f"session {self._me.manifest.session_id} has ended: {one_line(reason)}",
                code="session_gone",
            )
        elif event.kind in _CUTTING and change.fault is None:
            participant = self._view.participants.get(mine)
            if participant is not None and participant.left:
                self._ended = SessionClosed(
                    f"this participant left session {self._me.manifest.session_id} or was cut off",
                    code="cut_off",
                )

    def end(self, error: SessionClosed) -> None:
        """Note that the relay ended the session for this participant."""
        with self._lock:
            self._ended = self._ended or error


def past_numbers(view: SessionView, events: Sequence[Event], recent: int) -> set[int]:
    """Numbers of the events of finished jobs, the `recent` newest jobs apart."""
    over = [
        item
        for item, record in view.records.items()
        if record.envelope is not None
        and record.envelope.header.kind is Kind.JOB
        and (word := view.relay_jobs.get(item)) is not None
        and word.state in (JobState.FINISHED, JobState.FAILED)
    ]
    gone = set(over[: max(0, len(over) - recent)])
    inputs = inputs_of(view.records, gone)
    for item, record in view.records.items():
        if record.envelope is None or record.envelope.header.kind is not Kind.RESULT:
            continue
        names = [ItemId(ref.id) for ref in chosen_refs(record.envelope.header)]
        if names and names[0] in gone:
            gone |= {item, *(name for name in names if _is_runners_file(view, name))}
    gone |= named_alone(view.records, inputs, gone)
    announced = {view.records[item].seq for item in gone}
    return announced | {event.seq for event in events if _subject(event) in gone}


def _is_runners_file(view: SessionView, item: ItemId) -> bool:
    record = view.records.get(item)
    return (
        record is not None
        and record.envelope is not None
        and record.author is not None
        and record.author.role is Role.RUNNER
        and record.envelope.header.kind is Kind.FILE
    )


def _is_gap(event: Event) -> bool:
    return event.kind == EventKind.GAP


def _subject(event: Event) -> object:
    """The item whose job's state or blob an event is about."""
    return event.data.get("job" if event.kind == EventKind.JOB else "item")


def _as_told(event: Event) -> SseEvent:
    """An event as the stream would have told it."""
    return SseEvent(str(event.seq), event.kind, msgspec.json.encode(event.data).decode())
