"""Waiting for a relay that is away, or for room on a disk: how long, and what for.

The wait doubles from half a second to eight, each shortened or lengthened at random, so that the
runners of a relay that was restarted do not come back all at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Final, TypeVar

from airlox.client.answers import FOREIGN
from airlox.client.deadline import Deadline
from airlox.errors import AirloxError, ConnectionLost, RelayError, StorageError

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 8.0
SPREAD: Final = 0.25
_DOUBLINGS: Final = 10
_LATER: Final = frozenset({429, 500, 502, 503, 504, 507})

ROOM_TRIES: Final = 6
"""About half a minute."""

T = TypeVar("T")
Pause = Callable[[float], bool]
"""Waits some seconds and says whether to go on."""


def wait_s(failures: int, chance: Callable[[], float] = random.random) -> float:
    """Seconds to wait before another try, after so many failures before the last."""
    doubled = FIRST_WAIT_S * (1 << min(failures, _DOUBLINGS))
    return min(doubled, LONGEST_WAIT_S) * (1 - SPREAD + 2 * SPREAD * chance())


def may_pass(error: AirloxError) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, RelayError):
        return error.status in _LATER or error.code == FOREIGN
    if isinstance(error, StorageError):
        return error.code == "disk_full"
    return isinstance(error, ConnectionLost) and error.code != "closed"


def may_find_room() -> Callable[[AirloxError], bool]:
    """As `may_pass`, for one call that something worth more waits behind: a relay that has no room
    and names no time when it will is asked a few times only."""
    refusals = count(1)

    def passes(error: AirloxError) -> bool:
        if isinstance(error, RelayError) and error.status == 507 and error.retry_after_s is None:
            return next(refusals) < ROOM_TRIES
        return may_pass(error)

    return passes


def patiently(
    call: Callable[[], T],
    pause: Pause,
    *,
    until: Deadline | None = None,
    passes: Callable[[AirloxError], bool] = may_pass,
    on_wait: Callable[[AirloxError], None] | None = None,
) -> T:
    """What `call` returns, once it does; blocking. `on_wait` hears of the first failure, `passes`
    says of each whether it is waited out.

    Raises what will not pass, the last failure when the time is over, and ConnectionLost (code
    `closed`) when `pause` says to stop.
    """
    for failures in count():
        try:
            return call()
        except (ConnectionLost, RelayError, StorageError) as error:
            if not passes(error) or (until is not None and until.passed):
                raise
            if failures == 0 and on_wait is not None:
                on_wait(error)
            if not pause(wait_s(failures)):
                raise ConnectionLost("told to stop waiting for the relay", code="closed") from error
    raise AssertionError("there is no end of tries")
