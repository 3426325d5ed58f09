"""Calls that run: each in a thread of its own, watched by any number of requests.

Rules
- A call outlives the request that started it where another one waits for it too, or where it
  became a task; when the last one leaves, it is cancelled.
- Requests with the same key, tool and arguments are one call, also after it ended well: what was
  asked for twice is done once. What failed or was cancelled is forgotten and may be tried again.
  Of slow tools only calls that run are joined: the tool knows its job by the key, and waits on.
- Numbers are bounded: of calls that run, and of answers that are kept.
- Everything here belongs to the event loop, except what `Call` offers to its tool.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airlox.errors import AirloxError, UsageError, WaitTimeout, place_of
from airlox.mcp.asking import ASK_S, Asker, Question, Unanswered, nobody
from airlox.mcp.progress import News
from airlox.mcp.tool import Answer

if TYPE_CHECKING:
    from airlox.mcp.desk import Desk
    from airlox.mcp.tool import Tool

MOST_CALLS: Final = 32
MOST_KEPT: Final = 256
KEEP_S: Final = 3600.0
KEY_CHARACTERS: Final = 200

_LAST_S: Final = 0.05
"""For breaking connections, which waits for nobody."""

Outcome = Answer | AirloxError | Question
"""How a call ended: with an answer, an error, or a question that its repetition answers."""


@dataclass(frozen=True)
class Order:
    """What a request asks for. `key` makes repetitions one call."""

    tool: Tool
    arguments: dict[str, Any]
    client_name: str
    key: str | None = None
    asker: Asker = nobody


class Call:
    """One run of a tool; to the tool it is the `Caller` of `tool.py`."""

    def __init__(self, order: Order, desk: Desk, loop: asyncio.AbstractEventLoop) -> None:
        self.order = order
        self.news = News(loop)
        self.outcome: asyncio.Future[Outcome] = loop.create_future()
        self.watchers = 0
        self._loop = loop
        self._lock = threading.Lock()
        self._asker = order.asker
        self._asking = 0
        self._asking_since_s = 0.0
        self._asked_s = 0.0
        self._cancelled = False
        self._stops: list[Callable[[], None]] = []
        self._threads = [self._start(lambda: self._run(desk))]

    # -- for the tool, in any thread ---------------------------------------------------------

    @property
    def client_name(self) -> str:
        return self.order.client_name

    @property
    def idempotency_key(self) -> str | None:
        return self.order.key

    @property
    def cancelled(self) -> bool:
        with self._lock:
            return self._cancelled

    def progress(self, text: str) -> None:
        self.news.put(text)

    def on_cancel(self, stop: Callable[[], None]) -> None:
        with self._lock:
            if not self._cancelled:
                self._stops.append(stop)
                return
        stop()

    def ask(self, question: str, *, title: str) -> bool | None:
        """As `Caller.ask`. Raises WaitTimeout when the person does not answer in time."""
        with self._lock:
            asker = self._asker
            if not self._asking:
                self._asking_since_s = time.monotonic()
            self._asking += 1
        answer = asker(Question(title, question))  # Unanswered ends the call: it stays asking
        try:
            return self._answered(answer)
        finally:
            with self._lock:
                self._asking -= 1
                if not self._asking:
                    self._asked_s += time.monotonic() - self._asking_since_s

    def _answered(self, answer: Future[bool | None]) -> bool | None:
        def stop() -> None:
            answer.cancel()

        self.on_cancel(stop)
        try:
            return answer.result(ASK_S)
        except CancelledError:
            raise AirloxError("the call was cancelled", code="cancelled") from None
        except TimeoutError:
            raise WaitTimeout(
                f"nobody answered within {ASK_S:.0f} s",
                code="no_answer",
                hint="ask the person, then call again",
            ) from None

    # -- for the server, in the loop ---------------------------------------------------------

    def become(self, asker: Asker) -> bool:
        """Let questions go another way from now on. False when the call ended, or just asks."""
        with self._lock:
            if self._asking or self.outcome.done():
                return False
            self._asker = asker
            return True

    async def wait(self, limit_s: float) -> Outcome | None:
        """How it ended, or None after `limit_s`, in which the time a person takes to answer does
        not count."""
        started_s = time.monotonic()
        while not self.outcome.done():
            left_s = limit_s - (time.monotonic() - started_s - self.asked_s())
            if left_s <= 0:
                return None
            await asyncio.wait({self.outcome}, timeout=max(left_s, 0.01))
        return self.outcome.result()

    def asked_s(self) -> float:
        """How long a person was asked so far."""
        with self._lock:
            open_s = time.monotonic() - self._asking_since_s if self._asking else 0.0
            return self._asked_s + open_s

    def cancel(self) -> None:
        """Have the tool stop. What it registered for that may block and gets a thread."""
        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
            stops, self._stops = self._stops, []
        if stops and not self.outcome.done():
            self._threads.append(self._start(lambda: _run_all(stops)))

    def join(self, deadline_s: float) -> None:
        """Wait for the call's threads until a time of the monotonic clock."""
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    # -- its thread --------------------------------------------------------------------------

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"mcp {self.order.tool.name}", daemon=True)
        thread.start()
        return thread

    def _run(self, desk: Desk) -> None:
        outcome = self._outcome(desk)
        try:
            self._loop.call_soon_threadsafe(self._settle, outcome)
        except RuntimeError:
            pass  # the loop is closed: the server ended meanwhile

    def _outcome(self, desk: Desk) -> Outcome:
        try:
            return self.order.tool.run(desk, self.order.arguments, self)
        except Unanswered as unanswered:
            return unanswered.question
        except AirloxError as error:
            return error
        except BaseException as error:  # its text may hold a secret, so only its place is told
            return AirloxError(
                f"airlox has a bug: {type(error).__name__} at {place_of(error)}", code=BUG
            )

    def _settle(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


BUG: Final = "bug"


class Calls:
    """All calls of a server."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._running: set[Call] = set()
        self._kept: OrderedDict[tuple[str, str, str], tuple[bytes, float, Call]] = OrderedDict()

    def start(self, order: Order) -> Call:
        """The call of an order: a new one, or the one that a repeated order means.

        Raises UsageError for a key that was used for something else, and when too many run.
        """
        known = self._known(order)
        if known is not None:
            return known
        if len(self._running) >= MOST_CALLS:
            raise UsageError(
                f"{MOST_CALLS} calls are running",
                code="busy",
                hint="wait for one of them, or cancel it",
            )
        call = Call(order, self._desk, asyncio.get_running_loop())
        self._running.add(call)
        call.outcome.add_done_callback(lambda _: self._ended(call))
        if order.key is not None:
            self._kept[self._place(order)] = (_digest(order.arguments), time.monotonic(), call)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return call

    def leave(self, call: Call) -> None:
        """A request or task no longer waits for a call."""
        call.watchers -= 1
        if call.watchers <= 0 and not call.outcome.done():
            self.cancel(call)

    def cancel(self, call: Call) -> None:
        self._forget(call)
        call.cancel()

    async def close(self, within_s: float) -> None:
        """Cancel what runs and end what the desk holds, giving both `within_s`."""
        deadline_s = time.monotonic() + within_s
        running = list(self._running)
        for call in running:
            call.cancel()
        await asyncio.to_thread(_join_all, running, deadline_s)
        left_s = max(0.0, deadline_s - time.monotonic())
        ending = threading.Thread(
            target=self._desk.close, args=(left_s,), name="mcp desk", daemon=True
        )
        ending.start()
        await asyncio.to_thread(ending.join, left_s + _LAST_S)

    def _known(self, order: Order) -> Call | None:
        if order.key is None:
            return None
        if not 0 < len(order.key) <= KEY_CHARACTERS:
            raise UsageError(
                f"an idempotency key has 1 to {KEY_CHARACTERS} characters", code="bad_key"
            )
        digest, at_s, call = self._kept.get(self._place(order), (b"", 0.0, None))
        if call is None or time.monotonic() - at_s > KEEP_S:
            return None
        if digest != _digest(order.arguments):
            raise UsageError(
                f"the idempotency key was used for another call of {order.tool.name}",
                code="key_reused",
                hint="give each call a key of its own; repeat a call with the same arguments",
            )
        return call

    def _ended(self, call: Call) -> None:
        self._running.discard(call)
        is_done = isinstance(call.outcome.result(), Answer)
        if not is_done or call.order.tool.slow:
            self._forget(call)

    def _forget(self, call: Call) -> None:
        place = self._place(call.order)
        if self._kept.get(place, (b"", 0.0, None))[2] is call:
            del self._kept[place]

    @staticmethod
    def _place(order: Order) -> tuple[str, str, str]:
        return order.client_name, order.tool.name, order.key or ""


def _digest(arguments: dict[str, Any]) -> bytes:
    """Of what is asked for; how long one waits for it is no part of that."""
    asked = {name: value for name, value in arguments.items() if name != "wait_s"}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).digest()


def _join_all(calls: list[Call], deadline_s: float) -> None:
    for call in calls:
        call.join(deadline_s)


def _run_all(stops: list[Callable[[], None]]) -> None:
    for stop in stops:
        try:
            stop()
        except AirloxError:
            pass  # the relay is away: the job's own limits end it
