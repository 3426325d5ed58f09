"""airlox.tree.asking: what is asked for, once, in at most two questions after the first packs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.tree.asking import Asking
from airlox.tree.chunks import LARGE_BYTES, Cutter
from airlox.tree.index import TreeIndex
from airlox.tree.lack import Chosen, Lack, parse_lack
from airlox.tree.packs import write_packs
from airlox.tree.read import read_index
from airlox.tree.reuse import OldChunks
from airlox.tree.scan import scan
from airlox.tree.source import ALL, Part, TreeSource
from airlox.tree.store import ContentStore
from support.trees import Node, make_tree

CUTTER = Cutter(17)
OLD = random.Random(6).randbytes(3 * LARGE_BYTES)
NEW = OLD[:LARGE_BYTES] + b"!" + OLD[LARGE_BYTES:]
NODES: dict[bytes, Node] = {b"a": ("f", b"one"), b"big": ("f", NEW), b"c": ("f", b"two")}


@pytest.fixture
def source(tmp_path: Path) -> TreeSource:
    make_tree(tmp_path / "new", NODES)
    found = scan(tmp_path / "new")
    return TreeSource(found, read_index(found), CUTTER)


@pytest.fixture
def store(tmp_path: Path, source: TreeSource) -> Iterator[ContentStore]:
    make_tree(tmp_path / "old", {b"big": ("f", OLD)})
    old = OldChunks(CUTTER, tmp_path / "old", [b"big"])
    with ContentStore(tmp_path / "store", old=old) as store:
        store.want(source.index.sizes())
        yield store


def asked(asking: Asking, index: TreeIndex) -> Lack:
    question = asking.question()
    assert question is not None
    return parse_lack(question, index)


def send(store: ContentStore, source: TreeSource, parts: dict[bytes, Part]) -> int:
    """How many bytes of packs it took."""
    packs = list(write_packs(source.records(parts)))
    for pack in packs:
        store.add_pack(pack)
    return sum(map(len, packs))


def test_recipes_first_where_chunks_may_serve_again(
    source: TreeSource, store: ContentStore
) -> None:
    asking = Asking(source.index, store, reuse=True)
    [a, big, c] = [entry.digest for entry in source.index.entries]
    lack = asked(asking, source.index)
    assert lack.digests == {a, c}
    assert lack.chunks == {big: Chosen(0, frozenset())}
    assert asking.question() is None
    send(store, source, {a: ALL, c: ALL})
    assert asking.question() is None
    send(store, source, {big: Part(recipe=True, chunks=frozenset())})
    lack = asked(asking, source.index)
    assert lack.digests == frozenset()
    assert asking.question() is None
    chunks = source.recipe(big).chunks
    wanted = frozenset(chunks[at].digest for at in lack.chunks[big].positions)
    assert 1 <= len(wanted) <= 3
    assert send(store, source, {big: Part(recipe=False, chunks=wanted)}) < LARGE_BYTES
    assert store.is_complete
    assert b"".join(store.fetch(big) or ()) == NEW


def test_everything_at_once_where_nothing_is(source: TreeSource, store: ContentStore) -> None:
    asking = Asking(source.index, store, reuse=False)
    assert asked(asking, source.index) == Lack(False, frozenset(source.index.sizes()), {})
    assert asking.question() is None
    [_, big, _] = [entry.digest for entry in source.index.entries]
    send(store, source, {big: Part(recipe=True, chunks=frozenset())})
    assert asking.question() is None  # its chunks are on their way


def test_after_an_unasked_recipe_only_its_missing_chunks(
    source: TreeSource, store: ContentStore
) -> None:
    [a, big, c] = [entry.digest for entry in source.index.entries]
    send(store, source, {a: ALL, big: Part(recipe=True, chunks=frozenset())})
    asking = Asking(source.index, store, reuse=True)
    lack = asked(asking, source.index)
    assert lack.digests == {c}
    assert lack.chunks[big].total == len(source.recipe(big).chunks)
    assert asking.question() is None


def test_nothing_is_missing(source: TreeSource, store: ContentStore) -> None:
    send(store, source, dict.fromkeys(source.index.sizes(), ALL))
    assert Asking(source.index, store, reuse=True).question() is None
