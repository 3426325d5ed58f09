"""The loop of a listener: a batch of items, handed out to its end, then the next.

One batch at a time: what arrives meanwhile is in the next one. A batch is kept before anything is
done with it and forgotten after it was handed out, so that a crash at any point leads to one of two
things, with the same batch id: it is handed out (again), or found to be handed out already.

* Printed: it is handed out once the text has been given to the system.
* A command: it is handed out once the run ended in a way its keeper saw, by itself or by its
  time-out, whatever its exit code. A listener that was killed finds the record of its keeper. A run
  that was stopped, by Ctrl-C or with the machine, is made again: its `start` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec

from airlox.agents import keeping
from airlox.agents.inbox import Inbox
from airlox.agents.keeping import Command, Ended, Places, Run
from airlox.agents.ledger import Batch, Ledger, State
from airlox.client.cache import SessionCache
from airlox.client.deadline import Deadline
from airlox.client.filelock import file_lock
from airlox.client.session import Session
from airlox.errors import AirloxError


class Delivery(Protocol):
    """One way of handing out a batch. Raises when it did not come to its end; it is then kept."""

    def __call__(self, batch: Batch, ledger: Ledger) -> None: ...


class Desk(msgspec.Struct, frozen=True):
    """Where a participant's listener keeps what must last."""

    ledger: str
    lock: str
    places: Places

    @classmethod
    def of(cls, cache: SessionCache, role: str) -> Desk:
        """In the cache of a session, which may hold several participants: one for each role."""
        base = cache.state_path(f"listen-{role}")
        return cls(
            f"{base}.json", f"{base}.lock", Places(lock=f"{base}.run", record=f"{base}.ended")
        )

    @contextmanager
    def open(self, note: Callable[[str], None]) -> Iterator[Ledger]:
        """The ledger, for one listener at a time, with what an earlier one left settled.

        Raises StorageError (`locked` while another one listens).
        """
        with file_lock(self.lock, "the place of a listener", timeout_s=0):
            ledger = Ledger(self.ledger)
            self._settle_earlier(ledger, note)
            yield ledger

    def _settle_earlier(self, ledger: Ledger, note: Callable[[str], None]) -> None:
        found = keeping.holder(self.places)
        if found is not None:
            note("the command for an earlier batch still runs: waiting for its end")
            keeping.await_gone(self.places, found)
        batch = ledger.batch
        if batch is not None and batch.state is State.STARTED:
            ended = keeping.read_record(self.places, batch.id)
            if ended is not None and ended.how == "not_started":
                ledger.unstart()
            elif ended is not None:
                note(f"the command for batch {batch.id} {ended.text}")
                ledger.finish()
        keeping.remove_record(self.places)


class Commands:
    """Hands out batches by running a command for each."""

    def __init__(
        self,
        places: Places,
        command_for: Callable[[Batch], Command],
        *,
        run_timeout_s: float,
        output: tuple[int, int],
        told: Callable[[Batch, Ended], None],
    ) -> None:
        """`output` are the descriptors commands write to; `told` hears how each run ended."""
        self._places = places
        self._command_for = command_for
        self._run_timeout_s = run_timeout_s
        self._output = output
        self._told = told

    def __call__(self, batch: Batch, ledger: Ledger) -> None:
        command = self._command_for(msgspec.structs.replace(batch, starts=batch.starts + 1))
        keeping.remove_record(self._places)  # what it says was heeded before
        with Run.prepare(
            command, batch.id, self._places, timeout_s=self._run_timeout_s, output=self._output
        ) as run:
            ledger.start()
            run.go()
            ended = run.wait()
        if ended.how == "not_started":
            ledger.unstart()
            raise AirloxError(f"{command.argv[0]} {ended.text}", code="not_started")
        self._told(batch, ended)


def listen(
    session: Session,
    inbox: Inbox,
    ledger: Ledger,
    deliver: Delivery,
    *,
    once: bool,
    deadline: Deadline,
) -> bool:
    """Hand out batches until the session ends, with `once` one of them; whether there was any.

    Ends at the deadline too. Raises what `deliver` raises, StorageError, RelayError.
    """
    delivered = False
    while True:
        if ledger.batch is None and inbox.take() is None:
            if session.closed is not None or deadline.passed:
                return delivered
            inbox.wait(deadline)
            continue
        batch = ledger.batch
        assert batch is not None
        deliver(batch, ledger)
        ledger.finish()
        delivered = True
        if once:
            return True
