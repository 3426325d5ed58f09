"""What the relay accepts and why, free of HTTP: sessions, participants, tokens.

Posting is in items.py, jobs in jobs.py, live output in live.py, trees in packs.py; all of them
work on the `Core` made here. The rules that hold everywhere:

- Nothing is acknowledged before its record is durable, and nothing changes in memory before
  that either: `commit` writes, then applies, then wakes the streams, in the order of the disk.
- Whatever changes participants or jobs holds the session's lock over its check and its commit.
- A session that has ended is gone at once: `session` answers 404 from then on.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import secrets
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from airlox.errors import AirloxError, ProtocolError
from airlox.protocol.cert import Join, parse_join
from airlox.protocol.digest import sha256
from airlox.protocol.encoding import PublicKey, SessionId, b64u_decode, b64u_encode
from airlox.protocol.keys import Role
from airlox.protocol.manifest import Feature, Manifest, Mode, parse_manifest
from airlox.protocol.sse import encode_event
from airlox.protocol.wire import EventKind
from airlox.relay import records
from airlox.relay.addresses import Origin
from airlox.relay.clock import Clock
from airlox.relay.config import Config, setting_of
from airlox.relay.entities import Participant
from airlox.relay.hub import Hub
from airlox.relay.quotas import Quotas
from airlox.relay.records import AnyRecord
from airlox.relay.refusals import Refusal, refuse
from airlox.relay.state import Session
from airlox.relay.store.base import RELAY_LOG, Pending, Store

log = logging.getLogger("airlox.relay")

TOKEN_BYTES = 32
ENDED = 100_000
"""Closed sessions that are remembered."""
ENDED_SLACK = 1_000
LONG_DOCUMENT = 64 << 10
"""Characters of a manifest that takes more than a few milliseconds to check."""


class Core:
    """The sessions of a relay, and how a change of one becomes durable and visible."""

    def __init__(self, config: Config, store: Store, clock: Clock) -> None:
        self.config = config
        self.store = store
        self.clock = clock
        self.hub = Hub(config, clock)
        self.quotas = Quotas(config, clock)
        self.sessions: dict[SessionId, Session] = {}
        self.stirred = Stirred()
        self._creating: set[SessionId] = set()
        self._unreadable: set[SessionId] = set()
        self._ended: dict[str, int] = {}
        """Closed sessions that their manifest, known to many, would open again; until when. The
        one that was closed first comes first."""
        self._ended_written = 0
        """Entries of the list in the store."""

    # ── start ────────────────────────────────────────────────────────────────────────────────

    async def load(self) -> None:
        """Reads every session from the store. One that cannot be read is logged and left alone."""
        await self._load_ended()
        for sid in self.store.sessions():
            session = Session(sid, self.clock, self.quotas.keep_session())
            try:
                for entry in await self.store.read(sid):
                    session.apply(records.decode(entry))
                    session.record_bytes += len(entry)
                manifest = session.manifest
            except (AirloxError, msgspec.MsgspecError, KeyError, AttributeError):
                log.exception("a session cannot be read", extra={"session": sid})
                self._unreadable.add(sid)
                session.place.give()
                continue
            if self._is_over(manifest):
                session.place.give()
                await self.store.purge(sid)
                continue
            session.dropped.clear()
            await self.store.retain(sid, session.blob_names())
            self.sessions[sid] = session

    async def _load_ended(self) -> None:
        """Reads which sessions were closed lately, and writes the list anew without old ones."""
        entries = [records.decode(entry) for entry in await self.store.read(RELAY_LOG)]
        known = [record for record in entries if isinstance(record, records.Ended)]
        self._ended = {record.session: record.until_ms for record in known}
        self.forget_ended()
        self._ended_written = len(self._ended)
        recent = [record for record in known if record.session in self._ended]
        if len(recent) < len(known):
            purged = self.store.purge(RELAY_LOG)
            if recent:
                await self.store.append(RELAY_LOG, [records.encode(each) for each in recent])
            await purged

    def forget_ended(self) -> None:
        """Drops closed sessions whose manifests are too old by now to open anything."""
        now_ms = self.clock.now_ms()
        self._ended = {sid: until for sid, until in self._ended.items() if until > now_ms}

    async def tidy_ended(self) -> None:
        """Writes the list anew once it is mostly of sessions that were forgotten: whoever opens
        and closes sessions all day is not to fill the disk. Raises StorageError."""
        self.forget_ended()
        if self._ended_written < 2 * len(self._ended) + ENDED_SLACK:
            return
        known = frozenset(self._ended)

        def rewrite(entries: list[bytes]) -> list[bytes]:
            """In another thread: touches nothing but the entries."""
            return [entry for entry in entries if _session_of(entry) in known]

        self._ended_written = len(known)
        await self.store.rewrite(RELAY_LOG, rewrite)

    # ── finding ──────────────────────────────────────────────────────────────────────────────

    def session(self, sid: str) -> Session:
        """Raises Refusal `not_found`, also for a session past its time."""
        session = self.sessions.get(SessionId(sid))
        if session is None or session.is_closed or self._is_over(session.manifest):
            raise Refusal("not_found", "no such session")
        return session

    def authenticate(self, session: Session, token: str | None) -> Participant:
        """The participant a token belongs to. Raises Refusal `unauthorized`."""
        if token:
            digest = sha256(token.encode())
            found = session.by_token.get(digest)
            if (
                found is not None
                and found.is_here
                and hmac.compare_digest(found.token_sha256, digest)
            ):
                return found
        raise Refusal("unauthorized", "no token, or one that is not valid in this session")

    def _is_over(self, manifest: Manifest) -> bool:
        expires = manifest.expires_at_ms
        return expires is not None and self.clock.now_ms() >= expires

    # ── changing ─────────────────────────────────────────────────────────────────────────────

    def commit(
        self,
        session: Session,
        changes: Sequence[AnyRecord],
        blob: tuple[str, bytes] | None = None,
    ) -> Pending:
        """Writes records as one. When the future resolves they are durable, applied and told."""
        if session.is_closed:
            raise Refusal("not_found", "the session has ended")
        entries = [records.encode(each) for each in changes]
        then = functools.partial(self._committed, session, changes, sum(map(len, entries)))
        return self.store.append(session.id, entries, blob, then)

    def _committed(self, session: Session, changes: Iterable[AnyRecord], size: int) -> None:
        session.record_bytes += size
        for record in changes:
            session.apply(record)
        for name in session.dropped:
            self.store.drop_blob(session.id, name)
        session.dropped.clear()
        if any(isinstance(record, _STIRRING) for record in changes):
            self.stir(session)
        self.hub.ring(session.id)

    def stir(self, session: Session) -> None:
        """Something changed that may let jobs go that wait."""
        if session.waiting:
            self.stirred.add(session.id)

    async def write(self, session: Session, *changes: AnyRecord) -> None:
        """`commit`, awaited."""
        await self.commit(session, changes)

    # ── sessions ─────────────────────────────────────────────────────────────────────────────

    async def create(self, document: str, origin: Origin) -> SessionId:
        """Opens the session of a signed manifest. Raises Refusal."""
        self.quotas.check_disk()
        try:
            if len(document) > LONG_DOCUMENT:
                manifest = await asyncio.to_thread(parse_manifest, document)
            else:
                manifest = parse_manifest(document)
        except ProtocolError as error:
            raise refuse("invalid_manifest", error) from None
        sid = manifest.session_id
        self._check_terms(manifest)
        if self._ended.get(sid, 0) > self.clock.now_ms():
            raise Refusal("gone", "the session was closed")
        if sid in self.sessions or sid in self._creating or sid in self._unreadable:
            raise Refusal("exists", "the session exists already")
        session = Session(sid, self.clock, self.quotas.take_session(origin))
        record = records.Created(self.clock.now_ms(), document)
        self._creating.add(sid)
        session.checked[document] = manifest
        try:
            await self.commit(session, [record])
            self.sessions[sid] = session
        except BaseException:
            session.place.give()
            raise
        finally:
            self._creating.discard(sid)
            session.checked.clear()
        log.info("session created", extra={"session": sid, "mode": str(manifest.mode)})
        return sid

    def _check_terms(self, manifest: Manifest) -> None:
        config, now_ms = self.config, self.clock.now_ms()
        if manifest.max_item_bytes > config.max_item_bytes:
            most = {"max_item_bytes": config.max_item_bytes}
            raise self._too_much("policy", "items this large", "max_item_bytes", most)
        longest = {"lifetime_ms": config.max_lifetime_s * 1000}
        if manifest.expires_at_ms is None:
            if not config.allow_never_expires:
                raise self._too_much(
                    "never_expires_not_allowed",
                    "sessions without an end",
                    "allow_never_expires",
                    longest,
                )
        elif manifest.expires_at_ms - manifest.created_at_ms > config.max_lifetime_s * 1000:
            what = "sessions that live so long"
            raise self._too_much("policy", what, "max_lifetime_s", longest)
        if self._is_over(manifest):
            raise Refusal("invalid_manifest", "the session would already have expired")
        age_ms = now_ms - manifest.created_at_ms
        if age_ms < -config.max_clock_ahead_s * 1000:
            what = "manifests dated this far in the future; check the clock"
            raise self._too_much("invalid_manifest", what, "max_clock_ahead_s")
        if age_ms > config.max_manifest_age_s * 1000:
            raise self._too_much("invalid_manifest", "manifests this old", "max_manifest_age_s")

    def _too_much(
        self, code: str, what: str, name: str, limit: dict[str, int] | None = None
    ) -> Refusal:
        """The refusal of a session that a setting does not allow."""
        setting = setting_of(self.config, name)
        return Refusal(code, f"this relay does not take {what}", setting=setting, limit=limit)

    async def close(self, session: Session, by: Participant) -> None:
        self.check_role(by, Role.OWNER, what="close the session")
        await self.end(session, "closed by the owner")

    async def end(self, session: Session, reason: str) -> None:
        """Tells everybody, then removes every trace. Raises StorageError; then it has not ended."""
        if session.is_closed:
            return
        session.is_closed = True
        self._remember_ended(session)
        try:
            await self.store.purge(session.id)
        except AirloxError:
            session.is_closed = False
            self._ended.pop(session.id, None)
            raise
        session.add_event(EventKind.CLOSED, {"reason": reason})
        self.hub.ring(session.id)
        self.hub.end_session(session.id)
        if self.sessions.get(session.id) is session:
            del self.sessions[session.id]
            session.place.give()
        log.info("session ended", extra={"session": session.id, "reason": reason})

    def _remember_ended(self, session: Session) -> None:
        """Its manifest is not to open it again. A disk with no room for this keeps none open."""
        now_ms, manifest = self.clock.now_ms(), session.manifest
        until_ms = manifest.created_at_ms + self.config.max_manifest_age_s * 1000
        if self._is_over(manifest) or until_ms <= now_ms:
            return
        self._ended[session.id] = until_ms
        if len(self._ended) > ENDED:
            del self._ended[next(iter(self._ended))]
        self._ended_written += 1
        record = records.Ended(now_ms, session.id, until_ms)
        self.store.append(RELAY_LOG, [records.encode(record)])

    # ── participants ─────────────────────────────────────────────────────────────────────────

    async def join(
        self, session: Session, document: str, secret: str | None, origin: Origin
    ) -> tuple[bool, str]:
        """Takes a participant in: whether it is new, and its token. Raises Refusal.

        A known join gets its token again only with the secret that was given the first time.
        """
        state = session.epochs
        try:
            join = parse_join(document, session.manifest, state)
            secret_bytes = None if secret is None else b64u_decode(secret, TOKEN_BYTES)
        except ProtocolError as error:
            raise refuse("invalid_join", error) from None
        # Only joins that verify count: strangers must not keep out who holds an invite.
        self.quotas.take_join(session, origin)
        token = self._token(document, secret_bytes)
        async with session.lock:
            if session.epochs is not state:
                raise Refusal("busy", "an epoch began meanwhile", retry_s=1)
            known = session.participants.get(join.participant_pub)
            if known is not None:
                return False, self._token_again(known, document, secret_bytes, token)
            self._check_join(session, join, origin)
            record = records.Joined(
                self.clock.now_ms(),
                document,
                sha256(token.encode()),
                None if secret_bytes is None else sha256(secret_bytes),
            )
            session.checked[document] = join
            try:
                await self.write(session, record)
            finally:
                del session.checked[document]
            if origin.is_named:
                joined = session.joined_from.get(origin.network, 0)
                session.joined_from[origin.network] = joined + 1
        return True, token

    def _token(self, document: str, secret: bytes | None) -> str:
        """A random token; with a join secret it follows from that, so that it can be told again."""
        if secret is None:
            return b64u_encode(secrets.token_bytes(TOKEN_BYTES))
        return b64u_encode(
            hmac.digest(secret, b"airlox relay token\0" + document.encode(), "sha256")
        )

    def _token_again(
        self, known: Participant, document: str, secret: bytes | None, token: str
    ) -> str:
        if (
            secret is not None
            and known.secret_sha256 is not None
            and known.join.document == document
            and hmac.compare_digest(known.secret_sha256, sha256(secret))
            and known.is_here
        ):
            return token
        raise Refusal("exists", "this participant has joined already")

    def _check_join(self, session: Session, join: Join, origin: Origin) -> None:
        if join.role in session.revoked_roles:
            raise Refusal("revoked", f"the role {join.role} was revoked by the owner")
        if join.role is Role.RUNNER and session.manifest.mode is not Mode.EXECUTE:
            raise Refusal("policy", "runners join execute sessions only")
        self.quotas.check_disk()
        self.quotas.check_room_for_participant(session, origin)

    async def leave(self, session: Session, who: Participant) -> None:
        async with session.lock:
            if not who.is_here:
                return
            await self.write(session, records.Left(self.clock.now_ms(), who.key))
            self.hub.cut(session.id, {who.key})

    async def revoke(self, session: Session, by: Participant, role: str) -> list[Participant]:
        """Cuts off everybody with a role and lets nobody in with it; returns who was cut off."""
        self.check_role(by, Role.OWNER, what="revoke a role")
        if role not in (Role.SENDER, Role.OBSERVER, Role.RUNNER):
            raise Refusal("not_found", "roles that can be revoked are sender, observer and runner")
        if session.manifest.has(Feature.EPOCHS):
            raise Refusal("policy", "in this session the owner revokes by an epoch, not by a word")
        async with session.lock:
            if role in session.revoked_roles:
                return []
            gone = [
                each
                for each in session.participants.values()
                if each.role == role and not each.has_left
            ]
            record = records.Revoked(self.clock.now_ms(), Role(role))
            await self.cut_off(session, gone, record)
        return gone

    async def cut_off(
        self, session: Session, gone: Iterable[Participant], record: AnyRecord
    ) -> None:
        """Nothing of the `gone` is taken from now on; their streams end after they were told."""
        for participant in gone:
            participant.is_cut = True
        try:
            await self.write(session, record)
        except AirloxError:
            for participant in gone:
                participant.is_cut = False
            raise
        self.hub.cut(session.id, {participant.key for participant in gone})

    # ── approval of runners ──────────────────────────────────────────────────────────────────

    async def approve(self, session: Session, by: Participant, key: str) -> None:
        self.check_role(by, Role.OWNER, what="approve a runner")
        async with session.lock:
            runner = self.runner(session, key)
            if runner.rejected:
                raise Refusal("policy", "this runner was rejected, which is final")
            if not runner.approved:
                await self.write(session, records.Approved(self.clock.now_ms(), runner.key))

    async def reject(self, session: Session, by: Participant, key: str) -> Participant:
        self.check_role(by, Role.OWNER, what="reject a runner")
        async with session.lock:
            runner = self.runner(session, key)
            if not runner.rejected:
                message = encode_event(None, EventKind.REJECTED, "{}")
                record = records.Rejected(self.clock.now_ms(), runner.key)
                runner.is_cut = True
                self.hub.tell_runner(session.id, runner.key, message)
                await self.cut_off(session, [runner], record)
        return runner

    def runner(self, session: Session, key: str) -> Participant:
        found = session.participants.get(PublicKey(key))
        if found is None or found.role is not Role.RUNNER:
            raise Refusal("not_found", "no such runner in this session")
        return found

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    async def audit(self, session: Session, by: Participant) -> list[bytes]:
        """The records of the session, for `audit_lines`."""
        self.check_role(by, Role.OWNER, Role.OBSERVER, what="read the audit trail")
        return await self.store.read(session.id)

    def check_role(self, who: Participant, *allowed: Role, what: str) -> None:
        if who.role not in allowed:
            raise Refusal("forbidden", f"only the {' or '.join(allowed)} may {what}")


class Stirred:
    """Sessions whose waiting jobs are to be looked at; each is there once, until it is taken."""

    def __init__(self) -> None:
        self._sids: dict[SessionId, None] = {}
        self._some = asyncio.Event()

    def add(self, sid: SessionId) -> None:
        self._sids[sid] = None
        self._some.set()

    async def take(self) -> SessionId:
        """The one that was added first, once there is one."""
        while not self._sids:
            self._some.clear()
            await self._some.wait()
        sid = next(iter(self._sids))
        del self._sids[sid]
        return sid


_STIRRING: Final = (
    records.JobChanged,
    records.Approved,
    records.Left,
    records.Revoked,
    records.EpochBegan,
)
"""What lets jobs go that wait, or end."""


def _session_of(entry: bytes) -> str | None:
    """The session that an entry of the list of closed ones is about."""
    record = records.decode(entry)
    return record.session if isinstance(record, records.Ended) else None
