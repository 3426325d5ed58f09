"""`airlox listen` as a process, stand-ins for the agents it starts, and its sudden death."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airlox import Session
from support.machines import Program
from support.woken_agent import RECORD

_STAND_IN = """#!{python}
import sys
sys.path.insert(0, {tests!r})
from support import woken_agent
woken_agent.{what}()
"""

_KILLED = """
import functools, os, signal, sys
from airlox.agents import keeping, ledger
from airlox.cli.main import main

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def patch(owner, name, before):
    whole = getattr(owner, name)
    call = whole.__func__ if hasattr(whole, "__func__") else whole
    @functools.wraps(call)
    def patched(*args, **kwargs):
        if before: die()
        call(*args, **kwargs)
        die()
    setattr(owner, name, classmethod(patched) if hasattr(whole, "__func__") else patched)

patch(*{points}[sys.argv[1]])
main(sys.argv[2:])
"""

POINTS = {
    "taken": "(keeping.Run, 'prepare', True)",
    "keeper ready": "(ledger.Ledger, 'start', True)",
    "started, nothing runs": "(ledger.Ledger, 'start', False)",
    "running": "(keeping.Run, 'go', False)",
    "ended": "(keeping.Run, 'wait', False)",
    "finished": "(ledger.Ledger, 'finish', False)",
}
"""Where a listener may be killed, from the moment it has a batch to the next one."""


class Listener(Program):
    """A listener that takes part as `session`. What it says can be waited for: on the streams that
    `says` leaves it."""

    def __init__(
        self,
        session: Session,
        cache: Path,
        *words: str,
        start: Sequence[str] = (sys.executable, "-m", "airlox.cli"),
        says: str = "2>&1",
        **environment: str,
    ) -> None:
        link = session._core.membership.invite.url()
        shell = ["/bin/sh", "-c", f'exec "$@" {says}', "sh"]
        me = {"AIRLOX_INVITE": link, "AIRLOX_CACHE_DIR": str(cache)}
        super().__init__([*shell, *start, "listen", *words], **me | environment)

    def __enter__(self) -> Listener:
        self.start()
        return self


def killed_listener(point: str, session: Session, cache: Path, *words: str) -> Listener:
    """One that kills itself, as nobody can prepare for, at one of POINTS."""
    points = "{" + ", ".join(f"{name!r}: {place}" for name, place in POINTS.items()) + "}"
    code = _KILLED.format(points=points)
    start = (sys.executable, "-c", code, point)
    # what it started lives on, and would keep the end of its output from being seen
    return Listener(session, cache, *words, start=start, says=">/dev/null 2>&1")


class StandIns:
    """Programs called claude and codex, first on PATH. `what` they do is a function of
    `woken_agent`."""

    def __init__(self, folder: Path, what: str = "record") -> None:
        self._bin = folder / "bin"
        self._record = folder / "record"
        self._bin.mkdir()
        tests = str(Path(__file__).parents[1])
        for name in ("claude", "codex"):
            program = self._bin / name
            program.write_text(_STAND_IN.format(python=sys.executable, tests=tests, what=what))
            program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "CODEX_HOME": str(self._bin),
            RECORD: str(self._record),
        }

    @property
    def starts(self) -> list[dict[str, Any]]:
        """How they were started, oldest first."""
        if not self._record.exists():
            return []
        return [json.loads(line) for line in self._record.read_text().splitlines()]
