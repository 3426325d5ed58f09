"""A point in time by which something must have happened.

One deadline spans a whole call, however many reads, writes and retries it takes: a peer that
drips one byte at a time extends nothing. Times are of the monotonic clock.
"""

from __future__ import annotations

import time


class Deadline:
    """The end of a wait; `Deadline.after(None)` never comes."""

    __slots__ = ("_at", "_latest")

    def __init__(self, at: float | None, latest: float | None = None) -> None:
        """For the class methods; `latest` is what no extension goes beyond."""
        self._at = at
        self._latest = latest

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """The deadline `seconds` from now, or one that never comes."""
        return cls(None if seconds is None else time.monotonic() + seconds)

    def left_s(self) -> float | None:
        """Seconds left, never below 0; None when there is no end."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def cap_s(self, seconds: float) -> float:
        """`seconds`, or what is left if that is less."""
        left = self.left_s()
        return seconds if left is None else min(seconds, left)

    def extended(self, seconds: float) -> Deadline:
        """The deadline `seconds` later, as far as `within` allows."""
        if self._at is None:
            return self
        return Deadline(_earlier(self._at + seconds, self._latest), self._latest)

    def within(self, limit: Deadline) -> Deadline:
        """This deadline, but never after `limit`, however often it is extended."""
        return Deadline(_earlier(self._at, limit._at), _earlier(self._latest, limit._at))

    def sooner(self, other: Deadline) -> Deadline:
        """Whichever of the two comes first."""
        if self._at is None or (other._at is not None and other._at < self._at):
            return other
        return self

    @property
    def passed(self) -> bool:
        return self.left_s() == 0.0


def _earlier(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
