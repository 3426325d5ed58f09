"""Counting: rates over time, and places of which so many may be held at once.

Both know keys only (an address, a session, a participant) and both forget whoever holds nothing;
a flood of new keys makes no table grow without bound. What a key is and what is refused in which
words is quotas.py's to say.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

from airlox.relay.clock import Clock
from airlox.relay.refusals import Refusal

RATE_KEYS: Final = 100_000
"""Keys a rate remembers. Beyond them the one that asked least lately is forgotten: it may then
ask a little too often, while the memory stays within some tens of megabytes."""
LOOKED_AT: Final = 10_000
"""Keys that are looked at in one go, so that nobody waits for it."""


class Rate:
    """A token bucket for each key: `per_s` on average, `burst` at once. 0 is no limit.

    Whoever has a token left may take more than that, and pays for it by waiting.
    """

    def __init__(self, clock: Clock, *, per_s: float, burst: int) -> None:
        self._clock = clock
        self._per_ms = per_s / 1000
        self._burst = burst
        self._spent: dict[Hashable, tuple[float, int]] = {}
        """The one that asked least lately first."""

    def take(self, key: Hashable, size: int = 1) -> bool:
        """Whether `key` may go on; if so, `size` tokens are gone."""
        if not self._burst:
            return True
        spent = self._spent_by(key)
        if spent + 1 > self._burst:
            return False
        self._spent.pop(key, None)
        self._spent[key] = (spent + size, self._clock.ticks_ms())
        if len(self._spent) > RATE_KEYS:
            del self._spent[next(iter(self._spent))]
        return True

    def give_back(self, key: Hashable) -> None:
        """One token that was taken for what should not have cost any."""
        if key in self._spent:
            spent, at_ms = self._spent[key]
            self._spent[key] = (max(0.0, spent - 1), at_ms)

    def wait_s(self, key: Hashable) -> float:
        """Seconds until `take` says yes again."""
        if not self._burst:
            return 0.0
        return max(0.0, self._spent_by(key) + 1 - self._burst) / self._per_ms / 1000

    def forget_idle(self) -> None:
        """Drops what has filled up again, of those that asked least lately: there it is."""
        oldest = itertools.islice(self._spent, LOOKED_AT)
        full = [key for key in oldest if self._spent_by(key) <= 0.0]
        for key in full:
            del self._spent[key]

    def _spent_by(self, key: Hashable) -> float:
        now_ms = self._clock.ticks_ms()
        spent, at_ms = self._spent.get(key, (0.0, now_ms))
        return max(0.0, spent - (now_ms - at_ms) * self._per_ms)


class Bound(NamedTuple):
    """How much one holder may have, and the refusal of whoever wants more."""

    most: int
    refusal: Callable[[], Refusal]


class Gate:
    """Places, counted for several holders at once: everybody, a session, an address.

    There is one bound for each kind of holder, in the order in which `take` names them.
    """

    def __init__(self, *bounds: Bound) -> None:
        self._bounds = bounds
        self._held: dict[tuple[int, Hashable], int] = {}

    def take(self, *holders: Hashable, size: int = 1, over: bool = False) -> Place:
        """`size` places, to be given back; `over`: also beyond the bounds. A holder None is not
        counted. Raises Refusal."""
        keys = [(kind, each) for kind, each in enumerate(holders) if each is not None]
        for key in keys:
            bound = self._bounds[key[0]]
            if self._held.get(key, 0) + size > bound.most and not over:
                raise bound.refusal()
        for key in keys:
            self._held[key] = self._held.get(key, 0) + size
        return Place(self, keys, size)

    def held(self, kind: int, holder: Hashable) -> int:
        """Places a holder of a kind has now."""
        return self._held.get((kind, holder), 0)

    def give(self, keys: Sequence[tuple[int, Hashable]], size: int) -> None:
        for key in keys:
            self._held[key] -= size
            if not self._held[key]:
                del self._held[key]


class Place:
    """What was taken of a gate, until it is given back; as a context, until its end."""

    __slots__ = ("_gate", "_keys", "_size")

    def __init__(self, gate: Gate, keys: Sequence[tuple[int, Hashable]], size: int) -> None:
        self._gate = gate
        self._keys = keys
        self._size = size

    def give(self) -> None:
        """Safe to repeat."""
        keys, self._keys = self._keys, ()
        self._gate.give(keys, self._size)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self.give()
