"""The sandbox `process`: no walls. For trusted senders, and only when asked for by name.

The job runs as a plain process in a session of its own, with a cleared environment, resource
limits, and a keeper (`keeping.py`) that finds and ends what it leaves behind. It can read, write
and reach whatever its user can; `probe` says so, layer by layer. Time, memory and disk are
watched from outside.

Left to others: everything that confines (`local.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from airlox.errors import SandboxError, StorageError
from airlox.sandbox.base import Cause, Layer, Layout, Outcome, Report
from airlox.sandbox.collect import remove_tree
from airlox.sandbox.keeping import Keeper
from airlox.sandbox.linux import gpus, jobuser
from airlox.sandbox.pipes import OutputPipes
from airlox.sandbox.supervise import Reason, end_all, first_reason
from airlox.sandbox.watch import Watch, breach_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airlox.sandbox.base import OutputSink, Plan, SandboxOptions

_KILL_S = 10.0
_TMP = ".airlox-tmp"
_MISSING = "this sandbox has no walls"
_REMEDY = "use --sandbox local"
_ABSENT_LAYERS = ("namespaces", "network", "mounts", "no_new_privs", "seccomp", "landlock")


def open_sandbox(options: SandboxOptions) -> ProcessSandbox:
    """The sandbox `process` with what the operator chose."""
    return ProcessSandbox(options)


class ProcessSandbox:
    """Runs commands unconfined, ends them reliably enough for people one trusts."""

    name = "process"

    def __init__(self, options: SandboxOptions) -> None:
        self._options = options

    def probe(self) -> Report:
        """Say that nothing confines a job here, and what is limited all the same."""
        refusal = None
        try:
            self.prepare()
        except SandboxError as e:
            refusal = e
        layers = (
            self._uid_layer(),
            *(Layer(name, False, _MISSING, "no_walls", _REMEDY) for name in _ABSENT_LAYERS),
            Layer("rlimits", True, "core, file size, open files; processes per user, coarse"),
            Layer("cgroup", False, "memory is watched", "no_walls", _REMEDY),
            Layer("watcher", True, "time, memory, disk growth and free space"),
        )
        return Report(
            self.name, "none", layers, refusal is None, refusal, gpus=_gpus(self._options.gpus)
        )

    def prepare(self) -> None:
        """Check that the operator asks for nothing this sandbox does not have."""
        if os.name != "posix":
            raise SandboxError("the sandbox process needs Linux or macOS")
        missing = [name for name in self._options.require_layers if name in _ABSENT_LAYERS]
        missing += [name for name in self._options.require_layers if name == "cgroup"]
        if missing:
            raise SandboxError(
                f"the sandbox process has no {', '.join(missing)}",
                code="layer_missing",
                hint=_REMEDY,
            )
        self.owner()

    def keep_ready(self, starts: int) -> None:
        """Nothing: there is nothing to prepare."""

    def expect(self) -> None:
        """Nothing takes long here that could begin before."""

    def layout(self, work: Path, out: Path, home: Path) -> Layout:
        """The host's own paths: nothing is mounted anywhere else."""
        return Layout(str(work), str(out), str(home), str(home / _TMP))

    def owner(self) -> tuple[int, int] | None:
        """The chosen job user when the runner is root, else None: the runner's own."""
        name = self._options.job_user
        if name is None:
            return None
        if os.geteuid() != 0:
            raise SandboxError(
                f"only root may run jobs as {name}",
                code="root_no_user",
                hint="start the runner as root, or leave out --job-user",
            )
        user = jobuser.choose(self._options.state_dir, name)
        return user.uid, user.gid

    async def run(
        self,
        plan: Plan,
        *,
        on_output: OutputSink,
        cancel: asyncio.Event,
        on_started: Callable[[int], None] | None = None,
    ) -> Outcome:
        """Run the command to its end, then end what it left behind, as far as it can be found."""
        user = self.owner()
        tmp = plan.home / _TMP
        await asyncio.to_thread(_make_tmp, tmp, user)
        try:
            with OutputPipes(on_output) as pipes:
                keeper = await Keeper.start(
                    plan, pipes, user, memory_back_stop=self._options.memory_back_stop
                )
                try:
                    outcome = await _run_to_end(plan, keeper, cancel, on_started)
                finally:
                    await keeper.close()
                pipes.finish()
                return outcome
        finally:
            with suppress(StorageError):  # the next job's start tries again, and then it counts
                await asyncio.to_thread(remove_tree, tmp)

    def _uid_layer(self) -> Layer:
        try:
            user = self.owner()
        except SandboxError as e:
            return Layer("uid", False, e.message, e.code, e.hint)
        uid = os.geteuid() if user is None else user[0]
        if uid == 0:
            return Layer("uid", False, "jobs run as root", "root_no_user", "--job-user NAME")
        return Layer("uid", True, f"jobs run as uid {uid}")


def _gpus(wanted: str) -> int:
    """How many a job finds: nothing keeps it from any."""
    return len(gpus.look().gpus) if wanted != gpus.NONE else 0


def _make_tmp(tmp: Path, user: tuple[int, int] | None) -> None:
    """An empty folder for temporary files; what an earlier job left there may be anything."""
    remove_tree(tmp)
    tmp.mkdir(mode=0o700)
    if user is not None:
        os.chown(tmp, *user)


async def _run_to_end(
    plan: Plan,
    keeper: Keeper,
    cancel: asyncio.Event,
    on_started: Callable[[int], None] | None,
) -> Outcome:
    if on_started is not None:
        on_started(keeper.pid)
    if cancel.is_set():
        return Outcome(Cause.CANCELLED)
    watch = Watch(plan.limits, (plan.work, plan.out, plan.home), root_pid=keeper.pid)
    started = time.monotonic()
    await keeper.go()
    reason = await first_reason(
        keeper.ended,
        timeout_s=plan.limits.timeout_s,
        cancel=cancel,
        breached=breach_of(watch),
    )
    if keeper.failed is not None:
        raise SandboxError(keeper.failed, code="not_started")
    wall_ms = round(((keeper.ended_at or time.monotonic()) - started) * 1000)
    # What went over a limit gets no time to go further.
    patient = reason.cause in (Cause.TIME_OUT, Cause.CANCELLED)
    grace_s = plan.limits.grace_s if patient else 0.0
    gone = await end_all(keeper, grace_s=grace_s, kill_within_s=_KILL_S)
    outcome = _outcome_of(reason, keeper, watch.memory.peak_bytes or 0)
    detail = outcome.detail if gone else "some of its processes could not be ended"
    return replace(outcome, wall_ms=wall_ms, detail=detail)


def _outcome_of(reason: Reason, keeper: Keeper, watched_bytes: int) -> Outcome:
    # A short job can be over before the watcher has looked once.
    watched = watched_bytes > keeper.main_peak_bytes
    peak_bytes = max(watched_bytes, keeper.main_peak_bytes) or None
    outcome = Outcome(
        reason.cause,
        peak_bytes=peak_bytes,
        peak_source=None if peak_bytes is None else "watcher" if watched else "rusage",
        limit=reason.limit,
        detail=reason.detail,
    )
    if reason.cause is not Cause.EXIT:
        return outcome
    if keeper.status is None:
        detail = "the keeper of the job was killed, perhaps by the job"
        return replace(outcome, cause=Cause.SIGNAL, signal=signal.SIGKILL, detail=detail)
    if os.WIFSIGNALED(keeper.status):
        return replace(outcome, cause=Cause.SIGNAL, signal=os.WTERMSIG(keeper.status))
    return replace(outcome, exit_code=os.WEXITSTATUS(keeper.status), detail=keeper.detail)
