"""What goes to which stream, in which form."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.cli import output
from airlox.cli.output import STDERR, STDOUT, Voice
from airlox.errors import AirloxError


class Stream(io.TextIOWrapper):
    """A standard stream that may be a terminal, and what was written to it."""

    def __init__(self, *, terminal: bool = False) -> None:
        self.raw_bytes = io.BytesIO()
        super().__init__(self.raw_bytes, encoding="utf-8", errors="backslashreplace")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    @property
    def text(self) -> str:
        self.flush()
        return self.raw_bytes.getvalue().decode()


class Spoken:
    """A voice, and what came out of it."""

    def __init__(
        self,
        *,
        terminal: bool = False,
        json: bool = False,
        quiet: bool = False,
        environ: dict[str, str] | None = None,
    ) -> None:
        self.out, self.err = Stream(terminal=terminal), Stream(terminal=terminal)
        self.voice = Voice(
            json=json, quiet=quiet, environ=environ or {}, stdout=self.out, stderr=self.err
        )


class TestWhere:
    def test_results_to_stdout_the_rest_to_stderr(self) -> None:
        said = Spoken()
        said.voice.say("result")
        said.voice.note("note")
        said.voice.warn("warning")
        assert said.out.text == "result\n"
        assert said.err.text == "note\nairlox: warning\n"

    def test_quiet_keeps_results_warnings_and_what_must_be_seen(self) -> None:
        said = Spoken(quiet=True)
        said.voice.say("result")
        said.voice.note("note")
        said.voice.warn("warning")
        said.voice.show("run this")
        assert said.out.text == "result\n"
        assert said.err.text == "airlox: warning\nrun this\n"

    def test_an_error_has_its_hint_in_a_second_line(self) -> None:
        said = Spoken()
        said.voice.fail(AirloxError("it broke\nbadly", hint="mend it"))
        assert said.err.text == "airlox: it broke\\nbadly\n  hint: mend it\n"

    def test_with_json_stderr_holds_json_lines(self) -> None:
        said = Spoken(json=True)
        said.voice.note("note")
        said.voice.warn("warning\n2")
        said.voice.fail(AirloxError("it broke", code="broken", hint="mend it"))
        said.voice.fail(AirloxError("it broke"))
        assert [json.loads(line) for line in said.err.text.splitlines()] == [
            {"warning": "warning\n2"},
            {"error": "it broke", "code": "broken", "hint": "mend it"},
            {"error": "it broke", "code": "error"},
        ]
        assert said.out.text == ""


class TestStatus:
    @pytest.mark.parametrize("way", ["say", "note", "warn", "show", "fail", "output", "ask"])
    def test_whatever_is_said_next_takes_its_place(
        self, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
        said = Spoken(terminal=True, environ={"NO_COLOR": "1"})
        said.voice.status("first")
        said.voice.status("waits\n\x1b[1m")
        call = getattr(said.voice, way)
        given = {"fail": (AirloxError("x"),), "output": (STDOUT, b"x")}.get(way, ("x",))
        call(*given)
        erase = "\r\x1b[2K"
        assert said.err.text.startswith(f"first{erase}waits\\n\\x1b[1m{erase}")
        assert said.err.text.count(erase) == 2

    def test_no_longer_than_the_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A line that wraps could not be taken back."""
        monkeypatch.setenv("COLUMNS", "20")
        said = Spoken(terminal=True)
        said.voice.status("x" * 100)
        assert said.err.text == "x" * 19

    def test_a_dumb_terminal_gets_lines(self) -> None:
        said = Spoken(terminal=True, environ={"TERM": "dumb"})
        said.voice.status("first")
        said.voice.end_status("done")
        assert said.err.text == "first\ndone\n"


class TestJson:
    def test_a_document_is_indented_and_sorted(self) -> None:
        said = Spoken()
        said.voice.document({"b": [1], "a": None})
        assert said.out.text == '{\n  "a": null,\n  "b": [\n    1\n  ]\n}\n'

    @given(st.dictionaries(st.text(), st.text()))
    def test_a_line_is_one_line_with_the_same_value(self, value: dict[str, str]) -> None:
        said = Spoken()
        said.voice.json_line(value)
        assert json.loads(said.out.text) == value
        assert len(said.out.text.splitlines()) == 1


class TestNeutral:
    def test_every_way_of_saying_it(self) -> None:
        said = Spoken(terminal=True, environ={"NO_COLOR": "1"})
        nasty = "\x1b]0;x\x07"
        said.voice.say(nasty)
        said.voice.document({nasty: nasty})
        said.voice.json_line([nasty])
        said.voice.table([nasty], [[nasty + "\n"]])
        said.voice.note(nasty, "bold")
        said.voice.show(nasty)
        said.voice.warn(nasty)
        said.voice.fail(AirloxError(nasty, hint=nasty))
        assert "\x1b" not in said.out.text + said.err.text
        assert "\x07" not in said.out.text + said.err.text

    def test_a_table_is_aligned_and_empty_without_rows(self) -> None:
        said = Spoken()
        said.voice.table(("A", "LONG"), [["value", "x\ny"], ["v", ""]])
        assert said.out.text == "A      LONG\nvalue  x\\ny\nv\n"
        empty = Spoken()
        empty.voice.table(("A",), [])
        assert empty.out.text == ""


class TestStyle:
    def test_on_a_terminal(self) -> None:
        said = Spoken(terminal=True)
        said.voice.note("done", "green")
        assert said.err.text == "\x1b[32mdone\x1b[0m\n"

    @pytest.mark.parametrize(
        ("terminal", "environ"),
        [(False, {}), (True, {"NO_COLOR": "1"}), (True, {"TERM": "dumb"})],
    )
    def test_nowhere_else(self, terminal: bool, environ: dict[str, str]) -> None:
        said = Spoken(terminal=terminal, environ=environ)
        said.voice.note("done", "green")
        assert said.err.text == "done\n"


class TestOutputOfJobs:
    @given(st.lists(st.binary()))
    def test_a_pipe_gets_every_byte(self, chunks: list[bytes]) -> None:
        said = Spoken()
        for chunk in chunks:
            said.voice.output(STDOUT, chunk)
        said.voice.end_output()
        assert said.out.raw_bytes.getvalue() == b"".join(chunks)

    def test_order_with_our_own_lines(self) -> None:
        said = Spoken()
        said.voice.say("first")
        said.voice.output(STDOUT, b"second\n")
        said.voice.say("third")
        assert said.out.text == "first\nsecond\nthird\n"

    def test_a_terminal_gets_colours_only(self) -> None:
        said = Spoken(terminal=True, environ={"NO_COLOR": "1"})
        said.voice.output(STDERR, b"\x1b[31mred\x1b[2J\x1b[3")
        said.voice.output(STDERR, b"2mgreen")
        said.voice.end_output()
        assert said.err.text == "\x1b[31mred\\x1b[2J\x1b[32mgreen\x1b[0m\n"

    def test_our_lines_never_continue_a_line_of_the_job(self) -> None:
        said = Spoken(terminal=True, environ={"NO_COLOR": "1"})
        said.voice.output(STDERR, b"no newline")
        said.voice.note("ours")
        assert said.err.text == "no newline\nours\n"

    def test_nothing_is_added_after_whole_lines(self) -> None:
        said = Spoken(terminal=True)
        said.voice.output(STDOUT, b"line\n")
        said.voice.end_output()
        assert (said.out.text, said.err.text) == ("line\n", "")


class TestWords:
    @pytest.mark.parametrize(
        ("ms", "text"),
        [
            (0, "0 ms"),
            (999, "999 ms"),
            (41_240, "41.2 s"),
            (99_940, "99.9 s"),
            (99_950, "1 min 40 s"),
            (725_000, "12 min 5 s"),
            (3_599_600, "1 h 0 min"),
            (7_380_000, "2 h 3 min"),
        ],
    )
    def test_durations(self, ms: int, text: str) -> None:
        assert output.duration_text(ms) == text

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(60, "60 s"), (90, "90 s"), (1800, "30 min"), (7200, "2 h"), (259_200, "3 days")],
    )
    def test_spans(self, seconds: int, text: str) -> None:
        assert output.span_text(seconds) == text

    @pytest.mark.parametrize(
        ("size", "text"),
        [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1 kB"),
            (412_345, "412 kB"),
            (999_600, "1.0 MB"),
            (3_140_000, "3.1 MB"),
            (318_000_000, "318 MB"),
            (2_500_000_000_000_000, "2.5 PB"),
        ],
    )
    def test_sizes(self, size: int, text: str) -> None:
        assert output.size_text(size) == text

    def test_a_path_that_is_no_text(self) -> None:
        assert output.path_text(b"a\xff".decode("utf-8", "surrogateescape")) == r"a\xff"
