"""`airlox run`: send a job to another machine, show what it prints, end as it ended.

What runs is one of: a command (the words after `--`), a script (`--shell FILE`), a Python file.
Standard output and standard error of the job come out of ours as they happen; the signed result
has the last word. Ctrl-C cancels the job and waits for its end; a second one leaves at once.
"""

from __future__ import annotations

import os
import signal
import threading

from airlox.cli import ending, opening, options, pulling, tree, waiting
from airlox.cli.main import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_NO_RESULT
from airlox.cli.output import STDERR, STDOUT, path_text, size_text
from airlox.cli.waiting import Waiting
from airlox.errors import AirloxError, JobRefused, UsageError, WaitTimeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from types import FrameType, TracebackType
    from typing import Any, Protocol

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.client.answers import JobStatus
    from airlox.client.jobs import Job, Result
    from airlox.client.machines import Machine
    from airlox.client.session import Session
    from airlox.protocol.item import ItemRef

    class Cancellable(Protocol):
        """A job, or several."""

        def cancel(self) -> None: ...


EXAMPLES = {"run": "airlox run --on gpu-box --tree -- pytest -x tests/"}

_STREAMS = {"stdout": STDOUT, "stderr": STDERR}


def add_arguments(parser: Parser, command: str) -> bool:
    parser.usage = "airlox run [options] (FILE.py | --shell FILE | -- COMMAND …)"
    parser.add_argument("file", nargs="?", metavar="FILE.py", help="a Python file to run")
    parser.add_argument("--shell", metavar="FILE", help="a script to run, - reads it from stdin")
    _add_where(parser)
    _add_what_it_gets(parser)
    tree.add_flags(parser)
    waits = parser.add_argument_group("waiting")
    waits.add_argument(
        "--queue",
        type=options.duration,
        metavar="TIME",
        help="when no slot is free, wait for one: a day, or --queue=2h",
    )
    parser.let_stand_alone("--queue", "1d")
    waits.add_argument(
        "--no-wait", action="store_true", help="print the job's id and leave; see airlox result"
    )
    waits.add_argument(
        "--wait",
        type=options.duration,
        metavar="TIME",
        help="stop waiting after this long; the job goes on and the exit code is 75",
    )
    waits.add_argument("--out-dir", metavar="DIR", help="save the files the job writes there")
    options.add_invite_flags(parser)
    return True


def _add_where(parser: Parser) -> None:
    where = parser.add_argument_group("where it runs (any free runner, unless said)")
    where.add_argument(
        "--on",
        metavar="NAME[/LABEL]",
        help="a machine of `airlox machine`, or a label of its pool; several as a,b,c run it on "
        "each at once",
    )
    where.add_argument(
        "--all", action="store_true", help="on every runner there that is online and approved"
    )
    where.add_argument("--runner", metavar="RUNNER", help="one runner, by name or key")
    where.add_argument(
        "--label",
        type=options.words,
        action="append",
        metavar="LABEL",
        help="any runner with all these labels; may be repeated",
    )
    where.add_argument(
        "--require-layers",
        type=options.words,
        action="append",
        metavar="LIST",
        help="only in a sandbox with these layers, such as seccomp,landlock",
    )


def _add_what_it_gets(parser: Parser) -> None:
    gets = parser.add_argument_group("what it gets")
    gets.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="FILE",
        help="a file to send along (.py .md .zip .png .jpg .webp); ZIPs are unpacked",
    )
    gets.add_argument(
        "--requirement",
        type=options.words,
        action="append",
        metavar="PACKAGE",
        help="a package of the session's allowlist that a Python job needs",
    )
    gets.add_argument(
        "--timeout", type=options.duration, metavar="TIME", help="longest run [the session's]"
    )
    gets.add_argument(
        "--memory", type=options.memory, metavar="MB", help="most memory [the session's]"
    )
    gets.add_argument(
        "--progress-file", metavar="PATH", help="a file of the job that shows how far it is"
    )


def run(args: Namespace, voice: Voice) -> int:
    _check(args)
    if args.dry_run:
        return tree.list_all(args, voice)
    if args.all or (args.on is not None and "," in args.on):
        from airlox.cli import fanout

        return fanout.run(args, voice)
    with opening.open_place(args, voice) as session:
        machine = opening.machine_of(args)
        try:
            job = submit(args, session, machine, voice)
        except JobRefused as refused:
            if voice.json:
                voice.document(refusal_shape(refused))
                return EXIT_ERROR
            raise
        if machine is not None:
            opening.remember_job(args, machine, job.id)
        if job.upload is not None:
            tree.warn(job.upload, voice)
        if args.no_wait:
            return print_id(job, args, voice)
        voice.note(first_line(session, job, args.on), "bold")
        waits = Waiting(job, voice, args.on or args.runner, lambda: _runner_name(session, job))
        return follow(job, args, voice, waits)


def _check(args: Namespace) -> None:
    """Raises CommandLineError for a command line that names no job, or two."""
    given = [args.file is not None, args.shell is not None, bool(args.command)]
    if sum(given) != 1:
        raise options.CommandLineError(
            "nothing to run" if not any(given) else "give one thing to run, not several",
            hint="write a command after --, as in: airlox run --on gpu-box -- make test",
        )
    if args.file is not None and not args.file.lower().endswith(".py"):
        raise options.CommandLineError(
            f"{args.file[:80]!r} is not a Python file",
            hint="a command goes after --, a script after --shell",
        )
    tree.check(args)
    if args.requirement and args.file is None:
        raise options.CommandLineError("--requirement is for Python files")


# -- sending ----------------------------------------------------------------------------------


def submit(args: Namespace, session: Session, machine: Machine | None, voice: Voice) -> Job:
    """Send the job and return its handle. Raises JobRefused when no runner takes it."""
    source = read_source(args)
    return post(args, session, machine, source, send_inputs(args, session))


def send_inputs(args: Namespace, session: Session) -> list[ItemRef]:
    """The files of `--input`, sent to a session."""
    return [session.send_file(path) for path in args.input]


def post(
    args: Namespace, session: Session, machine: Machine | None, source: str, files: list[ItemRef]
) -> Job:
    """Post the job of a program's text and of files that were sent. Raises as `submit`."""
    choices = _choices(args, machine)
    if files:
        choices["files"] = files
    if args.file is not None:
        return session.run_python(
            source,
            filename=os.path.basename(args.file),
            requirements=options.flat(args.requirement),
            **choices,
        )
    return session.run_shell(source or args.command, **choices)


def read_source(args: Namespace) -> str:
    """The text of the script or the Python file; empty for a command."""
    from airlox import safefs
    from airlox.protocol.limits import CODE_BYTES

    path = args.file if args.file is not None else args.shell
    if path is None:
        return ""
    if path == "-":
        import sys

        data = sys.stdin.buffer.read(CODE_BYTES + 1)
    else:
        data = safefs.read_bounded(os.path.realpath(path), CODE_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path_text(path)} is not text in UTF-8") from None
    if not text:
        raise UsageError(f"{path_text(path)} is empty")
    return text


def _choices(args: Namespace, machine: Machine | None) -> dict[str, Any]:
    """What `Session.run_*` takes beside the program."""
    runner, labels = args.runner, options.flat(args.label)
    if machine is not None:
        runner, labels = machine.target(args.on.partition("/")[2], runner, labels)
    choices: dict[str, Any] = {
        "runner": runner,
        "labels": labels or None,
        "timeout": args.timeout,
        "memory_mb": args.memory,
        "progress_file": args.progress_file,
        "stay": not args.no_wait,
        "queue": args.queue,
    }
    choices |= tree.choices(args)
    if args.require_layers:
        choices["require_layers"] = sorted(set(options.flat(args.require_layers)))
    return choices


def refusal_shape(refused: AirloxError) -> dict[str, Any]:
    """What `--json` says of a job that was not sent, or not taken."""
    return {
        "hint": refused.hint,
        "job": getattr(refused, "job", None),
        "message": refused.message,
        "reason": refused.code,
        "status": "failed",
    }


def print_id(job: Job, args: Namespace, voice: Voice) -> int:
    status = job.waiting
    if voice.json:
        place = {} if status is None else {"place": status.place, "reason": status.reason}
        voice.document({"job": job.id, "runner": job.runner, **place})
        return 0
    voice.say(job.id)
    if status is not None:
        voice.note(waiting.text(status, args.on or args.runner))
    which = f"-- {job.id}" if args.on is None else f"--on {args.on.partition('/')[0]} -- {job.id}"
    voice.note(f"it runs on; its output: airlox logs -f {which}")
    voice.note(f"its result: airlox result --wait 2h {which}")
    return 0


def first_line(session: Session, job: Job, place: str | None) -> str:
    """`gpu-box · job 7Qk… · pytest -x tests/ · tree 412 files, 3.1 MB (18 changed)`."""
    from airlox.cli import shapes
    from airlox.protocol.job import OneRunner

    parts = [place or _runner_name(session, job), f"job {job.id}", shapes.what(job.meta)]
    upload = job.upload
    if upload is not None:
        sent = f"tree {upload.files} files, {size_text(upload.size)}"
        # which contents are new is known of a runner that was named, not of one to be chosen
        is_known = isinstance(job.meta.target, OneRunner)
        parts.append(f"{sent} ({upload.changed} changed)" if is_known else sent)
    return " · ".join(parts).replace("\n", "\\n")


def _runner_name(session: Session, job: Job) -> str:
    """The name of the runner that got the job; the relay is asked where it is not known here."""
    if job.waiting is not None:
        return "any runner"
    key = job.runner
    for sync in (False, True):
        for participant in session.participants(sync=sync):
            if participant.participant_pub == key:
                return participant.display_name
    return "a runner"


# -- following --------------------------------------------------------------------------------


def follow(job: Job, args: Namespace, voice: Voice, waits: Waiting) -> int:
    """Show a job's output as it happens, then tell its end; the exit code."""
    try:
        result, code = watch(job, voice, wait_s=args.wait, on_status=waits.hear)
    except WaitTimeout as late:
        if not voice.json or late.code == "closed":
            raise
        voice.document({"job": job.id, "status": job.state().state})
        return EXIT_NO_RESULT
    brought = pulling.bring(
        result, voice, pull=bool(args.pull), patch=args.patch, completed_only=True
    )
    ending.tell(result, ending.save_files(result, args.out_dir), voice, brought.shape)
    return brought.exit_code(code)


def watch(
    job: Job,
    voice: Voice,
    *,
    wait_s: float | None,
    on_status: Callable[[JobStatus], None] | None = None,
) -> tuple[Result, int]:
    """Show a job's output until it ends; its result, and the exit code for it. `on_status` hears
    what the relay says of it meanwhile.

    Raises WaitTimeout, KeyboardInterrupt.
    """
    with CtrlC(job, voice) as pressed:
        result = show(job, voice, wait_s=wait_s, on_status=on_status)
    if pressed.once and result.status == "cancelled":
        return result, EXIT_INTERRUPTED
    return result, ending.exit_code(result)


def show(
    job: Job,
    voice: Voice,
    *,
    wait_s: float | None,
    on_status: Callable[[JobStatus], None] | None = None,
) -> Result:
    """Show a job's output until it ends; its result. Raises WaitTimeout, BrokenPipeError."""
    shown = _Shown(voice)
    try:
        for piece in job.output(wait_s, on_status=on_status):
            shown.put(_STREAMS[piece.stream], piece.data)
    except BrokenPipeError:
        job.cancel()  # nobody reads on; a job that goes on unseen helps nobody
        raise
    finally:
        voice.end_output()
    result = job.wait(wait_s)
    if not voice.json:
        shown.complete(result)
    return result


class _Shown:
    """What was shown of a job's output, so that nothing is shown twice and no gap is hidden."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._bytes = {STDOUT: 0, STDERR: 0}

    def put(self, stream: int, data: bytes) -> None:
        self._bytes[stream] += len(data)
        if not self._voice.json:
            self._voice.output(stream, data)

    def complete(self, result: Result) -> None:
        """Print what the result has when nothing came live; say so when only a part did."""
        live = result.live
        totals = {} if live is None else {STDOUT: live.stdout_bytes, STDERR: live.stderr_bytes}
        if not any(self._bytes.values()):
            ending.print_output(result, self._voice)
        elif any(self._bytes[stream] < total for stream, total in totals.items()):
            self._voice.note(
                "some output was not seen while it ran; the result has what is kept: "
                f"airlox result -- {result.job}"
            )


class CtrlC:
    """While it lasts, Ctrl-C cancels what runs once, and interrupts us when pressed again.

    The handler itself does no input or output: whatever it interrupts goes on, so that the wait
    for the job's end is the same wait as before.
    """

    def __init__(self, job: Cancellable, voice: Voice) -> None:
        self._job = job
        self._voice = voice
        self._cancelling: threading.Thread | None = None
        self._before: Any = None

    @property
    def once(self) -> bool:
        return self._cancelling is not None

    def __enter__(self) -> CtrlC:
        self._before = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
        if self._cancelling is not None and kind is None:
            self._cancelling.join(30.0)

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        if self._cancelling is not None:
            raise KeyboardInterrupt
        self._cancelling = threading.Thread(target=self._cancel, daemon=True)
        self._cancelling.start()

    def _cancel(self) -> None:
        self._voice.note("cancelling the job and waiting for its end; Ctrl-C again leaves")
        try:
            self._job.cancel()
        except AirloxError as error:
            self._voice.warn(f"the job could not be cancelled: {error}")
