"""Whom a request counts for: its address, or the one a trusted proxy names.

A proxy is trusted when it runs on this machine, or everywhere with `--behind-proxy`. What it names
is the last entry of the last X-Forwarded-For: everything before it the client may have written
itself. An IPv6 client is counted by its /64, which is what one connection is given.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final, NamedTuple

ADDRESS_CHARS: Final = 64
FORWARDED: Final = b"x-forwarded-for"


class Origin(NamedTuple):
    """Where a request comes from. `network` is what counts as one address; `is_named` is False
    for a trusted proxy that names nobody: behind it may be anybody."""

    network: str
    is_named: bool

    @property
    def holder(self) -> str | None:
        """Whose places a request takes; None when that is unknown."""
        return self.network if self.is_named else None


def origin_of(peer: str, headers: Iterable[tuple[bytes, bytes]], *, behind_proxy: bool) -> Origin:
    """The origin of a request that came from `peer`."""
    if not (behind_proxy or is_this_machine(peer)):
        return Origin(network_of(peer), True)
    named = [value for name, value in headers if name == FORWARDED]
    last = named[-1].decode("latin-1").rpartition(",")[2].strip() if named else ""
    return Origin(network_of(last[:ADDRESS_CHARS] or peer), bool(last))


def is_this_machine(peer: str) -> bool:
    return peer == "::1" or network_of(peer) == "127.0.0.1"


def network_of(address: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 of an IPv6 one."""
    host = _without_port(address)
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))


def _without_port(address: str) -> str:
    """Some proxies name clients as `192.0.2.1:4711` or `[2001:db8::1]:4711`."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    host, colon, _ = address.partition(":")
    return host if colon and "." in host else address
