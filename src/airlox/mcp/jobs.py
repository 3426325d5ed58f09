"""Jobs of one server: sent once, followed to their end, and asked for by any number of calls.

A watch sends its job and follows it in a thread of its own, since a job may outlast the call that
sent it and its runner may still ask for content of its tree. A job that is still being sent when
its call must answer has a ticket in place of an id. A call that is repeated under its idempotency
key gets the watch of the first one. The book is bounded: what it no longer holds is found in the
session, by its id.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from airlox.errors import AirloxError, UsageError
from airlox.mcp.tail import Tail, Tell

if TYPE_CHECKING:
    from airlox.client.answers import JobStatus
    from airlox.client.jobs import Job, Result
    from airlox.mcp.sessions import Place
    from airlox.mcp.tool import Caller
    from airlox.mcp.workers import Workers

KEPT: Final = 128
TICKET: Final = "sending-"

Sent = tuple["Place", "Job"]
T = TypeVar("T")


class Watch:
    """One job: `sent` gives it once the relay has it, `ended` how it ended. `tail` is what it
    printed last, `status` the relay's newest word on it."""

    def __init__(self, ticket: str, request: str) -> None:
        self.ticket = ticket
        self.request = request
        self.sent: Future[Sent] = Future()
        self.ended: Future[Result] = Future()
        self.tail = Tail()
        self.status: JobStatus | None = None

    @property
    def unsent(self) -> bool:
        """Whether the job could not be sent: then it may be tried again."""
        return self.sent.done() and self.sent.exception() is not None

    @property
    def failed(self) -> bool:
        """Whether it was given up before the job's end was seen."""
        return self.ended.done() and self.ended.exception() is not None

    def run(self, send: Callable[[], Sent]) -> None:
        """Send the job and follow it. What fails is in `sent` or `ended`."""
        try:
            place, job = send()
        except BaseException as error:
            self.sent.set_exception(error)
            self.ended.set_exception(error)
            return
        self.sent.set_result((place, job))
        try:
            self.ended.set_result(self._follow(job))
        except BaseException as error:
            self.ended.set_exception(error)

    def _follow(self, job: Job) -> Result:
        for piece in job.output(on_status=self._hear):
            self.tail.feed(piece)
        self.tail.rest()
        return job.wait()

    def _hear(self, status: JobStatus) -> None:
        self.status = status


class JobBook:
    """Safe to share between threads."""

    def __init__(self, workers: Workers, followers: Workers) -> None:
        """`followers` run as long as jobs do, `workers` what is short."""
        self._workers = workers
        self._followers = followers
        self._lock = threading.Lock()
        self._count = 0
        self._by_key: OrderedDict[str, Watch] = OrderedDict()
        self._by_name: OrderedDict[str, Watch] = OrderedDict()
        """By ticket, and by the id of the job once there is one."""

    def send(self, key: str | None, request: str, send: Callable[[], Sent]) -> Watch:
        """Have a job sent, unless a call of this key did. `request` is what was asked for: a key
        stands for one request. Raises UsageError."""
        with self._lock:
            watch = None if key is None else self._by_key.get(key)
            if watch is None or watch.unsent:
                watch = self._start(request, send)
                if key is not None:
                    _keep(self._by_key, key, watch)
        if watch.request != request:
            raise UsageError(
                "this idempotency key was used for another job",
                code="key_reused",
                hint="make the call with a key of its own",
            )
        return watch

    def find(self, name: str) -> Watch | None:
        """The watch of a ticket or a job's id, if there is one that goes on or saw the end."""
        with self._lock:
            watch = self._by_name.get(name)
        if watch is None or (watch.failed and not watch.unsent):
            return None
        return watch

    def follow(self, place: Place, job: Job) -> Watch:
        """Watch a job that was sent before."""
        with self._lock:
            return self._start(job.id, lambda: (place, job))

    def handle(self, job_id: str) -> Sent | None:
        """The session and handle of a job this server sent, which can answer for its tree."""
        with self._lock:
            watch = self._by_name.get(job_id)
        return watch.sent.result() if watch is not None and watch.sent.done() else None

    def stop(self, watch: Watch) -> None:
        """Have a job cancelled, now or once it has been sent. Returns at once."""

        def cancel(sent: Future[Sent]) -> None:
            if sent.exception() is None:
                self._workers.start(lambda: _cancel(sent.result()[1]))

        watch.sent.add_done_callback(cancel)

    def _start(self, request: str, send: Callable[[], Sent]) -> Watch:
        self._count += 1
        watch = Watch(f"{TICKET}{self._count}", request)
        watch.sent.add_done_callback(lambda sent: self._note(watch, sent))
        self._followers.start(lambda: watch.run(send))
        _keep(self._by_name, watch.ticket, watch)
        return watch

    def _note(self, watch: Watch, sent: Future[Sent]) -> None:
        if sent.exception() is None:
            with self._lock:
                _keep(self._by_name, sent.result()[1].id, watch)


def wait_sent(watch: Watch, seconds: float, caller: Caller) -> Sent | None:
    """Session and job once it has been sent, or None after `seconds`. Raises what stopped it."""
    return _wait(watch.sent, seconds, caller)


def wait_ended(watch: Watch, seconds: float, caller: Caller, tell: Tell) -> Result | None:
    """How the job ended, or None after `seconds`; what it prints is told meanwhile."""
    with watch.tail.told(tell):
        return _wait(watch.ended, seconds, caller)


def _wait(done: Future[T], seconds: float, caller: Caller) -> T | None:
    """What is done within `seconds`; at once when the call is cancelled."""
    wake = threading.Event()
    done.add_done_callback(lambda _: wake.set())
    caller.on_cancel(wake.set)
    wake.wait(seconds)
    return done.result() if done.done() else None


def _cancel(job: Job) -> None:
    with suppress(AirloxError):  # nobody is left who could be told
        job.cancel()


def _keep(kept: OrderedDict[str, T], name: str, value: T) -> None:
    kept[name] = value
    while len(kept) > KEPT:
        kept.popitem(last=False)
