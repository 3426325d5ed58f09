"""Nothing that others wrote acts on a terminal, however it is cut into pieces."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.cli.terminal import TerminalFilter, clean, clean_json, clean_line, clean_styled

ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f‎‏\u2028-\u202e\u2066-\u2069]")
PASSES = re.compile(r"\x1b\[[0-9;:]*[mK]")

# Texts in which the interesting characters are frequent.
nasty = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from("\x1b[]0;mKJ\x07\r\n\t\b\x9b\x85\u202e\u2066m1"),
    )
)


def shown(*chunks: bytes) -> str:
    stream = TerminalFilter()
    return "".join([*map(stream.feed, chunks), stream.feed(b"", final=True)])


class TestClean:
    @given(nasty)
    def test_nothing_acts(self, text: str) -> None:
        assert ACTING.search(clean(text)) is None
        assert ACTING.search(clean_line(text)) is None
        assert "\n" not in clean_line(text)

    @pytest.mark.parametrize("text", ["", "plain\n\tindented", "ünïcode 漢字 👍🏽 नी", "a\u200cb"])
    def test_honest_text_is_untouched(self, text: str) -> None:
        assert clean(text) == text

    def test_what_would_act_is_shown(self) -> None:
        assert clean("\x1b]0;title\x07") == r"\x1b]0;title\x07"
        assert clean("a\u202eb\ud800") == r"a\u202eb\ud800"
        assert clean_line("a\nb\rc") == r"a\nb\rc"


class TestCleanJson:
    @given(st.recursive(nasty, st.lists, max_leaves=4))
    def test_the_value_is_the_same_and_nothing_acts(self, value: object) -> None:
        document = clean_json(json.dumps(value, ensure_ascii=False))
        assert json.loads(document) == value
        assert ACTING.search(document) is None

    def test_beyond_the_basic_plane(self) -> None:
        assert json.loads(clean_json('"\U000e0041"')) == "\U000e0041"
        assert "\U000e0041" not in clean_json('"\U000e0041"')


class TestCleanStyled:
    @given(nasty)
    def test_only_colours_act(self, text: str) -> None:
        shown = clean_styled(text)
        left = re.sub(r"\x1b\[[0-9;:]*m", "", shown)
        assert re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", left) is None
        assert ACTING.search(left) is None
        assert left == shown or shown.endswith("\x1b[0m")

    def test_what_stays_in_the_line(self) -> None:
        assert clean_styled("\x1b[1;32mok\x1b[0m\tdone") == "\x1b[1;32mok\x1b[0m\tdone\x1b[0m"
        assert clean_styled("a\x1b[2Kb\rc\bd") == r"a\x1b[2Kb\rc\x08d"


class TestTerminalFilter:
    @given(nasty)
    def test_only_colours_and_erase_in_line_act(self, text: str) -> None:
        output = PASSES.sub("", shown(text.encode("utf-8", "surrogatepass")))
        assert ACTING.search(output.replace("\r", "").replace("\b", "")) is None

    @given(st.lists(st.binary()))
    def test_cuts_change_nothing(self, chunks: list[bytes]) -> None:
        assert shown(*chunks) == shown(b"".join(chunks))

    @given(nasty, st.data())
    def test_cuts_change_nothing_of_text(self, text: str, data: st.DataObject) -> None:
        raw = text.encode("utf-8", "surrogatepass")
        cut = data.draw(st.integers(0, len(raw)))
        assert shown(raw[:cut], raw[cut:]) == shown(raw)

    def test_a_progress_bar_passes(self) -> None:
        bar = "\r\x1b[K\x1b[32m50 %\x1b[0m"
        assert shown(bar.encode()) == bar

    @pytest.mark.parametrize(
        "sequence",
        ["\x1b[2J", "\x1b]52;c;AAAA\x07", "\x1bc", "\x1b[1A", "\x1bP1$r\x1b\\", "\x9b2J"],
    )
    def test_others_are_shown(self, sequence: str) -> None:
        output = shown(sequence.encode())
        assert "\x1b" not in output
        assert output.startswith(("\\x1b", "\\x9b"))

    def test_an_unfinished_sequence_waits_for_the_next_piece(self) -> None:
        stream = TerminalFilter()
        assert stream.feed(b"a\x1b[3") == "a"
        assert stream.feed(b"1mb") == "\x1b[31mb"
        assert stream.is_styled

    def test_what_is_held_back_is_bounded(self) -> None:
        stream = TerminalFilter()
        assert stream.feed(b"\x1b[" + b"1" * 100) == r"\x1b[" + "1" * 100
        assert not stream.is_styled

    def test_the_end_frees_what_waits(self) -> None:
        assert shown(b"a\x1b[3") == r"a\x1b[3"
        assert shown("é".encode()[:1]) == "\ufffd"
