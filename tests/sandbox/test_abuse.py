"""Attacks that take a start of the sandbox of their own: limits, ends, and what is left behind.

The numbers are those of the attack list; what shares a start with others is in `test_attacks.py`.
"""

from __future__ import annotations

import json
import pwd
import random
import secrets
import select
import tempfile
from pathlib import Path

import pytest

from support import grounds
from support.grounds import Ground
from support.small_disk import small_disk

MIB = 1 << 20
MOMENTS = 20
SLOW_S = 240
EACH_GROUND = pytest.mark.parametrize("ground", grounds.EACH, ids=str)
EVERYWHERE = pytest.mark.parametrize("ground", grounds.EVERYWHERE, ids=str)
AS_USER = pytest.mark.parametrize("ground", grounds.AS_USER, ids=str)


def alive(token: str) -> list[int]:
    """Processes of this machine that have a word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if token.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def marked(code: str) -> tuple[str, str]:
    """A word that nothing else has, and the code with it: every fork keeps it."""
    token = f"airlox-{secrets.token_hex(8)}"
    return token, f"# {token}\n{code}"


@EVERYWHERE
class TestNothingIsLeft:
    def test_of_orphans_daemons_and_their_own_reaper(self, ground: Ground) -> None:  # 62, 64, 67
        token, code = marked("""
import signal
libc.prctl(36, 1, 0, 0, 0)  # orphans come to this one, not to pid 1
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
readable, writable = os.pipe()
for kind in range(4):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            if kind % 2:
                for fd in (0, 1, 2): os.close(fd)
            os.write(writable, b"x")
            time.sleep(600)
        os._exit(0)
for kind in range(4):
    os.read(readable, 1)
tell("over")
""")
        seen = ground.run(code, limits={"timeout_s": 60.0})
        assert (seen.words, seen.cause, seen.exit_code) == (["over"], "exit", 0)
        assert alive(token) == []

    def test_of_a_race_of_forks_and_exits(self, ground: Ground) -> None:  # 65
        token, code = marked("""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        break
tell("racing")
while True:
    try:
        if os.fork():
            os._exit(0)
    except BlockingIOError:
        pass
""")
        limits = {"grace_s": 0.2, "processes": 64}
        seen = ground.run_until("racing", code, timeout_s=0.7, limits=limits)
        assert "racing" in seen.words
        assert seen.cause in ("exit", "time_out")
        assert alive(token) == []

    def test_of_a_job_that_stops_itself_and_all_others(self, ground: Ground) -> None:  # 66, 68
        token, code = marked("""
import signal
readable, writable = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        tell("child")
        os.write(writable, b"x")
        time.sleep(600)
for _ in range(3):
    os.read(readable, 1)
tell("all")
for target in (1, -1, os.getpid()):
    try:
        os.kill(target, signal.SIGSTOP)
    except PermissionError:
        pass
""")
        seen = ground.run_until("all", code, timeout_s=0.7, limits={"grace_s": 0.1})
        assert seen.words == [*["child"] * 3, "all"]
        assert seen.cause == "time_out"
        assert alive(token) == []


@EVERYWHERE
class TestMemory:
    def test_in_files_of_tmpfs_and_memory_files(self, ground: Ground) -> None:  # 51
        code = """
def fill(write):
    for _ in range(96):
        write(bytes([1]) * (1 << 20))
attempt(fill, open(bait["tmp"] + "/filler", "wb", buffering=0).write)
attempt(fill, open("/dev/shm/filler", "wb", buffering=0).write)
"""
        limits = {"tmp_bytes": 16 * MIB, "shm_bytes": 16 * MIB}
        assert ground.run(code, limits=limits).words == ["ENOSPC", "ENOSPC"]

    @pytest.mark.parametrize("kind", ["memfd", "shared", "sysv"])
    def test_that_no_process_shows(self, ground: Ground, kind: str) -> None:  # 51
        seen = ground.run(HIDDEN[kind], limits={"memory_bytes": 128 * MIB})
        assert seen.cause == "out_of_memory" or seen.words == ["refused"]


HIDDEN = {
    "memfd": """
try:
    held = [os.memfd_create("held") for _ in range(4)]
except OSError:
    tell("refused")
else:
    for fd in held:
        for _ in range(100):
            os.write(fd, bytes([1]) * (1 << 20))
    time.sleep(60)
""",
    "shared": """
import mmap
held = [mmap.mmap(-1, 100 << 20) for _ in range(4)]
for area in held:
    for _ in range(100):
        area.write(bytes([1]) * (1 << 20))
time.sleep(60)
""",
    "sysv": """
libc.shmat.restype = ctypes.c_void_p
for _ in range(4):
    held = libc.shmget(0, 100 << 20, 0o1600)
    place = libc.shmat(held, None, 0) if held >= 0 else None
    if place in (None, ctypes.c_void_p(-1).value):
        tell("refused")
        sys.exit()
    ctypes.memset(place, 1, 100 << 20)
    libc.shmdt(ctypes.c_void_p(place))
time.sleep(60)
""",
}


@EACH_GROUND
@pytest.mark.parametrize("place", ["bait['tmp']", "'/dev/shm'"])
def test_files_without_content_in_memory(ground: Ground, place: str) -> None:  # 51, 58
    code = f"""
def fill():
    for number in range(20_000):
        os.close(os.open(f"{{{place}}}/{{number}}", os.O_CREAT | os.O_WRONLY))
    time.sleep(60)
attempt(fill)
"""
    seen = ground.run(code, limits={"tmp_files": 10_000})
    assert seen.words == ["ENOSPC"] or (seen.cause, seen.limit) == ("disk", 10_000)


def test_without_walls_memory_files_are_not_seen() -> None:  # 51: teeth
    code = """
held = os.memfd_create("held")
for _ in range(300):
    os.write(held, bytes([1]) * (1 << 20))
time.sleep(0.5)
tell("kept")
"""
    seen = grounds.OPEN.run(code, limits={"memory_bytes": 64 * MIB})
    assert (seen.words, seen.cause) == (["kept"], "exit")


class TestStart:
    """Struck at moments drawn at random while a sandbox starts."""

    @pytest.mark.slow
    @pytest.mark.parametrize("ground", grounds.LOCAL, ids=str)
    @pytest.mark.parametrize("what", ["cancel", "launcher", "runner"])
    def test_nothing_is_left_at_any_moment(self, ground: Ground, what: str) -> None:  # 86
        assert struck(ground, what, seed=1, moments=MOMENTS) == []

    @pytest.mark.parametrize("what", ["cancel", "launcher", "runner"])
    @AS_USER
    def test_nothing_is_left_at_a_few(self, ground: Ground, what: str) -> None:  # 84, 86
        assert struck(ground, what, seed=2, moments=4) == []


def struck(ground: Ground, what: str, *, seed: int, moments: int) -> list[str]:
    """What was left by starts that were struck at these moments."""
    draw = random.Random(seed)
    strikes = [(what, draw.uniform(0, 1.1)) for _ in range(moments)]
    with ground.started("", driver="sandbox_striker", strikes=strikes) as process:
        output, errors = process.communicate(timeout=SLOW_S)
    assert process.returncode == 0, errors.decode()
    left = json.loads(output)["left"]
    assert len(left) == moments
    return [name for names in left for name in names]


class TestNeighbours:
    @AS_USER
    def test_two_jobs_at_once_find_nothing_of_each_other(self, ground: Ground) -> None:  # 88
        token, code = marked("""
import socket
held = socket.socket(socket.AF_UNIX)
held.bind("\\0airlox-neighbour")
held.listen()
server = socket.create_server(("127.0.0.1", 45678))
for folder in (bait["tmp"], "/dev/shm", "/var/tmp"):
    write(folder + "/neighbour", b"secret")
system(number(29, 194), 0x41524C59, 4096, 0o1666)
tell("armed")
time.sleep(600)
""")
        with ground.started(code, announce=True) as process:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], 60)[0], "the neighbour did not start"
            assert len(alive(token)) >= 1
            seen = ground.run(f"token = {token[::-1]!r}[::-1].encode()\n{LOOKS_FOR_A_NEIGHBOUR}")
        assert seen.words == ["ECONNREFUSED", "ECONNREFUSED", *["ENOENT"] * 4, "nothing"]


LOOKS_FOR_A_NEIGHBOUR = """
attempt(socket.socket(socket.AF_UNIX).connect, "\\0airlox-neighbour")
attempt(socket.create_connection, ("127.0.0.1", 45678), 5)
for folder in (bait["tmp"], "/dev/shm", "/var/tmp"):
    attempt(read, folder + "/neighbour")
attempt(system, number(29, 194), 0x41524C59, 4096, 0)
def others():
    for name in os.listdir("/proc"):
        try:
            told = read(f"/proc/{name}/cmdline") if name.isdigit() else b""
            if token in told and int(name) != os.getpid():
                return name
        except OSError:
            pass
    return "nothing"
tell(others())
"""


class TestWhatIsTold:
    @EACH_GROUND
    def test_mounts_name_no_place_but_their_own_and_the_jobs_folders(
        self, ground: Ground
    ) -> None:  # 89: that the folders of the job are named is known
        seen = ground.run(TELLS_ITS_MOUNTS)
        assert seen.words == ["/work", "/home/job", "/out"]

    @EVERYWHERE
    def test_time_is_measured_outside(self, ground: Ground) -> None:  # 91
        code = (
            "os.environ['TZ'] = 'Nowhere-23'; time.tzset(); time.time = lambda: 0; time.sleep(0.3)"
        )
        assert ground.run(code).wall_ms >= 300

    def test_a_named_job_user_is_the_jobs(self) -> None:  # 90
        user = pwd.getpwnam("nobody")
        seen = grounds.LOCAL[0].run(
            "made = bait['out'] + '/made'; write(made); tell(os.stat(made).st_uid == os.getuid())",
            job_user="nobody",
        )
        assert (seen.owner, seen.words, seen.out) == (
            [user.pw_uid, user.pw_gid],
            ["True"],
            ["made"],
        )


TELLS_ITS_MOUNTS = """
for line in open("/proc/self/mountinfo"):
    root, place = line.split()[3:5]
    kind = line.partition(" - ")[2].split()[0]
    own = (place, "/", "/" + place.rpartition("/")[2], "/null")
    if kind not in ("proc", "tmpfs", "devpts", "devtmpfs", "mqueue", "sysfs") and root not in own:
        # A host may have a file system of its own where the path begins.
        if not place.endswith(root):
            tell(place)
"""


class TestDisk:
    def test_space_that_no_name_leads_to_counts(self) -> None:  # 55
        code = """
held = []
for number in range(6):
    held.append(os.open("held", os.O_CREAT | os.O_WRONLY))
    os.unlink("held")
    os.posix_fallocate(held[-1], 0, 8 << 20)
    time.sleep(0.1)
time.sleep(600)
"""
        # A short path: the driver listens on a socket in it.
        with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder, "d"), "64m") as disk:
            limits = {"disk_floor_bytes": 32 * MIB, "disk_bytes": 1 << 40}
            seen = grounds.LOCAL[0].run(code, folder=str(disk), limits=limits)
        assert (seen.cause, seen.limit) == ("disk", 32 * MIB)
