"""Waiting for a relay that is away, or for room on a disk: how long, and what for.

The wait doubles from half a second to eight, each shortened or lengthened at random, so that the
runners of a relay that was restarted do not come back all at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from airlox.client.deadline import Deadline
from airlox.client.relay_api import FOREIGN
from airlox.errors import AirloxError, ConnectionLost, RelayError, StorageError

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 8.0
SPREAD: Final = 0.25
_LATER: Final = frozenset({429, 500, 502, 503, 504, 507})

T = TypeVar("T")
Pause = Callable[[float], bool]
"""Waits some seconds and says whether to go on."""


def waits(chance: Callable[[], float] = random.random) -> Iterator[float]:
    """Seconds to wait before each further try, without end."""
    wait_s = FIRST_WAIT_S
    while True:
        yield wait_s * (1 - SPREAD + 2 * SPREAD * chance())
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def may_pass(error: AirloxError) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, RelayError):
        return error.status in _LATER or error.code == FOREIGN
    if isinstance(error, StorageError):
        return error.code == "disk_full"
    return isinstance(error, ConnectionLost) and error.code != "closed"


def patiently(
    call: Callable[[], T],
    pause: Pause,
    *,
    until: Deadline | None = None,
    on_wait: Callable[[AirloxError], None] | None = None,
) -> T:
    """What `call` returns, once it does; blocking. `on_wait` hears of the first failure.

    Raises what will not pass, the last failure when the time is over, and ConnectionLost (code
    `closed`) when `pause` says to stop.
    """
    for count, wait_s in enumerate(waits()):
        try:
            return call()
        except (ConnectionLost, RelayError, StorageError) as error:
            if not may_pass(error) or (until is not None and until.passed):
                raise
            if count == 0 and on_wait is not None:
                on_wait(error)
            if not pause(wait_s):
                raise ConnectionLost("told to stop waiting for the relay", code="closed") from error
    raise AssertionError("the waits have no end")
