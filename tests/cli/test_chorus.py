"""Several machines in one output: whose a line is, and that none poses as another's."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.cli.chorus import Chorus
from airlox.cli.output import STDERR, STDOUT
from airlox.errors import AirloxError

from .test_output import Stream


class Sung:
    """Parts, and what came out of them."""

    def __init__(self, *names: str, terminal: bool = False, **settings: Any) -> None:
        self.out, self.err = Stream(terminal=terminal), Stream(terminal=terminal)
        settings = {"environ": {}, **settings}
        chorus = Chorus(stdout=self.out, stderr=self.err, **settings)
        chorus.align(names)
        self.parts = [chorus.part(name) for name in names]


class TestPrefixes:
    def test_each_line_says_whose_it_is(self) -> None:
        sung = Sung("a", "long")
        one, two = sung.parts
        one.output(STDOUT, b"half ")
        two.output(STDOUT, b"whole\nand ")
        one.output(STDOUT, b"a line\n")
        one.output(STDERR, b"bad\n")
        two.end_output()
        assert sung.out.text == "long | whole\na    | half a line\nlong | and \n"
        assert sung.err.text == "a    | bad\n"

    def test_notes_warnings_and_errors_too(self) -> None:
        sung = Sung("a")
        (part,) = sung.parts
        part.note("one\ntwo", "red")
        part.warn("amiss")
        part.fail(AirloxError("broken", hint="mend it"))
        part.status("waits: place 1", event="waiting")
        part.end_status("it runs", event="assigned")
        part.say("AAAA")
        assert sung.err.text.splitlines() == [
            "a | one",
            "a | two",
            "a | airlox: amiss",
            "a | airlox: broken",
            "a |   hint: mend it",
            "a | waits: place 1",
            "a | it runs",
        ]
        assert sung.out.text == "a | AAAA\n"

    def test_quiet(self) -> None:
        sung = Sung("a", quiet=True)
        (part,) = sung.parts
        part.note("x")
        part.status("x")
        part.output(STDOUT, b"result\n")
        assert (sung.out.text, sung.err.text) == ("a | result\n", "")

    def test_muted(self) -> None:
        sung = Sung("a")
        (part,) = sung.parts
        part.mute()
        part.note("x")
        part.output(STDOUT, b"x\n")
        assert (sung.out.text, sung.err.text) == ("", "")

    @pytest.mark.parametrize(
        ("terminal", "environ", "styled"),
        [(True, {}, True), (True, {"NO_COLOR": "1"}, False), (False, {}, False)],
    )
    def test_colours_on_terminals_alone(
        self, terminal: bool, environ: dict[str, str], styled: bool
    ) -> None:
        sung = Sung("a", "b", terminal=terminal, environ=environ)
        for part in sung.parts:
            part.output(STDOUT, b"x\n")
            part.note("y", "red")
        assert ("\x1b" in sung.out.text + sung.err.text) is styled
        plain = re.sub(r"\x1b\[\d*m", "", sung.out.text + sung.err.text)
        assert plain == "a | x\nb | x\na | y\nb | y\n"


class TestHostileOutput:
    def test_a_pipe_gets_the_bytes_of_each_line(self) -> None:
        sung = Sung("a")
        sung.parts[0].output(STDOUT, b"\xff\x1b[2J\x00\n")
        assert sung.out.raw_bytes.getvalue() == b"a | \xff\x1b[2J\x00\n"

    @pytest.mark.parametrize(
        "printed",
        [b"x\rother | I am fine\n", b"x\b\b\b\b\bother | I am fine\n", b"\x1b[1K\x1b[2K\x1b[5Dx\n"],
    )
    def test_nothing_goes_back_over_the_prefix(self, printed: bytes) -> None:
        sung = Sung("a", terminal=True, environ={"NO_COLOR": "1"})
        sung.parts[0].output(STDOUT, printed)
        (line,) = sung.out.text.splitlines()
        assert line.startswith("a | ")
        assert all(c.isprintable() for c in line)

    def test_colours_end_with_their_line(self) -> None:
        sung = Sung("a", terminal=True, environ={"NO_COLOR": "1"})
        sung.parts[0].output(STDOUT, b"\x1b[31mred\nplain\n")
        assert sung.out.text == "a | \x1b[31mred\x1b[0m\na | plain\n"

    def test_a_progress_bar_is_its_last_state(self) -> None:
        sung = Sung("a")
        sung.parts[0].output(STDOUT, b"  1%\r 50%")
        sung.parts[0].output(STDOUT, b"\r100%\n")
        assert sung.out.text == "a | 100%\n"

    @given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=30)), max_size=30))
    def test_every_line_is_whole_and_named(self, said: list[tuple[int, bytes]]) -> None:
        names = ("a", "b", "c")
        sung = Sung(*names)
        for who, data in said:
            sung.parts[who].output(STDOUT, data)
        for part in sung.parts:
            part.end_output()
        lines = sung.out.raw_bytes.getvalue().split(b"\n")[:-1]
        for who, name in enumerate(names):
            mine = b"".join(data for by, data in said if by == who)
            told = [line[4:] for line in lines if line.startswith(f"{name} | ".encode())]
            assert len(told) == len(mine.split(b"\n")) - (mine[-1:] == b"\n" or not mine) or (
                b"\r" in mine
            )
        assert all(line[:4] in (b"a | ", b"b | ", b"c | ") for line in lines)

    def test_threads_do_not_mix_their_lines(self) -> None:
        sung = Sung("a", "b", "c", "d")

        def sing(index: int) -> None:
            for number in range(200):
                sung.parts[index].output(STDOUT, b"%d-" % index * 50 + b"\n" * (number % 2))
            sung.parts[index].end_output()

        threads = [threading.Thread(target=sing, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        for line in sung.out.text.splitlines():
            name, _, rest = line.partition(" | ")
            assert set(rest) == {str("abcd".index(name)), "-"}


class TestJson:
    def test_every_line_names_its_machine(self) -> None:
        sung = Sung("a", json=True)
        (part,) = sung.parts
        part.document({"job": "j", "deep": {"x": 1}})
        part.warn("amiss")
        part.fail(AirloxError("broken", code="broken"))
        part.status("waits", event="waiting", place=1)
        part.end_status("it runs", event="assigned")
        part.note("no")
        assert json.loads(sung.out.text) == {"machine": "a", "job": "j", "deep": {"x": 1}}
        assert [json.loads(line) for line in sung.err.text.splitlines()] == [
            {"machine": "a", "warning": "amiss"},
            {"machine": "a", "error": "broken", "code": "broken"},
            {"machine": "a", "event": "waiting", "place": 1},
            {"machine": "a", "event": "assigned"},
        ]
