"""Processes of a campaign: started with 256 open files in their place, killed, never left behind.

The campaign takes in orphans, so whatever a job or a runner leaves behind becomes its child and
is found by `leftovers`. Should the campaign itself be killed, its processes die with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

OPEN_FILES = 256
STOP_S = 30.0
SOURCE = Path(__file__).parents[3] / "src"

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def take_in_orphans() -> None:
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Process:
    """A program that may be started many times. Its output goes to `log`.

    `prefix` are words before the command (the way into a network namespace).
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str],
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.log = log
        self.pids: list[int] = []
        self.by_itself: list[int] = []
        """Exit codes of those that nobody killed."""
        self._prefix = prefix
        self._environ = {"PYTHONPATH": str(SOURCE), **environ}
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        limited = ["sh", "-c", f'ulimit -n {OPEN_FILES}; exec "$@"', "sh", *self.argv]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("AIRLOX_")}
        with self._open_log() as log:
            self._popen = subprocess.Popen(
                [*self._prefix, *limited],
                env=kept | self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.pids.append(self._popen.pid)

    @property
    def runs(self) -> bool:
        """Whether it runs; the exit code of one that ended by itself is noted once."""
        if self._popen is None:
            return False
        code = self._popen.poll()
        if code is not None:
            self.by_itself.append(code)
            self._popen = None
        return self._popen is not None

    def like(self, argv: Sequence[str]) -> Process:
        """Another program in the same place."""
        return Process(self.name, argv, log=self.log, prefix=self._prefix, environ=self._environ)

    def kill(self) -> None:
        """SIGKILL to this one process, as a power cut for what it held in memory."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait(STOP_S)
            self._popen = None

    def signal(self, number: int) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self._popen.send_signal(number)

    def stop(self) -> int:
        """SIGTERM, and the exit code; -9 when it did not end."""
        self.signal(signal.SIGTERM)
        return self.wait(STOP_S)

    def wait(self, timeout_s: float) -> int:
        """The exit code; -9 when it did not end in time."""
        if self._popen is None:
            return self.by_itself[-1] if self.by_itself else 0
        popen, self._popen = self._popen, None
        try:
            return popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait(STOP_S)
            return -9

    def _open_log(self) -> IO[bytes]:
        return self.log.open("ab")


def leftovers() -> list[str]:
    """Every living process below this one, as `pid command`."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if state != "Z":
            parents[int(entry.name)] = int(parent)
            names[int(entry.name)] = command[:200]
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return sorted(f"{pid} {names[pid]}" for pid in below - {os.getpid()})


def reap() -> None:
    """Take the exit codes of orphans that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
