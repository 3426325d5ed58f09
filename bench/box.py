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


@dataclass(frozen=True)
class Box:
    """The machine, as its owner has it."""

    name: str
    cache: Path

    @property
    def environ(self) -> dict[str, str]:
        return {"AIRLOX_CACHE_DIR": str(self.cache)}

    def airlox(self, *words: str, cwd: Path | None = None, timeout_s: float = 60) -> None:
        """One command, in a process of its own."""
        run([str(BIN / "airlox"), *words], env=self.environ, cwd=cwd, timeout=timeout_s)

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
def box() -> Iterator[Box]:
    """Relay and runner in processes of their own, the runner approved."""
    with folder() as root, relay("--data", str(root / "relay")) as (address, _):
        ours = Box("box", root / "you")
        environ = ours.environ | {"AIRLOX_RELAY": address}
        adding = [str(BIN / "airlox"), "machine", "add", ours.name, "--yes"]
        with process(
            adding, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ
        ) as adder:
            command = _printed(adder)
            invite = command.split("'")[1]
            join = [str(BIN / "airlox"), "runner", "join", "--name", ours.name]
            mine = {"AIRLOX_CACHE_DIR": str(root / "machine"), "AIRLOX_INVITE": invite}
            quiet = subprocess.DEVNULL
            with process(join, stdout=quiet, stderr=quiet, env=os.environ | mine):
                adder.wait(READY_S)
                ours.airlox("run", "--on", ours.name, "--", "true")
                yield ours


def _printed(adder: subprocess.Popen[str]) -> str:
    """The one command that `machine add` prints."""
    assert adder.stdout is not None
    for line in adder.stdout:
        if "airlox runner join" in line:
            return line
    raise RuntimeError("machine add printed no command")
