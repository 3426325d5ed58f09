"""The runner's side of a job's way out: getting the door of its network, to serve it outside.

Two ways to the door: the launcher hands it out (`Outlet`), or it is opened from outside in a
network that somebody else made, such as a container's (`open_from_outside`). Loaded only where an
allow list is set.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox.egress import EgressProxy
from airlox.sandbox.hosts import parse_rules
from airlox.sandbox.linux import doorway, syscalls
from airlox.sandbox.lookups import system_resolver

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType


class Outlet:
    """The way out of one job to these hosts; a context manager.

    A launcher hands the door of the job's network out through `door_fd`.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        """Raises UsageError for hosts that are none."""
        self._rules = parse_rules(hosts)
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)

    @property
    def door_fd(self) -> int:
        """The launcher's end."""
        return self._theirs.fileno()

    def proxy(self) -> EgressProxy:
        """What serves the door. Raises as `take`."""
        return EgressProxy(self.take(), self._rules, system_resolver().share())

    def take(self) -> socket.socket:
        """The door, once the launcher has said "ready". Waits for nothing.

        Raises:
            SandboxError: it is not there (`no_door`).
        """
        try:
            _, fds, _, _ = socket.recv_fds(self._ours, 1, 1)
        except OSError:
            fds = []
        if not fds:
            raise SandboxError("the job's network has no door for its allow list", code="no_door")
        return socket.socket(fileno=fds[0])

    def __enter__(self) -> Outlet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ours.close()
        self._theirs.close()


def open_from_outside(namespace: int) -> socket.socket:
    """The door of the network namespace behind a descriptor. Needs root. Blocks for a moment.

    Raises:
        OSError: the namespace may not be entered, or its loopback is taken.
    """
    opened: list[socket.socket] = []
    failed: list[OSError] = []

    def enter() -> None:
        try:
            syscalls.enter_namespace(namespace, syscalls.CLONE_NEWNET)
            opened.append(socket.socket(fileno=doorway.listen().detach()))
        except OSError as error:
            failed.append(error)

    # A namespace belongs to a thread, so one that ends is the way to visit.
    thread = threading.Thread(target=enter, name="doorway")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return opened[0]


def open_namespace_of(pid: int) -> int:
    """A descriptor of a process's network namespace; whoever asks closes it. Raises OSError."""
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
