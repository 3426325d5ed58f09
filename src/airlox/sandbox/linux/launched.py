"""The runner's side of a launcher: its pipes and code, what it tells, and its end.

What every builder shares. A launcher gets its own code and what it begins with through an anonymous
file on descriptor 0; the code comes along because the files of this package may lie where the job's
uid cannot look. No thread, no event loop here: the sandbox waits on `info_fd` and the pid
descriptors as it likes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import marshal
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox import proctable

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGES = ("airlox", "airlox.sandbox", "airlox.sandbox.linux")
BOOT = """
import marshal, sys
with open(0, "rb", closefd=False) as file:
    packages, modules = marshal.load(file)
    data = file.read()
for name in packages:
    sys.modules[name] = type(sys)(name)
for name, code in modules:
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
module.main(data)
"""
INTERPRETER_FLAGS = ("-I", "-S", "-B", "-c")
_INFO_BYTES = 64 * 1024
_NUMBERS = {"pid": 1, "ready": 0, "exit": 2}  # how many follow each word
_DEAD_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Told:
    """One line of the info pipe: its first word, the numbers that follow, the rest."""

    word: str
    step: str = ""
    numbers: tuple[int, ...] = ()
    text: str = ""


def parse_line(line: str) -> Told:
    """What a line says. Our own code wrote it, so a malformed one is a defect: ValueError."""
    word, _, rest = line.partition(" ")
    if word == "error":
        step, number, text = (*rest.split(" ", 2), "")[:3]
        return Told(word, step, (int(number),), text)
    numbers = tuple(int(part) for part in rest.split())
    if _NUMBERS.get(word) != len(numbers):
        raise ValueError(f"the launcher said {line!r}")
    return Told(word, numbers=numbers)


@cache
def program(modules: tuple[str, ...]) -> bytes:
    """The code of these modules, in the order in which they import each other."""
    found = []
    for name in modules:
        full = f"{_PACKAGES[-1]}.{name}"
        spec = importlib.util.find_spec(full)
        loader = spec.loader if spec else None
        found.append((full, loader.get_code(full)))  # type: ignore[union-attr]
    return marshal.dumps((_PACKAGES, tuple(found)))


def interpreter() -> str:
    """The interpreter itself: a virtual environment's link to it would cost a search."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


@dataclass(frozen=True, slots=True)
class Ends:
    """One side of the three pipes: lines from inside, the word to go, control of the keeper."""

    info_fd: int
    go_fd: int
    control_fd: int

    def __iter__(self) -> Iterator[int]:
        return iter((self.info_fd, self.go_fd, self.control_fd))


class Launched:
    """A launcher and what stands behind it. `close` when `gone`; a context manager."""

    def __init__(self, process: subprocess.Popen[bytes], ends: Ends) -> None:
        self._process = process
        self._fds = {"info": ends.info_fd, "go": ends.go_fd, "control": ends.control_fd}
        self._fds["launcher"] = os.pidfd_open(process.pid)
        self._buffer = b""
        self.keeper_pid: int | None = None

    @property
    def info_fd(self) -> int:
        return self._fds["info"]

    @property
    def pid_fds(self) -> tuple[int, ...]:
        """Descriptors that become readable when the process behind them ends."""
        return tuple(self._fds[name] for name in ("launcher", "keeper") if name in self._fds)

    def told(self) -> tuple[list[Told], bool]:
        """The lines that have come, without waiting, and whether more may come."""
        try:
            data = os.read(self._fds["info"], _INFO_BYTES)
        except BlockingIOError:
            return [], True
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [parse_line(line.decode("utf-8", "replace")) for line in lines], bool(data)

    def last_words(self) -> SandboxError:
        """Why it ended although it told of no failure."""
        return SandboxError("the launcher ended without a word")

    def meet_keeper(self, pid: int) -> None:
        """Hold on to pid 1 of the sandbox, if it is still the launcher's child."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return
        found = proctable.find(pid)
        if found is not None and found.parent == self._process.pid:
            self._fds["keeper"] = fd
            self.keeper_pid = pid
        else:
            os.close(fd)

    def go(self) -> None:
        """Let the job start."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._fds["go"], b"g")

    def terminate(self) -> None:
        """Send TERM to everything inside."""
        with contextlib.suppress(BrokenPipeError, KeyError):
            os.write(self._fds["control"], b"t")

    def kill(self) -> None:
        """End everything inside, by every way there is. May be called again."""
        for name in ("go", "control"):
            if name in self._fds:
                os.close(self._fds.pop(name))
        target = self._fds.get("keeper", self._fds.get("launcher"))
        if target is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(target, signal.SIGKILL)

    def close(self) -> None:
        """Kill, reap the launcher and close every descriptor. Does not wait for the kernel."""
        self.kill()
        if self.keeper_pid is None:
            self._end_unknown()
        while self._fds:
            os.close(self._fds.popitem()[1])
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)

    def _end_unknown(self) -> None:
        """Kill what a launcher left that ended before it named pid 1: its session has its pid."""
        poll = select.poll()
        poll.register(self._fds["launcher"], select.POLLIN)
        poll.poll(_DEAD_WITHIN_S * 1000)  # dead but not reaped, so that its pid means no other
        for process in proctable.all_processes():
            with contextlib.suppress(OSError):
                if process.pid != self._process.pid and os.getsid(process.pid) == self._process.pid:
                    os.kill(process.pid, signal.SIGKILL)

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Lines:
    """The pipes between us and a launcher while it is started; a context manager.

    The launcher's ends and all that is lent are closed at the end; ours unless they were `kept`.
    """

    def __init__(self) -> None:
        self._ours: list[int] = []
        self._theirs: list[int] = []
        try:
            info_fd = self._pipe(ours_reads=True)
            go_fd = self._pipe(ours_reads=False)
            control_fd = self._pipe(ours_reads=False)
            os.set_blocking(self._ours[0], False)
        except BaseException:
            self.__exit__()
            raise
        self.theirs = Ends(info_fd, go_fd, control_fd)

    def lend(self, fd: int) -> int:
        """A descriptor that is closed here when the launcher has it."""
        self._theirs.append(fd)
        return fd

    def lend_file(self, data: bytes) -> int:
        """An anonymous file with this content, at its beginning."""
        fd = self.lend(os.memfd_create("airlox", os.MFD_CLOEXEC))
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def kept(self) -> Ends:
        """Our ends; whoever asks closes them."""
        ends = Ends(*self._ours)
        self._ours.clear()
        return ends

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        for fds in (self._ours, self._theirs):
            while fds:
                os.close(fds.pop())

    def _pipe(self, *, ours_reads: bool) -> int:
        read, write = os.pipe()
        self._ours.append(read if ours_reads else write)
        return self.lend(write if ours_reads else read)
