"""airlox.tree.zips: archives that every reader takes, always the same for the same files."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.protocol.archive import inspect_zip, read_entry
from airlox.tree.zips import write_zip

names = st.text(st.characters(categories=["Ll", "Nd"]), max_size=12).map("n{}".format)


def written(files: dict[str, bytes]) -> bytes:
    return write_zip([(name, partial(files.__getitem__, name)) for name in files])


def read(data: bytes) -> dict[str, bytes]:
    return {entry.path: b"".join(read_entry(data, entry)) for entry in inspect_zip(data)}


@given(st.dictionaries(names, st.binary(max_size=200)))
def test_what_is_written_is_read(files: dict[str, bytes]) -> None:
    folded = {name.casefold() for name in files}
    if len(folded) == len(files):
        assert read(written(files)) == files
    assert written(files) == written(files)


@pytest.mark.parametrize(
    "files",
    [
        {"zeros": bytes(3 << 20)},
        {str(number): bytes(900_000) for number in range(8)},
        {"zeros": bytes(3 << 20), "text": b"abc" * 100_000},
    ],
    ids=["one", "many", "mixed"],
)
def test_what_would_be_taken_for_a_bomb_is_stored(files: dict[str, bytes]) -> None:
    assert read(written(files)) == files
