"""Control groups: where they can be made, what they limit, and that none is left.

Version 1 or 2 is tested for real where this machine allows it; version 2's own rules are tested on
a folder that looks like a hierarchy.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airlox.errors import SandboxError
from airlox.sandbox.linux import cgroups
from airlox.sandbox.linux.cgroups import CgroupDriver, open_driver
from support import ordinary

MIB = 1 << 20


@pytest.fixture
def driver() -> CgroupDriver:
    try:
        return open_driver()
    except SandboxError as e:
        pytest.skip(str(e))


def start(script: str) -> subprocess.Popen[str]:
    """A program that begins once a line comes in, so that it can be put into a group before."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "input()\n" + script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


class TestRealGroups:
    def test_limits_peak_and_kills(self, driver: CgroupDriver) -> None:
        group = driver.create("oom", memory_bytes=48 * MIB, processes=16)
        try:
            bomb = start(f"x = bytearray(b'x') * {200 * MIB}")
            group.add(bomb.pid)
            bomb.communicate("\n", timeout=60)
            assert bomb.returncode == -signal.SIGKILL
            assert group.oom_kills() >= 1
            peak = group.peak_bytes()
            assert peak is None or 32 * MIB < peak <= 48 * MIB
        finally:
            assert group.remove(within_s=60)

    def test_a_share_of_the_processors(self, driver: CgroupDriver) -> None:
        """The kernel stops whoever used up its share, and counts how often."""
        if driver.cpu_parent is None:
            pytest.skip("no controller of processors may be used here")
        group = driver.create("share", memory_bytes=None, processes=16, cpus=0.05)
        assert group.cpu is not None
        busy = start("while True: pass")
        try:
            group.add(busy.pid)
            assert busy.stdin is not None
            busy.stdin.write("\n")
            busy.stdin.flush()
            stat = group.cpu / "cpu.stat"
            wait_until(lambda: cgroups._read_count(stat, "nr_throttled") > 2)
        finally:
            assert group.remove(within_s=60)
            busy.communicate(timeout=60)

    def test_jobs_yield_to_the_runner(self, driver: CgroupDriver) -> None:
        if driver.cpu_parent is None:
            pytest.skip("no controller of processors may be used here")
        group = driver.create("yield", memory_bytes=None, processes=16)
        assert group.cpu is not None
        try:
            name, usual = ("cpu.shares", 1024) if group.version == 1 else ("cpu.weight", 100)
            assert int((group.cpu / name).read_text()) < usual
        finally:
            assert group.remove(within_s=60)

    def test_the_sum_over_processes_is_limited(self, driver: CgroupDriver) -> None:
        group = driver.create("sum", memory_bytes=64 * MIB, processes=16)
        try:
            script = (
                "import os\n"
                "pids = []\n"
                "for _ in range(8):\n"
                "    pid = os.fork()\n"
                f"    if pid == 0: x = bytearray(b'x') * {16 * MIB}; os.read(0, 1); os._exit(0)\n"
                "    pids.append(pid)\n"
                "for pid in pids: os.waitpid(pid, 0)"
            )
            parent = start(script)
            group.add(parent.pid)
            assert parent.stdin is not None
            parent.stdin.write("\n")
            parent.stdin.flush()
            wait_until(lambda: group.oom_kills() >= 1)
        finally:
            assert group.remove(within_s=60)
            parent.communicate(timeout=60)

    def test_processes_are_limited(self, driver: CgroupDriver) -> None:
        group = driver.create("forks", memory_bytes=None, processes=5)
        try:
            script = (
                "import os, time\n"
                "made = 0\n"
                "try:\n"
                "    for _ in range(20):\n"
                "        if os.fork() == 0: time.sleep(1000)\n"
                "        made += 1\n"
                "except OSError: print(made, flush=True)\n"
                "os._exit(0)"
            )
            parent = start(script)
            group.add(parent.pid)
            assert parent.stdin is not None
            assert parent.stdout is not None
            parent.stdin.write("\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == "4\n"
            assert group.process_refusals() >= 1
        finally:
            assert group.remove(within_s=60)
            parent.communicate(timeout=60)

    def test_removal_misses_no_process(self, driver: CgroupDriver) -> None:
        group = driver.create("gone", memory_bytes=None, processes=64)
        script = (
            "import os, signal, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "for _ in range(10):\n"
            "    if os.fork() == 0:\n"
            "        os.setsid()\n"
            "        if os.fork() == 0: time.sleep(1000)\n"
            "        os._exit(0)\n"
            "print('made', flush=True)\n"
            "time.sleep(1000)"
        )
        parent = start(script)
        group.add(parent.pid)
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "made\n"
        wait_until(lambda: len(group.members()) == 11)
        assert group.remove(within_s=60)
        assert group.members() == ()
        assert not any(Path(folder).exists() for folder in group.folders)
        parent.communicate(timeout=60)

    def test_waking_moves_nothing(self, driver: CgroupDriver) -> None:
        before = Path("/proc/self/cgroup").read_text()
        driver.wake()
        assert Path("/proc/self/cgroup").read_text() == before

    def test_removing_twice_is_fine(self, driver: CgroupDriver) -> None:
        group = driver.create("twice", memory_bytes=None, processes=1)
        assert group.remove(within_s=60)
        assert group.remove(within_s=60)

    def test_a_group_is_never_shared(self, driver: CgroupDriver) -> None:
        group = driver.create("one", memory_bytes=None, processes=1)
        try:
            with pytest.raises(SandboxError) as raised:
                driver.create("one", memory_bytes=None, processes=1)
            assert raised.value.code == "cgroup_none"
            assert all(Path(folder).exists() for folder in group.folders)
        finally:
            assert group.remove(within_s=60)

    @pytest.mark.parametrize("name", ["", "../x", "a/b", "x" * 65, "a b", "."])
    def test_names_that_lead_elsewhere_are_refused(self, driver: CgroupDriver, name: str) -> None:
        with pytest.raises(ValueError):
            driver.create(name, memory_bytes=None, processes=1)

    def test_a_sweep_takes_what_the_dead_left_and_nothing_else(self, driver: CgroupDriver) -> None:
        mine = driver.create("mine", memory_bytes=None, processes=4)
        maker = (
            "from airlox.sandbox.linux.cgroups import open_driver\n"
            "group = open_driver().create('left', memory_bytes=None, processes=4)\n"
            "print(*group.folders)"
        )
        try:
            made = subprocess.run(
                [sys.executable, "-c", maker], capture_output=True, text=True, check=True
            )
            folders = [Path(folder) for folder in made.stdout.split()]
            assert folders
            assert all(folder.exists() for folder in folders)
            assert cgroups.sweep_groups(within_s=60)
            assert not any(folder.exists() for folder in folders)
            assert all(Path(folder).exists() for folder in mine.folders)
        finally:
            mine.remove(within_s=60)


class TestOrdinaryUser:
    def test_a_group_can_be_made_or_it_is_said_why_not(self) -> None:
        script = (
            "from airlox.errors import SandboxError\n"
            "from airlox.sandbox.linux.cgroups import open_driver\n"
            "try: open_driver(); print('made')\n"
            "except SandboxError as e: print(e.code, e.hint)"
        )
        done = ordinary.run_script(script)
        assert done.stdout.split()[0] in ("made", "cgroup_none"), done.stderr


class TestNaming:
    def test_the_maker_tells_orphans_apart(self) -> None:
        tag = cgroups._owner_tag()
        namespace, pid, start = tag.split("-")
        assert not cgroups._is_orphan(f"airlox-{tag}-x")
        assert cgroups._is_orphan(f"airlox-{namespace}-{pid}-{int(start) + 1}-x")
        assert not cgroups._is_orphan(f"airlox-{int(namespace) + 1}-{pid}-{int(start) + 1}-x")
        assert not cgroups._is_orphan("airlox-runner")
        assert not cgroups._is_orphan("user.slice")

    def test_folders_of_others_are_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "user.slice").mkdir()
        assert cgroups.remove_groups((str(tmp_path / "user.slice"),), within_s=0)
        assert (tmp_path / "user.slice").exists()

    def test_a_process_that_cannot_be_seen_is_no_member(self, tmp_path: Path) -> None:
        # Seen from inside a pid namespace, outer processes read as 0: killing 0 would be suicide.
        (tmp_path / "cgroup.procs").write_text("0\n12\n0\n")
        assert cgroups._members(tmp_path) == (12,)


class Hierarchy:
    """A folder that looks like a version 2 hierarchy to a process in the group `/own`."""

    def __init__(self, root: Path) -> None:
        self.point = root / "cg"
        self.own = self.point / "own"
        self.proc = root / "proc"
        self.proc.mkdir()
        (self.proc / "mountinfo").write_text(f"1 1 0:1 / {self.point} rw - cgroup2 none rw\n")
        (self.proc / "cgroup").write_text("0::/own\n")
        for folder in (self.point, self.own):
            self.fill(folder)

    @staticmethod
    def fill(folder: Path, **files: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text(files.get("controllers", "cpu memory pids"))
        (folder / "cgroup.subtree_control").write_text(files.get("handed", ""))
        (folder / "cgroup.procs").write_text("")


@pytest.fixture
def hierarchy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hierarchy]:
    """Version 2 as a folder; what the kernel makes by itself in a new group is made here."""
    made = Hierarchy(tmp_path)
    mkdir, rmdir = os.mkdir, os.rmdir

    def make_group(path: str, mode: int = 0o777) -> None:
        mkdir(path, mode)
        if "cpu" in Path(path).with_name("cgroup.subtree_control").read_text():
            Path(path, "cpu.max").touch()
            Path(path, "cpu.weight").touch()
        for name in ("cgroup.procs", "memory.max", "memory.swap.max", "pids.max", "cgroup.kill"):
            Path(path, name).touch()

    def remove_group(path: str) -> None:
        for entry in Path(path).iterdir():
            entry.unlink()
        rmdir(path)

    monkeypatch.setattr("os.mkdir", make_group)
    monkeypatch.setattr("os.rmdir", remove_group)
    yield made
    monkeypatch.undo()


class TestVersion2:
    def test_groups_are_made_below_the_runners_own(self, hierarchy: Hierarchy) -> None:
        driver = open_driver(hierarchy.proc)
        assert driver == CgroupDriver(2, hierarchy.own, hierarchy.own, hierarchy.own)
        assert (hierarchy.own / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
        group = driver.create("x", memory_bytes=5 * MIB, processes=7)
        assert (group.memory / "memory.max").read_text() == str(5 * MIB)
        assert (group.memory / "memory.swap.max").read_text() == "0"
        assert (group.memory / "pids.max").read_text() == "7"
        assert (group.memory / "cpu.weight").read_text() == "50"
        assert (group.memory / "cpu.max").read_text() == "max 100000"
        assert group.folders == (str(group.memory),)

    def test_waking_writes_only_where_we_are(self, hierarchy: Hierarchy) -> None:
        driver = open_driver(hierarchy.proc)
        members = driver.memory_parent / "cgroup.procs"
        for pid in (1, os.getpid()):
            members.write_text(f"000{pid}\n")
            driver.wake()
            was_written = not members.read_text().startswith("000")
            assert was_written == (pid == os.getpid())

    def test_a_share_of_the_processors(self, hierarchy: Hierarchy) -> None:
        driver = open_driver(hierarchy.proc)
        group = driver.create("x", memory_bytes=None, processes=7, cpus=1.5)
        assert (group.memory / "cpu.max").read_text() == "150000 100000"

    def test_processors_that_are_not_handed_down_are_done_without(
        self, hierarchy: Hierarchy
    ) -> None:
        for folder in (hierarchy.point, hierarchy.own):
            (folder / "cgroup.controllers").write_text("memory pids\n")
        driver = open_driver(hierarchy.proc)
        assert driver == CgroupDriver(2, hierarchy.own, hierarchy.own)
        group = driver.create("x", memory_bytes=MIB, processes=1)
        assert not (group.memory / "cpu.weight").exists()
        with pytest.raises(SandboxError, match="processors"):
            driver.create("y", memory_bytes=MIB, processes=1, cpus=1)

    def test_without_swap_accounting_a_group_can_be_made(self, hierarchy: Hierarchy) -> None:
        group = open_driver(hierarchy.proc).create("x", memory_bytes=None, processes=1)
        (group.memory / "memory.swap.max").unlink()
        cgroups._limit(group, 1 * MIB, 1)
        assert (group.memory / "memory.max").read_text() == str(MIB)

    def test_counters(self, hierarchy: Hierarchy) -> None:
        group = open_driver(hierarchy.proc).create("x", memory_bytes=MIB, processes=1)
        assert (group.peak_bytes(), group.oom_kills(), group.process_refusals()) == (None, 0, 0)
        (group.memory / "memory.peak").write_text("123\n")
        (group.memory / "memory.events").write_text("max 9\noom 2\noom_kill 1\n")
        (group.memory / "pids.events").write_text("max 3\n")
        assert (group.peak_bytes(), group.oom_kills(), group.process_refusals()) == (123, 1, 3)

    def test_a_runner_alone_in_its_group_moves_into_a_leaf(
        self, hierarchy: Hierarchy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (hierarchy.own / "cgroup.procs").write_text(f"{os.getpid()}\n")
        busy_until_empty(monkeypatch, hierarchy.own)
        driver = open_driver(hierarchy.proc)
        assert driver.memory_parent == hierarchy.own
        leaf = hierarchy.own / "airlox-runner"
        assert (leaf / "cgroup.procs").read_text() == str(os.getpid())

    def test_what_a_supervisor_starts_finds_the_group_above_its_leaf(
        self, hierarchy: Hierarchy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It moved while it was alone; then they are two, and in the leaf."""
        (hierarchy.own / "cgroup.procs").write_text(f"{os.getpid()}\n")
        busy_until_empty(monkeypatch, hierarchy.own)
        open_driver(hierarchy.proc)
        (hierarchy.proc / "cgroup").write_text("0::/own/airlox-runner\n")
        leaf = hierarchy.own / "airlox-runner"
        (leaf / "cgroup.procs").write_text(f"{os.getpid()}\n{os.getpid() + 1}\n")
        assert open_driver(hierarchy.proc).memory_parent == hierarchy.own

    def test_a_runner_in_its_leaf_uses_the_group_above(self, hierarchy: Hierarchy) -> None:
        (hierarchy.proc / "cgroup").write_text("0::/own/airlox-runner\n")
        assert open_driver(hierarchy.proc).memory_parent == hierarchy.own

    def test_a_runner_with_neighbours_moves_nothing(
        self, hierarchy: Hierarchy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (hierarchy.own / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
        busy_until_empty(monkeypatch, hierarchy.own)
        driver = open_driver(hierarchy.proc)
        assert driver.memory_parent == hierarchy.point
        assert not (hierarchy.own / "airlox-runner").exists()

    def test_without_controllers_it_says_so(self, hierarchy: Hierarchy) -> None:
        for folder in (hierarchy.point, hierarchy.own):
            (folder / "cgroup.controllers").write_text("cpu\n")
        with pytest.raises(SandboxError) as raised:
            open_driver(hierarchy.proc)
        assert raised.value.code == "cgroup_none"
        assert "Delegate=yes" in str(raised.value)

    def test_without_hierarchies_it_says_so(self, hierarchy: Hierarchy) -> None:
        (hierarchy.proc / "mountinfo").write_text("")
        with pytest.raises(SandboxError, match="mounted"):
            open_driver(hierarchy.proc)


def busy_until_empty(monkeypatch: pytest.MonkeyPatch, own: Path) -> None:
    """Refuse to hand down controllers while processes are in the group, as the kernel does."""
    write = cgroups._write

    def strict_write(path: Path, text: str) -> None:
        members = (own / "cgroup.procs").read_text().split()
        if path == own / "cgroup.subtree_control" and members:
            raise OSError(16, "Device or resource busy", str(path))
        if path.name == "cgroup.procs":
            (own / "cgroup.procs").write_text("\n".join(m for m in members if m != text))
            path.touch()
        write(path, text)

    monkeypatch.setattr(cgroups, "_write", strict_write)


def wait_until(condition: Callable[[], bool], limit_s: float = 30) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.01)
