"""The `local` sandbox: namespaces, mounts, seccomp and Landlock of the Linux kernel.

This file tells the story of one job from outside: choose the job's user, compile the plan, start
the launcher (`linux/launch.py`), wait for "ready", say "go", wait for the first reason to end, end
everything, judge. All judging happens here; nothing inside is asked.

Fails closed: a wall that cannot be had is a `SandboxError` with cause and remedy (`probe.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox import probe as causes
from airlox.sandbox.base import Cause, Layer, Limits, Network, Outcome, Plan, Report
from airlox.sandbox.linux import jobuser, landlock, launch, layout, seccomp, syscalls
from airlox.sandbox.linux.blueprint import Blueprint
from airlox.sandbox.linux.cgroups import Cgroup, CgroupDriver, open_driver
from airlox.sandbox.linux.running import RunningJob
from airlox.sandbox.linux.verdict import Seen, judge
from airlox.sandbox.pipes import OutputPipes
from airlox.sandbox.supervise import end_all, first_reason
from airlox.sandbox.watch import Watch, breach_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airlox.sandbox.base import Layout, OutputSink, SandboxOptions

_TRIAL_WITHIN_S = 5.0
_GONE_WITHIN_S = 10.0
_GROUP_GONE_WITHIN_S = 1.0
_NOT_GONE = "some of its processes could not be ended"


def open_sandbox(options: SandboxOptions) -> LocalSandbox:
    """The sandbox for these options; nothing is tried yet."""
    return LocalSandbox(options)


class LocalSandbox:
    """Commands confined by the Linux kernel. `without` takes layers off, for tests only."""

    name = "local"

    def __init__(self, options: SandboxOptions, *, without: frozenset[str] = frozenset()) -> None:
        self._options = options
        self._without = without
        self._layout = layout.choose(options.toolchain_roots)
        self._user: jobuser.JobUser | None = None
        self._driver: CgroupDriver | None = None
        self._looked_for_groups = "cgroup" in without
        self._report: Report | None = None

    def probe(self) -> Report:
        """Try the full plan with nothing to run, and report every layer."""
        refused: SandboxError | None = None
        try:
            self._make_ready()
            self._try_out()
        except SandboxError as error:
            refused = error
        layers = self._layers(refused)
        refused = refused or _first_missing(layers, self._options.require_layers)
        self._report = Report(self.name, "own", layers, refused is None, refused)
        return self._report

    def prepare(self) -> None:
        """See `Sandbox.prepare`. What was found stays valid for the life of this object."""
        report = self._report if self._report and self._report.usable else self.probe()
        if report.refusal is not None:
            raise report.refusal

    def layout(self, work: Path, out: Path, home: Path) -> Layout:
        """The same for every job of this sandbox."""
        return self._layout

    def owner(self) -> tuple[int, int] | None:
        """The job's user when the runner is root, else None."""
        self._make_ready()
        return (self._user.uid, self._user.gid) if self._user else None

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
            launched = stack.enter_context(
                self._launch(plan, pipes.stdout_fd, pipes.stderr_fd, group)
            )
            pipes.start()
            job = stack.enter_context(RunningJob(launched))
            outcome = await self._see_through(job, plan, cancel, group, on_started)
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
        on_started: Callable[[int], None] | None,
    ) -> Outcome:
        if not await job.became_ready(cancel):
            return Outcome(Cause.CANCELLED)
        if on_started is not None:
            on_started(job.keeper_pid)
        job.go()
        watch = Watch(
            plan.limits,
            (plan.work, plan.home, plan.out),
            root_pid=None if group else job.keeper_pid,
        )
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
        return outcome if gone else replace(outcome, detail=_NOT_GONE)

    def _make_ready(self) -> None:
        if sys.platform != "linux" or not syscalls.SUPPORTED:
            raise causes.refusal("not_linux")
        if self._options.builder not in (None, "own"):
            raise SandboxError(f'there is no builder "{self._options.builder}"', code="no_builder")
        if os.geteuid() == 0 and self._user is None:
            self._user = jobuser.choose(self._options.state_dir, self._options.job_user)
        if not self._looked_for_groups:
            self._looked_for_groups = True
            with contextlib.suppress(SandboxError):
                self._driver = open_driver()

    def _try_out(self) -> None:
        """Build everything once, and run nothing in it."""
        with tempfile.TemporaryDirectory(dir=self._options.state_dir, prefix="probe-") as folder:
            places = [Path(folder, name) for name in ("work", "out", "home")]
            for place in places:
                place.mkdir(0o700)
                if self._user is not None:
                    os.chown(place, self._user.uid, self._user.gid)
            limits = Limits(timeout_s=_TRIAL_WITHIN_S, memory_bytes=None)
            work, out, home = places
            plan = Plan((), (), self._layout.work, work, out, home, limits)
            with open(os.devnull, "wb") as null:
                launched = self._launch(plan, null.fileno(), null.fileno(), None)
            with launched:
                self._follow_trial(launched)

    def _follow_trial(self, launched: launch.Launched) -> None:
        deadline = time.monotonic() + _TRIAL_WITHIN_S
        poll = select.poll()
        poll.register(launched.info_fd, select.POLLIN)
        while (left_s := deadline - time.monotonic()) > 0:
            poll.poll(left_s * 1000)
            lines, more = launched.told()
            for told in lines:
                if told.word == "error":
                    raise self._explain(told)
                if told.word == "ready":
                    launched.go()
                if told.word == "exit":
                    return
            if not more:
                raise SandboxError("the launcher ended without a word")
        raise causes.refusal("start_timeout")

    def _explain(self, told: launch.Told) -> SandboxError:
        return causes.explain(told.step, told.numbers[0], told.text, causes.look_at_host())

    def _give(self, pipes: OutputPipes) -> None:
        """Let the job open its own output again by name (`/dev/stdout`)."""
        if self._user is not None:
            os.fchown(pipes.stdout_fd, self._user.uid, self._user.gid)
            os.fchown(pipes.stderr_fd, self._user.uid, self._user.gid)

    def _make_group(self, limits: Limits) -> Cgroup | None:
        if self._driver is None:
            return None
        name = os.urandom(8).hex()
        # The launcher's keeper stays outside of the group, so that it is never the one killed.
        return self._driver.create(
            name, memory_bytes=limits.memory_bytes, processes=limits.processes
        )

    def _launch(
        self, plan: Plan, stdout_fd: int, stderr_fd: int, group: Cgroup | None
    ) -> launch.Launched:
        steps = layout.steps(plan, where=self._layout)
        try:
            with contextlib.ExitStack() as stack:
                return launch.start(
                    lambda fields: self._blueprint(plan, steps, group, fields),
                    stdout_fd=stdout_fd,
                    stderr_fd=stderr_fd,
                    cgroup_fds=_open_groups(group, stack),
                )
        except OSError as error:
            raise SandboxError(
                f"the launcher could not be started: {error.strerror}", code="not_started"
            ) from error

    def _blueprint(
        self,
        plan: Plan,
        steps: Sequence[tuple[object, ...]],
        group: Cgroup | None,
        fields: dict[str, object],
    ) -> Blueprint:
        return Blueprint(
            argv=tuple(os.fsencode(word) for word in plan.argv),
            cwd=os.fsencode(plan.cwd),
            env=tuple((os.fsencode(name), os.fsencode(value)) for name, value in plan.env),
            filter=b"" if "seccomp" in self._without else seccomp.compile_filter(syscalls.MACHINE),
            gid=self._user.gid if self._user else -1,
            host_network=self._host_network(plan.network),
            landlock_abi=self._landlock_abi(),
            no_new_privs=True,
            rlimits=layout.rlimits(plan.limits, memory_back_stop=group is None),
            steps=tuple(steps),
            uid=self._user.uid if self._user else -1,
            userns_limit="userns_limit" not in self._without,
            writable=layout.writable(self._layout),
            **fields,
        )

    def _host_network(self, network: Network) -> bool:
        if network is Network.OFF:
            return False
        if self._landlock_abi() < landlock.SCOPE_ABI:
            raise causes.refusal("network_host")
        return True

    def _landlock_abi(self) -> int:
        if "landlock" in self._without:
            return 0
        return min(syscalls.landlock_abi(), landlock.NEWEST_ABI)

    def _layers(self, refused: SandboxError | None) -> tuple[Layer, ...]:
        """What stands when the trial passed; nothing stands when it did not."""
        if refused is not None:
            return (Layer("walls", False, refused.message, refused.code, refused.hint),)
        abi = self._landlock_abi()
        uid = self._user.uid if self._user else os.getuid()
        return (
            Layer("uid", True, f"jobs run as uid {uid}"),
            Layer("userns", True, "user, mount, pid, ipc, uts and cgroup namespaces"),
            Layer("network", True, "own network with loopback, unless the job may use the host's"),
            Layer("mounts", True, "read-only system; work, out, home and tmp writable"),
            Layer("capabilities", True, "none; no new privileges"),
            Layer("seccomp", True, f"version {seccomp.VERSION}"),
            Layer("landlock", True, f"ABI {abi}") if abi else _off("landlock", "landlock_off"),
            Layer("rlimits", True, "core, file size, open files, locked memory, processes"),
            Layer("cgroup", True, f"version {self._driver.version}: memory and processes")
            if self._driver
            else _off("cgroup", "cgroup_none"),
            Layer("watcher", True, "time, disk, and memory where no cgroup limits it"),
        )


def _seen(job: RunningJob, group: Cgroup | None, watch: Watch) -> Seen:
    peak, source = job.largest_bytes, "rusage"
    if group is not None and (measured := group.peak_bytes()) is not None:
        peak, source = measured, "cgroup"
    elif group is None and (watch.memory.peak_bytes or 0) > (peak or 0):
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


def _off(name: str, code: str) -> Layer:
    cause, remedy = causes.remedy(code)
    return Layer(name, False, cause, code, remedy)


def _first_missing(layers: Sequence[Layer], required: Sequence[str]) -> SandboxError | None:
    for layer in layers:
        if layer.name in required and not layer.on:
            return SandboxError(layer.detail, code=layer.code, hint=layer.remedy)
    unknown = sorted(set(required) - {layer.name for layer in layers})
    if unknown:
        return SandboxError(f"there is no layer {unknown[0]}", code="layer_missing")
    return None
