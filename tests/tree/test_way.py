"""A tree all the way: scanned, indexed, packed, received and applied over whatever a job left."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airlox.tree.apply import apply
from airlox.tree.asking import Asking
from airlox.tree.chunks import Cutter
from airlox.tree.lack import parse_lack
from airlox.tree.packs import write_packs
from airlox.tree.read import read_index
from airlox.tree.scan import Choice, scan
from airlox.tree.source import ALL, TreeSource
from airlox.tree.state import AppliedState
from airlox.tree.store import ContentStore
from airlox.tree.survey import survey
from support.trees import Node, describe, make_tree, paths, trees

CUTTER = Cutter(23)
LEFT = st.sampled_from(["file", "folder", "closed folder", "pipe", "link to /", "link to nothing"])


def send(sender: Path, work: Path, state: AppliedState | None) -> AppliedState:
    """What sender and runner do, with nothing in between but bytes."""
    allow = tuple(os.fsdecode(path) for path in describe(sender))
    found = scan(sender, Choice(allow=allow))
    source = TreeSource(found, read_index(found), CUTTER)
    looked = survey(source.index, work, state)
    with ContentStore(work.parent / "store") as store:
        sizes = source.index.sizes()
        store.want({digest: sizes[digest] for digest in looked.lacking})
        question = Asking(source.index, store, reuse=False).question()
        if question is not None:
            asked = parse_lack(question, source.index).digests
            for pack in write_packs(source.records(dict.fromkeys(asked, ALL)), target_bytes=100):
                store.add_pack(pack)
        return apply(source.index, work, store.fetch, state, looked=looked)


def leave(work: Path, things: Mapping[bytes, str]) -> None:
    """What a job may do to its folder, where it can."""
    for path, what in things.items():
        place = os.path.join(os.fsencode(work), path)
        try:
            if os.path.isdir(place) and not os.path.islink(place):
                shutil.rmtree(place)
            elif os.path.lexists(place):
                os.unlink(place)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if what == "file":
                Path(os.fsdecode(place)).write_bytes(b"of the job")
            elif what == "pipe":
                os.mkfifo(place)
            elif what.startswith("link"):
                os.symlink(b"/" if what == "link to /" else b"nothing", place)
            else:
                os.mkdir(place, 0o700 if what == "folder" else 0)
        except OSError:
            continue


def check(nodes: dict[bytes, Node], left: Mapping[bytes, str]) -> None:
    with tempfile.TemporaryDirectory() as top:
        sender, work = Path(top, "sender"), Path(top, "work")
        state: AppliedState | None = None
        work.mkdir()
        for things in ({}, left):
            sender.mkdir()
            make_tree(sender, nodes)
            leave(work, things)
            state = send(sender, work, state)
            there = describe(work)
            assert {path: there.get(path) for path in nodes} == nodes
            shutil.rmtree(sender)


@given(trees, st.dictionaries(paths, LEFT, max_size=5))
def test_some_hostile_trees(nodes: dict[bytes, Node], left: dict[bytes, str]) -> None:
    check(nodes, left)


@pytest.mark.slow
@settings(max_examples=1000)
@given(trees, st.dictionaries(paths, LEFT, max_size=5))
def test_a_thousand_hostile_trees(nodes: dict[bytes, Node], left: dict[bytes, str]) -> None:
    check(nodes, left)
