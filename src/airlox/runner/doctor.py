"""Whether this machine can be a runner: its layers, its parts, and twelve attacks on the sandbox.

Nothing is left behind but the work root, which is made if it is missing.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from airlox.errors import JobRefused, SandboxError
from airlox.runner import facts
from airlox.runner.attacks import ATTACKS, USER_NAMESPACE, Attack
from airlox.runner.checks import Check, State, look_at_machine, supply_of
from airlox.runner.confinement import open_ways, passes_through, sandbox_options
from airlox.runner.options import RunnerOptions
from airlox.runner.trials import Ground, Python, Trial, attack_all
from airlox.sandbox import open_sandbox
from airlox.sandbox.base import Report
from airlox.sandbox.collect import remove_tree


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found. Without a usable sandbox no attack is made."""

    report: Report
    checks: tuple[Check, ...]
    trials: tuple[Trial, ...]

    @property
    def healthy(self) -> bool:
        """Every needed layer stands, every attack was made and held, and nothing else failed."""
        return (
            self.report.usable
            and bool(self.trials)
            and all(trial.held is True for trial in self.trials)
            and all(check.state is not State.FAILED for check in self.checks)
        )


def diagnose(options: RunnerOptions, runtime: str, account: str) -> Diagnosis:
    """Look at everything. Called from the main thread; takes some seconds.

    Raises UsageError for a sandbox that nobody has heard of or options that cannot be, and
    StorageError where not even a temporary folder can be made.
    """
    options = _with_image(options, runtime)
    checks = look_at_machine(options, runtime, account)
    root = options.jobs_root if _is_fine(checks, "work root") else Path(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="doctor-", dir=root))
    try:
        return _diagnose(options, folder, runtime, checks)
    finally:
        remove_tree(folder)


def _diagnose(
    options: RunnerOptions, folder: Path, runtime: str, checks: tuple[Check, ...]
) -> Diagnosis:
    # named hosts are tried as in a session that allows them; no attack asks for one of these
    network = facts.network_of(options, session_allows=bool(options.hosts))
    sandbox = open_sandbox(options.sandbox, sandbox_options(options, folder, network))
    with suppress(SandboxError):  # the probe says it better
        if passes_through(options, sandbox):
            open_ways(options, folder)
    report = sandbox.probe()
    if not report.usable:
        return Diagnosis(report, checks, ())
    sandbox.prepare()
    place = folder / "trials"
    place.mkdir(0o700)
    if passes_through(options, sandbox):
        open_ways(options, place)
    ground = Ground(sandbox, place, _python(options, runtime), network, options.hosts)
    return Diagnosis(report, checks, asyncio.run(attack_all(ground, _attacks(options))))


def _with_image(options: RunnerOptions, runtime: str) -> RunnerOptions:
    """For containers the image that one for a session would be made from, where none is named."""
    if options.sandbox != facts.DOCKER or options.image is not None:
        return options
    from airlox.runner import images

    return replace(options, image=images.base_of(options, runtime), image_base=None)


def _attacks(options: RunnerOptions) -> tuple[Attack, ...]:
    """All of them; what the operator allows is no breach."""
    return tuple(
        replace(attack, held=attack.held | {"done"})
        if attack.name == USER_NAMESPACE and options.allow_userns
        else attack
        for attack in ATTACKS
    )


def _python(options: RunnerOptions, runtime: str) -> Python:
    """The interpreter that attacks run on: one as Python jobs get, else the one we run on. A
    container has its own."""
    if options.sandbox == facts.DOCKER:
        return Python("python3")
    try:
        found = supply_of(options, runtime).get()
    except JobRefused:
        ours = f"python3.{sys.version_info.minor}"
        found = supply_of(replace(options, python=None), ours).get()
    return Python(str(found.path), found.mounts)


def _is_fine(checks: tuple[Check, ...], name: str) -> bool:
    return all(check.state is not State.FAILED for check in checks if check.name == name)
