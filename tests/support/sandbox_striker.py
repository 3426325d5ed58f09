"""Strikes at a sandbox while it starts, again and again, and says what was left each time.

Like `sandbox_driver.py` a program of its own, with the same requests, and `strikes`: what is struck
(`cancel`, `launcher` or `runner`) and when, as a share of the time an undisturbed start takes. Each
runner is a fork of this process, which adopts every orphan, so that nothing can hide from it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from airlox.errors import SandboxError
from airlox.sandbox import proctable
from airlox.sandbox.base import Limits, Plan, Sandbox
from airlox.sandbox.linux import syscalls
from support import sandbox_driver

_PR_SET_CHILD_SUBREAPER = 36
_GONE_WITHIN_S = 60.0
_END_ANYWAY_S = 1.0


def main() -> None:
    request = json.loads(sys.stdin.read())
    syscalls.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    folder = Path(tempfile.mkdtemp(prefix="airlox-case-"))
    folder.chmod(0o711)
    try:
        span_s = float(_undisturbed(request, folder / "first"))
        left = [
            _strike(request, folder / str(number), what, share * span_s)
            for number, (what, share) in enumerate(request["strikes"])
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    json.dump({"span_s": span_s, "left": left}, sys.stdout)


def _undisturbed(request: dict[str, Any], folder: Path) -> str:
    """How long a start takes until the job may go."""
    told_fd = _fork(request, folder, lambda cancel: None, told_when_started=True)[1]
    with open(told_fd) as told:
        _, span_s = told.read().split()
    _left()
    return span_s


def _strike(request: dict[str, Any], folder: Path, what: str, after_s: float) -> list[str]:
    """One start that is struck; what is left of it, which is nothing where all is well."""

    def prepare(cancel: Callable[[], None]) -> None:
        if what == "cancel":
            threading.Timer(after_s, cancel).start()
        elif what == "launcher":
            threading.Timer(after_s, _kill_children).start()
        if what != "runner":  # one that was not hit
            threading.Timer(after_s + _END_ANYWAY_S, cancel).start()

    pid, told_fd = _fork(request, folder, prepare)
    with open(told_fd) as told:
        assert told.readline() == "ready\n"
        if what == "runner":
            time.sleep(after_s)
            os.kill(pid, signal.SIGKILL)
        return _left()


def _fork(
    request: dict[str, Any],
    folder: Path,
    prepare: Callable[[Callable[[], None]], None],
    *,
    told_when_started: bool = False,
) -> tuple[int, int]:
    """A runner with one job; its pid, and where it says that it is ready to start it."""
    told_fd, tell_fd = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell_fd)
        return pid, told_fd
    try:
        folder.mkdir(0o711)
        folder.chmod(0o711)
        asyncio.run(_start(request, folder, prepare, tell_fd, told_when_started))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


async def _start(
    request: dict[str, Any],
    folder: Path,
    prepare: Callable[[Callable[[], None]], None],
    tell_fd: int,
    told_when_started: bool,
) -> None:
    sandbox = sandbox_driver.open_asked(request, folder)
    sandbox.prepare()
    sandbox.keep_ready(2)  # one that is struck, and one that is never used
    plan = _plan(sandbox, folder)
    cancel = asyncio.Event()
    loop = asyncio.get_running_loop()
    os.write(tell_fd, b"ready\n")

    def cancel_it() -> None:
        loop.call_soon_threadsafe(cancel.set)

    prepare(cancel_it)
    began = time.monotonic()

    def started(_: int) -> None:
        if told_when_started:
            os.write(tell_fd, f"{time.monotonic() - began}\n".encode())
            cancel.set()

    with suppress(SandboxError):  # a launcher was struck before it was ready
        await sandbox.run(plan, on_output=lambda *_: None, cancel=cancel, on_started=started)


def _plan(sandbox: Sandbox, folder: Path) -> Plan:
    work, out, home = (sandbox_driver.place(sandbox, folder / n) for n in ("work", "out", "home"))
    limits = Limits(timeout_s=60.0, memory_bytes=512 << 20, grace_s=0.0)
    layout = sandbox.layout(work, out, home)
    return Plan(("/bin/sleep", "600"), (), layout.work, work, out, home, limits)


def _kill_children() -> None:
    for process in proctable.all_processes():
        if process.parent == os.getpid():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _left() -> list[str]:
    """Wait for the last process below this one; those that do not go."""
    until = time.monotonic() + _GONE_WITHIN_S
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = proctable.below(os.getpid(), proctable.all_processes())
        if not left:
            return []
        if time.monotonic() > until:
            return [_name(process.pid) for process in left]
        time.sleep(0.01)


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text()
    return str(pid)


if __name__ == "__main__":
    main()
