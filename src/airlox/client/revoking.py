"""Cutting off a role or a participant, by an epoch that the owner signs.

The document is made of what is known after fresh news. Where somebody joined, or another device of
the owner started an epoch meanwhile, the relay refuses it and it is made anew. Whoever is cut off
already is left as they are: a revocation whose answer was lost may simply be repeated.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from airlox.client.core import Core
from airlox.client.membership import now_ms
from airlox.client.recipients import resolve
from airlox.client.shown import participant_info
from airlox.errors import RelayError, UsageError
from airlox.protocol.addressing import ROLE_PREFIX
from airlox.protocol.encoding import PublicKey
from airlox.protocol.epochs import SALT_BYTES, Revocation, build_epoch
from airlox.protocol.keys import MEMBER_ROLES, Role
from airlox.protocol.manifest import Feature
from airlox.protocol.view import SessionView

TRIES: Final = 8
"""Each is made against fresh news: only many who join at once, or a lying relay, use them up."""
_MADE_ANEW: Final = frozenset({"not_next_epoch", "somebody_joined"})


def revoke(core: Core, who: str) -> None:
    """Cut off a role, or a participant by name, key or fingerprint.

    In sessions without `epochs` a role alone, by the relay's word. Raises UsageError,
    RecipientError, RelayError, ConnectionLost, SessionClosed.
    """
    core.check_open()
    role = _role(who)
    if core.manifest.has(Feature.EPOCHS):
        _begin_epoch(core, who, role)
    elif role is None:
        raise UsageError(
            "one participant can be cut off only in a session with the feature epochs",
            code="needs_epochs",
            hint=f"revoke a whole role ({', '.join(MEMBER_ROLES)}), reject a runner, or make a "
            "session with --features epochs",
        )
    else:
        core.api.revoke(role)


def _role(who: str) -> Role | None:
    """The role that a word means: a participant who is called like one is named by its key."""
    word = who.removeprefix(ROLE_PREFIX)
    return Role(word) if word in {role.value for role in MEMBER_ROLES} else None


def _begin_epoch(core: Core, who: str, role: Role | None) -> None:
    me = core.membership
    refused: RelayError | None = None
    for _ in range(TRIES):
        core.timeline.sync(())
        core.check_open()
        wanted = Revocation(role) if role is not None else _of_participant(core, who)
        if core.timeline.read(lambda view, wanted=wanted: _is_done(view, wanted)):  # type: ignore[misc]
            return
        _, session_key = me.keys.current()
        document = build_epoch(
            me.invite.role_seed,
            me.manifest,
            me.keys.state,
            wanted,
            earlier_key=session_key,
            created_at_ms=me.manifest.clamp_time(now_ms()),
            salt=os.urandom(SALT_BYTES),
        )
        try:
            core.api.start_epoch(document)
        except RelayError as error:
            if error.code not in _MADE_ANEW:
                raise
            refused = error
        else:
            core.timeline.sync(())
            return
    assert refused is not None
    raise refused


def _of_participant(core: Core, who: str) -> Revocation:
    """The participant meant, also one who left: it may have kept the keys."""
    found = core.timeline.read(lambda view: list(view.participants.values()))
    people = [msgspec.structs.replace(participant_info(each), left=False) for each in found]
    public = PublicKey(resolve(people, (who,), "")[0])
    role = next(each.role for each in found if each.public == public)
    if role is Role.OWNER:
        raise UsageError(
            "who has the owner's link cannot be cut off",
            hint="close the session, and make another one",
        )
    others = [each for each in found if each.role is role and each.public != public]
    return Revocation(role, public, tuple(each.public for each in others if not each.left))


def _is_done(view: SessionView, wanted: Revocation) -> bool:
    if wanted.cut_off is None:
        return wanted.role not in view.epochs.role_keys
    return wanted.cut_off in view.cut_off
