"""Rates and places: so many over time, so many at once; tables that do not grow for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.relay import gates
from airlox.relay.gates import Bound, Gate, Rate
from airlox.relay.refusals import Refusal
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


def test_what_should_have_cost_nothing_is_given_back() -> None:
    clock = Clock(0)
    rate = Rate(clock, per_s=1, burst=2)
    rate.give_back("a")
    assert [rate.take("a") for _ in range(3)] == [True, True, False]
    rate.give_back("a")
    assert [rate.take("a") for _ in range(2)] == [True, False]
    clock.turn(100)
    rate.give_back("a")
    assert [rate.take("a") for _ in range(3)] == [True, True, False]


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


def test_who_is_refused_is_told_when_to_come_again() -> None:
    clock = Clock(0)
    rate = Rate(clock, per_s=2, burst=4)
    while rate.take("a"):
        pass
    assert rate.wait_s("a") == pytest.approx(0.5)
    clock.turn(rate.wait_s("a"))
    assert rate.take("a")
    assert rate.wait_s("b") == 0.0


def test_forgetting_goes_on_from_pass_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "LOOKED_AT", 30)
    clock = Clock(0)
    rate = Rate(clock, per_s=1, burst=10)
    for key in range(100):
        rate.take(key)
    clock.turn(1)
    rate.take("now")
    for left in (71, 41, 11, 1, 1):
        rate.forget_idle()
        assert len(rate._spent) == left


def test_a_flood_of_keys_has_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "RATE_KEYS", 50)
    rate = Rate(Clock(0), per_s=1, burst=2)
    for number in range(1000):
        rate.take(f"192.0.2.{number}")
        rate.take("the one that goes on asking")
    assert len(rate._spent) <= 50
    assert not rate.take("the one that goes on asking")


# ── places ───────────────────────────────────────────────────────────────────────────────────


def bound(most: int, word: str) -> Bound:
    return Bound(most, lambda: Refusal("busy", word))


def test_places_are_counted_for_every_holder() -> None:
    gate = Gate(bound(3, "all"), bound(2, "address"))
    first, _ = gate.take("all", "a"), gate.take("all", "a")
    with pytest.raises(Refusal, match="address"):
        gate.take("all", "a")
    with gate.take("all", "b"), pytest.raises(Refusal, match="all"):
        gate.take("all", "c")
    first.give()
    first.give()  # once is once
    assert (gate.held(0, "all"), gate.held(1, "a"), gate.held(1, "b")) == (1, 1, 0)
    gate.take("all", "a")


def test_what_was_refused_holds_nothing() -> None:
    gate = Gate(bound(9, "all"), bound(1, "address"))
    held = gate.take("all", "a")
    with pytest.raises(Refusal):
        gate.take("all", "a")
    held.give()
    assert gate._held == {}


def test_a_holder_nobody_knows_is_not_counted_and_some_are_let_in_anyway() -> None:
    gate = Gate(bound(2, "all"), bound(1, "address"))
    gate.take("all", None)
    gate.take("all", None)
    gate.take("all", None, over=True)
    assert gate.held(0, "all") == 3


def test_sizes() -> None:
    gate = Gate(bound(10, "all"))
    big = gate.take("all", size=8)
    with pytest.raises(Refusal):
        gate.take("all", size=3)
    gate.take("all", size=2)
    big.give()
    assert gate.held(0, "all") == 2
