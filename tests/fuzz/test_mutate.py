"""Changes of values keep what stands around them."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .mutate import change_value

_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("aé\n", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abv"), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text("abv"), _values, min_size=1, max_size=3),
    st.binary(max_size=9).filter(lambda data: b"{" not in data),
    st.binary(max_size=9),
    st.randoms(use_true_random=False),
)
def test_what_stands_around_is_kept(
    document: dict[str, object], before: bytes, after: bytes, random: Random
) -> None:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    size = len(text).to_bytes(4, "big")
    made = change_value(before + size + text + after, random)
    if b"{" in size:
        return
    assert made is not None
    assert made.startswith(before)
    end = len(before) + 4 + int.from_bytes(made[len(before) : len(before) + 4], "big")
    assert isinstance(json.loads(made[len(before) + 4 : end].decode("latin-1")), dict)
    assert made[end:] == after


@pytest.mark.parametrize("data", [b"", b"abc", b"{", b"{}", b'{"a":', b'{"a":' + b"[" * 50_000])
def test_what_is_no_document_is_left_to_others(data: bytes) -> None:
    assert change_value(data, Random(1)) is None
