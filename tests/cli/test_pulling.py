"""airlox.cli.pulling: what is said of what came back, and the exit code."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airlox.cli.output import Voice
from airlox.cli.pulling import NOTHING, Brought, bring
from airlox.client.pulling import Change, Pulled
from airlox.client.result import Result
from airlox.errors import StorageError
from airlox.tree.patch import Patch


class Returned:
    """What came back, as a test says."""

    def __init__(
        self, done: Sequence[Pulled] = (), patch: Patch | None = None, *, lost: bool = False
    ) -> None:
        self._done = tuple(done)
        self._patch = patch or Patch(b"", ())
        self._lost = lost

    @property
    def changes(self) -> tuple[Change, ...]:
        if self._lost:
            raise StorageError("gone")
        return tuple(Change(each.path, "changed") for each in self._done)

    def apply(self) -> tuple[Pulled, ...]:
        if self._lost:
            raise StorageError("gone")
        return self._done

    def patch(self) -> Patch:
        return self._patch


class Heard:
    """A voice, and what it said."""

    def __init__(self, *, json: bool = False) -> None:
        self._out = io.TextIOWrapper(io.BytesIO())
        self._err = io.TextIOWrapper(io.BytesIO())
        self.voice = Voice(json=json, stdout=self._out, stderr=self._err)

    @property
    def said(self) -> str:
        return _text(self._err)

    @property
    def printed(self) -> str:
        return _text(self._out)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode()


def result(returned: Any, status: str = "completed") -> Result:
    return Result(job="7QkZ", status=status, exit_code=0, reason=None, returned=returned)


KEPT = Pulled("b\x1b[2J", "kept", "it changed here meanwhile", "b.airlox-7QkZ")
DONE = (
    Pulled("a", "changed"),
    KEPT,
    Pulled("c", "new"),
    Pulled("d", "deleted"),
    Pulled("e", "same"),
)


def test_each_file_is_told_and_a_conflict_costs_success() -> None:
    heard = Heard()
    brought = bring(result(Returned(DONE)), heard.voice, pull=True, patch=None)
    assert heard.said.splitlines() == [
        "pulled a",
        "airlox: kept b\\x1b[2J: it changed here meanwhile; the job's version: b.airlox-7QkZ",
        "pulled c (new)",
        "deleted d",
    ]
    assert brought.exit_code(0) == 1
    assert brought.exit_code(7) == 7


def test_json_has_it_all() -> None:
    heard = Heard(json=True)
    brought = bring(result(Returned(DONE)), heard.voice, pull=True, patch=None)
    assert [each["done"] for each in brought.shape["pulled"]] == [each.done for each in DONE]
    assert brought.shape["pulled"][1]["beside"] == "b.airlox-7QkZ"
    assert heard.printed == ""


def test_names_that_are_no_text_are_told_in_json_too() -> None:
    heard = Heard(json=True)
    brought = bring(result(Returned([Pulled("\udcff", "new")])), heard.voice, pull=True, patch=None)
    heard.voice.document(brought.shape)
    assert '"path": "\\\\xff"' in heard.printed


def test_nothing_to_pull() -> None:
    heard = Heard()
    brought = bring(result(Returned()), heard.voice, pull=True, patch=None)
    assert heard.said == "nothing to pull: no file that matches was changed\n"
    assert brought.exit_code(0) == 0


def test_many_files_are_counted() -> None:
    heard = Heard()
    many = [Pulled(f"{n}", "changed") for n in range(60)]
    bring(result(Returned(many)), heard.voice, pull=True, patch=None)
    assert heard.said.splitlines()[-1] == "… and 10 more files pulled"
    assert len(heard.said.splitlines()) == 51


def test_a_job_that_did_not_end_by_itself_changes_nothing() -> None:
    heard = Heard()
    ended = result(Returned(DONE), "timed_out")
    brought = bring(ended, heard.voice, pull=True, patch=None, completed_only=True)
    assert "airlox result --pull -- 7QkZ" in heard.said
    assert brought.exit_code(1) == 1
    assert bring(ended, heard.voice, pull=True, patch=None).shape["pulled"]


def test_what_can_no_longer_be_had() -> None:
    heard = Heard()
    brought = bring(result(Returned(lost=True)), heard.voice, pull=True, patch=None)
    assert heard.said == "airlox: nothing was pulled: gone\n"
    assert brought.exit_code(0) == 1


def test_a_result_says_what_could_be_pulled() -> None:
    heard = Heard()
    assert bring(result(Returned(DONE)), heard.voice, pull=False, patch=None).exit_code(0) == 0
    assert heard.said.startswith("it changed 5 files of its tree: --pull")
    assert bring(result(None), heard.voice, pull=True, patch=None) is NOTHING


class TestPatch:
    PATCH = Patch(b"diff --git a/a b/a\n", ())

    def brought(self, heard: Heard, patch: Patch, path: str) -> Brought:
        return bring(result(Returned(DONE, patch)), heard.voice, pull=False, patch=path)

    def test_to_a_file_that_is_never_written_over(self, tmp_path: Path) -> None:
        path = tmp_path / "x.patch"
        for name in ("x.patch", "x-1.patch"):
            brought = self.brought(Heard(), self.PATCH, str(path))
            assert brought.shape == {"patch": str(tmp_path / name)}
        assert path.read_bytes() == self.PATCH.data
        assert path.stat().st_mode & 0o777 == 0o644

    def test_to_standard_output(self) -> None:
        heard = Heard()
        self.brought(heard, self.PATCH, "-")
        assert heard.printed.encode() == self.PATCH.data

    def test_without_changes(self, tmp_path: Path) -> None:
        heard = Heard()
        self.brought(heard, Patch(b"", ()), str(tmp_path / "x"))
        assert heard.said == "no patch: no file that matches was changed\n"
        assert list(tmp_path.iterdir()) == []

    def test_that_lacks_a_file(self, tmp_path: Path) -> None:
        heard = Heard()
        brought = self.brought(heard, Patch(b"x", (b"lost",)), str(tmp_path / "x"))
        assert "not in the patch: lost" in heard.said
        assert brought.exit_code(0) == 1


@pytest.mark.parametrize("code", [0, 3, 130])
def test_all_is_here(code: int) -> None:
    assert Brought({}, whole=True).exit_code(code) == code
