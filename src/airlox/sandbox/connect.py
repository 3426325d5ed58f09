"""What a job says to the proxy of its allow list: the head of one request, and the answers. Pure.

Only tunnels are let through (`CONNECT name:port`), so that what passes is encrypted end to end
and nothing has to be understood of it. Everything else is refused in words that the usual programs
show: some print the status line, some the body, so both say it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airlox.sandbox.base import Denial, DenialReason
from airlox.sandbox.hosts import is_literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airlox.sandbox.hosts import HostRule

HEAD_BYTES: Final = 8 * 1024
"""A longer head is refused; those of usual programs have some hundred bytes."""
HEAD_END: Final = b"\r\n\r\n"
ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"

_LINE: Final = re.compile(rb"([A-Za-z]{1,20}) ([!-~]{1,4096}) HTTP/1\.[01]\Z")
_HOST: Final = r"([A-Za-z0-9._-]{1,254}|\[[0-9A-Fa-f:.]{2,45}\])"
_AUTHORITY: Final = re.compile(_HOST + r":([0-9]{1,5})\Z")
_URL: Final = re.compile(r"(https?)://" + _HOST + r"(?::([0-9]{1,5}))?(?:[/?#].*)?\Z", re.I)
_PORTS: Final = {"http": 80, "https": 443}
_ADVICE: Final = {
    DenialReason.NOT_LISTED: "allow with --allow-host {} on the runner",
    DenialReason.IP_LITERAL: "only names are let through, no addresses",
    DenialReason.NOT_PUBLIC: "its address is not public",
    DenialReason.PLAIN_HTTP: "only CONNECT is let through, so use https",
}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a tunnel is to lead. `name` is in lower case, without a closing dot."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"


class Refused(Exception):
    """A request that gets no tunnel: the answer's status and words, and what to note of it."""

    def __init__(self, status: int, words: str, denial: Denial | None = None) -> None:
        super().__init__(words)
        self.status = status
        self.words = words
        self.denial = denial

    def answer(self) -> bytes:
        """The whole response. The words are ours or were checked, so they are plain ASCII."""
        body = f"airlox: {self.words}\n"
        return (
            f"HTTP/1.1 {self.status} {self.words}\r\n"
            "Content-Type: text/plain; charset=us-ascii\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
            f"{body}"
        ).encode("ascii")


def parse_head(head: bytes) -> Target:
    """The target of a head, given without the empty line that ends it. Raises Refused."""
    line = _LINE.match(head.partition(b"\r\n")[0])
    if line is None:
        raise Refused(400, "this is no HTTP request")
    method, where = line.group(1).decode("ascii").upper(), line.group(2).decode("ascii")
    if method != "CONNECT":
        raise _not_a_tunnel(where)
    authority = _AUTHORITY.match(where)
    if authority is None:
        raise Refused(400, "CONNECT needs NAME:PORT")
    return _target(authority.group(1), int(authority.group(2)))


def check_listed(target: Target, rules: Sequence[HostRule]) -> None:
    """Raises Refused unless a rule lets the target through."""
    if any(rule.allows(target.name, target.port) for rule in rules):
        return
    literal = is_literal(target.name)
    raise denied(target, DenialReason.IP_LITERAL if literal else DenialReason.NOT_LISTED)


def denied(target: Target, reason: DenialReason) -> Refused:
    words = f"blocked: {target}; {_ADVICE[reason].format(target)}"
    return Refused(403, words, Denial(str(target), reason))


def _not_a_tunnel(where: str) -> Refused:
    url = _URL.match(where)
    if url is None:
        return Refused(400, "this is a proxy, and only CONNECT is let through")
    scheme, host, port = url.groups()
    target = _target(host, int(port) if port else _PORTS[scheme.lower()])
    return denied(target, DenialReason.PLAIN_HTTP)


def _target(host: str, port: int) -> Target:
    if not 1 <= port <= 65535:
        raise Refused(400, "a port is a number from 1 to 65535")
    return Target(host.lower().removesuffix("."), port)
