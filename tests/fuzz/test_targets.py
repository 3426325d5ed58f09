"""Every target on its own inputs and on changes of them: no finding, and bounded memory."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .mutate import change_value
from .target import accepts
from .targets import TARGETS

MEMORY_BYTES = 48 << 20
"""Most that any target may hold at a time, for inputs of a few kilobytes."""


@st.composite
def changed(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A seed with a few bytes or runs of bytes changed, removed, doubled or taken from another."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        to = min(len(data), at + draw(st.sampled_from([0, 1, 1, 2, 4, 8, 64])))
        other = draw(st.sampled_from(seeds))
        start = draw(st.integers(0, len(other)))
        new = draw(
            st.binary(max_size=4)
            | st.just(bytes(data[at:to]) * 2)
            | st.just(other[start : start + 32])
            | st.sampled_from([b"\xff" * 4, b"\0" * 4, b"[" * 3000, b"\xed\xa0\x80", b"-1", b"\r"])
        )
        data[at:to] = new
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_some_inputs_are_taken_and_none_is_a_finding(name: str) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds())
    taken = [accepts(target, seed) for seed in seeds]
    assert any(taken)
    for odd in (b"", b"\0", b"\xff" * 100, b"[" * 100_000, b"{" + b'"a":{' * 20_000):
        accepts(target, odd)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60)
@given(data=st.data())
def test_any_change_is_read_or_refused(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds())
    random = data.draw(st.randoms(use_true_random=False))
    made = change_value(data.draw(st.sampled_from(seeds)), random)
    if made is not None:
        accepts(target, made)
    accepts(target, data.draw(changed(seeds)))


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_cost_bounded_memory(name: str) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds())
    accepts(target, seeds[0])  # what is made once, for all inputs
    tracemalloc.start()
    try:
        for seed in seeds:
            accepts(target, seed)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()
