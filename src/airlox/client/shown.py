"""Participants and runners as callers see them: plain values, made from what was verified.

What participants signed (who they are, approvals, what a runner offers) and what only the relay
says (who is online, which job it has) stand side by side here, each field documented as what it
is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from airlox.client.answers import DeliveryEntry, RunnerEntry
from airlox.errors import UsageError
from airlox.protocol.cert import Join
from airlox.protocol.encoding import ItemId, PublicKey
from airlox.protocol.keys import Role, fingerprint, is_fingerprint
from airlox.protocol.payload import RunnerInfoNote
from airlox.protocol.view import Participant, SessionView


class ParticipantInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Someone who joined, by a verified join. `left` is the relay's word."""

    participant_pub: str
    display_name: str
    role: str
    kind: str
    description: str | None
    left: bool
    fingerprint: str


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    """A runner. `online` and `job` are the relay's word; the rest was signed.

    `approved` means that the owner's signed events let it take jobs. `info` is what it offers, in
    full sessions, once it has said so.
    """

    participant_pub: str
    name: str
    labels: tuple[str, ...]
    host: str
    sandbox: str
    network_unblocked: bool
    description: str | None
    approved: bool
    rejected: bool
    online: bool
    job: str | None
    left: bool
    info: RunnerInfoNote | None

    @property
    def fingerprint(self) -> str:
        """16 hex characters by which people compare a key."""
        return fingerprint(PublicKey(self.participant_pub))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of jobs it runs: what it says, else Python."""
        return ("python",) if self.info is None else tuple(kind.value for kind in self.info.kinds)

    @property
    def idle(self) -> bool:
        """Whether it could take a job now, as far as the relay says."""
        return self.online and self.approved and not self.rejected and self.job is None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """Whom an own item has reached, by the relay's word.

    Delivered means that their client stored it, not that anyone read it. Nobody is in both; who
    joined after the relay let go of the item is in neither.
    """

    id: str
    kind: str
    created_at_ms: int
    to: tuple[str, ...]
    """Whom it is addressed to: keys and roles."""
    delivered: tuple[ParticipantInfo, ...]
    waiting: tuple[ParticipantInfo, ...]


def participant_info(participant: Participant) -> ParticipantInfo:
    join = participant.join
    return ParticipantInfo(
        participant_pub=participant.public,
        display_name=join.display_name,
        role=join.role.value,
        kind=join.kind.value,
        description=join.description,
        left=participant.left,
        fingerprint=fingerprint(participant.public),
    )


def deliveries(
    view: SessionView, entries: Sequence[DeliveryEntry], author: PublicKey
) -> list[Delivery]:
    """What the relay says of items of `author`, as far as it fits what is known here."""
    found = {}
    for entry in entries:
        record = view.records.get(ItemId(entry.item))
        if record is None or record.envelope is None or record.envelope.author != author:
            continue
        delivered = set(entry.delivered) - {author}
        waiting = set(entry.waiting) - delivered - {author}
        found[entry.item] = Delivery(
            id=record.envelope.id,
            kind=record.envelope.header.kind.value,
            created_at_ms=record.envelope.header.created_at_ms,
            to=() if record.item is None else record.item.to,
            delivered=_known(view, delivered),
            waiting=_known(view, waiting),
        )
    return list(found.values())


def _known(view: SessionView, keys: Collection[str]) -> tuple[ParticipantInfo, ...]:
    """Of the participants those whom `keys` name, in the order of joining."""
    return tuple(participant_info(p) for p in view.participants.values() if p.public in keys)


def runners_of(view: SessionView, entries: dict[PublicKey, RunnerEntry]) -> list[Runner]:
    """Every runner that joined, in the order of joining; `entries` is what the relay says."""
    return [
        _runner(view, participant, entries.get(participant.public))
        for participant in view.participants.values()
        if participant.role is Role.RUNNER
    ]


def _runner(view: SessionView, participant: Participant, entry: RunnerEntry | None) -> Runner:
    join: Join = participant.join
    assert join.runner is not None  # a join with the runner's role has it
    public = participant.public
    return Runner(
        participant_pub=public,
        name=join.runner.name,
        labels=join.runner.labels,
        host=join.runner.host,
        sandbox=join.runner.sandbox.value,
        network_unblocked=join.runner.network_unblocked,
        description=join.description,
        approved=view.may_take_jobs(public),
        rejected=public in view.rejected or (entry is not None and entry.rejected),
        online=entry is not None and entry.online,
        job=None if entry is None else entry.job,
        left=participant.left,
        info=view.runner_infos.get(public),
    )


def choose_runner(runners: list[Runner], who: Runner | str) -> Runner:
    """The one runner that `who` means: a Runner, a key, a fingerprint or a name.

    A word in the form of a fingerprint is never taken for a name: a runner may call itself by
    another's, while that one is not here or a relay does not show it. Among several of one name,
    those that left or were rejected do not count. Raises UsageError when none or more than one is
    meant.
    """
    if isinstance(who, Runner):
        who = who.participant_pub
    exact = [r for r in runners if who in (r.participant_pub, r.fingerprint)]
    named = [] if is_fingerprint(who) else [r for r in runners if r.name == who]
    present = [r for r in named if not r.left and not r.rejected]
    found = exact or present or named
    if not found:
        known = ", ".join(sorted({r.name for r in runners})[:8])
        raise UsageError(
            f"no runner {who[:64]!r} in this session",
            code="no_such_runner",
            hint=f"runners: {known}" if known else "no runner has joined yet",
        )
    if len(found) > 1:
        keys = ", ".join(r.fingerprint for r in found[:8])
        raise UsageError(
            f"{len(found)} runners are called {who[:64]!r}",
            code="ambiguous_runner",
            hint=f"name one by its key: {keys}",
        )
    return found[0]
