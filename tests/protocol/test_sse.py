"""Server-sent events: round trips, any split, the HTML standard's own rules, bounds."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airlox.errors import EncodingError, LimitError
from airlox.protocol.sse import SseEvent, SseParser, comment, encode_event

_no_cr = st.text(st.characters(codec="utf-8", exclude_characters="\r"))
_one_line = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"))
_seqs = st.none() | st.integers(0, 2**53)
_events = st.tuples(_seqs, st.none() | _one_line.filter(bool), _no_cr)
_wire = st.lists(
    st.sampled_from(
        [b"\r", b"\n", b"\r\n", b"data", b"event", b"id", b":", b": ", b" ", b"x", b"\0", b"retry"]
    )
    | st.binary(max_size=6)
    | st.just(b"\xef\xbb\xbf"),
    max_size=40,
).map(b"".join)


def _parse(*pieces: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def _at(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


@given(st.lists(_events, max_size=5), st.booleans())
def test_what_is_encoded_comes_out(
    events: list[tuple[int | None, str | None, str]], alive: bool
) -> None:
    data = b"".join(encode_event(*event) + (comment() if alive else b"") for event in events)
    wanted = []
    id_ = None
    for seq, kind, text in events:
        id_ = id_ if seq is None else str(seq)
        wanted.append(SseEvent(id_, kind or "message", text))
    assert _parse(data) == wanted


@given(_wire, st.lists(st.integers(0), max_size=10))
@example(b"data: a\r\ndata: b\r\n\r\n", [8, 18, 19])
@example(b"data: a\rdata: b\r\r", [7, 8, 8, 15, 16])
@example(b"a\rb\ndata\n\n", [2, 3])
def test_any_split_gives_the_same_events(data: bytes, cuts: list[int]) -> None:
    whole = _parse(data)
    assert _parse(*_at(data, cuts)) == whole
    assert _parse(*(data[i : i + 1] for i in range(len(data)))) == whole


@given(_wire)
def test_line_ends_are_alike(data: bytes) -> None:
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for end in (b"\r", b"\r\n"):
        assert _parse(lines.replace(b"\n", end)) == _parse(lines)


@pytest.mark.parametrize(
    ("wire", "wanted"),
    [
        # The first four are the HTML standard's own examples.
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [(None, "message", "YHOO\n+2\n10")]),
        (
            b": test\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n",
            [("1", "message", "first event"), ("", "message", "second event")],
        ),
        (b"data\n\ndata\ndata\n\ndata:", [(None, "message", ""), (None, "message", "\n")]),
        (b"data:test\n\ndata: test\n\n", [(None, "message", "test")] * 2),
        (b"event: a\n\ndata: x\n\n", [(None, "message", "x")]),
        (b"event: a\nevent: b\ndata: x\n\n", [(None, "b", "x")]),
        (b"event:\ndata: x\n\n", [(None, "message", "x")]),
        (b"id: 1\n\ndata: x\n\n", [("1", "message", "x")]),
        (b"id: 1\nid: 2\0\ndata: x\n\n", [("1", "message", "x")]),
        (b"id: 1\ndata: x\n\ndata: y\n\n", [("1", "message", "x"), ("1", "message", "y")]),
        (
            b"retry: 5\nDATA: no\nother: no\ndata : no\n data: no\ndata: x\n\n",
            [(None, "message", "x")],
        ),
        (b"\xef\xbb\xbfdata: x\n\n", [(None, "message", "x")]),
        (b"\n\xef\xbb\xbfdata: x\n\n", []),
        (b"data: \xff\xfe\n\n", [(None, "message", "\ufffd\ufffd")]),
        (
            b"data: a\x0bb\x0cc\x1cd\xc2\x85e\xe2\x80\xa8f\n\n",
            [
                (None, "message", "a\x0bb\x0cc\x1cd\x85e\u2028f"),
            ],
        ),
        (b"data: unfinished\n", []),
    ],
)
def test_as_the_standard_says(wire: bytes, wanted: list[tuple[str | None, str, str]]) -> None:
    assert _parse(wire) == [SseEvent(*event) for event in wanted]


def test_an_event_comes_with_its_last_byte() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x\r\n\r") == [SseEvent(None, "message", "x")]
    assert parser.feed(b"\n") == []
    assert parser.feed(b"data: y\n\n") == [SseEvent(None, "message", "y")]


def test_an_empty_piece_changes_nothing() -> None:
    pieces = [b"data: x\r", b"", b"\ndata: y\r\n\r\n"]
    assert _parse(*pieces) == [SseEvent(None, "message", "x\ny")]


@pytest.mark.parametrize(
    "piece", [b"x" * 7, b": " + b"x" * 5, b"data: 1\n", b"data\n", b"id: 12", b"\0" * 7]
)
def test_what_never_ends_is_given_up(piece: bytes) -> None:
    parser = SseParser(limit_bytes=100)
    with pytest.raises(LimitError):
        list(map(parser.feed, [piece] * 100))


def test_the_bound_is_for_one_event_not_for_the_stream() -> None:
    parser = SseParser(limit_bytes=100)
    for _ in range(100):
        assert len(parser.feed(b": alive\nevent: a\nid: 1\ndata: " + b"x" * 60 + b"\n\n")) == 1


def test_the_bound_counts_what_it_should() -> None:
    assert len(SseParser(limit_bytes=9).feed(b"data: 12\n\n")) == 1
    with pytest.raises(LimitError):
        SseParser(limit_bytes=9).feed(b"data: 123\n\n")


@pytest.mark.parametrize("kind", ["", "a\nb", "a\rb"])
def test_a_kind_is_one_line(kind: str) -> None:
    with pytest.raises(EncodingError):
        encode_event(1, kind, "x")


def test_what_the_format_cannot_carry_is_refused() -> None:
    with pytest.raises(EncodingError):
        encode_event(1, "item", "a\rb")
    with pytest.raises(EncodingError):
        comment("a\nb")


def test_the_bytes_that_other_clients_expect() -> None:
    assert encode_event(7, "item", '{"a":1}') == b'id: 7\nevent: item\ndata: {"a":1}\n\n'
    assert comment().startswith(b":")
