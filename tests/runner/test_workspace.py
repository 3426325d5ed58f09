"""Workspaces: one per sender, one job at a time, repaired, evicted."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from airlox.errors import JobRefused
from airlox.protocol.encoding import ItemId, PublicKey
from airlox.runner import workspace
from airlox.runner.slots import Running
from airlox.runner.workspace import Places, Workspaces
from airlox.sandbox.sweep import lock_state
from airlox.tree import mounts
from airlox.tree.apply import apply
from airlox.tree.state import AppliedState, save_state
from support.trees import Node, fetch_from, index_of

ANN, BOB = PublicKey("ann"), PublicKey("bob")
DAY_S = 24 * 3600
WAIT_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def spaces(folder: Path) -> Iterator[Workspaces]:
    with lock_state(folder) as state:
        yield Workspaces(state, folder, None, quota_bytes=1 << 20, days=30)


def used(
    spaces: Workspaces, sender: PublicKey, job: str = "j", *, kept: bool = True, fresh: bool = False
) -> Places:
    """The places of a job that wrote a file into its work and home folders."""

    async def run() -> Places:
        running = Running(ItemId(job))
        async with spaces.for_job(running, sender, kept=kept, fresh=fresh) as places:
            (places.work / job).write_text(job)
            (places.home / job).write_text(job)
            if places.tree_state is not None:
                places.tree_state.write_bytes(b"state")
        await spaces.close(WAIT_S)
        return places

    return asyncio.run(run())


def test_folders_of_jobs_of_a_killed_runner_go_at_the_next_start(folder: Path) -> None:
    """Also of one that was killed before it wrote the job down, or after it struck it out."""
    with lock_state(folder) as state:
        spaces = Workspaces(state, folder, None, quota_bytes=1 << 20, days=30)
        used(spaces, ANN, "one")
        (folder / "run" / "0123" / "work").mkdir(parents=True)
        spaces.remove_runs()
        assert list((folder / "run").iterdir()) == []
        assert list((folder / "workspaces").iterdir()) != []


def test_a_workspace_stays_and_the_out_folder_goes(spaces: Workspaces) -> None:
    first = used(spaces, ANN, "one")
    second = used(spaces, ANN, "two")
    assert first.work == second.work
    assert {path.name for path in second.work.iterdir()} == {"one", "two"}
    assert {path.name for path in second.home.iterdir()} == {"one", "two"}
    assert not second.out.exists()
    assert not second.job.exists()


def test_each_sender_has_its_own(spaces: Workspaces) -> None:
    ann, bob = used(spaces, ANN), used(spaces, BOB)
    assert ann.work != bob.work
    assert "ann" not in str(ann.work)


def test_folders_are_private(spaces: Workspaces) -> None:
    places = used(spaces, ANN)
    for path in (places.work, places.home, places.work.parent):
        assert path.stat().st_mode & 0o777 == 0o700


def test_a_job_without_a_tree_leaves_nothing(spaces: Workspaces, folder: Path) -> None:
    places = used(spaces, ANN, kept=False)
    assert places.tree_state is None
    assert list((folder / "run").iterdir()) == []
    assert list((folder / "workspaces").iterdir()) == []


def test_fresh_starts_over(spaces: Workspaces) -> None:
    used(spaces, ANN, "one")
    places = used(spaces, ANN, "two", fresh=True)
    assert {path.name for path in places.work.iterdir()} == {"two"}
    assert {path.name for path in places.home.iterdir()} == {"two"}


def test_a_work_folder_of_unknown_origin_is_emptied(spaces: Workspaces) -> None:
    places = used(spaces, ANN, "one")
    assert places.tree_state is not None
    places.tree_state.unlink()
    assert {path.name for path in used(spaces, ANN, "two").work.iterdir()} == {"two"}


def test_what_a_job_did_to_its_folders_is_repaired(spaces: Workspaces, tmp_path: Path) -> None:
    places = used(spaces, ANN)
    places.work.chmod(0)
    target = tmp_path / "elsewhere"
    target.mkdir()
    places.home.rename(places.home.with_name("gone"))
    places.home.symlink_to(target)
    again = used(spaces, ANN, "two")
    assert (again.work / "two").exists()
    assert not again.home.is_symlink()
    assert list(target.iterdir()) == []


def test_a_second_job_waits_for_the_first(spaces: Workspaces) -> None:
    async def story() -> list[str]:
        order: list[str] = []
        inside = asyncio.Event()
        leave = asyncio.Event()

        async def first() -> None:
            async with spaces.for_job(Running(ItemId("a")), ANN, kept=True, fresh=False):
                inside.set()
                await leave.wait()
                order.append("first")

        async def second() -> None:
            await inside.wait()
            leave.set()
            async with spaces.for_job(Running(ItemId("b")), ANN, kept=True, fresh=False):
                order.append("second")

        await asyncio.wait_for(asyncio.gather(first(), second()), 20)
        return order

    assert asyncio.run(story()) == ["first", "second"]


def test_a_waiting_job_can_be_cancelled(spaces: Workspaces) -> None:
    async def story() -> None:
        async with spaces.for_job(Running(ItemId("a")), ANN, kept=True, fresh=False):
            waiting = Running(ItemId("b"))
            waiting.cancel("asked")
            with pytest.raises(JobRefused, match="asked"):
                async with spaces.for_job(waiting, ANN, kept=True, fresh=False):
                    pass

    asyncio.run(story())


class TestEviction:
    def note(self, places: Places, *, days_ago: float, size: int) -> None:
        used = {"at_s": time.time() - days_ago * DAY_S, "size_bytes": size}
        (places.work.parent / "used").write_bytes(msgspec.json.encode(used))

    def test_old_ones_go(self, spaces: Workspaces) -> None:
        ann, bob = used(spaces, ANN), used(spaces, BOB)
        self.note(ann, days_ago=31, size=1)
        self.note(bob, days_ago=29, size=1)
        assert spaces.evict() == [ann.work.parent]
        assert bob.work.exists()

    def test_the_longest_unused_go_when_there_is_too_much(self, spaces: Workspaces) -> None:
        ann, bob = used(spaces, ANN), used(spaces, BOB)
        self.note(ann, days_ago=2, size=800_000)
        self.note(bob, days_ago=3, size=800_000)
        assert spaces.evict() == [bob.work.parent]

    def test_it_is_looked_after_before_each_job(self, spaces: Workspaces) -> None:
        ann, bob = used(spaces, ANN), used(spaces, BOB)
        self.note(ann, days_ago=2, size=800_000)
        self.note(bob, days_ago=3, size=800_000)
        used(spaces, ANN, "more")
        assert not bob.work.exists()
        assert (ann.work / "j").exists()

    def test_one_that_is_too_large_by_itself_starts_over(self, spaces: Workspaces) -> None:
        """Also when it grew under a job that this one waited for."""
        ann = used(spaces, ANN)

        async def story() -> None:
            async with spaces.for_job(Running(ItemId("a")), ANN, kept=True, fresh=False) as places:
                (places.work / "large").write_bytes(os.urandom(2 << 20))
                second = asyncio.create_task(names_in_work())
                await asyncio.sleep(0)
            assert await second == []

        async def names_in_work() -> list[str]:
            async with spaces.for_job(Running(ItemId("b")), ANN, kept=True, fresh=False) as places:
                return os.listdir(places.work)

        asyncio.run(story())
        assert ann.work.exists()

    def test_a_lock_of_a_workspace_that_was_removed_is_none(
        self, spaces: Workspaces, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between opening the lock and holding it, somebody may have removed all of it."""
        ann = used(spaces, ANN)
        self.note(ann, days_ago=31, size=1)
        flock = fcntl.flock
        removed: list[bool] = []

        def slow(fd: int, how: int) -> None:
            if not removed:
                removed.append(True)
                assert spaces.evict() == [ann.work.parent]
            flock(fd, how)

        monkeypatch.setattr("airlox.runner.workspace.fcntl.flock", slow)
        lock = workspace.try_lock(ann.work.parent)
        assert lock is None
        assert workspace.try_lock(ann.work.parent) is None

    def test_one_in_use_stays(self, spaces: Workspaces) -> None:
        ann = used(spaces, ANN)
        self.note(ann, days_ago=31, size=1)

        async def story() -> list[Path]:
            async with spaces.for_job(Running(ItemId("a")), ANN, kept=True, fresh=False):
                self.note(ann, days_ago=31, size=1)
                return spaces.evict()

        assert asyncio.run(story()) == []
        assert ann.work.exists()

    def test_the_size_is_measured_though_a_job_nests_and_locks_folders(
        self, spaces: Workspaces
    ) -> None:
        async def story() -> Places:
            running = Running(ItemId("a"))
            async with spaces.for_job(running, ANN, kept=True, fresh=False) as places:
                (places.work / "big").write_bytes(b"x" * 100_000)
                deep = places.work
                for _ in range(50):
                    deep = deep / "d"
                    deep.mkdir()
                (places.work / "locked").mkdir(0)
                os.symlink("/", places.work / "link")
            return places

        places = asyncio.run(story())
        noted = msgspec.json.decode((places.work.parent / "used").read_bytes())
        assert 100_000 <= noted["size_bytes"] < 1_000_000


class TestUntouched:
    """What the runner found out between two jobs spares the next one looking."""

    NODES: ClassVar[dict[bytes, Node]] = {b"a": ("f", b"one"), b"d/b": ("x", b"two")}

    @pytest.fixture(autouse=True)
    def as_on_a_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Temporary folders may lie in memory, where nothing is remembered."""
        monkeypatch.setattr(mounts, "_FORGETFUL", ())

    def after(
        self, spaces: Workspaces, job: Callable[[Path], object], *, fresh: bool = False
    ) -> AppliedState | None:
        """What the job after one that did this to an applied tree is told."""

        async def run() -> AppliedState | None:
            async with spaces.for_job(
                Running(ItemId("one")), ANN, kept=True, fresh=False
            ) as places:
                assert places.tree_state is not None
                state = apply(index_of(self.NODES), places.work, fetch_from(self.NODES))
                save_state(places.tree_state, state)
                spaces.note_applied(places, state)
                job(places.work)
            async with spaces.for_job(
                Running(ItemId("two")), ANN, kept=True, fresh=fresh
            ) as places:
                found = places.untouched
            await spaces.close(WAIT_S)
            return found

        return asyncio.run(run())

    def test_a_job_that_makes_files_of_its_own(self, spaces: Workspaces) -> None:
        found = self.after(spaces, lambda work: (work / "d" / "made").write_text("x"))
        assert found is not None
        assert found.tree == index_of(self.NODES)

    @pytest.mark.parametrize(
        "job",
        [
            lambda work: (work / "a").write_bytes(b"eno"),
            lambda work: (work / "a").chmod(0o600),
            lambda work: (work / "a").unlink(),
            lambda work: (work / "d").rename(work / "e"),
            lambda work: os.utime(work / "a"),
        ],
    )
    def test_a_job_that_changes_the_tree(
        self, spaces: Workspaces, job: Callable[[Path], object]
    ) -> None:
        assert self.after(spaces, job) is None

    def test_where_something_of_a_job_may_live_on(self, tmp_path: Path) -> None:
        folder = tmp_path / "open"
        with lock_state(folder) as state:
            spaces = Workspaces(state, folder, None, quota_bytes=1 << 20, days=30, walled=False)
            assert self.after(spaces, lambda work: None) is None

    def test_a_workspace_that_starts_over(self, spaces: Workspaces) -> None:
        assert self.after(spaces, lambda work: None, fresh=True) is None

    def test_a_workspace_that_was_removed_meanwhile(
        self, spaces: Workspaces, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.after(spaces, lambda work: None) is not None
        monkeypatch.setattr(time, "time", lambda: time.monotonic() + 1e10)
        assert len(spaces.evict()) == 1
        assert used(spaces, ANN).untouched is None

    def test_it_is_forgotten_when_another_takes_its_room(
        self, spaces: Workspaces, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(workspace, "REMEMBERED_ENTRIES", 1)
        assert self.after(spaces, lambda work: None) is None


def test_many_empty_files_take_room_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    free = disk.f_bavail * disk.f_frsize
    workspace.check_room(tmp_path, 0, 0, needed_files=10)
    for needed_files in (free // 4096 + 1, disk.f_favail or free):
        with pytest.raises(JobRefused) as refused:
            workspace.check_room(tmp_path, 0, 0, needed_files=needed_files)
        assert refused.value.code == "disk_full"


def test_jobs_of_one_sender_take_turns_in_the_order_in_which_they_came(spaces: Workspaces) -> None:
    order: list[str] = []

    async def run() -> None:
        async def job(name: str) -> None:
            async with spaces.for_job(Running(ItemId(name)), ANN, kept=True, fresh=False):
                order.append(name)
                await asyncio.sleep(0)
                order.append(name)

        await asyncio.gather(*(job(name) for name in "abc"))
        await spaces.close(WAIT_S)

    asyncio.run(run())
    assert "".join(order) == "aabbcc"
