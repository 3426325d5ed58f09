"""Audit trails made of the protocol core alone, entry by entry, as a relay would write them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from airlox.protocol.chain import RANDOM_BYTES, Link, find_place, stays
from airlox.protocol.encoding import b64u_encode
from airlox.protocol.item import ItemRef, SealedItem, parse_envelope
from airlox.protocol.keys import Role
from airlox.protocol.payload import File, JobCancel, Meta, RunnerApprove, RunnerReject, Text
from support.crew import a_job, a_result
from support.world import Person, World

BASE_URL = "https://relay.example"


class TrailMaker:
    """Writes entries. Items are chained unless told otherwise; `numbered` as relays of now do."""

    def __init__(self, world: World, *, numbered: bool = True) -> None:
        self.world = world
        self.numbered = numbered
        self.entries: list[dict[str, Any]] = []
        self._events = 0
        self._tips: dict[str, Link] = {}
        self.add("created", signed_manifest=world.document)

    @property
    def lines(self) -> list[bytes]:
        return [msgspec.json.encode(entry) for entry in self.entries]

    def add(self, event: str, **fields: Any) -> None:
        at_ms = self.world.now_ms + len(self.entries)
        self.entries.append({"at_ms": at_ms, "event": event, **fields})

    def join(self, role: Role, name: str | None = None) -> Person:
        person = self.world.person(role, name)
        self.add("joined", signed_join=person.join)
        self._events += 1
        return person

    def post(
        self,
        author: Person,
        meta: Meta,
        *,
        refs: Sequence[ItemRef] = (),
        chained: bool = True,
        blob: bool = False,
        **options: Any,
    ) -> SealedItem:
        """An item and its entry; `blob`: with its sealed bytes."""
        if chained:
            tips = [self._tips[author.public]] if author.public in self._tips else []
            random = os.urandom(RANDOM_BYTES)
            place = find_place(author.public, refs, tips, knows=True, random=random)
            options |= {"item_id": place.item_id}
            refs = place.refs
        sealed = author.post(meta, refs=refs, **options)
        if chained:
            seq = self._events if self.numbered else None
            does_stay = stays(parse_envelope(sealed.envelope).header)
            self._tips[author.public] = Link(sealed.ref, seq, does_stay)
        self.tell(sealed, blob=blob)
        return sealed

    def tell(self, sealed: SealedItem, *, blob: bool = False) -> None:
        """The entry of an item."""
        fields: dict[str, Any] = {}
        if self.numbered:
            fields["seq"] = self._events
        if blob:
            fields["blob"] = b64u_encode(sealed.blob)
        self.add("item", envelope=sealed.envelope, blob_sha256=sealed.ref.blob_sha256, **fields)
        self._events += 1

    def job(self, author: Person, **options: Any) -> SealedItem:
        return self.post(author, a_job(), subkind="py", **options)

    def result(self, runner: Person, job: SealedItem, **options: Any) -> SealedItem:
        """The result and what the relay says with it."""
        sealed = self.post(runner, a_result(job.ref), refs=[job.ref], **options)
        self.state("finished", job, runner)
        return sealed

    def state(self, word: str, job: SealedItem, runner: Person | None, **fields: Any) -> None:
        """The relay's word on a job."""
        key = None if runner is None else runner.public
        self.add(word, **{"job": job.ref.id, "participant_pub": key, "reason": None, **fields})
        self._events += 1

    def run(self, author: Person, runner: Person) -> tuple[SealedItem, SealedItem]:
        """A job from its post to its result."""
        job = self.job(author)
        self.state("assigned", job, runner)
        self.state("claimed", job, runner)
        self.add("ack", item=job.ref.id, participant_pub=runner.public)
        return job, self.result(runner, job)


class Story:
    """A session in which everything happens once."""

    def __init__(self, *, full: bool = True, numbered: bool = True) -> None:
        self.world = World(full=full)
        self.trail = trail = TrailMaker(self.world, numbered=numbered)
        self.owner = trail.join(Role.OWNER)
        self.sender = trail.join(Role.SENDER, "agent")
        self.watcher = trail.join(Role.OBSERVER)
        self.box = trail.join(Role.RUNNER, "box")
        self.spare = trail.join(Role.RUNNER, "spare")
        trail.add("approved", participant_pub=self.box.public)
        trail.post(self.owner, RunnerApprove(participant_pub=self.box.public), blob=full)
        self.hello = trail.post(self.sender, Text(text="hello"))
        trail.add("ack", item=self.hello.ref.id, participant_pub=self.owner.public)
        self.note = trail.post(
            self.sender, File(mime="text/markdown", name="a.md"), body=b"#", subkind="md"
        )
        self.job, self.result = trail.run(self.sender, self.box)
        self.second = trail.job(self.sender)
        trail.state("assigned", self.second, self.box)
        trail.add("cancel", job=self.second.ref.id, participant_pub=self.owner.public)
        trail.post(self.owner, JobCancel(job=self.second.ref), refs=[self.second.ref], blob=full)
        trail.state("failed", self.second, self.box, reason="cancelled")
        trail.post(
            self.owner, RunnerReject(participant_pub=self.spare.public, reason=None), blob=full
        )
        trail.add("rejected", participant_pub=self.spare.public)
        trail.add("evicted", item=self.hello.ref.id)
        trail.post(self.owner, Text(text="bye"), refs=[self.hello.ref])
        trail.post(self.sender, Text(text="bye"))
        trail.add("left", participant_pub=self.watcher.public)
        trail.add("revoked", role="sender")

    @property
    def invite(self) -> str:
        return self.world.invite(BASE_URL, Role.OWNER).url()

    @property
    def lines(self) -> list[bytes]:
        return self.trail.lines
