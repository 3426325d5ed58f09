"""A launched sandbox in the event loop: when it is ready, how it ended, and when nothing is left.

Listens to the info pipe and to the pid descriptors of launcher and keeper, and is the `Group` that
`supervise.end_all` ends. Nothing is polled. Left to others: the reasons to end it, and the verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

from airlox.sandbox import probe as causes

if TYPE_CHECKING:
    from airlox.errors import SandboxError
    from airlox.sandbox.linux.launched import Launched, Told

_READY_WITHIN_S = 15.0


class RunningJob:
    """One job from its launch on; a context manager. Made and used in the event loop's thread.

    `ended` is done when the main process is; `status` is then its wait status, or None if it was
    killed together with its keeper.
    """

    def __init__(self, launched: Launched) -> None:
        self._launched = launched
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._gone = asyncio.Event()
        self._watched: set[int] = set()
        self._said_ready = False
        self._started_at = self._ended_at = 0.0
        self.status: int | None = None
        self.largest_bytes: int | None = None
        self.not_executed: Told | None = None
        self._loop.add_reader(launched.info_fd, self._listen)
        self._watch_pids()

    @property
    def keeper_pid(self) -> int:
        assert self._launched.keeper_pid is not None
        return self._launched.keeper_pid

    async def became_ready(self, cancel: asyncio.Event) -> bool:
        """Wait until every wall stands; False if the job was cancelled before."""
        cancelled = asyncio.ensure_future(cancel.wait())
        try:
            await asyncio.wait(
                (self._ready, cancelled),
                timeout=_READY_WITHIN_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            cancelled.cancel()
        if cancel.is_set():
            return False
        if not self._ready.done():
            raise causes.refusal("start_timeout")
        self._ready.result()
        return True

    def go(self) -> None:
        self._started_at = self._loop.time()
        self._launched.go()

    def wall_ms(self) -> int:
        """From "go" to the end of the main process, or to now."""
        end = self._ended_at or self._loop.time()
        return round((end - self._started_at) * 1000)

    async def signal_all(self, number: int) -> None:
        if number == signal.SIGKILL:
            self._launched.kill()
        else:
            self._launched.terminate()

    async def emptied(self) -> None:
        await self._gone.wait()

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._launched.info_fd)
        for fd in self._watched:
            self._loop.remove_reader(fd)
        for future in (self._ready, self.ended):
            future.cancel()

    def _listen(self) -> None:
        lines, more = self._launched.told()
        for told in lines:
            self._hear(told)
        if not more:
            self._loop.remove_reader(self._launched.info_fd)

    def _hear(self, told: Told) -> None:
        if told.word == "pid":
            self._launched.meet_keeper(told.numbers[0])
            self._watch_pids()
        elif told.word == "ready":
            self._said_ready = True
        elif told.word == "error" and told.step == "exec":
            self.not_executed = told
        elif told.word == "error":
            self._fail(causes.explain(told.step, told.numbers[0], told.text, causes.look_at_host()))
        elif told.word == "exit":
            self.status, largest_kb = told.numbers
            self.largest_bytes = largest_kb * 1024
            self._end()
        if self._said_ready and self._launched.keeper_pid and not self._ready.done():
            self._ready.set_result(None)

    def _watch_pids(self) -> None:
        for fd in self._launched.pid_fds:
            if fd not in self._watched:
                self._watched.add(fd)
                self._loop.add_reader(fd, self._lost, fd)

    def _lost(self, fd: int) -> None:
        """A process of ours ended; when all have, nothing of the job is left."""
        self._loop.remove_reader(fd)
        self._watched.discard(fd)
        if self._watched:
            if not self._ready.done():  # half of a sandbox is none
                self._launched.kill()
            return
        if not self._gone.is_set():
            self._gone.set()
            self._listen_to_the_rest()
            self._fail(self._launched.last_words())
            self._end()

    def _listen_to_the_rest(self) -> None:
        with contextlib.suppress(OSError):
            self._listen()

    def _fail(self, error: SandboxError) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)

    def _end(self) -> None:
        if not self.ended.done():
            self._ended_at = self._loop.time()
            self.ended.set_result(None)
