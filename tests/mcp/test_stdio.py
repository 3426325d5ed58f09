"""Lines that no client should send, and output that no other program may mix with."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import INVALID_REQUEST, PARSE_ERROR, JSONRPCResponse

from airlox.mcp.stdio import MOST_LINE_BYTES, MOST_OPEN, TOO_MANY, Gate, Lines, Refusal, TooLong
from support.mcp_raw import RawServer, raw_server

PARTS = st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"x", b"\n")), max_size=8)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=3,
)
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0") | VALUES},
    optional=dict.fromkeys(("id", "method", "params", "result", "error"), VALUES),
).map(lambda message: json.dumps(message).encode())


def lines_of(parts: list[bytes], most_bytes: int) -> list[bytes | TooLong]:
    lines = Lines(most_bytes)
    return [line for part in parts for line in lines.feed(part)] + list(lines.end())


class TestLines:
    @given(PARTS, st.integers(min_value=1, max_value=30))
    def test_are_the_same_however_they_arrive(self, parts: list[bytes], most: int) -> None:
        expected = b"".join(parts).split(b"\n")
        if not expected[-1]:
            expected.pop()
        found = [None if isinstance(line, TooLong) else line for line in lines_of(parts, most)]
        assert found == [line if len(line) <= most else None for line in expected]

    @pytest.mark.parametrize(
        ("line", "request_id"),
        [
            (b'{"jsonrpc":"2.0","id":7,"method":"%s"}', 7),
            (b'{"jsonrpc": "2.0", "id": "a-1", "method": "%s"}', "a-1"),
            (b'{"method":"%s","jsonrpc":"2.0","id":8}', 8),
            (b'{"a":{"b":"%s","jsonrpc":"2.0","id":8}}', None),
            (b'[{"jsonrpc":"2.0","id":7,"method":"%s"}]', None),
            (b'{"jsonrpc":"2.0","id":true,"method":"%s"}', None),
        ],
    )
    def test_too_long_ones_are_answered_where_they_say_their_id(
        self, line: bytes, request_id: int | str | None
    ) -> None:
        (found,) = lines_of([line % (b"x" * 2000)], 1000)
        assert isinstance(found, TooLong)
        assert found.request_id == request_id
        refused = Gate().read(found)
        assert isinstance(refused, Refusal)
        assert (refused.error.id, refused.error.error.code) == (request_id, INVALID_REQUEST)


class TestGate:
    @pytest.mark.parametrize(
        ("line", "request_id", "code"),
        [
            (b"{", None, PARSE_ERROR),
            (b'{"jsonrpc":"2.0","id":1,"method":"a\xff"}', None, PARSE_ERROR),
            (b"[" * 100_000, None, PARSE_ERROR),
            (b"[]", None, INVALID_REQUEST),
            (b'{"id":1,"method":"ping"}', 1, INVALID_REQUEST),
            (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', None, INVALID_REQUEST),
            (
                b'{"jsonrpc":"2.0","method":"m","params":{"a":%s}}' % (b"9" * 9000),
                None,
                PARSE_ERROR,
            ),
            (
                b'{"jsonrpc":"2.0","id":2,"method":"m","params":{"a":"\\ud83d"}}',
                2,
                INVALID_REQUEST,
            ),
        ],
    )
    def test_what_is_no_message_is_answered(
        self, line: bytes, request_id: int | None, code: int
    ) -> None:
        refused = Gate().read(line)
        assert isinstance(refused, Refusal)
        assert (refused.error.id, refused.error.error.code) == (request_id, code)

    @given(st.binary(max_size=200) | MESSAGES)
    def test_any_line_is_a_message_or_refused(self, line: bytes) -> None:
        found = Gate().read(line)
        if isinstance(found, Refusal):
            found.error.model_dump_json()

    def test_an_id_is_one_request_until_it_is_answered_or_cancelled(self) -> None:
        gate = Gate()
        request = b'{"jsonrpc":"2.0","id":%s,"method":"ping"}'
        assert not isinstance(gate.read(request % b"7"), Refusal)
        for again in (b"7", b'"7"'):
            refused = gate.read(request % again)
            assert isinstance(refused, Refusal)
            assert refused.error.id is None
        gate.answered(JSONRPCResponse(jsonrpc="2.0", id=7, result={}))
        assert not isinstance(gate.read(request % b"7"), Refusal)
        cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}'
        gate.read(cancel)
        assert not isinstance(gate.read(request % b"7"), Refusal)

    def test_open_requests_are_bounded(self) -> None:
        gate = Gate()
        for number in range(MOST_OPEN + 1):
            found = gate.read(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % number)
        assert isinstance(found, Refusal)
        assert (found.error.id, found.error.error.code) == (MOST_OPEN, TOO_MANY)


@pytest.fixture(scope="module")
def server() -> Iterator[RawServer]:
    with raw_server() as running:
        yield running


class TestProcess:
    def test_goes_on_after_lines_of_every_kind(self, server: RawServer) -> None:
        for line in (b"{", b"\xff", b"[]", b'{"jsonrpc":"2.0","id":1}'):
            server.send(line + b"\n")
            assert "error" in server.answer()
        server.send(b"\n \n")
        server.call(1, "echo", text="hi")
        assert server.answer()["result"]["structuredContent"]["text"] == "hi"

    def test_a_huge_line_is_answered_by_its_id(self, server: RawServer) -> None:
        head = b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"x":"'
        server.send(head + b"x" * MOST_LINE_BYTES + b'"}}\n')
        refused = server.answer()
        assert refused["id"] == 2
        assert str(MOST_LINE_BYTES) in refused["error"]["message"]
        server.call(3, "echo", text="hi")
        assert server.answer()["id"] == 3

    def test_a_request_that_is_cancelled_is_not_answered_and_its_id_is_free(
        self, server: RawServer
    ) -> None:
        server.call(4, "work")
        server.said("work begun")
        server.call(4, "echo", text="twice")
        assert server.answer()["id"] is None
        cancel = {"method": "notifications/cancelled", "params": {"requestId": 4}}
        for _ in range(2):  # the second finds nothing to cancel
            server.send(json.dumps({"jsonrpc": "2.0", **cancel}).encode() + b"\n")
        server.said("work stopped")
        server.call(4, "echo", text="again")
        answered = server.answer()
        assert answered["id"] == 4
        assert answered["result"]["structuredContent"]["text"] == "again"

    def test_nothing_but_the_protocol_is_on_standard_output(self, server: RawServer) -> None:
        server.call(5, "child")
        server.said("a stray print")
        server.said("a stray child")
        structured = server.answer()["result"]["structuredContent"]
        assert structured == {"text": "printed", "code": 0}  # and it found no input to read

    def test_the_last_lines_of_a_script_are_answered(self) -> None:
        with raw_server() as script:
            script.call(1, "echo", text="one")
            script.call(2, "echo", text="two")
            script.end_input()
            assert {script.answer()["id"] for _ in range(2)} == {1, 2}
            assert script.out is not None
            assert script.out.next() is None
            assert script.process.wait(60) == 0
