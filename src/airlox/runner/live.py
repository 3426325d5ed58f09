"""What a job prints, on its way to whoever follows it while it runs.

Rules
- Nothing here ever holds up the job: `write` keeps what it gets in a bounded buffer and returns.
  Output that comes faster than the line or the rate allows loses its oldest part, and a line says
  how much; the last bytes are always kept.
- A segment leaves at most every 20 ms, or when 48 KiB wait; the first bytes after a pause leave
  at once.
- Output is redacted across the cuts. What may be the beginning of a path waits for at most
  100 ms: then it is shown, for a prompt without a newline must not hang.
- Segments are posted in order, each again until the relay has it. A relay that refuses them ends
  the live output and not the job. The signed result is the authority.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from airlox.client.outbox import OLD_EPOCH
from airlox.errors import AirloxError
from airlox.protocol import limits
from airlox.protocol.job import LiveTotals
from airlox.protocol.live import STDERR, STDOUT, LiveWriter, Piece
from airlox.runner.patience import may_pass
from airlox.runner.redact import Redactor

FLUSH_S: Final = 0.02
HOLD_S: Final = 0.1
SEGMENT_BYTES: Final = 48 * limits.KIB
SEGMENT_PIECES: Final = 4096
"""Each piece costs five bytes more, and some memory."""
PENDING_BYTES: Final = 256 * limits.KIB
PENDING_PIECES: Final = 16_384
BYTES_PER_S: Final = 512 * limits.KIB
RETRY_S: Final = 0.5
CLOSE_S: Final = 5.0
"""How long the end of the output may take to reach the relay before the result goes its way."""

Send = Callable[[bytes], Awaitable[None]]


class LiveOutput:
    """The live output of one job. Made and used in the event loop's thread."""

    def __init__(
        self,
        writer: LiveWriter,
        redactor: Redactor,
        send: Send,
        rekey: Callable[[LiveWriter], LiveWriter] = lambda writer: writer,
    ) -> None:
        """`send` posts one frame and raises what the client raises. `rekey` gives the writer the
        session's key as it is by then."""
        self._writer = writer
        self._rekey = rekey
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._streams = {stream: redactor.stream() for stream in (STDOUT, STDERR)}
        self._held_since: dict[int, float] = {}
        self._pending = _Pending()
        self._sent_bytes = {STDOUT: 0, STDERR: 0}
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._refused = False
        self._budget_at = self._loop.time()
        self._task = asyncio.create_task(self._run())

    def write(self, stream: int, chunk: bytes) -> None:
        """Take what the job printed. Never blocks."""
        redacted = self._streams[stream]
        self._pending.add(stream, redacted.feed(chunk))
        if redacted.held_bytes:
            self._held_since.setdefault(stream, self._loop.time())
        else:
            self._held_since.pop(stream, None)
        self._wake.set()

    async def close(self) -> LiveTotals:
        """Post what is left, within a bounded time, and say what it came to."""
        self._closing.set()
        self._wake.set()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._task
        except TimeoutError:
            pass
        finally:
            self._task.cancel()
        self._release_held(by=None)
        return LiveTotals(
            dropped_bytes=self._pending.dropped_bytes + self._pending.size_bytes,
            head=self._writer.head,
            segments=self._writer.n,
            stderr_bytes=self._sent_bytes[STDERR],
            stdout_bytes=self._sent_bytes[STDOUT],
        )

    async def _run(self) -> None:
        while True:
            await self._something_to_send()
            pieces = self._pending.take(SEGMENT_BYTES, SEGMENT_PIECES)
            if pieces:
                await self._post(pieces)
            elif self._closing.is_set():
                return
            if not self._closing.is_set():
                await self._pause()

    async def _something_to_send(self) -> None:
        """Return when bytes are pending, or the output has ended."""
        while True:
            self._wake.clear()
            self._release_held(by=self._loop.time() - HOLD_S)
            if self._closing.is_set():
                self._release_held(by=None)
                return
            if self._pending.size_bytes:
                return
            due = min(self._held_since.values(), default=None)
            wait_s = None if due is None else max(0.0, due + HOLD_S - self._loop.time())
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _release_held(self, by: float | None) -> None:
        """Let go of what was held back since before `by`; all of it for None."""
        for stream, since in tuple(self._held_since.items()):
            if by is None or since <= by:
                del self._held_since[stream]
                self._pending.add(stream, self._streams[stream].flush())

    async def _pause(self) -> None:
        """Gather for a moment: longer when the rate is used up, shorter when much is waiting."""
        rate_s = self._budget_at - self._loop.time()
        wait_s = max(rate_s, 0.0 if self._pending.size_bytes >= SEGMENT_BYTES else FLUSH_S)
        if wait_s > 0:
            try:
                async with asyncio.timeout(wait_s):
                    await self._closing.wait()
            except TimeoutError:
                pass

    async def _post(self, pieces: list[Piece]) -> None:
        if self._refused:
            self._pending.drop(pieces)
            return
        before = self._rekey(self._writer)
        frame, self._writer = before.write(pieces)
        size = 0
        for piece in pieces:
            self._sent_bytes[piece.stream] += len(piece.data)
            size += len(piece.data)
        self._budget_at = max(self._budget_at, self._loop.time()) + size / BYTES_PER_S
        while not await self._posted(frame):
            await asyncio.sleep(RETRY_S)
            current = self._rekey(before)
            if current.epoch != before.epoch:  # the relay takes nothing under the old key
                before = current
                frame, self._writer = before.write(pieces)

    async def _posted(self, frame: bytes) -> bool:
        """True when the relay has the frame, or will never take it."""
        try:
            await self._send(frame)
        except AirloxError as error:
            if may_pass(error) or error.code == OLD_EPOCH:
                return False
            self._refused = error.code != "duplicate"
        return True


class _Pending:
    """Pieces that wait to be sent, oldest first, bounded by losing the oldest."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self.size_bytes = 0
        self.dropped_bytes = 0
        self._unsaid_bytes = 0

    def add(self, stream: int, data: bytes) -> None:
        if not data:
            return
        if len(data) > PENDING_BYTES:
            self._lose(len(data) - PENDING_BYTES)
            data = data[-PENDING_BYTES:]
        self._pieces.append(Piece(stream, data))
        self.size_bytes += len(data)
        while self.size_bytes > PENDING_BYTES or len(self._pieces) > PENDING_PIECES:
            oldest = self._pieces.popleft()
            self.size_bytes -= len(oldest.data)
            self._lose(len(oldest.data))

    def drop(self, pieces: list[Piece]) -> None:
        """Count pieces that were taken and are sent nowhere."""
        self.dropped_bytes += sum(len(piece.data) for piece in pieces)

    def take(self, most_bytes: int, most_pieces: int) -> list[Piece]:
        """The oldest pieces; before them a line that says what was lost ahead of them."""
        taken: list[Piece] = []
        if self._unsaid_bytes:
            line = f"\n[airlox: {self._unsaid_bytes} bytes left out of the live output]\n"
            taken.append(Piece(STDERR, line.encode()))
            self._unsaid_bytes = 0
        room = most_bytes
        while self._pieces and room > 0 and len(taken) < most_pieces:
            stream, data = self._pieces.popleft()
            if len(data) > room:
                self._pieces.appendleft(Piece(stream, data[room:]))
                data = data[:room]
            if taken and taken[-1].stream == stream:
                taken[-1] = Piece(stream, taken[-1].data + data)
            else:
                taken.append(Piece(stream, data))
            room -= len(data)
            self.size_bytes -= len(data)
        return taken

    def _lose(self, count: int) -> None:
        self.dropped_bytes += count
        self._unsaid_bytes += count
