"""airlox.tree.chunks: cuts follow the content, recipes are exact or refused."""

from __future__ import annotations

import random
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import EncodingError, LimitError, ValidationError
from airlox.tree.chunks import (
    CHUNK_BYTES,
    LARGE_BYTES,
    LEAST_BYTES,
    RECIPE_BYTES,
    Chunk,
    Cutter,
    Recipe,
    encode_recipe,
    encode_recipes,
    is_large,
    parse_recipe,
    parse_recipes,
)

MIB = 1 << 20
DATA = random.Random(7).randbytes(8 * MIB)

digests = st.binary(min_size=32, max_size=32)
others = st.lists(st.builds(Chunk, digests, st.integers(LEAST_BYTES, CHUNK_BYTES)))
recipes = st.tuples(others, st.builds(Chunk, digests, st.integers(1, CHUNK_BYTES))).map(
    lambda chunks: Recipe((*chunks[0], chunks[1]))
)


def pieces(data: bytes, step: int) -> list[bytes]:
    return [data[at : at + step] for at in range(0, len(data), step)]


class TestCutting:
    @pytest.mark.parametrize("step", [1 << 10, 100_003, MIB, len(DATA)])
    def test_the_same_however_it_is_read(self, step: int) -> None:
        whole = Cutter(5).recipe([DATA])
        assert Cutter(5).recipe(pieces(DATA, step)) == whole
        assert whole.size == len(DATA)
        assert b"".join(bytes(part) for part in Cutter(5).cut([DATA])) == DATA
        assert [c.digest for c in whole.chunks] == [
            sha256(part).digest() for part in Cutter(5).cut([DATA])
        ]

    @pytest.mark.parametrize("at", [0, 1, 3 * MIB, len(DATA)])
    def test_an_inserted_byte_moves_few_chunks(self, at: int) -> None:
        before = Cutter(5).recipe([DATA])
        after = Cutter(5).recipe([DATA[:at], b"!", DATA[at:]])
        new = [chunk for chunk in after.chunks if chunk.digest not in before.digests]
        assert 1 <= len(new) <= 3
        assert len(before.chunks) > 20

    def test_another_session_cuts_elsewhere(self) -> None:
        """[P-TRE-3] Sizes of chunks say nothing about a file that others have too."""
        ends = [
            {sum(c.length for c in r.chunks[:n]) for n in range(1, len(r.chunks))}
            for r in (Cutter(seed).recipe([DATA]) for seed in (5, (1 << 63) - 1))
        ]
        assert not ends[0] & ends[1]

    def test_nothing_to_cut(self) -> None:
        assert Cutter(5).recipe([]) == Recipe(())
        assert Cutter(5).recipe([b"", b""]) == Recipe(())

    def test_zeros_are_cut_at_the_bound(self) -> None:
        recipe = Cutter(5).recipe([bytes(2 * MIB)])
        assert recipe.digests == {sha256(bytes(CHUNK_BYTES)).digest()}


def test_what_is_large() -> None:
    assert [is_large(LARGE_BYTES), is_large(LARGE_BYTES + 1)] == [False, True]


class TestRecipes:
    @given(recipes)
    def test_round_trip(self, recipe: Recipe) -> None:
        assert parse_recipe(encode_recipe(recipe), recipe.size) == recipe

    @given(recipes, st.data())
    def test_another_size_or_length_is_refused(self, recipe: Recipe, data: st.DataObject) -> None:
        good = encode_recipe(recipe)
        with pytest.raises(ValidationError):
            parse_recipe(good, recipe.size + data.draw(st.sampled_from([-1, 1, 1 << 40])))
        with pytest.raises(ValidationError):
            parse_recipe(good[: data.draw(st.integers(0, len(good) - 1))], recipe.size)

    @pytest.mark.parametrize("length", [0, CHUNK_BYTES + 1, (1 << 32) - 1])
    def test_impossible_chunks(self, length: int) -> None:
        recipe = Recipe((Chunk(bytes(32), length),))
        with pytest.raises(EncodingError):
            parse_recipe(encode_recipe(recipe), recipe.size)

    def test_more_chunks_than_a_content_can_have(self) -> None:
        """P-TRE-4: thousands of chunks in a small file cost a reader far more memory than it."""
        short = Chunk(bytes(32), LEAST_BYTES - 1)
        for chunks in ((short, short), (short, Chunk(bytes(32), LEAST_BYTES)), (short,) * 1000):
            recipe = Recipe(chunks)
            with pytest.raises(EncodingError):
                parse_recipe(encode_recipe(recipe), recipe.size)
        for good in (Recipe((short,)), Recipe((Chunk(bytes(32), LEAST_BYTES), short))):
            assert parse_recipe(encode_recipe(good), good.size) == good

    def test_bounds(self) -> None:
        most = RECIPE_BYTES // 36
        too_many = Recipe((Chunk(bytes(32), LEAST_BYTES),) * (most + 1))
        with pytest.raises(LimitError):
            encode_recipe(too_many)
        with pytest.raises(LimitError):
            parse_recipe(bytes(36 * (most + 1)), most + 1)

    @given(st.binary(max_size=200), st.integers(0, 1 << 20))
    def test_any_bytes(self, data: bytes, size: int) -> None:
        try:
            recipe = parse_recipe(data, size)
        except ValidationError:
            return
        assert encode_recipe(recipe) == data


class TestKeptRecipes:
    @given(st.dictionaries(digests, recipes, max_size=4))
    def test_round_trip(self, kept: dict[bytes, Recipe]) -> None:
        assert parse_recipes(encode_recipes(kept)) == kept

    @given(st.binary(max_size=100))
    def test_any_bytes(self, data: bytes) -> None:
        for candidate in (data, b"axr1\n" + data):
            try:
                parse_recipes(candidate)
            except ValidationError:
                pass
