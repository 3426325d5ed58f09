"""The runner's side of a launcher: starting it, reading what it tells, ending it.

`start` hands a fresh interpreter its own code and its blueprint through an anonymous file on
descriptor 0, and the job's output pipes as 1 and 2. The code comes along because the files of this
package may lie where the job's uid cannot look. No thread, no event loop here: the sandbox waits
on `info_fd` and the pid descriptors as it likes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import marshal
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from airlox.sandbox.linux import blueprint as blueprints

_PACKAGES = ("airlox", "airlox.sandbox", "airlox.sandbox.linux")
# In the order in which they import each other.
_MODULES = ("blueprint", "talk", "syscalls", "landlock", "stage", "keeper", "own")
_BOOT = """
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
_INFO_BYTES = 64 * 1024
_NUMBERS = {"pid": 1, "ready": 0, "exit": 2}  # how many follow each word


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
def _program() -> bytes:
    modules = []
    for name in _MODULES:
        full = f"{_PACKAGES[-1]}.{name}"
        spec = importlib.util.find_spec(full)
        loader = spec.loader if spec else None
        modules.append((full, loader.get_code(full)))  # type: ignore[union-attr]
    return marshal.dumps((_PACKAGES, tuple(modules)))


def _interpreter() -> str:
    """The interpreter itself: a virtual environment's link to it would cost a search."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


class Launched:
    """A launcher and what stands behind it. `close` when `gone`; a context manager."""

    def __init__(
        self, process: subprocess.Popen[bytes], info_fd: int, go_fd: int, control_fd: int
    ) -> None:
        self._process = process
        self._fds = {"info": info_fd, "go": go_fd, "control": control_fd}
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

    def meet_keeper(self, pid: int) -> None:
        """Hold on to pid 1 of the sandbox, if it is still the launcher's child."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return
        if _parent(pid) == self._process.pid:
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
        while self._fds:
            os.close(self._fds.popitem()[1])
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])


def start(
    compile_blueprint: Callable[[dict[str, object]], blueprints.Blueprint],
    *,
    stdout_fd: int,
    stderr_fd: int,
    cgroup_fds: Sequence[int] = (),
) -> Launched:
    """Start a launcher. `compile_blueprint` gets the fields only known here.

    Raises:
        OSError: no process or descriptor can be had.
    """
    ours: list[int] = []
    theirs: list[int] = []
    try:
        info = _pipe(ours, theirs, ours_reads=True)
        go = _pipe(ours, theirs, ours_reads=False)
        control = _pipe(ours, theirs, ours_reads=False)
        os.set_blocking(ours[0], False)
        fields = {
            "info_fd": info,
            "go_fd": go,
            "control_fd": control,
            "cgroup_fds": tuple(cgroup_fds),
            "parent_pid": os.getpid(),
        }
        program = _memory_file(_program() + blueprints.encode(compile_blueprint(fields)))
        theirs.append(program)
        process = subprocess.Popen(
            [_interpreter(), "-I", "-S", "-B", "-c", _BOOT],
            stdin=program,
            stdout=stdout_fd,
            stderr=stderr_fd,
            pass_fds=(info, go, control, *cgroup_fds),
            cwd="/",
            env={},
            start_new_session=True,
        )
    except BaseException:
        for fd in ours:
            os.close(fd)
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    return Launched(process, *ours)


def _pipe(ours: list[int], theirs: list[int], *, ours_reads: bool) -> int:
    read, write = os.pipe()
    ours.append(read if ours_reads else write)
    theirs.append(write if ours_reads else read)
    return theirs[-1]


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("airlox", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
