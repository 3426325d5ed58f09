"""Heads of requests to the proxy of an allow list, hostile ones included."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airlox.sandbox.base import Denial, DenialReason
from airlox.sandbox.connect import HEAD_BYTES, Refused, Target, check_listed, parse_head
from airlox.sandbox.hosts import parse_rules

RULES = parse_rules(["example.org", "*.wild.example", "example.org:8443"])


def refusal(head: bytes) -> Refused:
    """What becomes of a head that gets no tunnel."""
    with pytest.raises(Refused) as caught:
        check_listed(parse_head(head), RULES)
    return caught.value


class TestParse:
    @pytest.mark.parametrize(
        ("head", "target"),
        [
            (b"CONNECT example.org:443 HTTP/1.1", Target("example.org", 443)),
            (b"CONNECT EXAMPLE.org.:8443 HTTP/1.0", Target("example.org", 8443)),
            (b"connect a.wild.example:443 HTTP/1.1\r\nHost: other", Target("a.wild.example", 443)),
            (b"CONNECT example.org:443 HTTP/1.1\r\n\xff: \0", Target("example.org", 443)),
        ],
    )
    def test_a_tunnel(self, head: bytes, target: Target) -> None:
        assert parse_head(head) == target
        check_listed(target, RULES)

    @pytest.mark.parametrize(
        "head",
        [
            b"",
            b"CONNECT",
            b"CONNECT example.org:443",
            b"CONNECT example.org:443 HTTP/2",
            b"CONNECT  example.org:443 HTTP/1.1",
            b"CONNECT example.org:443 HTTP/1.1 x",
            b"CONNECT example.org:443 HTTP/1.1\n",
            b"CONNECT example.org HTTP/1.1",
            b"CONNECT example.org: HTTP/1.1",
            b"CONNECT example.org:0 HTTP/1.1",
            b"CONNECT example.org:65536 HTTP/1.1",
            b"CONNECT example.org:443/ HTTP/1.1",
            b"CONNECT http://example.org:443 HTTP/1.1",
            b"CONNECT user@example.org:443 HTTP/1.1",
            b"CONNECT ex%61mple.org:443 HTTP/1.1",
            b"CONNECT example.org\0.evil.net:443 HTTP/1.1",
            b"CONNECT ex\xc3\xa4mple.org:443 HTTP/1.1",
            b"CONNECT " + b"a" * 300 + b":443 HTTP/1.1",
            b"GET / HTTP/1.1\r\nHost: example.org",
            b"GET ftp://example.org/ HTTP/1.1",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"\x05\x01\x00",
        ],
    )
    def test_no_request_of_ours(self, head: bytes) -> None:
        refused = refusal(head)
        assert (refused.status, refused.denial) == (400, None)

    @pytest.mark.parametrize(
        ("head", "target", "reason"),
        [
            (b"CONNECT other.org:443 HTTP/1.1", "other.org:443", DenialReason.NOT_LISTED),
            (b"CONNECT example.org:80 HTTP/1.1", "example.org:80", DenialReason.NOT_LISTED),
            (b"CONNECT a.b.wild.example:443 HTTP/1.1", None, DenialReason.NOT_LISTED),
            (b"CONNECT 169.254.169.254:80 HTTP/1.1", None, DenialReason.IP_LITERAL),
            (b"CONNECT 127.0.0.1:443 HTTP/1.1", "127.0.0.1:443", DenialReason.IP_LITERAL),
            (b"CONNECT [::1]:443 HTTP/1.1", "[::1]:443", DenialReason.IP_LITERAL),
            (b"CONNECT 0x7f.1:443 HTTP/1.1", "0x7f.1:443", DenialReason.IP_LITERAL),
            (b"CONNECT localhost:22 HTTP/1.1", "localhost:22", DenialReason.NOT_LISTED),
            (b"GET http://example.org/x HTTP/1.1", "example.org:80", DenialReason.PLAIN_HTTP),
            (b"POST HTTPS://a.b HTTP/1.1", "a.b:443", DenialReason.PLAIN_HTTP),
            (b"GET http://[::1]:8/?q HTTP/1.1", "[::1]:8", DenialReason.PLAIN_HTTP),
        ],
    )
    def test_denied(self, head: bytes, target: str | None, reason: DenialReason) -> None:  # 44
        refused = refusal(head)
        assert refused.status == 403
        assert refused.denial == Denial(target or head.split()[1].decode(), reason)


HEADS = st.binary(max_size=HEAD_BYTES) | st.builds(
    lambda method, host, port, rest: b"%s %s:%s HTTP/1.1%s" % (method, host, port, rest),
    st.sampled_from([b"CONNECT", b"connect", b"GET", b"CONNECT\t", b"\0"]),
    st.binary(max_size=300) | st.from_regex(rb"[a-z0-9.\[\]:-]{1,30}", fullmatch=True),
    st.binary(max_size=6) | st.integers(0, 70_000).map(lambda n: b"%d" % n),
    st.binary(max_size=40),
)


class TestHostileBytes:
    @given(HEADS)
    @example(b"CONNECT example.org:443 HTTP/1.1\r\nX: y")
    def test_a_listed_target_or_a_refusal_that_is_one_answer(self, head: bytes) -> None:
        try:
            target = parse_head(head)
            check_listed(target, RULES)
        except Refused as refused:
            answer = refused.answer()
            status, _, body = answer.partition(b"\r\n\r\n")
            lines = status.split(b"\r\n")
            assert len(lines) == 4, "nothing of the request makes a line of its own"
            assert f"Content-Length: {len(body)}".encode() in lines
            assert answer.isascii()
        else:
            assert str(target) in {"example.org:443", "example.org:8443"} or (
                target.name.endswith(".wild.example") and target.port == 443
            )
