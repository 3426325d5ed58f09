"""Sealed bytes of items: here, fetched, acknowledged, asked back, given back.

Rules: a blob is kept only when it is the one its author signed, and acknowledged only once it is
on the disk and was accepted by the view; what the relay hands out wrongly is neither, and is asked
for again later. An evicted blob is wanted back from whoever holds it, at most once in five
minutes; others' wants are answered from the cache after a random part of two seconds, so that not
all holders send at once.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from airlox.client.cache import SessionCache
from airlox.client.relay_api import RelayApi
from airlox.errors import ConnectionLost, ProtocolError, RelayError
from airlox.protocol.item import Envelope, verify_item

WANT_AGAIN_S: Final = 300.0
RESEED_SPREAD_S: Final = 2.0
RESEEDS: Final = 256
"""Most wants waiting for their answer."""


class BlobMissing(Exception):
    """The blob cannot be had now; `evicted` when the relay no longer has it."""

    def __init__(self, reason: str, *, evicted: bool = False) -> None:
        super().__init__(reason)
        self.evicted = evicted


class Blobs:
    """The blobs of one session; safe to share between threads."""

    def __init__(self, cache: SessionCache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._unacknowledged: set[str] = set()
        self._wanted: dict[str, float] = {}
        self._to_give: dict[str, float] = {}

    def held(self, envelope: Envelope) -> bytes | None:
        """The blob from the cache, as signed, or None."""
        blob = self._cache.load_blob(envelope.id, envelope.blob_size)
        return blob if blob is not None and _is_signed(envelope, blob) else None

    def fetch(self, envelope: Envelope, api: RelayApi) -> bytes:
        """The blob from the relay, as signed. Raises BlobMissing."""
        try:
            blob = api.fetch_blob(envelope.id, envelope.blob_size)
        except RelayError as error:
            raise BlobMissing(error.message, evicted=error.status in (404, 410)) from error
        except (ConnectionLost, ProtocolError) as error:
            raise BlobMissing(error.message) from error
        if not _is_signed(envelope, blob):
            raise BlobMissing("the relay gave other bytes than the author signed")
        return blob

    def keep(self, envelope: Envelope, blob: bytes, api: RelayApi) -> None:
        """Store an accepted blob and tell the relay. Raises StorageError."""
        self._cache.save_blob(envelope.id, blob)
        self.acknowledge(envelope.id, api)

    def acknowledge(self, item: str, api: RelayApi) -> None:
        """Tell the relay that an item is stored here; a failure is made up for later."""
        try:
            api.ack(item)
        except (ConnectionLost, RelayError):
            with self._lock:
                self._unacknowledged.add(item)

    def retry_acknowledging(self, api: RelayApi) -> None:
        with self._lock:
            items, self._unacknowledged = self._unacknowledged, set()
        while items and not api.over:
            self.acknowledge(items.pop(), api)
        with self._lock:
            self._unacknowledged |= items

    def want(self, envelope: Envelope, api: RelayApi) -> bool:
        """Ask for an evicted blob; True when the relay has it after all."""
        now = time.monotonic()
        with self._lock:
            if now < self._wanted.get(envelope.id, 0.0):
                return False
            self._wanted[envelope.id] = now + WANT_AGAIN_S
        try:
            return api.want(envelope.id)
        except RelayError as error:
            if error.status == 429 or error.status >= 500:
                self._want_again(envelope.id)
        except ConnectionLost:
            self._want_again(envelope.id)
        return False

    def schedule_gift(self, item: str) -> None:
        """Another participant wants this blob: give it soon, when it is here."""
        with self._lock:
            if len(self._to_give) < RESEEDS:
                share = int.from_bytes(os.urandom(2), "big") / 0x10000
                due = time.monotonic() + share * RESEED_SPREAD_S
                self._to_give.setdefault(item, due)

    def cancel_gift(self, item: str) -> None:
        """Somebody else was faster."""
        with self._lock:
            self._to_give.pop(item, None)

    def next_gift_s(self) -> float | None:
        """Seconds until the next scheduled gift is due; None without one."""
        with self._lock:
            due = min(self._to_give.values(), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def take_gifts(self, *, all_of_them: bool = False) -> list[str]:
        """Items whose gift is due, or all that wait; they are scheduled no more."""
        now = time.monotonic()
        with self._lock:
            due = [item for item, at in self._to_give.items() if all_of_them or at <= now]
            for item in due:
                del self._to_give[item]
        return due

    def give(self, envelope: Envelope, api: RelayApi) -> None:
        """Put a blob back on the relay, if it is here. Failures leave it to other holders."""
        blob = self.held(envelope)
        if blob is None:
            return
        try:
            api.put_blob(envelope.id, blob)
        except (ConnectionLost, RelayError):
            pass  # other holders may have it too; whoever wants it asks again

    def _want_again(self, item: str) -> None:
        with self._lock:
            self._wanted.pop(item, None)


def _is_signed(envelope: Envelope, blob: bytes) -> bool:
    try:
        verify_item(envelope, blob)
    except ProtocolError:
        return False
    return True
