"""What a runner tells its relay: what it offers, that it lives, results, what may be forgotten.

Four loops of the event loop, whose calls run in threads. None of them stops a job: a relay that is
away is told later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from airlox.client.deadline import Deadline
from airlox.errors import AirloxError, ConnectionLost, JobRefused, RelayError, SessionClosed
from airlox.protocol.encoding import ItemId
from airlox.runner import answer, facts
from airlox.runner.bench import Bench
from airlox.runner.notes import Note, Say
from airlox.runner.patience import patiently
from airlox.runner.slots import Slots
from airlox.runner.workspace import check_room

HEARTBEAT_S: Final = 10.0
TIDY_S: Final = 10.0
CALL_S: Final = 30.0
EVICT_EVERY_S: Final = 3600.0


class Contact:
    """See the module's text. Made and used in the event loop's thread."""

    def __init__(
        self, bench: Bench, slots: Slots, say: Say, end_with: Callable[[AirloxError], None]
    ) -> None:
        """`end_with` is told of errors after which the runner is of no use in the session."""
        self._bench = bench
        self._slots = slots
        self._say = say
        self._end_with = end_with
        self._loop = asyncio.get_running_loop()
        self._to_post = asyncio.Event()
        self._beat = asyncio.Event()
        self._was_told = asyncio.Event()
        """Whether a heartbeat was sent that the relay should have before it has results."""
        self._settled = asyncio.Event()
        self._stopping = False
        self._complaints: set[str] = set()
        """What does not work at present, and was said."""
        self._counting = asyncio.Lock()
        """A heartbeat counts slots, a claim changes the count: never both at once."""
        bench.spool.on_added = self._post_soon
        bench.spool.on_settled = self._settled_soon

    async def claim(self, job: ItemId) -> bool:
        """Take an assigned job; False when it was given to another or withdrawn."""
        async with self._counting:
            claimed = await self._bench.threads.call(self._bench.link.claim, job)
            if claimed:
                self._slots.take(job)
        return claimed

    def settle(self, job: ItemId) -> None:
        """The relay has the job's answer, or none is due: it should know of the free slot."""
        self._slots.give_back(job)
        self._settled.set()
        self._beat.set()

    def stop_taking(self) -> None:
        """Have the relay know, before it has the results of what runs, that no slot becomes free:
        it would be given to a job that waits, and nobody would claim that."""
        self._stopping = True
        self._was_told.clear()
        self._beat.set()

    async def report_lost(self) -> None:
        """Answer for the jobs that an earlier life of this runner left unanswered."""
        bench = self._bench
        for lost in await asyncio.to_thread(bench.spool.lost):
            found = answer.lost(lost.job, bench.env, lost.code_sha256, lost.input_sha256, lost.tree)
            text = f"job {lost.job.id} was lost with an earlier runner"
            self._say(Note("job_lost", text, {"job": lost.job.id}))
            try:
                parcel = answer.seal(bench.link.outbox, bench.manifest, found, ())
            except AirloxError as error:
                self._gave_up(ItemId(lost.job.id), error.message)
                bench.spool.end(ItemId(lost.job.id))
            else:
                await asyncio.to_thread(bench.spool.add, parcel)
        self._to_post.set()

    async def offer(self) -> None:
        """Post what this runner offers, unless the session knows it already."""
        bench, link = self._bench, self._bench.link
        if not bench.manifest.is_full:
            return
        note = facts.runner_info_note(
            bench.options,
            bench.report,
            kinds=bench.kinds,
            slots=bench.slots,
            network=bench.network,
            python=bench.python_version,
        )
        if link.timeline.read(lambda view: view.runner_infos.get(link.public)) != note:
            sealed = await asyncio.to_thread(link.outbox.seal, note)
            post = partial(link.outbox.post, sealed)
            await bench.threads.call(patiently, post, link.api.pause)

    async def keep_in_touch(self) -> None:
        """A heartbeat every ten seconds, and whenever something changed."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._beat.wait()
            self._beat.clear()
            await self.beat()

    async def beat(self) -> None:
        """One heartbeat: from it on the relay knows that the runner is there."""
        stopping = self._stopping
        try:
            async with self._counting:
                await self._bench.threads.call(self._heartbeat())
        except (ConnectionLost, RelayError) as error:
            api = self._bench.link.api
            ended = api.end_of_session(error) if isinstance(error, RelayError) else error
            if isinstance(ended, SessionClosed):
                self._end_with(ended)
            else:
                self._complain("no heartbeat reached the relay", error)
        else:
            self._complaints.discard("no heartbeat reached the relay")
        if stopping == self._stopping:
            self._was_told.set()

    async def post_results(self) -> None:
        """Post what is in the spool, whenever there is something.

        Not before the first heartbeat, so that who reads what an earlier life left finds the
        runner there, nor before the one that says that it stops.
        """
        while True:
            await self._to_post.wait()
            await self._was_told.wait()
            self._to_post.clear()
            try:
                await self._bench.threads.call(self._bench.spool.post_all, self._gave_up)
            except SessionClosed as error:
                self._end_with(error)
                return
            except ConnectionLost:
                return  # told to stop; what is left waits for the next start

    async def results_are_out(self, within_s: float) -> bool:
        """Wait until nothing is left in the spool; False when that was not in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    self._settled.clear()
                    if self._bench.spool.is_empty():
                        return True
                    await self._settled.wait()
        return False

    async def tidy(self) -> None:
        """Now and then: let the relay forget what it need not keep, and old workspaces go."""
        evict_at = self._loop.time()
        while True:
            try:
                await self._bench.threads.call(self._tidy_session)
                if self._loop.time() >= evict_at:
                    evict_at = self._loop.time() + EVICT_EVERY_S
                    await asyncio.to_thread(self._bench.workspaces.evict)
            except AirloxError as error:
                self._complain("tidying up", error)
            else:
                self._complaints.discard("tidying up")
            await asyncio.sleep(TIDY_S)

    def _post_soon(self) -> None:
        """In any thread: there is something in the spool."""
        self._loop.call_soon_threadsafe(self._to_post.set)

    def _settled_soon(self, job: ItemId) -> None:
        """In any thread: a result is out of the spool."""
        self._loop.call_soon_threadsafe(self.settle, job)

    def _heartbeat(self) -> Callable[[], None]:
        """The call that says how things are now: it is made in a thread, and they may change."""
        slots = self._slots
        api = self._bench.link.api.within(Deadline.after(CALL_S))
        left = slots.left if self._bench.manifest.is_full else None
        return partial(api.heartbeat, slots.current, left, slots.taken, stopping=self._stopping)

    def _tidy_session(self) -> None:
        options = self._bench.options
        try:
            check_room(options.cache_root, options.disk_floor_bytes)
        except JobRefused:
            self._bench.link.tidy(has_room=False)
        else:
            self._bench.link.tidy(has_room=True)

    def _complain(self, what: str, error: AirloxError) -> None:
        """Say it once, until it has worked again."""
        if what not in self._complaints:
            self._complaints.add(what)
            self._say(Note("warning", f"{what}: {error.message}"))

    def _gave_up(self, job: ItemId, why: str) -> None:
        text = f"the result of job {job} cannot be posted: {why}"
        self._say(Note("warning", text, {"job": job}))
