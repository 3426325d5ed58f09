"""The runner's side of a keeper: starting one, talking to it, ending it. See `keeper.py`.

The keeper gets its own code and the plan over the socket, so that neither its arguments nor its
environment tell the job anything, and so that it needs no file that its user may not read.
"""

from __future__ import annotations

import asyncio
import importlib.util
import marshal
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox import keeper
from airlox.sandbox.base import NICE

if TYPE_CHECKING:
    from airlox.sandbox.base import Plan
    from airlox.sandbox.pipes import OutputPipes

_START_S = 15.0
_KILL_S = 10.0
_SESSION_GONE_S = 2.0
_LOOK_S = 0.01
_DATA_PER_MEMORY = 4
_LENGTH_BYTES = 8
_PACKAGES = ("airlox", "airlox.sandbox")
_MODULES = ("proctable", "keeper")  # in the order in which they import each other
_BOOT = f"""
import marshal, os, sys
control_fd = int(sys.argv[1])
data = os.read(control_fd, 65536)
while len(data) < {_LENGTH_BYTES} + int.from_bytes(data[:{_LENGTH_BYTES}], "big"):
    got = os.read(control_fd, 65536)
    if not got: sys.exit(1)
    data += got
packages, modules, plan = marshal.loads(data[{_LENGTH_BYTES}:])
for name in packages:
    sys.modules[name] = type(sys)(name)
for name, code in modules:
    module = sys.modules[name] = type(sys)(name)
    exec(marshal.loads(code), module.__dict__)
module.main(control_fd, plan)
"""


class Keeper:
    """The runner's end of one keeper, and its `Group`. Closing it ends all of the job."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.pid = process.pid
        self.failed: str | None = None
        self.status: int | None = None
        self.main_peak_bytes = 0
        self.detail: str | None = None
        self.ended_at: float | None = None
        self.ended: asyncio.Future[None] = loop.create_future()
        self._made = asyncio.Event()
        self._empty = asyncio.Event()
        self._job_pid: int | None = None
        self._process = process
        self._writer = writer
        self._listener = asyncio.create_task(self._listen(reader))

    @classmethod
    async def start(
        cls,
        plan: Plan,
        pipes: OutputPipes,
        user: tuple[int, int] | None,
        *,
        memory_back_stop: bool = True,
    ) -> Keeper:
        """Start a keeper and have it make the job's process, which waits for `go`.

        `memory_back_stop` limits the data of each process, beside what the watcher sees.
        """
        stdio = (pipes.stdout_fd, pipes.stderr_fd)
        ours, theirs = socket.socketpair()
        with theirs:
            process = _spawn(theirs.fileno(), stdio)
        pipes.start()
        self = cls(process, *await asyncio.open_unix_connection(sock=ours))
        try:
            await self._say(_message_of(plan, stdio, user, memory_back_stop))
            async with asyncio.timeout(_START_S):
                await self._made.wait()
            if self._job_pid is None:
                raise SandboxError(self.failed or "the keeper ended at once", code="not_started")
        except TimeoutError:
            await self.close()
            raise SandboxError("the keeper did not answer", code="not_started") from None
        except BaseException:
            await self.close()
            raise
        return self

    async def go(self) -> None:
        """Let the job run its program."""
        await self._say(keeper.GO)

    async def _say(self, message: bytes) -> None:
        """Send one message. A keeper that is gone is noticed by the listener."""
        with suppress(ConnectionError):
            self._writer.write(message)
            await self._writer.drain()

    async def signal_all(self, number: int) -> None:
        """Have the keeper signal every process below it; KILL goes on until none is left."""
        await self._say(keeper.KILL if number == signal.SIGKILL else keeper.TERM)

    async def emptied(self) -> None:
        """Wait until the keeper has no process below it, or is gone itself."""
        await self._empty.wait()

    async def close(self) -> None:
        """End the line, upon which the keeper kills all and ends; end it if it does not."""
        with suppress(OSError):  # it is gone already
            self._writer.write_eof()
        await asyncio.wait((self._listener,), timeout=_KILL_S)
        self._process.kill()
        self._process.wait()
        self._listener.cancel()
        await asyncio.gather(self._listener, return_exceptions=True)
        self._writer.close()
        if self.status is None and self._job_pid is not None:
            await _kill_session(self._job_pid)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                word, _, rest = line.decode("utf-8", "replace").rstrip("\n").partition(" ")
                self._hear(word, rest)
        except (ConnectionError, ValueError):  # a job can write to its keeper's memory
            pass
        finally:
            self._line_ended()

    def _hear(self, word: str, rest: str) -> None:
        if word == "made":
            self._job_pid = int(rest)
            self._made.set()
        elif word == "failed":
            self.failed = rest
            self._main_ended()
        elif word == "missing":
            self.detail = rest
        elif word == "status":
            status, peak_bytes = rest.split(" ")
            self.status, self.main_peak_bytes = int(status), int(peak_bytes)
            self._main_ended()
        elif word == "empty":
            self._empty.set()

    def _main_ended(self) -> None:
        if not self.ended.done():
            self.ended_at = time.monotonic()
            self.ended.set_result(None)

    def _line_ended(self) -> None:
        self._main_ended()
        self._made.set()
        self._empty.set()


async def _kill_session(pid: int) -> None:
    """End what a job whose keeper was killed has in its first session; the rest cannot be found."""
    give_up_at = time.monotonic() + _SESSION_GONE_S
    with suppress(OSError):  # none of them is left
        while time.monotonic() < give_up_at:
            os.killpg(pid, signal.SIGKILL)
            await asyncio.sleep(_LOOK_S)


def _spawn(control_fd: int, stdio: tuple[int, int]) -> subprocess.Popen[bytes]:
    """Start the keeper. Its arguments and environment tell nothing: a job can read both."""
    try:
        return subprocess.Popen(
            (_interpreter(), "-I", "-S", "-B", "-c", _BOOT, str(control_fd)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            pass_fds=(control_fd, *stdio),
            start_new_session=True,
        )
    except OSError as e:
        raise SandboxError(f"cannot start a keeper: {e.strerror}", code="not_started") from None


def _message_of(
    plan: Plan, stdio: tuple[int, int], user: tuple[int, int] | None, memory_back_stop: bool
) -> bytes:
    limits = plan.limits
    rlimits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
    }
    if memory_back_stop and limits.memory_bytes is not None:
        rlimits["RLIMIT_DATA"] = _DATA_PER_MEMORY * limits.memory_bytes
    fields = {
        "argv": plan.argv,
        "env": plan.env,
        "cwd": plan.cwd,
        "rlimits": rlimits,
        "processes": limits.processes,
        "nice": NICE,
        "user": user,
        "stdio": stdio,
    }
    data = marshal.dumps((_PACKAGES, _modules(), fields))
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


@cache
def _modules() -> tuple[tuple[str, bytes], ...]:
    """Names and code of what a keeper consists of."""
    return tuple((name, _code_of(name)) for name in (f"airlox.sandbox.{m}" for m in _MODULES))


def _code_of(name: str) -> bytes:
    spec = importlib.util.find_spec(name)
    loader = spec.loader if spec else None
    return marshal.dumps(loader.get_code(name))  # type: ignore[union-attr]


def _interpreter() -> str:
    """The interpreter itself: a virtual environment's link to it would cost a search."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)
