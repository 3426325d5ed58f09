"""airlox.tree.source: what is sent of a tree is what its index says, or nothing is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from airlox.errors import TreeError
from airlox.tree.chunks import LARGE_BYTES, Cutter, Recipe, encode_recipe
from airlox.tree.index import Entry, Kind, TreeIndex
from airlox.tree.packs import Record, What
from airlox.tree.read import read_index
from airlox.tree.scan import scan
from airlox.tree.source import ALL, Part, TreeSource
from support.trees import Node, make_tree

BIG = random.Random(4).randbytes(2 * LARGE_BYTES)
NODES: dict[bytes, Node] = {
    b"a": ("f", b"one"),
    b"big": ("x", BIG),
    b"d/b": ("x", b"two"),
    b"d/c": ("f", b"one"),
    b"d/l": ("l", b"../a"),
    b"e": ("f", b""),
}
CUTTER = Cutter(11)
RECIPE = CUTTER.recipe([BIG])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    make_tree(folder, NODES)
    return folder


def source_of(root: Path) -> TreeSource:
    found = scan(root)
    return TreeSource(found, read_index(found), CUTTER)


def digest_of(source: TreeSource, path: bytes) -> bytes:
    return next(entry.digest for entry in source.index.entries if entry.path == path)


def contents(records: list[Record]) -> list[bytes]:
    return [record.data for record in records if record.what is What.CONTENT]


def test_each_content_once_and_recipes_first(root: Path) -> None:
    source = source_of(root)
    records = list(source.records(dict.fromkeys(source.index.sizes(), ALL)))
    assert [r.data for r in records if r.what is What.RECIPE] == [encode_recipe(RECIPE)]
    small = [data for data in contents(records) if len(data) < 10]
    assert small == [b"one", b"two", b"../a", b""]
    assert b"".join(data for data in contents(records) if data not in small) == BIG
    assert source.recipes == {digest_of(source, b"big"): RECIPE}


def test_only_what_is_asked_for_and_in_the_tree(root: Path) -> None:
    source = source_of(root)
    wanted = {digest_of(source, b"d/b"): ALL, bytes(32): ALL}
    assert contents(list(source.records(wanted))) == [b"two"]


def test_a_part_of_a_large_one(root: Path) -> None:
    source = source_of(root)
    big = digest_of(source, b"big")
    first = RECIPE.chunks[0].digest
    assert [r.what for r in source.records({big: Part(recipe=True, chunks=frozenset())})] == [
        What.RECIPE
    ]
    [only] = source.records({big: Part(recipe=False, chunks=frozenset({first, bytes(32)}))})
    assert (only.what, only.digest) == (What.CONTENT, first)


def test_recipes_that_are_known_are_not_made_again(root: Path) -> None:
    source = source_of(root)
    big = digest_of(source, b"big")
    known = Recipe(RECIPE.chunks[::-1])
    source.know({big: known, bytes(32): RECIPE})
    assert source.recipes == {big: known}
    other = source_of(root)
    other.know({big: Recipe(RECIPE.chunks[1:])})  # of another size: not of this content
    assert other.recipe(big) == RECIPE


@pytest.mark.parametrize("now", [b"eno", b"on", b"ones", None])
def test_a_file_that_changed_is_never_sent(root: Path, now: bytes | None) -> None:
    source = source_of(root)
    one = digest_of(source, b"a")
    (root / "a").unlink()
    if now is not None:
        (root / "a").write_bytes(now)
    with pytest.raises(TreeError) as caught:
        list(source.records({one: ALL}))
    assert caught.value.code == "tree_changed"


@pytest.mark.parametrize("at", [0, len(BIG) // 2, len(BIG) - 1])
@pytest.mark.parametrize("known", [False, True])
def test_a_large_file_that_changed(root: Path, at: int, known: bool) -> None:
    source = source_of(root)
    big = digest_of(source, b"big")
    if known:
        source.recipe(big)
    changed = bytearray(BIG)
    changed[at] ^= 1
    (root / "big").write_bytes(changed)
    sent: list[Record] = []
    with pytest.raises(TreeError, match="big changed"):
        sent.extend(source.records({big: ALL}))
    assert b"".join(contents(sent)) in BIG


def test_a_large_file_that_shrank(root: Path) -> None:
    source = source_of(root)
    big = digest_of(source, b"big")
    source.recipe(big)
    (root / "big").write_bytes(BIG[:-1])
    with pytest.raises(TreeError, match="big changed"):
        list(source.records({big: ALL}))


def test_a_link_that_changed(root: Path) -> None:
    source = source_of(root)
    link = digest_of(source, b"d/l")
    (root / "d" / "l").unlink()
    (root / "d" / "l").symlink_to("/etc/passwd")
    with pytest.raises(TreeError, match="d/l changed"):
        list(source.records({link: ALL}))


def test_the_index_is_one_more_content(root: Path) -> None:
    source = source_of(root)
    [record] = source.index_records()
    assert (record.digest, record.data) == (source.index.digest, source.index.encode())


def test_a_large_index_travels_by_a_recipe(root: Path) -> None:
    entries = (Entry(b"%07d" % n, Kind.FILE, 0, bytes(32)) for n in range(25_000))
    index = TreeIndex(entries)
    source = TreeSource(scan(root), index, CUTTER)
    recipe, *chunks = source.index_records()
    assert (recipe.what, recipe.digest, recipe.size) == (
        What.RECIPE,
        index.digest,
        len(index.encode()),
    )
    assert b"".join(chunk.data for chunk in chunks) == index.encode()
    had = frozenset(chunk.digest for chunk in chunks[1:])
    rest = source.recipe(index.digest).digests - had
    sent = list(source.index_records(Part(recipe=True, chunks=rest)))
    assert [record.digest for record in sent] == [index.digest, chunks[0].digest]
