"""Lines of a job's output, with what was written over left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.client.folding import LINE_BYTES, Line, LineFolder, fold

PIECES = st.lists(st.text("ab\r\né", max_size=12).map(str.encode), max_size=12)


def fed(*pieces: bytes) -> list[Line]:
    folder = LineFolder()
    lines = []
    at = 0
    for piece in pieces:
        lines += folder.feed(piece, at)
        at += len(piece)
    return lines + folder.rest()


class TestLineFolder:
    def test_lines(self) -> None:
        assert fed(b"one\ntw", b"o\n\nthree") == [
            Line(0, b"one"),
            Line(4, b"two"),
            Line(8, b""),
            Line(9, b"three", is_open=True),
        ]

    def test_a_progress_bar_is_its_last_state(self) -> None:
        bar = b"".join(b"\r%3d%%" % done for done in range(101))
        assert fed(b"start\n" + bar + b"\nend\n") == [
            Line(0, b"start"),
            Line(6 + len(bar) - 4, b"100%"),
            Line(6 + len(bar) + 1, b"end"),
        ]

    @pytest.mark.parametrize("end", [b"\r\n", b"\r\r\n"])
    def test_other_line_ends(self, end: bytes) -> None:
        assert [line.data for line in fed(b"one" + end + b"two" + end)] == [b"one", b"two"]

    def test_a_bar_that_ends_with_a_return_stands(self) -> None:
        assert fed(b" 50%\r100%\r") == [Line(5, b"100%", is_open=True)]

    @given(PIECES)
    def test_cuts_change_nothing(self, pieces: list[bytes]) -> None:
        whole = b"".join(pieces)
        assert fed(*pieces) == fed(whole) == fed(*(bytes([byte]) for byte in whole))

    @given(PIECES)
    def test_each_line_is_in_the_output_where_it_says(self, pieces: list[bytes]) -> None:
        whole = b"".join(pieces)
        for line in fed(*pieces):
            assert whole[line.offset :].startswith(line.data)
            assert b"\r" not in line.data
            assert b"\n" not in line.data

    @given(PIECES)
    def test_the_same_as_a_whole_text(self, pieces: list[bytes]) -> None:
        text = b"".join(pieces).decode()
        folded = fold(text)
        lines = [line.rstrip("\r") for line in folded.split("\n")]
        told = [line.text for line in fed(*pieces)]
        assert told == (lines if lines[-1] else lines[:-1])

    def test_what_is_held_is_bounded(self) -> None:
        folder = LineFolder()
        long = "é".encode() * LINE_BYTES + b"\n"
        lines = folder.feed(b"x" + long) + folder.feed(b"\r" * 10_000_000)
        assert b"".join(line.data for line in lines) == b"x" + long[:-1]
        assert max(len(line.data) for line in lines) <= LINE_BYTES
        assert [line.is_open for line in lines] == [True, True, False]
        assert all("\ufffd" not in line.text for line in lines)
        assert folder.rest() == []

    def test_streams_that_are_mixed(self) -> None:
        folder = LineFolder()
        assert folder.feed(b"half", 100) == []
        assert folder.feed(b" and half\nmore", 5_000) == [Line(100, b"half and half")]
        assert folder.rest() == [Line(5_010, b"more", is_open=True)]


class TestFold:
    @given(st.text("ab\n", max_size=40))
    def test_a_text_without_returns_stays(self, text: str) -> None:
        assert fold(text) == text

    def test_line_breaks_stay(self) -> None:
        assert fold("a\r\n1%\r2%\r\n\r\nb") == "a\r\n2%\r\n\r\nb"
        assert fold("1%\r2%\r") == "2%\r"

    def test_a_long_line_of_returns_takes_no_time_to_speak_of(self) -> None:
        assert fold("x\r" * 300_000 + "y") == "y"
        assert fold("\r" * 300_000) == "\r" * 300_000
