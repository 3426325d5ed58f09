"""What concerns a listener and was not handed out yet, and the wait for more of it.

Whom an item is for is the protocol's word (`Item.for_me`); here it is held against who may wake
and how long agents have been answering each other. Items are handed out in the relay's order. One
that cannot be fetched holds up nothing: after a while it is given up, which is remembered, but it
still wakes when it comes while this process lives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from airlox.agents.ledger import Batch, Ledger
from airlox.agents.senders import Senders
from airlox.client.deadline import Deadline
from airlox.client.session import Session
from airlox.errors import ConnectionLost, RelayError
from airlox.protocol.encoding import b64u_encode
from airlox.protocol.view import Item, ItemStatus, Record

BATCH_ITEMS: Final = 32
WARNINGS: Final = 20
"""Most warnings about items: others decide how often there is cause."""
_BATCH_ID_BYTES: Final = 16
_RETRY_S: Final = 5.0
"""How long to wait before a relay that cannot be reached is tried again."""


class Inbox:
    """The items of one session that are for its participant, and may wake them."""

    def __init__(
        self,
        session: Session,
        ledger: Ledger,
        senders: Senders,
        *,
        max_hops: int,
        pending_timeout_s: float,
        warn: Callable[[str], None],
    ) -> None:
        self._session = session
        self._ledger = ledger
        self._senders = senders
        self._max_hops = max_hops
        self._pending_timeout_s = pending_timeout_s
        self._tell = warn
        self._warnings = 0
        self._is_away = False
        """Whether the relay could not be reached the last time."""
        self._opened: set[int] = set()
        """Items that were here at the last look, by number."""
        self._wakes: dict[int, bool] = {}
        self._pending: dict[int, Deadline] = {}
        """Items that could not be fetched so far, and when they are given up."""
        self._late: set[int] = set()
        """Items that were given up; they may still come."""

    def begin(self, *, only_new: bool) -> None:
        """See what there is. The first time, what was there before this participant joined is
        settled; with `only_new` all there is now. Raises StorageError, ConnectionLost, RelayError.
        """
        self._session.sync()
        if only_new:
            newest = max((record.seq for record in self._session.records()), default=-1)
            self._ledger.settle(newest)
        elif self._ledger.is_new:
            self._ledger.settle(self._session.joined_seq)

    def take(self) -> Batch | None:
        """The oldest items that concern the listener, kept in the ledger; None without any.

        Raises StorageError.
        """
        waiting = self._look()
        chosen = [record for record in waiting if record.item is not None][:BATCH_ITEMS]
        if not chosen:
            return None
        batch = Batch(
            id=b64u_encode(os.urandom(_BATCH_ID_BYTES)),
            items=tuple(record.item.id for record in chosen if record.item is not None),
            seqs=tuple(record.seq for record in chosen),
        )
        self._ledger.take(batch, self._floor(waiting))
        self._late.difference_update(batch.seqs)
        return batch

    def wait(self, deadline: Deadline) -> None:
        """Return when something may have changed, at the deadline, or when the session ends."""
        until = min(self._pending.values(), key=lambda d: d.left_s() or 0.0, default=deadline)
        until = until.sooner(deadline)
        try:
            # from the beginning: what could not be fetched before is waited for too
            with self._session.stream(until.left_s(), history=True) as stream:
                for item in stream:
                    if item.seq not in self._opened:
                        break
            self._session.sync()  # what else came at the same time
            self._is_away = False
        except ConnectionLost as error:
            self._pause(error, until)
        except RelayError as error:
            if error.status < 500 and error.status != 429:
                raise
            self._pause(error, until)

    def _pause(self, error: ConnectionLost | RelayError, until: Deadline) -> None:
        if not self._is_away:
            self._is_away = True
            self._tell(f"{error.message}; trying again")
        time.sleep(until.cap_s(_RETRY_S))

    def _look(self) -> list[Record]:
        """Records that are to be handed out or may come yet, oldest first."""
        waiting, gone = [], self._gone()
        for record in self._session.records():
            if record.item is not None:
                self._opened.add(record.seq)
            if self._ledger.is_settled(record.seq) and record.seq not in self._late:
                continue
            if record.status is ItemStatus.REFUSED:
                self._pending.pop(record.seq, None)
                self._late.discard(record.seq)
            elif record.item is None:
                if self._is_awaited(record):
                    waiting.append(record)
            elif self._may_wake(record.item) and record.item.author.public not in gone:
                waiting.append(record)
        if self._late:
            self._ledger.settle(self._floor(waiting), self._late)
        return waiting

    def _gone(self) -> set[str]:
        """Who left or was cut off: what they posted before must start nothing after that."""
        people = self._session.participants(sync=False)
        return {person.participant_pub for person in people if person.left}

    def _floor(self, waiting: list[Record]) -> int:
        """Up to which number all is settled, while these wait."""
        awaited = [record.seq for record in waiting if record.seq not in self._late]
        if awaited:
            return awaited[0] - 1
        return max((record.seq for record in self._session.records()), default=-1)

    def _is_awaited(self, record: Record) -> bool:
        """Whether an item that is not here is still waited for."""
        if record.seq in self._late or (
            record.author is not None and record.author.public == self._session.participant_pub
        ):
            return False
        until = self._pending.setdefault(record.seq, Deadline.after(self._pending_timeout_s))
        if not until.passed:
            return True
        del self._pending[record.seq]
        self._late.add(record.seq)
        name = record.envelope.id if record.envelope is not None else f"number {record.seq}"
        self._warn(f"item {name} cannot be fetched; it is passed over until it comes")
        return False

    def _may_wake(self, item: Item) -> bool:
        self._pending.pop(item.seq, None)
        known = self._wakes.get(item.seq)
        if known is None:
            known = self._wakes[item.seq] = self._judge(item)
        return known

    def _judge(self, item: Item) -> bool:
        if not item.for_me or not self._senders.may_wake(item.author):
            return False
        hops = self._session.hops(item)
        if hops > self._max_hops:
            self._warn(
                f"item {item.id} wakes nobody: {hops} posts of agents in a row, and no person's"
            )
            return False
        return True

    def _warn(self, text: str) -> None:
        self._warnings += 1
        if self._warnings <= WARNINGS:
            self._tell(text)
