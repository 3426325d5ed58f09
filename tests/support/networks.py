"""A network namespace of one test's own, in which lines between processes can be cut."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from airlox.sandbox.linux import syscalls
from faults.campaign.surroundings import Network
from support.parts import require

_HERE = "/proc/thread-self/ns/net"


@contextmanager
def own_network() -> Iterator[Network]:
    """What this thread opens and starts within the block is in a namespace of its own.

    The relay's address in there is 127.0.0.1, for everybody; see `Network`.
    """
    for part in ("linux", "root", "ip", "unshare", "nsenter"):
        require(part)
    before = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        network = Network()
        try:
            yield network
        finally:
            network.close()
    finally:
        _enter(before)
        os.close(before)


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, syscalls.CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
