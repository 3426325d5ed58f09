"""airlox.runner.trees: how long a sender is waited for."""

from __future__ import annotations

import pytest

from airlox.runner.trees import (
    AWAITED_PATIENCE_S,
    LONGEST_S,
    PATIENCE_S,
    SLOWEST_BYTES_PER_S,
    Progress,
)


@pytest.mark.parametrize("patience_s", [PATIENCE_S, AWAITED_PATIENCE_S])
def test_a_silent_sender_is_gone(patience_s: float) -> None:
    progress = Progress(100.0)
    assert not progress.is_over(100.0 + patience_s, patience_s)
    assert progress.is_over(101.0 + patience_s, patience_s)


def test_what_nobody_wanted_is_silence() -> None:
    progress = Progress(0.0)
    for now_s in range(1, 200):
        progress.note(now_s, 0)
    assert progress.is_over(PATIENCE_S + 1, PATIENCE_S)


def test_drops_are_not_enough() -> None:
    """A few bytes now and then would hold up a slot for ever."""
    progress = Progress(0.0)
    now_s = 0.0
    while not progress.is_over(now_s, PATIENCE_S):
        now_s += 60.0
        progress.note(now_s, round(now_s))
        assert now_s < 10 * PATIENCE_S


def test_a_slow_line_is_waited_for() -> None:
    progress = Progress(0.0)
    for hour in range(1, 12):
        progress.note(hour * 3600.0, hour * 3600 * SLOWEST_BYTES_PER_S)
        assert not progress.is_over(hour * 3600.0, PATIENCE_S)
    progress.note(LONGEST_S + 1, 1 << 50)
    assert progress.is_over(LONGEST_S + 1, PATIENCE_S)
