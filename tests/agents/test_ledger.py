"""What was handed out, kept on disk: whole after each step, and read back as it was."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from airlox.agents.ledger import GIVEN, Batch, Ledger, State
from airlox.errors import StorageError


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "listen-sender.json")


def batch(*seqs: int) -> Batch:
    return Batch("b1", tuple(f"item-{seq}" for seq in seqs), seqs)


def test_a_batch_from_its_beginning_to_its_end(path: str) -> None:
    ledger = Ledger(path)
    assert ledger.is_new
    ledger.settle(3)
    ledger.take(batch(5, 8), 4)
    assert Ledger(path).batch == batch(5, 8)
    started = ledger.start()
    assert (started.state, started.starts, started.id) == (State.STARTED, 1, "b1")
    assert Ledger(path).batch == started
    ledger.finish()
    again = Ledger(path)
    assert again.batch is None
    assert [seq for seq in range(10) if not again.is_settled(seq)] == [6, 7, 9]


def test_each_start_counts_but_one_that_was_none(path: str) -> None:
    ledger = Ledger(path)
    ledger.take(batch(1), 0)
    ledger.start()
    assert Ledger(path).start().starts == 2
    again = Ledger(path)
    again.unstart()
    assert again.batch is not None
    assert (again.batch.state, again.batch.starts) == (State.TAKEN, 1)


def test_the_floor_only_rises_and_takes_what_is_below_with_it(path: str) -> None:
    ledger = Ledger(path)
    ledger.settle(5, (7, 9))
    ledger.settle(2)
    assert ledger.floor == 5
    ledger.settle(8)
    assert json.loads(Path(path).read_text()) == {"floor": 8, "given": [9], "batch": None}


def test_it_is_bounded(path: str) -> None:
    ledger = Ledger(path)
    ledger.settle(0, range(2, 2 * GIVEN + 10, 2))
    known = json.loads(Path(path).read_text())
    assert len(known["given"]) == GIVEN
    assert all(ledger.is_settled(seq) for seq in range(2, 2 * GIVEN + 10, 2))


def test_it_is_private(path: str) -> None:
    Ledger(path).settle(1)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "{", '{"floor": "1"}', '{"given": []}', "[1]", "\xff"])
def test_a_damaged_one_is_never_taken_for_an_empty_one(path: str, text: str) -> None:
    Path(path).write_text(text, "latin-1")
    with pytest.raises(StorageError, match="damaged") as caught:
        Ledger(path)
    assert caught.value.code == "damaged"


def test_a_disk_that_takes_nothing_changes_nothing(path: str, tmp_path: Path) -> None:
    ledger = Ledger(path)
    ledger.settle(1)
    gone = Ledger(str(tmp_path / "no such folder" / "x.json"))
    with pytest.raises(StorageError):
        gone.take(batch(2), 1)
    assert gone.batch is None
