"""Server-sent events from a relay, read until told to end.

A `Feed` reads one path. A broken or silent line is opened again at the cursor every 0.5 s, or as
its owner says, for as long as that waits; 401, 404 and 410 end the session. What was read but not
handed out when a line breaks is dropped, since the relay sends everything after the cursor once
more: the cursor is the reader's own, of what it has really taken in.

A relay begins every stream with a comment. Where it does not come in time, something on the way
holds the stream back (a proxy that passes an answer on only when it is complete). Then the news
are asked for every second, where the feed's owner gave a way to ask, until a byte comes.

One thread reads; any thread may `close()`, which shuts the socket, so that the reader returns at
once. What an event means is for the caller.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final

from airlox.client.answers import FOREIGN
from airlox.client.deadline import Deadline
from airlox.errors import ConnectionLost, ProtocolError, RelayError
from airlox.protocol.sse import SseEvent, SseParser

if TYPE_CHECKING:
    from airlox.client.relay_api import RelayApi
    from airlox.client.transport import Line

RECONNECT_S: Final = 0.5
SILENCE_S: Final = 60.0
"""A relay sends a keepalive every 15 s; a line without a byte for this long is dead."""
OPEN_TIMEOUT_S: Final = 30.0
FIRST_BYTE_S: Final = 3.0
"""A stream that has given nothing for this long since it was asked for may be held back."""
POLL_S: Final = 1.0
POLL_TIMEOUT_S: Final = 15.0
TRIAL_S: Final = 60.0
"""How often a stream whose head did not come is tried while its news are asked for."""

_NEVER: Final = Deadline.after(None)

Warn = Callable[[str], None]
Poll = Callable[["RelayApi"], Sequence[SseEvent]]
"""Asks the relay for what came after the cursor, as the stream would tell it."""


def _no_cursor() -> int | None:
    return None


def soon(_: int) -> float:
    """The wait of people, who look on."""
    return RECONNECT_S


def _ignore(_: str) -> None:
    """The warning sink of callers that have none."""


class Feed:
    """The events of one path of the relay.

    `path` and `cursor` are asked at each (re)connection; a cursor travels as Last-Event-ID.
    `poll` replaces a stream that is held back. `on_warning` hears once per outage that the line is
    down. `wait_s` says how long to wait before a line is opened again, from the number of times it
    was lost since it last gave anything.
    """

    def __init__(
        self,
        api: RelayApi,
        path: Callable[[], str],
        *,
        cursor: Callable[[], int | None] = _no_cursor,
        poll: Poll | None = None,
        on_warning: Warn = _ignore,
        wait_s: Callable[[int], float] = soon,
    ) -> None:
        self._api = api
        self._path = path
        self._cursor = cursor
        self._poll = poll
        self._on_warning = on_warning
        self._wait_s = wait_s
        self._losses = 0
        self._reading = threading.Lock()
        self._closed = threading.Event()
        self._cut: Callable[[], None] | None = None
        self._line: Line | None = None
        self._parser = SseParser()
        self._pending: deque[SseEvent] = deque()
        self._silence = _NEVER
        self._not_before = Deadline.after(0)
        self._poll_at = _NEVER
        """When to ask for news instead; never while the line has shown itself."""
        self._held_back = self._told = False
        self._asking: RelayApi | None = None
        self._down = False

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def next(self, deadline: Deadline) -> SseEvent | None:
        """The next event, or None when the deadline came or `close()` was called.

        Raises SessionClosed when the relay ended the session for this participant, and RelayError
        for refusals that waiting does not mend.
        """
        with self._reading:
            try:
                while not self._closed.is_set():
                    if self._pending:
                        return self._pending.popleft()
                    if not self._read(deadline):
                        break
            except BaseException:
                self._drop_line()
                raise
            if self._closed.is_set():
                self._drop_line()
            return None

    def close(self) -> None:
        """End the feed, from any thread; a reader inside `next` returns at once."""
        self._closed.set()
        cut, asking = self._cut, self._asking
        if cut is not None:
            cut()
        if asking is not None:
            asking.close()
        if self._reading.acquire(blocking=False):
            try:
                self._drop_line()
            finally:
                self._reading.release()

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self, deadline: Deadline) -> bool:
        """Take in what comes next; False when the deadline came first."""
        if self._poll_at.passed:
            if deadline.passed:
                return False
            self._ask(deadline)
            return True
        line = self._line or self._open(deadline)
        if line is None:
            return not deadline.passed
        try:
            data = line.read(deadline.sooner(self._silence).sooner(self._poll_at))
            if data:
                self._pending.extend(self._parser.feed(data))
                self._silence = Deadline.after(SILENCE_S)
                self._poll_at, self._held_back = _NEVER, False
                self._down, self._losses = False, 0
                return True
        except (ConnectionLost, ProtocolError) as error:
            self._lose(str(error))
            return True
        if data is None and not self._silence.passed:
            return not deadline.passed
        self._lose("the relay ended the stream" if data == b"" else "the relay fell silent")
        return True

    def _open(self, deadline: Deadline) -> Line | None:
        """A fresh line, not too soon after the last; None when that failed or waits."""
        wait_s = self._not_before.left_s() or 0.0
        until = deadline.sooner(self._poll_at)
        if self._closed.wait(until.cap_s(wait_s)) or until.cap_s(wait_s) < wait_s:
            return None
        if self._poll is not None and self._poll_at is _NEVER:
            self._poll_at = Deadline.after(FIRST_BYTE_S)
        self._parser = SseParser()
        try:
            self._line = self._api.open_stream(
                self._path(),
                last_event_id=self._cursor(),
                deadline=Deadline.after(OPEN_TIMEOUT_S).sooner(deadline).sooner(self._poll_at),
                started=self._started,
            )
        except (ConnectionLost, RelayError) as error:
            self._fail(error, deadline)
        else:
            self._silence = Deadline.after(SILENCE_S)
        return self._line

    def _fail(self, error: ConnectionLost | RelayError, deadline: Deadline) -> None:
        """What the failure of an opening or of a question for news means. Raises what is final."""
        if isinstance(error, RelayError):
            if error.status != 429 and error.status < 500 and error.code != FOREIGN:
                raise error
        elif error.code == "tls":
            raise error
        elif error.code == "closed":
            self._closed.set()
        elif error.code == "relay_timeout" and deadline.passed:
            return  # the reader's time was too short to tell
        elif self._poll_at.passed:
            self._not_before = Deadline.after(TRIAL_S)  # no head in time: ask for news
            return
        self._held_back = False
        self._lose(str(error))

    def _ask(self, deadline: Deadline) -> None:
        """Ask for the news that a stream does not bring."""
        assert self._poll is not None  # nothing else sets a time for it
        api = self._asking = self._api.scope(Deadline.after(POLL_TIMEOUT_S).sooner(deadline))
        if self._closed.is_set():
            return
        try:
            news = self._poll(api)
        except (ConnectionLost, RelayError) as error:
            self._poll_at = Deadline.after(0 if deadline.passed else POLL_S)
            self._fail(error, deadline)
            return
        except ProtocolError as error:
            self._held_back = False
            self._lose(str(error))
            return
        self._poll_at = Deadline.after(POLL_S)
        self._held_back = True
        self._pending.extend(news)
        if news and not self._told:
            self._told = True
            self._on_warning("the stream is held back on its way; asking for news every second")

    def _started(self, cut: Callable[[], None]) -> None:
        self._cut = cut
        if self._closed.is_set():
            cut()

    def _lose(self, why: str) -> None:
        self._drop_line()
        self._not_before = Deadline.after(self._wait_s(self._losses))
        self._losses += 1
        if not self._held_back:
            self._poll_at = _NEVER
        if not self._down and not self._closed.is_set():
            self._down = True
            self._on_warning(f"the stream broke and is being opened again: {why}")

    def _drop_line(self) -> None:
        self._pending.clear()
        line, self._line = self._line, None
        if line is not None:
            line.close()
