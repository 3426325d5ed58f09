"""Rates: so many at once, so many over time, per key; tables that do not grow for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.relay.quotas import Rate, network_of
from support.clock import Clock


def test_a_burst_and_then_the_pace() -> None:
    clock = Clock(0)
    rate = Rate(clock, per_s=2, burst=4)
    assert [rate.take("a") for _ in range(6)] == [True] * 4 + [False] * 2
    assert rate.take("b")
    clock.turn(0.5)
    assert [rate.take("a") for _ in range(2)] == [True, False]
    clock.turn(100)
    assert [rate.take("a") for _ in range(5)] == [True] * 4 + [False]


def test_zero_is_no_limit() -> None:
    rate = Rate(Clock(0), per_s=0, burst=0)
    assert all(rate.take("a") for _ in range(100))


def test_what_has_filled_up_again_is_forgotten() -> None:
    clock = Clock(0)
    rate = Rate(clock, per_s=1, burst=10)
    for key in range(100):
        rate.take(key)
    clock.turn(0.5)
    rate.forget_idle()
    assert len(rate._spent) == 100
    clock.turn(0.5)
    rate.forget_idle()
    assert rate._spent == {}


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=60))
def test_no_window_ever_lets_through_more_than_burst_and_pace(pauses_ms: list[int]) -> None:
    clock = Clock(0)
    rate = Rate(clock, per_s=2, burst=5)
    taken: list[int] = []
    for pause in pauses_ms:
        clock.turn(pause / 1000)
        if rate.take("a"):
            taken.append(clock.ticks_ms())
    for first, start in enumerate(taken):
        for last in range(first, len(taken)):
            count = last - first + 1
            assert count <= 5 + 2 * (taken[last] - start) / 1000 + 1e-6


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("somewhere", "elsewhere", False),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same
