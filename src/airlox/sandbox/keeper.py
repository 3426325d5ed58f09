"""The keeper of a job of the `process` sandbox: the short program that starts it and ends it.

Runs in a fresh interpreter and a session of its own (`keeping.py` starts it). It adopts every
orphan of the job (Linux: as a subreaper), so that what double-forked away can still be found below
it. The runner speaks to it over a socket; end of file means the runner is gone, and then everything
is killed. Imports little, for its start is part of the start of every job.

    to the keeper     single letters: Go, Term, Kill
    from the keeper   lines: `made PID`, waits for Go; `failed TEXT`, nothing of the plan's program
                      has run; `missing TEXT`, there was no such program (its status will be 127
                      for not found, 126 for not executable); `status N PEAK_BYTES`, the main
                      process ended; `empty`, nothing is left

Nothing here confines the job. It can kill its keeper, which the runner then notices.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time

from airlox.sandbox import proctable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

_PR_SET_CHILD_SUBREAPER = 36
_KILL_EVERY_S = 0.005
_KILL_LIMIT_S = 30.0
_BEFORE_EXEC = b"b"
_AT_EXEC = b"e"
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
GO, TERM, KILL = b"g", b"t", b"k"
_LINE_BYTES = 4096
_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def main(control_fd: int, plan: dict[str, Any]) -> None:
    """Serve one job on the socket `control_fd`: argv, env, cwd, rlimits, processes, user, stdio."""
    os.set_inheritable(control_fd, False)
    _become(plan["user"])
    adopt_orphans()
    wake_fd = wake_on_children()
    try:
        job = _Job(plan)
    except OSError as e:
        _tell(control_fd, f"failed cannot fork: {e.strerror}")
        return
    _tell(control_fd, f"made {job.pid}")
    _Keeper(control_fd, wake_fd, job).serve()


class _Job:
    """The job's first process: made at once, but it waits for `start` before its program."""

    def __init__(self, plan: dict[str, Any]) -> None:
        gate_read, self._gate = os.pipe()
        self._failure, failure_write = os.pipe()
        self.no_program: str | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._gate)
            _run_job(plan, gate_read, failure_write)
        os.close(gate_read)
        os.close(failure_write)
        for fd in plan["stdio"]:
            os.close(fd)

    def start(self) -> str | None:
        """Let it run its program; the reason if it did not get so far as to try."""
        os.write(self._gate, b"g")
        os.close(self._gate)
        with open(self._failure, "rb") as failure:  # closed by exec, or holds a reason
            step, text = failure.read(1), failure.read().decode("utf-8", "replace")
        if step == _AT_EXEC:
            self.no_program = text
        return text if step == _BEFORE_EXEC else None


class _Keeper:
    """The loop: messages of the runner, ended children, and the hunt for what will not end."""

    def __init__(self, control_fd: int, wake_fd: int, job: _Job) -> None:
        self._control_fd = control_fd
        self._wake_fd = wake_fd
        self._job = job
        self._runner_left = False
        self._killing_until: float | None = None

    def serve(self) -> None:
        """Return when no process of the job is left, or when killing has taken too long."""
        while self._reap():
            if self._killing_until is not None:
                if time.monotonic() > self._killing_until:
                    return
                signal_below(signal.SIGKILL)
            self._wait()
        _tell(self._control_fd, "empty")

    def _wait(self) -> None:
        sources = [self._wake_fd]
        if not self._runner_left:
            sources.append(self._control_fd)
        timeout_s = None if self._killing_until is None else _KILL_EVERY_S
        ready, _, _ = select.select(sources, (), (), timeout_s)
        if self._wake_fd in ready:
            os.read(self._wake_fd, 4096)
        if self._control_fd in ready:
            self._listen()

    def _listen(self) -> None:
        try:
            letter = os.read(self._control_fd, 1)
        except OSError:
            letter = b""
        if letter == GO:
            failed = self._job.start()
            if failed is not None:
                _tell(self._control_fd, f"failed {failed}")
        elif letter == TERM:
            signal_below(signal.SIGTERM)
        else:
            self._runner_left = letter == b""
            self._kill()

    def _kill(self) -> None:
        if self._killing_until is None:
            self._killing_until = time.monotonic() + _KILL_LIMIT_S

    def _reap(self) -> bool:
        """Take all ended children; whether there may be more to come."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._job.pid:
                if self._job.no_program is not None:
                    _tell(self._control_fd, f"missing {self._job.no_program}")
                _tell(self._control_fd, f"status {status} {usage.ru_maxrss * _RSS_UNIT_BYTES}")


def _run_job(plan: dict[str, Any], gate: int, failure: int) -> NoReturn:
    """In the child: become the job. The last code of ours that runs in it."""
    program = plan["argv"][0]
    try:
        os.setsid()
        if os.read(gate, 1) != b"g":
            os._exit(0)
        _reset_signals()
        os.umask(0o022)
        _limit(plan["rlimits"], plan["processes"])
        os.nice(plan["nice"])
        os.chdir(plan["cwd"])
        _set_stdio(plan["stdio"], failure)
    except BaseException as e:
        _report(failure, _BEFORE_EXEC, f"cannot start {program}: {e}")
        os._exit(_NOT_EXECUTABLE)
    try:
        os.execvpe(program, plan["argv"], dict(plan["env"]))
    except FileNotFoundError:
        _report(failure, _AT_EXEC, f"{program}: not found")
        os._exit(_NOT_FOUND)
    except (OSError, ValueError) as e:
        _report(failure, _AT_EXEC, f"{program}: {e.strerror if isinstance(e, OSError) else e}")
    os._exit(_NOT_EXECUTABLE)


def _report(failure: int, step: bytes, text: str) -> None:
    os.write(failure, step + text.encode("utf-8", "replace"))


def _set_stdio(stdio: list[int], failure: int) -> None:
    """Input from nothing, output to the runner's pipes, no other descriptor but `failure`."""
    null = os.open(os.devnull, os.O_RDONLY)
    for number, fd in enumerate((null, *stdio)):
        os.dup2(fd, number)
    # What the runner handed in is inheritable; everything above the failure pipe goes, too.
    top = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(3, failure)
    os.closerange(failure + 1, top)


def _reset_signals() -> None:
    """Undo what Python and its starters changed: a job expects the defaults."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):  # reserved by the C library
            continue
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _limit(rlimits: dict[str, int], processes: int) -> None:
    for name, value in rlimits.items():
        _set_limit(getattr(resource, name), value)
    taken = _threads_of_this_user()
    if taken is not None:
        _set_limit(resource.RLIMIT_NPROC, taken + processes)


def _set_limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def _threads_of_this_user() -> int | None:
    """What already counts against the limit of processes, which is one for the whole user."""
    uid, total = os.getuid(), 0
    for process in proctable.all_processes():
        try:
            if os.stat(f"/proc/{process.pid}").st_uid == uid:
                total += process.threads
        except OSError:
            continue
    return total or None


def _become(user: list[int] | None) -> None:
    """Put on another uid and gid for good; keeper and job then run as the same user."""
    if user is None:
        return
    uid, gid = user
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def adopt_orphans() -> None:
    """Become the parent of whatever loses its own below this process, where the system can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wake_on_children() -> int:
    """A descriptor that becomes readable when a child ends."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    return read_fd


def signal_below(number: int) -> None:
    """Send a signal to every process below this one."""
    for process in _job_processes():
        try:
            os.kill(process.pid, number)
        except OSError:  # ended meanwhile, or it became another user by sudo
            continue


def _job_processes() -> Iterable[proctable.Process]:
    return proctable.below(os.getpid(), proctable.all_processes())


def _tell(control_fd: int, line: str) -> None:
    flat = line.replace("\n", " ").encode("utf-8", "replace")[:_LINE_BYTES]
    try:
        os.write(control_fd, flat + b"\n")
    except OSError:  # the runner is gone; its end of file arrives as well
        return
