"""A runner that starts again after failures: one life after another, each in a process of its own.

| a life that ends …                              | is followed by                                |
|-------------------------------------------------|-----------------------------------------------|
| because the session or a signal ended it        | the end, code 0                               |
| for a reason that stays (a wrong link, no walls)| the end, with that error                      |
| for one that may pass (the relay is away)       | another life, without bound                   |
| in any other way (a crash, the kernel's kill)   | another life, at most `MOST_FAILURES` in a row|

Rules
- Between lives the pause doubles from one second to a minute; a life of ten minutes makes it short
  again. The same reason is told once.
- TERM and INT are passed on to the life, which cancels its jobs and reports them; between lives
  they end the wait. A life that does not end in time is killed.
- A life whose supervisor is gone ends itself, as if by TERM.
- Lives are made by fork, so the supervisor has no thread and imports little.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from airlox.errors import AirloxError, SandboxError
from airlox.runner.notes import Note, Say

MOST_FAILURES: Final = 8
HEALTHY_LIFE_S: Final = 600.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
STOP_S: Final = 70.0
"""More than a runner takes to cancel its jobs and post their results."""
EXIT_SANDBOX: Final = 78
_KILLED: Final = "killed"
_WORD_BYTES: Final = 64 * 1024
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT)


class End(StrEnum):
    """What the end of a life means for the next."""

    DONE = "done"
    FINAL = "final"
    PASSING = "passing"
    FAILED = "failed"


class LifeEnd(msgspec.Struct, frozen=True):
    """How a life ended, as it says itself or as is seen from outside. `exit_code` is what the
    command should end with if this was the last one."""

    end: End
    text: str = ""
    code: str = "error"
    hint: str | None = None
    exit_code: int = 1


Life = Callable[[], LifeEnd]
"""Be a runner to the end; called in a process of its own. Raises nothing."""


@dataclass(slots=True)
class Pauses:
    """How long to wait before the next life, and whether there is one."""

    failures: int = 0
    tries: int = 0

    def after(self, ended: LifeEnd, lived_s: float) -> float | None:
        """Seconds until the next life; None when there have been too many failures."""
        if lived_s >= HEALTHY_LIFE_S:
            self.failures = self.tries = 0
        pause_s = min(FIRST_PAUSE_S * (1 << min(self.tries, 10)), LONGEST_PAUSE_S)
        self.tries += 1
        if ended.end is End.FAILED:
            self.failures += 1
        return None if self.failures >= MOST_FAILURES else pause_s


def serve(live: Life, say: Say) -> int:
    """Live until there is no next life; the exit code. Called from the main thread.

    Raises AirloxError with the reason of a life that ended for good.
    """
    pauses, said = Pauses(), ""
    with _signals() as wake:
        while True:
            started = time.monotonic()
            ended, stopped = _one_life(live, wake)
            if stopped:
                return 1 if ended.code == _KILLED else 0
            if ended.end is End.DONE:
                return 0
            if ended.end is End.FINAL:
                raise _error_of(ended)
            pause_s = pauses.after(ended, time.monotonic() - started)
            if pause_s is None:
                raise AirloxError(
                    f"gave up after {MOST_FAILURES} failures in a row: {ended.text}",
                    code="gave_up",
                    hint="`airlox runner doctor` looks at the machine",
                )
            if ended.text != said:
                said = ended.text
                text = f"{ended.text}; trying again until it works"
                say(Note("restarting", text, {"code": ended.code}))
            if wake.wait(pause_s):
                return 0


def _error_of(ended: LifeEnd) -> AirloxError:
    kind = SandboxError if ended.exit_code == EXIT_SANDBOX else AirloxError
    return kind(ended.text, code=ended.code, hint=ended.hint)


# ── signals ──────────────────────────────────────────────────────────────────────────────────


class _Wake:
    """Signals as a descriptor: `read` gives those that came."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def read(self) -> bytes:
        with suppress(BlockingIOError):
            return os.read(self.fd, 256)
        return b""

    def wait(self, seconds: float) -> bool:
        """Wait so long; True at once when a signal says to stop."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            select.select([self.fd], [], [], left_s)
            if any(number in self.read() for number in _PASSED_ON):
                return True
        return False


@contextmanager
def _signals() -> Iterator[_Wake]:
    """Have TERM, INT and the end of children wake us instead of ending us."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    numbers = (*_PASSED_ON, signal.SIGCHLD)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    woken_before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    try:
        yield _Wake(readable)
    finally:
        signal.set_wakeup_fd(woken_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(readable)
        os.close(writable)


# ── one life ─────────────────────────────────────────────────────────────────────────────────


def _one_life(live: Life, wake: _Wake) -> tuple[LifeEnd, bool]:
    """Start a life and see it through; how it ended, and whether it was told to."""
    word_in, word_out = os.pipe()
    leash_in, leash_out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(word_in)
        os.close(leash_out)
        _be(live, word_out, leash_in, wake)
    os.close(word_out)
    os.close(leash_in)
    try:
        status, stopped = _see_through(pid, wake)
        word = os.read(word_in, _WORD_BYTES)
    finally:
        os.close(word_in)
        os.close(leash_out)
    return _read_word(word, status), stopped


def _be(live: Life, word_out: int, leash_in: int, wake: _Wake) -> None:
    """The life's own process. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        os.close(wake.fd)
        for number in (*_PASSED_ON, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Ctrl-C is passed on to it once; from the terminal it would come a second time
        os.setpgid(0, 0)
        threading.Thread(target=_end_without, args=(leash_in,), daemon=True).start()
        ended = live()
        os.write(word_out, msgspec.json.encode(ended)[:_WORD_BYTES])
        os._exit(ended.exit_code if ended.end is not End.DONE else 0)
    finally:
        os._exit(1)


def _end_without(leash_in: int) -> None:
    """End this process as TERM does when the supervisor is gone."""
    os.read(leash_in, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _see_through(pid: int, wake: _Wake) -> tuple[int, bool]:
    """Wait for a life's end and pass signals on; its wait status, and whether it was told."""
    kill_at: float | None = None
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status, kill_at is not None
        left_s = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        select.select([wake.fd], [], [], left_s)
        for number in wake.read():
            if number in _PASSED_ON:
                kill_at = kill_at or time.monotonic() + STOP_S
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        if kill_at is not None and time.monotonic() >= kill_at:
            os.kill(pid, signal.SIGKILL)


def _read_word(word: bytes, status: int) -> LifeEnd:
    """What a life said of its end, or what can be seen of one that said nothing."""
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(word, type=LifeEnd)
    code = os.waitstatus_to_exitcode(status)
    how = f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
    killed = code == -signal.SIGKILL
    return LifeEnd(End.FAILED, f"the runner {how}", code=_KILLED if killed else "crashed")
