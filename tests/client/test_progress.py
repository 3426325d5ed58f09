"""How far transfers are: told from the beginning to the end, and never beyond."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox import Progress, Session
from airlox.client.progress import STEP_BYTES, WORTH_TELLING_BYTES, Parts, pieces, teller
from support.archives import Member, build_zip
from support.server import server

SIZE = 3_000_000


def check(told: list[Progress], what: str, total: int) -> None:
    """One transfer from its first piece to its last."""
    assert {(each.what, each.total_bytes) for each in told} == {(what, total)}
    done = [each.done_bytes for each in told]
    assert done == sorted(done)
    assert done[-1] == total
    assert len(done) >= total // STEP_BYTES


class TestParts:
    @given(st.lists(st.lists(st.integers(0, 500_000), max_size=5), min_size=1, max_size=5))
    def test_bodies_add_up(self, bodies: list[list[int]]) -> None:
        told: list[Progress] = []
        total = sum(map(sum, bodies))
        parts = Parts(told.append, "tree", total)
        counted = parts.count([size for body in bodies for size in body], lambda size: size)
        for body in bodies:
            for _ in body:
                next(counted)
            next_one = parts.body(100)  # compressed
            for moved in (30, 100):
                if next_one is not None:
                    next_one(moved)
        done = [each.done_bytes for each in told]
        assert done == sorted(done)
        assert all(each.done_bytes <= total for each in told)
        assert bool(told) == (total >= WORTH_TELLING_BYTES)


class TestTeller:
    def test_small_bodies_are_not_told_of(self) -> None:
        assert teller(print, "upload", WORTH_TELLING_BYTES - 1) is None
        assert teller(None, "upload", 10**9) is None

    def test_pieces_are_the_body(self) -> None:
        body, told = os.urandom(STEP_BYTES * 2 + 7), list[int]()
        assert b"".join(pieces(body, told.append)) == body
        assert told == [STEP_BYTES, 2 * STEP_BYTES, len(body)]


@pytest.fixture(scope="module")
def relay() -> Iterator[str]:
    with server("--ephemeral") as running:
        yield running.url


def test_a_file_goes_and_comes(relay: str, tmp_path: Path) -> None:
    up: list[Progress] = []
    down: list[Progress] = []
    archive = build_zip(Member(name="random", content=os.urandom(SIZE)))
    with Session.create(relay, cache_dir=tmp_path / "owner", on_progress=up.append) as owner:
        owner.send_text("small things are not told of")
        owner.send_file(archive, name="a.zip")
        check(up, "upload", up[0].total_bytes)
        assert up[0].total_bytes >= len(archive)
        link = owner.invites["observer"]
        with Session.join(link, cache_dir=tmp_path / "two", on_progress=down.append) as reader:
            (_, item) = reader.items()
            assert item.body == archive
    check(down, "download", down[0].total_bytes)


def test_a_callback_that_fails_fails_its_call(relay: str, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(progress: Progress) -> None:
        raise Stop

    archive = build_zip(Member(name="random", content=os.urandom(SIZE)))
    with Session.create(relay, cache_dir=tmp_path, on_progress=stop) as owner:
        with pytest.raises(Stop):
            owner.send_file(archive, name="a.zip")
        owner.send_text("the session goes on")
        assert [item.text for item in owner.items()] == ["the session goes on"]
