"""A session with its people, made of the protocol core alone: documents for tests of both ends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from airlox.protocol import cert, invite, item, keys, manifest, payload
from airlox.protocol.encoding import ItemId, new_item_id
from airlox.protocol.keyring import Keyring
from airlox.protocol.view import Event

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


def job_limits(full: bool, **changes: Any) -> manifest.JobLimits:
    values: dict[str, Any] = {
        "approve_runners": True,
        "kinds": (manifest.JobKind.PYTHON, manifest.JobKind.SHELL) if full else msgspec.UNSET,
        "memory_mb": 512,
        "network": False,
        "packages": (),
        "return_out": True,
        "runtime": "python3.12",
        "timeout_s": 60,
    }
    return manifest.JobLimits(**(values | changes))


@dataclass(frozen=True)
class Person:
    """A participant with its key and signed join."""

    world: World
    role: keys.Role
    key: keys.SigningKey
    cert: str
    join: str

    @property
    def public(self) -> Any:
        return self.key.public

    def post(
        self,
        meta: payload.Meta,
        *,
        body: bytes = b"",
        subkind: str | None = None,
        at_ms: int | None = None,
        item_id: ItemId | None = None,
        refs: Sequence[item.ItemRef] = (),
        session_key: bytes | None = None,
        epoch: int = 0,
    ) -> item.SealedItem:
        """An item by this person, sealed and signed."""
        return item.seal_item(
            self.key,
            session_key or self.world.keys.session_key,
            session_id=self.world.keys.session_id,
            item_id=item_id or new_item_id(os.urandom(16)),
            kind=payload.kind_of(meta),
            subkind=subkind,
            created_at_ms=self.world.now_ms if at_ms is None else at_ms,
            payload=payload.encode_payload(meta, body),
            nonce=os.urandom(12),
            refs=tuple(refs),
            epoch=epoch,
        )

    def say(self, text: str, **options: Any) -> item.SealedItem:
        return self.post(payload.Text(text=text), **options)


@dataclass
class World:
    """A session and everything its owner may sign. `now_ms` is a clock the test turns.

    A full one has every feature, `epochs` only where it is asked for: there nobody is revoked by
    the relay's word alone.
    """

    full: bool = False
    epochs: bool = False
    mode: manifest.Mode = manifest.Mode.EXECUTE
    ttl_ms: int | None = HOUR_MS
    now_ms: int = NOW_MS
    max_item_bytes: int = 1_000_000
    limits: manifest.JobLimits | None = None
    owner_seed: bytes = field(default_factory=lambda: os.urandom(32))

    def __post_init__(self) -> None:
        self.full = self.full or self.epochs
        self.keys = keys.SessionKeys.derive(self.owner_seed)
        execute = self.mode is manifest.Mode.EXECUTE
        self.document = manifest.build_manifest(
            self.owner_seed,
            mode=self.mode,
            created_at_ms=self.now_ms,
            ttl_ms=self.ttl_ms,
            max_item_bytes=self.max_item_bytes,
            job_limits=(self.limits or job_limits(self.full)) if execute else None,
            features=self._features(),
        )
        self.manifest = manifest.parse_manifest(self.document)

    def _features(self) -> tuple[manifest.Feature, ...]:
        if not (self.full or self.epochs):
            return ()
        without = () if self.epochs else (manifest.Feature.EPOCHS,)
        return tuple(each for each in manifest.ALL_FEATURES if each not in without)

    def person(
        self,
        role: keys.Role,
        name: str | None = None,
        *,
        labels: Sequence[str] = (),
        sandbox: str = "local",
        key: keys.SigningKey | None = None,
        kind: cert.ClientKind = cert.ClientKind.SDK,
        role_seed: bytes | None = None,
    ) -> Person:
        """Someone with a certificate for `role` and a signed join; nobody is told."""
        key = key or keys.SigningKey.from_seed(os.urandom(32))
        proof = cert.issue_cert(
            role_seed or self.keys.role_seed(role),
            session_id=self.keys.session_id,
            role=role,
            participant_pub=key.public,
            issued_at_ms=self.now_ms,
        )
        runner = None
        if role is keys.Role.RUNNER:
            runner = cert.RunnerInfo(
                host="box",
                labels=tuple(labels),
                name=name or "box",
                network_unblocked=False,
                sandbox=cert.SandboxName(sandbox),
            )
        join = cert.sign_join(
            key,
            cert=proof,
            session_id=self.keys.session_id,
            display_name=name or role.value,
            kind=cert.ClientKind.RUNNER if runner else kind,
            created_at_ms=self.now_ms,
            runner=runner,
        )
        return Person(self, role, key, proof, join)

    def keyring(
        self, role: keys.Role = keys.Role.OWNER, participant: keys.SigningKey | None = None
    ) -> Keyring:
        """The session keys as a participant with the first link of a role has them."""
        return Keyring(self.manifest, self.invite("https://relay.example", role), participant)

    def invite(self, base_url: str, role: keys.Role) -> invite.Invite:
        if role is keys.Role.OWNER:
            return invite.owner_invite(base_url, self.owner_seed)
        return invite.member_invite(base_url, self.owner_seed, role)


class Timeline:
    """Events as a relay numbers them."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, kind: str, **data: Any) -> Event:
        event = Event(len(self.events), kind, data)
        self.events.append(event)
        return event

    def join(self, person: Person) -> Event:
        return self.add("participant", signed_join=person.join)

    def post(self, sealed: item.SealedItem) -> Event:
        return self.add("item", envelope=sealed.envelope)
