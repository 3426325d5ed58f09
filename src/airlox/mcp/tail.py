"""The end of what a job prints, for whoever watches it: lines as their last writing left them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from airlox.client.folding import Line, LineFolder

if TYPE_CHECKING:
    from airlox.client.follow import Output

KEPT_CHARS: Final = 4000

Tell = Callable[[str], None]


class Tail:
    """Fed by the thread that follows the job, read by others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders = {"stdout": LineFolder(), "stderr": LineFolder()}
        self._kept = ""
        self._listeners: list[Tell] = []

    def feed(self, piece: Output) -> None:
        self._take(self._folders[piece.stream].feed(piece.data))

    def rest(self) -> None:
        """The output has ended: take the lines that were open."""
        for folder in self._folders.values():
            self._take(folder.rest())

    @property
    def text(self) -> str:
        with self._lock:
            return self._kept

    @contextmanager
    def told(self, tell: Tell) -> Iterator[None]:
        """Have each new last line told while the block lasts."""
        with self._lock:
            self._listeners.append(tell)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(tell)

    def _take(self, lines: list[Line]) -> None:
        if not lines:
            return
        text = "".join(f"{line.text}\n" for line in lines)
        with self._lock:
            self._kept = (self._kept + text)[-KEPT_CHARS:]
            listeners = list(self._listeners)
        for tell in listeners:
            tell(lines[-1].text)
