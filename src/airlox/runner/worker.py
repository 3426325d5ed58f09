"""A runner's life: come in, wait for work, do it, go in peace.

One asyncio program in the main thread (sandboxes must be started there). Two threads read the
session's stream and the runner's own; a small pool makes all other calls to the relay. The relay
being away stops nothing that runs: results wait in the spool.

The end: SIGTERM or SIGINT cancels the running jobs, their results are posted within a bounded
time, and what could not be posted stays in the spool for the next start. A second signal ends at
once. A session that has ended, and a rejection, end the runner by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from airlox.client.deadline import Deadline
from airlox.client.membership import Profile, enter, rejoin
from airlox.client.relay_api import RelayApi
from airlox.client.stream import Feed
from airlox.errors import (
    AirloxError,
    ConnectionLost,
    RelayError,
    SandboxError,
    SessionClosed,
    UsageError,
)
from airlox.protocol.cert import ClientKind
from airlox.protocol.encoding import ItemId
from airlox.protocol.invite import Invite, check_invite
from airlox.protocol.keys import Role, fingerprint
from airlox.protocol.manifest import Feature, JobKind, JobLimits, Manifest, parse_manifest
from airlox.protocol.sse import SseEvent
from airlox.protocol.wire import EventKind
from airlox.runner import answer, facts
from airlox.runner.execution import Bench, execute, state_folder
from airlox.runner.link import STANDING, Link
from airlox.runner.notes import Note, Say
from airlox.runner.options import RunnerOptions
from airlox.runner.packages import NO_RUNTIME, PythonSupply
from airlox.runner.slots import Running, Slots
from airlox.runner.spool import Spool
from airlox.runner.workspace import Workspaces, remove_all
from airlox.sandbox import open_sandbox
from airlox.sandbox.base import Network, Report, Sandbox, SandboxOptions
from airlox.sandbox.sweep import lock_state

HEARTBEAT_S: Final = 10.0
TIDY_S: Final = 10.0
CALL_S: Final = 30.0
DRAIN_JOBS_S: Final = 30.0
DRAIN_POSTS_S: Final = 20.0
STOP_S: Final = 5.0
EVICT_EVERY_S: Final = 3600.0

EXIT_OK: Final = 0
EXIT_ERROR: Final = 1
EXIT_SANDBOX: Final = 78

T = TypeVar("T")


def run_runner(options: RunnerOptions, invite: Invite, say: Say) -> int:
    """Be a runner of the invite's session until it or the operator ends it; the exit code.

    Called from the main thread. Raises AirloxError when it cannot start: UsageError, SandboxError
    (exit code 78), or what the relay says.
    """
    return _Start(options, invite, say).run()


def exit_code_of(error: AirloxError) -> int:
    """The exit code that goes with an error of `run_runner`."""
    return EXIT_SANDBOX if isinstance(error, SandboxError) else EXIT_ERROR


class _Start:
    """Everything that must hold before the first job, in the order in which it is found out."""

    def __init__(self, options: RunnerOptions, invite: Invite, say: Say) -> None:
        self._options = options
        self._invite = invite
        self._say = say

    def _warn(self, text: str) -> None:
        self._say(Note("warning", text))

    def run(self) -> int:
        if self._invite.role is not Role.RUNNER:
            raise UsageError(
                f"this is a {self._invite.role} invite",
                code="wrong_role",
                hint="start the runner with the session's runner invite",
            )
        manifest = self._manifest()
        session = _check_session(manifest, self._options)
        folder = state_folder(self._options, manifest.session_id)
        with lock_state(folder) as state:
            sandbox, report = self._sandbox(folder)
            swept = state.sweep()
            if swept.jobs:
                self._warn(f"ended what an earlier runner left of {len(swept.jobs)} job(s)")
            python, kinds, version = self._python(manifest, session)
            link = self._come_in(manifest)
            slots = self._options.concurrency if manifest.is_full else 1
            if slots != self._options.concurrency:
                self._warn("this session is in the form of 0.1.0: one job at a time")
            note = facts.runner_info_note(
                self._options,
                report,
                kinds=kinds,
                slots=slots,
                network=_has_network(self._options, session),
                python=version,
            )
            owner = sandbox.owner()
            workspaces = Workspaces(
                state,
                folder,
                owner,
                quota_bytes=self._options.workspaces_bytes,
                days=self._options.workspace_days,
            )
            spool = Spool(folder, link.api.post_item, link.api.pause)
            worker = _Worker(link, slots, spool, self._say)
            bench = Bench(
                options=self._options,
                manifest=manifest,
                session=session,
                kinds=kinds,
                link=link,
                sandbox=sandbox,
                report=report,
                state=state,
                workspaces=workspaces,
                python=python,
                spool=spool,
                redactions=_redactions(self._options),
                call=worker.call,
                posted=worker.post_soon,
            )
            try:
                code = asyncio.run(worker.run(bench, note if manifest.is_full else None))
            finally:
                link.api.close()
            if worker.session_gone:
                remove_all(folder)
            return code

    def _manifest(self) -> Manifest:
        """The session's terms, before anything is done in its name."""
        api = RelayApi.connect(
            self._invite.base_url, self._invite.session_id, on_warning=self._warn
        )
        try:
            manifest = parse_manifest(api.fetch_manifest())
        finally:
            api.close()
        check_invite(self._invite, manifest)
        return manifest

    def _sandbox(self, folder: Path) -> tuple[Sandbox, Report]:
        options = self._options
        sandbox = open_sandbox(
            options.sandbox,
            SandboxOptions(
                state_dir=folder,
                job_user=options.job_user,
                require_layers=options.require_layers,
                builder=options.builder,
                gpus=options.gpus,
                toolchain_roots=options.toolchain_roots,
            ),
        )
        report = sandbox.probe()
        if report.refusal is not None:
            raise report.refusal
        sandbox.prepare()
        if options.sandbox == facts.PROCESS:
            self._warn(
                "jobs run without walls on this machine (--sandbox process): use it for "
                "senders you would give a login"
            )
        return sandbox, report

    def _python(
        self, manifest: Manifest, session: JobLimits
    ) -> tuple[PythonSupply, tuple[JobKind, ...], str | None]:
        """The supply of interpreters, the kinds of jobs this runner takes, the Python it has."""
        supply = PythonSupply(
            session,
            pins=manifest.has(Feature.PINS),
            python=self._options.python,
            runtimes=self._options.cache_root / "runner" / "runtimes",
            path=self._options.path,
        )
        kinds = manifest.kinds
        if JobKind.PYTHON not in kinds:
            return supply, kinds, None
        shell = JobKind.SHELL in kinds
        try:
            return supply, kinds, supply.check(fetch=not shell)
        except UsageError as error:
            if not shell or error.code != NO_RUNTIME or self._options.python is not None:
                raise
            self._say(Note("shell_only", f"taking shell jobs only: {error}"))
            return supply, (JobKind.SHELL,), None

    def _come_in(self, manifest: Manifest) -> Link:
        """Join, or go on as before where the cache, the relay and the options still agree."""
        options = self._options
        profile = Profile(
            display_name=options.name,
            kind=ClientKind.RUNNER,
            description=options.description,
            runner=facts.runner_info(options),
        )
        cache_root = os.fspath(options.cache_root)
        membership = enter(self._invite, profile, cache_root=cache_root, on_warning=self._warn)
        link = Link(membership, options.name, on_warning=self._warn)
        if self._must_rejoin(link, profile):
            link = Link(rejoin(membership, profile), options.name, on_warning=self._warn)
            link.sync()
        self._say(
            Note(
                "joined",
                f"joined session {manifest.session_id} as {options.name}, "
                f"key {fingerprint(link.public)}",
                {"runner": link.public, "fingerprint": fingerprint(link.public)},
            )
        )
        return link

    def _must_rejoin(self, link: Link, profile: Profile) -> bool:
        """Whether the token works no more, or what was signed at the join is no longer so."""
        link.sync()
        ended = link.timeline.ended
        if ended is not None:
            if ended.code == "cut_off" and link.rejection() is None:
                return True
            raise ended
        me = link.timeline.read(lambda view: view.participants.get(link.public))
        if me is None:
            return False
        same = me.join.runner == profile.runner and me.join.description == profile.description
        return not same


class _Worker:
    """The event loop's side: streams, heartbeats, slots, the spool, the end."""

    def __init__(self, link: Link, slots: int, spool: Spool, say: Say) -> None:
        self._link = link
        self._slots = Slots(slots)
        self._spool = spool
        self._say = say
        self._pool = ThreadPoolExecutor(4 + 3 * slots, thread_name_prefix="airlox-call")
        self._jobs: set[asyncio.Task[None]] = set()
        self._arrivals: dict[ItemId, asyncio.Event] = {}
        self._feeds: list[Feed] = []
        self._threads: list[threading.Thread] = []
        self.session_gone = False

    async def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Run a blocking call in a thread of the pool."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(function, *arguments))

    async def run(self, bench: Bench, note: Any) -> int:
        """Work until the session, the owner or a signal ends it."""
        self._loop = asyncio.get_running_loop()
        self._bench = bench
        self._ending: asyncio.Future[int] = self._loop.create_future()
        self._to_post = asyncio.Event()
        self._beat = asyncio.Event()
        self._approved = self._said_waiting = False
        self._catch_signals()
        tasks = [asyncio.create_task(self._tend(note))]
        try:
            code = await self._until_the_end(tasks)
            await self._drain()
        finally:
            await self._stop(tasks)
        return code

    def post_soon(self) -> None:
        """There is something in the spool."""
        self._to_post.set()

    # ── coming to work ──────────────────────────────────────────────────────────────────────

    async def _tend(self, note: Any) -> None:
        """Report what an earlier life lost, say what is offered, then open for work."""
        for lost in await asyncio.to_thread(self._spool.lost):
            bench = self._bench
            found = answer.lost(lost.job, bench.env, lost.code_sha256, lost.input_sha256, lost.tree)
            parcel = answer.seal(bench.link.outbox, bench.manifest, found, ())
            await asyncio.to_thread(self._spool.add, parcel)
            self._tell(
                "job_lost", f"job {lost.job.id} was lost with an earlier runner", lost.job.id
            )
        self._to_post.set()
        helpers = [asyncio.create_task(self._post_results())]
        try:
            await self._offer(note)
            self._read(self._link.timeline.feed(), self._on_session_event)
            self._read(self._link.runner_feed(), self._on_runner_event)
            self._look_at_approval()
            helpers.append(asyncio.create_task(self._tidy()))
            await self._keep_in_touch()
        finally:
            for helper in helpers:
                helper.cancel()

    async def _offer(self, note: Any) -> None:
        """Post what this runner offers, unless the session knows it already."""
        if note is None:
            return
        link = self._link
        known = link.timeline.read(lambda view: view.runner_infos.get(link.public))
        if known != note:
            sealed = await asyncio.to_thread(link.outbox.seal, note)
            await self.call(link.outbox.post, sealed)

    async def _keep_in_touch(self) -> None:
        """A heartbeat every ten seconds, and after each job."""
        while True:
            self._beat.clear()
            try:
                await self.call(self._heartbeat)
            except (ConnectionLost, RelayError) as error:
                if isinstance(error, RelayError) and error.status in (401, 404, 410):
                    self._end_with(self._link.api.end_of_session(error))
                else:
                    self._say(Note("warning", f"no heartbeat reached the relay: {error.message}"))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._beat.wait(), HEARTBEAT_S)

    async def _tidy(self) -> None:
        """Now and then: let the relay forget what it need not keep, and old workspaces go."""
        evict_at = self._loop.time()
        while True:
            try:
                await self.call(self._link.tidy)
                if self._loop.time() >= evict_at:
                    evict_at = self._loop.time() + EVICT_EVERY_S
                    await asyncio.to_thread(self._bench.workspaces.evict)
            except AirloxError as error:
                self._say(Note("warning", f"tidying up: {error.message}"))
            await asyncio.sleep(TIDY_S)

    def _heartbeat(self) -> None:
        free = self._slots.free if self._bench.manifest.is_full else None
        self._link.api.within(Deadline.after(CALL_S)).heartbeat(self._slots.current, free)

    # ── streams ─────────────────────────────────────────────────────────────────────────────

    def _read(self, feed: Feed, take: Callable[[SseEvent], None]) -> None:
        """Read a feed in a thread of its own until it is closed."""

        def read() -> None:
            try:
                while (event := feed.next(Deadline.after(None))) is not None:
                    take(event)
            except AirloxError as error:
                self._loop.call_soon_threadsafe(self._end_with, error)

        thread = threading.Thread(target=read, name="airlox-feed", daemon=True)
        self._feeds.append(feed)
        self._threads.append(thread)
        thread.start()

    def _on_session_event(self, event: SseEvent) -> None:
        """In the feed's thread: approvals, rejections, cancels and the items of jobs."""
        self._link.timeline.take_live(event, STANDING)
        self._loop.call_soon_threadsafe(self._look_at_approval)

    def _on_runner_event(self, event: SseEvent) -> None:
        """In the feed's thread."""
        self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: SseEvent) -> None:
        if event.event == EventKind.REJECTED:
            self._end_with(SessionClosed("the owner rejected this runner", code="rejected"))
            return
        job = _job_in(event)
        if job is None:
            return
        if event.event == EventKind.JOB_ASSIGNED:
            self._assign(job)
        elif event.event == EventKind.JOB_CANCEL:
            self._slots.cancel(job, "cancelled")
        elif event.event == EventKind.PACK and job in self._arrivals:
            self._arrivals[job].set()

    def _look_at_approval(self) -> None:
        ended = self._link.timeline.ended
        if ended is not None:
            self._end_with(ended)
            return
        reason = self._link.rejection()
        if reason is not None:
            because = f": {reason}" if reason else ""
            self._end_with(
                SessionClosed(f"the owner rejected this runner{because}", code="rejected")
            )
        elif not self._link.may_take_jobs():
            if not self._said_waiting:
                self._said_waiting = True
                name = self._bench.options.name
                self._say(Note("waiting", f"waiting for the owner: airlox runner approve {name}"))
        elif not self._approved:
            self._approved = True
            self._say(Note("ready", f"{self._bench.options.name} takes jobs"))

    # ── jobs ────────────────────────────────────────────────────────────────────────────────

    def _assign(self, job: ItemId) -> None:
        running = None if self._ending.done() else self._slots.add(job)
        if running is None:
            return
        task = asyncio.create_task(self._serve(running))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _serve(self, running: Running) -> None:
        """Take an assigned job through its life in a slot."""
        await self._slots.acquire()
        with self._slots.occupied(running):
            try:
                await self._work(running)
            except SessionClosed as error:
                self._end_with(error)
            except AirloxError as error:
                self._tell("warning", f"job {running.job}: {error.message}", running.job)
            finally:
                self._slots.forget(running)
                self._arrivals.pop(running.job, None)
        self._beat.set()

    async def _work(self, running: Running) -> None:
        if self._ending.done() or not await self.call(self._link.claim, running.job):
            return
        arrived = self._arrivals.setdefault(running.job, asyncio.Event())
        self._tell("job_started", f"job {running.job} started", running.job)
        said = await execute(self._bench, running, arrived)
        if said is not None:
            self._tell("job_ended", f"job {running.job} ended: {said}", running.job)

    async def _post_results(self) -> None:
        """Post what is in the spool, whenever there is something."""
        while True:
            await self._to_post.wait()
            self._to_post.clear()
            try:
                await self.call(self._spool.post_all, self._gave_up)
            except SessionClosed as error:
                self._end_with(error)
                return
            except ConnectionLost:
                return
            self._beat.set()

    def _gave_up(self, job: ItemId, why: str) -> None:
        self._tell("warning", f"the relay will not take the result of job {job}: {why}", job)

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def _catch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._ending.done():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.remove_signal_handler(number)
            signal.raise_signal(signal.SIGINT)
            return
        self._say(Note("stopping", "stopping: running jobs are cancelled"))
        self._slots.cancel_all("the runner was stopped")
        self._ending.set_result(EXIT_OK)

    def _end_with(self, error: AirloxError) -> None:
        """The session or the owner ended it, or the relay cannot be worked with."""
        if self._ending.done():
            return
        self.session_gone = error.code == "session_gone"
        self._say(Note("ended", str(error), {"code": error.code}))
        self._slots.cancel_all(error.message)
        self._ending.set_result(EXIT_OK if self.session_gone else EXIT_ERROR)

    async def _until_the_end(self, tasks: list[asyncio.Task[None]]) -> int:
        """The exit code, once it is decided. What breaks in a task breaks the runner."""
        first: set[asyncio.Future[Any]] = {self._ending, *tasks}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done() and not self._ending.done():
                task.result()
        return await self._ending

    async def _drain(self) -> None:
        """Let cancelled jobs end, and their results go out, within a bounded time."""
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=DRAIN_JOBS_S)
        if self.session_gone:
            return
        self._to_post.set()
        deadline = self._loop.time() + DRAIN_POSTS_S
        while not self._spool.is_empty() and self._loop.time() < deadline:
            await asyncio.sleep(0.05)
        if not self._spool.is_empty():
            self._say(Note("warning", "results wait on the disk for the next start"))

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        for feed in self._feeds:
            feed.close()
        self._link.api.close()
        left: set[asyncio.Task[None]] = {*tasks, *self._jobs}
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=STOP_S)
        for thread in self._threads:
            await asyncio.to_thread(thread.join, STOP_S)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _tell(self, kind: str, text: str, job: str) -> None:
        self._say(Note(kind, text, {"job": job}))


def _check_session(manifest: Manifest, options: RunnerOptions) -> JobLimits:
    """Raises UsageError for a session this runner can do nothing in."""
    if manifest.job_limits is None:
        raise UsageError(
            "this session takes no jobs", code="relay_mode", hint="create one with --mode execute"
        )
    if options.sandbox == facts.PROCESS and not manifest.is_full:
        raise UsageError(
            "--sandbox process is known in full sessions only, and this one has the form of 0.1.0",
            code="process_in_floor",
            hint="use --sandbox local, or create the session with --kinds",
        )
    return manifest.job_limits


def _has_network(options: RunnerOptions, session: JobLimits) -> bool:
    return facts.network_of(options, session.network) is Network.ON


def _redactions(options: RunnerOptions) -> tuple[tuple[str, str], ...]:
    """Paths that no job of this runner may show, whatever it runs in."""
    home = Path.home()
    named = [
        (options.jobs_root, "$JOB"),
        (options.cache_root, "$RUNTIME"),
        (home, "~"),
    ]
    return tuple((str(form), name) for path, name in named for form in (path, path.resolve()))


def _job_in(event: SseEvent) -> ItemId | None:
    """The job an event of the runner's stream names."""
    try:
        return ItemId(msgspec.json.decode(event.data, type=_JobEvent).job)
    except msgspec.MsgspecError:
        return None


class _JobEvent(msgspec.Struct):
    job: str
