"""Paths of the machine leave the output, however it is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.runner.redact import Redactor

HOME = Redactor(
    [
        ("/home/ann/.cache/airlox/runner/jobs/1/work", "$WORK"),
        ("/home/ann/.cache/airlox/runner/jobs/1", "$JOB"),
        ("/home/ann", "~"),
        ("/out", "$AIRLOX_OUT"),
        ("/work", "$WORK"),
    ]
)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("/home/ann/.cache/airlox/runner/jobs/1/work/a.py", "$WORK/a.py"),
        ("/home/ann/.cache/airlox/runner/jobs/1/x", "$JOB/x"),
        ("/home/ann/notes and /home/ann", "~/notes and ~"),
        ("-I/home/ann/include", "-I~/include"),
        ("file:///home/ann/x", "file://~/x"),
        ("/home/anna", "/home/anna"),
        ("'/out'", "'$AIRLOX_OUT'"),
        ("/out.", "$AIRLOX_OUT."),
        ("/out/chart.png:3", "$AIRLOX_OUT/chart.png:3"),
        ("dist/out/x", "dist/out/x"),
        ("/output", "/output"),
        ("/out.txt", "/out.txt"),
        ("/out-of-tree", "/out-of-tree"),
        ("/workshop /work", "/workshop $WORK"),
        ("é/out", "é/out"),
        ("", ""),
    ],
)
def test_what_is_replaced(printed: str, shown: str) -> None:
    assert HOME.clean_text(printed) == shown


def test_no_rules_change_nothing() -> None:
    assert Redactor([]).clean(b"/home/ann") == b"/home/ann"


def test_the_root_and_relative_paths_are_no_rules() -> None:
    assert Redactor([("/", "ROOT"), ("work", "$WORK"), ("", "X")]).paths == ()


def test_bytes_that_are_no_text_pass_unchanged() -> None:
    assert HOME.clean(b"\xff\xfe /out\x00") == b"\xff\xfe $AIRLOX_OUT\x00"


def test_at_most_one_path_is_held_back() -> None:
    stream = HOME.stream()
    assert stream.feed(b"see /home/ann/.cache/airlox/runner/jobs/1/wor") == b"see "
    assert stream.held_bytes <= HOME.longest + 2
    assert stream.feed(b"k\n") == b""  # `.x` might follow
    assert stream.feed(b"!") == b"$WORK\n!"


def test_flush_gives_what_was_held_and_the_stream_goes_on() -> None:
    stream = HOME.stream()
    assert stream.feed(b"/home/a") == b""
    assert stream.flush() == b"/home/a"
    assert stream.feed(b"nn /out ok") + stream.flush() == b"nn $AIRLOX_OUT ok"


PIECES = st.sampled_from(
    [
        *(b"/", b"/o", b"ut", b"/out", b"/work", b"/home", b"/home/ann", b"/.cache"),
        *(b"/jobs/1", b"a", b" ", b".", b"-", b"\n", b"\xff", b"1/work", b"/airlox/runner"),
        b"/home/ann/.cache/airlox",
    ]
)


@given(pieces=st.lists(PIECES, max_size=30), data=st.data())
def test_the_cut_into_pieces_changes_nothing(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    stream, got = HOME.stream(), b""
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        got += stream.feed(whole[start:end])
        assert stream.held_bytes <= HOME.longest + 2
    assert got + stream.flush() == HOME.clean(whole)


@given(st.binary(max_size=300))
def test_any_bytes_pass(data: bytes) -> None:
    stream = HOME.stream()
    assert stream.feed(data) + stream.flush() == HOME.clean(data)
