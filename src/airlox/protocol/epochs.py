"""Epochs: a new session key after a revocation, so that it bites.

The owner starts an epoch by one signed document that everybody may see. It cuts off a role, or one
participant. The new session key stands in it once for each role that stays, sealed to that role's
key: whoever has a role's link, now or later, can open it, and who was cut off cannot. To cut off
one participant its role gets a new key too, which stands in the document once for each of the
others of that role, sealed to their own keys.

Documents are chained by number and by the digest of the one before; each holds the session key
before it, sealed under the new one, so that whoever has a key can read everything older. Keys
derive from the owner seed, the number and the document's salt: the owner's link alone gives all of
them. Without the salt two documents of one number, of which only one came to count, would hold one
key, and the one that does not count could hand it to whom the other cuts off.

What is public of all this is here; who can open what is keyring.py's business.
Source: docs/protocol.md, "Epochs"; docs/decisions/0019-epochs.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from airlox.errors import (
    DecryptError,
    EncodingError,
    LimitError,
    OrderError,
    PolicyError,
    ValidationError,
)
from airlox.protocol import boxes, canonical, limits
from airlox.protocol.boxes import can_receive, check_box
from airlox.protocol.canonical import U32, Signed, TimeMs, Wire
from airlox.protocol.digest import hash_of
from airlox.protocol.encoding import (
    KEY_BYTES,
    Hash,
    PublicKey,
    SessionId,
    b64u_decode,
    b64u_encode,
    parse_hash,
)
from airlox.protocol.keys import (
    CONTEXT,
    MEMBER_ROLES,
    Info,
    Role,
    SigningKey,
    hkdf,
    parse_public_key,
)
from airlox.protocol.manifest import Feature, Manifest
from airlox.protocol.signature import Label, verify

SALT_BYTES: Final = 16


# ── the document ─────────────────────────────────────────────────────────────────────────────


class Boxes(Wire, frozen=True, kw_only=True):
    """The session key of the epoch, sealed to the key of each role that is not revoked."""

    observer: str | UnsetType = UNSET
    runner: str | UnsetType = UNSET
    sender: str | UnsetType = UNSET

    def of(self, role: Role) -> str | None:
        box: str | UnsetType = getattr(self, role.value, UNSET)
        return None if box is UNSET else box


class KeptBox(Wire, frozen=True, kw_only=True):
    """The seed of the role's new key, sealed to the key of one who keeps the role."""

    box: str
    participant_pub: str


class Renewal(Wire, frozen=True, kw_only=True):
    """A role goes on under a new key, without one of its participants.

    `kept`: the others, in the order of their keys.
    """

    cut_off: str
    kept: tuple[KeptBox, ...]
    role_pub: str


class _Body(Wire, frozen=True, kw_only=True):
    boxes: Boxes
    created_at_ms: TimeMs
    earlier: str
    number: U32
    one_time: str
    prev: str
    renewal: Renewal | UnsetType = UNSET
    role: Role
    salt: str
    session_id: str
    v: Literal[1]


class _SignedEpoch(Signed, frozen=True, kw_only=True):
    epoch: _Body


class Epoch(msgspec.Struct, frozen=True):
    """A verified epoch. `document` is the signed text it came from, `role` whom it is about:
    revoked as a whole where `role_pub` is None, else renewed without `cut_off`."""

    document: str
    number: int
    created_at_ms: int
    role: Role
    role_pub: PublicKey | None
    cut_off: PublicKey | None
    kept: Mapping[PublicKey, str]
    boxes: Boxes
    earlier: str
    one_time: bytes
    salt: bytes

    def cuts_off(self, role: Role, participant: PublicKey) -> bool:
        """Whether somebody who had joined with a role is out from this epoch on."""
        return role is self.role and participant not in self.kept


class EpochState(msgspec.Struct, frozen=True):
    """What the epochs of a session say so far: the key each role signs certificates with.

    `number` is that of the last epoch, 0 before the first; `head` the digest of its document, at
    first of the manifest. Revoked roles have no key; `replaced` are keys that no longer count.
    """

    number: int
    head: Hash
    role_keys: Mapping[Role, PublicKey]
    replaced: Mapping[PublicKey, Role]

    @classmethod
    def begin(cls, manifest: Manifest) -> EpochState:
        return cls(0, hash_of(manifest.document.encode()), manifest.role_keys, {})

    def after(self, epoch: Epoch) -> EpochState:
        """The state once an epoch that was verified against this one has begun."""
        role_keys = dict(self.role_keys)
        replaced = {**self.replaced, role_keys.pop(epoch.role): epoch.role}
        if epoch.role_pub is not None:
            role_keys[epoch.role] = epoch.role_pub
        return EpochState(epoch.number, hash_of(epoch.document.encode()), role_keys, replaced)

    def key_of(self, role: Role) -> PublicKey:
        """The key that certificates of a role are signed with. Raises PolicyError."""
        found = self.role_keys.get(role)
        if found is None:
            raise PolicyError(
                f"the role {role} was revoked by the owner",
                code="revoked",
                hint="ask the owner for a link of another role",
            )
        return found

    def check_number(self, number: int, what: str) -> None:
        """Returns when something was sealed in the epoch that this state is of.

        Raises PolicyError: `old_epoch`, or `unknown_epoch` for one that was not shown here.
        """
        if number < self.number:
            raise PolicyError(
                f"{what} was sealed in epoch {number}, which ended when epoch {self.number} began",
                code="old_epoch",
                hint="fetch news of the session, then send it again",
            )
        if number > self.number:
            raise PolicyError(
                f"{what} was sealed in epoch {number}, and the last one shown here is "
                f"{self.number}",
                code="unknown_epoch",
                hint="the relay keeps the owner's revocation back, or shows it late",
            )


def link_replaced(role: Role) -> PolicyError:
    """The refusal of a role's key that counts no more."""
    return PolicyError(
        f"this {role} link was replaced when the owner cut somebody off",
        code="invite_replaced",
        hint="ask the owner for a new link: airlox session invites",
    )


def fold_epochs(documents: Iterable[str], manifest: Manifest) -> EpochState:
    """What the epochs of a session say, from the first on. Raises as `parse_epoch`."""
    state = EpochState.begin(manifest)
    for document in documents:
        state = state.after(parse_epoch(document, manifest, state))
    return state


def parse_epoch(document: str, manifest: Manifest, state: EpochState) -> Epoch:
    """The verified epoch that follows `state`. Raises ValidationError or SignatureError, and
    PolicyError in sessions without the feature."""
    if not manifest.has(Feature.EPOCHS):
        raise PolicyError("this session has no epochs", code="no_epochs")
    if len(document) > limits.EPOCH_BYTES:
        raise LimitError("the document of an epoch is too large")
    signed = canonical.decode(document, _SignedEpoch, "epoch")
    body = signed.epoch
    if body.session_id != manifest.session_id:
        raise ValidationError("epoch of another session")
    epoch = _read(document, body)
    verify(manifest.owner_pub, Label.EPOCH, canonical.encode(body), signed.sig)
    if body.number != state.number + 1 or parse_hash(body.prev) != state.head:
        raise OrderError(f"epoch {body.number} does not follow epoch {state.number} as known here")
    _check_roles(epoch, state)
    return epoch


def _read(document: str, body: _Body) -> Epoch:
    """The parts of a body, each well formed."""
    if not 1 <= body.number <= limits.EPOCHS:
        raise LimitError(f"a session has at most {limits.EPOCHS} epochs, numbered from 1")
    if body.role is Role.OWNER:
        raise ValidationError("the owner's role cannot be revoked")
    renewal = None if body.renewal is UNSET else body.renewal
    kept = {} if renewal is None else _read_kept(renewal)
    for box in (body.earlier, *filter(None, map(body.boxes.of, MEMBER_ROLES))):
        check_box(box)
    return Epoch(
        document=document,
        number=body.number,
        created_at_ms=body.created_at_ms,
        role=body.role,
        role_pub=None if renewal is None else parse_public_key(renewal.role_pub),
        cut_off=None if renewal is None else parse_public_key(renewal.cut_off),
        kept=kept,
        boxes=body.boxes,
        earlier=body.earlier,
        one_time=b64u_decode(body.one_time, KEY_BYTES),
        salt=b64u_decode(body.salt, SALT_BYTES),
    )


def _read_kept(renewal: Renewal) -> dict[PublicKey, str]:
    kept = {parse_public_key(each.participant_pub): each.box for each in renewal.kept}
    if len(kept) > limits.EPOCH_KEPT:
        raise LimitError(f"an epoch names at most {limits.EPOCH_KEPT} participants")
    if list(kept) != sorted(each.participant_pub for each in renewal.kept):
        raise EncodingError("participants of an epoch are in the order of their keys, each once")
    if renewal.cut_off in kept:
        raise ValidationError("an epoch both keeps a participant and cuts it off")
    for box in kept.values():
        check_box(box)
    return kept


def _check_roles(epoch: Epoch, state: EpochState) -> None:
    """The role has a key to lose, its new one is new, and each role that stays has its box."""
    if epoch.role not in state.role_keys:
        raise ValidationError(f"the role {epoch.role} was revoked before")
    if epoch.role_pub in state.replaced or epoch.role_pub in state.role_keys.values():
        raise ValidationError("the new key of a role was a role's key before")
    stays = {role for role in MEMBER_ROLES if role in state.role_keys}
    if epoch.role_pub is None:
        stays.discard(epoch.role)
    if {role for role in MEMBER_ROLES if epoch.boxes.of(role) is not None} != stays:
        raise ValidationError("an epoch has a box for each role that stays, and for no other")


# ── the owner's side ─────────────────────────────────────────────────────────────────────────


class Revocation(msgspec.Struct, frozen=True):
    """Whom an epoch cuts off: a role, or of a role one participant, where `kept` are the others."""

    role: Role
    cut_off: PublicKey | None = None
    kept: tuple[PublicKey, ...] = ()


def build_epoch(
    owner_seed: bytes,
    manifest: Manifest,
    state: EpochState,
    revocation: Revocation,
    *,
    earlier_key: bytes,
    created_at_ms: int,
    salt: bytes,
) -> str:
    """The signed document of the epoch after `state`, checked as a reader would.

    `earlier_key` is the session key until now, `salt` 16 fresh random bytes. Those of
    `revocation.kept` to whose keys nothing can be sealed are left out. Raises ValidationError.
    """
    number = state.number + 1
    secrets = EpochSecrets.derive(owner_seed, number, salt)
    sid = manifest.session_id

    def seal(key: PublicKey, purpose: bytes, plain: bytes) -> str:
        return boxes.seal_to(key, secrets.one_time, _info(sid, number, purpose), plain)

    role_keys: dict[Role, PublicKey] = dict(state.role_keys)
    del role_keys[Role.OWNER]
    role_keys.pop(revocation.role, None)
    renewal: Renewal | UnsetType = UNSET
    if revocation.cut_off is not None:
        seed = secrets.role_seed(revocation.role)
        role_keys[revocation.role] = SigningKey.from_seed(seed).public
        renewal = Renewal(
            cut_off=revocation.cut_off,
            kept=tuple(
                KeptBox(box=seal(key, _ROLE_SEED, seed), participant_pub=key)
                for key in sorted(set(revocation.kept))
                if can_receive(key)
            ),
            role_pub=role_keys[revocation.role],
        )
    body = _Body(
        boxes=Boxes(
            **{
                role.value: seal(key, _SESSION_KEY, secrets.session_key)
                for role, key in role_keys.items()
            }
        ),
        created_at_ms=created_at_ms,
        earlier=boxes.seal_under(secrets.session_key, _info(sid, number, _EARLIER), earlier_key),
        number=number,
        one_time=b64u_encode(boxes.one_time_public(secrets.one_time)),
        prev=state.head,
        renewal=renewal,
        role=revocation.role,
        salt=b64u_encode(salt),
        session_id=sid,
        v=1,
    )
    owner = SigningKey.from_seed(owner_seed)
    signature = owner.sign(Label.EPOCH, canonical.encode(body))
    document = canonical.encode(_SignedEpoch(epoch=body, sig=signature)).decode()
    parse_epoch(document, manifest, state)
    return document


class EpochSecrets(msgspec.Struct, frozen=True):
    """What only the owner seed gives of an epoch. Secrets never show in `repr`."""

    session_key: bytes
    one_time: bytes
    _roles: bytes

    def __repr__(self) -> str:
        return "EpochSecrets()"

    @classmethod
    def derive(cls, owner_seed: bytes, number: int, salt: bytes) -> EpochSecrets:
        """Raises EncodingError unless the salt has 16 bytes."""
        if len(salt) != SALT_BYTES:
            raise EncodingError(f"the salt of an epoch has {SALT_BYTES} bytes")

        def derived(info: bytes) -> bytes:
            return hkdf(owner_seed, CONTEXT, info + number.to_bytes(4, "big") + salt)

        return cls(derived(Info.EPOCH_KEY), derived(Info.EPOCH_ONE_TIME), derived(Info.EPOCH_ROLES))

    def role_seed(self, role: Role) -> bytes:
        """The seed of the role's key, where this epoch gives it a new one."""
        return hkdf(self._roles, CONTEXT, Info.ROLE + role.encode())


# ── boxes ────────────────────────────────────────────────────────────────────────────────────

_SESSION_KEY: Final = b"session-key"
_ROLE_SEED: Final = b"role-seed"
_EARLIER: Final = b"earlier"


def open_role_seed(epoch: Epoch, session_id: SessionId, participant: SigningKey) -> bytes:
    """The seed of a renewed role's key, for one who keeps the role. Raises DecryptError."""
    box = epoch.kept.get(participant.public)
    if box is None:
        raise DecryptError(f"epoch {epoch.number} does not keep this participant", code="cut_off")
    info = _info(session_id, epoch.number, _ROLE_SEED)
    what = f"the role key of epoch {epoch.number}"
    return boxes.open_with(participant, epoch.one_time, info, box, what)


def open_session_key(epoch: Epoch, session_id: SessionId, role: Role, key: SigningKey) -> bytes:
    """The session key of an epoch, for who has the key of a role in it. Raises DecryptError."""
    box = epoch.boxes.of(role)
    if box is None:
        raise DecryptError(f"the role {role} has no part in epoch {epoch.number}", code="cut_off")
    info = _info(session_id, epoch.number, _SESSION_KEY)
    what = f"the session key of epoch {epoch.number}"
    return boxes.open_with(key, epoch.one_time, info, box, what)


def open_earlier(epoch: Epoch, session_id: SessionId, session_key: bytes) -> bytes:
    """The session key before an epoch, for who has the epoch's. Raises DecryptError."""
    info = _info(session_id, epoch.number, _EARLIER)
    what = f"the session key before epoch {epoch.number}"
    return boxes.open_under(session_key, info, epoch.earlier, what)


def _info(session_id: SessionId, number: int, purpose: bytes) -> bytes:
    return Info.EPOCH_BOX + purpose + b"\x00" + session_id.encode() + number.to_bytes(4, "big")
