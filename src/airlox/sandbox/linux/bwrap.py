"""The builder `bwrap`: the system's bubblewrap raises namespaces and mounts, our stage the rest.

For machines whose security profile lets that program make namespaces and us not. What it is told
travels through a descriptor, for any user may read its command line. Pid 1 inside is our keeper
(`inside.py`), run by the interpreter that we are, which is therefore one more read-only folder
that a job sees.

Where it differs from `own`:

- The root, `/dev` and `/proc` are made read-only at the end and each tmpfs gets a size, for its own
  have neither. How many files a tmpfs holds cannot be limited; they are counted (`tmpfs.py`).
- Sources are found by path as the job's user, so started as root everything must be reachable by
  that user (`toolchain_unreadable`). The three writable folders come from checked descriptors
  where this bubblewrap can do that.
- "Dies with its parent" is left out: it would leave a helper without its parent that waits for it
  for ever. The end of file on the control pipe ends everything instead.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airlox.sandbox import probe as causes
from airlox.sandbox.base import Mount
from airlox.sandbox.linux import launched
from airlox.sandbox.linux.blueprint import encode
from airlox.sandbox.linux.launched import INTERPRETER_FLAGS as FLAGS
from airlox.sandbox.linux.launched import Launched, Lines, Told
from airlox.sandbox.linux.root import COVERED_IN_PROC, FROZEN_IN_PROC
from airlox.sandbox.linux.syscalls import ATTR_NODEV, ATTR_RDONLY

if TYPE_CHECKING:
    from airlox.errors import SandboxError
    from airlox.sandbox.base import Plan
    from airlox.sandbox.linux.blueprint import Blueprint, Step
    from airlox.sandbox.linux.launched import Ends
    from airlox.sandbox.linux.walls import Given, Walls

PROGRAM = "bwrap"
# In the order in which they import each other.
_MODULES = (
    "blueprint",
    "talk",
    "syscalls",
    "landlock",
    "stage",
    "doorway",
    "keeper",
    "inside",
)
_BIND_FD = "--bind-fd"
_NO_MORE_USER_NAMESPACES = "--disable-userns"
_OPTION = re.compile(r"^ +(--[a-z0-9-]+)", re.MULTILINE)
_HELP_WITHIN_S = 5.0
_WORDS_BYTES = 4096
_SEARCHED = "/usr/local/bin:/usr/bin:/bin"
_OF_ITS_OWN = frozenset(
    b"dev/" + name
    for name in b"null zero full random urandom tty fd stdin stdout stderr ptmx".split()
)
_CHILD = re.compile(rb'"child-pid": ([0-9]{1,10})\b')


class Bwrap:
    """See `builders.Builder`."""

    name = "bwrap"
    limits_files_of_tmpfs = False

    def check(self) -> None:
        """See `builders.Builder`."""
        _options(_program())

    def launch(self, walls: Walls, plan: Plan, given: Given) -> Launched:
        """See `builders.Builder`."""
        program = _program()
        with Lines() as lines:
            blueprint = walls.blueprint(_with_interpreter(plan), given, lines.theirs)
            orders = _Orders(lines, _options(program))
            told_fd = orders.file(b"".join(w + b"\0" for w in orders.arguments(blueprint)))
            blueprint.steps = ()  # carried out when our code runs
            words_fd, their_words_fd = os.pipe()
            lines.lend(their_words_fd)
            try:
                process = subprocess.Popen(
                    [program, "--args", str(told_fd), "--", interpreter(), *FLAGS, launched.BOOT],
                    stdin=lines.lend_file(launched.program(_MODULES) + encode(blueprint)),
                    stdout=subprocess.DEVNULL,
                    stderr=their_words_fd,
                    pass_fds=(
                        *(*lines.theirs, *given.inherited, given.stdout_fd, given.stderr_fd),
                        *orders.fds,
                    ),
                    cwd="/",
                    env={},
                    start_new_session=True,
                    **_identity(blueprint),
                )
                return _Launched(process, lines.kept(), words_fd, os.dup(orders.child_fd))
            except BaseException:
                os.close(words_fd)
                raise

    def keep_ready(self, starts: int) -> None:
        """Nothing: bubblewrap begins with the plan."""


class _Launched(Launched):
    """A bubblewrap. It names its child in a file, and complains on a pipe of its own."""

    def __init__(
        self, process: subprocess.Popen[bytes], ends: Ends, words_fd: int, child_fd: int
    ) -> None:
        super().__init__(process, ends)
        os.set_blocking(words_fd, False)
        self._fds |= {"words": words_fd, "child": child_fd}

    def told(self) -> tuple[list[Told], bool]:
        """Whoever speaks from inside runs, and the child was named before it could run."""
        lines, more = super().told()
        if lines and self.keeper_pid is None and (pid := self._child()) is not None:
            lines.insert(0, Told("pid", numbers=(pid,)))
        return lines, more

    def kill(self) -> None:
        """Also a child that waits for a bubblewrap that is not there any more."""
        if self.keeper_pid is None and (pid := self._child()) is not None:
            self.meet_keeper(pid)
        super().kill()

    def last_words(self) -> SandboxError:
        """What it complained of, in our words."""
        try:
            words = os.read(self._fds["words"], _WORDS_BYTES)
        except BlockingIOError:
            words = b""
        return explain(words.decode("utf-8", "replace").strip(), causes.look_at_host())

    def _child(self) -> int | None:
        fd = self._fds.get("child")
        return None if fd is None else parse_child(os.pread(fd, _WORDS_BYTES, 0))


def parse_child(told: bytes) -> int | None:
    """The pid of its child, once bubblewrap has named it."""
    found = _CHILD.search(told)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class _Complaint:
    """What bubblewrap says when a step fails, and what that step is called here."""

    pattern: re.Pattern[str]
    step: str


_COMPLAINTS = (
    _Complaint(re.compile(r"setting up [ug]id map|setgroups"), "uid_map"),
    _Complaint(re.compile(r"[Cc]reat(e|ing) new|max_user_namespaces"), "userns"),
    _Complaint(re.compile(r"loopback: "), "loopback"),
    _Complaint(re.compile(r"Can't mount proc "), "mount_proc"),
    _Complaint(re.compile(r"mount|bind|root|slave|Can't (mkdir|create|stat|make)"), "mounts"),
)
_UNKNOWN = re.compile(r"Unknown option (\S+)")
_SETUID = re.compile(r"in setuid mode")
_UNREACHABLE = re.compile(
    r"(?:Can't find source path|execvp|Can't (?:get type of source|access)) (.*)"
)
_NO_INTERPRETER = re.compile(r"Fatal Python error|error while loading shared libraries")


def explain(words: str, host: causes.Host) -> SandboxError:
    """The error for what bubblewrap said last. Pure."""
    words = words.removeprefix("bwrap: ")
    if found := _UNKNOWN.search(words):
        return causes.refusal("too_old_bwrap", found[1])
    if _SETUID.search(words):
        return causes.refusal("setuid_bwrap")
    if found := _UNREACHABLE.search(words):
        return causes.refusal("toolchain_unreadable", found[1])
    if _NO_INTERPRETER.search(words):
        return causes.refusal("toolchain_unreadable", interpreter())
    number = _number_of(words)
    for complaint in _COMPLAINTS:
        if complaint.pattern.search(words):
            return causes.explain(complaint.step, number, words, host)
    return causes.explain(PROGRAM, number, words or "bubblewrap ended without a word", host)


def _number_of(words: str) -> int:
    """The errno that its text ends with; a refused permission where it names none."""
    text = words.rpartition(": ")[2].partition("\n")[0]
    numbers = (number for number in errno.errorcode if os.strerror(number) == text)
    return next(numbers, errno.ENOSPC if "ENOSPC" in words else errno.EPERM)


@cache
def interpreter() -> str:
    """The real file: its folder is mounted, links that lead to it are not."""
    return os.path.realpath(launched.interpreter())


def _program() -> str:
    """Where bubblewrap is. Raises SandboxError: it is not (`no_bwrap`)."""
    found = shutil.which(PROGRAM, path=f"{os.environ.get('PATH', '')}:{_SEARCHED}")
    if found is None:
        raise causes.refusal("no_bwrap")
    return found


@cache
def _options(program: str) -> frozenset[str]:
    """The options that this bubblewrap says it has."""
    try:
        done = subprocess.run(
            [program, "--help"], capture_output=True, timeout=_HELP_WITHIN_S, env={}, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise causes.refusal("no_bwrap", str(error)) from error
    return frozenset(_OPTION.findall(done.stdout.decode("utf-8", "replace")))


def _with_interpreter(plan: Plan) -> Plan:
    folders = {os.path.realpath(path) for path in (sys.base_prefix, sys.base_exec_prefix)}
    mounts = tuple(Mount(Path(path), path) for path in sorted(folders))
    return replace(plan, toolchains=(*plan.toolchains, *mounts))


def _identity(blueprint: Blueprint) -> dict[str, Any]:
    if blueprint.uid < 0:
        return {}
    return {"user": blueprint.uid, "group": blueprint.gid, "extra_groups": []}


class _Orders:
    """Compiles a blueprint into arguments, and holds the descriptors they speak of."""

    def __init__(self, lines: Lines, options: frozenset[str]) -> None:
        self._lines = lines
        self._options = options
        self._writable_proc = False
        self.fds: list[int] = []
        # No pipe: without a reader bubblewrap would end, and its child wait for it for ever.
        self.child_fd = self.file(b"")

    def file(self, content: bytes) -> int:
        """A descriptor with this content, handed on to bubblewrap."""
        self.fds.append(self._lines.lend_file(content))
        return self.fds[-1]

    def arguments(self, blueprint: Blueprint) -> list[bytes]:
        """What bubblewrap is told: the steps of the blueprint as its options."""
        words: list[bytes] = [
            *(b"--unshare-" + kind for kind in (b"user", b"pid", b"ipc", b"uts", b"cgroup")),
            *(() if blueprint.host_network else (b"--unshare-net",)),
            *(b"--uid", b"1000", b"--gid", b"1000", b"--hostname", b"airlox", b"--as-pid-1"),
            *(b"--info-fd", b"%d" % self.child_fd, b"--dev", b"/dev"),
        ]
        if blueprint.userns_limit and _NO_MORE_USER_NAMESPACES in self._options:
            words.append(_NO_MORE_USER_NAMESPACES.encode())
        owner = blueprint.uid if blueprint.uid >= 0 else os.getuid()
        self._writable_proc = "/proc" in blueprint.writable
        for step in blueprint.steps:
            words += self._step(step, owner)
        return [*words, b"--remount-ro", b"/dev", b"--remount-ro", b"/"]

    def _step(self, step: Step, owner: int) -> list[bytes]:
        match step:
            case ("dir", bytes(path), int(mode)):
                return [b"--perms", b"%o" % mode, b"--dir", b"/" + path]
            case ("file", bytes(path), bytes(content)):
                return [b"--perms", b"644", b"--file", b"%d" % self.file(content), b"/" + path]
            case ("link", bytes(path), bytes(target)):
                return [] if path in _OF_ITS_OWN else [b"--symlink", target, b"/" + path]
            case ("tmpfs", bytes(path), int(size_bytes), int(_), int(mode)):
                size = [b"--size", b"%d" % size_bytes, b"--perms", b"%o" % mode]
                return [*size, b"--tmpfs", b"/" + path]
            case ("proc", bytes(path)):
                return _proc(b"/" + path, self._writable_proc)
            case ("pts", bytes(_)):
                return []  # its own /dev has it
            case ("bind", bytes(path), bytes(source), str(_), bool(own), int(attributes)):
                if path in _OF_ITS_OWN:
                    return []
                return self._own(source, path, owner) if own else _bind(source, path, attributes)
            case ("device", bytes(path), int(_), int(_)):
                raise causes.refusal("gpus_need_own", os.fsdecode(b"/" + path))
        raise ValueError(f"bubblewrap has nothing for the step {step[0]!r}")

    def _own(self, source: bytes, path: bytes, owner: int) -> list[bytes]:
        """A writable folder: from a descriptor that was checked, where that can be had."""
        name = os.fsdecode(source)
        try:
            fd = self._lines.lend(os.open(source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
        except OSError as error:
            host = causes.look_at_host()
            raise causes.explain("source", error.errno or 0, name, host) from error
        found = os.fstat(fd)
        if not stat.S_ISDIR(found.st_mode):
            raise causes.explain("source_kind", 0, name, causes.look_at_host())
        if found.st_uid != owner:
            raise causes.explain("source_owner", 0, name, causes.look_at_host())
        if _BIND_FD not in self._options:
            return [b"--bind", source, b"/" + path]
        self.fds.append(fd)
        return [_BIND_FD.encode(), b"%d" % fd, b"/" + path]


def _bind(source: bytes, path: bytes, attributes: int) -> list[bytes]:
    if not attributes & ATTR_NODEV:
        return [b"--dev-bind", source, b"/" + path]
    return [b"--ro-bind" if attributes & ATTR_RDONLY else b"--bind", source, b"/" + path]


def _proc(path: bytes, writable: bool) -> list[bytes]:
    """Read-only as a whole, or the parts that speak about the machine: by themselves they would be
    closed to a job only by their modes."""
    words = [b"--proc", path]
    if not writable:
        words += [b"--remount-ro", path]
    for name in FROZEN_IN_PROC if writable else ():
        if os.path.lexists(b"/proc/" + name):
            words += [b"--ro-bind", b"/proc/" + name, path + b"/" + name]
    for name in COVERED_IN_PROC:
        if os.path.lexists(b"/proc/" + name):
            words += [b"--dev-bind", b"/dev/null", path + b"/" + name]
    return words
