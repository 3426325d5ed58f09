"""A clock that a test turns."""

from __future__ import annotations


class Clock:
    """Stands still until it is turned."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._ticks_ms = 1_000_000

    def now_ms(self) -> int:
        return self._now_ms

    def ticks_ms(self) -> int:
        return self._ticks_ms

    def turn(self, seconds: float) -> None:
        self._now_ms += int(seconds * 1000)
        self._ticks_ms += int(seconds * 1000)

    def set_by(self, seconds: float) -> None:
        """Somebody sets the wall clock: ticks do not notice."""
        self._now_ms += int(seconds * 1000)
