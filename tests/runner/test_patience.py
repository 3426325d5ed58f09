"""Waiting for a relay: longer each time, within bounds, spread, and only for what may pass."""

from __future__ import annotations

import pytest

from airlox.client.deadline import Deadline
from airlox.errors import AirloxError, ConnectionLost, RelayError, StorageError
from airlox.runner.patience import LONGEST_WAIT_S, SPREAD, may_pass, patiently, wait_s


def test_waits_double_up_to_the_longest() -> None:
    assert [wait_s(failures, lambda: 0.5) for failures in range(7)] == [0.5, 1, 2, 4, 8, 8, 8]
    assert wait_s(10_000, lambda: 0.5) == LONGEST_WAIT_S


def test_waits_are_spread_so_that_not_all_come_at_once() -> None:
    assert wait_s(9, lambda: 0.0) == LONGEST_WAIT_S * (1 - SPREAD)
    assert wait_s(9, lambda: 1.0) == LONGEST_WAIT_S * (1 + SPREAD)


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (ConnectionLost("away"), True),
        (ConnectionLost("closed by us", code="closed"), False),
        (RelayError(503, "busy", "x"), True),
        (RelayError(429, "rate_limited", "x"), True),
        (RelayError(404, "foreign_answer", "x"), True),
        (RelayError(507, "full", "x"), True),
        (RelayError(409, "not_assigned", "x"), False),
        (RelayError(401, "unauthorized", "x"), False),
        (StorageError("full", code="disk_full"), True),
        (StorageError("no folder", code="not_private"), False),
    ],
)
def test_what_may_pass(error: AirloxError, passing: bool) -> None:
    assert may_pass(error) is passing


class Call:
    """Fails with each of `errors` in turn, then returns 7."""

    def __init__(self, *errors: AirloxError) -> None:
        self.errors = list(errors)
        self.waited: list[float] = []
        self.heard: list[AirloxError] = []

    def __call__(self) -> int:
        if self.errors:
            raise self.errors.pop(0)
        return 7

    def pause(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return len(self.waited) < 3


def test_it_tries_until_it_works_and_says_so_once() -> None:
    call = Call(ConnectionLost("a"), RelayError(502, "b", "b"))
    assert patiently(call, call.pause, on_wait=call.heard.append) == 7
    assert len(call.waited) == 2
    assert [str(error) for error in call.heard] == ["a"]


def test_what_will_not_pass_is_raised_at_once() -> None:
    call = Call(RelayError(403, "forbidden", "no"))
    with pytest.raises(RelayError):
        patiently(call, call.pause)
    assert call.waited == []


def test_being_told_to_stop_is_no_refusal_of_the_relay() -> None:
    """A result must not be given up because the runner was stopped while the relay was busy."""
    call = Call(*[RelayError(503, "busy", "x")] * 5)
    with pytest.raises(ConnectionLost) as stopped:
        patiently(call, call.pause)
    assert stopped.value.code == "closed"


def test_after_its_time_the_last_failure_is_raised() -> None:
    call = Call(ConnectionLost("away"))
    with pytest.raises(ConnectionLost, match="away"):
        patiently(call, call.pause, until=Deadline.after(0))
