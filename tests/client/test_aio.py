"""`AsyncSession` has the verbs of `Session`, with the same signatures, and no logic."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest

from airlox.client.aio import AsyncJob, AsyncSession, AsyncTransferOffer, _Workers
from airlox.client.jobs import Job
from airlox.client.session import Session
from airlox.client.transfer import TransferOffer
from airlox.errors import WaitTimeout

INNER = {
    *("settle", "upload", "final", "follower", "is_answered_by", "note"),
    *("wait_with", "output_with", "held_with"),
}
"""What a job offers to its follower and to the command line, not to callers."""
DIFFERENT = {"Job": "AsyncJob", "list[Job]": "list[AsyncJob]", "ItemStream": "AsyncIterator[Item]"}
DIFFERENT["TransferOffer"] = "AsyncTransferOffer"


def public(cls: type, leave_out: set[str] = frozenset()) -> set[str]:  # type: ignore[assignment]
    return {name for name in dir(cls) if not name.startswith("_")} - leave_out


def same_shape(blocking: Any, awaited: Any) -> None:
    """Same parameters; the return differs only where a handle has an asynchronous twin."""
    if isinstance(blocking, property):
        assert isinstance(awaited, property)
        blocking, awaited = blocking.fget, awaited.fget
    one, other = inspect.signature(blocking), inspect.signature(awaited)
    assert one.parameters == other.parameters
    expected = one.return_annotation
    expected = DIFFERENT.get(expected, str(expected).replace("Iterator[", "AsyncIterator["))
    assert other.return_annotation == expected.replace("AsyncAsync", "Async")


@pytest.mark.parametrize("name", sorted(public(Session)))
def test_session(name: str) -> None:
    same_shape(getattr(Session, name), getattr(AsyncSession, name))


@pytest.mark.parametrize("name", sorted(public(Job, INNER)))
def test_job(name: str) -> None:
    same_shape(getattr(Job, name), getattr(AsyncJob, name))


@pytest.mark.parametrize("name", sorted(public(TransferOffer, {"waiter", "wait_with"})))
def test_transfer_offer(name: str) -> None:
    same_shape(getattr(TransferOffer, name), getattr(AsyncTransferOffer, name))


def test_nothing_more() -> None:
    assert public(AsyncSession) - public(Session) == {"warnings"}
    assert public(AsyncJob) - public(Job) - {"ref", "meta"} == set()


class SlowWait:
    """Stands where a Follower does."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


class SlowJob:
    """Stands where a Job does: waits until the wait is closed."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.waits: list[SlowWait] = []

    def follower(self, timeout: float | None = None) -> SlowWait:
        self.waits.append(SlowWait())
        return self.waits[-1]

    def wait_with(self, wait: SlowWait) -> str:
        self.started.set()
        if len(self.waits) > 1:
            return "done"
        assert wait.closed.wait(20)
        raise WaitTimeout("closed", code="closed")


def test_cancelling_a_wait_closes_its_handle() -> None:
    async def scenario() -> None:
        workers, slow = _Workers(), SlowJob()
        job = AsyncJob(slow, workers)  # type: ignore[arg-type]
        task = asyncio.create_task(job.wait())
        await asyncio.to_thread(slow.started.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slow.waits[0].closed.is_set()
        # that wait alone: the job can be waited for again, as after `asyncio.wait_for`
        assert await job.wait() == "done"  # type: ignore[comparison-overlap]
        await asyncio.to_thread(workers.end)

    asyncio.run(scenario())


def test_leaving_a_stream_closes_its_source() -> None:
    closed = threading.Event()
    blocked = threading.Event()

    def numbers() -> Any:
        yield 1
        blocked.set()
        assert closed.wait(20)

    async def scenario() -> None:
        workers = _Workers()
        stream = workers.iterate(numbers(), closed.set)
        assert await anext(stream) == 1
        task: asyncio.Task[int] = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(blocked.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed.is_set()
        await asyncio.to_thread(workers.end)

    asyncio.run(scenario())
