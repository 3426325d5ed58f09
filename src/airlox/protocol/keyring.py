"""The session keys of one participant, epoch by epoch, as far as they can be opened.

The owner derives every key. Everybody else opens the box of its role, with the role's key from the
link or, where the role was renewed since it joined, with the one that was sealed to its own key;
from any key it has, the older ones follow. Who was cut off keeps what it had, and no more.

A keyring learns epochs in their order, each once; to learn one again is fine. It may be ahead of
a reader that steps over events: a newcomer is told all epochs before it joins.
Source: docs/protocol.md, "Epochs".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from airlox.errors import DecryptError, OrderError, ValidationError
from airlox.protocol.epochs import (
    Epoch,
    EpochSecrets,
    EpochState,
    link_replaced,
    open_earlier,
    open_role_seed,
    open_session_key,
    parse_epoch,
)
from airlox.protocol.invite import Invite, check_invite
from airlox.protocol.keys import Role, SessionKeys, SigningKey
from airlox.protocol.manifest import Manifest


class _Known(msgspec.Struct, frozen=True):
    """What is known after some epochs; replaced as a whole, so that any thread may look."""

    state: EpochState
    epochs: tuple[Epoch, ...]
    keys: Mapping[int, bytes]
    seeds: Mapping[Role, tuple[bytes, int]]
    """The seed of a role's key, and the epoch that gave it. Of others' roles the owner alone."""


class Keyring:
    """See the module's text. `participant` is the own key; without it no renewed role is opened.

    Keys never show in `repr`. Whoever calls `learn` holds a lock; everything else may be called
    from any thread.
    """

    def __init__(
        self, manifest: Manifest, invite: Invite, participant: SigningKey | None = None
    ) -> None:
        self._manifest = manifest
        self._role = invite.role
        self._owner_seed = invite.role_seed if invite.role is Role.OWNER else None
        self._participant = participant
        is_first = SigningKey.from_seed(invite.role_seed).public == manifest.key_of(invite.role)
        seeds = {invite.role: (invite.role_seed, 0)}
        if self._owner_seed is not None:
            derived = SessionKeys.derive(self._owner_seed).role_seeds
            seeds |= {role: (seed, 0) for role, seed in derived.items()}
        keys = {0: invite.session_key} if is_first else {}
        self._known = _Known(EpochState.begin(manifest), (), keys, seeds)

    def __repr__(self) -> str:
        return f"Keyring({self._role}, epoch {self.number})"

    @property
    def state(self) -> EpochState:
        """What the epochs say that were learned."""
        return self._known.state

    @property
    def number(self) -> int:
        """Of the last epoch that was learned, whether its key can be had or not."""
        return self._known.state.number

    @property
    def documents(self) -> list[str]:
        """Of the epochs that were learned."""
        return [epoch.document for epoch in self._known.epochs]

    def current(self) -> tuple[int, bytes]:
        """Number and session key of the last epoch. Raises DecryptError for who was cut off."""
        known = self._known
        return known.state.number, self._of(known, known.state.number)

    def of(self, number: int) -> bytes:
        """The session key of an epoch. Raises DecryptError."""
        return self._of(self._known, number)

    def newest_first(self) -> list[bytes]:
        """Every session key there is."""
        known = self._known
        return [known.keys[number] for number in sorted(known.keys, reverse=True)]

    def link(self, base_url: str, role: Role) -> Invite:
        """The link of a role as it is now; of others' roles for the owner alone.

        Raises PolicyError for a role that was revoked.
        """
        known = self._known
        known.state.key_of(role)
        seed, number = known.seeds[role]
        return Invite(base_url, self._manifest.session_id, role, self._of(known, number), seed)

    # ── learning ────────────────────────────────────────────────────────────────────────────

    def learn_all(self, documents: Iterable[str]) -> None:
        """Learn epochs by their documents, from the first on. Raises as `parse_epoch`."""
        for at, document in enumerate(documents):
            if at < len(self._known.epochs):
                self._check_same(at, document)
            else:
                self.learn(parse_epoch(document, self._manifest, self._known.state))

    def learn(self, epoch: Epoch) -> None:
        """Learn the next epoch, or one that is known. Raises OrderError for any other."""
        known = self._known
        if epoch.number <= known.state.number:
            self._check_same(epoch.number - 1, epoch.document)
            return
        if epoch.number != known.state.number + 1:
            raise OrderError(f"epoch {epoch.number} does not follow epoch {known.state.number}")
        state, epochs = known.state.after(epoch), (*known.epochs, epoch)
        if self._owner_seed is not None:
            self._known = self._derive(known, state, epochs, epoch)
            return
        seed, made = known.seeds[self._role]
        if epoch.role is self._role and (renewed := self._renewed(epoch)) is not None:
            seed, made = renewed, epoch.number
        keys = dict(known.keys)
        key = SigningKey.from_seed(seed)
        if state.role_keys.get(self._role) == key.public:
            sid = self._manifest.session_id
            keys[epoch.number] = open_session_key(epoch, sid, self._role, key)
            self._fill(keys, epochs)
        self._known = _Known(state, epochs, keys, {self._role: (seed, made)})

    def _check_same(self, at: int, document: str) -> None:
        if self._known.epochs[at].document != document:
            raise OrderError(f"another epoch {at + 1} than the one known here")

    def _derive(
        self, known: _Known, state: EpochState, epochs: tuple[Epoch, ...], epoch: Epoch
    ) -> _Known:
        assert self._owner_seed is not None
        secrets = EpochSecrets.derive(self._owner_seed, epoch.number, epoch.salt)
        seeds = dict(known.seeds)
        if epoch.role_pub is not None:
            seeds[epoch.role] = (secrets.role_seed(epoch.role), epoch.number)
        keys = {**known.keys, epoch.number: secrets.session_key}
        return _Known(state, epochs, keys, seeds)

    def _renewed(self, epoch: Epoch) -> bytes | None:
        """The seed of the own role's new key, where this epoch has it for us."""
        if self._participant is None or self._participant.public not in epoch.kept:
            return None
        seed = open_role_seed(epoch, self._manifest.session_id, self._participant)
        if SigningKey.from_seed(seed).public != epoch.role_pub:
            raise ValidationError(f"epoch {epoch.number} gives this participant another key")
        return seed

    def _fill(self, keys: dict[int, bytes], epochs: tuple[Epoch, ...]) -> None:
        """From the newest key, the older ones. Raises DecryptError for a key that is not theirs."""
        for epoch in reversed(epochs):
            earlier = open_earlier(epoch, self._manifest.session_id, keys[epoch.number])
            if keys.setdefault(epoch.number - 1, earlier) != earlier:
                raise DecryptError(f"epoch {epoch.number} names another key before it")

    def _of(self, known: _Known, number: int) -> bytes:
        found = known.keys.get(number)
        if found is None:
            raise DecryptError(
                f"this participant has no key of epoch {number}: it was cut off",
                code="cut_off",
                hint="ask the owner for a new link: airlox session invites",
            )
        return found


def check_link(
    invite: Invite, manifest: Manifest, state: EpochState, *, has_joined: bool = False
) -> None:
    """Returns when a link's role key is the session's in an epoch. Raises ValidationError, and
    PolicyError for a key that counts no more: with that only those who joined before go on."""
    public = SigningKey.from_seed(invite.role_seed).public
    if state.replaced.get(public) is not invite.role:
        check_invite(invite, manifest, state.role_keys.get(invite.role))
        return
    check_invite(invite, manifest, public)
    if not has_joined:
        state.key_of(invite.role)
        raise link_replaced(invite.role)
