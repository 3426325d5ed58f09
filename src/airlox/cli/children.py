"""Processes that a command starts beside itself, and always ends.

Each runs in a session of its own (Ctrl-C at the terminal is ours to handle), without the caller's
AIRLOX_* settings, from a folder of ours, with its output in files there. What it must be told and
nobody else may read goes into its environment, never into its arguments.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from airlox.errors import AirloxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

_LOOK_S = 0.02
_LOG_BYTES = 4096


class Child:
    """One process: `python -m MODULE …` with our interpreter. End it with `end`."""

    def __init__(
        self, name: str, words: Sequence[str], *, folder: Path, environ: Mapping[str, str]
    ) -> None:
        self.name = name
        self._out = folder / f"{name}.out"
        self._log = folder / f"{name}.log"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AIRLOX_")}
        with self._out.open("wb") as out, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=folder,
                env=inherited | dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def first_line(self, timeout_s: float) -> str:
        """The first line it prints. Raises AirloxError when it ends before, or takes too long."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            line, newline, _ = self._out.read_text("utf-8", "replace").partition("\n")
            if newline:
                return line
            self.check()
            time.sleep(_LOOK_S)
        raise self._failure(f"said nothing for {timeout_s:.0f} s")

    def check(self) -> None:
        """Raises AirloxError when it has ended, with the last of what it said."""
        if self._process.poll() is not None:
            raise self._failure(f"ended with exit code {self._process.returncode}")

    def wait(self, timeout_s: float) -> bool:
        """Whether it ends by itself within `timeout_s`."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, grace_s: float = 10.0) -> None:
        """Ask it to end, then make it, with all it started. Safe to repeat."""
        if self._process.poll() is None:
            self._process.terminate()
            if not self.wait(grace_s):
                self._kill_group()
        self._process.wait()

    def _kill_group(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _failure(self, what: str) -> AirloxError:
        said = self._log.read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace").strip()
        last = said.rpartition("\n")[2]
        return AirloxError(
            f"the {self.name} {what}" + (f": {last}" if last else ""), code="child_failed"
        )
