"""Rates and room: who asks too often, and what does not fit.

Rates are token buckets, kept only while they are not full. Sizes and counts of a session are
checked here against the configuration; the bounds of the format are checked where it is parsed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from typing import Final

from airlox.relay.clock import Clock
from airlox.relay.config import Config
from airlox.relay.entities import Participant
from airlox.relay.refusals import Refusal
from airlox.relay.state import Session

AUDITS: Final = 2
"""A trail is read as a whole before it is sent."""


class Rate:
    """A token bucket for each key: `per_s` on average, `burst` at once. 0 is no limit."""

    def __init__(self, clock: Clock, *, per_s: float, burst: int) -> None:
        self._clock = clock
        self._per_ms = per_s / 1000
        self._burst = burst
        self._spent: dict[Hashable, tuple[float, int]] = {}

    def take(self, key: Hashable) -> bool:
        """Whether `key` may go on; if so, one token is gone."""
        if not self._burst:
            return True
        now_ms = self._clock.ticks_ms()
        spent, at_ms = self._spent.get(key, (0.0, now_ms))
        spent = max(0.0, spent - (now_ms - at_ms) * self._per_ms)
        if spent + 1 > self._burst:
            return False
        self._spent[key] = (spent + 1, now_ms)
        return True

    def forget_idle(self) -> None:
        """Drops what has filled up again, so that the table does not grow for ever."""
        now_ms = self._clock.ticks_ms()
        full = [
            key
            for key, (spent, at_ms) in self._spent.items()
            if spent <= (now_ms - at_ms) * self._per_ms
        ]
        for key in full:
            del self._spent[key]


class Gate:
    """As a context: a place among so many; when all are taken, Refusal `busy`."""

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._taken = 0

    def __enter__(self) -> None:
        if self._taken >= self._most:
            raise Refusal("busy", f"too many {self._what} at one time")
        self._taken += 1

    def __exit__(self, *_: object) -> None:
        self._taken -= 1


class Quotas:
    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._item_event_bytes = config.item_event_bytes
        self._want_event_bytes = config.want_event_bytes
        self._creates = Rate(
            clock, per_s=config.creates_per_minute / 60, burst=config.creates_per_minute
        )
        self._joins = Rate(clock, per_s=config.joins_per_minute / 60, burst=config.joins_per_minute)
        self._posts = Rate(clock, per_s=config.posts_per_second, burst=2 * config.posts_per_second)
        self.disk_is_full = False
        """Set by the sweeper when free space is below the watermark."""
        self.transfers = Gate(config.max_transfers, "large transfers")
        self.audits = Gate(AUDITS, "audit trails")

    def forget_idle(self) -> None:
        for rate in (self._creates, self._joins, self._posts):
            rate.forget_idle()

    def take_create(self, address: str) -> None:
        if not self._creates.take(network_of(address)):
            raise Refusal("rate_limited", "too many new sessions from this address")

    def take_join(self, session: Session) -> None:
        if not self._joins.take(session.id):
            raise Refusal("rate_limited", "too many joins of this session")

    def take_post(self, session: Session, participant: str) -> None:
        if not self._posts.take((session.id, participant)):
            raise Refusal("rate_limited", "too many posts by this participant")

    def check_disk(self) -> None:
        if self.disk_is_full:
            raise Refusal("full", "the relay's disk is nearly full")

    def check_room_for_participant(self, session: Session) -> None:
        if len(session.participants) >= self._config.max_participants:
            raise Refusal("full", "the session has as many participants as the relay allows")
        self._check_events(session, self._item_event_bytes)

    def check_room_for_item(self, session: Session, sealed_bytes: int) -> None:
        if len(session.items) + len(session.underway) >= self._config.max_items:
            raise Refusal("full", "the session has as many items as the relay allows")
        self._check_events(session, self._item_event_bytes)
        self.check_room_for_bytes(session, sealed_bytes)

    def check_room_for_job(self, session: Session) -> None:
        most = self._config.max_jobs
        if session.keeps_history:  # those that are over leave, and those under way have their room
            most += self._config.history_jobs
        if len(session.jobs) >= most:
            raise Refusal("full", "the session has as many jobs as the relay allows")

    def check_room_for_bytes(self, session: Session, sealed_bytes: int) -> None:
        self.check_disk()
        held = session.sealed_bytes + session.record_bytes + session.incoming_bytes
        if held + sealed_bytes > self._config.max_session_bytes:
            raise Refusal("full", "the session holds as many bytes as the relay allows")

    def is_filling(self, session: Session) -> bool:
        """Whether a session has less than a quarter of its room left."""
        config = self._config
        return (
            len(session.items) > 0.75 * config.max_items
            or session.events_bytes > 0.75 * self._item_event_bytes
            or session.sealed_bytes + session.record_bytes > 0.75 * config.max_session_bytes
        )

    def check_room_for_want(self, session: Session, who: Participant) -> None:
        self._check_events(session, self._want_event_bytes)
        if len(who.wants) >= self._config.max_wants:
            raise Refusal("too_many_wants", "too many blobs asked for at one time")

    def _check_events(self, session: Session, limit_bytes: int) -> None:
        # An envelope grows by less than half when it is escaped in its event.
        if session.events_bytes + 2 * session.underway_bytes > limit_bytes:
            raise Refusal("full", "the session's events no longer fit one answer")


def network_of(address: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 of an IPv6 one."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    mapped = getattr(found, "ipv4_mapped", None)
    if mapped is not None:
        return str(mapped)
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
