"""Epochs of a session made of the protocol core alone, as its owner starts them."""

from __future__ import annotations

import os
from typing import Any

from airlox.protocol.epochs import Epoch, EpochState, Revocation, build_epoch, parse_epoch
from airlox.protocol.item import SealedItem
from airlox.protocol.keyring import Keyring
from airlox.protocol.keys import Role
from support.world import Person, World


class Epochs:
    """The owner's side: what began so far, and the keys of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.owner = world.keyring()
        self.documents: list[str] = []

    @property
    def state(self) -> EpochState:
        return self.owner.state

    def make(self, role: Role, cut_off: Person | None = None, *kept: Person) -> str:
        """The signed document of the next epoch; nobody is told."""
        return build_epoch(
            self.world.owner_seed,
            self.world.manifest,
            self.state,
            Revocation(
                role,
                None if cut_off is None else cut_off.public,
                tuple(person.public for person in kept),
            ),
            earlier_key=self.owner.current()[1],
            created_at_ms=self.world.now_ms,
            salt=os.urandom(16),
        )

    def begin(self, role: Role, cut_off: Person | None = None, *kept: Person) -> Epoch:
        """The next epoch, which the owner knows of from now on."""
        document = self.make(role, cut_off, *kept)
        epoch = parse_epoch(document, self.world.manifest, self.state)
        self.owner.learn(epoch)
        self.documents.append(document)
        return epoch

    def newcomer(self, role: Role, name: str | None = None) -> Person:
        """Who joins with the link that a role has now."""
        return self.world.person(role, name, role_seed=self.owner.link("https://r", role).role_seed)

    def keyring(self, role: Role, person: Person | None = None) -> Keyring:
        """What somebody with a role's first link knows."""
        keyring = self.world.keyring(role, None if person is None else person.key)
        keyring.learn_all(self.documents)
        return keyring

    def say(self, person: Person, text: str, **options: Any) -> SealedItem:
        """A text sealed in the epoch that there is."""
        number, key = self.owner.current()
        return person.say(text, session_key=key, epoch=number, **options)
