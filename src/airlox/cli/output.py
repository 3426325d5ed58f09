"""The voice of the command line: what is said where.

* Results go to standard output; everything else (progress, questions, warnings, errors) to
  standard error, so that `airlox … | tool` gets results alone.
* With `--json` standard output holds JSON only, and standard error only warnings, errors and what
  happens while one waits, each one JSON line: `warning`, `error` with `code` and, where there is
  one, `hint`, or `event`.
* `--quiet` silences notes, never results, warnings or errors.
* Every text passes `terminal.py`; no command writes to a stream by itself. Output of a job goes
  to a pipe byte for byte, and to a terminal through a filter.
* Styles are used on terminals only, and never when NO_COLOR is set.
"""

from __future__ import annotations

import sys

from airlox.cli.terminal import RESET, TerminalFilter, clean, clean_json, clean_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, TextIO

    from airlox.errors import AirloxError

STDOUT, STDERR = 1, 2
_ERASE_LINE = "\r\x1b[2K"
_STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m", "red": "\x1b[31m", "green": "\x1b[32m"}


class Voice:
    """Says what a command has to say. One per process."""

    def __init__(
        self,
        *,
        json: bool = False,
        quiet: bool = False,
        environ: Mapping[str, str] | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.json = json
        self._quiet = quiet or json
        self._out = stdout or sys.stdout
        self._err = stderr or sys.stderr
        self._has_style = wants_style(self._err, {} if environ is None else environ)
        self.rewrites = self._err.isatty() and (environ or {}).get("TERM") != "dumb"
        """Whether `status` takes its last line back, rather than adding another."""
        self._filters: dict[int, TerminalFilter] = {}
        self._line_is_open = False
        self._status_is_shown = False

    @property
    def is_quiet(self) -> bool:
        """Whether notes would go nowhere."""
        return self._quiet

    # -- results -----------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """A result, as text."""
        self._write(self._out, clean(text) + "\n")

    def document(self, value: object) -> None:
        """A result, as one indented JSON document."""
        import msgspec

        raw = msgspec.json.encode(value, order="sorted")
        self._write(self._out, clean_json(msgspec.json.format(raw, indent=2).decode()) + "\n")

    def json_line(self, value: object) -> None:
        """A result, as one line of JSON lines."""
        import msgspec

        text = msgspec.json.encode(value, order="sorted").decode()
        self._write(self._out, clean_json(text) + "\n")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A result of several columns. Without rows nothing is printed."""
        if not rows:
            return
        cells = [[clean_line(cell) for cell in row] for row in [head, *rows]]
        widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
        for row in cells:
            padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            self._write(self._out, "  ".join(padded).rstrip() + "\n")

    # -- everything else ---------------------------------------------------------------------

    def note(self, text: str, style: str | None = None) -> None:
        """What helps a person to follow; not a result."""
        if not self._quiet:
            self._tell(text, style)

    def show(self, text: str) -> None:
        """What must be seen for the command to go on, whatever was asked to be quiet."""
        self._tell(text, None)

    def warn(self, text: str) -> None:
        """What is amiss without ending the command; one line, also of JSON."""
        if self.json:
            self._write(self._err, clean_json(_compact({"warning": text})) + "\n")
        else:
            self._tell(f"airlox: {clean_line(text)}", None)

    def fail(self, error: AirloxError) -> None:
        """Why the command ends."""
        if self.json:
            said = {"error": error.message, "code": error.code}
            if error.hint:
                said["hint"] = error.hint
            self._write(self._err, clean_json(_compact(said)) + "\n")
            return
        self._tell(f"airlox: {clean_line(error.message)}", "red")
        if error.hint:
            self._tell(f"  hint: {clean_line(error.hint)}", None)

    def ask(self, question: str) -> str:
        """The answer to a question, stripped; empty at the end of input."""
        self._close_line()
        self._err.write(clean_line(question) + " ")
        self._err.flush()
        return sys.stdin.readline().strip()

    # -- what is waited for ------------------------------------------------------------------

    def status(self, text: str, **event: object) -> None:
        """How something stands that is waited for. On a terminal a line that the next one takes
        the place of, elsewhere a line of its own; with --json `event`."""
        if self.json:
            self._write(self._err, clean_json(_compact(event)) + "\n")
        elif self._quiet:
            return
        elif self.rewrites:
            self._close_line()
            self._err.write(clean_line(text)[: _columns() - 1])
            self._err.flush()
            self._status_is_shown = True
        else:
            self._tell(text, None)

    def end_status(self, text: str = "", **event: object) -> None:
        """What was waited for has come, or will not; `text` says which."""
        self._close_line()
        if self.json and event:
            self._write(self._err, clean_json(_compact(event)) + "\n")
        elif text:
            self.note(text)

    # -- output of jobs ----------------------------------------------------------------------

    def output(self, stream: int, chunk: bytes) -> None:
        """Output of a job as it happens: `stream` is STDOUT or STDERR."""
        if not chunk:
            return
        self._erase_status()
        target = self._out if stream == STDOUT else self._err
        if target.isatty():
            self._show(stream, chunk, final=False)
            return
        target.flush()
        target.buffer.write(chunk)
        target.buffer.flush()

    def end_output(self) -> None:
        """After the last chunk: nothing of the job's styles or open line stays behind."""
        for stream in list(self._filters):
            self._show(stream, b"", final=True)
        self._filters.clear()
        self._close_line()

    def _show(self, stream: int, chunk: bytes, *, final: bool) -> None:
        filter_ = self._filters.setdefault(stream, TerminalFilter())
        text = filter_.feed(chunk, final=final)
        if text:
            self._line_is_open = not text.endswith("\n")
        if final and filter_.is_styled:
            text += RESET
        target = self._out if stream == STDOUT else self._err
        target.write(text)
        target.flush()

    # -- how it is written -------------------------------------------------------------------

    def _tell(self, text: str, style: str | None) -> None:
        self._close_line()
        self._write(self._err, self._styled(clean(text), style) + "\n")

    def _styled(self, text: str, style: str | None) -> str:
        if style is None or not self._has_style:
            return text
        return f"{_STYLES[style]}{text}{RESET}"

    def _close_line(self) -> None:
        self._erase_status()
        if self._line_is_open:
            self._line_is_open = False
            self._err.write("\n")

    def _erase_status(self) -> None:
        if self._status_is_shown:
            self._status_is_shown = False
            self._err.write(_ERASE_LINE)
            self._err.flush()

    def _write(self, stream: TextIO, text: str) -> None:
        self._erase_status()
        stream.write(text)
        stream.flush()


def path_text(path: Any) -> str:
    """A path as text, also where its bytes are no text."""
    import os

    return os.fsencode(path).decode("utf-8", "backslashreplace")


def duration_text(ms: int) -> str:
    """How long something took: `84 ms`, `41.2 s`, `12 min 5 s`, `2 h 3 min`."""
    if ms < 1000:
        return f"{ms} ms"
    seconds = ms / 1000
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def span_text(seconds: int) -> str:
    """A limit in time: `90 s`, `30 min`, `2 h`, `7 days`."""
    for unit_s, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds > unit_s and seconds % unit_s == 0:
            return f"{seconds // unit_s} {unit}"
    return f"{seconds} s"


def size_text(size_bytes: int) -> str:
    """A size for people: `18 B`, `412 kB`, `3.1 MB`."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    size, unit = size_bytes / 1000, 0
    while size >= 999.5 and unit < 4:
        size, unit = size / 1000, unit + 1
    digits = 0 if unit == 0 or size >= 99.95 else 1
    return f"{size:.{digits}f} {'kMGTP'[unit]}B"


def time_text(at_ms: int) -> str:
    """A moment, in local time to the second."""
    import time

    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns


def _compact(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def wants_style(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether a stream is a terminal that shows colours, and nobody asked for none."""
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    return stream.isatty()
