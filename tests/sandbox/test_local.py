"""How a job in `local` is limited, ended and judged. Numbers: the attack list of the design."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from airlox.sandbox import proctable
from support import grounds
from support.grounds import Ground

MIB = 1 << 20
EACH_GROUND = pytest.mark.parametrize("ground", grounds.EACH, ids=str)
AS_ROOT = pytest.mark.parametrize("ground", grounds.AS_ROOT, ids=str)
AS_USER = pytest.mark.parametrize("ground", grounds.AS_USER, ids=str)
# Takes memory step by step and writes to it, so that it is really there.
HOG = """
def hog(size, step=8 << 20):
    held = []
    for _ in range(size // step):
        held.append(b"\\1" * step)
        time.sleep(0.01)
    return held
"""


def wait_until_gone(pid: int, deadline_s: float = 60) -> None:
    """Fail unless the process ends in time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], deadline_s)[0], f"process {pid} lives on"
    finally:
        os.close(fd)


def uids_of(pid: int) -> set[int]:
    """Real, effective, saved and file system uid, as the host numbers them."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("Uid:"))
    return {int(word) for word in line.split()[1:]}


def announced(process: subprocess.Popen[bytes]) -> dict[str, int]:
    """The pids that the driver names once the job has printed something."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 60)[0], "the job did not start"
    return dict(json.loads(process.stdout.readline()))


class TestOutcome:
    @EACH_GROUND
    def test_exit_code_output_and_files(self, ground: Ground) -> None:
        seen = ground.run(
            """
write(bait["out"] + "/made", b"x")
write("/dev/stdout", b"to stdout\\n")
write("/dev/stderr", b"to stderr\\n")
sys.exit(7)
""",
        )
        assert (seen.cause, seen.exit_code, seen.signal) == ("exit", 7, None)
        assert (seen.text, seen.errors) == ("to stdout\n", "to stderr\n")
        assert seen.out == ["made"]

    @EACH_GROUND
    def test_a_command_that_is_not_there(self, ground: Ground) -> None:
        seen = ground.run("", argv=["no-such-command"])
        assert (seen.cause, seen.exit_code) == ("exit", 127)
        assert "no-such-command" in seen.detail

    @EACH_GROUND
    def test_a_command_that_is_no_program(self, ground: Ground) -> None:
        seen = ground.run("", argv=["/etc/passwd"])
        assert (seen.cause, seen.exit_code) == ("exit", 126)

    @EACH_GROUND
    def test_a_signal_is_named(self, ground: Ground) -> None:
        seen = ground.run("os.kill(os.getpid(), 15)")
        assert (seen.cause, seen.exit_code, seen.signal) == ("signal", None, 15)

    @EACH_GROUND
    def test_cancel_ends_it(self, ground: Ground) -> None:
        seen = ground.run("time.sleep(60)", cancel_after_s=0.3)
        assert seen.cause == "cancelled"

    @AS_USER
    def test_cancel_before_it_started(self, ground: Ground) -> None:
        seen = ground.run("tell('ran'); time.sleep(60)", cancel_after_s=0)
        assert seen.cause == "cancelled"

    @EACH_GROUND
    def test_term_comes_first(self, ground: Ground) -> None:
        code = """
import signal
signal.signal(signal.SIGTERM, lambda *_: (tell("asked"), os._exit(3)))
tell("armed")
time.sleep(60)
"""
        seen = ground.run_until("armed", code, timeout_s=1.0, limits={"grace_s": 30.0})
        assert seen.words == ["armed", "asked"]
        assert seen.cause == "time_out"

    @EACH_GROUND
    def test_the_environment_is_the_plans(self, ground: Ground) -> None:
        seen = ground.run("tell(','.join(sorted(os.environ)))")
        assert set(seen.words[0].split(",")) - {"LC_CTYPE"} == {"BAIT", "HOME", "PATH"}

    @EACH_GROUND
    def test_signals_and_streams_are_as_a_program_expects(self, ground: Ground) -> None:
        code = """
status = dict(line.split(":\\t") for line in open("/proc/self/status") if ":\\t" in line)
tell(status["SigBlk"].strip())
tell(os.readlink("/proc/self/fd/0"))
tell(os.getsid(0) == os.getpid() == os.getpgid(0))
"""
        seen = ground.run(code)
        assert seen.words == ["0000000000000000", "/dev/null", "True"]


class TestUser:
    @EACH_GROUND
    def test_kernel_uid_is_never_root(self, ground: Ground) -> None:  # 90
        with ground.started("tell('armed'); time.sleep(600)", announce=True) as process:
            keeper = announced(process)["keeper"]
            inside = proctable.below(keeper, proctable.all_processes())
            pids = (keeper, *(found.pid for found in inside))
            uids = {uid for pid in pids for uid in uids_of(pid)}
        assert len(pids) >= 2
        assert len(uids) == 1
        assert 0 not in uids

    @EACH_GROUND
    def test_no_groups_and_no_capabilities(self, ground: Ground) -> None:
        code = """
status = dict(line.split(":\\t") for line in open("/proc/self/status") if ":\\t" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    tell(int(status[name], 16))
tell("groups:" + ",".join(str(g) for g in os.getgroups()))
"""
        seen = ground.run(code)
        assert seen.words == ["0"] * 5 + ["groups:"]

    @AS_ROOT
    def test_pid_one_tells_nothing_of_the_host(self, ground: Ground) -> None:
        seen = ground.run("tell(read('/proc/1/cmdline').rstrip(bytes(1)).decode())")
        assert seen.text == "airlox-sandbox\n"


class TestNetwork:
    @EACH_GROUND
    def test_own_servers_work(self, ground: Ground) -> None:  # 43
        code = """
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    server = socket.create_server((host, 0), family=family)
    attempt(socket.create_connection, server.getsockname()[:2], 5)
"""
        assert ground.run(code).words == ["done", "done"]

    @EACH_GROUND
    def test_on_is_the_hosts_network(self, ground: Ground) -> None:
        code = """
attempt(socket.create_connection, ("127.0.0.1", bait["port"]), 5)
attempt(socket.socket(socket.AF_UNIX).connect, "\\0" + bait["abstract"])
attempt(os.kill, bait["pid"], 0)
"""
        seen = ground.run(code, network="on")
        assert seen.words == ["done", "EPERM", "ESRCH"]

    @AS_USER
    def test_on_is_refused_without_landlock(self, ground: Ground) -> None:
        with ground.started("", network="on", without=["landlock"]) as process:
            answer = json.loads(process.communicate(timeout=60)[0])
        assert answer["refused"] == "network_host"


class TestLimits:
    @EACH_GROUND
    def test_fork_bomb_meets_the_process_limit(self, ground: Ground) -> None:  # 48
        code = """
started = 0
try:
    while started < 1000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        started += 1
except BlockingIOError:
    tell(started)
"""
        seen = ground.run(code, limits={"processes": 32})
        assert 16 < int(seen.words[0]) <= 32
        assert seen.cause == "exit"

    @AS_ROOT
    def test_fork_bomb_without_a_cgroup(self, ground: Ground) -> None:  # 48: RLIMIT_NPROC alone
        code = """
started = 0
try:
    while started < 1000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        started += 1
except BlockingIOError:
    tell(started)
"""
        seen = ground.run(code, without=["cgroup"], limits={"processes": 32})
        assert 16 < int(seen.words[0]) <= 32

    @EACH_GROUND
    def test_memory_bomb_in_one_process(self, ground: Ground) -> None:  # 49
        limit = 128 * MIB
        seen = ground.run(
            HOG + "held = hog(1 << 30); time.sleep(600)", limits={"memory_bytes": limit}
        )
        assert (seen.cause, seen.limit) == ("out_of_memory", limit)
        assert seen.peak_bytes >= limit * 0.9

    @EACH_GROUND
    def test_memory_bomb_over_many_processes(self, ground: Ground) -> None:  # 50
        limit = 160 * MIB
        code = (
            HOG
            + """
for _ in range(8):
    if os.fork() == 0:
        held = hog(64 << 20)
        time.sleep(600)
        os._exit(0)
os.wait()  # whichever the kernel chose
sys.exit(1)
"""
        )
        seen = ground.run(code, limits={"memory_bytes": limit})
        assert (seen.cause, seen.limit) == ("out_of_memory", limit)
        assert limit * 0.9 <= seen.peak_bytes

    @AS_ROOT
    def test_memory_without_a_cgroup_is_watched(self, ground: Ground) -> None:
        limit = 128 * MIB
        seen = ground.run(
            HOG + "held = hog(1 << 30); time.sleep(600)",
            without=["cgroup"],
            limits={"memory_bytes": limit},
        )
        assert (seen.cause, seen.limit) == ("out_of_memory", limit)
        assert seen.peak_source == "watcher"

    @EACH_GROUND
    def test_a_job_under_its_limit_is_left_alone(self, ground: Ground) -> None:
        seen = ground.run(HOG + "hog(64 << 20)", limits={"memory_bytes": 256 * MIB})
        assert (seen.cause, seen.exit_code, seen.oom_kills) == ("exit", 0, 0)
        assert seen.peak_bytes >= 64 * MIB

    @EACH_GROUND
    def test_temporary_files_are_limited(self, ground: Ground) -> None:  # 51
        code = """
def fill(path):
    with open(path, "wb", buffering=0) as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
attempt(fill, "/tmp/filler")
attempt(fill, "/dev/shm/filler")
"""
        limits = {"tmp_bytes": 8 * MIB, "shm_bytes": 8 * MIB}
        assert ground.run(code, limits=limits).words == ["ENOSPC", "ENOSPC"]

    @EACH_GROUND
    def test_rlimits_cannot_be_raised(self, ground: Ground) -> None:  # 37, 38, 52, 69
        code = """
import resource
for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
    soft, hard = resource.getrlimit(kind)
    tell(hard)
    try:
        resource.setrlimit(kind, (hard + 1, hard + 1))
        tell("raised")
    except ValueError:
        tell("refused")
"""
        seen = ground.run(code, limits={"file_bytes": MIB, "open_files": 100})
        assert seen.words == ["0", "refused", str(MIB), "refused", "100", "refused"]

    @EACH_GROUND
    def test_output_without_end(self, ground: Ground) -> None:  # 56
        code = """
block = bytes(1 << 20)
for _ in range(512):
    os.write(1, block)
    os.write(2, block[:1 << 16])
"""
        seen = ground.run(code, limits={"timeout_s": 60.0})
        assert seen.cause == "exit"
        assert seen.stdout_bytes == 512 * MIB
        assert seen.stderr_bytes == 32 * MIB
        assert seen.runner_rss_bytes < 100 * MIB


class TestEnd:
    @EACH_GROUND
    def test_a_daemon_does_not_outlive_the_job(self, ground: Ground) -> None:  # 62, 67
        code = """
import signal
readable, writable = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        tell("armed")
        os.write(writable, b"x")
        time.sleep(600)
    os._exit(0)
os.wait()
os.read(readable, 1)
tell("over")
"""
        seen = ground.run(code, limits={"timeout_s": 60.0})
        assert seen.words == ["armed", "over"]
        assert (seen.cause, seen.exit_code) == ("exit", 0)

    @EACH_GROUND
    def test_ignoring_term_helps_nobody(self, ground: Ground) -> None:  # 63, 68
        code = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
tell("armed")
time.sleep(600)
"""
        seen = ground.run_until("armed", code, timeout_s=0.5, limits={"grace_s": 0.2})
        assert seen.words == ["armed"]
        assert seen.cause == "time_out"

    @EACH_GROUND
    def test_pid_one_cannot_be_harmed(self, ground: Ground) -> None:  # 66
        code = """
import signal
for deadly in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
    try:
        os.kill(1, deadly)
    except PermissionError:
        pass
attempt(system, number(101, 117), 0x4206, 1, 0, 0)
sys.exit(5)
"""
        seen = ground.run(code)
        assert (seen.words, seen.exit_code) == (["EPERM"], 5)

    @EACH_GROUND
    @pytest.mark.parametrize("without", [[], ["cgroup"]], ids=["", "no-cgroup"])
    def test_nothing_outlives_a_killed_runner(
        self, ground: Ground, without: list[str]
    ) -> None:  # 84
        code = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
tell("armed")
time.sleep(600)
"""
        with ground.started(code, without=without, announce=True) as process:
            keeper = announced(process)["keeper"]
            inside = proctable.below(keeper, proctable.all_processes())
            assert inside
            os.kill(process.pid, signal.SIGKILL)
            for pid in (keeper, *(found.pid for found in inside)):
                wait_until_gone(pid)

    @EACH_GROUND
    def test_nothing_outlives_a_killed_launcher(self, ground: Ground) -> None:
        code = "tell('armed'); time.sleep(600)"
        with ground.started(code, announce=True) as process:
            keeper = announced(process)["keeper"]
            launcher = next(found for found in proctable.all_processes() if found.pid == keeper)
            os.kill(launcher.parent, signal.SIGKILL)
            wait_until_gone(keeper)
            answer = json.loads(process.communicate(timeout=60)[0])
        assert (answer["cause"], answer["signal"]) == ("signal", signal.SIGKILL)


class TestOrdinaryWork:
    """Walls that stop honest programs would be taken down."""

    @EACH_GROUND
    def test_processes_threads_and_terminals(self, ground: Ground) -> None:
        code = """
import asyncio, multiprocessing, pty, subprocess, tempfile, threading
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        tell(sum(pool.map(abs, [-1, -2, -3])))
    async def wake():
        return await asyncio.to_thread(lambda: "woken")
    tell(asyncio.run(wake()))
    main, terminal = pty.openpty()
    tell(subprocess.run(["tty"], stdin=terminal, capture_output=True).stdout.decode()[:9])
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
        os.link(file.name, file.name + "2")
        os.rename(file.name + "2", bait["tmp"] + "/moved")
    os.mkdir(bait["work"] + "/a")
    os.mkdir(bait["work"] + "/b")
    write(bait["work"] + "/a/file")
    os.rename(bait["work"] + "/a/file", bait["work"] + "/b/file")
    os.truncate(bait["work"] + "/b/file", 0)
    one, other = socket.socketpair()
    one.send(b"x")
    tell(other.recv(1).decode())
    libc.personality(0x40000)
    shared = multiprocessing.Value("i", 7)
    tell(shared.value)
"""
        seen = ground.run(code)
        assert seen.words == ["6", "woken", "/dev/pts/", "x", "7"], seen.errors

    @EACH_GROUND
    def test_a_file_made_by_a_job_belongs_to_its_user(self, ground: Ground) -> None:
        seen = ground.run("tell(os.stat(bait['work']).st_uid == os.getuid())")
        assert seen.words == ["True"]

    @AS_USER
    def test_x32_calls_kill(self, ground: Ground) -> None:  # 33
        if os.uname().machine != "x86_64":
            pytest.skip("needs x86_64: other machines have no x32 calls")
        seen = ground.run("system(0x40000000 | 39)")
        assert (seen.cause, seen.signal) == ("signal", signal.SIGSYS)


class TestOutFolder:
    @EACH_GROUND
    def test_links_are_left_out(self, ground: Ground) -> None:  # 72
        code = """
for name, target in (("shadow", "/etc/shadow"), ("environ", "/proc/self/environ"),
                     ("root", "/"), ("loop", "loop"), ("kept-link", "kept")):
    os.symlink(target, bait["out"] + "/" + name)
write(bait["out"] + "/kept")
"""
        seen = ground.run(code)
        assert seen.out == ["kept"]
        assert set(seen.left_out) == {"shadow", "environ", "root", "loop", "kept-link"}

    @EACH_GROUND
    def test_hard_links_are_left_out(self, ground: Ground) -> None:  # 73
        code = """
write(bait["work"] + "/mine")
attempt(os.link, bait["work"] + "/mine", bait["out"] + "/mine")
attempt(os.link, "/usr/bin/env", bait["out"] + "/env")
write(bait["out"] + "/one")
attempt(os.link, bait["out"] + "/one", bait["out"] + "/two")
write(bait["out"] + "/kept")
"""
        seen = ground.run(code)
        assert seen.words == ["EXDEV", "EXDEV", "done"]
        assert seen.out == ["kept"]
        assert set(seen.left_out) == {"one", "two"}

    @EACH_GROUND
    def test_pipes_and_sockets_are_left_out(self, ground: Ground) -> None:  # 74
        code = """
os.mkfifo(bait["out"] + "/pipe")
socket.socket(socket.AF_UNIX).bind(bait["out"] + "/socket")
attempt(os.mknod, bait["out"] + "/null", 0o020666, os.makedev(1, 3))
write(bait["out"] + "/kept")
"""
        seen = ground.run(code)
        assert set(seen.words) <= {"EPERM", "EACCES"}
        assert seen.out == ["kept"]
        assert set(seen.left_out) == {"pipe", "socket"}
