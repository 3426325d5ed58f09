"""What a job printed, as the result will hold it: the head, one marker line, the tail.

Rules
- Each stream is taken whole, redacted, counted; memory holds a bounded head and tail of it.
- The text is UTF-8; other bytes become replacement characters and count as such.
- A text over its limit loses its middle; the tail is the last to be shortened, because that is
  where a failure says what it was.

Left to others: showing output while the job runs (`live.py`), the size of the whole result
(`answer.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from airlox.protocol.limits import OUTPUT_BYTES
from airlox.runner.redact import Redactor

_KEPT_BYTES: Final = OUTPUT_BYTES // 2
"""Held of each end of a stream."""
_MARKER_BYTES: Final = 80
"""More than any marker line has."""


class Text(NamedTuple):
    """A stream as the result holds it."""

    text: str
    truncated: bool


class Capture:
    """One stream of one job."""

    def __init__(self, redactor: Redactor) -> None:
        self._stream = redactor.stream()
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0
        """Redacted bytes so far."""

    def write(self, chunk: bytes) -> None:
        self._keep(self._stream.feed(chunk))

    def close(self) -> None:
        """The stream has ended: what was held back for redaction belongs to it now."""
        self._keep(self._stream.flush())

    def add_line(self, line: str) -> None:
        """A line of the runner's own, on a line of its own."""
        last = bytes((self._tail or self._head)[-1:])
        self._keep((b"" if last in (b"", b"\n") else b"\n") + line.encode() + b"\n")

    def text(self, limit_bytes: int = OUTPUT_BYTES) -> Text:
        """The stream in at most `limit_bytes` of UTF-8."""
        left_out = self.total_bytes - len(self._head) - len(self._tail)
        if left_out == 0:
            whole = (self._head + self._tail).decode("utf-8", "replace")
            if _size(whole) <= limit_bytes:
                return Text(whole, truncated=False)
        return self._shortened(limit_bytes)

    def _keep(self, data: bytes) -> None:
        self.total_bytes += len(data)
        room = _KEPT_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * _KEPT_BYTES:
            del self._tail[:-_KEPT_BYTES]

    def _shortened(self, limit_bytes: int) -> Text:
        room = limit_bytes - _MARKER_BYTES
        if room <= 0:
            return Text("", truncated=self.total_bytes > 0)
        kept = bytes(self._head + self._tail)
        tail = _last(kept, min(_KEPT_BYTES, room))
        head = _first(kept[: len(kept) - len(tail)], room - _size(_decoded(tail)))
        left_out = self.total_bytes - len(head) - len(tail)
        text = f"{_decoded(head)}\n[airlox: {left_out} bytes left out here]\n{_decoded(tail)}"
        return Text(text, truncated=True)


def _first(data: bytes, room: int) -> bytes:
    """The longest beginning that decodes to at most `room` bytes and cuts no character."""
    cut = _unfinished(data[: max(0, room)])
    while cut and (excess := _size(_decoded(cut)) - room) > 0:
        cut = _unfinished(cut[: len(cut) - max(1, excess // 3)])
    return cut


def _last(data: bytes, room: int) -> bytes:
    """The longest end that decodes to at most `room` bytes and cuts no character."""
    cut = _unbegun(data[max(0, len(data) - room) :])
    while cut and (excess := _size(_decoded(cut)) - room) > 0:
        cut = _unbegun(cut[max(1, excess // 3) :])
    return cut


def _unfinished(data: bytes) -> bytes:
    """`data` without a character at its end whose last bytes are missing."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if length > back else data
        if byte < 0x80:
            break
    return data


def _unbegun(data: bytes) -> bytes:
    """`data` without the last bytes of a character at its start whose first are missing."""
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _size(text: str) -> int:
    return len(text.encode())
