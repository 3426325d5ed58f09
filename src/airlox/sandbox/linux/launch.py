"""The builder `own`: namespaces by our own launcher, `own.py`, in a fresh interpreter.

A launcher is an interpreter with our code in it that waits for the orders of one job
(`handover.py`). Nothing it did so far depends on the plan, so it can be started ahead of the job.
"""

from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING

from airlox.sandbox.linux import apparmor, handover
from airlox.sandbox.linux.blueprint import encode
from airlox.sandbox.linux.launched import (
    BOOT,
    INTERPRETER_FLAGS,
    Launched,
    Lines,
    interpreter,
    program,
)

if TYPE_CHECKING:
    from airlox.sandbox.base import Plan
    from airlox.sandbox.linux.launched import Ends
    from airlox.sandbox.linux.walls import Given, Walls

# In the order in which they import each other.
_MODULES = (
    "blueprint",
    "talk",
    "handover",
    "syscalls",
    "landlock",
    "stage",
    "doorway",
    "keeper",
    "root",
    "own",
)


class Own:
    """See `builders.Builder`. It needs no program but the interpreter that we are."""

    name = "own"
    limits_files_of_tmpfs = True

    def __init__(self) -> None:
        self._ready: list[_Ready] = []

    def check(self) -> None:
        """The trial says more than any look at the system could."""

    def launch(self, walls: Walls, plan: Plan, given: Given) -> Launched:
        """See `builders.Builder`."""
        while self._ready:
            try:
                return self._ready.pop(0).take(walls, plan, given)
            except ConnectionError:
                continue  # it ended while it waited
        return _start().take(walls, plan, given)

    def keep_ready(self, starts: int) -> None:
        """See `builders.Builder`."""
        while self._ready and not starts:
            self._ready.pop().close()
        while len(self._ready) < starts:
            self._ready.append(_start())


class _Ready:
    """A launcher without orders. Holds nothing of any job."""

    def __init__(self, launched: Launched, ends: Ends, way: socket.socket) -> None:
        """`ends` are the launcher's, as it numbers them."""
        self._launched = launched
        self._ends = ends
        self._way = way

    def take(self, walls: Walls, plan: Plan, given: Given) -> Launched:
        """Have it launch this. It is used up then, also if that failed.

        Raises:
            ConnectionError: it has ended.
            OSError, SandboxError: as `Builder.launch`.
        """
        try:
            with self._way, Lines() as lines:
                orders_fd = lines.lend_file(encode(walls.blueprint(plan, given, self._ends)))
                fds = (orders_fd, given.stdout_fd, given.stderr_fd, *given.inherited)
                socket.send_fds(self._way, [b"o"], fds)
        except BaseException:
            self.close()
            raise
        return self._launched

    def close(self) -> None:
        """End it."""
        self._way.close()
        self._launched.close()


def _start() -> _Ready:
    """A launcher that waits for orders. Raises OSError."""
    ours, theirs = socket.socketpair()
    with Lines() as lines:
        try:
            way_fd = lines.lend(theirs.detach())
            post = handover.encode_post(os.getpid(), lines.theirs.info_fd, way_fd)
            process = subprocess.Popen(
                [apparmor.installed() or interpreter(), *INTERPRETER_FLAGS, BOOT],
                stdin=lines.lend_file(program(_MODULES) + post),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(*lines.theirs, way_fd),
                cwd="/",
                env={},
                start_new_session=True,
            )
            return _Ready(Launched(process, lines.kept()), lines.theirs, ours)
        except BaseException:
            ours.close()
            raise
