"""The listener's side of a keeper: starting a run, waiting for it, ending it. See `keeper.py`.

Also what became of a run whose listener died: a restart waits for its keeper, which holds a lock,
and then reads the record that the keeper left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple, Self

import msgspec

from airlox import safefs
from airlox.agents import keeper
from airlox.client.filelock import file_lock
from airlox.errors import AirloxError, StorageError

GRACE_S: Final = 5.0
"""Between TERM and KILL."""
LOCK_WAIT_S: Final = 10.0
"""For so long a keeper waits for another one to leave."""
_MARGIN_S: Final = 60.0
_READY_BYTES: Final = 4096
_SMALL_BYTES: Final = 64 * 1024


class Command(NamedTuple):
    """What is run for a batch. Secrets go into `env`, never into `argv`."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str


class Ended(msgspec.Struct, frozen=True):
    """How a run ended. `code` is an exit code or the number of a signal."""

    batch: str
    how: Literal["exited", "signalled", "timed_out", "not_started"]
    code: int | None = None
    detail: str | None = None

    @property
    def is_clean(self) -> bool:
        """Whether it ended by itself, with exit code 0."""
        return self.how == "exited" and self.code == 0

    @property
    def text(self) -> str:
        match self.how:
            case "exited":
                return f"ended with exit code {self.code}"
            case "signalled":
                return f"was ended by {_signal_name(self.code or 0)}"
            case "timed_out":
                return "was ended: it took longer than --run-timeout"
            case _:
                return f"could not be started: {self.detail}"


class Holder(msgspec.Struct, frozen=True):
    """Who holds the lock of a run, and after how many seconds it lets go at the latest."""

    pid: int
    most_s: float


class Places(NamedTuple):
    """Files of a participant's runs, of which there is one at a time."""

    lock: str
    record: str


class Run:
    """A run whose keeper is ready. Leaving the block ends whatever still runs."""

    def __init__(
        self, process: subprocess.Popen[bytes], batch_id: str, places: Places, most_s: float
    ) -> None:
        self._process = process
        self._batch_id = batch_id
        self._places = places
        self._most_s = most_s

    @classmethod
    def prepare(
        cls,
        command: Command,
        batch_id: str,
        places: Places,
        *,
        timeout_s: float,
        output: tuple[int, int],
    ) -> Self:
        """A keeper that waits for `go`; `output` are the descriptors the command writes to.

        Raises AirloxError when it cannot be had; then nothing was started.
        """
        stdout, stderr = (os.dup(fd) for fd in output)
        plan = {
            "argv": [*command.argv],
            "env": {**command.env},
            "cwd": command.cwd,
            "batch": batch_id,
            "timeout_s": timeout_s,
            "grace_s": GRACE_S,
            "lock_wait_s": LOCK_WAIT_S,
            "stdout": stdout,
            "stderr": stderr,
            **places._asdict(),
        }
        try:
            process = _spawn((stdout, stderr))
        finally:
            os.close(stdout)
            os.close(stderr)
        most_s = timeout_s + GRACE_S + keeper.KILL_LIMIT_S + _MARGIN_S
        run = cls(process, batch_id, places, most_s)
        try:
            run._say(json.dumps(plan).encode() + b"\n")
            run._await_ready()
        except BaseException:
            run.close()
            raise
        return run

    def go(self) -> None:
        """Let the keeper start the command. It goes on whatever happens to this process."""
        self._say(keeper.GO)

    def wait(self) -> Ended:
        """How the run ended. Raises AirloxError when its keeper left no record."""
        try:
            code = self._process.wait(self._most_s)
        except subprocess.TimeoutExpired:
            raise AirloxError("the keeper of the command did not end", code="keeper_lost") from None
        if code == keeper.UNRECORDED:
            raise StorageError(f"cannot write {self._places.record}: how the command ended is lost")
        ended = read_record(self._places, self._batch_id)
        if ended is None:
            raise AirloxError(
                "the keeper of the command was ended, perhaps with the command",
                code="keeper_lost",
                hint="start listen again: the batch is handed out again under its id",
            )
        return ended

    def close(self) -> None:
        """End the command with all it started, and its keeper. Safe to repeat."""
        if self._process.poll() is None:
            self._say(keeper.STOP)
            try:
                self._process.wait(GRACE_S + keeper.KILL_LIMIT_S + _MARGIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # what was not written goes nowhere
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await_ready(self) -> None:
        assert self._process.stdout is not None
        word, _, text = self._process.stdout.readline(_READY_BYTES).decode().strip().partition(" ")
        if word != "ready":
            raise AirloxError(
                f"the keeper of the command did not start: {text or 'it said nothing'}",
                code="not_started",
            )

    def _say(self, data: bytes) -> None:
        """Tell the keeper something. One that is gone is noticed by what it leaves."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()


def _spawn(fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """The keeper, in a session of its own, without settings of this program in its environment."""
    try:
        return subprocess.Popen(
            (sys.executable, "-P", "-m", keeper.__name__),
            env={k: v for k, v in os.environ.items() if not k.startswith("AIRLOX_")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=fds,
            start_new_session=True,
        )
    except OSError as error:
        raise AirloxError(
            f"cannot start {sys.executable}: {error.strerror}", code="not_started"
        ) from None


# -- what an earlier listener left --------------------------------------------------------------


def holder(places: Places) -> Holder | None:
    """Who keeps a run that still goes on, or None."""
    try:
        with file_lock(places.lock, "a run", timeout_s=0):
            return None
    except StorageError as error:
        if error.code != "locked":
            raise
    with suppress(StorageError, msgspec.MsgspecError):
        return msgspec.json.decode(safefs.read_bounded(places.lock, _SMALL_BYTES), type=Holder)
    return Holder(0, _MARGIN_S)  # it is just being written


def await_gone(places: Places, found: Holder) -> None:
    """Wait until that keeper is gone; who is interrupted ends it first. Raises StorageError."""
    try:
        _await_lock(places, found.most_s + _MARGIN_S)
    except (KeyboardInterrupt, SystemExit):
        if found.pid > 0:
            with suppress(ProcessLookupError):
                os.kill(found.pid, signal.SIGTERM)
            _await_lock(places, GRACE_S + keeper.KILL_LIMIT_S + _MARGIN_S)
        raise


def _await_lock(places: Places, timeout_s: float) -> None:
    with file_lock(places.lock, "the command of an earlier batch", timeout_s=timeout_s):
        pass


def read_record(places: Places, batch_id: str) -> Ended | None:
    """How the run for a batch ended, if its keeper could say. Raises StorageError."""
    try:
        data = safefs.read_bounded(places.record, _SMALL_BYTES, own=True)
        ended = msgspec.json.decode(data, type=Ended)
        return ended if ended.batch == batch_id else None
    except StorageError as error:
        if error.code == "not_found":
            return None
        raise
    except (msgspec.MsgspecError, UnicodeError):
        return None  # not by a keeper


def remove_record(places: Places) -> None:
    with suppress(FileNotFoundError):
        os.unlink(places.record)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
