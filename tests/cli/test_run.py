"""What a command line of `airlox run` asks for, and how a job is followed."""

from __future__ import annotations

import os
import signal
import threading
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest

from airlox.cli import run as running
from airlox.cli.main import EXIT_INTERRUPTED
from airlox.cli.options import CommandLineError, Parser, add_output_flags
from airlox.cli.run import CtrlC, watch
from airlox.client.follow import Output
from airlox.client.jobs import Result
from airlox.client.machines import Machine
from airlox.errors import UsageError
from airlox.protocol.job import LiveTotals

from .test_output import Spoken

KEY = "A" * 43
TIMEOUT_S = 60.0


def parse(*words: str) -> Namespace:
    parser = Parser(prog="airlox run")
    running.add_arguments(parser, "run")
    add_output_flags(parser)
    own = words[: words.index("--")] if "--" in words else words
    args = parser.parse_args(own)
    args.command = tuple(words[len(own) + 1 :])
    return args


def machine(**changes: Any) -> Machine:
    values: dict[str, Any] = {
        "owner_invite": "o",
        "sender_invite": "s",
        "created_at_ms": 0,
        "runner": KEY,
    }
    return Machine(name="box", session_id="ax_", relay="r", **(values | changes))


class TestQueue:
    @pytest.mark.parametrize(
        ("words", "wait_s"),
        [
            (("--queue", "a.py"), 86_400),
            (("--queue=90", "a.py"), 90),
            (("a.py", "--queue=2h"), 7200),
            (("--queue", "--", "make", "--queue"), 86_400),
            (("a.py",), None),
        ],
    )
    def test_its_time_goes_with_an_equals_sign_only(
        self, words: tuple[str, ...], wait_s: int | None
    ) -> None:
        args = parse(*words)
        running._check(args)
        assert args.queue == wait_s
        assert running._choices(args, None)["queue"] == wait_s
        assert args.file == (None if args.command else "a.py")
        assert args.command in ((), ("make", "--queue"))

    def test_a_time_that_is_none(self) -> None:
        with pytest.raises(CommandLineError):
            parse("--queue=soon", "a.py")


class TestWhatToRun:
    @pytest.mark.parametrize(
        "words",
        [
            (),
            ("a.py", "--", "b"),
            ("a.py", "--shell", "b"),
            ("--shell", "a", "--", "b"),
            ("make",),
            ("--fresh", "--", "a"),
            ("--tree-allow", ".env", "--", "a"),
            ("--cwd", "a", "--", "a"),
            ("--requirement", "numpy", "--", "a"),
        ],
    )
    def test_nonsense_is_refused(self, words: tuple[str, ...]) -> None:
        with pytest.raises(CommandLineError):
            running._check(parse(*words))

    @pytest.mark.parametrize(
        "words", [("a.py",), ("A.PY",), ("--shell", "ci.sh"), ("--", "make"), ("--tree", "--", "a")]
    )
    def test_sense_passes(self, words: tuple[str, ...]) -> None:
        running._check(parse(*words))

    def test_the_command_keeps_its_own_dashes(self) -> None:
        assert parse("--", "git", "diff", "--", "--json").command == ("git", "diff", "--", "--json")

    def test_a_program_must_be_text(self, tmp_path: Any) -> None:
        (tmp_path / "a.py").write_bytes(b"\xff")
        (tmp_path / "b.py").write_bytes(b"")
        for name in ("a.py", "b.py"):
            with pytest.raises(UsageError):
                running.read_source(parse(str(tmp_path / name)))


class TestWhereItRuns:
    def test_anywhere(self) -> None:
        choices = running._choices(parse("--", "a"), None)
        assert (choices["runner"], choices["labels"]) == (None, None)
        assert "tree" not in choices

    def test_the_machine_s_one_runner(self) -> None:
        choices = running._choices(parse("--on", "box", "--", "a"), machine())
        assert (choices["runner"], choices["labels"]) == (KEY, None)

    def test_any_runner_of_a_pool(self) -> None:
        choices = running._choices(parse("--on", "box", "--", "a"), machine(runner=None))
        assert (choices["runner"], choices["labels"]) == (None, None)

    def test_a_label_of_a_pool(self) -> None:
        args = parse("--on", "box/gpu", "--label", "big,a100", "--", "a")
        choices = running._choices(args, machine())
        assert (choices["runner"], choices["labels"]) == (None, ("big", "a100", "gpu"))

    def test_what_it_gets(self) -> None:
        args = parse(
            *("--timeout", "2m", "--memory", "1G", "--tree", "--cwd", "sub", "--no-wait"),
            *("--tree-allow", ".env", "--tree-exclude", "*.bin", "--fresh", "--", "a"),
        )
        choices = running._choices(args, None)
        assert choices["timeout"] == 120
        assert choices["memory_mb"] == 1024
        assert choices["stay"] is False
        assert choices["tree"] == "."
        assert choices["tree_options"] == {
            "allow": [".env"],
            "exclude": ["*.bin"],
            "include": [],
            "lfs": False,
        }
        assert (choices["cwd"], choices["fresh"]) == ("sub", True)


class FakeJob:
    """A job that prints what it is told to, and ends as it is told to."""

    def __init__(self, pieces: list[Output], result: Result) -> None:
        self.pieces = pieces
        self.ended = result
        self.cancelled = threading.Event()

    def output(self, timeout: float | None, **_: Any) -> Iterator[Output]:
        yield from self.pieces

    def wait(self, timeout: float | None) -> Result:
        return self.ended

    def cancel(self) -> None:
        self.cancelled.set()


def result(**changes: Any) -> Result:
    values: dict[str, Any] = {
        "job": "j",
        "status": "completed",
        "exit_code": 0,
        "reason": None,
        "stdout": "all of it\n",
    }
    return Result(**(values | changes))


def piece(stream: str, data: bytes) -> Output:
    return Output(stream, data, 0)


def totals(stdout: int) -> LiveTotals:
    return LiveTotals(dropped_bytes=0, head=None, segments=0, stderr_bytes=0, stdout_bytes=stdout)


def follow(job: Any, said: Spoken) -> int:
    return watch(job, said.voice, wait_s=None)[1]


class TestOutput:
    def test_live_output_is_not_repeated(self) -> None:
        said = Spoken()
        job = FakeJob([piece("stdout", b"all "), piece("stdout", b"of it\n")], result())
        job.ended = result(live=totals(10))
        assert follow(job, said) == 0
        assert said.out.text == "all of it\n"
        assert said.err.text == ""

    def test_without_live_output_the_result_is_shown(self) -> None:
        said = Spoken()
        assert follow(FakeJob([], result(exit_code=3, stderr="e")), said) == 3
        assert (said.out.text, said.err.text) == ("all of it\n", "e")

    def test_a_gap_is_told(self) -> None:
        said = Spoken()
        follow(FakeJob([piece("stdout", b"all ")], result(live=totals(10))), said)
        assert said.out.text == "all "
        assert "airlox result -- j" in said.err.text

    def test_each_stream_to_its_own(self) -> None:
        said = Spoken()
        follow(FakeJob([piece("stderr", b"bad"), piece("stdout", b"good")], result()), said)
        assert (said.out.text, said.err.text) == ("good", "bad")

    def test_with_json_nothing_is_printed_meanwhile(self) -> None:
        said = Spoken(json=True)
        follow(FakeJob([piece("stdout", b"all")], result()), said)
        assert said.out.text == said.err.text == ""


class TestCtrlC:
    def test_once_cancels_and_the_wait_goes_on(self) -> None:
        said = Spoken()
        ended = result(status="cancelled", exit_code=None, reason="cancelled")
        job = FakeJob([], ended)

        def output(timeout: float | None, **_: Any) -> Iterator[Output]:
            yield piece("stdout", b"before ")
            os.kill(os.getpid(), signal.SIGINT)
            assert job.cancelled.wait(TIMEOUT_S)
            yield piece("stdout", b"after")

        job.output = output  # type: ignore[method-assign]
        assert follow(job, said) == EXIT_INTERRUPTED
        assert said.out.text == "before after"
        assert "cancelling" in said.err.text

    def test_a_job_that_completes_all_the_same_keeps_its_code(self) -> None:
        job = FakeJob([], result(exit_code=5))

        def output(timeout: float | None, **_: Any) -> Iterator[Output]:
            os.kill(os.getpid(), signal.SIGINT)
            yield piece("stdout", b"x")

        job.output = output  # type: ignore[method-assign]
        assert follow(job, Spoken()) == 5

    def test_twice_leaves(self) -> None:
        job: Any = FakeJob([], result())
        with CtrlC(job, Spoken().voice):
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)

    def test_the_handler_before_is_put_back(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        job: Any = FakeJob([], result())
        with CtrlC(job, Spoken().voice):
            assert signal.getsignal(signal.SIGINT) != before
        assert signal.getsignal(signal.SIGINT) == before
