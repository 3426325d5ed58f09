"""Every HTTP call to a relay, with its meaning, its bounds and its errors.

Rules:

* each call has one deadline over all its reads and tries;
* only calls that change nothing when repeated are repeated here; posts of items and jobs are
  repeated by `outbox.py`, which knows what a repetition may find;
* a refusal is a RelayError with the relay's code; a broken line is ConnectionLost; where the wire
  says that an answer ends the session (events and streams), it is SessionClosed;
* nothing the relay says is believed: sizes are bounded, words cleaned, unknown fields ignored;
* a local clock more than a minute away from the relay's is told to `on_warning`, once.

Paths and header names are in `protocol/wire.py`; connections in `transport.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final, NoReturn, TypeVar

import msgspec

from airlox import __version__
from airlox.client.connection import READ_BYTES
from airlox.client.deadline import Deadline
from airlox.client.transport import Answer, Line, Transport, one_line
from airlox.errors import ConnectionLost, ProtocolError, RelayError, SessionClosed
from airlox.protocol import wire
from airlox.protocol.canonical import U53
from airlox.protocol.encoding import PublicKey
from airlox.protocol.keys import parse_public_key
from airlox.protocol.limits import (
    BLOB_OVERHEAD_BYTES,
    MANIFEST_BYTES,
    MIB,
    PACK_BYTES,
    PAGE_BYTES,
    PAGE_EVENTS,
)
from airlox.protocol.sse import SseEvent, SseParser
from airlox.protocol.view import Event

USER_AGENT: Final = f"airlox/{__version__}"
CALL_TIMEOUT_S: Final = 30.0
SMALL_BYTES: Final = 1 * MIB
"""Bound of the short answers: everything but events, lists, blobs and audits."""
PAGE_ANSWER_BYTES: Final = 2 * PAGE_BYTES
TOKEN_CHARS: Final = 4096
STATE_CHARS: Final = 40
RUNNERS: Final = 1024
"""Most runners of a list that are looked at: each costs the check of a signature."""
VALUES: Final = 4_000_000
"""Most values in one answer. The largest honest list of events has about half of that; in memory
a value takes dozens of bytes, however few it has on the wire."""
JUNK: Final = 10_000
"""Most entries without a number in an answer of events."""
NEWS: Final = 65_536
"""Most events of a job that are taken from one answer; the next has the others."""
CLOCK_SLACK_S: Final = 60.0
RETRIES: Final = 3
RETRY_WAIT_S: Final = 0.3
FOREIGN: Final = "foreign_answer"
"""Code of a refusal that is not in a relay's words: something on the way to it spoke."""
_WAIT_AND_RETRY: Final = frozenset({429, 502, 503, 504})

T = TypeVar("T")


class RunnerEntry(msgspec.Struct, frozen=True):
    """The relay's word on one runner. Who it is stands in `signed_join`."""

    signed_join: str
    online: bool = False
    rejected: bool = False
    job: str | None = None


class JobStatus(msgspec.Struct, frozen=True):
    """The relay's word on one job: `assigned`, `running`, `finished`, or `failed` with a reason."""

    state: str
    job: str | None = None
    runner: str | None = None
    reason: str | None = None

    def of(self, job: str) -> JobStatus:
        """What of it can be shown and used: bounded words, and a runner only by its key."""
        return JobStatus(
            state=one_line(self.state, STATE_CHARS),
            job=job,
            runner=None if self.runner is None else _known_key(self.runner),
            reason=None if self.reason is None else one_line(self.reason),
        )


class PackEntry(msgspec.Struct, frozen=True):
    n: int
    size: int
    sha256: str


class _ManifestAnswer(msgspec.Struct):
    signed_manifest: str


class _TokenAnswer(msgspec.Struct):
    token: str


class _EventsAnswer(msgspec.Struct):
    events: list[msgspec.Raw]


class EventsPage(msgspec.Struct, frozen=True):
    """Some of a session's events, in order, and whether there are more behind them."""

    events: list[Event]
    more: bool


class _PageAnswer(msgspec.Struct):
    events: list[msgspec.Raw]
    more: bool = False


class _RunnersAnswer(msgspec.Struct):
    runners: list[msgspec.Raw]


class Assigned(msgspec.Struct, frozen=True):
    """What the relay answers to a job it took: who has it, and the number of the job's event."""

    runner: PublicKey
    seq: int | None = None


class _AssignedAnswer(msgspec.Struct):
    runner: str
    seq: U53 | None = None


class _PostedAnswer(msgspec.Struct):
    seq: U53


class _PacksAnswer(msgspec.Struct):
    packs: list[PackEntry]


class _ErrorAnswer(msgspec.Struct):
    error: str
    message: str = ""


_HINTS: Final = {
    "rate_limited": "wait a little and try again",
    "busy": "the relay is overloaded or its disk fails; try again in a moment",
    "full": "the relay's disk is full; its operator must make room",
    "too_large": "send less, or create a session with a larger item limit",
    "unauthorized": "this participant left or was cut off; join again with a valid invite",
    "revoked": "the owner revoked this role; ask for a new session or role",
    "forbidden": "this role may not do that",
    "never_expires_not_allowed": "give the session a lifetime",
    "not_assigned": "the job was given to another runner or has ended",
}

_NO_ANSWER: Final = (
    "unavailable",
    "whatever stands in front of the relay got no answer from it",
    "the relay may be starting or overloaded; try again in a moment",
)
_SAID_ON_THE_WAY: Final = {
    413: (
        "proxy_limit",
        "a proxy in front of the relay takes no request of this size; the relay did not see it",
        "send less, or have the proxy's limit raised (nginx: client_max_body_size)",
    ),
    502: _NO_ANSWER,
    503: _NO_ANSWER,
    504: _NO_ANSWER,
}
"""Code, message and hint for what proxies say in words of their own."""
_SAID_BY_A_STRANGER: Final = (
    FOREIGN,
    "this is no answer of a relay: something on the way refused",
    "check the link's address, and the proxies between here and the relay",
)

WarningSink = Callable[[str], None]


def _ignore(_: str) -> None:
    """The warning sink of callers that have none."""


class RelayApi:
    """The calls of one participant in one session of one relay; safe to share between threads.

    `token` is set once joined. `on_warning` is called from whichever thread makes a call.
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
        on_warning: WarningSink = _ignore,
    ) -> RelayApi:
        """The API of the relay at `base_url`. Nothing is sent yet. Raises ValidationError."""
        transport = Transport(base_url, user_agent=USER_AGENT)
        return cls(transport, session_id, token=token, on_warning=on_warning)

    @property
    def relay(self) -> str:
        """The relay's address for messages."""
        return self._transport.address.label

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
        try:
            answer = self._get(wire.session(self.session_id), auth=False, limit=2 * MANIFEST_BYTES)
        except RelayError as error:
            if _is_gone(error):
                raise SessionClosed(
                    f"the relay at {self.relay} has no session {self.session_id}",
                    code="session_gone",
                    hint="it has ended, or the link names another relay",
                ) from error
            raise
        return self._decode(answer, _ManifestAnswer, "manifest").signed_manifest

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
        token = self._decode(answer, _TokenAnswer, "answer to the join").token
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

    def audit(self) -> bytes:
        """The trail as JSON lines, unverified."""
        answer = self._get(wire.audit(self.session_id), limit=4 * wire.ANSWER_BYTES)
        self._check_values(answer, "audit trail")
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
        return self._numbered(self._decode(answer, _EventsAnswer, "list of events").events)

    def events_page(self, after: int | None = None) -> EventsPage:
        """Events after number `after`, in sessions with `history`. Raises like `events`."""
        path = wire.events_page(self.session_id, after, PAGE_EVENTS)
        try:
            answer = self._get(path, limit=PAGE_ANSWER_BYTES)
        except RelayError as error:
            raise self.end_of_session(error) from error
        page = self._decode(answer, _PageAnswer, "page of events")
        return EventsPage(self._numbered(page.events), page.more)

    def _numbered(self, entries: list[msgspec.Raw]) -> list[Event]:
        """The events among the entries of an answer; few may be none."""
        events, junk = [], 0
        for entry in entries:
            event = parse_event(entry)
            if event is not None:
                events.append(event)
            elif (junk := junk + 1) > JUNK:
                self._not_a_relay("list of events")
        return events

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
        raise self.end_of_session(self._refusal(answer))

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
        answer = self._call("POST", wire.items(self.session_id), frame)
        try:
            return msgspec.json.decode(answer.body, type=_PostedAnswer).seq
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None

    def fetch_blob(self, item: str, limit_bytes: int) -> bytes:
        """The sealed bytes of an item; `limit_bytes` is what its header promises."""
        return self._get(wire.blob(self.session_id, item), limit=limit_bytes).body

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

    # -- runners and jobs --------------------------------------------------------------------

    def runners(self) -> list[RunnerEntry]:
        answer = self._get(wire.runners(self.session_id), limit=wire.ANSWER_BYTES)
        raw = self._decode(answer, _RunnersAnswer, "list of runners").runners[:RUNNERS]
        return [entry for entry in (_lenient(item, RunnerEntry) for item in raw) if entry]

    def approve(self, runner: str) -> None:
        self._repeat("POST", wire.approve(self.session_id, runner))

    def reject(self, runner: str) -> None:
        self._repeat("POST", wire.reject(self.session_id, runner))

    def heartbeat(self, job: str | None, free_slots: int | None = None) -> None:
        """`free_slots` is for full sessions; 0.1.0 relays and floor sessions get none."""
        body: dict[str, object] = {"job": job}
        if free_slots is not None:
            body["slots"] = free_slots
        self._repeat("POST", wire.heartbeat(self.session_id), msgspec.json.encode(body))

    def post_job(self, frame: bytes, target: str) -> Assigned:
        """One try; returns the runner the relay chose. See `outbox.py`."""
        headers = {wire.Headers.TARGET: target}
        answer = self._call("POST", wire.jobs(self.session_id), frame, headers=headers)
        said = self._decode(answer, _AssignedAnswer, "answer to the job")
        runner = _known_key(said.runner) or self._not_a_relay("answer to the job")
        return Assigned(runner, said.seq)

    def job(self, job: str) -> JobStatus:
        answer = self._get(wire.job(self.session_id, job))
        return self._decode(answer, JobStatus, "state of the job").of(job)

    def claim(self, job: str) -> None:
        """One try: a lost answer shows in the job's state."""
        self._call("POST", wire.claim(self.session_id, job))

    def cancel(self, job: str) -> None:
        self._repeat("POST", wire.cancel(self.session_id, job))

    # -- full sessions: live output and trees ------------------------------------------------

    def post_output(self, job: str, frame: bytes) -> None:
        """One segment of live output; one try."""
        self._call("POST", wire.job_output(self.session_id, job), frame)

    def put_pack(self, job: str, number: int, sealed: bytes) -> None:
        """One pack of a job's tree. The same bytes again are fine."""
        self._repeat("PUT", wire.pack(self.session_id, job, number), sealed)

    def packs(self, job: str) -> list[PackEntry]:
        answer = self._get(wire.packs(self.session_id, job), limit=wire.ANSWER_BYTES)
        return self._decode(answer, _PacksAnswer, "list of packs").packs

    def fetch_pack(self, job: str, number: int) -> bytes:
        path = wire.pack(self.session_id, job, number)
        return self._get(path, limit=PACK_BYTES + BLOB_OVERHEAD_BYTES).body

    def post_lack(self, job: str, sealed: bytes) -> None:
        self._repeat("POST", wire.lack(self.session_id, job), sealed)

    # -- how a call is made ------------------------------------------------------------------

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
                )
            except (ConnectionLost, RelayError) as error:
                later = _may_help_later(error)
                wait_s = RETRY_WAIT_S * 2**tries
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
        )
        self._clock.see(answer.date)
        if answer.status >= 300:
            raise self._refusal(answer)
        return answer

    def _deadline(self) -> Deadline:
        return Deadline.after(CALL_TIMEOUT_S).within(self._until)

    def _auth(self) -> dict[str, str]:
        if self.token is None:
            raise SessionClosed(
                f"this participant has not joined session {self.session_id}", code="not_joined"
            )
        return {"Authorization": f"Bearer {self.token}"}

    def _refusal(self, answer: Answer) -> RelayError:
        if answer.status < 400:
            return RelayError(
                answer.status,
                "redirect",
                "moved elsewhere",
                hint="redirects are not followed; the link must name the relay itself",
            )
        said = _lenient(answer.body, _ErrorAnswer)
        if said is None:
            code, message, hint = _SAID_ON_THE_WAY.get(answer.status, _SAID_BY_A_STRANGER)
            return RelayError(answer.status, code, message, hint=hint)
        code, message = one_line(said.error) or "error", one_line(said.message)
        return RelayError(answer.status, code, message, hint=_HINTS.get(code))

    def _check_values(self, answer: Answer, what: str) -> None:
        """Raises ProtocolError for an answer that would unpack to far more than it is."""
        body = answer.body
        if len(body) > VALUES and sum(map(body.count, (b",", b"[", b"{", b"\n"))) > VALUES:
            raise ProtocolError(
                f"the {what} from {self.relay} has more than {VALUES} values",
                code="answer_too_large",
                hint="the relay is faulty or hostile",
            )

    def _decode(self, answer: Answer, type_: type[T], what: str) -> T:
        self._check_values(answer, what)
        try:
            return msgspec.json.decode(answer.body, type=type_)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            self._not_a_relay(what)

    def _not_a_relay(self, what: str) -> NoReturn:
        raise ProtocolError(
            f"the {what} from {self.relay} is not what a relay says",
            code="bad_answer",
            hint="check that the link names an Airlox relay",
        )


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


class _Numbered(msgspec.Struct):
    seq: int


def parse_event(raw: msgspec.Raw | bytes) -> Event | None:
    """An event as received; None for what has no number.

    A numbered event whose rest is nonsense becomes one of an unknown kind: a bad event stops
    nothing, and the numbering goes on.
    """
    event = _lenient(raw, Event)
    if event is None:
        numbered = _lenient(raw, _Numbered)
        event = Event(numbered.seq, "malformed", {}) if numbered is not None else None
    return event if event is not None and event.seq >= 0 else None


def _is_gone(error: RelayError) -> bool:
    return error.status in (404, 410) and error.code != FOREIGN


def _may_help_later(error: ConnectionLost | RelayError) -> bool:
    """Whether the same call may succeed in a moment."""
    if isinstance(error, RelayError):
        return error.status in _WAIT_AND_RETRY
    return error.code not in ("tls", "closed")


def _known_key(text: str) -> PublicKey | None:
    try:
        return parse_public_key(text)
    except ProtocolError:
        return None


def _lenient(raw: msgspec.Raw | bytes, type_: type[T]) -> T | None:
    try:
        return msgspec.json.decode(raw, type=type_)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
