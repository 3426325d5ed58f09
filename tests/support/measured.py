"""Runs a module as a program and writes down how much memory it took: `measured.py FILE MODULE
ARGUMENT…`. The number is the largest resident size of this process, in kB.

A program may leave without taking the interpreter down: the number is written then too.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def peak_kb(pid: int | str = "self") -> int:
    """The largest resident size of a process so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("the kernel does not say")


def main() -> None:
    path, module = sys.argv[1:3]
    sys.argv = [module, *sys.argv[3:]]
    leave = os._exit

    def note_and_leave(status: int) -> NoReturn:
        Path(path).write_text(str(peak_kb()))
        leave(status)

    os._exit = note_and_leave
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        Path(path).write_text(str(peak_kb()))


if __name__ == "__main__":
    main()
