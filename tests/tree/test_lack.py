"""airlox.tree.lack: a runner can ask for nothing outside the tree."""

from __future__ import annotations

import struct
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import EncodingError, ValidationError
from airlox.tree.chunks import LARGE_BYTES, Chunk, Recipe, is_large
from airlox.tree.index import Entry, Kind, TreeIndex
from airlox.tree.lack import encode_lack, encode_lacking_index, parse_lack
from support.trees import Node, index_of, trees

NINE = index_of({b"%d" % n: ("f", b"%d" % n) for n in range(9)})


@given(trees, st.data())
def test_round_trip(tree: dict[bytes, Node], data: st.DataObject) -> None:
    index = index_of(tree)
    lacking = data.draw(st.frozensets(st.sampled_from(sorted(index.sizes())))) if tree else set()
    assert parse_lack(encode_lack(index, lacking), index) == (False, lacking, {})


def test_the_index_itself() -> None:
    assert parse_lack(encode_lacking_index(NINE.digest), NINE) == (True, frozenset(), {})


def test_nothing_outside_the_tree_can_be_asked_for() -> None:
    """[P-TRE-2] A question is about one index, and points into it."""
    with pytest.raises(ValidationError):
        encode_lack(NINE, {sha256(b"other").digest()})
    with pytest.raises(ValidationError):
        parse_lack(encode_lack(NINE, ()), TreeIndex(()))


LARGE = TreeIndex(
    Entry(b"%d" % n, Kind.FILE, size, sha256(b"%d" % n).digest())
    for n, size in enumerate((5, LARGE_BYTES + 1, LARGE_BYTES, 1 << 40))
)
large = [entry.digest for entry in LARGE.entries if is_large(entry.size)]
recipes = st.lists(st.sampled_from([b"a" * 32, b"b" * 32, b"c" * 32]), max_size=20).map(
    lambda digests: Recipe(tuple(Chunk(digest, 1) for digest in digests))
)


@given(
    st.frozensets(st.sampled_from(sorted(LARGE.sizes()))),
    st.dictionaries(st.sampled_from(large), recipes, min_size=1),
    st.frozensets(st.sampled_from([b"a" * 32, b"b" * 32, b"c" * 32])),
)
def test_chunks_of_large_contents(
    lacking: frozenset[bytes], known: dict[bytes, Recipe], missing: frozenset[bytes]
) -> None:
    """[P-TRE-4] A recipe or single chunks of it can be asked for."""
    asked = {digest: (recipe, missing) for digest, recipe in known.items()}
    lack = parse_lack(encode_lack(LARGE, lacking, asked), LARGE)
    assert (lack.needs_index, lack.digests) == (False, lacking)
    for digest, recipe in known.items():
        total, positions = lack.chunks[digest]
        assert total == len(recipe.chunks)
        assert positions == {n for n, c in enumerate(recipe.chunks) if c.digest in missing}
    assert lack.chunks.keys() == known.keys()


@given(st.data())
def test_a_changed_question_about_chunks(data: st.DataObject) -> None:
    recipe = Recipe((Chunk(b"a" * 32, 1), Chunk(b"b" * 32, 1)))
    good = encode_lack(LARGE, (), {digest: (recipe, {b"a" * 32}) for digest in large})
    bad = bytearray(good)
    at = data.draw(st.integers(0, len(good) - 1))
    bad[at] ^= data.draw(st.integers(1, 255))
    for candidate in (bytes(bad), good[:at], good + good[at:]):
        try:
            lack = parse_lack(candidate, LARGE)
        except ValidationError:
            continue
        assert lack.chunks.keys() <= set(large)
        for total, positions in lack.chunks.values():
            assert positions <= set(range(total))


@pytest.mark.parametrize("number", [0, 2, 4, 1 << 31])
def test_chunks_of_what_is_not_large(number: int) -> None:
    order = sorted(LARGE.sizes())
    small = [n for n, digest in enumerate(order) if digest not in large]
    wrong = {0: small[0], 2: small[1]}.get(number, number)
    head = encode_lack(LARGE, ())
    bad = head[:37] + b"\2" + head[38:] + struct.pack(">II", wrong, 1) + b"\1"
    with pytest.raises(EncodingError):
        parse_lack(bad, LARGE)


@pytest.mark.parametrize(("count", "possible"), [(33, True), (34, False), (1 << 23, False)])
def test_more_chunks_than_a_content_has(count: int, possible: bool) -> None:
    """[P-TRE-4] A bit for each of millions would cost whoever is asked far more than the list."""
    order = sorted(LARGE.sizes())
    number = order.index(sha256(b"1").digest())
    head = encode_lack(LARGE, ())
    groups = struct.pack(">II", number, count) + bytes((count + 7) // 8)
    data = head[:37] + b"\2" + head[38:] + groups
    if possible:
        assert parse_lack(data, LARGE).chunks[order[number]].total == count
    else:
        with pytest.raises(EncodingError):
            parse_lack(data, LARGE)


@given(st.data())
def test_another_length_or_a_bit_too_many_is_refused(data: st.DataObject) -> None:
    good = encode_lack(NINE, NINE.sizes())
    cut = data.draw(st.integers(0, len(good) - 1))
    bits_past_the_end = good[:-1] + bytes([data.draw(st.integers(2, 255))])
    for bad in (
        good[:cut],
        good + b"\0",
        bits_past_the_end,
        good[:37] + b"\2" + good[38:],
        good[:37] + b"\3" + good[38:],
    ):
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
