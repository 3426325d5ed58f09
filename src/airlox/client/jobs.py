"""A job in its sender's hands: wait for it, follow its output, cancel it, take its result.

Only a result that the view bound to the job counts: of this job's bytes, by a runner it could go
to and the owner approved, of this code and these inputs. A signed result wins over any word of
the relay; without one, the relay's `failed` with a reason always ends a wait.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from airlox.client.core import Core
from airlox.client.deadline import Deadline
from airlox.client.follow import Follower, Output
from airlox.client.relay_api import JobStatus
from airlox.client.result import OutFile, Result, signed_result, unsigned_result
from airlox.client.timeline import STANDING_KINDS
from airlox.errors import JobRefused, RelayError, WaitTimeout
from airlox.protocol.encoding import ItemId, PublicKey
from airlox.protocol.item import Envelope, ItemRef, Kind
from airlox.protocol.job import Job as JobMeta
from airlox.protocol.job import OneRunner
from airlox.protocol.job import Result as ResultMeta
from airlox.protocol.payload import File, JobCancel
from airlox.protocol.view import Item, ItemStatus, RelayJob, SessionView, input_digest
from airlox.protocol.wire import JobState

if TYPE_CHECKING:
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
        upload: TreeUpload | None = None,
    ) -> None:
        """For `Session`, which makes handles with `run_*` and `job`."""
        self.ref = ref
        self.meta = meta
        self._core = core
        self._runner = runner
        self._upload = upload
        self._final: Result | None = None
        self._closed = threading.Event()
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
        """The relay's word: `assigned`, `running`, `finished`, or `failed` with a reason."""
        return self._core.api.job(self.id)

    def cancel(self) -> None:
        """Ask the runner to stop the job (the owner or the job's sender); signed, then posted."""
        self._core.check_open()
        event = JobCancel(job=self.ref)
        self._core.outbox.post(self._core.outbox.seal(event, refs=(self.ref,)))
        self._core.api.cancel(self.id)

    def result(self) -> Result | None:
        """The result, once it is there; None while the job goes on."""
        if self._final is None:
            self._core.timeline.sync(STANDING_KINDS)
            self.settle(ask=True)
        return self._final

    def wait(self, timeout: float | None = None) -> Result:
        """Block until the job has ended.

        `timeout` in seconds; without one, the job's own time limit and ten minutes. Answers the
        runner's questions for tree content meanwhile. Raises WaitTimeout, SessionClosed,
        ConnectionLost.
        """
        for _ in self.output(timeout):
            pass
        assert self._final is not None  # `output` ends with the job, or raises
        return self._final

    def output(self, timeout: float | None = None) -> Iterator[Output]:
        """What the job prints, as it happens, until it ends; then `result` has the authority.

        In floor sessions, and on relays without live output, nothing is yielded before the end.
        Raises as `wait`.
        """
        if timeout is None:
            timeout = self.meta.timeout_s + WAIT_BEYOND_LIMIT_S
        if self._final is not None:
            return
        follower = Follower(self._core, self, Deadline.after(timeout))
        with self._lock:
            self._followers.add(follower)
        try:
            yield from follower.follow()
        finally:
            with self._lock:
                self._followers.discard(follower)
        if self._final is None:
            closed = self._closed.is_set()
            raise WaitTimeout(
                f"job {self.id} has not ended" + ("" if closed else f" in {timeout:.0f} s"),
                code="closed" if closed else WaitTimeout.code,
                hint="it goes on; ask again: airlox result --wait 10m -- " + self.id,
            )

    def close(self) -> None:
        """End waits on this handle, from any thread; the job goes on."""
        self._closed.set()
        with self._lock:
            followers = list(self._followers)
        for follower in followers:
            follower.close()

    # -- for the follower --------------------------------------------------------------------

    @property
    def upload(self) -> TreeUpload | None:
        return self._upload

    @property
    def final(self) -> Result | None:
        return self._final

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def settle(self, *, ask: bool = False, status: JobStatus | None = None) -> Result | None:
        """Look whether the job has ended, by what is known here; with `ask` also by the relay."""
        found = self._bound_result()
        if found is None:
            word = self._relay_word() if status is None else status
            if ask and word.state != JobState.FAILED:
                word = self._ask(word)
            found = self._unsigned(word)
        if found is not None:
            self._final = found
        return found

    def _ask(self, word: RelayJob | JobStatus) -> RelayJob | JobStatus:
        if self._core.timeline.ended is not None:
            return word
        try:
            return self.state()
        except RelayError as error:
            if error.status in (404, 410):
                return word
            raise

    def _relay_word(self) -> RelayJob | JobStatus:
        """What the relay's events said last."""
        known = self._core.timeline.read(lambda view: view.relay_jobs.get(self.id))
        return known or JobStatus(state="")

    def _unsigned(self, word: RelayJob | JobStatus) -> Result | None:
        """The relay's word, where that ends the wait."""
        if word.state == JobState.FAILED:
            reason = (word.reason or "the relay gave no reason")[:200]
            return unsigned_result(self.id, reason, word.runner)
        if word.state != JobState.FINISHED:
            return None
        invalid = self._invalid_result()
        return None if invalid is None else unsigned_result(self.id, invalid, word.runner)

    def _bound_result(self) -> Result | None:
        """The first result bound to this job, in the relay's order."""
        item = self._core.timeline.find(self.id)
        if item is None:
            return None
        self._open_results()
        inputs = self._input_sha256()
        results = self._core.timeline.read(lambda view: view.results_of(item, inputs))
        if not results:
            return None
        first, *more = results
        assert isinstance(first.meta, ResultMeta)
        self._fetch_out_files(first.meta)
        if self._upload is not None and first.meta.tree == self._upload.digest:
            self._upload.acknowledged_by(first.author.public)
        return signed_result(
            first.meta,
            runner=first.author.public,
            runner_name=first.author.name,
            others=tuple(other.id for other in more),
            load=self._load_out_file,
        )

    def _invalid_result(self) -> str | None:
        item = self._core.timeline.find(self.id)
        if item is None:
            return None
        inputs = self._input_sha256()
        invalid = self._core.timeline.read(lambda view: view.invalid_results_of(item, inputs))
        return f"its result is not valid: {invalid[0][1]}" if invalid else None

    def _open_results(self) -> None:
        """Fetch the results that may be this job's, where that has not been done."""
        for envelope in self._core.timeline.read(self._pending_results):
            self._core.timeline.open(envelope, self._core.api)

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
        return named + [e for e in pending if not e.header.refs]

    def _input_sha256(self) -> str | None:
        """Digest of the input blobs, or None when one is not at hand."""
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
        return input_digest(blobs)

    def _fetch_out_files(self, result: ResultMeta) -> None:
        """Bring the out files into the cache, so that they outlive the session."""
        for out in result.out_files:
            self._core.timeline.find(out.item.id)

    def _load_out_file(self, ref: ItemRef) -> bytes | None:
        item: Item | None = self._core.timeline.find(ref.id)
        matches = item is not None and item.ref == ref and isinstance(item.meta, File)
        return item.body if item is not None and matches else None
