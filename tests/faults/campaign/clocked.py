"""Runs a Python program under a wall clock of its own: `clocked.py FILE (-m MODULE | PATH) ...`.

FILE holds how many seconds the clock is ahead; it is read again for each question, so the clock
can be turned while the program runs. Time spans stay right, as they do in reality. What follows
FILE may also be a whole command line that begins with this interpreter.
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

_real_ns = time.time_ns


def main() -> None:
    offset = Path(sys.argv[1])

    def time_ns() -> int:
        return _real_ns() + int(offset.read_text()) * 1_000_000_000

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
    del sys.argv[:2]
    if sys.argv[0] == sys.executable:
        del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")


main()
