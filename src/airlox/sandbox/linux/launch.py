"""The builder `own`: namespaces by our own launcher, `own.py`, in a fresh interpreter."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from airlox.sandbox.linux import apparmor
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
    from airlox.sandbox.linux.walls import Given, Walls

# In the order in which they import each other.
_MODULES = (
    "blueprint",
    "talk",
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

    def check(self) -> None:
        """The trial says more than any look at the system could."""

    def launch(self, walls: Walls, plan: Plan, given: Given) -> Launched:
        """See `builders.Builder`."""
        with Lines() as lines:
            blueprint = walls.blueprint(plan, given, lines.theirs)
            process = subprocess.Popen(
                [apparmor.installed() or interpreter(), *INTERPRETER_FLAGS, BOOT],
                stdin=lines.lend_file(program(_MODULES) + encode(blueprint)),
                stdout=given.stdout_fd,
                stderr=given.stderr_fd,
                pass_fds=(*lines.theirs, *given.inherited),
                cwd="/",
                env={},
                start_new_session=True,
            )
            return Launched(process, lines.kept())
