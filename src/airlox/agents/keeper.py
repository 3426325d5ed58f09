"""The keeper of one run: the short program that starts a command for a batch, and ends it.

A process and a session of its own, so that neither the terminal's Ctrl-C nor the sudden death of
`airlox listen` ends a run that has begun: the keeper sees it through, and leaves a record of how it
ended for whoever listens next. It adopts every orphan of the command (Linux: as a subreaper), so
that what double-forked away is found below it and ended with the rest.

    to the keeper     a line: the plan, as JSON; then letters: Go, Stop
    from the keeper   a line: `ready`, it holds the lock and waits for Go; or `failed TEXT`
    the lock          a file it holds locked for as long as it lives, with its pid in it and the
                      seconds after which it must be gone
    the record        a file, written when the run is over by itself or by its time-out

End of file before Go: nothing is started. After it: whoever listened is gone, and the run goes on.
Stop, and SIGTERM: everything is ended and no record is written.

The plan holds what the command's environment holds, an invite among it; it is told over a pipe, and
never shows in arguments or in the environment of the keeper.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Final

from airlox import safefs
from airlox.errors import StorageError
from airlox.sandbox import keeper as orphans
from airlox.sandbox.linux import syscalls

GO: Final = b"g"
STOP: Final = b"s"
PLAN_BYTES: Final = 8 * 1024 * 1024
"""More than a system gives a program for its arguments and environment."""

RECORDED: Final = 0
STOPPED: Final = 3
UNRECORDED: Final = 4
"""Exit codes: the record is there; the run was stopped, or never began; it could not be written."""

EXITED: Final = "exited"
SIGNALLED: Final = "signalled"
TIMED_OUT: Final = "timed_out"
NOT_STARTED: Final = "not_started"

ADOPTS: Final = sys.platform == "linux"
"""Whether what a command leaves behind becomes a child of its keeper."""
_KILL_EVERY_S: Final = 0.02
_LOCK_EVERY_S: Final = 0.05
KILL_LIMIT_S: Final = 30.0
"""For so long what will not end is killed."""
_MAX_WAIT_S: Final = 3600.0


def main() -> int:
    """Serve one run on standard input and output; the exit code."""
    line = _Line(sys.stdin.fileno())
    plan = json.loads(line.read_plan())
    try:
        lock_fd = _hold(plan["lock"], plan["lock_wait_s"])
        _sign(lock_fd, plan["timeout_s"] + plan["grace_s"] + KILL_LIMIT_S)
    except OSError as error:
        _tell(f"failed cannot lock {plan['lock']}: {error.strerror}")
        return STOPPED
    _tell("ready")
    if line.read_letter() != GO:
        return STOPPED
    orphans.adopt_orphans()
    run = _Run(plan, line, orphans.wake_on_children())
    run.serve()
    return run.record()


class _Line:
    """What the one who listens says. After its end nothing more is said."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.is_open = True

    def fileno(self) -> int:
        return self._fd

    def read_plan(self) -> bytes:
        data = b""
        while not data.endswith(b"\n"):
            part = os.read(self._fd, 65536)
            data += part
            if not part or len(data) > PLAN_BYTES:
                raise SystemExit(STOPPED)
        return data

    def read_letter(self) -> bytes:
        """The next letter; empty at the end."""
        letter = os.read(self._fd, 1)
        self.is_open = letter != b""
        return letter


class _Run:
    """One command, from its start to the end of all it started."""

    def __init__(self, plan: dict[str, Any], line: _Line, wake_fd: int) -> None:
        self._plan = plan
        self._line = line
        self._wake_fd = wake_fd
        self._ended: dict[str, Any] | None = None
        """What the record will say, once it is known."""
        self._stopped = False
        self._term_until: float | None = None
        self._kill_until: float | None = None
        self._pid = 0
        self._main_is_gone = False
        signal.signal(signal.SIGTERM, self._on_term)

    def serve(self) -> None:
        """Return when nothing of the run is left, or when killing has taken too long."""
        try:
            self._start()
        except (OSError, ValueError) as error:
            text = error.strerror if isinstance(error, OSError) else None
            self._ended = {"how": NOT_STARTED, "detail": text or str(error)}
            return
        time_out = time.monotonic() + self._plan["timeout_s"]
        while self._reap():
            now = time.monotonic()
            if self._term_until is None and now >= time_out:
                self._ended = {"how": TIMED_OUT}
                self._end()
            if self._term_until is not None and now >= self._term_until:
                self._kill_until = self._kill_until or now + KILL_LIMIT_S
                if now >= self._kill_until:
                    return
                self._signal_all(signal.SIGKILL)
            self._wait(time_out)
        if not ADOPTS:
            self._signal_all(signal.SIGKILL)

    def record(self) -> int:
        """Leave the record, unless the run was stopped; the keeper's exit code."""
        if self._ended is None:
            return STOPPED
        self._ended["batch"] = self._plan["batch"]
        try:
            safefs.write_private(self._plan["record"], json.dumps(self._ended).encode())
        except StorageError:
            return UNRECORDED
        return RECORDED

    def _start(self) -> None:
        plan = self._plan
        command = subprocess.Popen(
            plan["argv"],
            cwd=plan["cwd"],
            env=plan["env"],
            stdin=subprocess.DEVNULL,
            stdout=plan["stdout"],
            stderr=plan["stderr"],
            start_new_session=True,
            preexec_fn=_die_with_parent,  # the keeper has one thread
        )
        command.returncode = 0  # it is waited for below, with all others
        self._pid = command.pid
        for name in ("stdout", "stderr"):
            os.close(plan[name])

    def _reap(self) -> bool:
        """Take all ended children; whether there may be more to come."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self._main_ended(os.waitstatus_to_exitcode(status))

    def _main_ended(self, code: int) -> None:
        """A run is over with its first process: what that leaves behind is ended."""
        if self._ended is None and not self._stopped:
            self._ended = {"how": SIGNALLED if code < 0 else EXITED, "code": abs(code)}
        self._main_is_gone = True
        self._end()

    def _wait(self, time_out: float) -> None:
        sources = [self._wake_fd]
        if self._line.is_open:
            sources.append(self._line.fileno())
        ready, _, _ = select.select(sources, (), (), self._wait_s(time_out))
        if self._wake_fd in ready:
            os.read(self._wake_fd, 4096)
        if self._line.fileno() in ready and self._line.read_letter() == STOP:
            self._stop()

    def _wait_s(self, time_out: float) -> float:
        if self._kill_until is not None:
            return _KILL_EVERY_S
        until = time_out if self._term_until is None else self._term_until
        return min(_MAX_WAIT_S, max(0.0, until - time.monotonic()))

    def _on_term(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        """Whoever listens ends. A run that was over before stays what it was."""
        self._stopped = True
        self._end()

    def _end(self) -> None:
        if self._term_until is None:
            self._term_until = time.monotonic() + self._plan["grace_s"]
            self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: int) -> None:
        if self._pid and not (ADOPTS and self._main_is_gone):  # then its number may be another's
            with suppress(OSError):  # its group may have ended, or be another user's by sudo
                os.killpg(self._pid, number)
        orphans.signal_below(number)


def _hold(path: str, wait_s: float) -> int:
    """Lock the file. Another keeper, whose listener died before it said Go, may just be leaving:
    it is waited for. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(_LOCK_EVERY_S)


def _sign(fd: int, most_s: float) -> None:
    """Write into the lock who holds it, and for how long at most. Raises OSError."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps({"pid": os.getpid(), "most_s": most_s}).encode(), 0)


def _die_with_parent() -> None:
    """A command whose keeper is killed ends too, where the system can do that."""
    if sys.platform == "linux":
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)


def _tell(line: str) -> None:
    flat = line.replace("\n", " ").encode("utf-8", "replace")
    os.write(sys.stdout.fileno(), flat + b"\n")


if __name__ == "__main__":
    sys.exit(main())
