"""A real relay, a relay in front of it that lies, and people who talk to one or the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from airlox import Session
from support.lying import LyingRelay
from support.relay import RelayThread

TIMEOUT_S = 100.0
"""Longer than any call of a client may take."""
SOURCE = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayThread]:
    with RelayThread(posts_per_second=0) as live:
        yield live


@pytest.fixture
def liar(relay: RelayThread) -> Iterator[LyingRelay]:
    with LyingRelay(relay.url) as made:
        yield made
        made.honest()


class Outcome(NamedTuple):
    """What came of a client that was lied to; `failed` is its error, `peak_mb` its memory."""

    found: Any
    failed: str | None
    warnings: list[str]
    took_s: float
    peak_mb: float


class Measured(NamedTuple):
    """How a program ended."""

    code: int
    out: str
    err: str
    peak_mb: float


def measure(folder: Path, module: str, *words: str, **environ: str) -> Measured:
    """Run a module as a program to its end; `folder` is for what is measured."""
    peak = folder / "peak"
    program = SOURCE / "tests" / "support" / "measured.py"
    path = os.pathsep.join([str(SOURCE / "src"), str(SOURCE / "tests")])
    done = subprocess.run(
        [sys.executable, str(program), str(peak), module, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": path, **environ},
    )
    return Measured(done.returncode, done.stdout, done.stderr, int(peak.read_text()) / 1024)


class Scene:
    """A session on the real relay, with its owner; victims come through the liar."""

    def __init__(self, folder: Path, liar: LyingRelay) -> None:
        self.folder = folder
        self.liar = liar
        self.owner = Session.create(
            liar.real_url,
            mode="execute",
            job_limits={"kinds": ["python", "shell"], "approve_runners": False},
            cache_dir=folder / "owner",
        )
        self.links = {role: liar.link(link) for role, link in self.owner.invites.items()}
        self._open = [self.owner]

    def join(self, role: str = "sender", name: str = "victim", **options: Any) -> Session:
        cache = self.folder / f"{name}-{role}"
        session = Session.join(self.links[role], display_name=name, cache_dir=cache, **options)
        self._open.append(session)
        return session

    def victim(self, deed: str, timeout_s: float = 1.0, role: str = "observer") -> Outcome:
        """A client of the SDK in a process of its own, which has joined before."""
        told, peak_mb = self._victim(role, "support.victim", deed, timeout_s)
        return Outcome(**json.loads(told.out), peak_mb=peak_mb)

    def _victim(self, role: str, module: str, *rest: Any) -> tuple[Measured, float]:
        cache = str(self.folder / f"victim-{role}")
        done = self.measured(module, json.dumps([self.links[role], cache, *rest]))
        assert done.code == 0, done
        return done, done.peak_mb

    def cli(self, *words: str, role: str = "observer", **environ: str) -> Measured:
        """A command in a process of its own, by somebody who has joined before."""
        cache = str(self.folder / f"victim-{role}")
        given = {"AIRLOX_CACHE_DIR": cache, "AIRLOX_INVITE": self.links[role], **environ}
        return self.measured("airlox.cli", *words, **given)

    def measured(self, module: str, *words: str, **environ: str) -> Measured:
        return measure(self.folder, module, *words, **environ)

    def go_home(self) -> None:
        for session in self._open:
            session.disconnect()


@pytest.fixture
def scene(tmp_path: Path, liar: LyingRelay) -> Iterator[Scene]:
    made = Scene(tmp_path, liar)
    yield made
    made.go_home()
