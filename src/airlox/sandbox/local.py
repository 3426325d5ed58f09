"""The `local` sandbox: namespaces, mounts, seccomp and Landlock of the Linux kernel.

This file tells the story of one job from outside: choose the job's user and a builder that works
here (`linux/builders.py`), have it raise the walls (`linux/walls.py`), wait for "ready", say "go",
wait for the first reason to end, end everything, judge. All judging happens here; nothing inside is
asked.

Fails closed: a wall that cannot be had is a `SandboxError` with cause and remedy (`probe.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox import probe as causes
from airlox.sandbox.base import NICE, Cause, Layer, Limits, Outcome, Plan, Report
from airlox.sandbox.linux import builders, gpus, jobuser, layout, syscalls, trial
from airlox.sandbox.linux.cgroups import Cgroup, CgroupDriver, open_driver
from airlox.sandbox.linux.running import RunningJob
from airlox.sandbox.linux.tmpfs import TmpfsFiles
from airlox.sandbox.linux.verdict import Seen, judge
from airlox.sandbox.linux.walls import Given, Walls
from airlox.sandbox.pipes import OutputPipes
from airlox.sandbox.supervise import NOT_GONE, end_all, first_reason
from airlox.sandbox.watch import Watch, breach_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from airlox.sandbox.base import Layout, OutputSink, SandboxOptions
    from airlox.sandbox.linux.builders import Builder
    from airlox.sandbox.linux.launched import Launched
    from airlox.sandbox.linux.outlet import Outlet

_GONE_WITHIN_S = 10.0
_GROUP_GONE_WITHIN_S = 1.0


def open_sandbox(options: SandboxOptions) -> LocalSandbox:
    """The sandbox for these options; nothing is tried yet."""
    return LocalSandbox(options)


class LocalSandbox:
    """Commands confined by the Linux kernel. `without` takes layers off, for tests only."""

    name = "local"

    def __init__(self, options: SandboxOptions, *, without: frozenset[str] = frozenset()) -> None:
        self._options = options
        # Our interpreter may be shown as well.
        where = layout.choose((*options.toolchain_roots, Path(sys.base_prefix)))
        self._walls = Walls(options, where, without=without)
        self._builder: Builder | None = None
        self._driver: CgroupDriver | None = None
        self._looked_for_groups = "cgroup" in without
        self._report: Report | None = None

    def probe(self) -> Report:
        """Try the full plan with nothing to run, and report every layer."""
        self.keep_ready(0)
        refused: SandboxError | None = None
        try:
            self._make_ready()
            self._builder = self._first_that_works()
        except SandboxError as error:
            refused = error
        layers = self._layers(refused)
        refused = refused or causes.first_missing(layers, self._options.require_layers)
        builder = self._builder.name if self._builder else self._options.builder or "none"
        self._report = Report(
            self.name,
            builder,
            layers,
            refused is None,
            refused,
            gpus=len(self._walls.offered.gpus),
        )
        return self._report

    def prepare(self) -> None:
        """See `Sandbox.prepare`. What was found stays valid for the life of this object."""
        report = self._report if self._report and self._report.usable else self.probe()
        if report.refusal is not None:
            raise report.refusal

    def keep_ready(self, starts: int) -> None:
        """See `Sandbox.keep_ready`."""
        if self._builder is not None:
            with contextlib.suppress(OSError):  # `run` will say what is wrong
                self._builder.keep_ready(starts)

    def expect(self) -> None:
        """See `Sandbox.expect`."""
        if self._driver is not None:
            self._driver.wake()

    def layout(self, work: Path, out: Path, home: Path) -> Layout:
        """The same for every job of this sandbox."""
        return self._walls.layout

    def owner(self) -> tuple[int, int] | None:
        """The job's user when the runner is root, else None."""
        self._make_ready()
        user = self._walls.user
        return (user.uid, user.gid) if user else None

    async def run(
        self,
        plan: Plan,
        *,
        on_output: OutputSink,
        cancel: asyncio.Event,
        on_started: Callable[[int], None] | None = None,
    ) -> Outcome:
        """See `Sandbox.run`."""
        if threading.current_thread() is not threading.main_thread():
            # The kernel ties "dies with its parent" to the thread that started the launcher.
            raise SandboxError("a sandbox must be started from the main thread")
        self.prepare()
        with contextlib.ExitStack() as stack:
            pipes = stack.enter_context(OutputPipes(on_output))
            self._give(pipes)
            group = self._make_group(plan.limits)
            if group is not None:
                stack.callback(group.remove, within_s=_GROUP_GONE_WITHIN_S)
            outlet = trial.open_outlet(plan, stack)
            launched = stack.enter_context(self._launch(plan, pipes, group, outlet))
            pipes.start()
            job = stack.enter_context(RunningJob(launched))
            outcome = Outcome(Cause.CANCELLED)
            if await job.became_ready(cancel):
                watch = self._watch(job, plan, group, stack)
                async with outlet.proxy() if outlet else contextlib.nullcontext() as proxy:
                    outcome = await self._see_through(job, plan, cancel, group, watch, on_started)
                outcome = replace(outcome, egress=proxy.seen() if proxy else None)
            pipes.finish()
            if group is not None:
                await asyncio.to_thread(group.remove, within_s=_GROUP_GONE_WITHIN_S)
        return outcome

    async def _see_through(
        self,
        job: RunningJob,
        plan: Plan,
        cancel: asyncio.Event,
        group: Cgroup | None,
        watch: Watch,
        on_started: Callable[[int], None] | None,
    ) -> Outcome:
        if on_started is not None:
            on_started(job.keeper_pid)
        job.go()
        reason = await first_reason(
            job.ended, timeout_s=plan.limits.timeout_s, cancel=cancel, breached=breach_of(watch)
        )
        wall_ms = job.wall_ms()
        patient = reason.cause in (Cause.TIME_OUT, Cause.CANCELLED)
        grace_s = plan.limits.grace_s if patient else 0
        gone = await end_all(job, grace_s=grace_s, kill_within_s=_GONE_WITHIN_S)
        if group is not None and not gone:
            group.kill()
        seen = _seen(job, group, watch)
        outcome = replace(judge(reason, seen, plan.limits), wall_ms=wall_ms)
        return outcome if gone else replace(outcome, detail=NOT_GONE)

    def _watch(
        self, job: RunningJob, plan: Plan, group: Cgroup | None, stack: contextlib.ExitStack
    ) -> Watch:
        assert self._builder is not None
        counter: TmpfsFiles | None = None
        if not self._builder.limits_files_of_tmpfs:
            counted = layout.tmpfs_files(plan.limits, self._walls.layout)
            counter = stack.enter_context(TmpfsFiles(job.keeper_pid, counted))
        return Watch(
            plan.limits,
            (plan.work, plan.home, plan.out),
            root_pid=None if _measures(group) else job.keeper_pid,
            meter=counter,
        )

    def _make_ready(self) -> None:
        if sys.platform != "linux" or not syscalls.SUPPORTED:
            raise causes.refusal("not_linux")
        if os.geteuid() == 0 and self._walls.user is None:
            user = jobuser.choose(self._options.state_dir, self._options.job_user)
            self._walls = replace(self._walls, user=user)
        if self._options.gpus != gpus.NONE and not self._walls.offered.gpus:
            offered = gpus.choose(gpus.look(), self._options.gpus)
            self._walls = replace(self._walls, offered=offered)
        if not self._looked_for_groups:
            self._looked_for_groups = True
            with contextlib.suppress(SandboxError):
                self._driver = open_driver()
        if self._options.cpus is not None and not (self._driver and self._driver.cpu_parent):
            raise causes.refusal("cpus_none")

    def _layers(self, refused: SandboxError | None) -> tuple[Layer, ...]:
        if not syscalls.SUPPORTED:
            return () if refused is None else causes.stopped_at(refused, ())
        layers = self._walls.layers(self._driver)
        return layers if refused is None else causes.stopped_at(refused, layers)

    def _first_that_works(self) -> Builder:
        """Of two that do not, the first one's reason tells more: it needs no program."""
        reasons = []
        for builder in builders.candidates(self._options.builder):
            try:
                trial.try_out(builder, self._walls, self._options.state_dir)
            except SandboxError as error:
                reasons.append(error)
            else:
                return builder
        raise reasons[0]

    def _give(self, pipes: OutputPipes) -> None:
        """Let the job open its own output again by name (`/dev/stdout`)."""
        if (owner := self.owner()) is not None:
            os.fchown(pipes.stdout_fd, *owner)
            os.fchown(pipes.stderr_fd, *owner)

    def _make_group(self, limits: Limits) -> Cgroup | None:
        if self._driver is None:
            return None
        name = os.urandom(8).hex()
        # The launcher's keeper stays outside of the group, so that it is never the one killed.
        return self._driver.create(
            name,
            memory_bytes=limits.memory_bytes,
            processes=limits.processes,
            cpus=limits.cpus,
        )

    def _launch(
        self, plan: Plan, pipes: OutputPipes, group: Cgroup | None, outlet: Outlet | None
    ) -> Launched:
        assert self._builder is not None
        with contextlib.ExitStack() as stack:
            door_fd = outlet.door_fd if outlet else -1
            given = Given(
                pipes.stdout_fd,
                pipes.stderr_fd,
                _open_groups(group, stack),
                door_fd,
                nice=NICE if group is None or group.cpu is None else 0,
            )
            return trial.start(self._builder, self._walls, plan, given)


def _measures(group: Cgroup | None) -> bool:
    """Whether the kernel keeps a peak; a group of version 2 does so since Linux 5.19."""
    return group is not None and group.peak_bytes() is not None


def _seen(job: RunningJob, group: Cgroup | None, watch: Watch) -> Seen:
    peak, source = job.largest_bytes, "rusage"
    if group is not None and (measured := group.peak_bytes()) is not None:
        peak, source = measured, "cgroup"
    elif (watch.memory.peak_bytes or 0) > (peak or 0):
        # A short job can be over before the watcher looked well.
        peak, source = watch.memory.peak_bytes, "watcher"
    return Seen(
        job.status,
        peak,
        source if peak is not None else None,
        group.oom_kills() if group else 0,
        group.process_refusals() if group else 0,
        job.not_executed,
    )


def _open_groups(group: Cgroup | None, stack: contextlib.ExitStack) -> tuple[int, ...]:
    """The `cgroup.procs` files through which the stage enters by itself."""
    fds = []
    for folder in group.folders if group else ():
        fd = os.open(f"{folder}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        fds.append(fd)
    return tuple(fds)
