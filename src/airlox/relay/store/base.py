"""What a store promises. Rules of sessions live above it; a store knows only bytes.

A session is a list of *entries* (opaque, appended, seldom rewritten as a whole) and named *blobs*.

Promises
- `append`, `rewrite` and `purge` are ordered: what was asked first is durable first, over all
  sessions.
- A future that resolves means: the bytes survive `kill -9` and loss of power. One that fails
  means: nothing of that append will ever be read back.
- What is to happen `then` happens in the order of the disk, before whoever waits goes on.
- Names are any text of 1 to 100 ASCII characters; the store makes them safe for its medium.
- `append`, `rewrite`, `purge` and `drop_blob` return at once and belong to the event loop's
  thread; everything that may wait for a disk happens elsewhere.

Errors: `StorageError` with code `full` (no room; the store lives on), `busy` (too much is waiting
for the disk), `not_found` (no such blob or session), `storage` (it failed this time) or `failed`
(it takes nothing until somebody has seen to the disk).
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from airlox.protocol.encoding import SessionId

RELAY_LOG: Final = SessionId("relay")
"""Stands for a session in `read`, `append` and `purge`: the relay's own entries."""


class Pending(Future[None]):
    """Something on its way to the disk, which nobody calls back: whoever waits for it and is
    cancelled meanwhile is cancelled when it has arrived. `then` is called before it resolves."""

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._then = then

    def cancel(self, msg: object = None) -> bool:
        return False

    def arrive(self) -> None:
        try:
            if self._then is not None:
                self._then()
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(None)

    def fail(self, error: Exception) -> None:
        self.set_exception(error)
        self.exception()  # nobody needs to be waiting


class BlobReader(Protocol):
    """An open blob: it can be read to its end even when it is dropped meanwhile."""

    size: int

    async def read(self, most_bytes: int) -> bytes:
        """The next bytes; empty at the end."""

    def close(self) -> None: ...


class Upload(Protocol):
    """A blob that is being received. It has no name, and leaves nothing, until it is kept."""

    async def write(self, data: bytes) -> None:
        """Adds bytes. Raises StorageError."""

    async def digest(self) -> bytes:
        """SHA-256 of what was written so far. Raises StorageError."""

    async def keep(self, sid: SessionId, name: str) -> None:
        """Makes the blob durable as `name`. Raises StorageError; `not_found`: no such session."""

    async def drop(self) -> None:
        """Forgets the bytes, unless they were kept. Never raises."""


class Store(Protocol):
    async def start(self) -> None:
        """Opens the store and repairs what a crash left. Raises StorageError."""

    async def stop(self) -> None:
        """Makes durable what is waiting, then closes."""

    def sessions(self) -> list[SessionId]:
        """Sessions that have entries; `RELAY_LOG` is none of them."""

    async def read(self, sid: SessionId) -> list[bytes]:
        """Every durable entry of a session, in order; none for an unknown one."""

    def append(
        self,
        sid: SessionId,
        entries: Sequence[bytes],
        blob: tuple[str, bytes] | None = None,
        then: Callable[[], None] | None = None,
    ) -> Pending:
        """Adds entries, and a small blob with its name, as one: all of it or nothing."""

    def rewrite(
        self,
        sid: SessionId,
        change: Callable[[list[bytes]], list[bytes]],
        then: Callable[[], None] | None = None,
    ) -> Pending:
        """Puts what `change` makes of a session's entries in their place: all of it or nothing.

        In order with appends. `change` may run in another thread; it changes nothing else.
        """

    def purge(self, sid: SessionId) -> Pending:
        """Removes every trace of a session. The id may be used again."""

    def new_upload(self) -> Upload: ...

    async def open_blob(self, sid: SessionId, name: str) -> BlobReader:
        """Raises StorageError `not_found`."""

    def drop_blob(self, sid: SessionId, name: str) -> None:
        """Deletes a blob, soon. Call it once the entry that says so is durable."""

    async def retain(self, sid: SessionId, names: set[str]) -> None:
        """Deletes the blobs of a session that are not in `names`: what a crash left behind.

        For the time before anything else is asked for that session.
        """

    def is_failing(self) -> bool:
        """Whether every write is refused with `failed` for now."""

    def free_bytes(self) -> int:
        """Room left. Raises OSError."""
