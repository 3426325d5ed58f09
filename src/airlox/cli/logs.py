"""`airlox logs`: what a job printed, while it runs and after its end.

While a job runs this is its live output, as far as the relay still holds it: what is gone is said.
After its end it is the output of the signed result: the beginning and the end of what was printed,
with a line between them that says how much was left out. `--from BYTE` goes on at a byte of the
live output, also for as long as the relay holds it after the job's end.

The exit code is 0 however the job ended: `airlox result` passes on the job's own.
"""

from __future__ import annotations

from itertools import chain

from airlox.cli import ending, opening, options
from airlox.cli.output import STDERR, STDOUT
from airlox.cli.waiting import Waiting
from airlox.client.folding import LineFolder, fold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator
    from typing import Any, Protocol

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.client.folding import Line
    from airlox.client.follow import Output
    from airlox.client.jobs import Job, Result

    class Printer(Protocol):
        """Tells of output; `next_byte` is where the live output goes on after what was told."""

        next_byte: int

        def gone(self, start: int, end: int) -> None: ...
        def piece(self, piece: Output) -> None: ...
        def result(self, result: Result) -> None: ...
        def end(self, job: Job, result: Result | None) -> None: ...


EXAMPLES = {"logs": "airlox logs -f --on gpu-box -- 7QkZ0vQ3T1mJx2c4b6d8eg"}

_STREAMS = {"stdout": STDOUT, "stderr": STDERR}


def add_arguments(parser: Parser, command: str) -> bool:
    parser.add_argument(
        "job", metavar="JOB", help="its id; put -- before one that starts with a dash"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on until the job ends; Ctrl-C leaves it be"
    )
    parser.add_argument(
        "--from",
        dest="from_byte",
        type=options.offset,
        metavar="BYTE",
        help="only what comes from this byte of the live output on; with --json the last line "
        "says where to go on (next)",
    )
    parser.add_argument("--on", metavar="MACHINE", help="the machine the job was sent to")
    options.add_invite_flags(parser)
    return True


def run(args: Namespace, voice: Voice) -> int:
    with opening.open_place(args, voice) as session:
        job = session.job(args.job)
        start = args.from_byte or 0
        printer: Printer = _Lines(voice, start) if voice.json else _Plain(voice, start)
        result = job.result()
        if result is None and args.follow:
            waits = Waiting(job, voice, args.on, lambda: "a runner")
            _show(job.output(from_byte=start, on_status=waits.hear), printer)
            result = job.wait()
            if printer.next_byte > start:
                _tell_missing_end(result, printer)
            else:
                _show_ended(job, result, printer, args.from_byte)
        elif result is None:
            _show(job.held_output(from_byte=start), printer)
        else:
            _show_ended(job, result, printer, args.from_byte)
        printer.end(job, result)
        if result is None:
            on = "" if args.on is None else f"--on {args.on} "
            more = f"airlox logs -f {on}--from {printer.next_byte} -- {job.id}"
            voice.note(f"it has not ended; what follows: {more}")
    return 0


def _show_ended(job: Job, result: Result, printer: Printer, from_byte: int | None) -> None:
    """Tell the output of a job that has ended: the result's, unless a byte to begin at was named
    and the relay still has what comes from there, or there is no signed result."""
    if result.signed and from_byte is None:
        printer.result(result)
        return
    start, total = printer.next_byte, _total(result)
    held = job.held_output(from_byte=start)
    first = next(held, None)
    held_from = total if first is None else first.offset
    if result.signed and held_from > start:
        printer.gone(start, held_from)
        printer.result(result)
        return
    if first is not None:
        _show(chain((first,), held), printer)
    _tell_missing_end(result, printer)


def _show(pieces: Iterable[Output], printer: Printer) -> None:
    for piece in pieces:
        if piece.offset > printer.next_byte:
            printer.gone(printer.next_byte, piece.offset)
        printer.piece(piece)
        printer.next_byte = piece.offset + len(piece.data)


def _tell_missing_end(result: Result, printer: Printer) -> None:
    total = _total(result)
    if total > printer.next_byte:
        printer.gone(printer.next_byte, total)
        printer.next_byte = total


def _total(result: Result) -> int:
    """How many bytes the live output came to, by the runner's signed word."""
    return 0 if result.live is None else result.live.stdout_bytes + result.live.stderr_bytes


class _Plain:
    """For people, and for programs that read a stream."""

    def __init__(self, voice: Voice, start: int) -> None:
        self.next_byte = start
        self._voice = voice

    def gone(self, start: int, end: int) -> None:
        self._voice.warn(f"bytes {start} to {end} of the live output are gone from the relay")

    def piece(self, piece: Output) -> None:
        self._voice.output(_STREAMS[piece.stream], piece.data)

    def result(self, result: Result) -> None:
        ending.print_output(result, self._voice)

    def end(self, job: Job, result: Result | None) -> None:
        self._voice.end_output()
        if result is not None:
            self._voice.note(ending.last_line(result), "green" if result.ok else "red")


class _Lines:
    """JSON lines: one a line of output, `gone_bytes` for what is gone, and at last how the job
    stands."""

    def __init__(self, voice: Voice, start: int) -> None:
        self.next_byte = start
        self._voice = voice
        self._folders = {stream: LineFolder() for stream in _STREAMS}

    def gone(self, start: int, end: int) -> None:
        self._rest()
        self._voice.json_line({"gone_bytes": end - start, "offset": start})

    def piece(self, piece: Output) -> None:
        folder = self._folders[piece.stream]
        for line in folder.feed(piece.data, piece.offset):
            self._line(piece.stream, line)

    def result(self, result: Result) -> None:
        """Lines of the result have no offset: its texts are cut, and apart."""
        for stream in _STREAMS:
            for line in _lines_of(getattr(result, stream)):
                self._voice.json_line({"stream": stream, "text": line})
        self.next_byte = max(self.next_byte, _total(result))

    def end(self, job: Job, result: Result | None) -> None:
        self._rest()
        last: dict[str, Any] = {"job": job.id, "next": self.next_byte}
        if result is None:
            self._voice.json_line(last | {"status": job.state().state})
            return
        names = ("exit_code", "reason", "signed", "status", "stderr_truncated", "stdout_truncated")
        self._voice.json_line(last | {name: getattr(result, name) for name in names})

    def _rest(self) -> None:
        for stream, folder in self._folders.items():
            for line in folder.rest():
                self._line(stream, line)

    def _line(self, stream: str, line: Line) -> None:
        shape = {"offset": line.offset, "stream": stream, "text": line.text}
        self._voice.json_line(shape | ({"open": True} if line.is_open else {}))


def _lines_of(text: str) -> Iterator[str]:
    *lines, last = fold(text).split("\n")
    yield from (line.rstrip("\r") for line in lines)
    if last:
        yield last
