"""Posting: an item is sealed once, checked as its readers will, and posted until acknowledged.

Every try carries the same id and the same bytes, so a repetition after a lost answer cannot make
two items. The relay answers a repetition with 409 `duplicate`; that counts as acknowledged only
when it follows a try of ours and the item the relay announces under that id is byte for byte ours.
The sealed bytes are in the cache before the first try: an author never downloads its own item, and
can answer those who want it later.

An item that is refused because the owner started an epoch meanwhile is sealed anew under the new
key, with the same id (`resealing.py`). Where that epoch is known here it is not even shown to the
relay first: whoever was cut off has the key, and the relay may be on their side.

Each item links to the own one that was acknowledged last (`protocol/chain.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from airlox.client.answers import Assigned, asked_wait_s
from airlox.client.deadline import Deadline
from airlox.client.membership import Membership, now_ms
from airlox.client.relay_api import RelayApi, WarningSink
from airlox.client.resealing import Renewed, reseal
from airlox.client.tips import Tips
from airlox.client.transport import SLOWEST_BYTES_PER_S
from airlox.errors import ConnectionLost, PolicyError, RelayError
from airlox.protocol.aead import NONCE_BYTES
from airlox.protocol.chain import RANDOM_BYTES, Link, Place, find_place, stays
from airlox.protocol.digest import hash_of
from airlox.protocol.encoding import ItemId, PublicKey
from airlox.protocol.item import (
    Envelope,
    ItemRef,
    Kind,
    SealedItem,
    parse_envelope,
    parse_frame,
    seal_item,
)
from airlox.protocol.payload import Meta, decode_payload, encode_payload, kind_of
from airlox.protocol.policy import check_header_rules, check_payload, check_role_may_post

POST_TIMEOUT_S: Final = 60.0
FIRST_WAIT_S: Final = 0.3
LONGEST_WAIT_S: Final = 5.0
OLD_EPOCH: Final = "old_epoch"
"""The relay's code for an item that was sealed in an epoch that has ended."""
_LATER: Final = frozenset({429, 500, 502, 503, 504})

T = TypeVar("T")


class Outbox:
    """Seals and posts the items of one participant; safe to share between threads.

    `announced` gives the envelope the relay announced under an id, or None; `knows` says whether
    an item is known to be in the session.
    """

    def __init__(
        self,
        membership: Membership,
        announced: Callable[[ItemId, RelayApi], str | None],
        knows: Callable[[ItemId], bool],
        *,
        on_warning: WarningSink,
    ) -> None:
        self._membership = membership
        self._announced = announced
        self._knows = knows
        self._on_warning = on_warning
        self._tips = Tips(membership.cache, membership.key.public)

    def place(self, refs: Sequence[ItemRef] = (), *, sure: bool = False) -> Place:
        """Id and references of a new item that names `refs`, for `seal`.

        `sure`: the caller sees to it that the relay has what they name before it gets the item.
        """
        tips = self._tips.all()
        own = {tip.ref.id for tip in tips}
        return find_place(
            self._membership.key.public,
            refs,
            tips,
            knows=sure or all(ref.id in own or self._knows(ItemId(ref.id)) for ref in refs),
            random=os.urandom(RANDOM_BYTES),
        )

    def seal(
        self,
        meta: Meta,
        body: bytes = b"",
        *,
        subkind: str | None = None,
        refs: tuple[ItemRef, ...] = (),
        sure: bool = False,
        place: Place | None = None,
    ) -> SealedItem:
        """The item, checked as a reader would. Raises PolicyError or ValidationError.

        `refs` and `sure` as for `place`; that is given in their stead where it had to be known
        before.
        """
        place = place or self.place(refs, sure=sure)
        me = self._membership
        manifest = me.manifest
        kind = kind_of(meta)
        check_role_may_post(me.role, kind)
        payload = encode_payload(meta, body)
        _check_size(len(payload), manifest.max_item_bytes)
        epoch, session_key = me.keys.current()
        sealed = seal_item(
            me.key,
            session_key,
            session_id=manifest.session_id,
            item_id=place.item_id,
            kind=kind,
            subkind=subkind,
            created_at_ms=manifest.clamp_time(now_ms()),
            payload=payload,
            nonce=os.urandom(NONCE_BYTES),
            refs=place.refs,
            epoch=epoch,
        )
        header = parse_envelope(sealed.envelope).header
        check_header_rules(manifest, me.cert, header)
        if kind is not Kind.FILE:
            decode_payload(payload, full=manifest.is_full)  # the form goes with the session
        check_payload(manifest, me.role, header, meta, body)
        return sealed

    def post(self, sealed: SealedItem, timeout_s: float = POST_TIMEOUT_S) -> ItemRef:
        """Post until acknowledged. Raises RelayError, ConnectionLost, SessionClosed."""

        def send(frame: bytes, api: RelayApi) -> int | None:
            return api.post_item(frame)

        sealed, seq = self._in_current_epoch(sealed, send, lambda api: None, timeout_s)
        self._note(parse_envelope(sealed.envelope), sealed.ref, seq)
        return sealed.ref

    def post_job(
        self,
        sealed: SealedItem,
        target: str,
        *,
        wait_s: int = 0,
        timeout_s: float = POST_TIMEOUT_S,
    ) -> tuple[ItemRef, Assigned]:
        """Post a job until acknowledged; returns the reference it has now, and the runner that was
        given it, or, with `wait_s`, that it waits for one.

        Raises like `post`; a job that no runner takes is a RelayError with the relay's code.
        """
        job = sealed.ref.id

        def send(frame: bytes, api: RelayApi) -> Assigned:
            return api.post_job(frame, target, wait_s)

        sealed, given = self._in_current_epoch(
            sealed, send, lambda api: _assigned(api, job), timeout_s
        )
        self._note(parse_envelope(sealed.envelope), sealed.ref, given.seq)
        return sealed.ref, given

    def post_frame(self, frame: bytes) -> None:
        """One try to post a sealed item, for callers that repeat it themselves. Raises RelayError
        `old_epoch` also for one that is known here to be too late, unless the relay has it."""
        document, blob = parse_frame(frame)
        envelope = parse_envelope(document)
        late, seq = self._too_late(envelope), None
        if late is None:
            seq = self._membership.api.post_item(frame)
        elif self._announced(envelope.id, self._membership.api) != document:
            raise late
        self._note(envelope, ItemRef(blob_sha256=hash_of(blob), id=envelope.id), seq)

    def renew(self, sealed: SealedItem, renewed: Renewed, refused: RelayError) -> SealedItem:
        """An item that the relay refused for its epoch, sealed anew in the one there is now.

        Raises `refused` when there is no newer one, DecryptError for who was cut off.
        """
        self._announced(ItemId(sealed.ref.id), self._membership.api)  # fetches news
        header = parse_envelope(sealed.envelope).header
        if self._membership.keys.number <= header.epoch_number:
            raise refused
        return reseal(self._membership, sealed, renewed)

    def renew_frame(self, frame: bytes, renewed: Renewed, refused: RelayError) -> SealedItem:
        """`renew` for callers of `post_frame`."""
        document, blob = parse_frame(frame)
        ref = ItemRef(blob_sha256=hash_of(blob), id=parse_envelope(document).id)
        return self.renew(SealedItem(document, blob, ref), renewed, refused)

    def _in_current_epoch(
        self,
        sealed: SealedItem,
        send: Callable[[bytes, RelayApi], T],
        stored: Callable[[RelayApi], T],
        timeout_s: float,
    ) -> tuple[SealedItem, T]:
        """Post, and again under a new key whenever an epoch began meanwhile."""
        while True:
            late = self._too_late(parse_envelope(sealed.envelope))
            if late is not None:
                api = self._membership.api
                if self._is_ours(sealed, api):  # posted before, and the answer was lost
                    return sealed, stored(api)
                sealed = self.renew(sealed, {}, late)
            self._membership.cache.save_blob(sealed.ref.id, sealed.blob)
            try:
                sending = partial(send, sealed.frame())
                return sealed, self._until_acknowledged(sealed, sending, stored, timeout_s)
            except RelayError as error:
                if error.code != OLD_EPOCH:
                    raise
                sealed = self.renew(sealed, {}, error)

    def _too_late(self, envelope: Envelope) -> RelayError | None:
        """The refusal of an item whose epoch is known here to have ended."""
        if envelope.header.epoch_number >= self._membership.keys.number:
            return None
        return RelayError(409, OLD_EPOCH, f"the epoch of item {envelope.id} has ended")

    def _note(self, envelope: Envelope, ref: ItemRef, seq: int | None) -> None:
        """The relay acknowledged an item: the next one links to it."""
        self._tips.note(Link(ref, seq, stays(envelope.header)), envelope.header.refs)

    def _until_acknowledged(
        self,
        sealed: SealedItem,
        send: Callable[[RelayApi], T],
        stored: Callable[[RelayApi], T],
        timeout_s: float,
    ) -> T:
        deadline = Deadline.after(timeout_s + len(sealed.blob) / SLOWEST_BYTES_PER_S)
        api = self._membership.api.within(deadline)
        wait_s = FIRST_WAIT_S
        tries = 0
        while True:
            try:
                return self._try(sealed, send, stored, api, again=tries > 0)
            except RelayError as error:
                if error.status in (401, 404, 410):
                    raise api.end_of_session(error) from error
                wait_s = max(wait_s, asked_wait_s(error))
                if error.status not in _LATER or deadline.cap_s(wait_s) < wait_s:
                    raise
                lost: ConnectionLost | RelayError = error
            except ConnectionLost as error:
                if error.code in ("closed", "tls") or deadline.cap_s(wait_s) < wait_s:
                    raise
                lost = error
            if tries == 0:
                self._on_warning(f"posting again until the relay has it: {lost.message}")
            if not api.pause(wait_s):
                raise lost
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            tries += 1

    def _try(
        self,
        sealed: SealedItem,
        send: Callable[[RelayApi], T],
        stored: Callable[[RelayApi], T],
        api: RelayApi,
        *,
        again: bool,
    ) -> T:
        try:
            return send(api)
        except RelayError as error:
            # the answer of an earlier try was lost. That this is asked about may fail and be
            # repeated like any other try
            if not (again and error.code == "duplicate" and self._is_ours(sealed, api)):
                raise
        return stored(api)

    def _is_ours(self, sealed: SealedItem, api: RelayApi) -> bool:
        return self._announced(ItemId(sealed.ref.id), api) == sealed.envelope


def _assigned(api: RelayApi, job: str) -> Assigned:
    """Whom a job went to whose answer was lost."""
    status = api.job(job)
    if status.waits:
        return Assigned(None, status=status)
    if status.runner is None:
        reason = status.reason or "no_runner_available"
        raise RelayError(409, reason, "the job was not given to a runner")
    return Assigned(PublicKey(status.runner))


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise PolicyError(
            f"{size} bytes are more than this session's items may have ({most})",
            code="too_large",
            hint="send less, or create a session with a larger item limit",
        )
