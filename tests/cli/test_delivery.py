"""`airlox delivery`: who has fetched what one sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.cli import delivery
from support.here import people_of, someone
from support.relay import RelayThread


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayThread]:
    with RelayThread(creates_per_minute=0) as running:
        yield running


def test_names_move_as_people_fetch(relay: RelayThread, tmp_path: Path) -> None:
    people = people_of(relay.url, tmp_path)
    owner, coder = people["owner"], someone(people["sender"], "coder")
    people["observer"]("items", "--as", "watcher")
    nothing = owner("delivery")
    assert (nothing.out, nothing.err) == ("", "you have sent nothing to this session yet\n")
    first = owner("send", "text", "one", "--to", "coder", "--json").document["sent"]["id"]
    coder("items")
    (told,) = owner("delivery", "--json").document["delivery"]
    assert set(told) == {"created_at_ms", "delivered", "id", "kind", "to", "waiting"}
    assert (told["id"], told["kind"]) == (first, "text")
    assert told["to"] == [p["participant_pub"] for p in told["delivered"]]
    assert [(p["display_name"], p["role"]) for p in told["delivered"]] == [("coder", "sender")]
    assert [(p["display_name"], p["role"]) for p in told["waiting"]] == [("watcher", "observer")]
    owner("send", "text", "two")
    head, one, two = owner("delivery").out.splitlines()
    assert head.split() == ["ITEM", "SENT", "KIND", "TO", "FETCHED", "BY", "WAITING", "FOR"]
    assert one.split()[0] == first
    assert one.split()[-3:] == ["coder", "coder", "watcher"]
    assert two.endswith("coder, watcher")
    (last,) = owner("delivery", "--last", "1").out.splitlines()[1:]
    assert last.split() == two.split()
    assert coder("delivery", "--json").document == {"delivery": []}


@pytest.mark.parametrize("last", ["0", "-1", "x", "101"])
def test_how_many(relay: RelayThread, tmp_path: Path, last: str) -> None:
    owner = people_of(relay.url, tmp_path)["owner"]
    done = owner("delivery", "--last", last, code=None)
    assert done.code in (1, 2)
    assert "airlox: " in done.err


def test_many_names_are_cut() -> None:
    assert delivery._list([str(n) for n in range(9)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 1 more"
    assert delivery._list(["a", "b"]) == "a, b"
