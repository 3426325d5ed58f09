"""The offline check of an audit trail: what its signatures prove, and what the relay only claims.

The trail is read once, line by line, and little is kept of each item, so that long trails need no
more memory than `limits` allows. Every signed document in it is verified as a reader of the session
would: the manifest by the owner's key, which the session's id is made of; each join by its
certificate; each item by its author's signature over header and blob digest, by the role table, by
the job a result names, and by the chain of its author. What the relay says beside that (times, who
fetched what, states of jobs, who left) is proof of nothing, but must not contradict itself or what
was signed.

No key is needed. With an invite, the owner's events that a trail of a full session carries are
opened, so that approvals and rejections are proved too.
Source: docs/protocol.md, "The audit trail".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET

from airlox.errors import (
    DecryptError,
    LimitError,
    OrderError,
    PolicyError,
    ProtocolError,
    ValidationError,
)
from airlox.protocol import limits, trail
from airlox.protocol.cert import Cert, ClientKind, parse_join
from airlox.protocol.chain import Chain, chosen_refs, stays
from airlox.protocol.digest import sha256
from airlox.protocol.encoding import (
    KEY_BYTES,
    ItemId,
    PublicKey,
    SessionId,
    b64u_decode,
    parse_session_id,
)
from airlox.protocol.epochs import EpochState, parse_epoch
from airlox.protocol.invite import Invite, check_invite, parse_invite
from airlox.protocol.item import Envelope, ItemRef, Kind, parse_envelope, verify_item_digest
from airlox.protocol.keyring import Keyring, check_link
from airlox.protocol.keys import Role, SigningKey, fingerprint
from airlox.protocol.manifest import Feature, Manifest, Mode, parse_manifest
from airlox.protocol.payload import JobCancel, RunnerApprove, RunnerReject
from airlox.protocol.policy import check_header_rules, open_checked

# ── what comes out ───────────────────────────────────────────────────────────────────────────


class Problem(msgspec.Struct, frozen=True):
    """Something that does not hold. `line` counts from 1; 0 stands for the trail as a whole."""

    line: int
    code: str
    text: str
    item: str | None = None


class AuditedPerson(msgspec.Struct, frozen=True):
    """Who joined, by a verified join, and what this key signed: items by kind.

    `linked` of them name the author's item before; `cut_off`: left, revoked or rejected, by the
    relay's word where no epoch says it.
    """

    participant_pub: PublicKey
    fingerprint: str
    display_name: str
    role: Role
    kind: ClientKind
    items: dict[str, int]
    linked: int
    cut_off: str | None


class AuditedJob(msgspec.Struct, frozen=True):
    """A job somebody signed, and the result a runner signed over exactly this job, if there is one.

    `cancelled_by`: who signed an event that names the job, as cancels do, and may. `state` and
    `reason` are the relay's words.
    """

    job: ItemId
    author: PublicKey
    result: ItemId | None
    runner: PublicKey | None
    cancelled_by: tuple[PublicKey, ...]
    state: str | None
    reason: str | None


class Decision(msgspec.Struct, frozen=True):
    """What the owner signed, opened with the session's key: `approved` or `rejected` a runner (its
    key), or `cancelled` a job (its id)."""

    line: int
    item: ItemId
    what: str
    about: str


class AuditedEpoch(msgspec.Struct, frozen=True):
    """A revocation the owner signed: a role as a whole, or, where `cut_off` says so, one
    participant of it. Nothing of those it cuts off comes after it, and every later item says that
    it is sealed under a key that they were not given. What stands before it may have been posted
    later: its place is the relay's word."""

    line: int
    number: int
    role: Role
    cut_off: PublicKey | None


class AuditReport(msgspec.Struct, frozen=True):
    """What a trail proves, what it claims, and what is wrong with it.

    Proved, if `verified`: session, people, items, jobs with results, links, decisions, epochs.
    Claimed by the relay: `claims` (entries by kind), and that the trail is whole where no link
    says so.
    """

    session_id: SessionId | None
    is_expected: bool
    """Whether the session was compared with an id or invite that the caller gave."""
    mode: Mode | None
    lines: int
    people: tuple[AuditedPerson, ...]
    items: int
    jobs: tuple[AuditedJob, ...]
    linked: int
    """Items that name the one before, which is there and in its place."""
    unchained: int
    """Items of clients that do not chain: nothing proves their place, nor that none is missing."""
    maybe_forgotten: int
    """Items named by others that are not here, for which the relay says that it forgot some."""
    is_numbered: bool
    """Whether the trail has the relay's numbers, which links confirm."""
    extract_of: int | None
    """Jobs of which this trail tells alone; None for the trail of a whole session."""
    forgotten_jobs: int
    decisions: tuple[Decision, ...]
    epochs: tuple[AuditedEpoch, ...]
    claims: dict[str, int]
    problems: tuple[Problem, ...]
    more_problems: int
    """Problems beyond those that are listed."""

    @property
    def verified(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_audit(
    lines: bytes | str | Iterable[bytes | str | Mapping[str, Any]],
    *,
    session_id: str | None = None,
    invite: str | None = None,
    extract: bool = False,
) -> AuditReport:
    """Checks an audit trail, whole, as lines, or as what `Session.audit` gives; needs no relay.

    `session_id` or `invite` say which session it must be of. With the invite of a full session the
    owner's decisions on runners are opened too. `extract` takes what a relay wrote down before it
    forgot jobs, which tells of these alone. What is wrong with the trail is in the report; raises
    ValidationError only for a malformed `session_id` or `invite`.
    """
    check = TrailCheck(
        None if session_id is None else parse_session_id(session_id),
        None if invite is None else parse_invite(invite),
        extract=extract,
    )
    for line in _split(lines):
        check.step(line)
    return check.report()


def _split(
    lines: bytes | str | Iterable[bytes | str | Mapping[str, Any]],
) -> Iterable[bytes | str | Mapping[str, Any]]:
    if isinstance(lines, bytes):
        return lines.split(b"\n")
    return lines.split("\n") if isinstance(lines, str) else lines


# ── what is kept meanwhile ───────────────────────────────────────────────────────────────────


class _Person:
    __slots__ = ("approved", "cert", "cut_off", "is_out", "items", "kind", "linked", "name")

    def __init__(self, cert: Cert, name: str, kind: ClientKind) -> None:
        self.cert = cert
        self.name = name
        self.kind = kind
        self.items: Counter[str] = Counter()
        self.linked = 0
        self.approved = False
        self.cut_off: str | None = None
        self.is_out = False
        """By an epoch that the owner signed."""

    @property
    def key(self) -> PublicKey:
        return self.cert.participant_pub

    @property
    def role(self) -> Role:
        return self.cert.role


class _Job:
    __slots__ = (
        "author",
        "blob_sha256",
        "cancelled_by",
        "given_to",
        "reason",
        "result",
        "runner",
        "state",
    )

    def __init__(self, author: PublicKey, blob_sha256: str) -> None:
        self.author = author
        self.blob_sha256 = blob_sha256
        self.result: ItemId | None = None
        self.runner: PublicKey | None = None
        self.cancelled_by: tuple[PublicKey, ...] = ()
        self.given_to: PublicKey | None = None
        self.state: str | None = None
        self.reason: str | None = None


class _Contradiction(OrderError):
    """The relay's word against its own, or against what was signed."""

    code = "contradiction"


# ── the check ────────────────────────────────────────────────────────────────────────────────


class TrailCheck:
    """Takes a trail line by line; never raises for what a line holds."""

    def __init__(
        self,
        session_id: SessionId | None = None,
        invite: Invite | None = None,
        *,
        extract: bool = False,
    ) -> None:
        self._takes_extracts = extract
        self._expected = session_id
        self._invite = invite
        self._manifest: Manifest | None = None
        self._is_lost = False
        self._line = 0
        self._about: str | None = None
        self._people: dict[PublicKey, _Person] = {}
        self._items: dict[ItemId, int] = {}
        self._jobs: dict[ItemId, _Job] = {}
        self._revoked: set[Role] = set()
        self._chain = Chain()
        self._last_seq: int | None = None
        self._forgot_at = 0
        self._forgotten = 0
        self._extract: int | None = None
        self._decisions: list[Decision] = []
        self._epochs: list[AuditedEpoch] = []
        self._state: EpochState
        self._keys: Keyring | None = None
        self._claims: Counter[str] = Counter()
        self._problems: list[Problem] = []
        self._more = 0

    def step(self, line: bytes | str | Mapping[str, Any]) -> None:
        """Takes the next line. One that is blank is passed over."""
        self._line += 1
        if self._is_lost or not line or (not isinstance(line, Mapping) and not line.strip()):
            return
        self._about = None
        try:
            self._take(trail.parse_entry(line))
        except ProtocolError as error:
            self._note(error.code, error.message, self._about)
            if self._manifest is None:
                self._is_lost = True  # nothing can be checked without a manifest

    def report(self) -> AuditReport:
        """What the lines so far prove and claim."""
        problems = list(self._problems)
        if self._manifest is None and not problems:
            problems = [Problem(0, "order", "the trail is empty: it has no manifest")]
        manifest = self._manifest
        if not self._is_lost:
            problems += self._faults_of_link()
        return AuditReport(
            session_id=None if manifest is None else manifest.session_id,
            is_expected=self._expected is not None or self._invite is not None,
            mode=None if manifest is None else manifest.mode,
            lines=self._line,
            people=tuple(map(_person_of, self._people.values())),
            items=len(self._items),
            jobs=tuple(_job_of(*each) for each in self._jobs.items()),
            linked=sum(person.linked for person in self._people.values()),
            unchained=self._chain.unchained,
            maybe_forgotten=self._chain.counted_forgotten,
            is_numbered=self._last_seq is not None,
            extract_of=self._extract,
            forgotten_jobs=self._forgotten,
            decisions=tuple(self._decisions),
            epochs=tuple(self._epochs),
            claims=dict(self._claims),
            problems=tuple(problems),
            more_problems=self._more + self._chain.more,
        )

    def _faults_of_link(self) -> list[Problem]:
        """Whether the link that was given is of this session in any epoch."""
        if self._manifest is None or self._invite is None:
            return []
        try:
            check_link(self._invite, self._manifest, self._state, has_joined=True)
        except ProtocolError as error:
            return [Problem(0, error.code, error.message)]
        return []

    def _take(self, entry: trail.AnyEntry) -> None:
        if isinstance(entry, trail.Created):
            self._on_created(entry)
            return
        if self._manifest is None:
            raise OrderError(
                "the trail does not begin with the session's manifest, by which all is checked"
            )
        _HANDLERS[type(entry)](self, entry)
        if not isinstance(entry, trail.Joined | trail.Posted | trail.EpochBegan):
            self._claims[str(type(entry).__struct_config__.tag)] += 1

    def _note(self, code: str, text: str, item: str | None) -> None:
        if len(self._problems) >= limits.TRAIL_PROBLEMS:
            self._more += 1
        else:
            self._problems.append(Problem(self._line, code, text, item))

    # ── signed documents ────────────────────────────────────────────────────────────────────

    def _on_created(self, entry: trail.Created) -> None:
        if self._manifest is not None:
            raise OrderError("a second manifest: a trail is of one session and tells it once")
        manifest = parse_manifest(entry.signed_manifest)
        if self._expected not in (None, manifest.session_id):
            raise ValidationError(
                f"the trail is of session {manifest.session_id}, not of {self._expected}",
                code="other_session",
            )
        if self._invite is not None:
            # in sessions with epochs its role key may be of a later one: see `report`
            own_key = SigningKey.from_seed(self._invite.role_seed).public
            check_invite(self._invite, manifest, own_key if manifest.has(Feature.EPOCHS) else None)
            self._keys = Keyring(manifest, self._invite)
        self._manifest = manifest
        self._state = EpochState.begin(manifest)

    def _on_joined(self, entry: trail.Joined) -> None:
        join = parse_join(entry.signed_join, self._terms, self._state)
        key = join.participant_pub
        if key in self._people:
            raise OrderError(f"the key {fingerprint(key)} joins a second time")
        if len(self._people) >= limits.TRAIL_PEOPLE:
            raise LimitError("more participants than are checked")
        if join.role is Role.RUNNER and self._terms.mode is not Mode.EXECUTE:
            raise PolicyError("a runner joins a session without jobs")
        if join.role in self._revoked:
            raise _Contradiction(f"a {join.role} joins, whose role the relay says was revoked")
        self._people[key] = _Person(join.cert, join.display_name, join.kind)

    def _on_epoch(self, entry: trail.EpochBegan) -> None:
        epoch = parse_epoch(entry.signed_epoch, self._terms, self._state)
        if self._keys is not None:
            self._keys.learn(epoch)
        self._state = self._state.after(epoch)
        if epoch.role_pub is None:
            self._revoked.add(epoch.role)
        for person in self._people.values():
            if epoch.cuts_off(person.role, person.key):
                person.is_out = True
                person.cut_off = person.cut_off or "revoked"
        self._epochs.append(AuditedEpoch(self._line, epoch.number, epoch.role, epoch.cut_off))

    def _on_posted(self, entry: trail.Posted) -> None:
        envelope = parse_envelope(entry.envelope)
        self._about = envelope.id
        person = self._people.get(envelope.author)
        if person is None:
            raise OrderError("an item by somebody who has not joined")
        check_header_rules(self._terms, person.cert, envelope.header)
        self._state.check_number(envelope.header.epoch_number, "the item")
        verify_item_digest(envelope, b64u_decode(entry.blob_sha256, KEY_BYTES))
        seq = self._number(entry)
        is_new = self._check_new(envelope)
        if person.is_out:
            raise PolicyError(f"an item by {person.name}, whom the owner had cut off")
        if person.cut_off is not None:
            raise _Contradiction(
                f"an item by {person.name}, of whom the relay says before: {person.cut_off}"
            )
        self._check_kind(person, envelope, entry.blob_sha256)
        self._items[envelope.id] = self._line
        person.items[envelope.header.kind] += is_new
        self._link(person, seq, envelope, entry.blob_sha256, is_new=is_new)
        self._open(person, envelope, entry)

    def _number(self, entry: trail.Posted) -> int:
        """The item's number: the relay's, or, in a trail without numbers, its line."""
        if not self._items:
            self._last_seq = None if entry.seq is UNSET else -1
            if entry.seq is UNSET:
                self._chain = Chain(numbered=False, whole=self._extract is None)
                self._skip_lines()
        if (entry.seq is UNSET) != (self._last_seq is None):
            raise OrderError("some items have numbers and some have none")
        if entry.seq is UNSET or self._last_seq is None:
            return self._line
        if entry.seq <= self._last_seq:
            raise OrderError(f"item number {entry.seq} comes after number {self._last_seq}")
        self._last_seq = entry.seq
        return entry.seq

    def _skip_lines(self) -> None:
        """In a trail without numbers, where lines stand for them, the relay may have forgotten
        anything before the last line in which it says that it did."""
        if self._forgot_at:
            self._chain.skip(0, self._forgot_at)

    def _check_new(self, envelope: Envelope) -> bool:
        """Whether the item was not in the trail before. To a relay the id of a forgotten item is
        free; signed once, it counts once however often it is told."""
        line = self._items.get(envelope.id)
        if line is None:
            if len(self._items) >= limits.TRAIL_ITEMS:
                raise LimitError("more items than are checked")
            return True
        if line > self._forgot_at or stays(envelope.header):
            raise OrderError(f"an item that is in line {line} already")
        self._chain.forget(envelope.id)
        return False

    def _check_kind(self, person: _Person, envelope: Envelope, blob_sha256: str) -> None:
        if envelope.header.kind is Kind.JOB:
            self._jobs[envelope.id] = _Job(person.key, blob_sha256)
        elif envelope.header.kind is Kind.RESULT:
            self._bind(person, envelope)
        elif envelope.header.kind is Kind.EVENT:
            self._note_cancel(person, envelope)

    def _bind(self, runner: _Person, envelope: Envelope) -> None:
        """A result must answer a job of the trail, exactly as it is there, and be the only one."""
        refs = envelope.header.refs
        job = self._jobs.get(ItemId(refs[0].id)) if refs else None
        if job is None:
            raise OrderError("a result that names no job before it first among its references")
        if refs[0].blob_sha256 != job.blob_sha256:
            raise OrderError(f"a result over other bytes than those of job {refs[0].id}")
        if runner.role is not Role.RUNNER:
            raise PolicyError("results are by runners")
        if job.result is not None:
            raise OrderError(f"a second result of job {refs[0].id}; the first is {job.result}")
        if job.given_to not in (None, runner.key):
            raise _Contradiction("a result by another runner than the relay says had the job")
        terms = self._terms.job_limits
        if terms is not None and terms.approve_runners and not runner.approved:
            raise _Contradiction("a result by a runner that the relay does not say was approved")
        job.result, job.runner = envelope.id, runner.key

    def _note_cancel(self, person: _Person, envelope: Envelope) -> None:
        refs = chosen_refs(envelope.header)
        job = self._jobs.get(ItemId(refs[0].id)) if refs and self._is_here(refs[0]) else None
        if job is None or (person.role is not Role.OWNER and person.key != job.author):
            return
        if person.key not in job.cancelled_by:
            job.cancelled_by += (person.key,)

    def _link(
        self, person: _Person, seq: int, envelope: Envelope, blob_sha256: str, *, is_new: bool
    ) -> None:
        linked, gone = self._chain.linked, self._chain.counted_forgotten
        alarms = self._chain.step(seq, envelope, blob_sha256)
        for alarm in alarms:
            self._note(alarm.kind, str(alarm), alarm.item)
        if is_new and not alarms and self._chain.counted_forgotten == gone:
            person.linked += self._chain.linked - linked

    def _open(self, person: _Person, envelope: Envelope, entry: trail.Posted) -> None:
        """Learns what the owner's event says, where the trail has it and the key is given."""
        blob = trail.entry_blob(entry)
        if blob is None:
            return
        if len(blob) != envelope.blob_size or sha256(blob) != b64u_decode(entry.blob_sha256):
            raise ValidationError("the bytes beside the item are not those its author signed")
        if self._keys is None or person.role is not Role.OWNER:
            return
        try:
            key = self._keys.of(envelope.header.epoch_number)
        except DecryptError:
            return  # the link that was given does not reach so far
        meta, _ = open_checked(self._terms, person.cert, envelope, blob, key)
        match meta:
            case RunnerApprove(participant_pub=about):
                what = "approved"
            case RunnerReject(participant_pub=about):
                what = "rejected"
            case JobCancel(job=job) if self._is_here(job):
                what, about = "cancelled", job.id
            case _:
                return
        self._decisions.append(Decision(self._line, envelope.id, what, about))

    def _is_here(self, ref: ItemRef) -> bool:
        """Whether a job is in the trail with just these bytes."""
        job = self._jobs.get(ItemId(ref.id))
        return job is not None and job.blob_sha256 == ref.blob_sha256

    # ── the relay's word ────────────────────────────────────────────────────────────────────

    def _on_of_both(self, entry: trail.Acked | trail.Wanted | trail.Reseeded) -> None:
        self._person(entry.participant_pub)
        self._know(entry.item)

    def _on_evicted(self, entry: trail.Evicted) -> None:
        self._know(entry.item)

    def _on_left(self, entry: trail.Left) -> None:
        self._cut_off(self._person(entry.participant_pub), "left")

    def _on_approved(self, entry: trail.Approved) -> None:
        person = self._person(entry.participant_pub)
        if person.role is not Role.RUNNER:
            raise _Contradiction(f"the relay says that {person.name} was approved, no runner")
        person.approved = True

    def _on_rejected(self, entry: trail.Rejected) -> None:
        person = self._person(entry.participant_pub)
        if person.role is not Role.RUNNER:
            raise _Contradiction(f"the relay says that {person.name} was rejected, no runner")
        self._cut_off(person, "rejected")

    def _on_revoked(self, entry: trail.Revoked) -> None:
        if entry.role is Role.OWNER or entry.role in self._revoked:
            raise _Contradiction(f"the relay says that the role {entry.role} was revoked again")
        self._revoked.add(entry.role)
        for person in self._people.values():
            if person.role is entry.role and person.cut_off is None:
                person.cut_off = "revoked"

    def _cut_off(self, person: _Person, word: str) -> None:
        person.approved = person.approved and word != "rejected"
        person.cut_off = word

    def _on_job(self, entry: trail.OfJob) -> None:
        job = self._job(entry)
        if job is None:
            return
        runner = None if entry.participant_pub is None else self._person(entry.participant_pub)
        if runner is not None and runner.role is not Role.RUNNER:
            raise _Contradiction("the relay says that somebody had a job who is no runner")
        job.given_to = None if runner is None else runner.key
        job.state = str(type(entry).__struct_config__.tag)
        job.reason = entry.reason

    def _on_finished(self, entry: trail.Finished) -> None:
        self._on_job(entry)
        job = self._jobs.get(ItemId(entry.job))
        if job is not None and (job.result is None or job.runner != entry.participant_pub):
            raise _Contradiction("the relay says that a job is finished whose result is not here")

    def _on_cancel(self, entry: trail.CancelAsked) -> None:
        job = self._job(entry)
        person = self._person(entry.participant_pub or "")
        if job is not None and person.role is not Role.OWNER and person.key != job.author:
            raise _Contradiction("the relay says that a job was cancelled by somebody who may not")

    def _on_forgotten(self, entry: trail.Forgotten) -> None:
        if not self._terms.has(Feature.HISTORY):
            raise _Contradiction("the relay says it forgot jobs, in a session that keeps all")
        self._forgot_at = self._line
        self._forgotten += len(entry.jobs)
        for first, last in entry.ranges:
            self._chain.skip(first, last)
        if self._items and self._last_seq is None:
            self._skip_lines()

    def _on_extract(self, entry: trail.Extract) -> None:
        if self._extract is not None or self._people or self._items:
            raise OrderError("what the trail is an extract of is said right after its manifest")
        if not self._takes_extracts:
            raise OrderError(
                f"the trail is an extract that tells of {len(entry.jobs)} job(s) alone; it is "
                "taken as one only where that is asked for",
                code="extract",
            )
        self._extract = len(entry.jobs)
        self._chain = Chain(whole=False)  # what is not here is told elsewhere

    def _on_closed(self, entry: trail.Closed) -> None:
        """Nothing follows from it."""

    # ── helpers ─────────────────────────────────────────────────────────────────────────────

    @property
    def _terms(self) -> Manifest:
        assert self._manifest is not None  # `_take` sees to it
        return self._manifest

    def _person(self, key: str) -> _Person:
        found = self._people.get(PublicKey(key))
        if found is None:
            raise _Contradiction("the relay speaks of somebody who has not joined")
        return found

    def _know(self, item: str) -> None:
        self._about = item
        if ItemId(item) not in self._items and not self._forgot_at:
            raise _Contradiction("the relay speaks of an item that is not here")

    def _job(self, entry: trail.OfJob) -> _Job | None:
        """The job an entry speaks of; None for one that may have been forgotten."""
        self._about = entry.job
        job = self._jobs.get(ItemId(entry.job))
        if job is None and not self._forgot_at:
            raise _Contradiction("the relay speaks of a job that is not here")
        return job


def _person_of(person: _Person) -> AuditedPerson:
    return AuditedPerson(
        participant_pub=person.key,
        fingerprint=fingerprint(person.key),
        display_name=person.name,
        role=person.role,
        kind=person.kind,
        items=dict(person.items),
        linked=person.linked,
        cut_off=person.cut_off,
    )


def _job_of(job_id: ItemId, job: _Job) -> AuditedJob:
    return AuditedJob(
        job=job_id,
        author=job.author,
        result=job.result,
        runner=job.runner,
        cancelled_by=job.cancelled_by,
        state=job.state,
        reason=job.reason,
    )


_HANDLERS: Final[dict[type, Callable[[TrailCheck, Any], None]]] = {
    trail.Joined: TrailCheck._on_joined,
    trail.Posted: TrailCheck._on_posted,
    trail.Acked: TrailCheck._on_of_both,
    trail.Wanted: TrailCheck._on_of_both,
    trail.Reseeded: TrailCheck._on_of_both,
    trail.Evicted: TrailCheck._on_evicted,
    trail.Left: TrailCheck._on_left,
    trail.Approved: TrailCheck._on_approved,
    trail.Rejected: TrailCheck._on_rejected,
    trail.Revoked: TrailCheck._on_revoked,
    trail.EpochBegan: TrailCheck._on_epoch,
    trail.Queued: TrailCheck._on_job,
    trail.Assigned: TrailCheck._on_job,
    trail.Claimed: TrailCheck._on_job,
    trail.Failed: TrailCheck._on_job,
    trail.Finished: TrailCheck._on_finished,
    trail.CancelAsked: TrailCheck._on_cancel,
    trail.Forgotten: TrailCheck._on_forgotten,
    trail.Extract: TrailCheck._on_extract,
    trail.Closed: TrailCheck._on_closed,
}
