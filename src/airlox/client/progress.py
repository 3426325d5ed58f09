"""How far a long transfer is, for whoever wants to show it.

A session's `on_progress` hears of bodies from `WORTH_TELLING_BYTES` on, in the thread that makes
the call, each time some of it has moved. It is told nothing of the end by other means: a transfer
is over when it has moved whole, or when the call raises. What is sent again after a broken line
starts over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from airlox.protocol.limits import KIB

WORTH_TELLING_BYTES: Final = 256 * KIB
STEP_BYTES: Final = 64 * KIB
"""The pieces in which a body moves that is told of."""


T = TypeVar("T")


class Progress(NamedTuple):
    """What moves (`upload`, `download`, or `tree` for the packs of one), and how much of it has.

    Of a tree the bytes are those of its contents, before they are compressed.
    """

    what: str
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[Progress], None]
Moved = Callable[[int], None]
"""Hears how many bytes of one body have moved, at each try from 0 on."""


def teller(on_progress: OnProgress | None, what: str, total_bytes: int) -> Moved | None:
    """What a single body's transfer is told to; None where nobody needs to know."""
    if on_progress is None or total_bytes < WORTH_TELLING_BYTES:
        return None
    return lambda done: on_progress(Progress(what, min(done, total_bytes), total_bytes))


def pieces(body: bytes, tell: Moved) -> Iterator[memoryview]:
    """A body in pieces, each told of once the next one is asked for."""
    view = memoryview(body)
    for at in range(0, len(view), STEP_BYTES):
        yield view[at : at + STEP_BYTES]
        tell(min(at + STEP_BYTES, len(view)))


class Parts:
    """A transfer of `total_bytes` in several bodies, such as a tree in packs."""

    def __init__(self, on_progress: OnProgress | None, what: str, total_bytes: int) -> None:
        self._on_progress = on_progress
        self._what = what
        self._total_bytes = total_bytes
        self._taken = 0
        self._done = 0

    def count(self, contents: Iterable[T], size: Callable[[T], int]) -> Iterator[T]:
        """`contents` on their way into bodies, counted."""
        for content in contents:
            yield content
            self._taken += size(content)

    def body(self, body_bytes: int) -> Moved | None:
        """For the next body, which holds what was counted since the last one."""
        start, share = self._done, self._taken - self._done
        self._done = self._taken
        if self._on_progress is None or self._total_bytes < WORTH_TELLING_BYTES:
            return None
        return lambda moved_bytes: self._tell(start + share * moved_bytes // body_bytes)

    def _tell(self, done: int) -> None:
        assert self._on_progress is not None
        total = self._total_bytes
        self._on_progress(Progress(self._what, min(done, total), total))
