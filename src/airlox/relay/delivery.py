"""Who has stored what a participant posted, and for whom it is still kept: what `/delivery` tells.

It follows from the bookkeeping by which blobs are let go (state.py): a reader's acknowledgement
says "stored by me", no more. Only an item's author is told.
"""

from __future__ import annotations

import asyncio
from itertools import islice

from airlox.protocol.encoding import ItemId, PublicKey
from airlox.relay.entities import Participant
from airlox.relay.state import Session

Told = dict[str, object]


async def delivery_of(session: Session, who: Participant, limit: int) -> list[Told]:
    """The newest `limit` items of `who`, oldest first. Gives way between them: many may read."""
    own = (item_id for item_id, item in reversed(session.items.items()) if item.author is who)
    newest = list(islice(own, min(limit, who.items)))
    found = []
    for item_id in reversed(newest):
        if item_id in session.items:  # else it was forgotten meanwhile
            found.append(_told(session, item_id))
        await asyncio.sleep(0)
    return found


def _told(session: Session, item_id: ItemId) -> Told:
    delivered, waiting = session.reached(item_id)
    return {
        "item": item_id,
        "delivered": _keys(session, delivered),
        "waiting": _keys(session, waiting),
    }


def _keys(session: Session, bits: int) -> list[PublicKey]:
    """Those of a set of participants, in the order in which they joined."""
    return [each.key for each in session.participants.values() if each.bit & bits]
