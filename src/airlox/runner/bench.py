"""Everything a runner's jobs are carried out with: one value, made at the start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from airlox.protocol.job import Env
from airlox.protocol.manifest import JobKind, JobLimits, Manifest
from airlox.runner import facts
from airlox.runner.link import Link
from airlox.runner.options import RunnerOptions
from airlox.runner.packages import Interpreter
from airlox.runner.spool import Spool
from airlox.runner.threads import Threads
from airlox.runner.workspace import Workspaces
from airlox.sandbox.base import Network, Report, Sandbox
from airlox.sandbox.sweep import StateFolder


class Pythons(Protocol):
    """Where the interpreter of Python jobs comes from."""

    def get(self) -> Interpreter:
        """The interpreter, made now if it must be. Raises JobRefused."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything a runner's jobs are carried out with."""

    options: RunnerOptions
    manifest: Manifest
    session: JobLimits
    kinds: tuple[JobKind, ...]
    python_version: str | None
    slots: int
    folder: Path
    link: Link
    sandbox: Sandbox
    report: Report
    state: StateFolder
    workspaces: Workspaces
    python: Pythons
    spool: Spool
    threads: Threads
    redactions: tuple[tuple[str, str], ...]

    @property
    def network(self) -> Network:
        """The network jobs get here."""
        return facts.network_of(self.options, self.session.network)

    @property
    def env(self) -> Env:
        """Where jobs run, for answers to jobs that never ran."""
        return facts.env(self.report, self.options, network=self.network, interpreter=None)
