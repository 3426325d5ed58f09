"""The builders of the `local` sandbox: one shape, one table, one order.

A builder raises the walls that `Walls` describes and starts the stage inside of them. What it
starts speaks the lines of `talk.py`, so that the runner's side is the same for all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

from airlox.errors import SandboxError

if TYPE_CHECKING:
    from airlox.sandbox.base import Plan
    from airlox.sandbox.linux.launched import Launched
    from airlox.sandbox.linux.walls import Given, Walls

TABLE = {
    "own": ("airlox.sandbox.linux.launch", "Own"),
    "bwrap": ("airlox.sandbox.linux.bwrap", "Bwrap"),
}
"""Name to module and class, in the order in which they are tried."""


class Builder(Protocol):
    """One way of raising the walls. Holds nothing of a command once it is launched."""

    @property
    def name(self) -> str:
        """What results and the operator call it."""

    @property
    def limits_files_of_tmpfs(self) -> bool:
        """Whether the kernel keeps the number of files in a tmpfs; else they are counted."""

    def check(self) -> None:
        """See what can be seen before a trial.

        Raises:
            SandboxError: a program is missing or lacks what is needed.
        """

    def launch(self, walls: Walls, plan: Plan, given: Given) -> Launched:
        """Start a launcher. An empty `argv` is a trial: all is built, nothing is run.

        The walls stand when "ready" is told; the command starts with `Launched.go`, and closing
        what is returned ends everything, whatever state it is in.

        Raises:
            OSError: no process or descriptor can be had.
            SandboxError: what the plan names cannot be mounted or had.
        """

    def keep_ready(self, starts: int) -> None:
        """See `Sandbox.keep_ready`. Raises OSError."""


def candidates(forced: str | None) -> tuple[Builder, ...]:
    """The builders to try, best first; just the one where the operator forces one.

    Raises:
        SandboxError: there is no builder of this name (`no_builder`).
    """
    if forced is None:
        return tuple(_open(name) for name in TABLE)
    if forced not in TABLE:
        known = ", ".join(TABLE)
        raise SandboxError(
            f'there is no builder "{forced}"', code="no_builder", hint=f"use one of {known}"
        )
    return (_open(forced),)


def _open(name: str) -> Builder:
    module, kind = TABLE[name]
    return cast("Builder", getattr(importlib.import_module(module), kind)())
