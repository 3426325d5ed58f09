"""Live output on its way to a client: short, bounded, and not too often.

A tool may say a thousand things a second from its thread; a client is told the newest of them a
few times a second. While a tool says nothing, the client is told now and then that it works:
clients that count silence as death then go on waiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Final

GAP_S: Final = 0.4
"""Between two notifications of a call."""
QUIET_S: Final = 10.0
"""After so long without news the client hears that the call goes on."""
MOST_CHARACTERS: Final = 200

Report = Callable[[float, str], Awaitable[None]]
"""Sends one notification; the number grows with each."""


class News:
    """The newest text of one call. Threads `put`, any number of tasks wait with `after`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._text = ""
        self._number = 0
        self._waking = False
        self._fresh = asyncio.Event()

    @property
    def text(self) -> str:
        with self._lock:
            return self._text

    def put(self, text: str) -> None:
        """Replace the newest text. The loop is woken once, however much is put until it looks."""
        shown = shorten(text)
        with self._lock:
            self._text, self._number = shown, self._number + 1
            if self._waking:
                return
            self._waking = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            pass  # the loop is closed: nobody listens any more

    async def after(self, number: int) -> tuple[int, str]:
        """The newest text and its number, once that is above `number`."""
        while True:
            with self._lock:
                if self._number > number:
                    return self._number, self._text
                fresh = self._fresh
            await fresh.wait()

    def _wake(self) -> None:
        with self._lock:
            self._waking = False
            fresh, self._fresh = self._fresh, asyncio.Event()
        fresh.set()


async def tell(news: News, report: Report, *, quiet_s: float = QUIET_S) -> None:
    """Report a call's news until cancelled."""
    seen, sent = 0, 0
    while True:
        try:
            async with asyncio.timeout(quiet_s):
                seen, text = await news.after(seen)
        except TimeoutError:
            text = "still working"
        sent += 1
        await report(float(sent), text)
        await asyncio.sleep(GAP_S)


def shorten(text: str) -> str:
    """The last words of a text on one line, without control characters."""
    tail = text[-4 * MOST_CHARACTERS :]
    line = " ".join("".join(c if c.isprintable() else " " for c in tail).split())
    return line if len(line) <= MOST_CHARACTERS else "…" + line[-MOST_CHARACTERS + 1 :]
