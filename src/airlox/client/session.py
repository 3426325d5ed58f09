"""`Session`: every verb of a participant, implemented once, blocking.

Safe to share between threads. What is sent is checked whole before anything leaves; what arrives
is verified before it is handed out. Nothing here knows a rule of the protocol: those are in
`protocol/`; how bytes travel is in the modules this one stands on.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from airlox.client import membership as members
from airlox.client import shown, terms
from airlox.client.cache import default_root
from airlox.client.core import Core
from airlox.client.deadline import Deadline
from airlox.client.items import ItemStream
from airlox.client.membership import Membership, Profile
from airlox.client.progress import OnProgress
from airlox.client.recipients import Address, ReplyTo, To, address
from airlox.client.references import Refs, item_refs, words
from airlox.client.shown import Delivery, ParticipantInfo, Runner
from airlox.client.timeline import ADDRESSED_KINDS, ALL_KINDS, STANDING_KINDS
from airlox.errors import ProtocolError, SessionClosed, UsageError
from airlox.protocol import limits
from airlox.protocol.cert import ClientKind
from airlox.protocol.chain import Alarm
from airlox.protocol.encoding import KEY_BYTES, PublicKey
from airlox.protocol.invite import parse_base_url, parse_invite
from airlox.protocol.item import ItemRef, Kind
from airlox.protocol.job import PythonJob, ShellJob
from airlox.protocol.keys import MEMBER_ROLES, Role
from airlox.protocol.manifest import ALL_TYPES, Feature, Manifest
from airlox.protocol.payload import File, RunnerApprove, RunnerReject, Text
from airlox.protocol.policy import check_may, check_role_may_post
from airlox.protocol.view import Item, Record
from airlox.safefs import read_bounded

if TYPE_CHECKING:
    from typing import Unpack

    from airlox.client.answers import RunnerEntry
    from airlox.client.attachments import Attachment
    from airlox.client.jobs import Job
    from airlox.client.options import JobOptions
    from airlox.client.submission import Submission
    from airlox.client.transfer import OnGuess, TransferOffer, Verify

AnyPath = str | os.PathLike[str]

WARNINGS_KEPT: Final = 100
DELIVERIES: Final = 20
"""Newest own items whose delivery is told where no number is given."""


class Session:
    """One participant in one session. Made by `create` or `join`; ends with `disconnect`.

    `closed` says why the session is over for this participant, once that is known. Warnings (a
    clock far off, a line that broke, an item that was refused) go to `on_warning`, and the last
    hundred are kept in `warnings`. `on_progress` hears how far long uploads and downloads are, in
    the thread that waits for them.
    """

    def __init__(self, core: Core, warnings: deque[str]) -> None:
        """For `create` and `join`; programs use those."""
        self._core = core
        self._handed = -1
        self.warnings = warnings

    # -- coming and going --------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        relay: str,
        *,
        mode: str = "relay",
        ttl: int | float | str | None = "1h",
        allowed_types: Iterable[str] = ALL_TYPES,
        max_item_bytes: int = limits.DEFAULT_ITEM_BYTES,
        job_limits: Mapping[str, Any] | None = None,
        features: Iterable[str] | None = None,
        insecure_http_host: str | None = None,
        display_name: str = "owner",
        description: str | None = None,
        kind: str = "sdk",
        cache_dir: AnyPath | None = None,
        on_warning: Callable[[str], None] | None = None,
        on_progress: OnProgress | None = None,
    ) -> Self:
        """Create a session on `relay` and join it as its owner.

        `ttl` is seconds or a duration such as "30m", at most 30 days; None or "never" lasts until
        it is closed, where the relay allows it. `job_limits` belong to mode "execute"; what is
        left out has the defaults of `terms.DEFAULT_LIMITS`. Kinds of jobs, version pins or
        `features` make a full session, which 0.1.0 clients cannot join. `insecure_http_host` lets
        participants reach the relay under this one name by plain http, such as a service inside a
        cluster; whoever is on the way then sees what the relay sees, tokens included.

        Raises UsageError, ValidationError, RelayError, ConnectionLost, StorageError.
        """
        seed = os.urandom(KEY_BYTES)
        manifest = terms.new_manifest(
            seed,
            mode=mode,
            created_at_ms=members.now_ms(),
            ttl=ttl,
            allowed_types=allowed_types,
            max_item_bytes=max_item_bytes,
            job_limits=job_limits,
            features=features,
            insecure_http_host=insecure_http_host,
        )
        profile = Profile(display_name, terms.word_of(ClientKind, kind, "kind"), description)

        def make(root: str, warn: Callable[[str], None]) -> Membership:
            base = parse_base_url(relay, plain_http=insecure_http_host is not None)
            return members.create(base, seed, manifest, profile, cache_root=root, on_warning=warn)

        return cls._open(make, cache_dir, on_warning, on_progress)

    @classmethod
    def join(
        cls,
        invite_url: str,
        *,
        display_name: str = "agent",
        description: str | None = None,
        kind: str = "sdk",
        cache_dir: AnyPath | None = None,
        on_warning: Callable[[str], None] | None = None,
        on_progress: OnProgress | None = None,
    ) -> Self:
        """Join with an invite link.

        When the cache holds an identity for the session and role, this goes on as that participant
        and asks nothing of the relay; name and description are those of the first join. A session
        that the relay no longer has stays readable from the cache.

        Raises ValidationError for a bad link, SessionClosed when the relay has no such session,
        RelayError, ConnectionLost, StorageError.
        """
        invite = parse_invite(invite_url)
        profile = Profile(display_name, terms.word_of(ClientKind, kind, "kind"), description)

        def make(root: str, warn: Callable[[str], None]) -> Membership:
            return members.enter(invite, profile, cache_root=root, on_warning=warn)

        return cls._open(make, cache_dir, on_warning, on_progress)

    @classmethod
    def _open(
        cls,
        make: Callable[[str, Callable[[str], None]], Membership],
        cache_dir: AnyPath | None,
        on_warning: Callable[[str], None] | None,
        on_progress: OnProgress | None,
    ) -> Self:
        warnings: deque[str] = deque(maxlen=WARNINGS_KEPT)

        def warn(text: str) -> None:
            warnings.append(text)
            if on_warning is not None:
                on_warning(text)

        root = default_root() if cache_dir is None else os.fspath(cache_dir)
        membership = make(root, warn)
        membership.api.on_progress = on_progress
        return cls(Core(membership, on_warning=warn), warnings)

    def disconnect(self) -> None:
        """End every call, stream and wait of this object; the session itself is untouched."""
        self._core.disconnect()

    def leave(self, *, delete_cache: bool = False) -> None:
        """Leave the session for good: the token stops working, nothing is kept for us any more."""
        self._core.api.leave()
        self._core.timeline.end(SessionClosed("this participant left", code="cut_off"))
        if delete_cache:
            self._core.membership.cache.delete()

    def close(self) -> None:
        """End and purge the session on the relay (owner only)."""
        check_may(self._role, Role.OWNER, what="close the session")
        self._core.api.close_session()
        self._core.timeline.end(SessionClosed("the owner closed the session", code="session_gone"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.disconnect()

    def __repr__(self) -> str:
        return f"<Session {self.session_id} as {self.role}>"

    # -- facts -------------------------------------------------------------------------------

    @property
    def session_id(self) -> str:
        return self._core.manifest.session_id

    @property
    def relay(self) -> str:
        """Base URL of the relay."""
        return self._core.membership.invite.base_url

    @property
    def role(self) -> str:
        """`owner`, `sender`, `observer` or `runner`."""
        return self._role.value

    @property
    def participant_pub(self) -> str:
        """The key of this participant."""
        return self._core.membership.key.public

    @property
    def joined_seq(self) -> int:
        """Number of the event by which this participant joined, -1 until it is known here."""
        me = self._core.membership.key.public
        known = self._core.timeline.read(lambda view: view.participants.get(me))
        return -1 if known is None else known.seq

    @property
    def manifest(self) -> Manifest:
        """The verified terms of the session."""
        return self._core.manifest

    @property
    def expires_at_ms(self) -> int | None:
        return self._core.manifest.expires_at_ms

    @property
    def closed(self) -> str | None:
        """Why the session is over for this participant, as far as known; else None."""
        ended = self._core.timeline.ended
        return None if ended is None else ended.message

    @property
    def invites(self) -> dict[str, str]:
        """Invite links by role (owner only). Whoever holds a link holds its role.

        A session without jobs has no use for a runner, and so no link for one. In sessions with
        `epochs` roles that were revoked have none, and of links that were replaced the new ones are
        here once news were fetched.
        """
        check_may(self._role, Role.OWNER, what="hand out invites")
        me = self._core.membership
        execute = self._core.manifest.job_limits is not None
        roles = [role for role in MEMBER_ROLES if execute or role is not Role.RUNNER]
        return {
            role.value: me.keys.link(me.invite.base_url, role).url()
            for role in (Role.OWNER, *roles)
            if role in me.keys.state.role_keys
        }

    def transfer_code(
        self,
        role: str,
        *,
        park: bool = False,
        verify: Verify | None = None,
        on_guess: OnGuess | None = None,
    ) -> TransferOffer:
        """Offer the invite of a role as a code such as `417-guitar-orbit` (owner only).

        Whoever gives it to `airlox.redeem` within ten minutes has the invite, once `wait` of the
        handle has answered. With `park` nobody need wait: the code then has six words, because
        the relay keeps the sealed invite. `verify` is shown five words and says whether the other
        end shows the same; `on_guess` hears of wrong guesses and how many are left, three being
        the end of the code. Both are called by the thread that waits.

        Raises UsageError for a role that has no invite here, RelayError, ConnectionLost.
        """
        from airlox.client.transfer import offer  # only who hands over invites pays for it

        if self.manifest.has(Feature.EPOCHS):
            self._core.timeline.sync(())  # another device of the owner may have replaced a link
        link = self.invites.get(role)
        if link is None:
            known = ", ".join(name for name in self.invites if name != Role.OWNER)
            raise UsageError(f"no invite for {role[:40]!r} here", hint=f"one of {known}")
        invite = parse_invite(link)
        return offer(self._core.api, invite, park=park, verify=verify, on_guess=on_guess)

    def participants(self, *, sync: bool = True) -> list[ParticipantInfo]:
        """Everyone who joined, in that order. Without `sync`, as far as known here."""
        if sync:
            self._core.timeline.sync(())
        return self._core.timeline.read(
            lambda view: [shown.participant_info(p) for p in view.participants.values()]
        )

    def alarms(self, *, sync: bool = True) -> list[Alarm]:
        """Signs that the relay drops, moves or repeats items, by number; at most a hundred.

        Each is also a warning, once, when it shows. Items of clients that do not chain what they
        post, such as those of 0.1.0, bring up none but repetitions.
        """
        if sync:
            self._core.timeline.sync(())
        return list(self._core.timeline.alarms())

    # -- sending -----------------------------------------------------------------------------

    def send_text(
        self,
        text: str,
        *,
        to: To | None = None,
        reply_to: ReplyTo | None = None,
        refs: Refs = (),
    ) -> ItemRef:
        """Post a message (Markdown). Returns once the relay has it for good.

        `to` names who should act on it: participants by name, key or fingerprint, or a role such
        as "role:sender"; one or several. Everybody reads it all the same. `reply_to` is the item
        it answers, whose author is woken too. Both are settled before anything leaves. Clients of
        0.1.0 refuse a message that has either; where that is known of a recipient it is warned of.

        Raises RecipientError, UsageError, PolicyError, ValidationError, RelayError,
        ConnectionLost, SessionClosed.
        """
        given = self._address(Kind.TEXT, to, reply_to)
        meta = Text(text=text, to=given.to, reply_to=given.reply_to)
        return self._post(meta, refs=item_refs(refs))

    def send_file(
        self,
        src: AnyPath | bytes,
        *,
        name: str | None = None,
        to: To | None = None,
        reply_to: ReplyTo | None = None,
        refs: Refs = (),
    ) -> ItemRef:
        """Post a .py, .md, .zip, .png, .jpg or .webp file, given by path or as bytes with a name.

        Images are encoded anew, which removes their metadata. `to` and `reply_to` as in
        `send_text`. Raises as that does, and UsageError for other types, StorageError for a file
        that cannot be read.
        """
        file = _attachment(src, name, self._core.manifest.max_item_bytes)
        given = self._address(Kind.FILE, to, reply_to)
        meta = File(mime=file.mime, name=file.name, to=given.to, reply_to=given.reply_to)
        return self._post(meta, file.body, subkind=file.subkind, refs=item_refs(refs))

    def _address(self, kind: Kind, to: To | None, reply_to: ReplyTo | None) -> Address:
        if to is None and reply_to is None:
            return Address()
        self._core.check_open()
        check_role_may_post(self._role, kind)
        return address(self._core, to, reply_to)

    def _post(
        self,
        meta: Any,
        body: bytes = b"",
        *,
        subkind: str | None = None,
        refs: tuple[ItemRef, ...] = (),
    ) -> ItemRef:
        self._core.check_open()
        sealed = self._core.outbox.seal(meta, body, subkind=subkind, refs=refs)
        return self._core.outbox.post(sealed)

    def delivery(self, limit: int = DELIVERIES) -> list[Delivery]:
        """Whom the newest `limit` of our own items have reached, oldest first; see `Delivery`.

        Raises RelayError (`no_delivery` from a relay that does not tell), ConnectionLost,
        SessionClosed.
        """
        if not 1 <= limit <= limits.DELIVERIES:
            raise UsageError(f"the delivery of 1 to {limits.DELIVERIES} items can be asked for")
        self._core.timeline.sync(())
        self._core.check_open()
        self._core.timeline.open_held(ADDRESSED_KINDS)
        entries = self._core.api.delivery(limit)
        me = self._core.membership.key.public
        return self._core.timeline.read(lambda view: shown.deliveries(view, entries, me))

    # -- reading -----------------------------------------------------------------------------

    def sync(self) -> list[Item]:
        """Fetch news, and what could not be had before. Returns the items that became available.

        After the session's end this gives what the cache holds. Raises RelayError,
        ConnectionLost, StorageError.
        """
        known = self._core.timeline.read(lambda view: {item.id for item in view.items()})
        self._core.timeline.sync(ALL_KINDS)
        if self._core.timeline.ended is None:
            self._core.timeline.want_missing(self._core.api)
        return [item for item in self._core.timeline.items_after(-1) if item.id not in known]

    def items(self) -> list[Item]:
        """Every item that can be had, oldest first; after the session's end from the cache."""
        self._core.timeline.recall()
        self.sync()
        return list(self._core.timeline.items_after(-1))

    def records(self) -> list[Record]:
        """Every announced item with its status, also those refused or not to be had; no sync."""
        self._core.timeline.recall()
        return self._core.timeline.records()

    def item(self, item_id: str) -> Item | None:
        """The item of an id, fetched where needed; None when it is unknown or was refused."""
        found = self._core.timeline.find(item_id)
        if found is None and self._core.timeline.ended is None:
            self._core.timeline.sync(())
            found = self._core.timeline.find(item_id)
        return found

    def hops(self, item: Item) -> int:
        """How many posts in a row agents wrote up to this item, along the replies, as far as they
        are known here; 0 for one that a person wrote. See `protocol/addressing.py`.
        """
        return self._core.timeline.read(lambda view: view.hops(item))

    def stream(
        self, timeout: float | None = None, *, history: bool = False, after: int | None = None
    ) -> ItemStream:
        """Items as they arrive, own ones included, each once for this object.

        Starts with what arrived since this object was made and was not handed out yet; with
        `history` from the beginning; with `after` behind the item of that number, whatever was
        handed out. Ends after `timeout` seconds, when the session ends (see
        `closed`), or when closed or disconnected from any thread. Lost connections are mended
        meanwhile.
        """
        deadline = Deadline.after(timeout)
        if after is not None:
            return ItemStream(self._core, after=after, deadline=deadline, handed=lambda seq: None)
        if history:
            self._core.timeline.recall()
        start = -1 if history else max(self._handed, self._core.timeline.first_new_seq - 1)
        return ItemStream(self._core, after=start, deadline=deadline, handed=self._note_handed)

    def _note_handed(self, seq: int) -> None:
        self._handed = max(self._handed, seq)

    # -- runners -----------------------------------------------------------------------------

    def runners(self) -> list[Runner]:
        """Runners of the session; see `Runner` for what was signed and what the relay says."""
        self._core.timeline.sync(STANDING_KINDS)
        entries: dict[PublicKey, RunnerEntry] = {}
        if self._core.timeline.ended is None:
            joined = self._core.timeline.read(lambda view: list(view.participants.values()))
            known = {each.join.document: each.public for each in joined}
            for entry in self._core.api.runners():
                if entry.signed_join in known:
                    entries[known[entry.signed_join]] = entry
        return self._core.timeline.read(lambda view: shown.runners_of(view, entries))

    def approve_runner(self, runner: Runner | str) -> Runner:
        """Let exactly this runner take jobs (owner only). Named by Runner, key or name.

        Raises UsageError when a name means none or several.
        """
        check_may(self._role, Role.OWNER, what="approve runners")
        chosen = shown.choose_runner(self.runners(), runner)
        if chosen.rejected:
            raise UsageError(
                f"runner {chosen.name} was rejected, which is final",
                code="runner_rejected",
                hint="start the runner again: it joins with a fresh key",
            )
        # in this order: a runner that waits for approval is no recipient of its approval's blob
        self._core.api.approve(chosen.participant_pub)
        self._post(RunnerApprove(participant_pub=chosen.participant_pub))
        return msgspec.structs.replace(chosen, approved=True)

    def reject_runner(self, runner: Runner | str, reason: str | None = None) -> Runner:
        """Turn a runner away, for good (owner only). Its token stops working."""
        check_may(self._role, Role.OWNER, what="reject runners")
        chosen = shown.choose_runner(self.runners(), runner)
        self._post(RunnerReject(participant_pub=chosen.participant_pub, reason=reason))
        self._core.api.reject(chosen.participant_pub)
        return msgspec.structs.replace(chosen, approved=False, rejected=True)

    def revoke(self, who: str) -> None:
        """Cut off everyone of a role and void its invite, or one participant, named by name, key or
        fingerprint (owner only).

        With the feature `epochs` everything posted from then on is under a new key, which those
        who were cut off do not get, even from the relay; of a participant's role the link is
        replaced (see `invites`), and the others of the role go on. Without it a role alone can be
        revoked, and whoever kept the link can read what a relay gives them. What they had read
        stays readable to them in either case.
        """
        check_may(self._role, Role.OWNER, what="revoke roles and participants")
        from airlox.client.revoking import revoke  # rarely needed

        revoke(self._core, who)

    def audit(self) -> list[dict[str, Any]]:
        """The trail the relay kept, oldest first (owner or observer), with the signed material.

        `airlox.verify_audit` says what it proves.
        """
        check_may(self._role, Role.OWNER, Role.OBSERVER, what="read the audit trail")
        records = []
        for number, line in enumerate(self._core.api.audit().splitlines(), 1):
            if not line.strip():
                continue
            try:
                records.append(msgspec.json.decode(line, type=dict[str, Any]))
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                raise ProtocolError(f"line {number} of the audit trail is not JSON") from None
        return records

    # -- jobs --------------------------------------------------------------------------------

    def run_python(
        self,
        code: str,
        *,
        filename: str = "main.py",
        requirements: Iterable[str] = (),
        **options: Unpack[JobOptions],
    ) -> Job:
        """Send Python to a runner and return its job at once. For `options` see `JobOptions`.

        Everything is checked before it is sent. Raises PolicyError, ValidationError, UsageError,
        JobRefused when no runner takes it, RelayError, ConnectionLost.
        """
        submission = self._submission(options)
        return submission.python(
            code, filename=filename, requirements=words(requirements, "requirements")
        )

    def run_shell(self, command: str | Sequence[str], **options: Unpack[JobOptions]) -> Job:
        """Send a shell job: a script as text, or a command as words. See `run_python`.

        Only in sessions whose `kinds` have shell.
        """
        return self._submission(options).shell(command)

    def run_file(self, path: AnyPath, **options: Any) -> Job:
        """`run_python` with a local .py file, `run_shell` with any other script."""
        text, name = _read_script(path)
        if name.lower().endswith(".py"):
            return self.run_python(text, filename=options.pop("filename", name), **options)
        return self.run_shell(text, **options)

    def job(self, job_id: str) -> Job:
        """The handle of a job posted before, by anyone. Raises UsageError when it is unknown."""
        item = self.item(job_id)
        if item is None and (forgotten := self._core.timeline.forgotten(job_id)) is not None:
            raise forgotten
        if item is None or item.kind is not Kind.JOB:
            raise UsageError(
                f"no job {job_id[:40]!r} in this session",
                code="no_such_job",
                hint="list them with: airlox job ls",
            )
        return _handle(self._core, item)

    def jobs(self) -> list[Job]:
        """Every job of the session, oldest first."""
        self._core.timeline.recall()
        self._core.timeline.sync(STANDING_KINDS | {Kind.JOB, Kind.RESULT})
        items = self._core.timeline.items_after(-1)
        return [_handle(self._core, item) for item in items if item.kind is Kind.JOB]

    def _submission(self, options: JobOptions) -> Submission:
        from airlox.client.submission import JobOrder, Submission  # only who runs jobs pays for it

        try:
            order = JobOrder(**options)
        except TypeError as error:
            raise UsageError(f"a job has no such option: {error}") from None
        return Submission(self._core, order, self.runners)

    @property
    def _role(self) -> Role:
        return self._core.membership.role


def _handle(core: Core, item: Item) -> Job:
    from airlox.client.jobs import Job

    assert isinstance(item.meta, PythonJob | ShellJob)  # the view checked it against the kind
    return Job(core, item.ref, item.meta)


def _attachment(src: AnyPath | bytes, name: str | None, most: int) -> Attachment:
    """A file ready to be sent, from a path or from bytes with a name."""
    from airlox.client.attachments import Attachment, classify, load_attachment, sanitize_image

    if not isinstance(src, bytes):
        if name is None:
            return load_attachment(src, most)
        src = read_bounded(os.path.realpath(src), most)
    if name is None:
        raise UsageError("bytes need a name", hint="give name='report.md'")
    subkind, mime = classify(name)
    if subkind == "image":
        mime, src = sanitize_image(src)
    return Attachment(name, subkind, mime, src)


def _read_script(path: AnyPath) -> tuple[str, str]:
    data = read_bounded(os.path.realpath(path), limits.CODE_BYTES)
    try:
        return data.decode(), os.path.basename(os.fspath(path))
    except UnicodeDecodeError:
        raise UsageError(f"{os.fspath(path)} is not text in UTF-8") from None
