"""airlox.tree.lack: a runner can ask for nothing outside the tree."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import ValidationError
from airlox.tree.index import TreeIndex
from airlox.tree.lack import encode_lack, encode_lacking_index, parse_lack
from support.trees import Node, index_of, trees

NINE = index_of({b"%d" % n: ("f", b"%d" % n) for n in range(9)})


@given(trees, st.data())
def test_round_trip(tree: dict[bytes, Node], data: st.DataObject) -> None:
    index = index_of(tree)
    lacking = data.draw(st.frozensets(st.sampled_from(sorted(index.sizes())))) if tree else set()
    assert parse_lack(encode_lack(index, lacking), index) == (False, lacking)


def test_the_index_itself() -> None:
    assert parse_lack(encode_lacking_index(NINE.digest), NINE) == (True, frozenset())


def test_nothing_outside_the_tree_can_be_asked_for() -> None:
    """[P-TRE-2] A question is about one index, and points into it."""
    with pytest.raises(ValidationError):
        encode_lack(NINE, {sha256(b"other").digest()})
    with pytest.raises(ValidationError):
        parse_lack(encode_lack(NINE, ()), TreeIndex(()))


@given(st.data())
def test_another_length_or_a_bit_too_many_is_refused(data: st.DataObject) -> None:
    good = encode_lack(NINE, NINE.sizes())
    cut = data.draw(st.integers(0, len(good) - 1))
    bits_past_the_end = good[:-1] + bytes([data.draw(st.integers(2, 255))])
    for bad in (good[:cut], good + b"\0", bits_past_the_end, good[:37] + b"\2" + good[38:]):
        with pytest.raises(ValidationError):
            parse_lack(bad, NINE)


@given(st.binary(max_size=100))
def test_any_bytes(data: bytes) -> None:
    for candidate in (data, b"axl1\n" + NINE.digest + data):
        try:
            lack = parse_lack(candidate, NINE)
        except ValidationError:
            continue
        assert lack.digests <= NINE.sizes().keys()
