"""A machine called `box` with everything it needs, for benchmarks: relay, runner, approval."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import BIN, folder, process, relay, run

if TYPE_CHECKING:
    from airlox import Session

READY_S = 30.0
NAME = "box"


@dataclass(frozen=True)
class Box:
    """The machine, as its owner has it."""

    name: str
    cache: Path
    relay_pid: int
    runner_pid: int

    @property
    def environ(self) -> dict[str, str]:
        return {"AIRLOX_CACHE_DIR": str(self.cache)}

    def command(self, *words: str) -> list[str]:
        """The words of a command; it needs `environ`."""
        return [str(BIN / "airlox"), *words]

    def airlox(self, *words: str, cwd: Path | None = None, timeout_s: float = 60) -> None:
        """One command, in a process of its own."""
        run(self.command(*words), env=self.environ, cwd=cwd, timeout=timeout_s)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """The machine's session, opened once."""
        from airlox import Session
        from airlox.client.machines import Machines

        machine = Machines(self.cache).get(self.name)
        session = Session.join(machine.owner_invite, cache_dir=self.cache)
        try:
            yield session
        finally:
            session.disconnect()


@contextmanager
def box(*runner_flags: str) -> Iterator[Box]:
    """Relay and runner in processes of their own, the runner approved.

    `runner_flags` go to the one command that `machine add` prints for the machine.
    """
    with folder() as root, relay("--data", str(root / "relay")) as (address, relay_pid):
        environ = {"AIRLOX_RELAY": address, "AIRLOX_CACHE_DIR": str(root / "you")}
        adding = [str(BIN / "airlox"), "machine", "add", NAME, "--yes"]
        with process(
            adding, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ
        ) as adder:
            command = " ".join([_printed(adder), *runner_flags])
            theirs = {
                "AIRLOX_CACHE_DIR": str(root / "machine"),
                "AIRLOX_RELAY": address,
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            }
            quiet = subprocess.DEVNULL
            words = ["sh", "-c", f"exec env {command}"]  # no shell stays in between
            with process(words, stdout=quiet, stderr=quiet, env=theirs) as runner:
                adder.wait(READY_S)
                ours = Box(NAME, root / "you", relay_pid, runner.pid)
                ours.airlox("run", "--on", NAME, "--", "true")
                yield ours


def _printed(adder: subprocess.Popen[str]) -> str:
    """The one command that `machine add` prints."""
    assert adder.stdout is not None
    for line in adder.stdout:
        if "airlox runner join" in line:
            return line.strip()
    raise RuntimeError("machine add printed no command")
