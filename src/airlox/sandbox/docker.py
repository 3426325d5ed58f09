"""The sandbox `docker`: a container for each job, by the command `docker` or `podman`.

This file tells the story of one job from outside: make the container, start it, wait for the first
reason to end, end it, ask how it ended, remove it, judge. What the engine is and has stands in
`container/engine.py`, what a container gets in `container/arguments.py`.

Fails closed: what cannot be had is a `SandboxError` with cause and remedy (`container/causes.py`).
Containers bear the runner's label; those of a runner that died are removed at the next start.

Left to others: fetching and building images, which is done before (the runner's `images.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox.base import STDERR, Cause, Network, Outcome, Report
from airlox.sandbox.container import arguments, causes, walls
from airlox.sandbox.container.gauge import Gauge, own_parent
from airlox.sandbox.container.ready import Ready, ask, make_ready
from airlox.sandbox.container.running import RunningContainer
from airlox.sandbox.container.verdict import judge
from airlox.sandbox.linux import gpus, jobuser
from airlox.sandbox.pipes import OutputPipes
from airlox.sandbox.probe import first_missing
from airlox.sandbox.supervise import NOT_GONE, Reason, end_all, first_reason
from airlox.sandbox.watch import Watch, breach_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from airlox.sandbox.base import Layout, OutputSink, Plan, SandboxOptions
    from airlox.sandbox.container.told import State
    from airlox.sandbox.container.wayout import WayOut

_KILL_S = 20.0
_SAID_BYTES = 512


def open_sandbox(options: SandboxOptions) -> DockerSandbox:
    """The sandbox for these options; nothing is tried yet."""
    return DockerSandbox(options)


class DockerSandbox:
    """Commands in containers. `image` of the options names one that the engine has."""

    name = "docker"

    def __init__(self, options: SandboxOptions) -> None:
        self._options = options
        self._found: Ready | None = None
        self._user: jobuser.JobUser | None = None
        self._left: set[str] = set()
        """Containers that could not be removed, and that nobody tries to remove just now."""

    def probe(self) -> Report:
        """Build a container with every wall, run next to nothing in it, and report every layer."""
        try:
            ready = self._ready()
        except SandboxError as error:
            return Report(self.name, "docker", walls.none(error), False, error)
        listed = self._options.network is Network.ALLOW_LIST
        layers = walls.standing(ready, self._options.hosts if listed else ())
        missing = first_missing(layers, self._options.require_layers)
        builder, digest = ready.facts.name, ready.image.digest
        usable, count = missing is None, _count(self._options.gpus)
        return Report(self.name, builder, layers, usable, missing, image=digest, gpus=count)

    def prepare(self) -> None:
        """See `Sandbox.prepare`. What was found stays valid for the life of this object."""
        if self._found is None and (refusal := self.probe().refusal) is not None:
            raise refusal

    def keep_ready(self, starts: int) -> None:
        """Nothing: an engine begins with the plan."""

    def expect(self) -> None:
        """Nothing takes long here that could begin before."""

    def layout(self, work: Path, out: Path, home: Path) -> Layout:
        """The same for every job, with the search path of the image."""
        return replace(arguments.LAYOUT, path=self._ready().image.path or arguments.SEARCH_PATH)

    def owner(self) -> tuple[int, int] | None:
        """The job's user when the runner is root, else None."""
        if os.geteuid() == 0 and self._user is None:
            self._user = jobuser.choose(self._options.state_dir, self._options.job_user)
        return (self._user.uid, self._user.gid) if self._user else None

    @property
    def has_shell(self) -> bool:
        """Whether the image can run scripts."""
        return self._ready().has_shell

    def ask(self, *argv: str) -> tuple[int, bytes]:
        """Run a small program of the image within the walls: exit status and output. Blocks.

        Raises SandboxError where it could not be started.
        """
        ready, folder = self._ready(), self._options.state_dir
        code, said, _ = ask(ready.engine, ready.shape, argv, state_dir=folder, owner=self.owner())
        return code, said

    async def run(
        self,
        plan: Plan,
        *,
        on_output: OutputSink,
        cancel: asyncio.Event,
        on_started: Callable[[int], None] | None = None,
    ) -> Outcome:
        """See `Sandbox.run`."""
        self.prepare()
        if cancel.is_set():
            return Outcome(Cause.CANCELLED)
        ready, limits = self._ready(), plan.limits
        watched = None if ready.facts.limits_memory else limits.memory_bytes
        gauge = Gauge(ready.facts, own_parent=own_parent(ready.facts), limit_bytes=watched)
        heard = _Heard(on_output)
        name = arguments.new_name()
        with OutputPipes(heard) as pipes:
            async with _way_out(ready, plan) as way_out:
                try:
                    network = way_out.network if way_out else None
                    container = await self._make(ready, plan, name, gauge, network)
                    job = RunningContainer(ready.engine, container, gauge)
                    try:
                        await job.start(pipes.stdout_fd, pipes.stderr_fd)
                        pipes.start()
                        outcome = await self._see_through(
                            job, plan, cancel, gauge, heard, on_started
                        )
                    finally:
                        await job.close()
                finally:
                    await self._remove(ready, name, gauge)
            pipes.finish()
        return replace(outcome, egress=way_out.proxy.seen() if way_out else None)

    async def _make(
        self, ready: Ready, plan: Plan, name: str, gauge: Gauge, network: str | None
    ) -> str:
        words = arguments.create(
            plan, ready.shape, name=name, cgroup_parent=gauge.argument, joins=network
        )
        environment = arguments.environment(plan)
        making = asyncio.create_task(
            asyncio.to_thread(ready.engine.create, words, environment=environment)
        )
        try:
            container = await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.wait((making,))  # what is made half could not be removed
            raise
        gauge.follow(container)
        return container

    async def _see_through(
        self,
        job: RunningContainer,
        plan: Plan,
        cancel: asyncio.Event,
        gauge: Gauge,
        heard: _Heard,
        on_started: Callable[[int], None] | None,
    ) -> Outcome:
        if on_started is not None:
            on_started(job.client_pid)
        await job.runs(cancel)
        started = time.monotonic()
        watch = Watch(plan.limits, (plan.work, plan.home, plan.out), root_pid=None, meter=gauge)
        reason = await first_reason(
            job.ended,
            timeout_s=plan.limits.timeout_s,
            cancel=cancel,
            breached=breach_of(watch),
        )
        wall_ms = round((time.monotonic() - started) * 1000)
        state = await self._end(job, reason, plan.limits.grace_s)
        if state is not None and state.waits and reason.cause is Cause.EXIT:
            said = state.error or bytes(heard.said).decode("utf-8", "replace")
            raise causes.refusal("container_refused", causes.last_words(said))
        measured = await asyncio.to_thread(gauge.measured)
        outcome = judge(reason, state, measured, plan.limits, bytes(heard.said))
        if state is not None and state.runs and reason.cause is not Cause.EXIT:
            outcome = replace(outcome, detail=NOT_GONE)
        ran_ms = state.ran_ms if state is not None and reason.cause is Cause.EXIT else None
        return replace(outcome, wall_ms=wall_ms if ran_ms is None else ran_ms)

    async def _end(self, job: RunningContainer, reason: Reason, grace_s: float) -> State | None:
        """End all of it, and say how it ended; None where the engine cannot tell."""
        patient = reason.cause in (Cause.TIME_OUT, Cause.CANCELLED)
        if reason.cause is not Cause.EXIT:
            await end_all(job, grace_s=grace_s if patient else 0, kill_within_s=_KILL_S)
        state = await job.state()
        if state is None or state.runs:
            # The attached command ended without its container: the engine restarted or is gone.
            await job.signal_all(signal.SIGKILL)
        return state

    async def _remove(self, ready: Ready, name: str, gauge: Gauge) -> None:
        """Remove the container and what goes with it. What resists is tried again later, by one
        job at a time: an engine refuses to remove what it is removing."""
        trying = (name, *self._left)
        self._left.clear()
        try:
            await asyncio.to_thread(ready.engine.remove, trying)
            trying = ()
        except SandboxError:
            pass  # now they count as left
        finally:
            self._left.update(trying)
            await asyncio.to_thread(gauge.close)

    def _ready(self) -> Ready:
        if self._found is None:
            self._found = make_ready(self._options, self.owner())
        return self._found


def _count(wanted: str) -> int:
    """How many GPUs the engine gives to a container; with fewer than asked for it starts none."""
    if wanted == gpus.NONE:
        return 0
    return int(wanted) if wanted.isdigit() else len(gpus.look().gpus)


def _way_out(ready: Ready, plan: Plan) -> AbstractAsyncContextManager[WayOut | None]:
    """What lets the container out where only named hosts may be reached."""
    if plan.network is not Network.ALLOW_LIST:
        return nullcontext()
    from airlox.sandbox.container.wayout import way_out  # most runners have no use for it

    return way_out(ready, plan.hosts)


class _Heard:
    """The output on its way, and how standard error begins: there the container's init complains
    of a program it cannot start."""

    def __init__(self, on_output: OutputSink) -> None:
        self._on_output = on_output
        self.said = bytearray()

    def __call__(self, stream: int, chunk: bytes) -> None:
        if stream == STDERR and len(self.said) < _SAID_BYTES:
            self.said += chunk[: _SAID_BYTES - len(self.said)]
        self._on_output(stream, chunk)
