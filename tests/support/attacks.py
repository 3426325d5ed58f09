"""Attacks on a sandbox: what a job tries, and what it must see.

The numbers are those of the attack list in the design of the sandbox. Each snippet runs after
`sandbox_driver.PRELUDE` and tells one word for each thing it tried; all words must be among
`held`. `without` names layers that may be taken off one at a time while the case still holds, with
the words that are seen then. `teeth`: with no sandbox at all the snippet must see something else,
so that the case proves something. `contained` are words that are as good in a container: what is
found there is the image's own, or the container's. None: there the attack means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Attack:
    number: int
    name: str
    code: str
    held: frozenset[str]
    teeth: bool = False
    without: Mapping[str, frozenset[str]] = field(default_factory=dict)
    contained: frozenset[str] | None = frozenset()

    def __str__(self) -> str:
        return f"{self.number}-{self.name}"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NO_ENTRY = _words("ENOENT")
_NO_WRITE = _words("EROFS EACCES")
_NO_WRITE_OR_ENTRY = _words("EROFS EACCES ENOENT")
_NO_RIGHT = _words("EPERM")
_NO_CALL = _words("ENOSYS")

ATTACKS = (
    Attack(
        1,
        "reads-the-operators-secrets",
        "attempt(read, bait['secret'])",
        _NO_ENTRY,
        teeth=True,
        without={"landlock": _NO_ENTRY},
    ),
    Attack(
        2,
        "reads-another-senders-workspace",
        """
attempt(read, bait["other"] + "/secret")
attempt(os.listdir, bait["other"])
attempt(os.listdir, os.path.dirname(bait["other"]))
""",
        _NO_ENTRY,
        teeth=True,
    ),
    Attack(
        3,
        "reads-system-secrets",
        """
for path in ("/etc/shadow", "/etc/sudoers", "/etc/ssh/ssh_host_ed25519_key", "/etc/gshadow"):
    attempt(read, path)
attempt(os.listdir, "/etc/ssh")
""",
        _NO_ENTRY,
        without={"landlock": _NO_ENTRY},
        contained=_words("EACCES"),
    ),
    Attack(
        4,
        "lists-host-folders",
        """
expected = {"job", "tmp", *sys.base_prefix.split("/")}
for path in ("/home", "/root", "/var", "/run", "/sys", "/boot", "/mnt", "/srv", "/media"):
    try:
        names = set(os.listdir(path)) - expected
    except FileNotFoundError:
        names = set()
    tell("bare" if not names else ",".join(names))
""",
        _words("bare"),
        teeth=True,
        contained=None,
    ),
    Attack(
        5,
        "writes-to-the-system",
        """
for folder in ("/", "/usr/bin/", "/etc/", "/dev/", "/home/", "/opt/", "/proc/"):
    attempt(os.mkdir, folder + "planted")
for path in ("/planted", "/usr/bin/planted", "/etc/passwd", "/etc/hosts", "/dev/planted"):
    attempt(write, path)
attempt(os.unlink, "/etc/passwd")
attempt(os.rename, "/etc/hosts", "/tmp/hosts")
""",
        _words("EROFS EACCES ENOENT EXDEV"),
        without={"landlock": _words("EROFS EACCES ENOENT EXDEV")},
    ),
    Attack(
        6,
        "fills-the-root-and-dev",
        "for folder in ('/', '/dev/', '/etc/', '/home/'): attempt(write, folder + 'filler')",
        _NO_WRITE,
        without={"landlock": _words("EROFS")},
    ),
    Attack(
        7,
        "looks-through-proc-at-the-runner",
        """
attempt(os.listdir, "/proc/1/root")
attempt(os.readlink, "/proc/1/cwd")
attempt(os.readlink, f"/proc/{bait['pid']}/cwd")
attempt(os.listdir, f"/proc/{bait['pid']}/root")
""",
        _words("EACCES ENOENT"),
        teeth=True,
        without={"landlock": _words("EACCES ENOENT")},
        contained=_words("done"),
    ),
    Attack(
        8,
        "searches-processes-for-the-invite",
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
        teeth=True,
    ),
    Attack(
        9,
        "uses-an-inherited-descriptor",
        """
def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
tell(",".join(str(fd) for fd in range(4096) if is_open(fd)))
""",
        _words("0,1,2"),
    ),
    Attack(
        10,
        "sets-the-core-handler",
        "attempt(write, '/proc/sys/kernel/core_pattern', b'core')",
        _NO_WRITE,
        without={"landlock": _NO_WRITE},
    ),
    Attack(
        11,
        "changes-the-kernel-through-proc",
        """
for path in ("/proc/sysrq-trigger", "/proc/sys/vm/drop_caches", "/proc/sys/vm/swappiness",
             "/proc/sys/fs/binfmt_misc/register", "/proc/sys/user/max_user_namespaces",
             "/proc/irq/default_smp_affinity"):
    attempt(write, path, b"1")
""",
        _NO_WRITE_OR_ENTRY,
        without={"landlock": _NO_WRITE_OR_ENTRY},
    ),
    Attack(
        12,
        "makes-a-cgroup",
        """
attempt(os.listdir, "/sys/fs/cgroup")
attempt(os.mkdir, "/sys/fs/cgroup/planted")
attempt(write, "/sys/fs/cgroup/cgroup.procs", b"0")
""",
        _NO_ENTRY,
        contained=_words("done EACCES EROFS"),
    ),
    Attack(
        13,
        "traces-the-runner",
        """
attempt(system, number(101, 117), 0x4206, bait["pid"], 0, 0)
attempt(os.open, f"/proc/{bait['pid']}/mem", os.O_RDONLY)
""",
        _words("ESRCH ENOENT"),
        teeth=True,
        without={"landlock": _words("ESRCH ENOENT"), "seccomp": _words("ESRCH ENOENT")},
    ),
    Attack(
        14,
        "reads-the-runners-memory",
        """
buffer = ctypes.create_string_buffer(8)
here = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(buffer), 8))
there = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(buffer), 8))
attempt(system, number(310, 270), bait["pid"], here, 1, there, 1, 0)
""",
        _words("ESRCH"),
        teeth=True,
    ),
    Attack(
        15,
        "signals-the-runner",
        """
attempt(os.kill, bait["pid"], 0)
attempt(os.pidfd_open, bait["pid"])
""",
        _words("ESRCH"),
        teeth=True,
        without={"landlock": _words("ESRCH")},
    ),
    Attack(
        16,
        "sets-up-io-uring",
        "attempt(system, 425, 4, ctypes.create_string_buffer(120))",
        _NO_CALL,
        teeth=True,
    ),
    Attack(
        17,
        "reaches-for-keys",
        """
attempt(system, number(250, 219), 0, -3, 0)
attempt(system, number(248, 217), b"user", b"planted", b"x", 1, -3)
attempt(system, number(249, 218), b"user", b"planted", None, 0)
""",
        _NO_CALL,
        teeth=True,
    ),
    Attack(
        18,
        "reaches-for-kernel-machinery",
        """
attempt(system, number(321, 280), 0, ctypes.create_string_buffer(128), 128)
attempt(system, number(298, 241), ctypes.create_string_buffer(128), 0, -1, -1, 0)
attempt(system, number(323, 282), 1)
""",
        _NO_CALL,
        teeth=True,
    ),
    Attack(
        19,
        "unshares-a-user-namespace",
        """
attempt(system, number(272, 97), 0x10000000)
attempt(system, number(272, 97), 0x10000000 | 0x20000)
""",
        _NO_RIGHT,
        teeth=True,
        without={"seccomp": _words("ENOSPC EPERM"), "userns_limit": _NO_RIGHT},
    ),
    Attack(
        20,
        "clones-a-user-namespace",
        """
def clone():
    if system(number(56, 220), 0x10000000 | 17, 0, 0, 0, 0) == 0:
        os._exit(0)
attempt(clone)
""",
        _NO_RIGHT,
        teeth=True,
        without={"seccomp": _words("ENOSPC EPERM")},
    ),
    Attack(
        21,
        "clones-the-new-way",
        """
def clone3():
    wanted = ctypes.create_string_buffer(struct.pack("8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)
    if system(435, wanted, 64) == 0:
        os._exit(0)
attempt(clone3)
""",
        _NO_CALL,
        teeth=True,
        without={"seccomp": _words("ENOSPC EPERM")},
    ),
    Attack(
        22,
        "enters-other-namespaces",
        """
for name in ("mnt", "net", "user", "pid"):
    attempt(os.open, f"/proc/1/ns/{name}", os.O_RDONLY)
attempt(system, number(308, 268), os.open("/proc/self/ns/user", os.O_RDONLY), 0)
""",
        _words("EACCES EPERM"),
        contained=_words("done"),
    ),
    Attack(
        23,
        "mounts",
        """
attempt(system, number(165, 40), b"none", b"/tmp", b"tmpfs", 0, None)
attempt(system, number(166, 39), b"/tmp", 2)
attempt(system, number(155, 41), b"/tmp", b"/tmp")
attempt(system, 430, b"tmpfs", 0)
attempt(system, 428, -100, b"/tmp", 1)
attempt(system, 442, -100, b"/proc/sys", 0, ctypes.create_string_buffer(32), 32)
""",
        _NO_RIGHT,
        # Setting no attribute at all is nothing that a capability would guard.
        without={"seccomp": _words("EPERM EINVAL done")},
    ),
    Attack(
        24,
        "changes-its-root",
        "attempt(os.chroot, '/tmp')",
        _NO_RIGHT,
        without={"seccomp": _NO_RIGHT},
    ),
    Attack(
        25,
        "replaces-the-kernel",
        """
attempt(system, number(246, 104), 0, 0, None, 0)
attempt(system, number(175, 105), b"", 0, b"")
attempt(system, number(169, 142), 0xFEE1DEAD, 672274793, 0, 0)
attempt(system, number(167, 224), b"/tmp/swap", 0)
""",
        _NO_RIGHT,
        without={"seccomp": _words("EPERM ENOSYS")},  # a kernel may lack kexec, modules or swap
    ),
    Attack(
        26,
        "sets-clock-and-name",
        """
now = struct.pack("qq", int(time.time()), 0)
attempt(system, number(227, 112), 0, now)
attempt(system, number(164, 170), now, None)
attempt(system, number(170, 161), b"planted", 7)
""",
        _NO_RIGHT,
        without={"seccomp": _NO_RIGHT},
    ),
    Attack(
        27,
        "makes-a-device",
        """
import stat
for folder in (bait["work"], bait["out"], bait["tmp"]):
    attempt(os.mknod, folder + "/disk", stat.S_IFBLK | 0o600, os.makedev(7, 0))
    attempt(os.mknod, folder + "/memory", stat.S_IFCHR | 0o600, os.makedev(1, 1))
""",
        _words("EPERM EACCES"),
        without={"landlock": _words("EPERM EACCES")},
    ),
    Attack(
        28,
        "runs-suid-programs",
        """
import shutil, subprocess
tell([line.split()[1] for line in open("/proc/self/status") if line.startswith("NoNewPrivs")][0])
tell(int(bool(os.statvfs("/usr").f_flag & os.ST_NOSUID)))
def run(*command):
    program = shutil.which(command[0])
    if program:
        done = subprocess.run((program, *command[1:]), stdin=-3, capture_output=True)
        tell(int(done.returncode != 0 and b"uid=0" not in done.stdout))
run("su", "-c", "id")
run("sudo", "-n", "id")
run("mount", "-t", "tmpfs", "none", "/tmp")
run("newuidmap", str(os.getpid()), "0", "0", "1")
""",
        _words("1"),
        contained=_words("0"),
    ),
    Attack(
        29,
        "plants-a-setuid-program",
        """
import shutil, subprocess
for folder in (bait["work"], bait["out"], bait["tmp"]):
    copy = folder + "/id"
    shutil.copy("/usr/bin/id", copy)
    os.chmod(copy, 0o6755)
    done = subprocess.run([copy, "-u"], capture_output=True)
    tell("plain" if done.stdout.strip() == str(os.getuid()).encode() else done.stdout)
    tell("nosuid" if os.statvfs(folder).f_flag & os.ST_NOSUID else "suid")
""",
        _words("plain nosuid"),
        contained=_words("suid"),
    ),
    Attack(
        30,
        "gives-a-file-capabilities",
        """
write(bait["work"] + "/tool")
value = struct.pack("<5I", 0x02000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0)
attempt(os.setxattr, bait["work"] + "/tool", "security.capability", value)
""",
        _words("EPERM EOPNOTSUPP"),
    ),
    Attack(
        31,
        "types-into-a-terminal",
        """
import pty
_, terminal = pty.openpty()
typed = ctypes.create_string_buffer(b"x")
for request in (0x5412, 0x541C, 0x5412 | 1 << 32, 0x541C | 7 << 32):
    attempt(system, number(16, 29), terminal, request, typed)
""",
        _NO_RIGHT,
        contained=_words("ENOTTY"),
    ),
    Attack(
        32,
        "opens-the-runners-terminal",
        "attempt(os.open, '/dev/tty', os.O_RDWR)",
        _words("ENXIO"),
    ),
    Attack(
        33,
        "calls-the-kernel-by-another-door",
        """
import mmap, signal
def ended_by(action):
    pid = os.fork()
    if pid == 0:
        action()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    tell(signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "done")
def interrupt():  # mov $20, %eax; int $0x80; ret: getpid of 32-bit programs
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
if os.uname().machine == "x86_64":
    ended_by(lambda: system(0x40000000 | 39))
    ended_by(interrupt)
else:
    tell("SIGSYS")  # other machines have one door
""",
        _words("SIGSYS"),
    ),
    Attack(
        34,
        "opens-odd-sockets",
        """
for family in (17, 40, 38, 31, 44):
    attempt(socket.socket, family, socket.SOCK_RAW)
""",
        _words("EAFNOSUPPORT"),
        teeth=True,
    ),
    Attack(
        35,
        "changes-its-personality",
        "attempt(system, number(135, 92), 0x0400000)",
        _NO_RIGHT,
        teeth=True,
    ),
    Attack(
        36,
        "reads-kernel-messages-and-addresses",
        """
attempt(system, number(103, 116), 3, ctypes.create_string_buffer(64), 64)
attempt(os.open, "/dev/kmsg", os.O_RDONLY)
def symbols():
    if any(line.split()[0].strip(b"0") for line in read("/proc/kallsyms").splitlines()[:-1]):
        tell("addresses")
symbols()
""",
        _words("EPERM ENOENT"),
    ),
    Attack(
        37,
        "leaves-a-core-dump",
        """
pid = os.fork()
if pid == 0:
    os.chdir(bait["work"])
    os.abort()
status = os.waitpid(pid, 0)[1]
cores = [name for name in os.listdir(bait["work"]) if "core" in name]
tell("dumped" if os.WCOREDUMP(status) or cores else "nothing")
""",
        _words("nothing"),
    ),
    Attack(
        38,
        "raises-its-limits",
        """
import resource
def raised(name):
    kind = getattr(resource, name)
    hard = resource.getrlimit(kind)[1]
    try:
        resource.setrlimit(kind, (hard, hard + 1))
    except ValueError as error:
        return "refused"
    return name
for name in ("RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_MEMLOCK", "RLIMIT_NPROC"):
    tell(raised(name))
""",
        _words("refused"),
    ),
    Attack(
        43,
        "serves-itself",
        """
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    server = socket.create_server((host, 0), family=family)
    attempt(socket.create_connection, server.getsockname()[:2], 5)
""",
        _words("done"),  # not an attack: this must go on working
    ),
    Attack(
        52,
        "writes-a-file-of-10-gigabytes",
        """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = os.open(bait["work"] + "/large", os.O_CREAT | os.O_WRONLY)
attempt(os.pwrite, file, b"x", 10 << 30)
attempt(os.posix_fallocate, file, 0, 10 << 30)
""",
        _words("EFBIG"),
    ),
    Attack(
        54,
        "makes-a-sparse-file-of-a-terabyte",
        """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = os.open(bait["work"] + "/sparse", os.O_CREAT | os.O_WRONLY)
attempt(os.truncate, file, 1 << 40)
""",
        _words("EFBIG"),
    ),
    Attack(
        61,
        "makes-a-file-immutable",
        """
import fcntl
write(bait["work"] + "/stuck")
file = os.open(bait["work"] + "/stuck", os.O_RDONLY)
for flag in (0x10, 0x20):
    attempt(fcntl.ioctl, file, 0x40086602, struct.pack("l", flag))
""",
        _words("EPERM ENOTTY EOPNOTSUPP"),
    ),
    Attack(
        69,
        "opens-20000-descriptors",
        """
def hoard():
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(20_000)]
attempt(hoard)
""",
        _words("EMFILE"),
    ),
    Attack(
        70,
        "locks-memory",
        """
import mmap
area = mmap.mmap(-1, 100 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
attempt(system, number(149, 228), address, 100 << 20)
""",
        _words("ENOMEM EPERM"),
    ),
    Attack(
        71,
        "raises-its-priority",
        """
attempt(os.setpriority, os.PRIO_PROCESS, 0, -5)
attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(10))
""",
        _words("EPERM EACCES"),
    ),
    Attack(
        80,
        "replaces-its-work-folder",
        """
attempt(os.rename, bait["work"], bait["work"] + "-away")
attempt(os.rmdir, bait["work"])
attempt(os.rename, bait["out"], bait["tmp"] + "/out")
attempt(os.symlink, "/etc", bait["work"] + "-link")
""",
        _words("EROFS EBUSY EACCES EPERM EXDEV"),
        without={"landlock": _words("EROFS EBUSY EACCES EPERM EXDEV")},
    ),
    Attack(
        83,
        "forges-its-own-end",
        """
def forge():
    said = False
    for fd in range(3, 256):
        try:
            os.write(fd, b"exit 0 0\\n")
            said = True
        except OSError:
            pass
    return said
tell("said" if forge() else "nothing")
attempt(write, f"/proc/1/fd/{bait['fd']}", b"exit 0 0\\n")
attempt(os.listdir, "/proc/1/fd")
attempt(os.kill, 1, 9)
attempt(os.kill, 1, 19)
attempt(system, number(101, 117), 0x4206, 1, 0, 0)
""",
        # A signal that pid 1 does not take is no error.
        _words("nothing EACCES EPERM ENOENT done"),
    ),
    Attack(
        89,
        "looks-for-the-names-of-host-and-account",
        """
import pwd, socket as net
told = read("/etc/passwd") + read("/etc/hostname") + os.uname().nodename.encode()
told += net.gethostname().encode() + repr({**os.environ, "BAIT": ""}).encode()
names = [name for name in bait["names"] if name.encode() in told.replace(b"root:x:0:0:root:/", b"")]
tell(",".join(names) or "nothing")
tell(pwd.getpwuid(os.getuid()).pw_name if os.getuid() else "root")
""",
        _words("nothing job"),
        teeth=True,
    ),
    Attack(
        39,
        "connects-to-the-hosts-loopback",
        "attempt(socket.create_connection, ('127.0.0.1', bait['port']), 5)",
        _words("ECONNREFUSED"),
        teeth=True,
    ),
    Attack(
        40,
        "connects-to-an-abstract-socket",
        "attempt(socket.socket(socket.AF_UNIX).connect, '\\0' + bait['abstract'])",
        _words("ECONNREFUSED EPERM"),
        teeth=True,
        without={"landlock": _words("ECONNREFUSED")},
    ),
    Attack(
        41,
        "connects-to-a-path-socket",
        """
for path in (bait["socket"], "/var/run/docker.sock", "/run/dbus/system_bus_socket"):
    attempt(socket.socket(socket.AF_UNIX).connect, path)
""",
        _NO_ENTRY,
        teeth=True,
    ),
    Attack(
        42,
        "reaches-the-network",
        """
def resolve():
    try:
        socket.getaddrinfo("example.com", 443)
    except socket.gaierror:
        raise OSError(errno.ENETUNREACH, "unresolved")
for host in ("169.254.169.254", "8.8.8.8", "2001:4860:4860::8888", "fd00:ec2::254"):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    attempt(socket.create_connection, (host, 80), 5)
    attempt(socket.socket(family, socket.SOCK_DGRAM).sendto, b"x", (host, 53))
attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
attempt(resolve)
""",
        _words("ENETUNREACH EPERM"),
    ),
    Attack(
        47,
        "opens-shared-memory-of-the-host",
        """
attempt(system, number(29, 194), bait["key"], 4096, 0)
attempt(system, number(64, 190), bait["key"], 1, 0)
attempt(system, number(240, 180), bait["queue"].encode(), os.O_RDONLY, 0, None)
""",
        _NO_ENTRY,
        teeth=True,
    ),
)
