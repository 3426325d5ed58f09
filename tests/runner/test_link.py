"""What a runner takes from a relay that announces what its view of the session refuses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airlox.client.cache import SessionCache
from airlox.client.membership import Membership
from airlox.errors import JobRefused
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import SealedItem
from airlox.protocol.job import AnyRunner, ShellJob
from airlox.protocol.keys import Role
from airlox.protocol.payload import File
from airlox.runner.link import Link, Order, Unverified
from support.announcer import Announcer
from support.epochs import Epochs
from support.world import Person, World

JOB = ShellJob(command=("true",), files=(), memory_mb=None, target=AnyRunner(), timeout_s=9)


class Story:
    """Alice, who is cut off, Bob and a runner."""

    def __init__(self, folder: Path) -> None:
        self.world, self.relay = World(epochs=True), Announcer()
        self.epochs = Epochs(self.world)
        self.alice, self.bob = (self.world.person(Role.SENDER, name) for name in ("alice", "bob"))
        runner = self.world.person(Role.RUNNER)
        for person in (self.alice, self.bob, runner):
            self.relay.line.join(person)
        cache = SessionCache(folder, self.world.manifest.session_id)
        cache.make()
        api: Any = self.relay
        keys = self.world.keyring(Role.RUNNER, runner.key)
        invite = self.world.invite("https://relay.example", Role.RUNNER)
        me = Membership(invite, self.world.manifest, runner.key, keys, api, cache)
        self.link = Link(me, "box", on_warning=lambda text: None)

    def tell(self, sealed: SealedItem) -> SealedItem:
        self.relay.line.post(sealed)
        self.relay.blobs[sealed.ref.id] = sealed.blob
        self.link.sync()
        return sealed

    def cut_off_alice(self) -> None:
        epoch = self.epochs.begin(Role.SENDER, self.alice, self.bob)
        self.relay.line.add("epoch", document=epoch.document)
        self.link.sync()

    def order(self, job: SealedItem) -> Order | None:
        return self.link.order(ItemId(job.ref.id))


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def job_of(person: Person, **options: Any) -> SealedItem:
    return person.post(JOB, subkind="sh", **options)


def test_a_job_by_who_was_cut_off(story: Story) -> None:
    """P-EPO-4: not under the key that the author still has, and no other."""
    story.cut_off_alice()
    with pytest.raises(Unverified):
        story.order(story.tell(job_of(story.alice)))
    number, key = story.epochs.owner.current()
    with pytest.raises(Unverified, match="cut off"):
        story.order(story.tell(job_of(story.alice, session_key=key, epoch=number)))
    assert story.order(story.tell(job_of(story.bob, session_key=key, epoch=number))) is not None


def test_a_job_that_is_given_after_its_author_was_cut_off(story: Story) -> None:
    """P-EPO-4: though it was sent before."""
    job = story.tell(job_of(story.alice))
    assert story.order(job) is not None
    story.cut_off_alice()
    with pytest.raises(Unverified, match="cut off"):
        story.order(job)


def test_what_was_sealed_in_an_epoch_that_ended(story: Story) -> None:
    """P-EPO-3: of nobody a job, and no input."""
    story.cut_off_alice()
    with pytest.raises(Unverified, match="epoch 0, which ended"):
        story.order(story.tell(job_of(story.bob)))
    name = File(mime="text/markdown", name="a.md")
    late = story.tell(story.bob.post(name, body=os.urandom(4).hex().encode(), subkind="md"))
    with pytest.raises(JobRefused, match="epoch 0, which ended"):
        story.link.input(late.ref)
