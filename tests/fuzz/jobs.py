"""Targets: what a job says, to the proxy of its allow list and on its output."""

from __future__ import annotations

from typing import Final

from airlox.cli.terminal import TerminalFilter, clean, clean_json, clean_line
from airlox.runner.redact import Redactor
from airlox.sandbox.connect import Refused, check_listed, parse_head
from airlox.sandbox.hosts import is_literal, parse_rules

_RULES: Final = parse_rules(["example.org", "*.wild.example", "example.org:8443"])
_SECRETS: Final = (("/home/me/work", "$WORK"), ("/home/me/work/deep", "$DEEP"), ("/home/me", "~"))


def read_tunnel(data: bytes) -> None:
    """A head leads to a listed name, or gets an answer of plain words."""
    try:
        target = parse_head(data)
        check_listed(target, _RULES)
    except Refused as refused:
        head, _, body = refused.answer().decode("ascii").partition("\r\n\r\n")
        assert all(line.isprintable() for line in head.split("\r\n"))
        assert body[:-1].isprintable()
        return
    assert target.name == "example.org" or target.name.endswith(".wild.example")
    assert not is_literal(target.name)
    assert target.port in (443, 8443)


def tunnel_seeds() -> list[bytes]:
    line = b" HTTP/1.1\r\nHost: x"
    names = (b"example.org:443", b"a.wild.example:443", b"10.0.0.1:443", b"[::1]:443", b"0x7f.1:1")
    plain = (b"GET http://example.org/x", b"POST https://[::1]:8/", b"GET /")
    return [b"CONNECT " + name + line for name in names] + [each + line for each in plain]


def read_output(data: bytes) -> None:
    """However output is cut, a terminal gets the same, and nothing that it would act on."""
    whole, *others = (_filtered(data, n) for n in (len(data) or 1, 1, 7))
    assert all(each == whole for each in others)
    text = data.decode("utf-8", "replace")
    for shown in (clean(text), clean_line(text), clean_json(text)):
        assert "\x1b" not in shown
        assert "\r" not in shown
    assert "\n" not in clean_line(text)
    redactor = Redactor(_SECRETS)
    plain = redactor.clean(data)
    for path, _ in _SECRETS:
        assert path.encode() + b"/" not in plain
    for size in (1, 7):
        stream = redactor.stream()
        cut = b"".join(stream.feed(data[at : at + size]) for at in range(0, len(data), size))
        assert cut + stream.flush() == plain


def _filtered(data: bytes, size: int) -> str:
    filter_ = TerminalFilter()
    pieces = [filter_.feed(data[at : at + size]) for at in range(0, len(data), size)]
    return "".join(pieces) + filter_.feed(b"", final=True)


def output_seeds() -> list[bytes]:
    return [
        b"plain\n\x1b[1;31mred\x1b[0m\x1b]0;title\x07\x1b[2J\r\x1b[K\xff\xc3\xa4\n",
        b"/home/me/work/deep/x /home/me/workshop /home/me /home/men /home/me/work.\n",
        "\u202e\u2066\U000e0041".encode(),
    ]
