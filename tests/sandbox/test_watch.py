"""The watcher: memory over all processes, growth of folders, free space."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.sandbox import proctable
from airlox.sandbox.base import Cause, Limits
from airlox.sandbox.proctable import Process
from airlox.sandbox.supervise import Breach
from airlox.sandbox.watch import (
    FloorMeter,
    GrowthMeter,
    MemoryMeter,
    Watch,
    breach_of,
    file_clock_ns,
)

MIB = 1 << 20
HUGE = 1 << 60
LIMITS = Limits(
    timeout_s=60, memory_bytes=None, disk_bytes=HUGE, disk_files=HUGE, disk_floor_bytes=0
)


def see(meter: GrowthMeter) -> Breach | None:
    """One whole pass, or the breach that ends it."""
    while True:
        breach = meter.look(until=time.monotonic() + 60)
        if breach is not None or meter.at_end_of_pass:
            return breach


@contextmanager
def keeper_of(*scripts: str) -> Iterator[int]:
    """The pid of a process that started these programs, once all have said that they are ready."""
    keeper = (
        "import subprocess, sys\n"
        "children = [subprocess.Popen([sys.executable, '-I', '-S', '-c', script], "
        "stdin=subprocess.PIPE, stdout=subprocess.PIPE) for script in sys.argv[1:]]\n"
        "for child in children: child.stdout.read(1)\n"
        "print('ready', flush=True)\n"
        "input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", keeper, *scripts],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.communicate("\n", timeout=60)


def holding(size_bytes: int) -> str:
    return f"x = bytearray(b'x') * {size_bytes}; print('r', end='', flush=True); input()"


class TestMemory:
    def test_the_sum_over_all_processes_counts(self) -> None:
        with keeper_of(*[holding(30 * MIB)] * 3) as pid:
            assert MemoryMeter(pid, 200 * MIB).look() is None
            meter = MemoryMeter(pid, 80 * MIB)
            breach = meter.look()
        assert breach is not None
        assert (breach.cause, breach.limit) == (Cause.OUT_OF_MEMORY, 80 * MIB)
        assert breach.seen == meter.peak_bytes
        assert breach.seen > 90 * MIB

    def test_shared_pages_count_once(self) -> None:
        script = (
            "import os\n"
            f"x = bytearray(b'x') * {60 * MIB}\n"
            "for _ in range(3):\n"
            "    if os.fork() == 0: os.read(0, 1); os._exit(0)\n"
            "print('r', end='', flush=True)\n"
            "os.read(0, 1)"
        )
        with keeper_of(script) as pid:
            meter = MemoryMeter(pid, None)
            meter.look()
        assert meter.peak_bytes is not None
        assert 60 * MIB < meter.peak_bytes < 150 * MIB

    def test_the_keeper_does_not_count(self) -> None:
        with keeper_of() as pid:
            meter = MemoryMeter(pid, 1)
            assert meter.look() is None
            assert not meter.peak_bytes

    def test_without_a_root_nothing_is_measured(self) -> None:
        meter = MemoryMeter(None, 1)
        assert meter.look() is None
        assert meter.peak_bytes is None

    def test_the_peak_stays_and_the_dear_measure_is_spared(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes = iter([100, 70, 300])
        exact: list[int] = []

        def measure(process: Process) -> int:
            exact.append(process.rss_bytes)
            return process.rss_bytes

        monkeypatch.setattr(
            proctable, "all_processes", lambda: (Process(5, 4, 0, next(sizes), 1, False),)
        )
        monkeypatch.setattr(proctable, "pss_bytes", measure)
        meter = MemoryMeter(4, None)
        peaks = []
        for _ in range(3):
            meter.look()
            peaks.append(meter.peak_bytes)
        assert peaks == [100, 100, 300]
        assert exact == [100, 300]


class TestGrowth:
    def test_what_was_there_before_does_not_count(self, tmp_path: Path) -> None:
        (tmp_path / "old").write_bytes(b"x" * MIB)
        age(tmp_path / "old")
        meter = GrowthMeter([tmp_path], 100_000, 100)
        assert see(meter) is None
        assert see(meter) is None

    def test_bytes_written_count_in_any_pass(self, tmp_path: Path) -> None:
        (tmp_path / "old").write_bytes(b"x" * MIB)
        age(tmp_path / "old")
        meter = GrowthMeter([tmp_path], MIB, 100)
        assert see(meter) is None
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "new").write_bytes(b"x" * 2 * MIB)
        breach = see(meter)
        assert breach is not None
        assert (breach.cause, breach.limit, breach.detail) == (Cause.DISK, MIB, "bytes written")
        assert 2 * MIB <= breach.seen < 3 * MIB

    def test_what_is_written_during_the_first_pass_counts(self, tmp_path: Path) -> None:
        meter = GrowthMeter([tmp_path], MIB, 100)
        (tmp_path / "new").write_bytes(b"x" * 2 * MIB)
        assert see(meter) is not None

    def test_what_is_removed_frees(self, tmp_path: Path) -> None:
        meter = GrowthMeter([tmp_path], 3 * MIB, 100)
        assert see(meter) is None
        for _ in range(4):
            (tmp_path / "new").write_bytes(b"x" * 2 * MIB)
            assert see(meter) is None
            (tmp_path / "new").unlink()

    def test_many_small_files_are_a_breach(self, tmp_path: Path) -> None:
        meter = GrowthMeter([tmp_path], HUGE, 50)
        assert see(meter) is None
        for number in range(51):
            (tmp_path / f"{number}").touch()
        assert see(meter) == Breach(Cause.DISK, 50, 51, "files made")

    def test_sparse_files_count_what_they_take(self, tmp_path: Path) -> None:
        meter = GrowthMeter([tmp_path], MIB, 100)
        with open(tmp_path / "sparse", "wb") as file:
            file.truncate(1 << 30)
        assert see(meter) is None

    def test_a_file_of_many_names_counts_once(self, tmp_path: Path) -> None:
        meter = GrowthMeter([tmp_path], 3 * MIB, 2)
        (tmp_path / "name").write_bytes(b"x" * 2 * MIB)
        for number in range(5):
            os.link(tmp_path / "name", tmp_path / f"{number}")
        assert see(meter) is None

    def test_links_lead_nowhere(self, tmp_path: Path) -> None:
        (tmp_path / "watched").mkdir()
        meter = GrowthMeter([tmp_path / "watched"], MIB, 10)
        (tmp_path / "big").write_bytes(b"x" * 2 * MIB)
        (tmp_path / "watched" / "link").symlink_to(tmp_path)
        assert see(meter) is None

    def test_deep_folders_are_counted(self, tmp_path: Path) -> None:
        meter = GrowthMeter([tmp_path], HUGE, 300)
        fd = os.open(tmp_path, os.O_RDONLY)
        for _ in range(301):
            os.mkdir("d", dir_fd=fd)
            below = os.open("d", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(fd)
        assert see(meter) is not None

    def test_a_look_that_is_cut_short_goes_on_where_it_was(self, tmp_path: Path) -> None:
        for number in range(1000):
            (tmp_path / f"{number}").touch()
        age(tmp_path / "999")
        meter = GrowthMeter([tmp_path], HUGE, 500)
        looks = 0
        while True:
            looks += 1
            assert meter.look(until=0) is None  # no time at all: one step
            if meter.at_end_of_pass:
                break
        assert looks > 5
        before = len(os.listdir("/dev/fd"))
        meter.look(until=0)
        meter.close()
        assert len(os.listdir("/dev/fd")) == before

    def test_a_pass_that_loses_its_way_makes_no_baseline(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"x" * MIB)
        age(tmp_path / "a")
        meter = GrowthMeter([tmp_path], 100_000, 1000)

        class Lost(Iterator[os.stat_result]):
            def __next__(self) -> os.stat_result:
                raise OSError("moved")

            def close(self) -> None:
                pass

        meter._walk = Lost()  # type: ignore[assignment]
        assert meter.look(until=HUGE) is None
        assert see(meter) is None  # with half a baseline the old file would count as new
        assert see(meter) is None

    def test_folders_that_are_gone_count_nothing(self, tmp_path: Path) -> None:
        assert see(GrowthMeter([tmp_path / "none"], 0, 0)) is None


class TestFloor:
    def test_too_little_free_space(self, tmp_path: Path) -> None:
        assert FloorMeter([tmp_path], 1).look() is None
        breach = FloorMeter([tmp_path / "none", tmp_path], HUGE).look()
        assert breach is not None
        assert (breach.cause, breach.limit) == (Cause.DISK, HUGE)
        assert 0 < breach.seen < HUGE


class TestWatch:
    def test_each_thing_is_looked_at_when_it_is_due(self, tmp_path: Path) -> None:
        clock = [0.0]
        limits = dataclasses.replace(LIMITS, disk_files=2)
        watch = Watch(limits, [tmp_path], root_pid=None, clock=lambda: clock[0])
        assert watch.look() is None
        for number in range(3):
            (tmp_path / f"{number}").touch()
        assert watch.look() is None  # the pass has just ended
        clock[0] = 1.0
        assert watch.look() == Breach(Cause.DISK, 2, 3, "files made")
        watch.close()

    def test_a_breach_ends_the_waiting(self, tmp_path: Path) -> None:
        async def story() -> Breach:
            limits = dataclasses.replace(LIMITS, disk_files=5)
            watching = asyncio.ensure_future(breach_of(Watch(limits, [tmp_path], root_pid=None)))
            for number in range(6):
                (tmp_path / f"{number}").touch()
            return await asyncio.wait_for(watching, 60)

        assert asyncio.run(story()).cause is Cause.DISK
        assert_no_thread_left()

    def test_a_cancel_ends_the_thread(self, tmp_path: Path) -> None:
        async def story() -> None:
            watching = asyncio.ensure_future(breach_of(Watch(LIMITS, [tmp_path], root_pid=None)))
            await asyncio.wait([watching], timeout=0.01)
            assert not watching.done()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            assert_no_thread_left()

        asyncio.run(story())

    def test_an_error_of_a_meter_is_heard(self, tmp_path: Path) -> None:
        watch = Watch(LIMITS, [tmp_path], root_pid=None)

        def broken() -> Breach | None:
            raise LookupError("broken")

        watch.look = broken  # type: ignore[method-assign]
        with pytest.raises(LookupError):
            asyncio.run(breach_of(watch))
        assert_no_thread_left()

    @given(st.lists(st.binary(min_size=1, max_size=30), max_size=8))
    def test_any_names_can_be_counted(self, names: list[bytes]) -> None:
        with temporary_folder() as folder:
            meter = GrowthMeter([folder], HUGE, 0)
            made = {name.replace(b"/", b"_").replace(b"\0", b"_") for name in names}
            for name in made - {b".", b".."}:
                os.mkdir(os.fsencode(folder) + b"/" + name)
            assert (see(meter) is None) == (not made - {b".", b".."})


def assert_no_thread_left() -> None:
    assert "airlox-watch" not in [thread.name for thread in threading.enumerate()]


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def age(path: Path) -> None:
    """Wait until the file's last change lies in the past, by the clock of file systems."""
    while file_clock_ns() <= path.stat().st_ctime_ns:
        time.sleep(0.001)
