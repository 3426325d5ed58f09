"""Entries of audit trails: read strictly, written so that they are read as the same."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import EncodingError, LimitError, ProtocolError
from airlox.protocol import limits, trail
from airlox.protocol.keys import Role

ITEM = "A" * 21 + "Q"
KEY = "A" * 43
HASH = "A" * 43

ENTRIES = [
    trail.Created(at_ms=1, signed_manifest="{}"),
    trail.Joined(at_ms=1, signed_join="{}"),
    trail.Posted(at_ms=1, envelope="{}", blob_sha256=HASH),
    trail.Posted(at_ms=1, envelope="{}", blob_sha256=HASH, seq=7, blob="AAAA"),
    trail.Acked(at_ms=1, item=ITEM, participant_pub=KEY),
    trail.Wanted(at_ms=1, item=ITEM, participant_pub=KEY),
    trail.Reseeded(at_ms=1, item=ITEM, participant_pub=KEY),
    trail.Evicted(at_ms=1, item=ITEM),
    trail.Left(at_ms=1, participant_pub=KEY),
    trail.Approved(at_ms=1, participant_pub=KEY),
    trail.Rejected(at_ms=1, participant_pub=KEY),
    trail.Revoked(at_ms=1, role=Role.SENDER),
    trail.Queued(at_ms=1, job=ITEM, reason="busy"),
    trail.Assigned(at_ms=1, job=ITEM, participant_pub=KEY),
    trail.Claimed(at_ms=1, job=ITEM, participant_pub=KEY),
    trail.Finished(at_ms=1, job=ITEM, participant_pub=KEY),
    trail.Failed(at_ms=1, job=ITEM, reason="runner_lost"),
    trail.CancelAsked(at_ms=1, job=ITEM, participant_pub=KEY),
    trail.Forgotten(at_ms=1, jobs=(ITEM,)),
    trail.Forgotten(at_ms=1, ranges=((0, 3), (5, 5))),
    trail.Extract(at_ms=1, jobs=(ITEM,)),
    trail.Closed(at_ms=1, reason="expired"),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_what_is_written_is_read(entry: trail.AnyEntry) -> None:
    line = trail.encode_entry(entry)
    assert trail.parse_entry(line) == entry
    assert trail.parse_entry(line.decode()) == entry
    assert trail.parse_entry(msgspec.json.decode(line)) == entry


def test_spaces_and_fields_of_later_versions_are_passed_over() -> None:
    line = f' {{"event": "evicted", "more": [{{"x": null}}], "item": "{ITEM}", "at_ms": 1}}\r\n'
    assert trail.parse_entry(line) == trail.Evicted(at_ms=1, item=ITEM)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"null",
        b'"created"',
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"at_ms":1,"event":"left"',
        f'{{"at_ms":1.0,"event":"evicted","item":"{ITEM}"}}',
        f'{{"at_ms":NaN,"event":"evicted","item":"{ITEM}"}}',
        f'{{"at_ms":-1,"event":"evicted","item":"{ITEM}"}}',
        f'{{"at_ms":9007199254740992,"event":"evicted","item":"{ITEM}"}}',
        f'{{"at_ms":true,"event":"evicted","item":"{ITEM}"}}',
        f'{{"event":"evicted","item":"{ITEM}"}}',
        f'{{"at_ms":1,"at_ms":1,"event":"evicted","item":"{ITEM}"}}',
        '{"at_ms":1,"event":"evicted"}',
        '{"at_ms":1,"event":"evicted","item":"x"}',
        f'{{"at_ms":1,"event":"evicted","item":"{ITEM}="}}',
        '{"at_ms":1,"event":"evicted","item":null}',
        '{"at_ms":1,"event":"left","participant_pub":"x"}',
        '{"at_ms":1,"event":"revoked","role":"king"}',
        f'{{"at_ms":1,"event":"failed","job":"{ITEM}","reason":"\\u001b[2J"}}',
        f'{{"at_ms":1,"event":"failed","job":"{ITEM}","reason":"\\ud800"}}',
        f'{{"at_ms":1,"event":"failed","job":"{ITEM}","reason":"{"x" * 5000}"}}',
        '{"at_ms":1,"event":"item","envelope":"{}","blob_sha256":"x"}',
        '{"at_ms":1,"event":"forgotten","ranges":[[3,2]]}',
        '{"at_ms":1,"event":"forgotten","ranges":[[2,3],[3,4]]}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"at_ms":' + b"9" * 10_000 + b"}",
    ],
    ids=range(29),
)
def test_whatever_else_is_refused(line: bytes | str) -> None:
    with pytest.raises(EncodingError) as caught:
        trail.parse_entry(line)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 120


@pytest.mark.parametrize("word", ["", "acks", "Created", 7, None, ["created"], "\x1b[2J" * 99])
def test_kinds_of_later_versions_are_named(word: object) -> None:
    line = msgspec.json.encode({"at_ms": 1, "event": word})
    with pytest.raises(EncodingError) as caught:
        trail.parse_entry(line)
    assert caught.value.code == "unknown_entry"
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 120


def test_a_line_is_bounded() -> None:
    with pytest.raises(LimitError):
        trail.parse_entry(b" " * (limits.TRAIL_LINE_BYTES + 1))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["at_ms", "item", "job", "jobs", "ranges", "participant_pub", "role", "reason", "envelope"]
)
WORDS = st.sampled_from(sorted(trail._KINDS))


@given(st.dictionaries(FIELDS, VALUES), WORDS)
def test_no_value_does_more_than_be_refused(fields: dict[str, object], word: str) -> None:
    try:
        trail.parse_entry({**fields, "event": word})
    except ProtocolError:
        pass


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_no_bytes_do_more_than_be_refused(line: bytes | str) -> None:
    try:
        trail.parse_entry(line)
    except ProtocolError:
        pass
