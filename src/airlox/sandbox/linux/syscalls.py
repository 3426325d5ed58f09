"""The system calls that Python does not offer, each as one function that raises `OSError`.

Loaded by the launcher, which must start fast: imports `os` and `ctypes` only, and holds no rule of
the sandbox. Numbers from 424 on are the same on every architecture; the older ones stand in a
table. Arguments are passed as machine words; buffers are kept alive by the caller's frame.
"""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

MACHINE = os.uname().machine
_NUMBERS = {
    "x86_64": {"pivot_root": 155, "capset": 126, "keyctl": 250},
    "aarch64": {"pivot_root": 41, "capset": 91, "keyctl": 219},
}
SUPPORTED = MACHINE in _NUMBERS

_OPEN_TREE = 428
_MOVE_MOUNT = 429
_FSOPEN = 430
_FSCONFIG = 431
_FSMOUNT = 432
_CLOSE_RANGE = 436
_MOUNT_SETATTR = 442
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_ADD_RULE = 445
_LANDLOCK_RESTRICT_SELF = 446

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2

ATTR_RDONLY = 0x01
ATTR_NOSUID = 0x02
ATTR_NODEV = 0x04
ATTR_NOEXEC = 0x08

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
_PR_SET_NAME = 15
_SECCOMP_MODE_FILTER = 2
_PR_CAP_AMBIENT_CLEAR_ALL = 4

SIGCHLD = 17
_SFD_CLOEXEC = 0o2000000
_SFD_NONBLOCK = 0o4000

_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = 0o2000000
_MOVE_MOUNT_F_EMPTY_PATH = 4
_FSOPEN_CLOEXEC = 1
_FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_STRING = 1
_FSCONFIG_CMD_CREATE = 6
_CLOSE_RANGE_CLOEXEC = 4

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_AF_INET = 2
_SOCK_DGRAM_CLOEXEC = 0o2000002
_KEYCTL_JOIN_SESSION_KEYRING = 1
_CAPABILITY_VERSION_3 = 0x20080522


def _raise(name: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{name}: {os.strerror(number)}")


def _syscall(name: str, number: int, *arguments: object) -> int:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        _raise(name)
    return result


def _call(name: str, *arguments: object) -> int:
    result = int(getattr(_libc, name)(*arguments))
    if result < 0:
        _raise(name)
    return result


def unshare(flags: int) -> None:
    _call("unshare", ctypes.c_int(flags))


def enter_namespace(fd: int, kind: int) -> None:
    """Move this thread into the namespace behind a descriptor, which must be of this kind."""
    _call("setns", ctypes.c_int(fd), ctypes.c_int(kind))


def prctl(option: int, argument: int = 0) -> None:
    _call("prctl", *(ctypes.c_ulong(word) for word in (option, argument, 0, 0, 0)))


def set_process_name(name: bytes) -> None:
    _call("prctl", ctypes.c_ulong(_PR_SET_NAME), name, *(ctypes.c_ulong(0),) * 3)


def overwrite(address: int, content: bytes) -> None:
    """Write into this process's own memory."""
    ctypes.memmove(address, content, len(content))


def make_mounts_private() -> None:
    """Cut this mount namespace off from the one it was copied from."""
    _call("mount", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)


def clone_tree(fd: int) -> int:
    """A detached copy of the mounts at and below `fd`, itself a descriptor."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE
    return _syscall("open_tree", _OPEN_TREE, fd, b"", flags)


def set_mount_attributes(fd: int, attributes: int, recursive: bool = True) -> None:
    """Add attributes to a mount, and let it share nothing with the mount it was cloned from."""
    packed = (ctypes.c_uint64 * 4)(attributes, 0, MS_PRIVATE, 0)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    _syscall("mount_setattr", _MOUNT_SETATTR, fd, b"", flags, ctypes.byref(packed), 32)


def attach(tree_fd: int, folder_fd: int, path: bytes) -> None:
    """Place a detached tree on `path`, which is relative to the folder."""
    _syscall("move_mount", _MOVE_MOUNT, tree_fd, b"", folder_fd, path, _MOVE_MOUNT_F_EMPTY_PATH)


def new_filesystem(kind: bytes, options: tuple[tuple[bytes, bytes], ...], attributes: int) -> int:
    """A new, detached file system; a descriptor of its root."""
    context = _syscall("fsopen", _FSOPEN, kind, _FSOPEN_CLOEXEC)
    try:
        for key, value in options:
            _syscall("fsconfig", _FSCONFIG, context, _FSCONFIG_SET_STRING, key, value, 0)
        _syscall("fsconfig", _FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        return _syscall("fsmount", _FSMOUNT, context, _FSMOUNT_CLOEXEC, attributes)
    finally:
        os.close(context)


def pivot_to_current() -> None:
    """Make the current folder the root, and let go of everything else."""
    _syscall("pivot_root", _NUMBERS[MACHINE]["pivot_root"], b".", b".")
    _call("umount2", b".", ctypes.c_int(MNT_DETACH))
    os.chdir("/")


def set_host_name(name: bytes) -> None:
    _call("sethostname", name, ctypes.c_size_t(len(name)))


def new_session_keyring() -> None:
    """Leave the keyring of whoever started us behind."""
    _syscall("keyctl", _NUMBERS[MACHINE]["keyctl"], _KEYCTL_JOIN_SESSION_KEYRING, None)


def raise_loopback() -> None:
    """Bring `lo` up; the kernel gives it 127.0.0.1 and ::1 itself."""
    fd = _call("socket", ctypes.c_int(_AF_INET), ctypes.c_int(_SOCK_DGRAM_CLOEXEC), ctypes.c_int(0))
    try:
        request = (ctypes.c_ubyte * 40)(*b"lo")
        _call("ioctl", ctypes.c_int(fd), ctypes.c_ulong(_SIOCGIFFLAGS), request)
        request[16] |= _IFF_UP
        _call("ioctl", ctypes.c_int(fd), ctypes.c_ulong(_SIOCSIFFLAGS), request)
    finally:
        os.close(fd)


def drop_bounding_set() -> None:
    """No program started from here on can gain a capability."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            # The kernel knows no capability of this number, nor any above it.
            return


def drop_capabilities() -> None:
    """Give up every capability this process holds."""
    _call(
        "prctl", *(ctypes.c_ulong(w) for w in (PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    )
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    empty = (ctypes.c_uint32 * 6)()
    _syscall("capset", _NUMBERS[MACHINE]["capset"], ctypes.byref(header), ctypes.byref(empty))


def close_on_exec_from(first: int) -> None:
    """Every descriptor from `first` on is closed by the next exec."""
    _syscall("close_range", _CLOSE_RANGE, first, 0x7FFFFFFF, _CLOSE_RANGE_CLOEXEC)


def install_filter(program: bytes) -> None:
    """Put a classic BPF program on this process and all it starts."""
    buffer = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    header = Program(len(program) // 8, ctypes.addressof(buffer))
    words = (ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(header))
    _call("prctl", ctypes.c_ulong(PR_SET_SECCOMP), *words, ctypes.c_ulong(0), ctypes.c_ulong(0))


def landlock_abi() -> int:
    """The Landlock version of this kernel; 0 if there is none."""
    try:
        return _syscall("landlock_create_ruleset", _LANDLOCK_CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def landlock_ruleset(attributes: bytes) -> int:
    size = len(attributes)
    return _syscall("landlock_create_ruleset", _LANDLOCK_CREATE_RULESET, attributes, size, 0)


def landlock_allow(ruleset: int, rule: bytes) -> None:
    _syscall("landlock_add_rule", _LANDLOCK_ADD_RULE, ruleset, 1, rule, 0)


def landlock_restrict(ruleset: int) -> None:
    _syscall("landlock_restrict_self", _LANDLOCK_RESTRICT_SELF, ruleset, 0)


def block_signal(number: int) -> int:
    """Block one signal and return a descriptor that tells of it (non-blocking)."""
    mask = ctypes.create_string_buffer((1 << (number - 1)).to_bytes(8, "little"), 128)
    _call("sigprocmask", ctypes.c_int(0), mask, None)
    flags = _SFD_CLOEXEC | _SFD_NONBLOCK
    return _call("signalfd", ctypes.c_int(-1), mask, ctypes.c_int(flags))


def default_signals() -> None:
    """Undo what an interpreter does to signals: nothing ignored, nothing blocked."""
    nothing = ctypes.create_string_buffer(128)
    _libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    for number in range(1, 65):
        _libc.signal(number, None)
    _call("sigprocmask", ctypes.c_int(2), nothing, None)
