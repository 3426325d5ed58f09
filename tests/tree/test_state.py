"""airlox.tree.state (with stamps.py): what is kept between two syncs, and nothing else is read."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import ValidationError
from airlox.tree.index import TreeIndex
from airlox.tree.stamps import Stamp
from airlox.tree.state import AppliedState, encode_state, load_state, parse_state, save_state
from support.trees import Node, index_of, trees


@given(trees, st.lists(st.sampled_from([b"a", b"b/c"]), unique=True), st.data())
def test_a_changed_byte_never_makes_another_index(
    nodes: dict[bytes, Node], unfinished: list[bytes], data: st.DataObject
) -> None:
    index = index_of(nodes)
    stamps = tuple(Stamp(n, -n, 1 << 62) for n in range(len(nodes)))
    state = AppliedState(index, stamps, b"boot", tuple(unfinished))
    good = encode_state(state)
    assert parse_state(good) == state
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    for candidate in (bytes(bad), good[:-1], good + b"\0"):
        try:
            assert encode_state(parse_state(candidate)) == candidate
        except ValidationError:
            pass


@pytest.mark.parametrize("path", [b"../x", b"/etc/passwd", b"a/../../b", b""])
def test_a_path_that_leads_elsewhere_is_refused(path: bytes) -> None:
    state = AppliedState(TreeIndex(()), (), b"", (path,))
    with pytest.raises(ValidationError):
        parse_state(encode_state(state))


def test_load_and_save(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert load_state(path) is None
    state = AppliedState(index_of({b"a": ("f", b"1")}), (Stamp(1, 2, 3),), b"boot", (b"b",))
    save_state(path, state)
    assert load_state(path) == state
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(path.read_bytes()[:-1])
    assert load_state(path) is None
