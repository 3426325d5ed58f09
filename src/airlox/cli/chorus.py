"""Several voices in one output: each line says whose it is, and no two lines mix.

Every part has a prefix, `box | `. What a job prints comes in whole lines, a progress bar as its
last state: whatever would go back in its line could pose as another machine. With `--json` every
line has the key `machine`.
"""

from __future__ import annotations

import os
import threading

from airlox.cli.output import STDERR, STDOUT, Voice, wants_style
from airlox.cli.terminal import RESET, clean_json, clean_line, clean_styled
from airlox.client.folding import LineFolder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, TextIO

    from airlox.client.folding import Line
    from airlox.errors import AirloxError

_COLOURS = (36, 33, 32, 35, 34)
"""Cyan, yellow, green, magenta, blue; in turn."""


class Chorus:
    """The voices of one command's machines."""

    def __init__(
        self,
        *,
        json: bool = False,
        quiet: bool = False,
        environ: Mapping[str, str] = os.environ,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self._settings = {
            "json": json,
            "quiet": quiet,
            "environ": environ,
            "stdout": stdout,
            "stderr": stderr,
        }
        self._colours: dict[str, int] = {}
        self.environ = environ
        self.width = 0
        self.lock = threading.Lock()

    def align(self, names: Iterable[str]) -> None:
        """From now on, what follows the prefixes of these begins in one column."""
        self.width = max(len(clean_line(name)) for name in names)

    def part(self, name: str) -> Part:
        """The voice of one machine; for one thread."""
        colour = self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
        return Part(name, colour, self, **self._settings)


class Part(Voice):
    """What one machine of several has to say."""

    def __init__(self, name: str, colour: int, chorus: Chorus, **settings: Any) -> None:
        super().__init__(**settings)
        self._name = name
        self._colour = colour
        self._chorus = chorus
        self._is_muted = False
        self._folders = {stream: LineFolder() for stream in (STDOUT, STDERR)}
        self.rewrites = False  # a line that others may have written after is not taken back

    def mute(self) -> None:
        """Say nothing more, from any thread."""
        self._is_muted = True

    def say(self, text: str) -> None:
        self._write(self._out, f"{self._prefix(self._out)}{clean_line(text)}\n")

    def document(self, value: Any) -> None:
        """A result, as one line that names the machine."""
        self.json_line(value)

    def json_line(self, value: Any) -> None:
        super().json_line({"machine": self._name, **value})

    def warn(self, text: str) -> None:
        if self.json:
            self._error_line({"warning": text})
        else:
            super().warn(text)

    def fail(self, error: AirloxError) -> None:
        if self.json:
            hint = {"hint": error.hint} if error.hint else {}
            self._error_line({"error": error.message, "code": error.code, **hint})
        else:
            super().fail(error)

    def status(self, text: str, **event: object) -> None:
        if self.json:
            self._error_line(event)
        else:
            self.note(text)

    def end_status(self, text: str = "", **event: object) -> None:
        if self.json and event:
            self._error_line(event)
        elif text:
            self.note(text)

    def output(self, stream: int, chunk: bytes) -> None:
        self._lines(stream, self._folders[stream].feed(chunk))

    def end_output(self) -> None:
        for stream, folder in self._folders.items():
            self._lines(stream, folder.rest())

    def _lines(self, stream: int, lines: list[Line]) -> None:
        if not lines:
            return
        target = self._out if stream == STDOUT else self._err
        prefix = self._prefix(target)
        if target.isatty():
            self._write(target, "".join(f"{prefix}{clean_styled(line.text)}\n" for line in lines))
            return
        data = b"".join(b"%b%b\n" % (prefix.encode(), line.data) for line in lines)
        with self._chorus.lock:
            if not self._is_muted:
                target.flush()
                target.buffer.write(data)
                target.buffer.flush()

    def _prefix(self, target: TextIO) -> str:
        title = clean_line(self._name).ljust(self._chorus.width)
        if wants_style(target, self._chorus.environ):
            title = f"\x1b[{self._colour}m{title}{RESET}"
        return f"{title} | "

    def _tell(self, text: str, style: str | None) -> None:
        prefix = self._prefix(self._err)
        lines = [self._styled(clean_line(line), style) for line in text.split("\n")]
        self._write(self._err, "".join(f"{prefix}{line}\n" for line in lines))

    def _error_line(self, value: dict[str, object]) -> None:
        import msgspec

        said = msgspec.json.encode({"machine": self._name, **value}).decode()
        self._write(self._err, clean_json(said) + "\n")

    def _write(self, stream: TextIO, text: str) -> None:
        with self._chorus.lock:
            if not self._is_muted:
                stream.write(text)
                stream.flush()
