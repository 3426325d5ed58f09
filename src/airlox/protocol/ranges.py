"""Sets of numbers of events, as ascending ranges `(first, last)` that do not touch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

MOST: Final = 65_536
"""Ranges that are kept apart. Beyond it the two lowest become one: a relay decides how many there
are."""


def in_ranges(seq: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether a number lies in one of some ascending ranges."""
    at = bisect_right(ranges, seq, key=lambda each: each[0]) - 1
    return at >= 0 and seq <= ranges[at][1]


class Ranges:
    """A growing set of numbers."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, first: int, last: int) -> None:
        """Add all numbers from `first` to `last`."""
        found = self._ranges
        low = bisect_left(found, first - 1, key=lambda each: each[1])
        high = bisect_right(found, last + 1, key=lambda each: each[0])
        if low < high:
            first, last = min(first, found[low][0]), max(last, found[high - 1][1])
        found[low:high] = [(first, last)]
        if len(found) > MOST:
            found[:2] = [(found[0][0], found[1][1])]

    def __contains__(self, seq: int) -> bool:
        return in_ranges(seq, self._ranges)

    def any_below(self, seq: int) -> bool:
        """Whether some number of the set is lower than `seq`."""
        return bool(self._ranges) and self._ranges[0][0] < seq
