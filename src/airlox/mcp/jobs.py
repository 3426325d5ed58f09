"""Jobs of one server: each is sent in a thread of its own, once, and can be asked for later.

A job that is still being sent when its call must answer has a ticket in place of an id. A call
that is repeated under its idempotency key gets the job of the first one. What the book holds is
bounded: of calls long ago it forgets the key, and their jobs are found by their ids.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from airlox.errors import AirloxError, UsageError

if TYPE_CHECKING:
    from airlox.client.jobs import Job
    from airlox.mcp.sessions import Place
    from airlox.mcp.workers import Workers

KEPT: Final = 1024
TICKET: Final = "sending-"

Sent = tuple["Place", "Job"]


class Errand:
    """One job on its way: `sent` gives its session and handle once the relay has it."""

    def __init__(self, ticket: str, request: str, sent: Future[Sent], workers: Workers) -> None:
        self.ticket = ticket
        self.request = request
        self.sent = sent
        self._workers = workers
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Have the job cancelled, now or when it has been sent. Returns at once."""
        if not self._stopping.is_set():
            self._stopping.set()
            self.sent.add_done_callback(self._cancel)

    def _cancel(self, sent: Future[Sent]) -> None:
        if sent.exception() is None:
            _, job = sent.result()
            self._workers.start(lambda: _cancelled(job))


def _cancelled(job: Job) -> None:
    """Cancel a job. Where the relay is out of reach nobody is left who could be told."""
    try:
        job.cancel()
    except AirloxError:
        return


class JobBook:
    """Safe to share between threads."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._count = 0
        self._by_key: OrderedDict[str, Errand] = OrderedDict()
        self._by_ticket: OrderedDict[str, Errand] = OrderedDict()
        self._places: OrderedDict[str, Place] = OrderedDict()

    def send(self, key: str | None, request: str, send: Callable[[], Sent]) -> Errand:
        """Have a job sent, unless a call of this key did. `request` is what was asked for: a key
        stands for one request. Raises UsageError."""
        with self._lock:
            known = None if key is None else self._by_key.get(key)
            if known is None:
                self._count += 1
                sent = self._workers.start(lambda: self._note(send()))
                known = Errand(f"{TICKET}{self._count}", request, sent, self._workers)
                _keep(self._by_ticket, known.ticket, known)
                if key is not None:
                    _keep(self._by_key, key, known)
        if known.request != request:
            raise UsageError(
                "this idempotency key was used for another job",
                code="key_reused",
                hint="make the call with a key of its own",
            )
        return known

    def errand(self, ticket: str) -> Errand | None:
        """The job that is being sent under a ticket."""
        with self._lock:
            return self._by_ticket.get(ticket)

    def place(self, job_id: str) -> Place | None:
        """The session of a job that this server sent."""
        with self._lock:
            return self._places.get(job_id)

    def _note(self, sent: Sent) -> Sent:
        place, job = sent
        with self._lock:
            _keep(self._places, job.id, place)
        return sent


def _keep[T](kept: OrderedDict[str, T], name: str, value: T) -> None:
    kept[name] = value
    while len(kept) > KEPT:
        kept.popitem(last=False)
