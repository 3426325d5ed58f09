"""What every sandbox does alike: one suite over all of them, as root and as an ordinary user.

What only one of them promises is in its own file; attacks are in `test_attacks.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from airlox.sandbox import NAMES
from airlox.sandbox.linux.builders import TABLE as builders_of_local
from support import sandbox
from support.grounds import Ground

MIB = 1 << 20


def _cases() -> Iterator[Any]:
    for name in NAMES:
        builders = builders_of_local if name == "local" else (None,)
        for builder, user in itertools.product(builders, sandbox.USERS):
            ground = Ground(name, user, builder)
            # A container takes a second to be there; bubblewrap under root is rare.
            late = name == "docker" or (builder, user) == ("bwrap", "root")
            yield pytest.param(ground, id=str(ground), marks=pytest.mark.slow if late else ())


@pytest.fixture(params=_cases())
def case(request: pytest.FixtureRequest) -> Ground:
    """One sandbox, and the user that the runner is."""
    ground: Ground = request.param
    return ground


class TestEnd:
    @pytest.mark.parametrize("code", [0, 1, 42, 255])
    def test_exit_codes(self, case: Ground, code: int) -> None:
        seen = case.run(f"os._exit({code})")
        assert (seen.cause, seen.exit_code, seen.signal) == ("exit", code, None)
        assert seen.limit is None

    @pytest.mark.parametrize("number", [6, 9, 11, 15])
    def test_signals(self, case: Ground, number: int) -> None:
        seen = case.run(
            f"import signal; signal.signal({number}, signal.SIG_DFL) if {number} != 9 else 0\n"
            f"os.kill(os.getpid(), {number}); time.sleep(60)"
        )
        assert (seen.cause, seen.exit_code, seen.signal) == ("signal", None, number)

    @pytest.mark.parametrize(
        ("program", "code"), [("no-such-program", 127), ("/no/such", 127), ("/etc/passwd", 126)]
    )
    def test_a_program_that_cannot_be_run(self, case: Ground, program: str, code: int) -> None:
        seen = case.run("", argv=[program])
        assert (seen.cause, seen.exit_code) == ("exit", code)
        assert program in seen.detail

    def test_what_a_child_does_is_not_the_verdict(self, case: Ground) -> None:
        seen = case.run("os._exit(5) if os.fork() else os.kill(os.getpid(), 9)")
        assert (seen.cause, seen.exit_code) == ("exit", 5)

    def test_time_out(self, case: Ground) -> None:
        seen = case.run("time.sleep(1000)", limits={"timeout_s": 0.7, "grace_s": 0.2})
        assert (seen.cause, seen.exit_code, seen.signal) == ("time_out", None, None)
        assert seen.limit == 700

    def test_time_out_of_a_job_that_ignores_term(self, case: Ground) -> None:
        code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
        seen = case.run(code, limits={"timeout_s": 1.0, "grace_s": 0.2})
        assert seen.cause == "time_out"

    def test_time_out_lets_a_job_say_goodbye(self, case: Ground) -> None:
        code = (
            "import signal\n"
            "def leave(*_): write(bait['out'] + '/last'); tell('goodbye'); os._exit(0)\n"
            "signal.signal(signal.SIGTERM, leave)\n"
            "tell('started'); time.sleep(1000)"
        )
        seen = case.run_until("started", code, timeout_s=3.0, limits={"grace_s": 30.0})
        assert seen.cause == "time_out"
        assert seen.words == ["started", "goodbye"]
        assert seen.out == ["last"]

    def test_a_shell_s_trap_runs_at_a_cancel(self, case: Ground) -> None:
        script = "trap 'echo bye > \"$OUT/last\"; exit 0' TERM; echo started; sleep 1000 & wait"
        code = f"os.environ['OUT'] = bait['out']; os.execv('/bin/sh', ['sh', '-c', {script!r}])"
        seen = case.run(code, cancel_on="started", limits={"grace_s": 30.0})
        assert seen.cause == "cancelled"
        assert seen.out == ["last"]

    def test_cancel(self, case: Ground) -> None:
        seen = case.run("time.sleep(1000)", cancel_after_s=0.3, limits={"grace_s": 0.2})
        assert (seen.cause, seen.exit_code, seen.limit) == ("cancelled", None, None)

    def test_cancel_before_the_start(self, case: Ground) -> None:
        seen = case.run("time.sleep(1000)", cancel_after_s=0)
        assert seen.cause == "cancelled"

    def test_a_child_that_keeps_the_output_open_delays_nothing(self, case: Ground) -> None:  # 67
        code = "tell('main') if os.fork() else time.sleep(1000)"
        seen = case.run(code, limits={"timeout_s": 60.0})
        assert (seen.cause, seen.exit_code) == ("exit", 0)
        assert seen.words == ["main"]


class TestOutput:
    def test_the_streams_are_kept_apart(self, case: Ground) -> None:
        seen = case.run("os.write(1, b'to out'); os.write(2, b'to err')")
        assert (seen.text, seen.errors) == ("to out", "to err")

    def test_all_of_much_output_is_counted(self, case: Ground) -> None:  # 56
        code = "for _ in range(300): os.write(1, bytes(1 << 17)); os.write(2, b'x')"
        seen = case.run(code)
        assert (seen.stdout_bytes, seen.stderr_bytes) == (300 << 17, 300)
        assert seen.runner_rss_bytes < 150 * MIB

    def test_what_is_written_last_is_not_lost(self, case: Ground) -> None:
        seen = case.run("os.write(1, b'x' * 60_000); os._exit(3)")
        assert (seen.stdout_bytes, seen.exit_code) == (60_000, 3)


class TestSurroundings:
    def test_the_environment_is_the_plans_alone(self, case: Ground) -> None:
        # Python itself adds LC_CTYPE where no locale is set.
        seen = case.run("tell(','.join(sorted(os.environ)))")
        assert set(seen.words[0].split(",")) - {"LC_CTYPE"} == {"BAIT", "HOME", "PATH"}

    def test_it_starts_in_its_folder(self, case: Ground) -> None:
        seen = case.run("tell(os.getcwd() == bait['work'])")
        assert seen.words == ["True"]

    def test_input_is_empty(self, case: Ground) -> None:
        seen = case.run("tell(len(os.read(0, 1)))")
        assert seen.words == ["0"]

    def test_its_session_is_its_own_and_has_no_terminal(self, case: Ground) -> None:
        # In a container the init leads it.
        seen = case.run("tell(os.getsid(0) in (os.getpid(), 1)); attempt(open, '/dev/tty')")
        assert seen.words == ["True", "ENXIO"]

    def test_only_three_descriptors_are_open(self, case: Ground) -> None:
        code = "tell([fd for fd in range(1000) if os.path.exists(f'/proc/self/fd/{fd}')])"
        assert case.run(code).text == "[0, 1, 2]\n"

    def test_work_out_home_and_tmp_can_be_written(self, case: Ground) -> None:
        code = (
            "for folder in (bait['work'], bait['out'], os.environ['HOME'], bait['tmp']):\n"
            "    attempt(write, folder + '/file')"
        )
        assert case.run(code).words == ["done"] * 4

    def test_out_files_are_found(self, case: Ground) -> None:
        code = (
            "os.mkdir(bait['out'] + '/sub')\n"
            "write(bait['out'] + '/sub/a'); write(bait['out'] + '/b')\n"
            "os.symlink('/etc/passwd', bait['out'] + '/link')"
        )
        seen = case.run(code)
        assert seen.out == ["b", "sub/a"]
        assert seen.left_out == {"link": "symbolic link"}

    def test_written_files_belong_to_the_owner(self, case: Ground) -> None:
        seen = case.run(
            "write(bait['out'] + '/a'); tell(os.stat(bait['out']).st_uid)\n"
            "tell(os.stat(bait['out'] + '/a').st_uid)"
        )
        folder_uid, file_uid = seen.words
        assert folder_uid == file_uid


class TestLimits:
    def test_memory_of_one_process(self, case: Ground) -> None:  # 49
        code = (
            "held = []\n"
            "for _ in range(60): held.append(bytes([1]) * (8 << 20)); time.sleep(0.02)\n"
            "time.sleep(1000)"
        )
        seen = case.run(code, limits={"memory_bytes": 160 * MIB})
        assert seen.cause == "out_of_memory"
        assert seen.limit == 160 * MIB
        assert seen.peak_bytes > 100 * MIB

    def test_memory_of_eight_processes(self, case: Ground) -> None:  # 50
        code = (
            "for _ in range(8):\n"
            "    if os.fork() == 0: x = bytes([1]) * (40 << 20); time.sleep(1000)\n"
            "sys.exit(os.wait()[1] != 0)"  # whichever the kernel chose
        )
        seen = case.run(code, limits={"memory_bytes": 160 * MIB})
        assert seen.cause == "out_of_memory"
        assert seen.limit == 160 * MIB

    def test_memory_of_a_grandchild(self, case: Ground) -> None:
        code = (
            "if os.fork() == 0:\n"
            "    if os.fork() == 0:\n"
            "        held = []\n"
            "        for _ in range(60): held.append(bytes([1]) * (8 << 20)); time.sleep(0.02)\n"
            "        time.sleep(1000)\n"
            "    os._exit(os.wait()[1] != 0)\n"
            "sys.exit(os.wait()[1] != 0)"
        )
        seen = case.run(code, limits={"memory_bytes": 160 * MIB})
        assert seen.cause == "out_of_memory"
        assert seen.limit == 160 * MIB
        assert seen.peak_bytes > 100 * MIB

    def test_a_job_may_go_on_without_a_child_that_took_too_much(self, case: Ground) -> None:
        """Where the kernel watches memory; a watcher ends the whole job."""
        code = (
            "if os.fork() == 0:\n"
            "    held = []\n"
            "    for _ in range(60): held.append(bytes([1]) * (8 << 20)); time.sleep(0.02)\n"
            "    time.sleep(1000)\n"
            "os.wait()"
        )
        seen = case.run(code, limits={"memory_bytes": 160 * MIB})
        if seen.peak_source == "watcher" and case.sandbox != "docker":
            assert seen.cause == "out_of_memory"
        else:
            assert (seen.cause, seen.exit_code) == ("exit", 0)
            assert seen.oom_kills >= 1

    def test_a_peak_is_told(self, case: Ground) -> None:
        seen = case.run("x = bytes([1]) * (60 << 20); time.sleep(0.3)")
        assert seen.cause == "exit"
        assert 60 * MIB < seen.peak_bytes < 512 * MIB
        assert seen.peak_source in ("cgroup", "watcher", "rusage")

    def test_disk_growth(self, case: Ground) -> None:  # 53
        code = "for number in range(4): write(f'{number}', bytes(4 << 20))\ntime.sleep(1000)"
        seen = case.run(code, limits={"disk_bytes": 10 * MIB})
        assert (seen.cause, seen.limit) == ("disk", 10 * MIB)

    def test_many_small_files(self, case: Ground) -> None:  # 58
        code = "for number in range(300): write(f'{number}')\ntime.sleep(1000)"
        seen = case.run(code, limits={"disk_files": 200})
        assert (seen.cause, seen.limit) == ("disk", 200)

    def test_processes(self, case: Ground) -> None:  # 48
        if (case.sandbox, case.user) == ("process", "root"):
            pytest.skip("the kernel does not count root's processes")
        code = (
            "made = 0\n"
            "try:\n"
            "    while made < 100:\n"
            "        if os.fork() == 0: time.sleep(1000)\n"
            "        made += 1\n"
            "except BlockingIOError: tell(10 < made <= 30)"
        )
        seen = case.run(code, limits={"processes": 30})
        assert seen.words == ["True"]

    def test_one_large_file(self, case: Ground) -> None:  # 52
        code = (
            "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "attempt(os.truncate, os.open('big', os.O_CREAT | os.O_WRONLY), 10 << 30)"
        )
        assert case.run(code).words == ["EFBIG"]

    def test_open_files(self, case: Ground) -> None:  # 69
        code = "held = []\nwhile True: held.append(os.open('/dev/null', 0))"
        seen = case.run(code, limits={"open_files": 64})
        assert (seen.exit_code, "Too many open files" in seen.errors) == (1, True)

    def test_limits_cannot_be_raised(self, case: Ground) -> None:  # 38
        code = (
            "import resource as r\n"
            "for name in ('RLIMIT_CORE', 'RLIMIT_FSIZE', 'RLIMIT_NOFILE'):\n"
            "    soft, hard = r.getrlimit(getattr(r, name))\n"
            "    tell(soft == hard)\n"
            "tell(r.getrlimit(r.RLIMIT_CORE))"
        )
        assert case.run(code).text == "True\nTrue\nTrue\n(0, 0)\n"
