"""Which hosts an allow list names, and which addresses a name may lead to. Pure.

Rules
- A rule is `NAME` or `NAME:PORT`, the port 443 unless given. A wildcard stands for exactly one
  whole label, the leftmost, and at least two labels follow it, as in certificates.
- Names only. An address could lead anywhere a firewall trusts, so no rule and no request has one;
  what a resolver would take for an address in an odd form (`127.1`, `0x7f.1`) counts as one.
- An address is public or it is not let through: neither this machine, its networks and metadata
  services, nor addresses that carry such a one inside (NAT64, 6to4, mapped).

Left to others: whether an address is one of this machine's own, which is not in its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from airlox.errors import UsageError
from airlox.sandbox.linux import doorway

DEFAULT_PORT: Final = 443
MAX_RULES: Final = 64
NAME_CHARACTERS: Final = 253

_PROXY: Final = f"http://{doorway.ADDRESS}:{doorway.PORT}"
_VARIABLES: Final = {
    "HTTP_PROXY": _PROXY,
    "HTTPS_PROXY": _PROXY,
    "ALL_PROXY": _PROXY,
    "NO_PROXY": "localhost,127.0.0.1,::1",
}
PROXY_ENV: Final = _VARIABLES | {name.lower(): value for name, value in _VARIABLES.items()}
"""What leads programs to the way out: some look for capitals, some for small letters."""

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_PORT: Final = re.compile(r"[0-9]{1,5}\Z")
_NUMBER: Final = re.compile(r"([0-9]+|0x[0-9a-f]*)\Z")
"""A last label that resolvers read as part of an address."""

_CLOSED: Final = tuple(
    ip_network(text)
    for text in (
        "100.64.0.0/10",  # carrier NAT; metadata services of some clouds
        "168.63.129.16/32",  # a cloud's metadata service at an address that looks public
        "192.0.0.0/24",  # protocol assignments; another cloud's metadata service
        "192.88.99.0/24",  # relays of 6to4
        "198.18.0.0/15",  # measurements between networks
        "2001::/23",  # protocol assignments, Teredo among them
        "3fff::/20",  # documentation
    )
)
"""What the standard library calls global, in some version of it or at all."""
_UNICAST: Final = IPv6Network("2000::/3")
"""All that is assigned to hosts of the internet."""
_NAT64: Final = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of an allow list. `name` is in lower case and may begin with `*.`."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"

    def allows(self, name: str, port: int) -> bool:
        """Whether this rule lets a connection to a name in lower case through."""
        if port != self.port:
            return False
        if self.name.startswith("*."):
            label, dot, rest = name.partition(".")
            return bool(label and dot) and rest == self.name[2:]
        return name == self.name


def parse_rule(text: str) -> HostRule:
    """A rule as an operator writes it. Raises UsageError."""
    name, colon, port = text.strip().lower().rpartition(":")
    if not colon:
        name, port = port, str(DEFAULT_PORT)
    name = name.removesuffix(".")
    if _PORT.match(port) is None or not 1 <= int(port) <= 65535:
        raise _unusable(text, "the port is a number from 1 to 65535")
    if is_literal(name):
        raise _unusable(text, "addresses are not let through, only names")
    labels = name.removeprefix("*.").split(".")
    if not all(map(_LABEL.match, labels)) or len(name) > NAME_CHARACTERS:
        raise _unusable(text, "a name has labels of a-z, 0-9 and -; `*` only as the whole left one")
    if len(labels) < 2:
        raise _unusable(text, "a name has at least two labels, not counting a wildcard")
    return HostRule(name, int(port))


def parse_rules(texts: Iterable[str]) -> tuple[HostRule, ...]:
    """The rules of a list, sorted, each once. Raises UsageError."""
    rules = sorted({parse_rule(text) for text in texts}, key=str)
    if len(rules) > MAX_RULES:
        raise UsageError(
            f"--allow-host names at most {MAX_RULES} hosts, not {len(rules)}",
            code="too_many_hosts",
            hint="a wildcard such as *.example.org stands for many",
        )
    return tuple(rules)


def is_literal(name: str) -> bool:
    """Whether resolvers take this for an address rather than a name."""
    if ":" in name or name.startswith("["):
        return True
    return _NUMBER.match(name.removesuffix(".").rpartition(".")[2].lower()) is not None


def is_public(address: str) -> bool:
    """Whether an address in its usual text form may be connected to."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    carried = _carried(parsed)
    return _is_open(parsed) if carried is None else _is_open(carried)


def _is_open(address: IPv4Address | IPv6Address) -> bool:
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, IPv6Address) and address not in _UNICAST:
        return False
    return not any(address.version == net.version and address in net for net in _CLOSED)


def _carried(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """The IPv4 address that packets to this IPv6 address come out at, where it names one."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _unusable(text: str, why: str) -> UsageError:
    return UsageError(
        f"--allow-host {text[:80]!r}: {why}",
        code="bad_host",
        hint="write NAME or NAME:PORT, such as api.example.net, *.example.org or example.org:8443",
    )
