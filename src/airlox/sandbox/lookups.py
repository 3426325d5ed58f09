"""Names to addresses by the machine's own resolver, off the event loop.

The resolver's call can neither be given a time nor be ended, so each runs in a thread of its own
that nobody waits for longer than they like. How many are under way is bounded for the whole
process: a name whose servers never answer must not cost more threads than that.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_UNDER_WAY: Final = 64
MAX_OF_ONE: Final = 16
LOOKUP_S: Final = 10.0


class LookUp(Protocol):
    """From a name to addresses in text form, in the order in which to try them."""

    async def __call__(self, name: str) -> Sequence[str]:
        """Raises OSError: no address is known, or none could be had in time."""


class SystemResolver:
    """`getaddrinfo`, bounded. One for a process; called in its event loop."""

    def __init__(self, *, within_s: float = LOOKUP_S, most: int = MAX_UNDER_WAY) -> None:
        self._within_s = within_s
        self._free = threading.BoundedSemaphore(most)

    async def __call__(self, name: str) -> Sequence[str]:
        """See `LookUp`. TimeoutError (an OSError) when it takes too long or too many wait."""
        return await self._ask(name, self._free)

    def share(self, most: int = MAX_OF_ONE) -> LookUp:
        """For one job: names of its that nobody answers for must not keep others waiting."""
        own = threading.BoundedSemaphore(most)

        async def look_up(name: str) -> Sequence[str]:
            return await self._ask(name, own, self._free)

        return look_up

    async def _ask(self, name: str, *bounds: threading.Semaphore) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()
        taken = contextlib.ExitStack()
        for bound in bounds:
            if not bound.acquire(blocking=False):
                taken.close()
                raise TimeoutError("too many names are being looked up")
            taken.callback(bound.release)

        def look_up() -> None:
            try:
                found: Sequence[str] | OSError = _addresses(name)
            except OSError as error:
                found = error
            except UnicodeError as error:
                found = OSError(str(error))
            finally:
                taken.close()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, answer, found)

        try:
            threading.Thread(target=look_up, name="look-up", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            taken.close()
            raise TimeoutError("no name can be looked up now") from None
        async with asyncio.timeout(self._within_s):
            return await answer


@cache
def system_resolver() -> SystemResolver:
    """The one of this process, so that its bound is one for all jobs."""
    return SystemResolver()


def _addresses(name: str) -> Sequence[str]:
    # With the dot no search list of this machine is tried: the name is the one on the list.
    found = socket.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _settle(answer: asyncio.Future[Sequence[str]], found: Sequence[str] | OSError) -> None:
    if answer.done():
        return
    if isinstance(found, OSError):
        answer.set_exception(found)
    else:
        answer.set_result(found)
