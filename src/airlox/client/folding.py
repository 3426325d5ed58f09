"""Output of a job as lines, with what was written over left out.

A progress bar is one line that is written over and over, each time after a carriage return. On a
terminal the last one stands; whoever reads lines (JSON, an agent, prefixed output of several
machines) is told that one only. Nothing here knows where the bytes come from or go to.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LINE_BYTES: Final = 64 * 1024
"""A longer line comes in parts."""


class Line(NamedTuple):
    """One line without its line break. `offset` is where its last writing begins in the output;
    `is_open` says that no line break has come: the rest of the line may follow as another one."""

    offset: int
    data: bytes
    is_open: bool = False

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class LineFolder:
    """Turns the bytes of one output stream into lines, however they are cut into pieces.

    It holds at most one line of `LINE_BYTES`.
    """

    def __init__(self) -> None:
        self._held = b""
        self._offset = 0

    def feed(self, data: bytes, offset: int = 0) -> list[Line]:
        """The lines that `data` completes; `offset` is where it begins in the whole output."""
        lines = []
        at = 0
        while at < len(data):
            line_end = data.find(b"\n", at)
            stop = len(data) if line_end < 0 else line_end
            while at < stop:
                room = LINE_BYTES + 1 - len(self._held)
                piece = data[at : min(stop, at + room)]
                self._take(piece, offset + at)
                at += len(piece)
                if len(self._held) > LINE_BYTES:
                    lines.append(self._part(offset + at))
            if line_end >= 0:
                start = self._offset if self._held else offset + at
                lines.append(Line(start, self._held.rstrip(b"\r")))
                self._held = b""
                at += 1
        return lines

    def rest(self) -> list[Line]:
        """The line that is still open, if there is one: the output has ended, or pauses."""
        held, self._held = self._held.rstrip(b"\r"), b""
        return [Line(self._offset, held, is_open=True)] if held else []

    def _take(self, piece: bytes, offset: int) -> None:
        """More of the open line; what it writes over is forgotten."""
        before = len(self._held)
        if not before:
            self._offset = offset
        line = self._held + piece
        shown = line.rstrip(b"\r")
        start = shown.rfind(b"\r") + 1
        if start:
            self._offset = offset + start - before
        self._held = shown[start:] + line[len(shown) : len(shown) + 1]

    def _part(self, end: int) -> Line:
        """The beginning of an open line that is too long; `end` is where its bytes end."""
        cut = _between_characters(self._held, LINE_BYTES)
        part = Line(self._offset, self._held[:cut], is_open=True)
        self._held = self._held[cut:]
        self._offset = end - len(self._held)
        return part


def fold(text: str) -> str:
    """A text whose lines are as their last writing left them; line breaks stay as they are."""
    if "\r" not in text:
        return text
    return "\n".join(_last_writing(line) for line in text.split("\n"))


def _last_writing(line: str) -> str:
    """What a line shows in the end, with the carriage returns after it."""
    shown = line.rstrip("\r")
    return line[shown.rfind("\r") + 1 :]


def _between_characters(data: bytes, most: int) -> int:
    """The last place up to `most` where no UTF-8 character is cut."""
    for at in range(most, most - 4, -1):
        if not 0x80 <= data[at] < 0xC0:
            return at
    return most
