"""Epochs at the relay: a revocation that the owner signed, taken as a whole or not at all.

The relay cannot read the new key and need not be trusted with it. What it does is to see that
nobody is cut off by mistake, to refuse what was sealed before, and to tell everybody.
"""

from __future__ import annotations

from airlox.errors import OrderError
from airlox.protocol.boxes import can_receive
from airlox.protocol.epochs import Epoch, parse_epoch
from airlox.protocol.keys import Role
from airlox.relay import records
from airlox.relay.entities import Participant
from airlox.relay.refusals import Refusal
from airlox.relay.service import Core
from airlox.relay.state import Session


def check_epoch(session: Session, number: int, what: str) -> None:
    """Raises Refusal for what was sealed in another epoch than the one that there is.

    While one is about to begin nothing is taken: whoever was refused as too late could not learn of
    it yet.
    """
    current = session.epochs.number
    if session.next_epoch is not None:
        raise Refusal("busy", "an epoch of the session begins", retry_s=1)
    if number < current:
        raise Refusal("old_epoch", f"{what} is of epoch {number}, and epoch {current} has begun")
    if number > current:
        raise Refusal("unknown_epoch", f"{what} is of epoch {number}, which has not begun")


class Epochs:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def begin(self, session: Session, by: Participant, document: str) -> None:
        """Takes the owner's signed revocation: whom it cuts off is out, and nothing sealed before
        is taken any more. The same document again is fine. Raises Refusal."""
        self._core.check_role(by, Role.OWNER, what="start an epoch")
        async with session.lock:
            if document in session.epoch_documents:
                return
            try:
                epoch = parse_epoch(document, session.manifest, session.epochs)
            except OrderError as error:
                raise Refusal("not_next_epoch", error.message) from None
            _check_kept(session, epoch)
            self._core.quotas.check_room_for_end(session)
            gone = [
                each
                for each in session.participants.values()
                if epoch.cuts_off(each.role, each.key) and not each.has_left
            ]
            record = records.EpochBegan(self._core.clock.now_ms(), document)
            session.next_epoch = epoch.number
            try:
                await self._core.cut_off(session, gone, record)
            finally:
                session.next_epoch = None


def _check_kept(session: Session, epoch: Epoch) -> None:
    """Nobody is cut off by mistake: who joined while the owner signed would be."""
    if epoch.cut_off is None:
        return
    found = session.participants.get(epoch.cut_off)
    if found is None or found.role is not epoch.role:
        raise Refusal("not_found", f"no {epoch.role} of this session has the key to cut off")
    for each in session.participants.values():
        if (
            epoch.cuts_off(each.role, each.key)
            and not each.has_left
            and each is not found
            and can_receive(each.key)
        ):
            raise Refusal("somebody_joined", f"another {epoch.role} joined meanwhile")
