"""A job's container under way: made, started, attached to, ended, removed.

`RunningContainer` is the `Group` that `supervise.end_all` ends. The attached command of the engine
carries the output and ends when the container does; all else is asked of the engine in threads.

Rules
- A container is made before it is started, so that an engine that refuses is told from a job.
- What was made is removed, also when the wait for its making was broken off.
- A signal goes to every process where they can be reached from here, whatever the engine does;
  else by way of the engine to the first one, which passes TERM on to the job's main process and
  takes all others with it when it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox import proctable
from airlox.sandbox.container import causes

if TYPE_CHECKING:
    from airlox.sandbox.container.engine import Engine
    from airlox.sandbox.container.gauge import Gauge
    from airlox.sandbox.container.told import State

_START_WITHIN_S = 60.0
_LOOK_S = 0.02
_LOOKS_BETWEEN_QUESTIONS = 10
_CLIENT_GONE_S = 5.0


class RunningContainer:
    """One container from its start on. Made and used in the event loop's thread.

    `ended` is done when the attached command is; how the container ended is for `state` to say.
    """

    def __init__(self, engine: Engine, container: str, gauge: Gauge) -> None:
        self._engine = engine
        self._container = container
        self._gauge = gauge
        self._client: asyncio.subprocess.Process | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting: asyncio.Task[None] | None = None

    @property
    def client_pid(self) -> int:
        assert self._client is not None
        return self._client.pid

    async def start(self, stdout_fd: int, stderr_fd: int) -> None:
        """Start it, with its output to these descriptors. Raises SandboxError."""
        try:
            self._client = await asyncio.create_subprocess_exec(
                *self._engine.argv("start", "--attach", self._container),
                stdin=subprocess.DEVNULL,
                stdout=stdout_fd,
                stderr=stderr_fd,
                env=self._engine.environ(),
                start_new_session=True,
            )
        except OSError as error:
            raise causes.refusal("docker_missing", f"{error.strerror}") from None
        self._waiting = asyncio.create_task(self._wait())

    async def runs(self, cancel: asyncio.Event) -> None:
        """Wait until the job's program has started, it ended already, or it was cancelled.

        Raises SandboxError: it does not start in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _START_WITHIN_S
        looks = 0
        while not (self.ended.done() or cancel.is_set() or self._gauge.present()):
            looks += 1
            if looks % _LOOKS_BETWEEN_QUESTIONS == 0:
                state = await self.state()
                if state is not None and not state.waits:
                    return
            if loop.time() > deadline:
                raise causes.refusal("engine_slow", "the container does not start")
            await asyncio.wait((self.ended,), timeout=_LOOK_S)

    async def signal_all(self, number: int) -> None:
        """See `Group.signal_all`."""
        if self._signal_members(number):
            return
        name = signal.Signals(number).name
        with contextlib.suppress(SandboxError):  # it ended meanwhile, or the engine is away
            await asyncio.to_thread(self._engine.signal, self._container, name)

    async def emptied(self) -> None:
        """See `Group.emptied`. The attached command ends with the last process."""
        await asyncio.shield(self.ended)

    async def state(self) -> State | None:
        """The container as the engine sees it; None where it cannot be told."""
        with contextlib.suppress(SandboxError):
            return await asyncio.to_thread(self._engine.state, self._container)
        return None

    async def close(self) -> None:
        """End the attached command, if it is still there."""
        if self._client is None or self._waiting is None:
            return
        if self._client.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._client.kill()
        await asyncio.wait((self._waiting,), timeout=_CLIENT_GONE_S)
        self._waiting.cancel()

    async def _wait(self) -> None:
        assert self._client is not None
        await self._client.wait()
        if not self.ended.done():
            self.ended.set_result(None)

    def _signal_members(self, number: int) -> bool:
        """Signal what can be seen from here; False when nothing was reached."""
        reached = False
        for pid in self._gauge.members():
            # The init passes signals on: what it sees the job would see twice.
            if number == signal.SIGKILL or not _is_init(pid):
                reached = _signal(pid, number) or reached
        return reached


def _is_init(pid: int) -> bool:
    """Whether a process is the first of its pid namespace."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:  # gone meanwhile
        return False
    found = next((line for line in status.splitlines() if line.startswith(b"NSpid:")), b"")
    return found.split()[-1:] == [b"1"]


def _signal(pid: int, number: int) -> bool:
    """Signal a process, by descriptor: its pid may be another's a moment later."""
    seen = proctable.find(pid)
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        now = proctable.find(pid)
        if seen is None or now is None or seen.start != now.start:
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)
