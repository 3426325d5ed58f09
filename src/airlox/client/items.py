"""Items as they arrive: what `Session.stream` gives."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from airlox.client.core import Core
from airlox.client.deadline import Deadline
from airlox.client.timeline import ALL_KINDS
from airlox.errors import ConnectionLost, SessionClosed
from airlox.protocol.encoding import ItemId
from airlox.protocol.view import Item, ItemStatus, SessionView
from airlox.protocol.wire import EventKind

RETRY_BLOBS_S: Final = 5.0
"""How often blobs that could not be had are asked for again."""


class ItemStream:
    """An iterator over items, in the relay's order as far as their blobs can be had.

    Ends at its deadline, when the session ends, or at `close()`, which any thread may call. One
    thread iterates.
    """

    def __init__(
        self, core: Core, *, after: int, deadline: Deadline, handed: Callable[[int], None]
    ) -> None:
        self._core = core
        self._timeline = core.timeline
        self._after = after
        self._deadline = deadline
        self._handed = handed
        self._api = core.api.scope(deadline)
        self._feed = core.timeline.feed()
        self._started = False
        self._waiting: list[ItemId] = []
        self._ready: deque[Item] = deque()
        self._retry = Deadline.after(RETRY_BLOBS_S)
        core.hold(self._feed)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        if not self._started:
            self._started = True
            self._catch_up()
        while True:
            item = self._next_ready()
            if item is not None:
                self._handed(item.seq)
                return item
            if self._timeline.ended is not None or self._feed.closed or self._deadline.passed:
                self.close()
                raise StopIteration
            self._advance()

    def close(self) -> None:
        """End the stream, from any thread; an iteration that waits ends at once."""
        self._api.close()
        self._core.release(self._feed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _catch_up(self) -> None:
        """What happened before the stream is open, in one go."""
        try:
            self._timeline.sync(ALL_KINDS, api=self._api)
            if self._timeline.ended is None:
                self._timeline.want_missing(self._api)
        except ConnectionLost:
            if not self._api.over:  # else the stream is simply over
                raise
        records = self._timeline.records()
        self._waiting = [r.envelope.id for r in records if r.seq > self._after and r.envelope]

    def _next_ready(self) -> Item | None:
        """The first waiting item that is here.

        All of them are looked at in one go, not anew for each that is handed out: a relay may hold
        back as many as it likes.
        """
        if not self._ready and self._waiting:
            self._timeline.read(self._sort)
        return self._ready.popleft() if self._ready else None

    def _sort(self, view: SessionView) -> None:
        """Waiting items that are here become ready; refused ones are dropped."""
        waiting, self._waiting = self._waiting, []
        for item_id in waiting:
            record = view.records.get(item_id)
            if record is None or record.status is ItemStatus.REFUSED:
                continue
            if record.item is None:
                self._waiting.append(item_id)
            else:
                self._ready.append(record.item)

    def _advance(self) -> None:
        """Wait for one event, or for what else is due."""
        if self._waiting and self._retry.passed:
            self._timeline.fetch(ALL_KINDS, self._api)
            self._retry = Deadline.after(RETRY_BLOBS_S)
            return
        self._timeline.give_due(self._api)
        until = self._deadline.sooner(Deadline.after(self._timeline.blobs.next_gift_s()))
        try:
            event = self._feed.next(until.sooner(self._retry) if self._waiting else until)
        except SessionClosed as error:
            self._timeline.end(error)
            return
        for change in [] if event is None else self._timeline.take_live(event, api=self._api):
            if change.kind == EventKind.ITEM and change.item is not None and not change.fault:
                self._waiting.append(change.item)
