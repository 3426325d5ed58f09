"""Deadlines: extended for what a line takes, never beyond what a caller waits."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.client import deadline as module
from airlox.client.deadline import Deadline

NOW = 1000.0
ends = st.none() | st.integers(0, 50)


@pytest.fixture(autouse=True, scope="module")
def still() -> Iterator[None]:
    """The clock stands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: NOW))
        yield


def earliest(*lefts: float | None) -> float | None:
    return min((left for left in lefts if left is not None), default=None)


@given(one=ends, other=ends, extensions=st.lists(st.integers(0, 50), max_size=4))
def test_no_extension_goes_beyond_the_limit(
    one: int | None, other: int | None, extensions: list[int]
) -> None:
    end = Deadline.after(one).within(Deadline.after(other))
    assert end.left_s() == earliest(one, other)
    for seconds in extensions:
        end = end.extended(seconds)
        left = end.left_s()
        assert other is None or (left is not None and left <= other)
    wanted = None if one is None else one + sum(extensions)
    assert one is None or end.left_s() == earliest(wanted, other)


@given(st.lists(ends, min_size=1, max_size=5), st.integers(0, 99))
def test_of_several_limits_the_earliest_holds(limits: list[int | None], extension: int) -> None:
    end = Deadline.after(20)
    for limit in limits:
        end = end.within(Deadline.after(limit))
    assert end.extended(extension).left_s() == earliest(20 + extension, *limits)


@given(one=ends, other=ends)
def test_the_sooner(one: int | None, other: int | None) -> None:
    assert Deadline.after(one).sooner(Deadline.after(other)).left_s() == earliest(one, other)


def test_left_and_passed() -> None:
    assert Deadline.after(None).left_s() is None
    assert not Deadline.after(None).passed
    assert Deadline.after(-5).left_s() == 0.0
    assert Deadline.after(0).passed
    assert Deadline.after(None).cap_s(7) == 7
    assert Deadline.after(3).cap_s(7) == 3
