"""How far a long upload or download is: a bar on a terminal, else a line now and then.

What takes less than a second is not worth a word. On a terminal one line is drawn again and again
and is gone at the end; where lines stay, one comes at most every few seconds.
"""

from __future__ import annotations

import threading
import time

from airlox.cli.output import size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from airlox.cli.output import Voice
    from airlox.client.progress import Progress

SILENT_S = 1.0
REDRAW_S = 0.1
LINE_S = 5.0
_BAR_CHARS = 24
_DOING = {"tree": "sending the tree", "upload": "sending", "download": "fetching"}


class Transfers:
    """Tells of the transfers of a session; several at a time take turns in the one line."""

    def __init__(self, voice: Voice, clock: Callable[[], float] = time.monotonic) -> None:
        self._voice = voice
        self._clock = clock
        self._lock = threading.Lock()
        self._last: Progress | None = None
        self._began = self._next = 0.0

    def hear(self, progress: Progress) -> None:
        with self._lock:
            now = self._clock()
            if self._is_another(progress):
                self._began = now
                self._next = now + SILENT_S
            self._last = progress
            if progress.done_bytes >= progress.total_bytes:
                self._voice.end_status()
            elif now >= self._next:
                self._next = now + (REDRAW_S if self._voice.rewrites else LINE_S)
                self._voice.status(text(progress, now - self._began, bar=self._voice.rewrites))

    def _is_another(self, progress: Progress) -> bool:
        last = self._last
        if last is None or progress.done_bytes < last.done_bytes:
            return True
        return (progress.what, progress.total_bytes) != (last.what, last.total_bytes)


def text(progress: Progress, elapsed_s: float, *, bar: bool) -> str:
    """`sending the tree [=====     ] 21 % of 84 MB, 3.1 MB/s`."""
    what, done, total = progress
    share = done / total
    filled = round(share * _BAR_CHARS)
    drawn = f" [{'=' * filled}{' ' * (_BAR_CHARS - filled)}]" if bar else ""
    rate = size_text(round(done / elapsed_s)) if elapsed_s > 0 else "?"
    return f"{_DOING[what]}{drawn} {int(100 * share)} % of {size_text(total)}, {rate}/s"
