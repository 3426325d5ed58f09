"""Threads for the blocking calls of the client, apart from those that sandboxes wait in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

PER_JOB: Final = 3
ALWAYS: Final = 4
"""Posting results, heartbeats, tidying, and one to spare."""

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A pool for a runner of some slots. Close it at the end: it waits for its calls."""

    def __init__(self, slots: int) -> None:
        most = ALWAYS + PER_JOB * slots
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="airlox-call")

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(function, *args, **kwargs))

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
