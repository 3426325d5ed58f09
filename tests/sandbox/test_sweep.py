"""Records of running jobs, and what a runner finds after one that died."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import AirloxError, StorageError, UsageError
from airlox.sandbox import proctable
from airlox.sandbox.sweep import (
    JobRecord,
    StateFolder,
    encode_record,
    lock_state,
    parse_record,
    record_of,
)
from support import ordinary, parts

RECORDS = st.builds(
    JobRecord,
    job=st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
    pid=st.integers(2, 1 << 22),
    start=st.integers(0, 1 << 60),
    boot=st.text(),
    folders=st.lists(st.text(), max_size=4).map(tuple),
)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFolder]:
    with lock_state(tmp_path / "state") as folder:
        yield folder


@contextmanager
def tree_of_processes() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that ignores TERM with a child that does, too; both are gone at the end."""
    script = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pid = os.fork()\n"
        "if pid: print(pid, flush=True)\n"
        "time.sleep(1000)"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", script], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        yield process, child
    finally:
        subprocess.run(["kill", "-KILL", str(child), str(process.pid)], capture_output=True)
        process.communicate(timeout=60)


class TestRecord:
    @given(RECORDS)
    def test_round_trip(self, record: JobRecord) -> None:
        assert parse_record(encode_record(record)) == record

    @given(st.binary())
    def test_other_bytes_are_refused(self, data: bytes) -> None:
        with pytest.raises(StorageError) as raised:
            parse_record(data)
        assert raised.value.code == "bad_record"

    @given(RECORDS, st.data())
    def test_a_cut_record_is_refused(self, record: JobRecord, data: st.DataObject) -> None:
        whole = encode_record(record)
        with pytest.raises(StorageError):
            parse_record(whole[: data.draw(st.integers(0, len(whole) - 1))])

    @pytest.mark.parametrize(
        "change",
        [
            {"pid": 1},
            {"pid": 0},
            {"pid": -1},
            {"pid": True},
            {"pid": "7"},
            {"start": -1},
            {"start": 1.5},
            {"job": "../x"},
            {"job": ""},
            {"folders": "/"},
            {"folders": [1]},
            {"boot": None},
        ],
    )
    def test_impossible_values_are_refused(self, change: dict[str, Any]) -> None:
        fields = {"boot": "b", "folders": [], "job": "j", "pid": 7, "start": 1}
        assert parse_record(json.dumps(fields).encode())
        with pytest.raises(StorageError):
            parse_record(json.dumps(fields | change).encode())


class TestLock:
    def test_a_state_folder_has_one_runner(self, tmp_path: Path) -> None:
        with lock_state(tmp_path / "state"):
            with pytest.raises(UsageError) as raised:
                lock_state(tmp_path / "state")
            assert raised.value.code == "state_in_use"
            assert raised.value.hint
        lock_state(tmp_path / "state").close()

    def test_a_dead_runner_holds_nothing(self, tmp_path: Path) -> None:
        script = (
            "import os, pathlib, sys\n"
            "from airlox.sandbox.sweep import lock_state\n"
            "lock = lock_state(pathlib.Path(sys.argv[1]))\n"
            "os.kill(os.getpid(), 9)"
        )
        subprocess.run([sys.executable, "-c", script, tmp_path / "state"], timeout=60)
        lock_state(tmp_path / "state").close()

    def test_it_is_private(self, tmp_path: Path) -> None:
        with lock_state(tmp_path / "state") as state:
            state.remember(JobRecord("j", 7, 1, "b", ()))
            for path in (tmp_path / "state").rglob("*"):
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0

    def test_a_link_in_its_place_is_refused(self, tmp_path: Path) -> None:
        lock_state(tmp_path / "state").close()
        (tmp_path / "state" / "lock").unlink()
        (tmp_path / "state" / "lock").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(StorageError):
            lock_state(tmp_path / "state")
        assert not (tmp_path / "elsewhere").exists()


class TestSweep:
    def test_nothing_to_do(self, state: StateFolder) -> None:
        swept = state.sweep()
        assert (swept.jobs, swept.left) == ((), ())

    def test_what_ended_well_is_not_lost(self, state: StateFolder) -> None:
        state.remember(record_of("job", os.getpid(), ()))
        state.forget("job")
        state.forget("job")
        assert state.sweep().jobs == ()

    def test_a_disk_that_keeps_a_record_costs_nobody_the_job(
        self, state: StateFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(path: object, **_: object) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        with subprocess.Popen(["true"]) as ended:
            pass
        state.remember(record_of("job", ended.pid, ()))
        with monkeypatch.context() as patch:
            patch.setattr("os.unlink", refuse)
            state.forget("job")
        assert state.sweep().jobs == ("job",)
        assert state.sweep().jobs == ()

    def test_processes_and_folders_of_a_lost_job_go(
        self, state: StateFolder, tmp_path: Path
    ) -> None:
        out = tmp_path / "state" / "out" / "job"
        (out / "locked").mkdir(parents=True)
        (out / "locked").chmod(0)
        with tree_of_processes() as (process, child):
            state.remember(record_of("job", process.pid, (out,)))
            assert state.sweep().jobs == ("job",)
            assert process.wait(60) == -9
            found = proctable.find(child)
            assert found is None or found.zombie
        assert not out.exists()
        assert state.sweep().jobs == ()

    def test_a_pid_that_is_anothers_now_is_left_alone(self, state: StateFolder) -> None:
        with tree_of_processes() as (process, _):
            record = record_of("job", process.pid, ())
            state.remember(replace(record, job="start", start=record.start + 1))
            state.remember(replace(record, job="boot", boot="another"))
            assert state.sweep().jobs == ("boot", "start")
            assert process.poll() is None

    @pytest.mark.parametrize("where", ["precious", "state", "state/../precious", "state/link/x"])
    def test_folders_elsewhere_are_never_removed(
        self, state: StateFolder, tmp_path: Path, where: str
    ) -> None:
        (tmp_path / "precious" / "x").mkdir(parents=True)
        (tmp_path / "state" / "link").symlink_to(tmp_path / "precious")
        state.remember(JobRecord("job", 1 << 22, 1, "b", (str(tmp_path / where),)))
        assert state.sweep().jobs == ("job",)
        assert (tmp_path / "precious" / "x").exists()
        assert (tmp_path / "state" / "jobs").exists()

    def test_a_torn_record_is_cleared_away(self, state: StateFolder, tmp_path: Path) -> None:
        (tmp_path / "state" / "jobs" / "torn.json").write_bytes(b'{"job": "to')
        assert state.sweep().jobs == ()
        assert list((tmp_path / "state" / "jobs").iterdir()) == []

    @pytest.mark.parametrize("job", ["../x", "", "a/b", "x" * 65])
    def test_ids_that_lead_elsewhere_are_refused(self, state: StateFolder, job: str) -> None:
        with pytest.raises(ValueError):
            state.forget(job)


class TestTrash:
    def test_what_can_be_removed_is_gone(self, state: StateFolder, tmp_path: Path) -> None:
        (tmp_path / "tree" / "a").mkdir(parents=True)
        assert state.discard(tmp_path / "tree")
        assert not (tmp_path / "tree").exists()

    def test_what_resists_waits_in_the_trash_for_the_next_sweep(self) -> None:
        parts.require("root")
        with ordinary.folder_of(ordinary.UID) as folder:
            (folder / "tree" / "theirs").mkdir(parents=True)
            (folder / "tree" / "theirs" / "x").touch()
            os.chown(folder / "tree", ordinary.UID, ordinary.UID)

            def check() -> None:
                with lock_state(folder / "state") as state:
                    assert not state.discard(folder / "tree")
                    assert not (folder / "tree").exists()
                    (left,) = state.sweep().left
                    assert left.startswith(str(folder / "state" / "trash"))

            ordinary.call_as(ordinary.UID, check)
            os.chown(folder / "state", 0, 0)
            for path in (folder / "state").iterdir():
                os.chown(path, 0, 0)
            with lock_state(folder / "state") as state:
                assert state.sweep().left == ()
            assert list((folder / "state" / "trash").iterdir()) == []


def test_every_error_is_of_the_family(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AirloxError):
        lock_state(tmp_path / "file" / "state")
