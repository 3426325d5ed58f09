"""Run one command, confined. Knows nothing of sessions, keys or relays.

`NAMES` is the table of sandboxes; each module offers `open_sandbox(options)`. Modules are imported
on first use, so that naming a sandbox costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, cast

from airlox.errors import UsageError

if TYPE_CHECKING:
    from airlox.sandbox.base import Sandbox, SandboxOptions

NAMES = {
    "docker": "airlox.sandbox.docker",
    "local": "airlox.sandbox.local",
    "process": "airlox.sandbox.process",
}


def open_sandbox(name: str, options: SandboxOptions) -> Sandbox:
    """The sandbox called `name`.

    Raises:
        UsageError: no sandbox has this name.
        SandboxError: it cannot be had on this kind of system (code `not_linux`).
    """
    if name not in NAMES:
        known = ", ".join(sorted(NAMES))
        raise UsageError(
            f'there is no sandbox "{name}"', code="unknown_sandbox", hint=f"use {known}"
        )
    if name == "local" and sys.platform != "linux":
        from airlox.sandbox.probe import refusal

        raise refusal("not_linux")
    module = importlib.import_module(NAMES[name])
    return cast("Sandbox", module.open_sandbox(options))
