"""A relay made of lists, for what a runner takes from one that announces whatever it likes."""

from __future__ import annotations

from airlox.client.answers import EventsPage
from airlox.errors import RelayError
from support.world import Timeline


class Announcer:
    """Stands where a RelayApi does. Of what it announces it has the blobs that it was given."""

    over = False

    def __init__(self) -> None:
        self.line = Timeline()
        self.blobs: dict[str, bytes] = {}

    def events_page(self, after: int | None = None, *, jobs: int | None = None) -> EventsPage:
        return EventsPage([e for e in self.line.events if after is None or e.seq > after], False)

    def fetch_blob(self, item: str, limit_bytes: int) -> bytes:
        if item not in self.blobs:
            raise RelayError(410, "evicted", "no longer here")
        return self.blobs[item]

    def ack(self, item: str) -> None:
        """Heard."""

    def pause(self, seconds: float) -> bool:
        return False
