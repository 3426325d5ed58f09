"""Server-sent events: what the relay writes on a stream, and the reader's incremental parser.

The parser follows the HTML standard: lines end in LF, CR or CRLF, comments and unknown fields
are skipped, an event without data is none, an id stays until the next one. However the bytes
are cut into pieces, the same events come out, each as soon as its last byte is there.

Every buffer is bounded, since a relay may send a line that never ends. What this leaves to
others: what the kinds of events mean (`wire.py`, `view.py`), keepalive times, reconnecting.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from airlox.errors import EncodingError, LimitError

EVENT_BYTES: Final = 2 * 1024 * 1024
"""Most bytes a parser holds of one event: a runner's list of lacking content fits in base64."""

_MARK: Final = b"\xef\xbb\xbf"
"""Byte order mark, skipped at the start of a stream."""


class SseEvent(Struct, frozen=True):
    """One event: the id that stands at it (None before the first), its kind, its data."""

    id: str | None
    event: str
    data: str


def encode_event(seq: int | None, event: str | None, data: str) -> bytes:
    """The bytes of one event; `seq` becomes its id.

    Raises EncodingError when `event` is empty or not one line, or `data` has a carriage return,
    which the format cannot carry.
    """
    lines = []
    if seq is not None:
        lines.append(f"id: {seq}\n")
    if event is not None:
        if not event or "\n" in event or "\r" in event:
            raise EncodingError(f"event kind {event!r} is not one line")
        lines.append(f"event: {event}\n")
    if "\r" in data:
        raise EncodingError(f"data of event {event!r} has a carriage return")
    lines += [f"data: {line}\n" for line in data.split("\n")]
    lines.append("\n")
    return "".join(lines).encode()


def comment(text: str = "keepalive") -> bytes:
    """Bytes that no parser takes for an event: they show that the stream is alive."""
    if "\n" in text or "\r" in text:
        raise EncodingError(f"comment {text!r} is not one line")
    return f": {text}\n\n".encode()


class SseParser:
    """Turns the bytes of one stream into its events."""

    def __init__(self, limit_bytes: int = EVENT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._line = bytearray()
        self._at_start = True
        self._after_cr = False
        self._id: str | None = None
        self._event = ""
        self._data: list[str] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that `chunk` completes.

        Raises LimitError when an event or a line grows beyond the limit; the stream is then of
        no more use.
        """
        if not chunk:
            return []
        if self._after_cr:
            # This LF belongs to the CR that ended the last piece.
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        events = []
        for piece in chunk.splitlines(keepends=True):
            self._line += piece
            if len(self._line) + self._data_bytes > self._limit_bytes:
                raise LimitError(f"an event of the stream exceeds {self._limit_bytes} bytes")
            if piece.endswith((b"\n", b"\r")):
                event = self._end_line()
                if event is not None:
                    events.append(event)
        return events

    def _end_line(self) -> SseEvent | None:
        line = bytes(self._line).rstrip(b"\r\n")
        self._line.clear()
        if self._at_start:
            line = line.removeprefix(_MARK)
            self._at_start = False
        if not line:
            return self._end_event()
        name, _, value = line.decode("utf-8", "replace").partition(":")
        self._take_field(name, value.removeprefix(" "), len(line))
        return None

    def _take_field(self, name: str, value: str, line_bytes: int) -> None:
        if name == "data":
            self._data.append(value)
            self._data_bytes += line_bytes
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value

    def _end_event(self) -> SseEvent | None:
        event = None
        if self._data:
            event = SseEvent(self._id, self._event or "message", "\n".join(self._data))
        self._event = ""
        self._data = []
        self._data_bytes = 0
        return event
