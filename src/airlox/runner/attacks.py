"""The twelve attacks that `airlox runner doctor` makes on the sandbox it looks at.

Each is a snippet for a Python inside a sandbox. It runs after `PRELUDE`, tells one word for each
thing it tries, and has been held when it told something and every word is among `held`. What it
reaches for is bait, put out by `trials.py`: with no walls at all it gets something, and harms
nothing. The whole list of attacks that the sandboxes are tested with is longer, and not harmless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from airlox.sandbox.base import Cause

PRELUDE: Final = """
import ctypes, errno, json, os, signal, socket, sys, time
bait = json.loads(os.environ["BAIT"])
libc = ctypes.CDLL(None, use_errno=True)
def tell(word):
    os.write(1, (str(word) + "\\n").encode())
def attempt(action, *arguments):
    try:
        result = action(*arguments)
    except OSError as error:
        tell(errno.errorcode.get(error.errno, error.errno))
        return None
    tell("done")
    return result
def system(number, *arguments):
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
def number(x86_64, aarch64):
    return {"x86_64": x86_64, "aarch64": aarch64}[os.uname().machine]
def read(path):
    with open(path, "rb") as file:
        return file.read(4096)
"""


@dataclass(frozen=True, slots=True)
class Attack:
    """`name` is for programs, `what` says it to people; `ends` is how a job must end that tries.
    `shown` is what is said of one that was held, where its words would not tell."""

    name: str
    what: str
    code: str
    held: frozenset[str]
    ends: Cause = Cause.EXIT
    shown: str = ""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OUT_OF_SIGHT: Final = _words("ENOENT EACCES EPERM ENOTDIR")
_NO_PROCESS: Final = _words("ESRCH EPERM ENOSYS")
_NO_CALL: Final = _words("EPERM ENOSYS")

USER_NAMESPACE: Final = "user-namespace"
LEFT_BEHIND: Final = "left-behind"
TOLD_LEFT: Final = "left"

ATTACKS: Final = (
    Attack(
        "operators-file",
        "reads a private file of the operator",
        "attempt(read, bait['secret'])",
        _OUT_OF_SIGHT,
    ),
    Attack(
        "other-workspace",
        "reads and lists another sender's workspace",
        """
attempt(read, bait["other"] + "/secret")
attempt(os.listdir, bait["other"])
""",
        _OUT_OF_SIGHT,
    ),
    Attack(
        "system-files",
        "opens files of the system and of the kernel for writing",
        """
for path in ("/etc/passwd", "/etc/hosts", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"):
    attempt(lambda: os.close(os.open(path, os.O_WRONLY)))
""",
        _words("EROFS EACCES ENOENT EPERM"),
    ),
    Attack(
        "environments",
        "searches command lines and environments of all processes for a secret",
        """
secret = bait["backwards"][::-1].encode()
def found():
    for name in os.listdir("/proc"):
        for part in ("environ", "cmdline"):
            try:
                if name.isdigit() and secret in read(f"/proc/{name}/{part}"):
                    return True
            except OSError:
                pass
    return False
tell("found" if found() else "nothing")
""",
        _words("nothing"),
    ),
    Attack(
        "other-processes",
        "reads the memory of another process, and kills it",
        """
class Part(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
space = ctypes.create_string_buffer(8)
ours, theirs = Part(ctypes.addressof(space), 8), Part(bait["address"], 8)
read_other = number(310, 270)
attempt(system, read_other, bait["pid"], ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
attempt(os.kill, bait["pid"], signal.SIGKILL)
""",
        _NO_PROCESS,
    ),
    Attack(
        USER_NAMESPACE,
        "makes a user namespace, the door to much of the kernel",
        "attempt(system, number(272, 97), 0x10000000)",
        _words("EPERM ENOSYS ENOSPC"),
    ),
    Attack(
        "mounts",
        "makes a file system and copies a mount",
        """
attempt(system, 430, b"tmpfs", 0)
attempt(system, 428, -100, b"/", 0x80001)
""",
        _NO_CALL,
    ),
    Attack(
        "kernel-calls",
        "calls parts of the kernel that few programs need (io_uring, keyrings, bpf)",
        """
attempt(system, 425, 1, 0)
attempt(system, number(250, 219), 0, -3, 0)
attempt(system, number(321, 280), 11, 0, 0)
""",
        _NO_CALL,
    ),
    Attack(
        "host-sockets",
        "connects to servers on this machine: a port, an abstract socket, a socket file",
        """
def connect(family, address):
    with socket.socket(family) as line:
        line.settimeout(5)
        line.connect(address)
attempt(connect, socket.AF_INET, ("127.0.0.1", bait["port"]))
attempt(connect, socket.AF_UNIX, "\\0" + bait["abstract"])
attempt(connect, socket.AF_UNIX, bait["socket"])
""",
        _words("ECONNREFUSED ENOENT EPERM EACCES ENETUNREACH"),
    ),
    Attack(
        "network",
        "looks for a way out: a public address, the cloud's metadata, IPv6",
        """
def route(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as line:
        line.connect((address, 53))
attempt(route, socket.AF_INET, "192.0.2.1")
attempt(route, socket.AF_INET, "169.254.169.254")
attempt(route, socket.AF_INET6, "2001:db8::1")
""",
        _words("ENETUNREACH EHOSTUNREACH EACCES EPERM EADDRNOTAVAIL EAFNOSUPPORT"),
    ),
    Attack(
        LEFT_BEHIND,
        "leaves a process behind that ignores signals",
        f"""
import fcntl
ready, say_ready = os.pipe()
if os.fork() == 0:
    os.setsid()
    for ignored in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    if os.fork() == 0:
        fcntl.flock(os.open("left", os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)
        os.write(say_ready, b"x")
        for fd in (0, 1, 2):
            os.close(fd)
        time.sleep(600)
    os._exit(0)
os.read(ready, 1)
tell("{TOLD_LEFT}")
""",
        _words(TOLD_LEFT),
        shown="ended with the job",
    ),
    Attack(
        "memory",
        "takes eight times the memory it may have",
        """
tell("started")
taken = []
for _ in range(256):
    taken.append(bytearray(b"x") * (4 << 20))
    time.sleep(0.01)
tell("done")
""",
        _words("started"),
        ends=Cause.OUT_OF_MEMORY,
        shown="ended: out of memory",
    ),
)
