"""What is kept of a stream: whole when it is small, else head, marker, tail, within the limit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airlox.protocol.limits import OUTPUT_BYTES
from airlox.runner.output import Capture
from airlox.runner.redact import Redactor

PLAIN = Redactor([])
MARKER = re.compile(r"\n\[airlox: (\d+) bytes left out here\]\n")


def captured(*chunks: bytes, redactor: Redactor = PLAIN) -> Capture:
    capture = Capture(redactor)
    for chunk in chunks:
        capture.write(chunk)
    capture.close()
    return capture


def test_a_small_stream_is_kept_whole() -> None:
    assert captured(b"a\xc3", b"\xa9\n").text() == ("aé\n", False)


def test_exactly_the_limit_is_whole_and_one_byte_more_is_not() -> None:
    assert captured(b"x" * OUTPUT_BYTES).text() == ("x" * OUTPUT_BYTES, False)
    assert captured(b"x" * (OUTPUT_BYTES + 1)).text().truncated


def test_a_large_stream_keeps_its_first_and_last_lines_and_says_what_is_missing() -> None:
    lines = b"".join(b"line %d\n" % n for n in range(500_000))
    capture = captured(*(lines[at : at + 65_536] for at in range(0, len(lines), 65_536)))
    text, truncated = capture.text()
    assert truncated
    assert len(text.encode()) <= OUTPUT_BYTES
    assert text.startswith("line 0\n")
    assert text.endswith("line 499999\n")
    (missing,) = MARKER.findall(text)
    assert int(missing) == len(lines) - len(MARKER.sub("", text).encode())


def test_the_tail_is_the_last_to_go() -> None:
    capture = captured(b"head " * 1000 + b"the failure")
    assert capture.text(200).text.endswith("the failure")
    assert capture.text(90).text.endswith("]\nhe failure")
    assert capture.text(80) == ("", True)
    assert capture.text(0) == ("", True)


def test_an_empty_stream_is_not_truncated_at_any_limit() -> None:
    assert captured().text(0) == ("", False)


def test_memory_stays_flat() -> None:
    capture = Capture(PLAIN)
    for _ in range(200):
        capture.write(b"\0" * 65_536)
    assert len(capture._head) + len(capture._tail) <= 4 * OUTPUT_BYTES
    assert capture.total_bytes == 200 * 65_536


def test_bytes_that_are_no_text_count_as_what_they_become() -> None:
    text, truncated = captured(b"\xff" * OUTPUT_BYTES).text()
    assert truncated
    assert len(text.encode()) <= OUTPUT_BYTES
    assert text.count("�") > OUTPUT_BYTES // 4


def test_no_character_is_cut_at_the_marker() -> None:
    text, _ = captured(("é€😀" * 300_000).encode()).text()
    assert "�" not in text


def test_paths_are_redacted_across_chunks() -> None:
    redactor = Redactor([("/home/ann", "~")])
    assert captured(b"/home/", b"ann/x", redactor=redactor).text().text == "~/x"
    assert captured(b"/home/ann", redactor=redactor).text().text == "~"


@pytest.mark.parametrize(("before", "after"), [(b"", ""), (b"a", "a\n"), (b"a\n", "a\n")])
def test_a_line_of_the_runner_stands_on_its_own(before: bytes, after: str) -> None:
    capture = captured(before)
    capture.add_line("left out: x")
    assert capture.text().text == after + "left out: x\n"


CHUNKS = st.lists(st.binary(max_size=80) | st.text(max_size=40).map(str.encode), max_size=12)


@settings(max_examples=200)
@given(chunks=CHUNKS, limit=st.integers(0, 700))
def test_no_text_is_over_its_limit(chunks: list[bytes], limit: int) -> None:
    whole = b"".join(chunks)
    text, truncated = captured(*chunks).text(limit)
    assert len(text.encode()) <= limit
    if not truncated:
        assert text == whole.decode("utf-8", "replace")
