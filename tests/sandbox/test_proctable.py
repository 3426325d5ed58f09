"""Reading the process table, whatever a job calls its processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.sandbox import proctable
from airlox.sandbox.proctable import Process
from support import parts

PAGE = os.sysconf("SC_PAGE_SIZE")


def stat_line(name: bytes) -> bytes:
    return (
        b"7 (" + name + b") S 3 7 7 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 2 0 123 1000 9 18446744073"
        b" 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0\n"
    )


class TestStat:
    @given(st.binary(max_size=16))
    def test_the_name_cannot_forge_the_fields(self, name: bytes) -> None:
        found = proctable.parse_stat(stat_line(name))
        assert found == Process(7, 3, 123, 9 * PAGE, 2, False)

    @pytest.mark.parametrize("name", [b"a) R 1 1 1", b") ", b"a b", b"", b"\xff\n"])
    def test_names_made_to_confuse(self, name: bytes) -> None:
        assert proctable.parse_stat(stat_line(name)).parent == 3

    def test_zombies_are_known(self) -> None:
        assert proctable.parse_stat(stat_line(b"x").replace(b") S", b") Z")).zombie

    @given(st.binary(max_size=200))
    def test_other_bytes_are_refused(self, data: bytes) -> None:
        with pytest.raises(ValueError):
            proctable.parse_stat(b"x" + data)


class TestPs:
    def test_rows(self) -> None:
        text = "    1     0 21492 SLl\n   23     1     0 Z+\n"
        assert proctable.parse_ps(text) == (
            Process(1, 0, 0, 21492 * 1024, 1, False),
            Process(23, 1, 0, 0, 1, True),
        )

    @given(st.text())
    def test_any_text_gives_rows_or_nothing(self, text: str) -> None:
        for process in proctable.parse_ps(text):
            assert process.pid >= 0

    def test_the_real_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(proctable, "_has_proc", lambda: False)
        me = proctable.find(os.getpid())
        assert me is not None
        assert me.parent == os.getppid()
        assert me.rss_bytes > 0


class TestBelow:
    def test_all_generations_parents_first(self) -> None:
        table = [make(pid, parent) for pid, parent in [(5, 4), (2, 1), (4, 2), (9, 1), (3, 2)]]
        pids = [process.pid for process in proctable.below(2, table)]
        assert set(pids) == {3, 4, 5}
        assert pids.index(4) < pids.index(5)

    @given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))))
    def test_no_table_makes_it_loop_or_name_the_root(self, rows: list[tuple[int, int]]) -> None:
        table = [make(pid, parent) for pid, parent in rows]
        pids = [process.pid for process in proctable.below(1, table)]
        assert 1 not in pids
        assert len(pids) == len(set(pids))


class TestRollup:
    def test_memory_and_swap_are_summed(self) -> None:
        text = b"5590-7ffe ---p 0 00:00 0 [rollup]\nRss: 900 kB\nPss: 100 kB\nPss_Anon: 5 kB\n"
        assert proctable.parse_rollup(text + b"SwapPss: 20 kB\n") == 120 * 1024

    @given(st.binary())
    def test_any_bytes_give_a_number(self, data: bytes) -> None:
        assert proctable.parse_rollup(data) >= 0


class TestThisMachine:
    def test_a_child_is_found_with_its_start(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            found = proctable.find(child.pid)
            assert found is not None
            assert found.parent == os.getpid()
            below = proctable.below(os.getpid(), proctable.all_processes())
            assert (found.pid, found.start) in [(other.pid, other.start) for other in below]
        finally:
            child.communicate(b"\n", timeout=60)
        assert proctable.find(child.pid) is None

    def test_shared_memory_is_divided(self) -> None:
        parts.require("linux")
        me = proctable.find(os.getpid())
        assert me is not None
        assert 0 < proctable.pss_bytes(me) <= me.rss_bytes + (8 << 20)

    def test_memory_that_may_not_be_read_counts_as_resident(self) -> None:
        assert proctable.pss_bytes(Process(0, 0, 0, 4711, 1, False)) == 4711


def make(pid: int, parent: int) -> Process:
    return Process(pid, parent, 0, 0, 1, False)
