"""The table of system calls a job may not make, and its form as a classic BPF program.

Pure: numbers in, bytes out. The table is a deny list (the walls are namespaces and mounts; this
narrows what of the kernel can be reached), except that calls newer than the table are answered
"no such call". `VERSION` is part of what a result says about its sandbox. Left alone on purpose:
ptrace and process_vm_* (debuggers; bounded by the pid namespace and Landlock), Unix sockets,
seccomp, landlock_*, and memfd_create where a cgroup counts its memory.
"""

from __future__ import annotations

VERSION = 1
NEWEST = 469  # file_setattr; whatever is above was not judged

EPERM = 1
ENOSYS = 38
EAFNOSUPPORT = 97

COMPUTING: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "exit": (60, 93),
    "sigaltstack": (131, 132),
    "futex": (202, 98),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "exit_group": (231, 94),
    "getrandom": (318, 278),
}
"""All that is left to a process that only computes: memory, and the descriptors it has."""

# name: (x86_64, aarch64); None: the architecture has no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "create_module": (174, None),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "nfsservctl": (180, 42),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
    "vhangup": (153, 58),
    "fanotify_init": (300, 262),
    "migrate_pages": (256, 238),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "lookup_dcookie": (212, 18),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
}

# Answered "no such call", so that programs take their other way.
ABSENT: dict[str, tuple[int | None, int | None]] = {
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "clone3": (435, 435),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "memfd_secret": (447, 447),
}

# Judged by an argument.
BY_ARGUMENT: dict[str, tuple[int | None, int | None]] = {
    "clone": (56, 220),
    "unshare": (272, 97),
    "ioctl": (16, 29),
    "socket": (41, 198),
    "personality": (135, 92),
}

# Memory that is no process's: not seen by whoever adds up processes, where no cgroup counts it.
UNSEEN: dict[str, tuple[int | None, int | None]] = {
    "memfd_create": (319, 279),
    "shmget": (29, 194),
}
SHARED_SEGMENT_BYTES = 64 * 1024
"""Segments up to this size are made all the same: a database marks its folder with one."""

ARCHITECTURES = {"x86_64": 0, "aarch64": 1}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

NAMESPACES = 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x20000
NEW_TIME = 0x80  # for unshare only: in clone the low byte is the exit signal
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
FAMILIES = (1, 2, 10, 16)  # UNIX, INET, INET6, NETLINK
PERSONALITIES = (0, 0x8, 0x20000, 0x40000, 0xFFFFFFFF)

_LOAD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_GREATER = 0x25
_JUMP_ANY_BIT = 0x45
_RETURN = 0x06
_OFFSET_NUMBER = 0
_OFFSET_ARCH = 4
_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000

Instruction = tuple[int, int, int, int]


def _return(action: int) -> Instruction:
    return (_RETURN, 0, 0, action)


def _load_argument(index: int) -> Instruction:
    """The low 32 bits: the kernel reads these arguments as `int`, whatever stands above."""
    return (_LOAD, 0, 0, 16 + 8 * index)


def _refuse(numbers: list[int], error: int) -> list[Instruction]:
    last = len(numbers) - 1
    tests = [
        (_JUMP_EQUAL, last - i, 1 if i == last else 0, number) for i, number in enumerate(numbers)
    ]
    return [*tests, _return(_ERRNO | error)]


def _judge(
    number: int, argument: int, tests: list[Instruction], otherwise: int
) -> list[Instruction]:
    """Run `tests` on an argument of one call; they end in a return or fall through."""
    body = [_load_argument(argument), *tests, _return(otherwise)]
    return [(_JUMP_EQUAL, 0, len(body), number), *body]


def _only(values: tuple[int, ...]) -> list[Instruction]:
    last = len(values) - 1
    tests = [(_JUMP_EQUAL, last - i, 1 if i == last else 0, v) for i, v in enumerate(values)]
    return [*tests, _return(_ALLOW)]


def _none_of_bits(mask: int) -> list[Instruction]:
    return [(_JUMP_ANY_BIT, 1, 0, mask), _return(_ALLOW)]


def _neither(values: tuple[int, int]) -> list[Instruction]:
    first, second = values
    return [(_JUMP_EQUAL, 2, 0, first), (_JUMP_EQUAL, 1, 0, second), _return(_ALLOW)]


def _no_larger_than(number: int, argument: int, limit: int) -> list[Instruction]:
    """One call, with both halves of an argument that says a size."""
    absent = _return(_ERRNO | ENOSYS)
    low = _load_argument(argument)
    high = (*low[:3], low[3] + 4)
    body = [high, (_JUMP_EQUAL, 1, 0, 0), absent, low, (_JUMP_GREATER, 0, 1, limit), absent]
    body.append(_return(_ALLOW))
    return [(_JUMP_EQUAL, 0, len(body), number), *body]


def numbers(table: dict[str, tuple[int | None, int | None]], machine: str) -> dict[str, int]:
    """The calls of a table that an architecture has, by name."""
    column = ARCHITECTURES[machine]
    return {name: n for name, row in table.items() if (n := row[column]) is not None}


def instructions(
    machine: str, *, user_namespaces: bool = False, unseen_memory: bool = True
) -> list[Instruction]:
    """The whole program.

    With `user_namespaces` a command may make them and what goes with them: a browser's own sandbox
    unshares, clones and changes its root. The kernel then asks for capabilities in that namespace.
    Without `unseen_memory` there is none of it but small segments.

    Raises:
        KeyError: the architecture is not in the table.
    """
    judged = numbers(BY_ARGUMENT, machine)
    denied = numbers(REFUSED, machine)
    refused = _ERRNO | EPERM
    if user_namespaces:
        del denied["chroot"]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _OFFSET_ARCH),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        _return(_KILL_PROCESS),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
    ]
    if machine == "x86_64":
        program += [(_JUMP_ANY_BIT, 0, 1, _X32_BIT), _return(_KILL_PROCESS)]
    program += [(_JUMP_GREATER, 0, 1, NEWEST), _return(_ERRNO | ENOSYS)]
    program += _refuse(list(denied.values()), EPERM)
    program += _refuse(list(numbers(ABSENT, machine).values()), ENOSYS)
    if not unseen_memory:
        unseen = numbers(UNSEEN, machine)
        program += _no_larger_than(unseen.pop("shmget"), 1, SHARED_SEGMENT_BYTES)
        program += _refuse(list(unseen.values()), ENOSYS)
    if not user_namespaces:
        program += _judge(judged["clone"], 0, _none_of_bits(NAMESPACES), refused)
        program += _judge(judged["unshare"], 0, _none_of_bits(NAMESPACES | NEW_TIME), refused)
    program += _judge(judged["ioctl"], 1, _neither((_TIOCSTI, _TIOCLINUX)), refused)
    program += _judge(judged["socket"], 0, _only(FAMILIES), _ERRNO | EAFNOSUPPORT)
    program += _judge(judged["personality"], 0, _only(PERSONALITIES), refused)
    return [*program, _return(_ALLOW)]


def compile_filter(
    machine: str, *, user_namespaces: bool = False, unseen_memory: bool = True
) -> bytes:
    """The program as the kernel takes it: 8 bytes an instruction."""
    return _encode(
        instructions(machine, user_namespaces=user_namespaces, unseen_memory=unseen_memory)
    )


def compile_computing(machine: str) -> bytes:
    """A program that leaves a process nothing but computing on descriptors it has.

    Raises:
        KeyError: the architecture is not in the table.
    """
    allowed = list(numbers(COMPUTING, machine).values())
    last = len(allowed) - 1
    program: list[Instruction] = [
        (_LOAD, 0, 0, _OFFSET_ARCH),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        _return(_KILL_PROCESS),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
    ]
    # An x32 call has a bit of its own, so its number is none of these.
    program += [(_JUMP_EQUAL, last - i, 1 if i == last else 0, n) for i, n in enumerate(allowed)]
    return _encode([*program, _return(_ALLOW), _return(_ERRNO | EPERM)])


def _encode(program: list[Instruction]) -> bytes:
    return b"".join(
        code.to_bytes(2, "little") + bytes((on_true, on_false)) + value.to_bytes(4, "little")
        for code, on_true, on_false, value in program
    )
