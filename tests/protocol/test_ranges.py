"""Sets of numbers as ranges."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.protocol import ranges
from airlox.protocol.ranges import Ranges, in_ranges

RANGE = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(RANGE, max_size=20))
def test_the_same_numbers_as_a_set(added: list[tuple[int, int]]) -> None:
    found, numbers = Ranges(), set[int]()
    for first, last in added:
        found.add(first, last)
        numbers |= set(range(first, last + 1))
    assert {n for n in range(-2, 90) if n in found} == numbers
    assert all(found.any_below(n) == any(m < n for m in numbers) for n in range(90))
    kept = found._ranges
    assert all(a[1] + 1 < b[0] for a, b in pairwise(kept))


def test_none_is_in_no_range() -> None:
    assert not in_ranges(0, [])
    assert not Ranges().any_below(10**9)


def test_ranges_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """P-CHN-6: what is too much becomes coarser at its beginning, and forgets no number."""
    monkeypatch.setattr(ranges, "MOST", 10)
    found = Ranges()
    for n in range(100):
        found.add(3 * n, 3 * n)
    assert len(found._ranges) == 10
    assert all(3 * n in found for n in range(100))
    assert 3 * 99 - 1 not in found
