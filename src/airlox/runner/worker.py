"""A runner's life: come in, wait for work, do it, go in peace.

One asyncio program in the main thread (sandboxes must be started there). Two threads read the
session's stream and the runner's own; a small pool makes all other calls to the relay. The relay
being away stops nothing that runs: results wait in the spool.

The end: SIGTERM or SIGINT cancels the running jobs, their results are posted within a bounded
time, and what could not be posted stays in the spool for the next start. A second signal ends at
once. A session that has ended, and a rejection, end the runner by themselves. On a disk that keeps
no news of the session any more the jobs that run come to their end, and the runner with the last.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import msgspec

from airlox.client.deadline import Deadline
from airlox.client.stream import Feed
from airlox.errors import AirloxError, ProtocolError, SandboxError, SessionClosed, StorageError
from airlox.protocol import canonical
from airlox.protocol.encoding import ItemId, parse_item_id
from airlox.protocol.invite import Invite
from airlox.protocol.sse import SseEvent
from airlox.protocol.wire import EventKind
from airlox.runner.bench import Bench
from airlox.runner.contact import Contact
from airlox.runner.execution import execute
from airlox.runner.link import STANDING
from airlox.runner.notes import Note, Say
from airlox.runner.options import RunnerOptions
from airlox.runner.patience import patiently
from airlox.runner.slots import Running, Slots
from airlox.runner.start import forget_session, prepared

DRAIN_JOBS_S: Final = 30.0
DRAIN_POSTS_S: Final = 20.0
STOP_S: Final = 5.0
EVENTS_AHEAD: Final = 256

EXIT_OK: Final = 0
EXIT_ERROR: Final = 1
EXIT_SANDBOX: Final = 78
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_runner(options: RunnerOptions, invite: Invite, say: Say) -> int:
    """Be a runner of the invite's session until it or the operator ends it; the exit code.

    Called from the main thread. Raises AirloxError when it cannot start: UsageError, SandboxError
    (exit code 78), or what the relay says.
    """
    with prepared(options, invite, say) as bench:
        code, session_gone = asyncio.run(_work(bench, say))
        if session_gone:
            forget_session(bench)
    return code


def exit_code_of(error: AirloxError) -> int:
    """The exit code that goes with an error of `run_runner`."""
    return EXIT_SANDBOX if isinstance(error, SandboxError) else EXIT_ERROR


async def _work(bench: Bench, say: Say) -> tuple[int, bool]:
    """The exit code, and whether the session is over for good."""
    worker = _Worker(bench, say)
    return await worker.run(), worker.session_gone


class _Worker:
    """The event loop's side: streams, slots, the end."""

    def __init__(self, bench: Bench, say: Say) -> None:
        self._bench = bench
        self._link = bench.link
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._slots = Slots(bench.slots)
        self._contact = Contact(bench, self._slots, say, self._end_with)
        self._ending: asyncio.Future[int] = self._loop.create_future()
        self._jobs: set[asyncio.Task[None]] = set()
        self._arrivals: dict[ItemId, asyncio.Event] = {}
        self._feeds: list[tuple[Feed, threading.Thread]] = []
        self._ahead = threading.BoundedSemaphore(EVENTS_AHEAD)
        self._said_ready = self._said_waiting = False
        self._deaf: StorageError | None = None
        """Why news of the session cannot be taken any more."""
        self.session_gone = False

    async def run(self) -> int:
        """Work until the session, the owner or a signal ends it."""
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._on_signal)
        contact = self._contact
        parts = (self._open(), contact.post_results(), contact.tidy(), self._keep_ready())
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            code = await self._until_the_end(tasks)
            await self._drain()
        finally:
            await self._stop(tasks)
            self._bench.sandbox.keep_ready(0)
        return code

    async def _open(self) -> None:
        """Settle what an earlier life left, say what is offered, then open for work."""
        try:
            await self._contact.report_lost()
            await self._contact.offer()
        except SessionClosed as error:
            self._end_with(error)
            return
        await self._contact.beat()
        self._listen(self._link.session_feed(), self._on_session_event)
        self._listen(self._link.runner_feed(), self._on_runner_event)
        self._look_at_approval()
        for job in self._link.due():
            self._assign(job)
        await self._contact.keep_in_touch()

    # ── streams ─────────────────────────────────────────────────────────────────────────────

    def _listen(self, feed: Feed, take: Callable[[SseEvent], None]) -> None:
        """Read a feed in a thread of its own until it is closed.

        An event that a full disk does not let us keep is not lost: it waits for room.
        """

        def complain(error: AirloxError) -> None:
            self._say(Note("warning", f"news of the session wait: {error.message}"))

        def read() -> None:
            try:
                while (event := feed.next(Deadline.after(None))) is not None:
                    patiently(partial(take, event), self._link.api.pause, on_wait=complain)
            except StorageError as error:
                self._loop.call_soon_threadsafe(self._end_after_jobs, error)
            except AirloxError as error:
                self._loop.call_soon_threadsafe(self._end_with, error)

        thread = threading.Thread(target=read, name="airlox-feed", daemon=True)
        self._feeds.append((feed, thread))
        thread.start()

    def _on_session_event(self, event: SseEvent) -> None:
        """In the feed's thread: approvals, rejections, cancels and the items of jobs."""
        self._link.timeline.take_live(event, STANDING)
        self._in_loop(self._look_at_approval)
        if event.event == EventKind.JOB:
            self._in_loop(partial(self._take_told, event))
        elif event.event == EventKind.ITEM:
            self._in_loop(self._look_at_cancels)

    def _on_runner_event(self, event: SseEvent) -> None:
        """In the feed's thread."""
        self._in_loop(partial(self._take, event))

    def _in_loop(self, call: Callable[[], None]) -> None:
        """Have the loop make a call. A feed never runs far ahead of it, whatever the relay says."""

        def make() -> None:
            self._ahead.release()
            call()

        self._ahead.acquire()
        self._loop.call_soon_threadsafe(make)

    def _take(self, event: SseEvent) -> None:
        if event.event == EventKind.REJECTED:
            self._end_with(SessionClosed("the owner rejected this runner", code="rejected"))
            return
        job = _job_in(event)
        if job is None:
            return
        if event.event == EventKind.JOB_ASSIGNED:
            self._assign(job)
        elif event.event == EventKind.JOB_CANCEL:
            self._slots.cancel(job, "cancelled")
        elif event.event == EventKind.PACK and job in self._arrivals:
            self._arrivals[job].set()

    def _take_told(self, event: SseEvent) -> None:
        """The session tells of assignments too: a runner's own stream may be held back."""
        job = _job_in(event)
        if job is not None and self._link.is_due(job):
            self._assign(job)

    def _look_at_cancels(self) -> None:
        """The signed cancel does what the relay's word on a runner's own stream does."""
        for job in self._slots.known:
            if self._link.cancelled_by(job) is not None:
                self._slots.cancel(job, "cancelled")

    def _look_at_approval(self) -> None:
        """After each event of the session: may this runner work, or must it go?"""
        ended, reason = self._link.timeline.ended, self._link.rejection()
        name = self._bench.options.name
        if reason is not None:
            because = f": {reason}" if reason else ""
            text = f"the owner rejected this runner{because}"
            self._end_with(SessionClosed(text, code="rejected"))
        elif ended is not None:
            self._end_with(ended)
        elif self._link.may_take_jobs():
            if not self._said_ready:
                self._said_ready = True
                self._say(Note("ready", f"{name} takes jobs"))
        elif not self._said_waiting:
            self._said_waiting = True
            self._say(Note("waiting", f"waiting for the owner: airlox runner approve {name}"))

    # ── jobs ────────────────────────────────────────────────────────────────────────────────

    @property
    def _takes_none(self) -> bool:
        return self._ending.done() or self._deaf is not None

    def _assign(self, job: ItemId) -> None:
        running = None if self._takes_none else self._slots.add(job)
        if running is None:
            return
        task = asyncio.create_task(self._serve(running))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _serve(self, running: Running) -> None:
        """Take an assigned job through its life in a slot."""
        async with self._slots.occupied():
            try:
                await self._carry_out(running)
            except SessionClosed as error:
                self._end_with(error)
            except AirloxError as error:
                self._tell("warning", f"job {running.job}: {error.message}", running.job)
            except Exception as error:  # a fault of ours in one job is not the others' end
                said = f"job {running.job}: {type(error).__name__}: {error}"
                self._tell("warning", said, running.job)
            finally:
                self._slots.forget(running)
                self._arrivals.pop(running.job, None)
                if not running.answered:
                    self._contact.settle(running.job)
                self._end_if_idle()

    async def _carry_out(self, running: Running) -> None:
        job = running.job
        if self._takes_none:
            return
        self._loop.run_in_executor(None, self._bench.sandbox.expect)
        if not await self._contact.claim(job):
            return
        arrived = self._arrivals.setdefault(job, asyncio.Event())
        self._tell("job_started", f"job {job} started", job)
        said = await execute(self._bench, running, arrived)
        if said is not None:
            self._tell("job_ended", f"job {job} ended: {said}", job)

    async def _keep_ready(self) -> None:
        """A start prepared for each free slot: never while the job in it is still measured."""
        while True:
            await self._slots.freed.wait()
            self._slots.freed.clear()
            self._bench.sandbox.keep_ready(self._slots.free)

    def _tell(self, kind: str, text: str, job: ItemId) -> None:
        self._say(Note(kind, text, {"job": job}))

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def _on_signal(self) -> None:
        if not self._ending.done():
            self._say(Note("stopping", "stopping: running jobs are cancelled"))
            self._contact.stop_taking()
            self._slots.cancel_all("the runner was stopped")
            self._ending.set_result(EXIT_OK)
            return
        for number in _SIGNALS:
            self._loop.remove_signal_handler(number)
        signal.raise_signal(signal.SIGINT)

    def _end_with(self, error: AirloxError) -> None:
        """The session or the owner ended it, or the relay cannot be worked with."""
        if self._ending.done():
            return
        self.session_gone = error.code == "session_gone"
        self._say(Note("ended", str(error), {"code": error.code}))
        self._slots.cancel_all(error.message)
        self._ending.set_result(EXIT_OK if self.session_gone else EXIT_ERROR)

    def _end_after_jobs(self, error: StorageError) -> None:
        """What the session tells cannot be kept: no job is taken any more."""
        self._deaf = self._deaf or error
        self._slots.close()
        self._contact.stop_taking()
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._deaf is not None and not self._slots.known:
            self._end_with(self._deaf)

    async def _until_the_end(self, tasks: Iterable[asyncio.Task[None]]) -> int:
        """The exit code, once it is decided. What breaks in a task breaks the runner."""
        first: set[asyncio.Future[Any]] = {self._ending, *tasks}
        while not self._ending.done():
            done, first = await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                future.result()
        return self._ending.result()

    async def _drain(self) -> None:
        """Let cancelled jobs end, and their results go out, within a bounded time."""
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=DRAIN_JOBS_S)
        if self.session_gone:
            return
        if not await self._contact.results_are_out(DRAIN_POSTS_S):
            self._say(Note("warning", "results wait on the disk for the next start"))

    async def _stop(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        for feed, _ in self._feeds:
            feed.close()
        self._link.api.close()
        left: set[asyncio.Task[None]] = {*tasks, *self._jobs}
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=STOP_S)
        await self._bench.workspaces.close(STOP_S)
        for _, thread in self._feeds:
            await asyncio.to_thread(thread.join, STOP_S)


class _JobEvent(msgspec.Struct):
    job: str


def _job_in(event: SseEvent) -> ItemId | None:
    """The job an event of the runner's stream names."""
    try:
        return parse_item_id(canonical.decode_loose(event.data, _JobEvent, "job event").job)
    except ProtocolError:
        return None
