"""`AsyncSession`: the verbs of `Session` for asyncio, each in a worker thread.

No logic lives here: every method is the blocking one of the same name and signature, awaited.
Cancelling an awaited stream or wait closes its handle, which ends the thread's wait at once;
cancelling any other call leaves it to its own deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar

from airlox.client.answers import JobStatus
from airlox.client.follow import Output
from airlox.client.jobs import Job, Result
from airlox.client.progress import OnProgress
from airlox.client.recipients import ReplyTo, To
from airlox.client.references import Refs
from airlox.client.session import DELIVERIES, AnyPath, Session
from airlox.client.shown import Delivery, ParticipantInfo, Runner
from airlox.protocol import limits
from airlox.protocol.chain import Alarm
from airlox.protocol.item import ItemRef
from airlox.protocol.job import Job as JobMeta
from airlox.protocol.manifest import ALL_TYPES, Manifest
from airlox.protocol.view import Item, Record

if TYPE_CHECKING:
    from typing import Unpack

    from airlox.client.options import JobOptions
    from airlox.client.transfer import OnGuess, TransferOffer, Verify

WORKERS: Final = 32
"""Most calls of one session at a time; more wait for their turn."""

P = ParamSpec("P")
T = TypeVar("T")
_END: Final = object()


class _Workers:
    """The threads of one session; ended by its `disconnect`."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="airlox")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: call(*args, **kwargs))

    async def iterate(self, source: Iterator[T], close: Callable[[], None]) -> AsyncIterator[T]:
        """The values of a blocking iterator; `close` ends its wait when this one is left."""
        try:
            while True:
                value: Any = await self.run(next, source, _END)
                if value is _END:
                    return
                yield value
        finally:
            close()

    def end(self, *, wait: bool = True) -> None:
        self._pool.shutdown(wait=wait)


class AsyncJob:
    """`Job` for asyncio."""

    def __init__(self, job: Job, workers: _Workers) -> None:
        """For `AsyncSession`."""
        self._job = job
        self._workers = workers

    def __repr__(self) -> str:
        return repr(self._job)

    @property
    def id(self) -> str:
        return self._job.id

    @property
    def ref(self) -> ItemRef:
        return self._job.ref

    @property
    def meta(self) -> JobMeta:
        return self._job.meta

    @property
    def runner(self) -> str | None:
        return self._job.runner

    @property
    def waiting(self) -> JobStatus | None:
        return self._job.waiting

    async def state(self) -> JobStatus:
        return await self._workers.run(self._job.state)

    async def cancel(self) -> None:
        await self._workers.run(self._job.cancel)

    async def result(self) -> Result | None:
        return await self._workers.run(self._job.result)

    async def wait(self, timeout: float | None = None) -> Result:
        follower = self._job.follower(timeout)
        try:
            return await self._workers.run(self._job.wait_with, follower)
        except asyncio.CancelledError:
            follower.close()
            raise

    def output(
        self,
        timeout: float | None = None,
        *,
        from_byte: int = 0,
        on_status: Callable[[JobStatus], None] | None = None,
    ) -> AsyncIterator[Output]:
        follower = self._job.follower(timeout, from_byte=from_byte, on_status=on_status)
        return self._workers.iterate(self._job.output_with(follower), follower.close)

    def held_output(
        self, timeout: float | None = None, *, from_byte: int = 0
    ) -> AsyncIterator[Output]:
        follower = self._job.follower(timeout, from_byte=from_byte)
        return self._workers.iterate(self._job.held_with(follower), follower.close)

    def close(self) -> None:
        self._job.close()


class AsyncTransferOffer:
    """`TransferOffer` for asyncio."""

    def __init__(self, offer: TransferOffer, workers: _Workers) -> None:
        """For `AsyncSession`."""
        self._offer = offer
        self._workers = workers

    def __repr__(self) -> str:
        return repr(self._offer)

    @property
    def code(self) -> str:
        return self._offer.code

    @property
    def parked(self) -> bool:
        return self._offer.parked

    @property
    def role(self) -> str:
        return self._offer.role

    @property
    def expires_in_s(self) -> float:
        return self._offer.expires_in_s

    @property
    def guesses_left(self) -> int:
        return self._offer.guesses_left

    async def wait(self, timeout: float | None = None) -> None:
        waiter = self._offer.waiter(timeout)
        try:
            await self._workers.run(self._offer.wait_with, waiter)
        except asyncio.CancelledError:
            waiter.close()
            raise

    async def cancel(self) -> None:
        await self._workers.run(self._offer.cancel)

    def close(self) -> None:
        self._offer.close()


class AsyncSession:
    """`Session` for asyncio; see there. Made by `create` or `join`; ends with `disconnect`."""

    def __init__(self, session: Session, workers: _Workers) -> None:
        """For `create` and `join`; programs use those."""
        self._session = session
        self._workers = workers

    @classmethod
    async def create(
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
        return await cls._open(
            Session.create,
            relay,
            mode=mode,
            ttl=ttl,
            allowed_types=allowed_types,
            max_item_bytes=max_item_bytes,
            job_limits=job_limits,
            features=features,
            insecure_http_host=insecure_http_host,
            display_name=display_name,
            description=description,
            kind=kind,
            cache_dir=cache_dir,
            on_warning=on_warning,
            on_progress=on_progress,
        )

    @classmethod
    async def join(
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
        return await cls._open(
            Session.join,
            invite_url,
            display_name=display_name,
            description=description,
            kind=kind,
            cache_dir=cache_dir,
            on_warning=on_warning,
            on_progress=on_progress,
        )

    @classmethod
    async def _open(cls, make: Callable[P, Session], *args: P.args, **kwargs: P.kwargs) -> Self:
        workers = _Workers()
        try:
            return cls(await workers.run(make, *args, **kwargs), workers)
        except BaseException:
            workers.end(wait=False)
            raise

    async def disconnect(self) -> None:
        self._session.disconnect()
        await asyncio.to_thread(self._workers.end)

    async def leave(self, *, delete_cache: bool = False) -> None:
        await self._workers.run(self._session.leave, delete_cache=delete_cache)

    async def close(self) -> None:
        await self._workers.run(self._session.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.disconnect()

    def __repr__(self) -> str:
        return f"<Async{repr(self._session)[1:]}"

    @property
    def session_id(self) -> str:
        return self._session.session_id

    @property
    def relay(self) -> str:
        return self._session.relay

    @property
    def role(self) -> str:
        return self._session.role

    @property
    def participant_pub(self) -> str:
        return self._session.participant_pub

    @property
    def joined_seq(self) -> int:
        return self._session.joined_seq

    @property
    def manifest(self) -> Manifest:
        return self._session.manifest

    @property
    def expires_at_ms(self) -> int | None:
        return self._session.expires_at_ms

    @property
    def closed(self) -> str | None:
        return self._session.closed

    @property
    def invites(self) -> dict[str, str]:
        return self._session.invites

    @property
    def warnings(self) -> Sequence[str]:
        return self._session.warnings

    async def transfer_code(
        self,
        role: str,
        *,
        park: bool = False,
        verify: Verify | None = None,
        on_guess: OnGuess | None = None,
    ) -> AsyncTransferOffer:
        offer = await self._workers.run(
            self._session.transfer_code, role, park=park, verify=verify, on_guess=on_guess
        )
        return AsyncTransferOffer(offer, self._workers)

    async def participants(self, *, sync: bool = True) -> list[ParticipantInfo]:
        return await self._workers.run(self._session.participants, sync=sync)

    async def alarms(self, *, sync: bool = True) -> list[Alarm]:
        return await self._workers.run(self._session.alarms, sync=sync)

    async def send_text(
        self,
        text: str,
        *,
        to: To | None = None,
        reply_to: ReplyTo | None = None,
        refs: Refs = (),
    ) -> ItemRef:
        return await self._workers.run(
            self._session.send_text, text, to=to, reply_to=reply_to, refs=refs
        )

    async def send_file(
        self,
        src: AnyPath | bytes,
        *,
        name: str | None = None,
        to: To | None = None,
        reply_to: ReplyTo | None = None,
        refs: Refs = (),
    ) -> ItemRef:
        return await self._workers.run(
            self._session.send_file, src, name=name, to=to, reply_to=reply_to, refs=refs
        )

    async def delivery(self, limit: int = DELIVERIES) -> list[Delivery]:
        return await self._workers.run(self._session.delivery, limit)

    async def sync(self) -> list[Item]:
        return await self._workers.run(self._session.sync)

    async def items(self) -> list[Item]:
        return await self._workers.run(self._session.items)

    async def records(self) -> list[Record]:
        return await self._workers.run(self._session.records)

    async def item(self, item_id: str) -> Item | None:
        return await self._workers.run(self._session.item, item_id)

    async def hops(self, item: Item) -> int:
        return await self._workers.run(self._session.hops, item)

    def stream(
        self, timeout: float | None = None, *, history: bool = False, after: int | None = None
    ) -> AsyncIterator[Item]:
        source = self._session.stream(timeout, history=history, after=after)
        return self._workers.iterate(source, source.close)

    async def runners(self) -> list[Runner]:
        return await self._workers.run(self._session.runners)

    async def approve_runner(self, runner: Runner | str) -> Runner:
        return await self._workers.run(self._session.approve_runner, runner)

    async def reject_runner(self, runner: Runner | str, reason: str | None = None) -> Runner:
        return await self._workers.run(self._session.reject_runner, runner, reason)

    async def revoke(self, who: str) -> None:
        await self._workers.run(self._session.revoke, who)

    async def audit(self) -> list[dict[str, Any]]:
        return await self._workers.run(self._session.audit)

    async def run_python(
        self,
        code: str,
        *,
        filename: str = "main.py",
        requirements: Iterable[str] = (),
        **options: Unpack[JobOptions],
    ) -> AsyncJob:
        job = await self._workers.run(
            self._session.run_python,
            code,
            filename=filename,
            requirements=requirements,
            **options,
        )
        return AsyncJob(job, self._workers)

    async def run_shell(
        self, command: str | Sequence[str], **options: Unpack[JobOptions]
    ) -> AsyncJob:
        job = await self._workers.run(self._session.run_shell, command, **options)
        return AsyncJob(job, self._workers)

    async def run_file(self, path: AnyPath, **options: Any) -> AsyncJob:
        job = await self._workers.run(self._session.run_file, path, **options)
        return AsyncJob(job, self._workers)

    async def job(self, job_id: str) -> AsyncJob:
        return AsyncJob(await self._workers.run(self._session.job, job_id), self._workers)

    async def jobs(self) -> list[AsyncJob]:
        jobs = await self._workers.run(self._session.jobs)
        return [AsyncJob(job, self._workers) for job in jobs]
