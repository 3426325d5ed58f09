"""From a job to the sandbox's plan: its words, its environment, its limits, what it may see.

A plan is an allow list. Beyond the job's own folders and the system a sandbox shows anyway, a job
sees the operator's toolchains and the interpreter it runs on; nothing else of the machine.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from airlox.protocol import limits
from airlox.protocol.job import Job, PythonJob
from airlox.runner import facts
from airlox.runner.bench import Bench
from airlox.runner.inputs import SCRIPT_NAME
from airlox.runner.options import RunnerOptions
from airlox.runner.packages import Interpreter
from airlox.runner.workspace import Places
from airlox.sandbox.base import Limits, Mount, Network, Plan
from airlox.sandbox.hosts import PROXY_ENV

SYSTEM_PATH: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
PYTHON_PATH: Final = ("/usr/local/bin", "/usr/bin", "/bin")
SYSTEM_ROOTS: Final = ("/usr", "/bin", "/sbin", "/opt", "/nix/store")


def plan_of(bench: Bench, job: Job, places: Places, interpreter: Interpreter | None) -> Plan:
    layout = bench.sandbox.layout(places.work, places.out, places.home)
    toolchains = _toolchains(bench.options, interpreter)
    env = {
        "PATH": _search_path(bench.options, job, toolchains, interpreter, layout.path),
        "LANG": "C.UTF-8",
        "HOME": layout.home,
        "TMPDIR": layout.tmp,
        "MPLBACKEND": "Agg",
        "AIRLOX_OUT": layout.out,
    }
    if not isinstance(job, PythonJob):
        env["PYTHONUNBUFFERED"] = "1"
    if bench.network is Network.ALLOW_LIST:
        env |= PROXY_ENV
    return Plan(
        argv=_argv(job, layout.home, interpreter),
        env=tuple(env.items()),
        cwd=layout.work if job.cwd is UNSET else f"{layout.work}/{job.cwd}",
        work=places.work,
        out=places.out,
        home=places.home,
        limits=_limits(bench, job),
        toolchains=toolchains,
        network=bench.network,
        hosts=bench.options.hosts if bench.network is Network.ALLOW_LIST else (),
    )


def _argv(job: Job, home: str, interpreter: Interpreter | None) -> tuple[str, ...]:
    if isinstance(job, PythonJob):
        assert interpreter is not None
        return (str(interpreter.path), "-E", "-s", "-u", "-B", "-X", "utf8", job.filename)
    if job.command is not UNSET:
        return job.command
    script = f"{home}/{SCRIPT_NAME}"
    starts_itself = job.script is not UNSET and job.script.startswith("#!")
    return (script,) if starts_itself else ("/bin/sh", script)


def _limits(bench: Bench, job: Job) -> Limits:
    memory_mb = job.memory_mb or bench.session.memory_mb
    if bench.options.memory_mb is not None:
        memory_mb = min(memory_mb, bench.options.memory_mb)
    return Limits(
        timeout_s=job.timeout_s,
        memory_bytes=memory_mb * limits.MIB,
        disk_floor_bytes=bench.options.disk_floor_bytes,
        cpus=bench.options.cpus,
    )


def _toolchains(options: RunnerOptions, interpreter: Interpreter | None) -> tuple[Mount, ...]:
    mounts = {str(path): Mount(path, str(path)) for path in options.toolchains}
    for mount in () if interpreter is None else interpreter.mounts:
        mounts.setdefault(mount.target, mount)
    return tuple(mounts.values())


def _search_path(
    options: RunnerOptions,
    job: Job,
    toolchains: tuple[Mount, ...],
    interpreter: Interpreter | None,
    path: str | None,
) -> str:
    """`PATH` of a job: for Python what 0.1.0 gives; for shell also what the runner has in view.

    In an image it is the image's own, `path`.
    """
    if path is not None:
        python = [] if interpreter is None else [str(interpreter.path.parent)]
        tools = [f"{folder}/bin" for folder in options.toolchains]
        return ":".join(dict.fromkeys((*python, *tools, *path.split(":"))))
    if isinstance(job, PythonJob):
        assert interpreter is not None
        return ":".join((str(interpreter.path.parent), *PYTHON_PATH))
    roots = (*SYSTEM_ROOTS, *(mount.target for mount in toolchains))
    tools = [f"{folder}/bin" for folder in options.toolchains]
    own = [
        folder
        for folder in options.path.split(":")
        if folder.startswith("/") and (options.sandbox == facts.PROCESS or _is_below(folder, roots))
    ]
    return ":".join(dict.fromkeys((*tools, *own, *SYSTEM_PATH)))


def _is_below(folder: str, roots: tuple[str, ...]) -> bool:
    return any(folder == root or folder.startswith(root + "/") for root in roots)


def redactions_of(
    bench: Bench, places: Places, interpreter: Interpreter | None
) -> tuple[tuple[str, str], ...]:
    """Every path of the machine a job could print, and what stands for it."""
    layout = bench.sandbox.layout(places.work, places.out, places.home)
    named: list[tuple[str, str]] = []
    for path, name in (
        (places.work, "$WORK"),
        (places.out, "$AIRLOX_OUT"),
        (places.home, "~"),
        (places.job, "$JOB"),
    ):
        named += [(str(path), name), (str(path.resolve()), name)]
    named += [(layout.work, "$WORK"), (layout.out, "$AIRLOX_OUT"), (layout.home, "~")]
    if interpreter is not None:
        named += [(mount.target, "$RUNTIME") for mount in interpreter.mounts]
    return (*named, *bench.redactions)
