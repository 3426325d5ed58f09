"""airlox.tree.index: one encoding per tree, and nothing else is an index."""

from __future__ import annotations

import struct
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import LimitError, OrderError, ValidationError
from airlox.tree import index as indexes
from airlox.tree.index import Entry, Kind, TreeIndex, diff, parse_index
from support.trees import Node, index_of, trees

EMPTY = sha256(b"").digest()


def entry(path: bytes, kind: str = "f", size: int = 0, digest: bytes = EMPTY) -> Entry:
    return Entry(path, Kind(kind), size, digest)


def encoded(*rows: tuple[bytes, bytes, int, bytes], count: int | None = None) -> bytes:
    """An index written by hand, valid or not."""
    body = b"".join(
        kind + struct.pack(">H", len(path)) + path + struct.pack(">Q", size) + digest
        for kind, path, size, digest in rows
    )
    return b"axt1\n" + struct.pack(">I", len(rows) if count is None else count) + body


def test_the_bytes_of_a_small_tree() -> None:
    link = sha256(b"a").digest()
    index = TreeIndex([entry(b"b/c", "l", 1, link), entry(b"a", "x")])
    assert index.encode() == encoded((b"x", b"a", 0, EMPTY), (b"l", b"b/c", 1, link))
    assert index.digest == sha256(index.encode()).digest()
    assert TreeIndex(()).encode() == b"axt1\n\0\0\0\0"


def test_totals() -> None:
    index = index_of({b"a": ("f", b"123"), b"b": ("x", b"123"), b"c": ("f", b"")})
    assert index.total_bytes == 6
    assert index.sizes() == {sha256(b"123").digest(): 3, EMPTY: 0}


@given(trees)
def test_round_trip(tree: dict[bytes, Node]) -> None:
    index = index_of(tree)
    again = parse_index(index.encode())
    assert again == index
    assert (hash(again), again.digest) == (hash(index), index.digest)


@given(trees, st.data())
def test_a_changed_byte_is_refused_or_another_tree(
    tree: dict[bytes, Node], data: st.DataObject
) -> None:
    good = index_of(tree).encode()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    try:
        other = parse_index(bytes(bad))
    except ValidationError:
        return
    assert other.encode() == bytes(bad)
    assert other != index_of(tree)


@given(trees, st.data())
def test_no_prefix_and_no_longer_string_is_an_index(
    tree: dict[bytes, Node], data: st.DataObject
) -> None:
    good = index_of(tree).encode()
    cut = data.draw(st.integers(0, len(good) - 1))
    for bad in (good[:cut], good + b"\0"):
        with pytest.raises(ValidationError):
            parse_index(bad)


@given(st.binary(max_size=200))
def test_anything_is_an_index_or_refused(data: bytes) -> None:
    for candidate in (data, b"axt1\n" + data, b"axt1\n\0\0\0\1" + data):
        try:
            assert parse_index(candidate).encode() == candidate
        except ValidationError:
            pass


@pytest.mark.parametrize(
    "rows",
    [
        [(b"f", b"b", 0, EMPTY), (b"f", b"a", 0, EMPTY)],
        [(b"f", b"a", 0, EMPTY), (b"f", b"a", 0, EMPTY)],
        [(b"f", b"a", 0, EMPTY), (b"x", b"a", 0, EMPTY)],
    ],
)
def test_order(rows: list[tuple[bytes, bytes, int, bytes]]) -> None:
    with pytest.raises(OrderError):
        parse_index(encoded(*rows))


@pytest.mark.parametrize("path", [b"", b"/a", b"a/", b"../a", b"a/./b", b"a//b", b".Git/x", b"x\0"])
def test_paths_that_lead_elsewhere(path: bytes) -> None:
    with pytest.raises(ValidationError):
        parse_index(encoded((b"f", path, 0, EMPTY)))


def test_a_file_is_no_folder_even_with_names_sorting_between() -> None:
    with pytest.raises(ValidationError, match="as a file and as a folder"):
        TreeIndex([entry(b"a"), entry(b"a-b"), entry(b"a/b/c")])
    TreeIndex([entry(b"a-b"), entry(b"a.b"), entry(b"a/b"), entry(b"a/b-c/d")])


@pytest.mark.parametrize(
    "bad",
    [
        encoded((b"d", b"a", 0, EMPTY)),
        encoded((b"f", b"a", 1 << 63, EMPTY)),
        encoded((b"l", b"a", 0, EMPTY)),
        encoded((b"l", b"a", 4096, EMPTY)),
        encoded((b"f", b"a", 0, EMPTY), (b"f", b"b", 1, EMPTY)),
        encoded((b"f", b"a" * 256, 0, EMPTY)),
        encoded((b"f", b"a", 0, EMPTY), count=2),
        encoded((b"f", b"a", 0, EMPTY), count=0),
    ],
)
def test_refused(bad: bytes) -> None:
    with pytest.raises(ValidationError):
        parse_index(bad)


def test_a_count_over_the_bound_is_refused_before_it_is_read() -> None:
    with pytest.raises(LimitError):
        parse_index(encoded(count=1_000_001))


def test_only_so_many_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file far down costs its reader all the folders on the way; packed, it costs its sender
    next to nothing."""
    rows = [entry(b"%d/a/b/c/f" % n) for n in range(10)]
    assert TreeIndex(rows).folders == 40
    assert TreeIndex([*rows, entry(b"0/a/g"), entry(b"top")]).folders == 40
    for name, most in (("FOLDERS", 40), ("FOLDER_PATH_BYTES", 160)):
        monkeypatch.setattr(indexes, name, most)
        TreeIndex(rows)
        monkeypatch.setattr(indexes, name, most - 1)
        with pytest.raises(LimitError):
            TreeIndex(rows)
        monkeypatch.undo()


def test_difference() -> None:
    old = index_of({b"a": ("f", b"1"), b"b": ("f", b"2"), b"c": ("f", b"3")})
    new = index_of({b"b": ("f", b"2"), b"c": ("x", b"3"), b"d": ("f", b"4")})
    assert diff(old, new) == ((b"d",), (b"c",), (b"a",))


@given(trees, trees)
def test_a_difference_leads_from_one_tree_to_the_other(
    before: dict[bytes, Node], after: dict[bytes, Node]
) -> None:
    found = diff(index_of(before), index_of(after))
    became = {path: node for path, node in before.items() if path not in found.removed}
    became.update((path, after[path]) for path in (*found.added, *found.changed))
    assert became == after


@pytest.mark.parametrize("depth", [128, 129])
def test_depth_counts_the_name(depth: int) -> None:
    rows = [entry(b"/".join([b"d"] * depth))]
    if depth == 128:
        TreeIndex(rows)
        return
    with pytest.raises(LimitError):
        TreeIndex(rows)
