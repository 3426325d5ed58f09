"""What a relay answers, as values: bounded, cleaned, with a hint for each refusal.

Nothing the relay says is believed: sizes are bounded, words cleaned, unknown fields ignored. Which
call has which answer is `relay_api.py`'s to say.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn, TypeVar

import msgspec

from airlox.client.transport import Answer, one_line
from airlox.errors import ConnectionLost, ProtocolError, RelayError
from airlox.protocol.canonical import U53
from airlox.protocol.encoding import PublicKey
from airlox.protocol.keys import parse_public_key
from airlox.protocol.view import Event
from airlox.protocol.wire import JobState

STATE_CHARS: Final = 40
VALUES: Final = 4_000_000
"""Most values in one answer. The largest honest list of events has about half of that; in memory
a value takes dozens of bytes, however few it has on the wire."""
JUNK: Final = 10_000
"""Most entries without a number in an answer of events."""
FOREIGN: Final = "foreign_answer"
"""Code of a refusal that is not in a relay's words: something on the way to it spoke."""
PLACES: Final = 1_000_000
"""No queue is longer."""
RETRY_DIGITS: Final = 6
"""Of a Retry-After that is looked at: up to a week or so."""

T = TypeVar("T")


# -- values ----------------------------------------------------------------------------------


class RunnerEntry(msgspec.Struct, frozen=True):
    """The relay's word on one runner. Who it is stands in `signed_join`."""

    signed_join: str
    online: bool = False
    rejected: bool = False
    job: str | None = None


class DeliveryEntry(msgspec.Struct, frozen=True):
    """The relay's word on who stored an item, and for whom it is still kept."""

    item: str
    delivered: list[str] = []
    waiting: list[str] = []


class JobStatus(msgspec.Struct, frozen=True):
    """The relay's word on one job: `queued` with place and reason, `assigned`, `running`,
    `finished`, or `failed` with a reason."""

    state: str
    job: str | None = None
    runner: str | None = None
    reason: str | None = None
    place: int | None = None

    @property
    def waits(self) -> bool:
        """Whether the job waits for a slot."""
        return self.state == JobState.QUEUED

    def of(self, job: str | None) -> JobStatus:
        """What of it can be shown and used: bounded words, and a runner only by its key."""
        return JobStatus(
            state=one_line(self.state, STATE_CHARS),
            job=job,
            runner=None if self.runner is None else known_key(self.runner),
            reason=None if self.reason is None else one_line(self.reason),
            place=self.place if self.place is not None and 0 < self.place <= PLACES else None,
        )


class PackEntry(msgspec.Struct, frozen=True):
    n: int
    size: int
    sha256: str


class ManifestAnswer(msgspec.Struct):
    """The owner's signed documents, unverified; `epochs` from the first on."""

    signed_manifest: str
    epochs: list[str] = []


class TokenAnswer(msgspec.Struct):
    token: str


class EventsAnswer(msgspec.Struct):
    events: list[msgspec.Raw]


class EventsPage(msgspec.Struct, frozen=True):
    """Some of a session's events, in order, and whether there are more behind them."""

    events: list[Event]
    more: bool


class PageAnswer(msgspec.Struct):
    events: list[msgspec.Raw]
    more: bool = False


class RunnersAnswer(msgspec.Struct):
    runners: list[msgspec.Raw]


class DeliveryAnswer(msgspec.Struct):
    items: list[msgspec.Raw]


class Assigned(msgspec.Struct, frozen=True):
    """What the relay answers to a job it took: who has it, or how it stands without a runner, and
    the number of the job's event."""

    runner: PublicKey | None
    seq: int | None = None
    status: JobStatus | None = None


class AssignedAnswer(msgspec.Struct):
    runner: str | None
    seq: U53 | None = None
    state: str | None = None
    reason: str | None = None
    place: int | None = None

    @property
    def status(self) -> JobStatus | None:
        if self.state is None:
            return None
        return JobStatus(self.state, reason=self.reason, place=self.place)


class PostedAnswer(msgspec.Struct):
    seq: U53


class PacksAnswer(msgspec.Struct):
    packs: list[PackEntry]


class ErrorAnswer(msgspec.Struct):
    error: str
    message: str = ""
    limit: Any = None


# -- refusals --------------------------------------------------------------------------------


_HINTS: Final = {
    "rate_limited": "wait a little and try again",
    "too_many_wants": "wait until some of the blobs asked for have come",
    "busy": "the relay is overloaded or its disk fails; try again in a moment",
    "full": "a session that is full needs a new one; room on the relay is its operator's to make",
    "disk_failed": "sending again does not help until the relay's operator has seen to its disk",
    "too_large": "send less, or create a session with a larger item limit",
    "unauthorized": "this participant left or was cut off; join again with a valid invite",
    "revoked": "the owner revoked this role; ask for a new session or role",
    "forbidden": "this role may not do that",
    "never_expires_not_allowed": "give the session a lifetime",
    "queue_full": "wait until some of the jobs that wait have gone, or cancel some",
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


def refusal_of(answer: Answer) -> RelayError:
    """The error that an answer of 300 and more is."""
    if answer.status < 400:
        return RelayError(
            answer.status,
            "redirect",
            "moved elsewhere",
            hint="redirects are not followed; the link must name the relay itself",
        )
    said = lenient(answer.body, ErrorAnswer)
    if said is None:
        code, message, hint = _SAID_ON_THE_WAY.get(answer.status, _SAID_BY_A_STRANGER)
        return RelayError(answer.status, code, message, hint=hint)
    code, message = one_line(said.error) or "error", one_line(said.message)
    retry_after_s = _seconds(answer.retry_after)
    help_ = _HINTS.get(code) if retry_after_s is None else f"try again in {retry_after_s} s"
    return RelayError(
        answer.status,
        code,
        message,
        hint=help_,
        retry_after_s=retry_after_s,
        limit=_limits(said.limit),
    )


def _limits(said: object) -> dict[str, int]:
    """What a relay allows, as far as it says so in whole numbers."""
    try:
        return msgspec.convert(said or {}, dict[str, int])
    except msgspec.ValidationError:
        return {}


def asked_wait_s(error: ConnectionLost | RelayError) -> int:
    """Seconds the relay asks to wait before the same call."""
    return (error.retry_after_s or 0) if isinstance(error, RelayError) else 0


def _seconds(text: str | None) -> int | None:
    """What a Retry-After in seconds says; a date is none of a relay's."""
    text = (text or "").strip()
    is_number = text.isascii() and text.isdigit() and len(text) <= RETRY_DIGITS
    return int(text) if is_number else None


# -- reading ---------------------------------------------------------------------------------


def decode(answer: Answer, type_: type[T], what: str, relay: str) -> T:
    """The value an answer has. Raises ProtocolError; `what` and `relay` are for its message."""
    check_values(answer, what, relay)
    try:
        return msgspec.json.decode(answer.body, type=type_)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        not_a_relay(what, relay)


def check_values(answer: Answer, what: str, relay: str) -> None:
    """Raises ProtocolError for an answer that would unpack to far more than it is."""
    body = answer.body
    if len(body) > VALUES and sum(map(body.count, (b",", b"[", b"{", b"\n"))) > VALUES:
        raise ProtocolError(
            f"the {what} from {relay} has more than {VALUES} values",
            code="answer_too_large",
            hint="the relay is faulty or hostile",
        )


def not_a_relay(what: str, relay: str) -> NoReturn:
    raise ProtocolError(
        f"the {what} from {relay} is not what a relay says",
        code="bad_answer",
        hint="check that the link names an Airlox relay",
    )


def numbered(entries: list[msgspec.Raw], relay: str) -> list[Event]:
    """The events among the entries of an answer; few may be none. Raises ProtocolError."""
    events, junk = [], 0
    for entry in entries:
        event = parse_event(entry)
        if event is not None:
            events.append(event)
        elif (junk := junk + 1) > JUNK:
            not_a_relay("list of events", relay)
    return events


class _Numbered(msgspec.Struct):
    seq: int


def parse_event(raw: msgspec.Raw | bytes) -> Event | None:
    """An event as received; None for what has no number.

    A numbered event whose rest is nonsense becomes one of an unknown kind: a bad event stops
    nothing, and the numbering goes on.
    """
    event = lenient(raw, Event)
    if event is None:
        numbered = lenient(raw, _Numbered)
        event = Event(numbered.seq, "malformed", {}) if numbered is not None else None
    return event if event is not None and event.seq >= 0 else None


def known_key(text: str) -> PublicKey | None:
    try:
        return parse_public_key(text)
    except ProtocolError:
        return None


def lenient(raw: msgspec.Raw | bytes, type_: type[T]) -> T | None:
    try:
        return msgspec.json.decode(raw, type=type_)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
