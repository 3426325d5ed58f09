"""A job in its sender's hands: wait for it, follow its output, cancel it, take its result.

Only a result that the view bound to the job counts: of this job's bytes, by a runner it could go
to and the owner approved, of this code and these inputs. A signed result wins over any word of
the relay; without one, the relay's `failed` with a reason always ends a wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from airlox.client.answers import JobStatus
from airlox.client.core import Core
from airlox.client.deadline import Deadline
from airlox.client.follow import Follower, Output
from airlox.client.membership import now_ms
from airlox.client.pulling import Returned
from airlox.client.result import OutFile, Result, bytes_of, signed_result, unsigned_result
from airlox.client.timeline import STANDING_KINDS
from airlox.client.transport import one_line
from airlox.errors import AirloxError, JobRefused, ProtocolError, RelayError, WaitTimeout
from airlox.protocol.chain import chosen_refs
from airlox.protocol.encoding import ItemId, PublicKey
from airlox.protocol.item import Envelope, ItemRef, Kind
from airlox.protocol.job import Job as JobMeta
from airlox.protocol.job import OneRunner
from airlox.protocol.job import Result as ResultMeta
from airlox.protocol.payload import File, JobCancel
from airlox.protocol.view import Item, ItemStatus, RelayJob, SessionView, input_digest
from airlox.protocol.wire import JobState

if TYPE_CHECKING:
    from airlox.client.relay_api import RelayApi
    from airlox.client.session import Session
    from airlox.client.trees import TreeUpload

__all__ = ["Job", "JobNotTaken", "OutFile", "Output", "Result"]

WAIT_BEYOND_LIMIT_S: Final = 600.0
"""How much longer than the job's own time limit a wait without a time-out lasts."""


class JobNotTaken(JobRefused):
    """No runner took the job; `job` is its id, `code` says why."""

    def __init__(self, message: str, *, code: str, hint: str, job: str) -> None:
        super().__init__(message, code=code, hint=hint)
        self.job = job


class Job:
    """A posted job. Safe to share between threads; `close` ends the waits of all of them."""

    def __init__(
        self,
        core: Core,
        ref: ItemRef,
        meta: JobMeta,
        *,
        runner: PublicKey | None = None,
        status: JobStatus | None = None,
        upload: TreeUpload | None = None,
    ) -> None:
        """For `Session`, which makes handles with `run_*` and `job`."""
        self.ref = ref
        self.meta = meta
        self._core = core
        self._runner: str | None = runner
        self._status = status
        self._upload = upload
        self._final: Result | None = None
        self._input_digest: str | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._followers: set[Follower] = set()

    def __repr__(self) -> str:
        return f"<Job {self.id} in {self._core.manifest.session_id}>"

    @property
    def id(self) -> str:
        return self.ref.id

    @property
    def runner(self) -> str | None:
        """The key of the runner the job went to: the one it was aimed at, else the relay's word."""
        if isinstance(self.meta.target, OneRunner):
            return self.meta.target.participant_pub
        return self._runner or self._relay_word().runner

    def state(self) -> JobStatus:
        """The relay's word: `queued`, `assigned`, `running`, `finished`, or `failed` with a reason.

        A job that is `queued` has a `place`, from 1, and as `reason` `busy` (no slot is free) or
        `no_runner` (none that fits is online and approved).
        """
        return self.note(self._core.api.job(self.id))

    @property
    def waiting(self) -> JobStatus | None:
        """Place and reason of a job that waits for a slot, as they were told last; else None."""
        status = self._status
        return status if status is not None and status.waits and self._final is None else None

    def cancel(self) -> None:
        """Ask the runner to stop the job (the owner or the job's sender); signed, then posted."""
        self._core.check_open()
        event = JobCancel(job=self.ref)
        self._core.outbox.post(self._core.outbox.seal(event, refs=(self.ref,)))
        self._core.api.cancel(self.id)

    def result(self) -> Result | None:
        """The result, once it is there; None while the job goes on.

        After an unsigned one (the relay's word) this looks again: a signed result that comes
        later wins.
        """
        if self._final is None or not self._final.signed:
            self._core.timeline.sync(STANDING_KINDS)
            self.settle(self._ask())
        return self._final

    def wait(self, timeout: float | None = None) -> Result:
        """Block until the job has ended.

        `timeout` in seconds; without one, what it may wait for a slot, its own time limit and ten
        minutes. Answers the
        runner's questions for tree content meanwhile. Raises WaitTimeout, SessionClosed,
        ConnectionLost.
        """
        return self.wait_with(self.follower(timeout))

    def output(
        self,
        timeout: float | None = None,
        *,
        from_byte: int = 0,
        on_status: Callable[[JobStatus], None] | None = None,
    ) -> Iterator[Output]:
        """What the job prints, as it happens, until it ends; then `result` has the authority.

        Begins at `from_byte`, or where what the relay still holds begins, if that is later. In
        floor sessions, and on relays without live output, nothing is yielded before the end.
        `on_status` hears each word of the relay on the job meanwhile: while it waits for a slot,
        its place and the reason. Raises as `wait`.
        """
        return self.output_with(self.follower(timeout, from_byte=from_byte, on_status=on_status))

    def held_output(self, timeout: float | None = None, *, from_byte: int = 0) -> Iterator[Output]:
        """What the relay holds now of what the job printed, from `from_byte` on; waits for no more.

        A relay holds the newest part, and for some minutes after the job's end. Raises
        ConnectionLost, RelayError.
        """
        return self.held_with(self.follower(timeout, from_byte=from_byte))

    def close(self) -> None:
        """End waits on this handle, from any thread; the job goes on."""
        with self._lock:
            self._closed = True
            followers = list(self._followers)
        for follower in followers:
            follower.close()

    # -- waits that are ended one by one -----------------------------------------------------

    def follower(
        self,
        timeout: float | None = None,
        *,
        from_byte: int = 0,
        on_status: Callable[[JobStatus], None] | None = None,
    ) -> Follower:
        """A wait to be, for one of the `…_with`; its `close` ends it, before or during."""
        if timeout is None:
            timeout = self._until_start_s() + self.meta.timeout_s + WAIT_BEYOND_LIMIT_S
        return Follower(self._core, self, Deadline.after(timeout), from_byte, on_status)

    def _until_start_s(self) -> float:
        """How much longer the job may wait for a slot."""
        queue = self.meta.queue
        return 0.0 if queue is UNSET else max(0.0, (queue.start_by_ms - now_ms()) / 1000)

    def wait_with(self, follower: Follower) -> Result:
        """`wait`, ended by the follower's `close`."""
        for _ in self.output_with(follower):
            pass
        assert self._final is not None  # `output_with` ends with the job, or raises
        return self._final

    def output_with(self, follower: Follower) -> Iterator[Output]:
        """`output`, ended by the follower's `close`."""
        if self._final is not None:
            return
        with self._waiting(follower):
            yield from follower.follow()
        if self._final is None:
            raise WaitTimeout(
                f"job {self.id} has not ended" + ("" if follower.closed else " in the time given"),
                code="closed" if follower.closed else WaitTimeout.code,
                hint="it goes on; ask again: airlox result --wait 10m -- " + self.id,
            )

    def held_with(self, follower: Follower) -> Iterator[Output]:
        """`held_output`, ended by the follower's `close`."""
        with self._waiting(follower):
            yield from follower.held()

    @contextmanager
    def _waiting(self, follower: Follower) -> Iterator[None]:
        """Know a wait while it lasts, so that `close` ends it."""
        with self._lock:
            self._followers.add(follower)
            closed = self._closed
        if closed:
            follower.close()
        try:
            yield
        finally:
            with self._lock:
                self._followers.discard(follower)

    # -- for the follower --------------------------------------------------------------------

    @property
    def upload(self) -> TreeUpload | None:
        return self._upload

    def note(self, status: JobStatus) -> JobStatus:
        """Remember the relay's newest word."""
        self._status = status
        self._runner = self._runner or status.runner
        return status

    @property
    def final(self) -> Result | None:
        return self._final

    def settle(
        self, status: JobStatus | None = None, *, api: RelayApi | None = None
    ) -> Result | None:
        """Look whether the job has ended, by what is known here and the relay's `status` of it.

        `api` fetches what belongs to a result. Nothing the relay says replaces a signed result.
        """
        if self._final is not None and self._final.signed:
            return self._final
        found = self._bound_result(api or self._core.api) or self._unsigned(self._relay_word())
        if found is None and status is not None:
            found = self._unsigned(status)
        if found is not None:
            self._final = found
        return self._final

    def is_answered_by(self, item: Item) -> bool:
        """Whether a result item is bound to this job, as far as is known here."""
        job = self._core.timeline.find(self.id)
        if job is None:
            return False
        inputs = self._input_sha256()
        try:
            self._core.timeline.read(lambda view: view.check_result(job, item, inputs))
        except ProtocolError:
            return False
        return True

    def _ask(self) -> JobStatus | None:
        """The relay's word, or None where it knows nothing of the job any more."""
        if self._core.timeline.ended is not None:
            return None
        try:
            return self.state()
        except RelayError as error:
            if error.status in (404, 410):
                return None
            raise

    def _relay_word(self) -> RelayJob | JobStatus:
        """What the relay's events said last."""
        known = self._core.timeline.read(lambda view: view.relay_jobs.get(self.id))
        return known or JobStatus(state="")

    def _unsigned(self, word: RelayJob | JobStatus) -> Result | None:
        """The relay's word, where that ends the wait."""
        if word.state == JobState.FAILED:
            reason = one_line(word.reason or "") or "the relay gave no reason"
            return unsigned_result(self.id, reason, word.runner)
        if word.state != JobState.FINISHED:
            return None
        invalid = self._invalid_result()
        return None if invalid is None else unsigned_result(self.id, invalid, word.runner)

    def _bound_result(self, api: RelayApi) -> Result | None:
        """The first result bound to this job, in the relay's order."""
        item = self._core.timeline.find(self.id, api)
        if item is None:
            if (forgotten := self._core.timeline.forgotten(self.id)) is not None:
                raise forgotten
            return None
        self._open_results(api)
        if not self._core.timeline.read(lambda view: view.results_of(item, None)):
            return None  # so that inputs are read once there is something to compare
        inputs = self._input_sha256()
        results = self._core.timeline.read(lambda view: view.results_of(item, inputs))
        if not results:
            return None
        first, *more = results
        assert isinstance(first.meta, ResultMeta)
        self._fetch_out_files(first.meta, api)
        if self._upload is not None and first.meta.tree == self._upload.digest:
            self._upload.acknowledged_by(first.author.public)
        return signed_result(
            first.meta,
            runner=first.author.public,
            runner_name=first.author.name,
            others=tuple(other.id for other in more),
            load=self._load_out_file,
            returned=None if self.meta.pull is UNSET else self._returned,
        )

    def _returned(self, file: OutFile | None) -> Returned:
        """What the job changed in its tree, as its result has it."""
        assert self.meta.pull is not UNSET
        upload = self._upload
        return Returned(
            self.id,
            self.meta.pull,
            lambda: None if file is None else bytes_of(file),
            most_bytes=self._core.manifest.max_item_bytes,
            sent=None if upload is None else upload.sent,
            root=None if upload is None else upload.root,
        )

    def _invalid_result(self) -> str | None:
        item = self._core.timeline.find(self.id)
        if item is None:
            return None
        inputs = self._input_sha256()
        invalid = self._core.timeline.read(lambda view: view.invalid_results_of(item, inputs))
        return f"its result is not valid: {invalid[0][1]}" if invalid else None

    def _open_results(self, api: RelayApi) -> None:
        """Fetch the results that may be this job's, where that has not been done."""
        for envelope in self._core.timeline.read(self._pending_results):
            if api.over:
                return
            self._core.timeline.open(envelope, api)

    def _pending_results(self, view: SessionView) -> list[Envelope]:
        pending = [
            record.envelope
            for record in view.records.values()
            if record.status is ItemStatus.PENDING
            and record.envelope is not None
            and record.envelope.header.kind is Kind.RESULT
        ]
        named = [e for e in pending if any(ref.id == self.id for ref in e.header.refs)]
        # a result need not name its job in the header
        return named + [e for e in pending if not chosen_refs(e.header)]

    def _input_sha256(self) -> str | None:
        """Digest of the input blobs, or None when one is not at hand."""
        if self._input_digest is not None:
            return self._input_digest
        blobs = []
        for ref in self.meta.files:
            record = self._core.timeline.read(
                lambda view, ref=ref: view.records.get(ItemId(ref.id))  # type: ignore[misc]
            )
            envelope = None if record is None else record.envelope
            blob = None if envelope is None else self._core.timeline.blobs.held(envelope)
            if blob is None:
                return None
            blobs.append(blob)
        self._input_digest = input_digest(blobs)
        return self._input_digest

    def _fetch_out_files(self, result: ResultMeta, api: RelayApi) -> None:
        """Bring the out files into the cache, so that they outlive the session."""
        for out in result.out_files:
            self._core.timeline.find(out.item.id, api)

    def _load_out_file(self, ref: ItemRef) -> bytes | None:
        item: Item | None = self._core.timeline.find(ref.id)
        matches = item is not None and item.ref == ref and isinstance(item.meta, File)
        return item.body if item is not None and matches else None


def is_answer(session: Session, item: Item) -> bool:
    """Whether a result item is a valid answer to its job, as far as is known here."""
    if not isinstance(item.meta, ResultMeta):
        return False
    try:
        return session.job(item.meta.job.id).is_answered_by(item)
    except AirloxError:
        return False
