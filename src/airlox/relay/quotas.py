"""Who asks too often, who holds too much at one time, and what does not fit.

The limits are the operator's (config.py); a refusal names the one that was met, with its value,
and when to try again where that helps. The bounds of the format are checked where it is parsed.

What everybody shares is bounded for everybody, and again for each session, address and
participant: whoever takes all that is theirs leaves room for the others.
"""

from __future__ import annotations

from typing import Final

from airlox.relay.addresses import Origin
from airlox.relay.clock import Clock
from airlox.relay.config import Config, setting_of
from airlox.relay.entities import Job, Participant
from airlox.relay.gates import Bound, Gate, Place, Rate
from airlox.relay.refusals import Refusal
from airlox.relay.state import Session

AUDITS: Final = 2
"""A trail is read as a whole before it is sent."""
ALL: Final = "all"
"""The holder that stands for everybody."""
PLACE_S: Final = 2.0
"""When to look again for a place that others hold."""
CODES_S: Final = 60.0
"""When to look again for room for a transfer code."""
DISK_S: Final = 60.0
"""When to look again for room on the disk."""
PENDING_SHARE: Final = 8
"""One participant has an eighth of what may wait for the disk, a session twice that."""
CANCELS: Final = 4
"""Signed cancels of one job that are taken although there is no room."""
CANCEL_BYTES: Final = 4096


class Quotas:
    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._item_event_bytes = config.item_event_bytes
        self._want_event_bytes = config.want_event_bytes
        self._result_event_bytes = config.result_event_bytes
        creates, joins = config.creates_per_minute, config.joins_per_minute
        joins_of_one = config.joins_per_minute_per_address
        self._creates = Rate(clock, per_s=creates / 60, burst=creates)
        self._joins = Rate(clock, per_s=joins / 60, burst=joins)
        self._joins_of_one = Rate(clock, per_s=joins_of_one / 60, burst=joins_of_one)
        self._posts = Rate(clock, per_s=config.posts_per_second, burst=2 * config.posts_per_second)
        transfer, part = config.transfer_bytes_per_hour, config.transfer_bytes_per_hour // 2
        self._bytes = Rate(clock, per_s=transfer / 3600, burst=transfer)
        self._bytes_of_one = Rate(clock, per_s=part / 3600, burst=part)
        self.disk_is_full = False
        """Set by the sweeper when free space is below the watermark."""
        self._sessions = Gate(
            self._bound("max_sessions", "full", "the relay has as many sessions as it allows"),
            self._bound(
                "max_sessions_per_address",
                "rate_limited",
                "this address has made as many sessions as the relay allows; close some",
            ),
        )
        self._transfers = Gate(
            self._bound("max_transfers", "busy", "too many large transfers", PLACE_S),
            *self._bounds_of_one("max_transfers", "too many large transfers", PLACE_S),
        )
        self._streams = Gate(
            self._bound("max_streams", "busy", "too many open streams", PLACE_S),
            *self._bounds_of_one("max_streams", "too many open streams"),
        )
        of_one = max(config.max_pending_bytes // PENDING_SHARE, config.inline_blob_bytes)
        self._pending = Gate(Bound(2 * of_one, self._too_much), Bound(of_one, self._too_much))
        self._audits = Gate(Bound(AUDITS, _busy_with_audits))
        guesses = config.code_guesses_per_hour
        self._guesses = Rate(clock, per_s=guesses / 3600, burst=guesses)
        self._codes = Gate(
            self._bound("max_codes", "busy", "the relay has as many codes as it allows", CODES_S),
            self._bound(
                "max_codes_per_session",
                "rate_limited",
                "this session has offered as many codes as it may for now",
                CODES_S,
            ),
            self._bound(
                "max_codes_per_address",
                "rate_limited",
                "this address has offered as many codes as it may for now",
                CODES_S,
            ),
        )

    def forget_idle(self) -> None:
        for rate in self._rates():
            rate.forget_idle()

    def _rates(self) -> tuple[Rate, ...]:
        joins, transfers = (self._joins, self._joins_of_one), (self._bytes, self._bytes_of_one)
        return (self._creates, self._posts, self._guesses, *joins, *transfers)

    # ── rates ────────────────────────────────────────────────────────────────────────────────

    def take_create(self, origin: Origin) -> None:
        message = "too many new sessions from this address"
        self._take(self._creates, origin.network, "creates_per_minute", message)

    def take_join(self, session: Session, origin: Origin) -> None:
        """One address has less than the session: it keeps nobody else out."""
        if origin.is_named:
            message = "too many joins of this session from this address"
            name = "joins_per_minute_per_address"
            self._take(self._joins_of_one, (session.id, origin.network), name, message)
        message = "too many joins of this session"
        self._take(self._joins, session.id, "joins_per_minute", message)

    def take_post(self, session: Session, participant: str) -> None:
        message = "too many posts by this participant"
        self._take(self._posts, (session.id, participant), "posts_per_second", message)

    def take_bytes(self, session: Session, who: Participant, size: int) -> None:
        """Counts sealed bytes on their way in or out; one participant has half of a session's."""
        name = "transfer_bytes_per_hour"
        message = "too many bytes sent and fetched by this participant"
        self._take(self._bytes_of_one, (session.id, who.key), name, message, size)
        self._take(self._bytes, session.id, name, "too many bytes sent and fetched", size)

    def check_guess(self, origin: Origin) -> None:
        """Whether an address may try a transfer code. Raises Refusal."""
        wait_s = self._guesses.wait_s(origin.network)
        if wait_s > 0:
            setting = setting_of(self._config, "code_guesses_per_hour")
            message = "too many tries from this address came to nothing"
            raise Refusal("too_many_guesses", message, setting=setting, retry_s=wait_s)

    def take_guess(self, origin: Origin) -> None:
        """Counts a try at a transfer code, until it succeeds. Raises Refusal."""
        self.check_guess(origin)
        self._guesses.take(origin.network)

    def forgive_guess(self, origin: Origin) -> None:
        """A try that was counted has succeeded."""
        self._guesses.give_back(origin.network)

    def _take(self, rate: Rate, key: object, name: str, message: str, size: int = 1) -> None:
        if not rate.take(key, size):
            setting = setting_of(self._config, name)
            raise Refusal("rate_limited", message, setting=setting, retry_s=rate.wait_s(key))

    # ── places ───────────────────────────────────────────────────────────────────────────────

    def take_session(self, origin: Origin) -> Place:
        """A place for a new session, until it ends. Raises Refusal."""
        is_counted = origin.is_named and self._config.max_sessions_per_address > 0
        return self._sessions.take(ALL, origin.network if is_counted else None)

    def keep_session(self) -> Place:
        """The place of a session that was there before the relay started: it has it anyway."""
        return self._sessions.take(ALL, None, over=True)

    def transfer(self, session: Session, who: Participant, origin: Origin) -> Place:
        """A place for a large body, either way. Raises Refusal."""
        return self._transfers.take(ALL, *_holders(session, who.key, origin))

    def stream(self, session: Session, owner: str, origin: Origin) -> Place:
        """A place for a stream. Raises Refusal."""
        return self._streams.take(ALL, *_holders(session, owner, origin))

    def code(self, session: Session, origin: Origin) -> Place:
        """A place for a transfer code, until it is forgotten. Raises Refusal."""
        return self._codes.take(ALL, session.id, origin.holder)

    def receiver(self, origin: Origin) -> Place:
        """A place for the wait of somebody who redeems a code. Raises Refusal."""
        return self._streams.take(ALL, None, None, origin.holder)

    def pending(self, session: Session, who: Participant, size: int) -> Place:
        """Room for bytes that will wait for the disk. Raises Refusal."""
        return self._pending.take(session.id, (session.id, who.key), size=max(1, size))

    def audit(self) -> Place:
        return self._audits.take(ALL)

    # ── room ─────────────────────────────────────────────────────────────────────────────────

    def check_disk(self) -> None:
        if self.disk_is_full:
            setting = setting_of(self._config, "min_free_bytes")
            message = "the relay's disk is nearly full"
            raise Refusal("full", message, setting=setting, retry_s=DISK_S)

    def check_room_for_participant(self, session: Session, origin: Origin) -> None:
        if len(session.participants) >= self._config.max_participants:
            raise self._full("max_participants", "the session has as many participants as it may")
        of_one = self._config.max_participants_per_address
        if of_one and origin.is_named and session.joined_from.get(origin.network, 0) >= of_one:
            message = "as many participants of the session joined from this address as may"
            raise self._full("max_participants_per_address", message)
        self._check_events(session, self._item_event_bytes)

    def check_room_for_item(self, session: Session, author: Participant, sealed_bytes: int) -> None:
        if len(session.items) + len(session.underway) >= self._config.max_items:
            raise self._full("max_items", "the session has as many items as it may")
        self._check_share(session, author.items + 1, self._config.max_items, author, "items")
        self._check_events(session, self._item_event_bytes)
        limit = self._item_event_bytes
        self._check_share(session, author.events_bytes, limit, author, "bytes of envelopes")
        self.check_room_for_bytes(session, author, sealed_bytes)

    def check_room_for_end(self, session: Session) -> None:
        """There was room for the job: what ends it needs none, but in the list of events."""
        self._check_events(session, self._result_event_bytes)

    def may_cancel(self, job: Job, sealed_bytes: int) -> bool:
        """Whether a signed cancel is taken although there is no room."""
        return sealed_bytes <= CANCEL_BYTES and job.cancels < CANCELS

    def check_room_for_job(self, session: Session) -> None:
        most = self._config.max_jobs
        if session.keeps_history:  # those that are over leave, and those under way have their room
            most += self._config.history_jobs
        if len(session.jobs) >= most:
            raise self._full("max_jobs", "the session has as many jobs as it may")

    def check_room_for_waiting(self, session: Session, author: Participant) -> None:
        """Room for one more job that waits for a slot."""
        own = sum(job.author == author.key for job in session.waiting.values())
        for name, waiting, whose in (
            ("max_waiting_jobs", len(session.waiting), "of this session"),
            ("max_waiting_jobs_per_participant", own, "of this participant"),
        ):
            if waiting >= getattr(self._config, name):
                message = f"as many jobs {whose} wait for a slot as may"
                raise Refusal("queue_full", message, setting=setting_of(self._config, name))

    def check_room_for_bytes(
        self, session: Session, author: Participant, sealed_bytes: int
    ) -> None:
        self.check_disk()
        most = self._config.max_session_bytes
        held = session.sealed_bytes + session.record_bytes + session.incoming_bytes
        if held + sealed_bytes > most:
            raise self._full("max_session_bytes", "the session holds as many bytes as it may")
        self._check_share(session, author.sealed_bytes + sealed_bytes, most, author, "bytes")

    def is_filling(self, session: Session) -> bool:
        """Whether a session has less than a quarter of its room left."""
        config = self._config
        return (
            len(session.items) > 0.75 * config.max_items
            or session.events_bytes > 0.75 * self._item_event_bytes
            or session.sealed_bytes + session.record_bytes > 0.75 * config.max_session_bytes
        )

    def check_room_for_want(self, session: Session, who: Participant) -> None:
        limit = self._want_event_bytes
        self._check_events(session, limit)
        self._check_share(session, who.events_bytes, limit, who, "bytes of envelopes")
        if len(who.wants) >= self._config.max_wants:
            raise Refusal(
                "too_many_wants",
                "this participant waits for as many blobs as it may",
                setting=setting_of(self._config, "max_wants"),
                retry_s=self._config.want_lifetime_s,
            )

    def _check_events(self, session: Session, limit_bytes: int) -> None:
        # An envelope grows by less than half when it is escaped in its event.
        if session.events_bytes + 2 * session.underway_bytes > limit_bytes:
            raise Refusal(
                "full", f"the session's events no longer fit one answer ({limit_bytes} bytes)"
            )

    def _check_share(
        self, session: Session, filled: int, most: int, who: Participant, what: str
    ) -> None:
        """One of several is not to fill a session alone."""
        percent = self._config.max_share_percent
        if filled * 100 > most * percent and session.active_bits & ~who.bit:
            setting = setting_of(self._config, "max_share_percent")
            message = f"this participant fills its share of the session's {most} {what}"
            raise Refusal("full", message, setting=setting)

    # ── refusals ─────────────────────────────────────────────────────────────────────────────

    def _full(self, name: str, message: str) -> Refusal:
        return Refusal("full", message, setting=setting_of(self._config, name))

    def _bound(self, name: str, code: str, message: str, retry_s: float | None = None) -> Bound:
        """The bound that a setting is."""

        def refusal() -> Refusal:
            return Refusal(code, message, setting=setting_of(self._config, name), retry_s=retry_s)

        return Bound(getattr(self._config, name), refusal)

    def _bounds_of_one(
        self, name: str, message: str, retry_s: float | None = None
    ) -> tuple[Bound, Bound, Bound]:
        """The bounds of one participant, one session and one address: `_holders`, in order."""
        participant, session, address = (
            self._bound(f"{name}_per_{holder}", "rate_limited", f"{message} of this {holder}", s)
            for holder, s in (
                ("participant", retry_s),
                ("session", retry_s or PLACE_S),
                ("address", retry_s or PLACE_S),
            )
        )
        return participant, session, address

    def _too_much(self) -> Refusal:
        setting = setting_of(self._config, "max_pending_bytes")
        message = "too much of this session waits for the disk"
        return Refusal("busy", message, setting=setting, retry_s=1)


def _holders(session: Session, who: str, origin: Origin) -> tuple[object, object, object]:
    return (session.id, who), session.id, origin.holder


def _busy_with_audits() -> Refusal:
    return Refusal("busy", f"{AUDITS} audit trails are being read", retry_s=PLACE_S)
