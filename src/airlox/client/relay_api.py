"""Every HTTP call to a relay, with its meaning, its bounds and its errors.

Rules:

* each call has one deadline over all its reads and tries;
* only calls that change nothing when repeated are repeated here; posts of items and jobs are
  repeated by `outbox.py`, which knows what a repetition may find;
* a refusal is a RelayError with the relay's code; a broken line is ConnectionLost; where the wire
  says that an answer ends the session (events and streams), it is SessionClosed;
* nothing the relay says is believed (`answers.py`); when it says how long to wait, a call waits so
  long, but not beyond its deadline;
* a local clock more than a minute away from the relay's is told to `on_warning`, once.

Paths and header names are in `protocol/wire.py`; connections in `transport.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

import msgspec

from airlox import __version__
from airlox.client.answers import (
    FOREIGN,
    Assigned,
    AssignedAnswer,
    DeliveryAnswer,
    DeliveryEntry,
    EventsAnswer,
    EventsPage,
    JobStatus,
    ManifestAnswer,
    PackEntry,
    PacksAnswer,
    PageAnswer,
    PostedAnswer,
    RunnerEntry,
    RunnersAnswer,
    TokenAnswer,
    asked_wait_s,
    check_values,
    decode,
    known_key,
    lenient,
    not_a_relay,
    numbered,
    refusal_of,
)
from airlox.client.connection import READ_BYTES
from airlox.client.deadline import Deadline
from airlox.client.progress import Moved, OnProgress, teller
from airlox.client.transport import Answer, Line, Transport
from airlox.errors import ConnectionLost, ProtocolError, RelayError, SessionClosed
from airlox.protocol import wire
from airlox.protocol.limits import (
    BLOB_OVERHEAD_BYTES,
    MIB,
    PACK_BYTES,
    PAGE_BYTES,
    PAGE_EVENTS,
)
from airlox.protocol.sse import SseEvent, SseParser
from airlox.protocol.view import Event

USER_AGENT: Final = f"airlox/{__version__}"
CALL_TIMEOUT_S: Final = 30.0
TERMS_BYTES: Final = wire.ANSWER_BYTES
"""A manifest, and as many epochs as a session may have."""
SMALL_BYTES: Final = 1 * MIB
"""Bound of the short answers: everything but events, lists, blobs and audits."""
PAGE_ANSWER_BYTES: Final = 2 * PAGE_BYTES
TOKEN_CHARS: Final = 4096
RUNNERS: Final = 1024
"""Most runners of a list that are looked at: each costs the check of a signature."""
NEWS: Final = 65_536
"""Most events of a job that are taken from one answer; the next has the others."""
CLOCK_SLACK_S: Final = 60.0
RETRIES: Final = 3
RETRY_WAIT_S: Final = 0.3
_WAIT_AND_RETRY: Final = frozenset({429, 502, 503, 504})

T = TypeVar("T")


WarningSink = Callable[[str], None]


def _ignore(_: str) -> None:
    """The warning sink of callers that have none."""


class RelayApi:
    """The calls of one participant in one session of one relay; safe to share between threads.

    `token` is set once joined. `on_warning` is called from whichever thread makes a call, and so is
    `on_progress`, where someone sets it.
    """

    def __init__(
        self,
        transport: Transport,
        session_id: str,
        *,
        token: str | None = None,
        on_warning: WarningSink = _ignore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.session_id = session_id
        self.token = token
        self.on_progress: OnProgress | None = None
        self._transport = transport
        self._clock = _ClockCheck(clock, on_warning)
        self._closed = threading.Event()
        self._whole = True
        self._until = Deadline.after(None)

    def within(self, deadline: Deadline) -> RelayApi:
        """The same calls on the same connections, each ended by `deadline` at the latest."""
        bounded = object.__new__(RelayApi)
        bounded.__dict__.update(self.__dict__)
        bounded._until = deadline.within(self._until)
        return bounded

    def scope(self, deadline: Deadline) -> RelayApi:
        """Like `within`, with a `close` that ends only the calls of this one."""
        scoped = self.within(deadline)
        scoped._closed = threading.Event()
        scoped._whole = False
        return scoped

    @classmethod
    def connect(
        cls,
        base_url: str,
        session_id: str,
        *,
        token: str | None = None,
        plain_http: bool = False,
        on_warning: WarningSink = _ignore,
    ) -> RelayApi:
        """The API of the relay at `base_url`. Nothing is sent yet.

        With `plain_http` the address may be http to another machine: then no more than the
        manifest may be asked for before that is known to allow it. Raises ValidationError.
        """
        transport = Transport(base_url, user_agent=USER_AGENT, plain_http=plain_http)
        return cls(transport, session_id, token=token, on_warning=on_warning)

    @property
    def relay(self) -> str:
        """The relay's address for messages."""
        return self._transport.address.label

    def connect_ahead(self) -> None:
        """Begin to connect, while something else is done before the next call."""
        self._transport.connect_ahead()

    def close(self) -> None:
        """End every call of this object, from any thread, and of the first one every stream.

        Safe to repeat.
        """
        self._closed.set()
        if self._whole:
            self._transport.close()
        else:
            self._transport.cut(self._closed)

    @property
    def over(self) -> bool:
        """Whether no further call can succeed: closed, or the time is over."""
        return self._closed.is_set() or self._transport.closed or self._until.passed

    def pause(self, seconds: float) -> bool:
        """Wait, or return False at once when this object is closed."""
        return not self._closed.wait(seconds)

    # -- the session -------------------------------------------------------------------------

    def create(self, manifest: str) -> None:
        self._call("POST", wire.SESSIONS, manifest.encode(), auth=False)

    def fetch_manifest(self) -> str:
        """The signed manifest, unverified. Raises SessionClosed when the relay has none."""
        return self.fetch_terms().signed_manifest

    def fetch_terms(self) -> ManifestAnswer:
        """The signed manifest and epochs, unverified. Raises as `fetch_manifest`."""
        try:
            answer = self._get(wire.session(self.session_id), auth=False, limit=TERMS_BYTES)
        except RelayError as error:
            if _is_gone(error):
                raise SessionClosed(
                    f"the relay at {self.relay} has no session {self.session_id}",
                    code="session_gone",
                    hint="it has ended, or the link names another relay",
                ) from error
            raise
        return decode(answer, ManifestAnswer, "manifest", self.relay)

    def join(self, signed_join: str, secret: str) -> str:
        """Join and return the token.

        With the same 32-byte `secret` (base64url) a relay of ours gives the same token again, so
        this is repeated when the answer was lost; another relay then answers 409 `exists`.
        """
        answer = self._repeat(
            "POST",
            wire.participants(self.session_id),
            signed_join.encode(),
            auth=False,
            headers={wire.Headers.JOIN_SECRET: secret},
        )
        token = decode(answer, TokenAnswer, "answer to the join", self.relay).token
        if not (0 < len(token) <= TOKEN_CHARS and token.isascii() and token.isprintable()):
            raise ProtocolError(f"the relay at {self.relay} gave an unusable token")
        return token

    def leave(self) -> None:
        self._repeat("POST", wire.leave(self.session_id))

    def close_session(self) -> None:
        """End and purge the session. Gone already is what was wanted."""
        try:
            self._repeat("POST", wire.close(self.session_id))
        except RelayError as error:
            if not _is_gone(error):
                raise

    def revoke(self, role: str) -> None:
        self._repeat("POST", wire.revoke(self.session_id, role))

    def start_epoch(self, document: str) -> None:
        """Start the epoch of a signed document; the same one again is fine."""
        self._repeat("POST", wire.epochs(self.session_id), document.encode())

    def audit(self) -> bytes:
        """The trail as JSON lines, unverified."""
        answer = self._get(wire.audit(self.session_id), limit=4 * wire.ANSWER_BYTES)
        check_values(answer, "audit trail", self.relay)
        return answer.body

    # -- events ------------------------------------------------------------------------------

    def events(self, after: int | None = None) -> list[Event]:
        """All events after number `after`; see `parse_event` for malformed ones.

        Raises SessionClosed when this participant was cut off (code `cut_off`) or the session
        has ended (`session_gone`).
        """
        try:
            answer = self._get(wire.events(self.session_id, after), limit=wire.ANSWER_BYTES)
        except RelayError as error:
            raise self.end_of_session(error) from error
        return numbered(
            decode(answer, EventsAnswer, "list of events", self.relay).events, self.relay
        )

    def events_page(self, after: int | None = None, *, jobs: int | None = None) -> EventsPage:
        """Events after number `after`, in sessions with `history`; with `jobs` a gap stands for
        those of finished jobs that are not among so many newest. Raises like `events`."""
        path = wire.events_page(self.session_id, after, PAGE_EVENTS, jobs)
        try:
            answer = self._get(path, limit=PAGE_ANSWER_BYTES)
        except RelayError as error:
            raise self.end_of_session(error) from error
        page = decode(answer, PageAnswer, "page of events", self.relay)
        return EventsPage(numbered(page.events, self.relay), page.more)

    def job_news(self, job: str, from_byte: int | None) -> list[SseEvent]:
        """What the job's stream would say at once: live output from a byte on, state, result.

        Raises like `events`: a relay without it has no such session to tell of.
        """
        path = wire.job_output(self.session_id, job, from_byte)
        try:
            answer = self._get(path, limit=wire.ANSWER_BYTES)
        except RelayError as error:
            raise self.end_of_session(error) from error
        parser, body = SseParser(), memoryview(answer.body)
        events: list[SseEvent] = []
        for at in range(0, len(body), READ_BYTES):
            events += parser.feed(bytes(body[at : at + READ_BYTES]))
            if len(events) >= NEWS:
                break
        return events

    def open_stream(
        self,
        path: str,
        *,
        last_event_id: int | None,
        deadline: Deadline,
        started: Callable[[Callable[[], None]], None],
    ) -> Line:
        """An open stream of server-sent events; see `Transport.open`. Raises like `events`."""
        headers = self._auth()
        headers["Accept"] = "text/event-stream"
        if last_event_id is not None:
            headers[wire.Headers.LAST_EVENT_ID] = str(last_event_id)
        line = self._transport.open(path, deadline=deadline, headers=headers, started=started)
        if line.status < 300:
            self._clock.see(line.date)
            return line
        answer = Answer(line.status, line.date, None, line.read_all(SMALL_BYTES, deadline))
        raise self.end_of_session(refusal_of(answer))

    def end_of_session(self, error: RelayError) -> RelayError | SessionClosed:
        """What a refusal on events or a stream means: 401 cut off, 404 and 410 gone."""
        if error.code == FOREIGN:
            return error
        if error.status == 401:
            return SessionClosed(
                f"the relay does not let this participant into session {self.session_id} any more",
                code="cut_off",
                hint="it left, or its role was revoked; to join anew, use a valid invite and "
                "a fresh cache (AIRLOX_CACHE_DIR)",
            )
        if _is_gone(error):
            return SessionClosed(f"session {self.session_id} has ended", code="session_gone")
        return error

    # -- items -------------------------------------------------------------------------------

    def post_item(self, frame: bytes) -> int | None:
        """One try; see `outbox.py`. Returns the number of the item's event, if the relay says it:
        the answer of a relay of 0.1.0 has any form."""
        tell = teller(self.on_progress, "upload", len(frame))
        answer = self._call("POST", wire.items(self.session_id), frame, moved=tell)
        try:
            return msgspec.json.decode(answer.body, type=PostedAnswer).seq
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None

    def fetch_blob(self, item: str, limit_bytes: int) -> bytes:
        """The sealed bytes of an item; `limit_bytes` is what its header promises."""
        path = wire.blob(self.session_id, item)
        tell = teller(self.on_progress, "download", limit_bytes)
        return self._repeat("GET", path, limit=limit_bytes, moved=tell).body

    def put_blob(self, item: str, blob: bytes) -> None:
        self._repeat("PUT", wire.blob(self.session_id, item), blob)

    def ack(self, item: str) -> None:
        """Say that the item is stored here. An item that is gone needs no ack."""
        try:
            self._repeat("POST", wire.ack(self.session_id, item))
        except RelayError as error:
            if not _is_gone(error):
                raise

    def want(self, item: str) -> bool:
        """Ask holders for an evicted blob. True when it is there after all: fetch at once."""
        try:
            self._repeat("POST", wire.want(self.session_id, item))
        except RelayError as error:
            if error.code == "present":
                return True
            raise
        return False

    def delivery(self, limit: int) -> list[DeliveryEntry]:
        """Who has stored our own items, the newest `limit` of them, oldest first.

        For callers that know the session to be there: what a relay does not have is not found.
        """
        try:
            answer = self._get(wire.delivery(self.session_id, limit), limit=wire.ANSWER_BYTES)
        except RelayError as error:
            if error.status != 404:
                raise
            raise RelayError(
                error.status,
                "no_delivery",
                "this relay does not tell who has fetched what",
                hint="it is older than this client",
            ) from None
        raw = decode(answer, DeliveryAnswer, "list of deliveries", self.relay).items[-limit:]
        return [entry for entry in (lenient(item, DeliveryEntry) for item in raw) if entry]

    # -- runners and jobs --------------------------------------------------------------------

    def runners(self) -> list[RunnerEntry]:
        answer = self._get(wire.runners(self.session_id), limit=wire.ANSWER_BYTES)
        raw = decode(answer, RunnersAnswer, "list of runners", self.relay).runners[:RUNNERS]
        return [entry for entry in (lenient(item, RunnerEntry) for item in raw) if entry]

    def approve(self, runner: str) -> None:
        self._repeat("POST", wire.approve(self.session_id, runner))

    def reject(self, runner: str) -> None:
        self._repeat("POST", wire.reject(self.session_id, runner))

    def heartbeat(
        self,
        job: str | None,
        free_slots: int | None = None,
        jobs: Sequence[str] = (),
        *,
        stopping: bool = False,
    ) -> None:
        """`free_slots`, beside those that `jobs` have, are for full sessions; 0.1.0 relays and
        floor sessions hear of neither. `stopping`: nor does any slot become free any more."""
        body: dict[str, object] = {"job": job}
        if free_slots is not None:
            body["slots"] = free_slots
            body["jobs"] = jobs
            if stopping:
                body["stopping"] = True
        self._repeat("POST", wire.heartbeat(self.session_id), msgspec.json.encode(body))

    def post_job(self, frame: bytes, target: str, wait_s: int = 0) -> Assigned:
        """One try; returns the runner the relay chose. See `outbox.py`.

        With `wait_s` a job that finds no free slot may wait for one so long.
        """
        headers = {wire.Headers.TARGET: target}
        if wait_s:
            headers[wire.Headers.QUEUE] = str(wait_s)
        answer = self._call("POST", wire.jobs(self.session_id), frame, headers=headers)
        said = decode(answer, AssignedAnswer, "answer to the job", self.relay)
        if wait_s and said.runner is None and said.status is not None:
            return Assigned(None, said.seq, said.status.of(None))
        runner = known_key(said.runner or "") or not_a_relay("answer to the job", self.relay)
        return Assigned(runner, said.seq)

    def job(self, job: str) -> JobStatus:
        answer = self._get(wire.job(self.session_id, job))
        return decode(answer, JobStatus, "state of the job", self.relay).of(job)

    def claim(self, job: str) -> None:
        """One try: a lost answer shows in the job's state."""
        self._call("POST", wire.claim(self.session_id, job))

    def cancel(self, job: str) -> None:
        self._repeat("POST", wire.cancel(self.session_id, job))

    # -- full sessions: live output and trees ------------------------------------------------

    def post_output(self, job: str, frame: bytes) -> None:
        """One segment of live output; one try."""
        self._call("POST", wire.job_output(self.session_id, job), frame)

    def put_pack(
        self, job: str, number: int, sealed: bytes, *, epoch: int = 0, moved: Moved | None = None
    ) -> None:
        """One pack of a job's tree, sealed in an epoch. The same bytes again are fine."""
        path = wire.pack(self.session_id, job, number)
        self._repeat("PUT", path, sealed, headers=_in_epoch(epoch), moved=moved)

    def packs(self, job: str) -> list[PackEntry]:
        answer = self._get(wire.packs(self.session_id, job), limit=wire.ANSWER_BYTES)
        return decode(answer, PacksAnswer, "list of packs", self.relay).packs

    def fetch_pack(self, job: str, number: int) -> bytes:
        path = wire.pack(self.session_id, job, number)
        return self._get(path, limit=PACK_BYTES + BLOB_OVERHEAD_BYTES).body

    def post_lack(self, job: str, sealed: bytes, *, epoch: int = 0) -> None:
        path = wire.lack(self.session_id, job)
        self._repeat("POST", path, sealed, headers=_in_epoch(epoch))

    # -- how a call is made ------------------------------------------------------------------

    def repeat(self, method: str, path: str, body: bytes = b"", *, auth: bool = True) -> Answer:
        """A call that changes nothing when it is made again, for the chapters of the wire whose
        calls have a module of their own. Raises RelayError, ConnectionLost."""
        return self._repeat(method, path, body, auth=auth)

    def _get(self, path: str, *, auth: bool = True, limit: int = SMALL_BYTES) -> Answer:
        return self._repeat("GET", path, auth=auth, limit=limit)

    def _repeat(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        auth: bool = True,
        limit: int = SMALL_BYTES,
        headers: Mapping[str, str] | None = None,
        moved: Moved | None = None,
    ) -> Answer:
        """A call that may be made again: on a broken line, and when the relay says "later"."""
        deadline = self._deadline()
        for tries in range(RETRIES):
            try:
                return self._call(
                    method,
                    path,
                    body,
                    auth=auth,
                    limit=limit,
                    headers=headers,
                    deadline=deadline,
                    repeatable=True,
                    moved=moved,
                )
            except (ConnectionLost, RelayError) as error:
                later = _may_help_later(error)
                wait_s = max(RETRY_WAIT_S * 2**tries, asked_wait_s(error))
                if not later or tries == RETRIES - 1 or deadline.cap_s(wait_s) < wait_s:
                    raise
                if not self.pause(wait_s):
                    raise
        raise AssertionError("the last try returns or raises")

    def _call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        auth: bool = True,
        limit: int = SMALL_BYTES,
        headers: Mapping[str, str] | None = None,
        deadline: Deadline | None = None,
        repeatable: bool = False,
        moved: Moved | None = None,
    ) -> Answer:
        answer = self._transport.request(
            method,
            path,
            deadline=deadline or self._deadline(),
            limit_bytes=limit,
            body=body,
            headers={**(self._auth() if auth else {}), **(headers or {})},
            repeatable=repeatable,
            ended=self._closed,
            moved=moved,
        )
        self._clock.see(answer.date)
        if answer.status >= 300:
            raise refusal_of(answer)
        return answer

    def _deadline(self) -> Deadline:
        return Deadline.after(CALL_TIMEOUT_S).within(self._until)

    def _auth(self) -> dict[str, str]:
        if self.token is None:
            raise SessionClosed(
                f"this participant has not joined session {self.session_id}", code="not_joined"
            )
        return {"Authorization": f"Bearer {self.token}"}


class _ClockCheck:
    """Compares the local clock with the relay's Date once: item times must fall into the
    session's window, so a wrong clock is worth a word."""

    def __init__(self, clock: Callable[[], float], on_warning: WarningSink) -> None:
        self._clock = clock
        self._on_warning = on_warning
        self._done = False

    def see(self, date: str | None) -> None:
        if self._done or date is None:
            return
        try:
            relay_s = parsedate_to_datetime(date).timestamp()
        except (ValueError, TypeError, OverflowError):
            return
        self._done = True
        off_s = self._clock() - relay_s
        if abs(off_s) > CLOCK_SLACK_S:
            way = "ahead of" if off_s > 0 else "behind"
            self._on_warning(
                f"this machine's clock is {abs(off_s):.0f} s {way} the relay's; set the clock, "
                "or items may be refused near the start or end of the session"
            )


def _is_gone(error: RelayError) -> bool:
    return error.status in (404, 410) and error.code != FOREIGN


def _may_help_later(error: ConnectionLost | RelayError) -> bool:
    """Whether the same call may succeed in a moment."""
    if isinstance(error, RelayError):
        return error.status in _WAIT_AND_RETRY
    return error.code not in ("tls", "closed")


def _in_epoch(number: int) -> dict[str, str] | None:
    """The header that says in which epoch something was sealed; none before the first."""
    return {wire.Headers.EPOCH: str(number)} if number else None
