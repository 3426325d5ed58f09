"""The sandbox a runner's options ask for: opened, tried out, and told of in one line.

Nothing weaker is ever put in place of what was asked for.
"""

from __future__ import annotations

import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from airlox.errors import SandboxError, UsageError
from airlox.runner import facts
from airlox.runner.notes import Note, Say
from airlox.runner.options import RunnerOptions
from airlox.runner.workspace import open_way
from airlox.sandbox import open_sandbox
from airlox.sandbox.base import Network, Report, Sandbox, SandboxOptions
from airlox.sandbox.collect import remove_tree

_NO_WALLS: Final = (
    "jobs run without walls on this machine (--sandbox process): "
    "use it for senders you would give a login"
)
_NO_HOSTS: Final = (
    "this session allows no network, so --allow-host lets nothing through; "
    "create one with --network"
)
_BY_PATH: Final = "bwrap"
_LOCAL: Final = "local"


def sandbox_options(options: RunnerOptions, state_dir: Path, network: Network) -> SandboxOptions:
    """What the operator chose, in the sandbox's own words."""
    return SandboxOptions(
        state_dir=state_dir,
        job_user=options.job_user,
        require_layers=options.require_layers,
        builder=options.builder,
        gpus=options.gpus,
        cpus=options.cpus,
        toolchain_roots=options.toolchain_roots,
        image=options.image,
        container_runtime=options.docker_runtime,
        allow_userns=options.allow_userns,
        memory_back_stop=options.memory_back_stop,
        network=network,
        hosts=options.allow_hosts,
    )


def open_tried(
    options: RunnerOptions, state_dir: Path, network: Network, say: Say
) -> tuple[Sandbox, Report]:
    """The sandbox, tried out and ready. Raises SandboxError."""
    sandbox, report = _probe(options, state_dir, network)
    sandbox.prepare()
    if options.sandbox == facts.PROCESS:
        say(Note("warning", _NO_WALLS))
    else:
        say(Note("sandbox", in_one_line(report)))
    if network is Network.ALLOW_LIST:
        _raise_file_limit()
    elif options.allow_hosts:
        say(Note("warning", _NO_HOSTS))
    return sandbox, report


def _probe(options: RunnerOptions, state_dir: Path, network: Network) -> tuple[Sandbox, Report]:
    """The sandbox, tried out. Raises SandboxError."""
    sandbox = open_sandbox(options.sandbox, sandbox_options(options, state_dir, network))
    if passes_through(options, sandbox):
        open_ways(options, state_dir)
    report = sandbox.probe()
    if report.refusal is not None:
        raise report.refusal
    return sandbox, report


def check_confinement(options: RunnerOptions) -> None:
    """Raises SandboxError where this machine cannot confine jobs as it was asked to, whatever the
    session says; for what is spent by being asked of the session. An image that is made of the
    session's packages is left for later.
    """
    if options.sandbox == facts.DOCKER and options.image is None:
        return
    network = facts.network_of(options, session_allows=bool(options.hosts))
    folder = Path(tempfile.mkdtemp(prefix="airlox-try-"))
    try:
        _probe(options, folder, network)
    finally:
        remove_tree(folder)


def _raise_file_limit() -> None:
    """The connections of all jobs to named hosts pass through this process, two descriptors each.
    A job's own limit is another."""
    import resource  # there are none of these on Windows, nor named hosts

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def claim_groups(options: RunnerOptions) -> None:
    """Make way for the control groups of jobs, before a process of ours makes others.

    On version 2 only a group without processes of its own hands out controllers, so the runner
    moves into a leaf; a supervisor must do so while it is alone.
    """
    if options.sandbox != _LOCAL or sys.platform != "linux":
        return
    from airlox.sandbox.linux.cgroups import open_driver

    with suppress(SandboxError):  # the sandbox says so when it is opened
        open_driver()


def in_one_line(report: Report) -> str:
    """The layers that stand, and after them those that do not, each with its reason."""
    on = [layer.name for layer in report.layers if layer.on]
    off = [f"{layer.name} ({layer.detail})" for layer in report.layers if not layer.on]
    standing = ", ".join(on) or "nothing"
    text = f"sandbox {report.sandbox}, built by {report.builder}: {standing}"
    return f"{text}; off: {', '.join(off)}" if off else text


def passes_through(options: RunnerOptions, sandbox: Sandbox) -> bool:
    """Whether jobs come to their folders by the folders' own paths, as another user.

    Without walls they do, and bubblewrap does for them.
    """
    by_path = options.sandbox == facts.PROCESS or options.builder == _BY_PATH
    return by_path and sandbox.owner() is not None


def open_ways(options: RunnerOptions, folder: Path) -> None:
    """Let the jobs of `passes_through` come to a folder below the work root.

    Raises UsageError when a folder above ours is in its way.
    """
    ours = (folder, *(path for path in folder.parents if path.is_relative_to(options.jobs_root)))
    for path in ours:
        open_way(path)
    for path in options.jobs_root.parents:
        if not path.stat().st_mode & stat.S_IXOTH:
            raise UsageError(
                f"jobs run as another user, who may not pass through {path}",
                code="work_root_closed",
                hint="name a folder with an open way by --work-root, such as /srv/airlox",
            )
