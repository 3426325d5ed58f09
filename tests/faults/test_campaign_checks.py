"""The checks of a campaign find what is planted, one thing at a time, and nothing in a good one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airlox.protocol.item import ItemRef
from airlox.protocol.job import Result, Status
from airlox.protocol.payload import Text
from airlox.protocol.view import ItemStatus
from faults.campaign import checks
from support.trails import Story

JOB = "A" * 22


def record(seq: int, text: str, *, item: str | None = None) -> Any:
    ident = item or f"i{seq}"
    return SimpleNamespace(
        seq=seq,
        status=ItemStatus.OK,
        envelope=SimpleNamespace(id=ident),
        item=SimpleNamespace(id=ident, meta=Text(text=text)),
    )


def end(**changes: Any) -> Any:
    good = {"signed": True, "status": "completed", "reason": None, "cause": "exit", "others": ()}
    return SimpleNamespace(**(good | changes))


def job(name: str) -> Any:
    return SimpleNamespace(meta=SimpleNamespace(script=f"# {name}\ntrue"))


def session(*records: Any, ends: dict[str, Any] | None = None) -> checks.Session:
    ends = ends or {}
    return checks.Session(records, {name: job(name) for name in ends}, ends)


def tried(*numbers: int) -> list[dict[str, Any]]:
    return [{"kind": "try", "n": n} for n in numbers]


def acked(n: int, item: str) -> dict[str, Any]:
    return {"kind": "ack", "n": n, "id": item}


def items(*records: Any, notes: list[dict[str, Any]]) -> list[str]:
    return list(checks.check_items(session(*records), {"items0": notes}))


class TestItems:
    TWO = (record(1, "items0 0"), record(2, "items0 1"))

    def test_all_there_in_order(self) -> None:
        notes = [*tried(0, 1, 2), acked(0, "i1"), acked(1, "i2")]
        assert items(*self.TWO, notes=notes) == []

    def test_an_acknowledged_one_is_missing(self) -> None:
        assert "there 0 times" in items(self.TWO[0], notes=[*tried(0, 1), acked(1, "i2")])[0]

    def test_an_acknowledged_one_is_another(self) -> None:
        assert "is there 1 times" in items(self.TWO[0], notes=[*tried(0), acked(0, "i9")])[0]

    def test_one_is_there_twice(self) -> None:
        found = items(self.TWO[0], record(3, "items0 0"), notes=tried(0))
        assert found == ["'items0 0' is there 2 times"]

    def test_one_that_nobody_sent(self) -> None:
        assert items(*self.TWO, notes=tried(0)) == ["'items0 1' was never sent"]

    def test_the_order_is_another(self) -> None:
        swapped = (record(1, "items0 1"), record(2, "items0 0"))
        notes = [*tried(0, 1), acked(0, "i2"), acked(1, "i1")]
        assert items(*swapped, notes=notes) == ["items0 1 is out of its order"]

    def test_one_was_refused(self) -> None:
        refused = record(1, "items0 0")
        refused.status = ItemStatus.REFUSED
        assert "refused" in items(refused, notes=tried(0))[0]


class TestViews:
    def found(self, *notes: dict[str, Any]) -> list[str]:
        return list(checks.check_views(session(*TestItems.TWO), {"read0": notes}))

    def view(self, seq: int, status: str = "ok") -> dict[str, Any]:
        return {"kind": "view", "seq": seq, "id": f"i{seq}", "status": status}

    def test_the_same(self) -> None:
        assert self.found(self.view(1), self.view(2), {"kind": "told"}) == []

    def test_one_is_missing(self) -> None:
        assert "other items" in self.found(self.view(1), {"kind": "told"})[0]

    def test_the_order_is_another(self) -> None:
        assert "other items" in self.found(self.view(2), self.view(1), {"kind": "told"})[0]

    def test_a_blob_is_missing(self) -> None:
        notes = (self.view(1), self.view(2, "evicted"), {"kind": "told"})
        assert self.found(*notes) == ["read0 lacks items: {'evicted': 1}"]

    def test_it_was_cut_short(self) -> None:
        assert "could not tell" in self.found(self.view(1), self.view(2))[0]


@pytest.mark.parametrize(("seen", "findings"), [([1, 2], 0), ([2, 1], 0), ([1, 1], 1), ([1, 9], 1)])
def test_streams(seen: list[int], findings: int) -> None:
    notes: list[dict[str, Any]] = [{"kind": "stream"}]
    notes += [{"kind": "seen", "seq": n, "id": f"i{n}"} for n in seen]
    found = list(checks.check_streams(session(*TestItems.TWO), {"read0": notes * 2}))
    assert len(found) == 2 * findings


class TestJobs:
    def found(self, ended: Any, *notes: dict[str, Any], results: int = 1) -> list[str]:
        meta = Result(
            code_sha256="",
            exit_code=0,
            input_sha256="",
            job=ItemRef(blob_sha256="A" * 43, id=JOB),
            out_files=(),
            peak_mem_mb=0,
            reason=None,
            status=Status.COMPLETED,
            stderr="",
            stderr_truncated=False,
            stdout="",
            stdout_truncated=False,
            wall_ms=0,
        )
        records = [record(n, "") for n in range(results)]
        for each in records:
            each.item.meta = meta
        given = session(*records, ends={JOB: ended})
        return list(checks.check_jobs(given, {"jobs0": notes}))

    def test_one_signed_end(self) -> None:
        told = {"kind": "end", "n": 0, "id": JOB, "status": "completed", "reason": None}
        assert self.found(end(), acked(0, JOB), told | {"signed": True}) == []

    def test_the_relays_word(self) -> None:
        assert self.found(end(signed=False, reason="runner_lost"), results=0) == []

    @pytest.mark.parametrize(
        ("ended", "results", "what"),
        [
            (None, 0, "has no end"),
            (end(), 2, "2 signed results"),
            (end(others=("x",)), 1, "signed results"),
            (end(signed=False, reason="runner_lost"), 1, "wins over"),
            (end(cause=None), 1, "without a cause"),
            (end(signed=False, reason=""), 0, "without a reason"),
        ],
    )
    def test_a_bad_end(self, ended: Any, results: int, what: str) -> None:
        assert what in self.found(ended, results=results)[0]

    def test_an_accepted_one_is_gone(self) -> None:
        assert "is no job" in self.found(end(), acked(0, "other"))[0]

    def test_a_refused_one_ran(self) -> None:
        note = {"kind": "not_taken", "n": 0, "id": JOB, "code": "runner_busy"}
        assert "ended otherwise" in self.found(end(), note)[0]

    def test_its_sender_was_told_something_else(self) -> None:
        told = {"kind": "end", "n": 0, "id": JOB, "status": "failed", "reason": None}
        assert "says otherwise" in self.found(end(), told | {"signed": True})[0]


class TestTrail:
    STORY = Story()
    COUNT = sum("envelope" in entry for entry in STORY.trail.entries)

    def found(self, *, items: int = COUNT, signed: bool = True, lines: int = 1000) -> list[str]:
        told = end(signed=signed, reason=None if signed else "runner_lost")
        known = [record(number, "") for number in range(items)]
        given = session(*known, ends={self.STORY.job.ref.id: told})
        return list(checks.check_trail(given, self.STORY.trail.entries[:lines]))

    def test_one_that_holds(self) -> None:
        assert self.found() == []

    def test_one_with_other_items(self) -> None:
        assert self.found(items=3) == [f"the trail has {self.COUNT} items, the owner 3"]

    def test_one_with_other_results(self) -> None:
        (finding,) = self.found(signed=False)
        assert "in the trail alone" in finding

    def test_one_that_contradicts_itself(self) -> None:
        assert any("[order]" in finding for finding in self.found(lines=0))


class TestLeftovers:
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.root = tmp_path

    def put(self, path: str, text: str = "run\n") -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def test_the_ledger(self) -> None:
        given = session(ends={"jobs0-1": end(), "jobs0-2": end()})
        self.put("jobs0-1")
        assert list(checks.check_ledger(given, self.root)) == []
        self.put("jobs0-2", "run\nrun\n")
        self.put("jobs0-3")
        assert sorted(checks.check_ledger(given, self.root)) == [
            "job jobs0-2 ran 2 times",
            "job jobs0-3 ran and is not in the session",
        ]

    def test_folders(self) -> None:
        self.put("disks/box0/cache/runner/ax_x/box0/run/j/work")
        self.put("disks/relay/data/sessions/s")
        assert len(list(checks.check_folders_of_runners(self.root))) == 1
        assert len(list(checks.check_folders_of_relay(self.root))) == 1

    def test_logs(self) -> None:
        self.put("box0", "all is well\n")
        assert list(checks.check_logs(self.root)) == []
        self.put("relay", "Traceback (most recent call last):\n  File x\n")
        assert "relay said" in next(checks.check_logs(self.root))
