"""What runs in a sandbox that another program built: becomes its keeper.

The counterpart of `own.py` for bubblewrap, which starts it as pid 1 with the root in place, the
job's uid on and no capability left.
"""

from __future__ import annotations

import os

from airlox.sandbox.linux import keeper, syscalls
from airlox.sandbox.linux.blueprint import Blueprint, decode
from airlox.sandbox.linux.talk import failures_told, run_step


def main(data: bytes) -> None:
    """Keep the job of a blueprint. Never returns."""
    blueprint = decode(data)
    with failures_told(blueprint.info_fd):
        run_step("name", keeper.hide_command_line)
        run_step("keyring", syscalls.new_session_keyring)
        run_step("keeper", syscalls.prctl, syscalls.PR_SET_DUMPABLE, 0)
        _take_output(blueprint)
        keeper.main(blueprint, _built_already)


def _take_output(blueprint: Blueprint) -> None:
    for number, fd in enumerate(blueprint.output_fds, start=1):
        os.dup2(fd, number)
    for fd in set(blueprint.output_fds):
        os.close(fd)


def _built_already() -> None:
    """Bubblewrap did."""
