"""Packs: the sealed pieces of a job's working tree, on their way to one runner.

A pack may come before its job is posted; whoever stores the first one owns the id until then.
Only the assigned runner and the author can read packs. They go when the job ends, or after a
while when no job claims them. The same bytes again are fine; other bytes under a number are not:
the runner must be able to count on what it has read.
"""

from __future__ import annotations

from typing import Final

from airlox.protocol import limits
from airlox.protocol.encoding import ItemId, b64u_encode, parse_item_id
from airlox.protocol.keys import Role
from airlox.protocol.manifest import Feature
from airlox.protocol.sse import encode_event
from airlox.protocol.wire import EventKind
from airlox.relay import records
from airlox.relay.config import setting_of
from airlox.relay.entities import Pack, PackSet, Participant
from airlox.relay.epochs import check_epoch
from airlox.relay.items import Blob, Blobs, Body, check_here
from airlox.relay.refusals import Refusal
from airlox.relay.service import Core
from airlox.relay.state import Session, pack_name
from airlox.relay.store.base import BlobReader

PACK_BYTES: Final = limits.PACK_BYTES + limits.BLOB_OVERHEAD_BYTES
MAX_UNCLAIMED: Final = 4
"""Trees one participant may store ahead of their jobs."""


class Packs:
    def __init__(self, core: Core, blobs: Blobs) -> None:
        self._core = core
        self._blobs = blobs

    async def put(
        self,
        session: Session,
        who: Participant,
        job_id: str,
        number: int,
        size: int,
        body: Body,
        epoch: int,
    ) -> bool:
        """Stores a pack of `size` bytes, sealed in an epoch; False when these very bytes were
        there. Raises Refusal."""
        self._core.check_role(who, Role.OWNER, Role.SENDER, what="send a tree")
        if not session.manifest.has(Feature.TREES):
            raise Refusal("policy", "this session was created without the feature trees")
        if not 0 <= number < self._core.config.max_packs:
            setting = setting_of(self._core.config, "max_packs")
            raise Refusal("too_large", "the tree has more packs than it may", setting=setting)
        if not limits.BLOB_OVERHEAD_BYTES < size <= PACK_BYTES:
            raise Refusal("too_large", f"a pack has at most {PACK_BYTES} bytes")
        job = ItemId(parse_item_id(job_id))
        self._check_job(session, who, job)
        check_epoch(session, epoch, "a pack")
        self._core.quotas.check_room_for_bytes(session, who, size)
        async with await self._blobs.receive(session, who, size, b"", body) as blob, session.lock:
            check_here(who)
            self._check_job(session, who, job)
            known = self._pack(session, job, number)
            if known is not None:
                if known.sha256 == blob.sha256:
                    return False
                raise Refusal("duplicate", "other bytes are stored under this pack's number")
            await self._store(session, who, job, number, blob, epoch)
        return True

    async def _store(
        self,
        session: Session,
        who: Participant,
        job: ItemId,
        number: int,
        blob: Blob,
        epoch: int,
    ) -> None:
        record = records.PackStored(
            self._core.clock.now_ms(), job, number, who.key, blob.size, blob.sha256
        )
        name = pack_name(job, number)
        await self._blobs.keep(session, who, name, blob, [record], epoch=epoch)
        posted = session.jobs.get(job)
        if posted is not None and posted.runner is not None:
            message = encode_event(None, EventKind.PACK, f'{{"job":"{job}","n":{number}}}')
            self._core.hub.tell_runner(session.id, posted.runner, message)

    def _check_job(self, session: Session, who: Participant, job: ItemId) -> None:
        """The id is free, or this participant's, and its job has not ended."""
        found = session.pack_sets.get(job)
        posted = session.jobs.get(job)
        item = session.items.get(job)
        if posted is not None:
            if posted.author != who.key:
                raise Refusal("forbidden", "the job belongs to another participant")
            if posted.is_over:
                raise Refusal("gone", "the job has ended")
        elif item is not None or (found is not None and found.author != who.key):
            raise Refusal("duplicate", "this id belongs to something else")
        elif found is None and self._unclaimed(session, who) >= MAX_UNCLAIMED:
            raise Refusal(
                "rate_limited",
                f"this participant has {MAX_UNCLAIMED} trees without a job",
                setting=setting_of(self._core.config, "unclaimed_pack_lifetime_s"),
                retry_s=self._core.config.unclaimed_pack_lifetime_s,
            )

    def _unclaimed(self, session: Session, who: Participant) -> int:
        return sum(
            found.author == who.key and job not in session.jobs
            for job, found in session.pack_sets.items()
        )

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def listing(self, session: Session, who: Participant, job_id: str) -> list[dict[str, object]]:
        found = self._readable(session, who, job_id)
        return [
            {"n": number, "size": pack.size, "sha256": b64u_encode(pack.sha256)}
            for number, pack in sorted(found.packs.items())
        ]

    async def open(
        self, session: Session, who: Participant, job_id: str, number: int
    ) -> BlobReader:
        if number not in self._readable(session, who, job_id).packs:
            raise Refusal("not_found", "no such pack")
        return await self._core.store.open_blob(session.id, pack_name(ItemId(job_id), number))

    def _readable(self, session: Session, who: Participant, job_id: str) -> PackSet:
        """The packs of a job, for its author and its runner; none yet is an empty set."""
        job = session.jobs.get(ItemId(job_id))
        found = session.pack_sets.get(ItemId(job_id))
        readers = {None if job is None else job.runner, None if found is None else found.author}
        if who.key not in readers and (job is None or job.author != who.key):
            raise Refusal("forbidden", "only the job's author and its runner may read its packs")
        return found or PackSet(who.key, 0)

    def _pack(self, session: Session, job: ItemId, number: int) -> Pack | None:
        found = session.pack_sets.get(job)
        return None if found is None else found.packs.get(number)

    # ── ending ───────────────────────────────────────────────────────────────────────────────

    async def drop_unclaimed(self, session: Session) -> None:
        """Drops packs that no job came for."""
        oldest_ms = self._core.clock.ticks_ms() - self._core.config.unclaimed_pack_lifetime_s * 1000
        for job, found in list(session.pack_sets.items()):
            if job not in session.jobs and found.since_ms <= oldest_ms:
                async with session.lock:
                    if job not in session.jobs and not session.is_closed:
                        record = records.PacksDropped(self._core.clock.now_ms(), job)
                        await self._core.write(session, record)
