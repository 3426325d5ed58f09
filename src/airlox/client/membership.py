"""Becoming a participant: a session created, a link joined, a cached identity taken up again.

A `Membership` is what everything else of a session stands on: the verified manifest, the keys of
one participant, its cache, and the calls to its relay. Rules:

* nothing is believed before it is verified: the manifest under the link's session id, the link's
  role key against the manifest, the own join as a reader would see it;
* with an identity in the cache nothing is asked of the relay: what it says of the session shows
  at the first call, and local history stays readable without it;
* the epochs the owner signed are verified before the join, and kept in the cache with the rest;
* a cached identity is used with the relay it was made with, and with no other;
* the session key and the link are never stored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import msgspec

from airlox.client.answers import ManifestAnswer
from airlox.client.cache import Identity, SessionCache, sweep
from airlox.client.relay_api import RelayApi, WarningSink
from airlox.errors import (
    ConnectionLost,
    OrderError,
    ProtocolError,
    RelayError,
    UsageError,
    ValidationError,
)
from airlox.protocol.cert import Cert, ClientKind, RunnerInfo, issue_cert, parse_join, sign_join
from airlox.protocol.encoding import KEY_BYTES, b64u_encode
from airlox.protocol.epochs import EpochState, fold_epochs
from airlox.protocol.invite import Invite, check_invite, owner_invite
from airlox.protocol.keyring import Keyring, check_link
from airlox.protocol.keys import Role, SigningKey
from airlox.protocol.manifest import Feature, Manifest, parse_manifest

CREATE_TRIES: Final = 3
JOIN_TRIES: Final = 2


class Profile(msgspec.Struct, frozen=True):
    """How a participant shows itself; signed and fixed at the first join.

    A runner gives `runner`, and its identity in the cache is called after it.
    """

    display_name: str
    kind: ClientKind
    description: str | None = None
    runner: RunnerInfo | None = None

    def identity_name(self, role: Role) -> str:
        return role.value if self.runner is None else f"runner-{self.runner.name}"


class Membership(msgspec.Struct, frozen=True):
    """One participant in one session. Keys never show in `repr`."""

    invite: Invite
    manifest: Manifest
    key: SigningKey
    keys: Keyring
    """The session's keys, epoch by epoch."""
    api: RelayApi
    cache: SessionCache

    def __repr__(self) -> str:
        return f"Membership({self.invite.role} in {self.manifest.session_id})"

    @property
    def role(self) -> Role:
        return self.invite.role

    @property
    def cert(self) -> Cert:
        """The own certificate as readers know it."""
        return Cert(participant_pub=self.key.public, role=self.role, issued_at_ms=0)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def create(
    base_url: str,
    owner_seed: bytes,
    manifest: str,
    profile: Profile,
    *,
    cache_root: str,
    on_warning: WarningSink,
) -> Membership:
    """Make the session of a signed manifest on a relay, and join it as its owner."""
    invite = owner_invite(base_url, owner_seed, plain_http=True)  # which `check_invite` judges
    verified = parse_manifest(manifest)
    check_invite(invite, verified)
    sweep(cache_root, now_ms())
    cache = SessionCache(cache_root, invite.session_id)
    with _connected(invite, on_warning) as api:
        cache.make()  # first: a session whose owner cannot be kept is better not made
        _create(api, manifest)
        with cache.joining():
            return _join(invite, verified, (), profile, api, cache)


def read_terms(
    answer: ManifestAnswer, invite: Invite, *, has_joined: bool = False
) -> tuple[Manifest, Sequence[str]]:
    """The verified manifest of a link's session, and its epochs. Raises ProtocolError.

    `has_joined`: a link that the owner replaced is good enough to go on as who joined before.
    """
    manifest = parse_manifest(answer.signed_manifest)
    state = fold_epochs(answer.epochs, manifest)
    check_link(invite, manifest, state, has_joined=has_joined)
    return manifest, answer.epochs


def enter(
    invite: Invite, profile: Profile, *, cache_root: str, on_warning: WarningSink
) -> Membership:
    """Join by a link, or go on as the participant the cache holds for its session and role."""
    sweep(cache_root, now_ms())
    cache = SessionCache(cache_root, invite.session_id)
    name = profile.identity_name(invite.role)
    with _connected(invite, on_warning) as api:
        known = _resume(invite, name, api, cache)
        if known is not None:
            return known
        manifest, epochs = read_terms(api.fetch_terms(), invite)
        cache.make()
        with cache.joining():
            # another process of this participant may have joined meanwhile
            known = _resume(invite, name, api, cache, manifest)
            return known or _join(invite, manifest, epochs, profile, api, cache)


def rejoin(membership: Membership, profile: Profile) -> Membership:
    """Join again with a fresh key, when the token of the cached identity works no more.

    Raises PolicyError for a link that was replaced: the key that the role has now is not stored, so
    that the new participant could not go on with this link.
    """
    cache, api, invite = membership.cache, membership.api, membership.invite
    manifest: Manifest = membership.manifest
    epochs: Sequence[str] = ()
    if manifest.has(Feature.EPOCHS):
        manifest, epochs = read_terms(api.fetch_terms(), invite)
    cache.make()
    with cache.joining():
        return _join(invite, manifest, epochs, profile, api, cache)


@contextmanager
def _connected(invite: Invite, on_warning: WarningSink) -> Iterator[RelayApi]:
    """The calls to the link's relay; closed when the block fails."""
    api = RelayApi.connect(
        invite.base_url,
        invite.session_id,
        plain_http=invite.is_plain_http,
        on_warning=on_warning,
    )
    try:
        yield api
    except BaseException:
        api.close()
        raise


def _create(api: RelayApi, manifest: str) -> None:
    """Post a manifest until the relay has it. After a lost answer "exists" may mean ours."""
    for tries in range(CREATE_TRIES):
        try:
            api.create(manifest)
            return
        except ConnectionLost as error:
            if tries == CREATE_TRIES - 1 or error.code != ConnectionLost.code:
                raise
        except RelayError as error:
            if error.code == "exists" and tries > 0 and api.fetch_manifest() == manifest:
                return
            raise


def _resume(
    invite: Invite,
    name: str,
    api: RelayApi,
    cache: SessionCache,
    manifest: Manifest | None = None,
) -> Membership | None:
    """The membership the cache holds, or None."""
    identity = cache.load_identity(name)
    if identity is None:
        return None
    if identity.base_url != invite.base_url:
        raise UsageError(
            f"the cache knows session {invite.session_id} on another relay than this link names",
            code="other_relay",
            hint="use the original link, or a fresh cache (AIRLOX_CACHE_DIR)",
        )
    if manifest is None:
        document = cache.load_manifest()
        if document is None:
            return None
        manifest = parse_manifest(document)
    api.token = identity.token
    key = SigningKey.from_seed(identity.participant_seed)
    keys = _known_keys(invite, manifest, key, api, cache)
    return Membership(invite, manifest, key, keys, api, cache)


def _known_keys(
    invite: Invite, manifest: Manifest, key: SigningKey, api: RelayApi, cache: SessionCache
) -> Keyring:
    """The session's keys as far as the cache knows its epochs. Raises ValidationError for a link of
    another session."""
    keys = Keyring(manifest, invite, key)
    if manifest.has(Feature.EPOCHS):
        with suppress(ProtocolError):  # what does not verify is learned from the relay
            keys.learn_all(cache.load_epochs())
        if not _is_of(invite, manifest, keys):  # the link may be newer than what the cache knows
            keys.learn_all(api.fetch_terms().epochs)
    check_link(invite, manifest, keys.state, has_joined=True)
    return keys


def _is_of(invite: Invite, manifest: Manifest, keys: Keyring) -> bool:
    try:
        check_link(invite, manifest, keys.state, has_joined=True)
    except ValidationError:
        return False
    return True


def _join(
    invite: Invite,
    manifest: Manifest,
    epochs: Sequence[str],
    profile: Profile,
    api: RelayApi,
    cache: SessionCache,
) -> Membership:
    """Join with a fresh key and keep the identity. `cache.joining` is held."""
    _check_shown(epochs, manifest, cache)
    for tries in range(JOIN_TRIES):
        key = SigningKey.from_seed(os.urandom(KEY_BYTES))
        keys = Keyring(manifest, invite, key)
        keys.learn_all(epochs)
        signed = _sign(invite, manifest, keys.state, profile, key)
        try:
            api.token = api.join(signed, b64u_encode(os.urandom(KEY_BYTES)))
            break
        except RelayError as error:
            # a relay without join secrets, whose first answer was lost: the key is spent
            if error.code != "exists" or tries == JOIN_TRIES - 1:
                raise
    cache.save_manifest(manifest.document)
    identity = Identity(key.seed, api.token or "", invite.base_url)
    cache.save_identity(profile.identity_name(invite.role), identity)
    if epochs:
        cache.save_epochs(epochs)
    return Membership(invite, manifest, key, keys, api, cache)


def _check_shown(epochs: Sequence[str], manifest: Manifest, cache: SessionCache) -> None:
    """Whoever joins again does not go back to a key that somebody who was cut off has.

    Raises OrderError for a relay that does not show the epochs that were known here before.
    """
    known = cache.load_epochs()
    try:
        fold_epochs(known, manifest)
    except ProtocolError:
        return  # a damaged file says nothing
    if list(epochs[: len(known)]) != known:
        raise OrderError(
            "the relay does not show the epochs of this session that were known here before: it "
            "has lost them, or keeps revocations back",
            hint="ask the owner; a new session leaves the relay's loss behind",
        )


def _sign(
    invite: Invite, manifest: Manifest, state: EpochState, profile: Profile, key: SigningKey
) -> str:
    """The signed join, checked as every reader will check it."""
    at_ms = manifest.clamp_time(now_ms())
    cert = issue_cert(
        invite.role_seed,
        session_id=manifest.session_id,
        role=invite.role,
        participant_pub=key.public,
        issued_at_ms=at_ms,
    )
    signed = sign_join(
        key,
        cert=cert,
        session_id=manifest.session_id,
        display_name=profile.display_name.strip(),
        description=(profile.description or "").strip() or None,
        kind=profile.kind,
        runner=profile.runner,
        created_at_ms=at_ms,
    )
    parse_join(signed, manifest, state)
    return signed
