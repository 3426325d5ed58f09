"""The trees of a job, from the sender's packs into the workspace: its files, and its repository
if it has one, which comes first.

What is lacking is named to the sender, never more; what arrives is verified before anything in
the workspace is touched. A sender that sends nothing of it for two minutes has gone, and one that
is slower than anybody's line holds up a slot: the job is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec import UNSET

from airlox.errors import AirloxError, ConnectionLost, JobRefused, ProtocolError, TreeError
from airlox.protocol.digest import sha256
from airlox.protocol.encoding import b64u_decode
from airlox.protocol.job import TreeRef
from airlox.runner.bench import Bench
from airlox.runner.ground import (
    Ground,
    ground_of_repository,
    ground_of_tree,
    leave_no_repository,
)
from airlox.runner.slots import Running
from airlox.runner.workspace import Places, check_room
from airlox.tree.apply import apply
from airlox.tree.arrived import Arrived
from airlox.tree.asking import Asking
from airlox.tree.chunks import Cutter, is_large
from airlox.tree.index import DIGEST_BYTES, TreeIndex, parse_index
from airlox.tree.lack import encode_lacking_index
from airlox.tree.reuse import OldChunks
from airlox.tree.state import AppliedState
from airlox.tree.store import ContentStore
from airlox.tree.survey import Survey, survey

PATIENCE_S: Final = 120.0
"""Longest silence of a sender whose packs are awaited."""
AWAITED_PATIENCE_S: Final = 15.0
"""The same while another job of that sender waits: it may have been started in place of this."""
SLOWEST_BYTES_PER_S: Final = 16 * 1024
"""What is awaited comes faster than this, taken over all the time since it was first awaited."""
LONGEST_S: Final = 12 * 3600.0
LOOK_S: Final = 5.0
"""How often the relay is asked for packs whose event may have been missed."""
HELD_BYTES: Final = 32 << 20
"""Packs kept in memory for the tree that comes next; what is beyond that is fetched again."""


class Progress:
    """How a sender keeps up with what is awaited of it. Times in seconds of one clock."""

    def __init__(self, now_s: float) -> None:
        self._begun_s = self._last_s = now_s
        self._bytes = 0

    def note(self, now_s: float, taken_bytes: int) -> None:
        """So many bytes of what is awaited have come in all; nothing else counts."""
        if taken_bytes > self._bytes:
            self._bytes, self._last_s = taken_bytes, now_s

    def is_over(self, now_s: float, patience_s: float) -> bool:
        """Whether it was silent for longer than that, or is too slow."""
        given_s = min(PATIENCE_S + self._bytes / SLOWEST_BYTES_PER_S, LONGEST_S)
        return now_s - self._last_s > patience_s or now_s - self._begun_s > given_s


async def bring(
    bench: Bench, running: Running, tree: TreeRef, places: Places, arrived: asyncio.Event
) -> TreeIndex:
    """Make the work folder what the job names; the tree that stands in it then.

    `arrived` is set whenever the relay tells of a pack of this job. Raises JobRefused, TreeError,
    StorageError, and what the link raises.
    """
    held: dict[int, bytes] = {}
    if tree.git is UNSET:
        await asyncio.to_thread(leave_no_repository, places)
    else:
        ground = await asyncio.to_thread(ground_of_repository, places, bench.sandbox.owner())
        await _TreeBringer(bench, running, tree.git, places, ground, arrived, held).bring()
    ground = ground_of_tree(places)
    state = await _TreeBringer(bench, running, tree.digest, places, ground, arrived, held).bring()
    bench.workspaces.note_applied(places, state)
    return state.tree


class _TreeBringer:
    """Brings one tree of a job to its ground."""

    def __init__(
        self,
        bench: Bench,
        running: Running,
        digest: str,
        places: Places,
        ground: Ground,
        arrived: asyncio.Event,
        held: dict[int, bytes],
    ) -> None:
        """`held` are packs that were fetched for the tree before this one, by number."""
        self._link = bench.link
        self._call = bench.threads.call
        self._owner = bench.sandbox.owner()
        self._floor_bytes = bench.options.disk_floor_bytes
        self._running = running
        self._digest = b64u_decode(digest, DIGEST_BYTES)
        self._places = places
        self._ground = ground
        self._arrived = arrived
        self._cutter = Cutter(bench.link.chunk_seed)
        self._seen: set[int] = set()
        self._workspaces = bench.workspaces
        self._state = ground.load()
        self._earlier = Arrived(ground.arrived, floor_bytes=self._floor_bytes)
        self._held = held

    async def bring(self) -> AppliedState:
        """What stands on the ground then."""
        state = self._ground.untouched
        if state is None or state.tree.digest != self._digest:
            state = await self._apply()
        return state

    async def _apply(self) -> AppliedState:
        """Make the folder equal to the tree."""
        index = await self._index()
        found = await asyncio.to_thread(survey, index, self._ground.folder, self._state)
        to_write = [entry.size for entry in index.entries if entry.path not in found.present]
        folders = index.folders if to_write else 0
        check_room(
            self._places.job, self._floor_bytes, sum(to_write), needed_files=len(to_write) + folders
        )
        sizes = index.sizes()
        old = self._large_files(found)
        store = self._store(OldChunks(self._cutter, self._ground.folder, *old))
        try:
            store.want({digest: sizes[digest] for digest in found.lacking})
            await self._complete(store, Asking(index, store, reuse=any(old)).question)
            state = await asyncio.to_thread(
                apply,
                index,
                self._ground.folder,
                store.fetch,
                self._state,
                self._owner,
                journal=self._ground.save,
                looked=found,
                alone=self._ground.alone,
            )
            await asyncio.to_thread(self._ground.save, state)
        except AirloxError:
            await asyncio.to_thread(store.keep_for_later)
            raise
        finally:
            await asyncio.to_thread(store.close)
        await asyncio.to_thread(self._earlier.clear)
        return state

    async def _index(self) -> TreeIndex:
        if self._state is not None and self._state.tree.digest == self._digest:
            return self._state.tree
        before = b"" if self._state is None else self._state.tree.encode()
        store = self._store(OldChunks(self._cutter, self._ground.folder, (), at_hand=before))
        try:
            store.want_index(self._digest)
            once = iter((encode_lacking_index(self._digest),))
            await self._complete(store, lambda: next(once, None))
            data = await asyncio.to_thread(lambda: b"".join(store.fetch(self._digest) or ()))
        finally:
            await asyncio.to_thread(store.close)
        # Contents in the packs seen so far were not wanted yet.
        self._seen.clear()
        if sha256(data) != self._digest:
            raise JobRefused("the tree's index does not have its digest", code="tree_invalid")
        try:
            return await asyncio.to_thread(parse_index, data)
        except ProtocolError as error:
            raise JobRefused(f"the tree: {error.message}", code="tree_invalid") from error

    def _store(self, old: OldChunks) -> ContentStore:
        return ContentStore(self._places.job / "contents", old=old, arrived=self._earlier)

    def _large_files(self, found: Survey) -> tuple[list[bytes], list[bytes]]:
        """Those of the last tree that are not in this one as they were, and the others."""
        entries = () if self._state is None else self._state.tree.entries
        large = [entry.path for entry in entries if is_large(entry.size)]
        kept = [path for path in large if path in found.present]
        return [path for path in large if path not in found.present], kept

    async def _complete(self, store: ContentStore, question: Callable[[], bytes | None]) -> None:
        """Take in packs until nothing that is wanted is missing; `question` says what to ask the
        sender for next, when no pack is left."""
        clock = asyncio.get_running_loop().time
        progress = Progress(clock())
        asking: bytes | None = None
        while not store.is_complete:
            self._running.check()
            self._arrived.clear()
            go_on = False
            try:
                if await self._take_packs(store):
                    progress.note(clock(), store.taken_bytes)
                    go_on = True
                elif await self._found_further(store):
                    continue
                elif (asking := asking or question()) is not None:
                    await self._call(self._link.post_lack, self._running.job, asking)
                    asking = None
                    go_on = True
            except ConnectionLost:
                pass  # the relay may be back within the sender's patience
            self._check_patience(progress, clock())
            if not go_on:
                await self._wait()

    def _check_patience(self, progress: Progress, now_s: float) -> None:
        """Raises TreeError when a sender was waited for long enough."""
        awaited = self._workspaces.is_awaited(self._places)
        if progress.is_over(now_s, AWAITED_PATIENCE_S if awaited else PATIENCE_S):
            raise TreeError(
                "the sender did not send all of the tree",
                code="tree_incomplete",
                hint="run it again: what has arrived is kept",
            )

    async def _found_further(self, store: ContentStore) -> bool:
        """Whether all that is missing is here after all, where it takes longer to look."""
        await asyncio.to_thread(store.look_further)
        return store.is_complete

    async def _take_packs(self, store: ContentStore) -> bool:
        """Fetch the packs not seen yet; whether there was one."""
        numbers = await self._call(self._link.packs, self._running.job)
        fresh = [number for number in numbers if number not in self._seen]
        for number in fresh:
            if store.is_complete:
                break
            self._running.check()
            await asyncio.to_thread(store.add_pack, await self._pack(number))
            self._seen.add(number)
        return bool(fresh)

    async def _pack(self, number: int) -> bytes:
        plain = self._held.get(number)
        if plain is None:
            plain = await self._call(self._link.pack, self._running.job, number)
            if sum(map(len, self._held.values())) + len(plain) <= HELD_BYTES:
                self._held[number] = plain
        return plain

    async def _wait(self) -> None:
        stopped = asyncio.ensure_future(self._running.cancelled.wait())
        arrived = asyncio.ensure_future(self._arrived.wait())
        try:
            await asyncio.wait(
                (stopped, arrived), timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stopped.cancel()
            arrived.cancel()
