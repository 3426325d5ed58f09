"""Landlock rules of a job: a second wall on files, abstract sockets and signals.

The rules are data; `reduce` cuts them to what the kernel's version knows, because a kernel refuses
rights it has never heard of. Only `enforce` makes system calls. TCP rights are left unhandled:
loopback must work, and the network namespace is the wall.
"""

from __future__ import annotations

import os

from airlox.sandbox.linux import syscalls

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
MAKE_CHAR = 1 << 6
MAKE_BLOCK = 1 << 11
REFER = 1 << 13
TRUNCATE = 1 << 14
IOCTL_DEV = 1 << 15
RESOLVE_UNIX = 1 << 16

SCOPE_ABSTRACT_SOCKETS = 1 << 0
SCOPE_SIGNALS = 1 << 1
SCOPE_ABI = 6

NEWEST_ABI = 9

_FIRST_RIGHTS = (1 << 13) - 1
_ADDED_RIGHTS = ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV), (9, RESOLVE_UNIX))

READ_AND_RUN = EXECUTE | READ_FILE | READ_DIR
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE
TERMINALS = DEVICE | READ_DIR | IOCTL_DEV
WRITABLE = ((1 << 17) - 1) & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV | RESOLVE_UNIX)
_ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

DEVICES = ("null", "zero", "full", "random", "urandom")


def handled(abi: int) -> int:
    """Every file right that a version knows, as one mask."""
    rights = _FIRST_RIGHTS
    for since, right in _ADDED_RIGHTS:
        if abi >= since:
            rights |= right
    return rights


def scoped(abi: int) -> int:
    return SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if abi >= SCOPE_ABI else 0


def attributes(abi: int) -> bytes:
    """The ruleset's description, no longer than the version understands."""
    words = [handled(abi)]
    if abi >= 4:
        words.append(0)
    if abi >= SCOPE_ABI:
        words.append(scoped(abi))
    return b"".join(word.to_bytes(8, "little") for word in words)


def rules(writable: tuple[str, ...], devices: tuple[str, ...] = ()) -> list[tuple[str, int]]:
    """Which paths get which rights, before reduction. `devices` may be told anything (GPUs)."""
    return [
        ("/", READ_AND_RUN),
        *((path, WRITABLE) for path in writable),
        *((f"/dev/{name}", DEVICE) for name in DEVICES),
        *((path, DEVICE | IOCTL_DEV) for path in ("/dev/tty", *devices)),
        ("/dev/pts", TERMINALS),
    ]


def reduce(rights: int, abi: int, *, folder: bool) -> int:
    """What of `rights` this version knows and this kind of path can have."""
    known = rights & handled(abi)
    return known if folder else known & _ON_FILES


def enforce(abi: int, writable: tuple[str, ...], devices: tuple[str, ...]) -> None:
    """Put the rules on this process for good. Needs `no_new_privs`."""
    ruleset = syscalls.landlock_ruleset(attributes(abi))
    for path, rights in rules(writable, devices):
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        folder = os.fstat(fd).st_mode & 0o170000 == 0o040000
        allowed = reduce(rights, abi, folder=folder)
        syscalls.landlock_allow(ruleset, allowed.to_bytes(8, "little") + fd.to_bytes(4, "little"))
        os.close(fd)
    syscalls.landlock_restrict(ruleset)
    os.close(ruleset)
