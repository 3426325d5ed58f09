"""The table of system calls against the kernel's own headers, and the program it becomes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airlox.sandbox.linux import seccomp
from support import sandbox

ALLOWED = 0x7FFF0000
KILLED = 0x80000000
MACHINES = tuple(seccomp.ARCHITECTURES)
EVERY_MACHINE = pytest.mark.parametrize("machine", MACHINES)
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
TABLES = (seccomp.REFUSED, seccomp.ABSENT, seccomp.BY_ARGUMENT)
HEADERS = {
    "x86_64": (
        "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
        "/usr/include/asm/unistd_64.h",
        "/usr/x86_64-linux-gnu/include/asm/unistd_64.h",
    ),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}


def error(number: int) -> int:
    return 0x00050000 | number


def judge(
    machine: str, number: int, *arguments: int, arch: int | None = None, **options: bool
) -> int:
    """Run the program as the kernel would; what it returns."""
    data = {0: number, 4: ARCH[machine] if arch is None else arch}
    for i, argument in enumerate((*arguments, 0, 0, 0, 0, 0, 0)[:6]):
        data[16 + 8 * i] = argument & 0xFFFFFFFF
        data[20 + 8 * i] = argument >> 32
    program = seccomp.instructions(machine, **options)
    at, accumulator = 0, 0
    while True:
        code, on_true, on_false, value = program[at]
        at += 1
        if code == 0x06:
            return value
        if code == 0x20:
            accumulator = data[value]
            continue
        test = {
            0x15: accumulator == value,
            0x25: accumulator > value,
            0x45: bool(accumulator & value),
        }[code]
        at += on_true if test else on_false


def header_of(machine: str) -> dict[str, int]:
    path = next((path for path in map(Path, HEADERS[machine]) if path.exists()), None)
    if path is None:
        sandbox.lack("the kernel's headers: apt-get install linux-libc-dev")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", path.read_text(), re.MULTILINE)
    return {name: int(number) for name, number in found}


@EVERY_MACHINE
class TestTable:
    def test_agrees_with_the_headers(self, machine: str) -> None:
        header = header_of(machine)
        for table in TABLES:
            for name, number in seccomp.numbers(table, machine).items():
                if name in header:
                    assert number == header[name], name

    def test_has_judged_every_call_of_the_headers(self, machine: str) -> None:
        ours = {"syscalls", "arch_specific_syscall"}
        numbers = [number for name, number in header_of(machine).items() if name not in ours]
        assert max(numbers) <= seccomp.NEWEST

    def test_names_no_number_twice(self, machine: str) -> None:
        numbers = [n for table in TABLES for n in seccomp.numbers(table, machine).values()]
        assert len(numbers) == len(set(numbers))


@EVERY_MACHINE
class TestProgram:
    def test_ordinary_calls_are_allowed(self, machine: str) -> None:
        judged = {n for table in TABLES for n in seccomp.numbers(table, machine).values()}
        for number in set(range(seccomp.NEWEST + 1)) - judged:
            assert judge(machine, number) == ALLOWED, number

    def test_the_tables_are_obeyed(self, machine: str) -> None:
        for name, number in seccomp.numbers(seccomp.REFUSED, machine).items():
            assert judge(machine, number) == error(seccomp.EPERM), name
        for name, number in seccomp.numbers(seccomp.ABSENT, machine).items():
            assert judge(machine, number) == error(seccomp.ENOSYS), name

    def test_newer_calls_are_absent(self, machine: str) -> None:
        assert judge(machine, seccomp.NEWEST + 1) == error(seccomp.ENOSYS)
        assert judge(machine, 0x3FFFFFFF) == error(seccomp.ENOSYS)

    def test_another_architecture_is_killed(self, machine: str) -> None:
        other = next(arch for name, arch in ARCH.items() if name != machine)
        assert judge(machine, 0, arch=other) == KILLED
        assert judge(machine, 0, arch=0x40000003) == KILLED  # i386

    @pytest.mark.parametrize("flag", [0x20000, *(1 << n for n in range(25, 31))], ids=hex)
    def test_namespaces(self, machine: str, flag: int) -> None:
        calls = seccomp.numbers(seccomp.BY_ARGUMENT, machine)
        assert judge(machine, calls["clone"], flag | 17) == error(seccomp.EPERM)
        assert judge(machine, calls["unshare"], flag) == error(seccomp.EPERM)

    def test_threads_and_processes_are_allowed(self, machine: str) -> None:
        calls = seccomp.numbers(seccomp.BY_ARGUMENT, machine)
        for flags in (17, 0x3D0F00, 0x1200011, 0x4111):
            assert judge(machine, calls["clone"], flags) == ALLOWED
        assert judge(machine, calls["unshare"], 0x400) == ALLOWED
        assert judge(machine, calls["unshare"], 0x80) == error(seccomp.EPERM)

    @pytest.mark.parametrize("high", [0, 1 << 32, 0xFFFFFFFF << 32], ids=hex)
    def test_terminal_injection(self, machine: str, high: int) -> None:
        number = seccomp.numbers(seccomp.BY_ARGUMENT, machine)["ioctl"]
        for request in (0x5412, 0x541C):
            assert judge(machine, number, 0, high | request) == error(seccomp.EPERM)
        for request in (0x5401, 0x5413, 0x541B):
            assert judge(machine, number, 0, high | request) == ALLOWED

    def test_socket_families(self, machine: str) -> None:
        number = seccomp.numbers(seccomp.BY_ARGUMENT, machine)["socket"]
        allowed = {family for family in range(64) if judge(machine, number, family) == ALLOWED}
        assert allowed == {1, 2, 10, 16}
        assert judge(machine, number, 17) == error(seccomp.EAFNOSUPPORT)

    def test_personalities(self, machine: str) -> None:
        number = seccomp.numbers(seccomp.BY_ARGUMENT, machine)["personality"]
        for persona in (0, 8, 0x20000, 0x40000, 0xFFFFFFFF):
            assert judge(machine, number, persona) == ALLOWED
        assert judge(machine, number, 0x0400000) == error(seccomp.EPERM)

    def test_every_path_ends_in_an_answer(self, machine: str) -> None:
        program = seccomp.instructions(machine)
        for at, (code, on_true, on_false, _) in enumerate(program):
            if code not in (0x06, 0x20):
                assert at + 1 + max(on_true, on_false) < len(program)
            assert max(on_true, on_false) < 256
        assert program[-1][0] == 0x06

    def test_bytes(self, machine: str) -> None:
        data = seccomp.compile_filter(machine)
        assert len(data) == 8 * len(seccomp.instructions(machine))
        assert data[:8] == bytes([0x20, 0, 0, 0, 4, 0, 0, 0])


def test_x32_is_killed() -> None:
    assert judge("x86_64", 0x40000000) == KILLED
    assert judge("x86_64", 0x40000000 | 520) == KILLED


def test_an_unknown_machine_is_an_error() -> None:
    with pytest.raises(KeyError):
        seccomp.compile_filter("sparc64")


@EVERY_MACHINE
class TestUnseenMemory:
    """Where no cgroup counts memory, none is made that belongs to no process."""

    def test_with_a_cgroup_all_is_allowed(self, machine: str) -> None:
        for number in seccomp.numbers(seccomp.UNSEEN, machine).values():
            assert judge(machine, number, 0, 1 << 40) == ALLOWED

    def test_without_one_memory_files_are_absent(self, machine: str) -> None:
        number = seccomp.numbers(seccomp.UNSEEN, machine)["memfd_create"]
        assert judge(machine, number, 0, 0, unseen_memory=False) == error(seccomp.ENOSYS)

    @pytest.mark.parametrize(
        ("size", "allowed"),
        [(56, True), (1 << 16, True), (1 << 16 | 1, False), (1 << 32, False), (1 << 63, False)],
    )
    def test_and_shared_segments_small(self, machine: str, size: int, allowed: bool) -> None:
        number = seccomp.numbers(seccomp.UNSEEN, machine)["shmget"]
        wanted = ALLOWED if allowed else error(seccomp.ENOSYS)
        assert judge(machine, number, 0, size, unseen_memory=False) == wanted


@EVERY_MACHINE
def test_user_namespaces_where_they_are_allowed(machine: str) -> None:
    calls = {
        **seccomp.numbers(seccomp.BY_ARGUMENT, machine),
        **seccomp.numbers(seccomp.REFUSED, machine),
    }
    for name in ("clone", "unshare", "chroot"):
        assert judge(machine, calls[name], 0x10000000) == error(seccomp.EPERM)
        assert judge(machine, calls[name], 0x10000000, user_namespaces=True) == ALLOWED
    assert judge(machine, calls["mount"], user_namespaces=True) == error(seccomp.EPERM)
