"""Pid 1 of a sandbox: starts the stage, has the root built, reaps, ends everything.

It runs under the job's uid but cannot be traced, stopped or killed from inside: it is pid 1 and not
dumpable. When the main process ends it says how and ends itself, and the kernel kills whatever is
left. It also ends when the control pipe closes, that is, when the runner is gone; a byte on that
pipe means "send TERM to all".

The stage is forked before the root is built, because entering a cgroup takes the kernel longer than
building the root takes us. How the root is built is the builder's business.
"""

from __future__ import annotations

import os
import resource
import select

from airlox.sandbox.linux import doorway, stage, syscalls
from airlox.sandbox.linux.blueprint import Blueprint
from airlox.sandbox.linux.talk import failures_told, run_step, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SIGKILL = 9
_SIGTERM = 15
_NAME = b"airlox-sandbox"


def hide_command_line() -> None:
    """A job can read the command line of pid 1; it need not learn where our interpreter lies."""
    fd = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
    fields = os.read(fd, 4096).rpartition(b")")[2].split()
    os.close(fd)
    start, end = int(fields[45]), int(fields[46])
    syscalls.overwrite(start, _NAME.ljust(end - start, b"\0"))
    syscalls.set_process_name(_NAME)


def main(blueprint: Blueprint, build_root: Callable[[], None]) -> None:
    """Be pid 1. Never returns."""
    with failures_told(blueprint.info_fd):
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, _SIGKILL)
        run_step("door", doorway.open_door, blueprint.door_fd)
        signals = syscalls.block_signal(syscalls.SIGCHLD)
        built_fd, tell_built_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(tell_built_fd)
            stage.main(blueprint, built_fd)
        os.close(built_fd)
        build_root()
        stage.give_up_power(blueprint)
        os.write(tell_built_fd, b"b")
        os.close(tell_built_fd)
        _let_go_of_output(blueprint.go_fd)
        _keep(blueprint, signals, pid)


def _let_go_of_output(go_fd: int) -> None:
    """Whoever reads the job's output must see its end although we live on."""
    os.close(go_fd)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def _keep(blueprint: Blueprint, signals: int, main_pid: int) -> None:
    poll = select.poll()
    poll.register(signals, select.POLLIN)
    poll.register(blueprint.control_fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == blueprint.control_fd:
                _obey(fd)
            else:
                os.read(signals, 128)
                _reap(blueprint, main_pid)


def _obey(control_fd: int) -> None:
    if not os.read(control_fd, 1):
        os._exit(1)
    try:
        os.kill(-1, _SIGTERM)
    except ProcessLookupError:
        pass


def _reap(blueprint: Blueprint, main_pid: int) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == main_pid:
            largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            tell(blueprint.info_fd, f"exit {status} {largest}")
            os._exit(0)
