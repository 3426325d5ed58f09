"""What the parts of one open session share: who we are, what we know, how we post.

A `Core` is made once per session and handed to the session's face and to its jobs. It also knows
every open feed, so that `disconnect` ends all waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from airlox.client.membership import Membership
from airlox.client.outbox import Outbox
from airlox.client.relay_api import RelayApi, WarningSink
from airlox.client.stream import Feed
from airlox.client.timeline import Timeline
from airlox.errors import SessionClosed
from airlox.protocol.manifest import Manifest


class Core:
    """See the module's text. Safe to share between threads."""

    def __init__(self, membership: Membership, *, on_warning: WarningSink) -> None:
        self.membership = membership
        self.on_warning = on_warning
        self.timeline = Timeline(membership, on_warning=on_warning)
        self.outbox = Outbox(
            membership, self.timeline.announced, self.timeline.knows, on_warning=on_warning
        )
        self._lock = threading.Lock()
        self._feeds: set[Feed] = set()
        self.disconnected = False

    @property
    def api(self) -> RelayApi:
        return self.membership.api

    @property
    def manifest(self) -> Manifest:
        return self.membership.manifest

    def hold(self, feed: Feed) -> None:
        """Know an open feed, so that `disconnect` closes it."""
        with self._lock:
            self._feeds.add(feed)

    def release(self, feed: Feed) -> None:
        """Close a feed and forget it. Safe to repeat, from any thread."""
        with self._lock:
            self._feeds.discard(feed)
        feed.close()

    @contextmanager
    def using(self, feed: Feed) -> Iterator[Feed]:
        """Hold a feed for a block."""
        self.hold(feed)
        try:
            yield feed
        finally:
            self.release(feed)

    def check_open(self) -> None:
        """Raises SessionClosed when this participant is known to be out of the session."""
        ended = self.timeline.ended
        if ended is not None:
            raise SessionClosed(ended.message, code=ended.code, hint=ended.hint)

    def disconnect(self) -> None:
        """End every call, stream and wait of this session, at once. Safe to repeat."""
        with self._lock:
            self.disconnected = True
            feeds = list(self._feeds)
        for feed in feeds:
            feed.close()
        self.api.close()
