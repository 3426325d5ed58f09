"""Ports for servers that cannot be asked for any: they are named before they listen."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST = 10_000


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on, and that stays free while its server is stopped: none of
    those that the system gives to connections as their own ends."""
    given_from = int(RANGE.read_text().split()[0]) if RANGE.exists() else 1 << 15
    while True:
        port = FIRST + secrets.randbelow(max(given_from - FIRST, 1_000))
        try:
            with socket.create_server((host, port)):
                return port
        except OSError:
            continue
