"""Whose turn it is: the order of jobs that wait for a slot. Pure.

Senders take turns, the one that was served longest ago first; of one sender the oldest job that can
go goes. So whoever sends a thousand jobs delays nobody else by more than one job at a time, and a
job for a runner that is busy keeps no other from a runner that is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple


class Waiting(NamedTuple):
    """A job that waits. `fits` are the runners it may go to, as a set of bits; jobs are given in
    the order in which they came."""

    job: str
    sender: str
    fits: int


def lines_of(waiting: Iterable[Waiting], served: Callable[[str], int]) -> list[list[Waiting]]:
    """The jobs of each sender, oldest first; first the sender whose turn it is.

    `served` numbers the senders: who was served longest ago has the smallest number. Of several
    that were never served, the first to come is first.
    """
    lines: dict[str, list[Waiting]] = {}
    for each in waiting:
        lines.setdefault(each.sender, []).append(each)
    return sorted(lines.values(), key=lambda line: served(line[0].sender))


def in_turn(lines: Sequence[Sequence[Waiting]]) -> list[Waiting]:
    """All jobs in the order in which they go when every slot fits every job."""
    longest = max(map(len, lines), default=0)
    return [line[at] for at in range(longest) for line in lines if at < len(line)]


def share_out(
    lines: Sequence[Sequence[Waiting]], free: Mapping[int, int]
) -> list[tuple[Waiting, int]]:
    """Which jobs go now, in order, and to which runner. `free`: slots of each runner, by its bit.

    Of the runners that a job fits, it gets the one that the fewest others could use.
    """
    kinds = Counter(each.fits for line in lines for each in line)
    usable = reduce(or_, kinds, 0)
    slots = {bit: count for bit, count in free.items() if count > 0 and bit & usable}
    wanted = {bit: sum(n for fits, n in kinds.items() if fits & bit) for bit in slots}
    turns = [list(line) for line in lines]
    given: list[tuple[Waiting, int]] = []
    at = 0
    while slots and turns:
        at %= len(turns)
        found = _first_that_fits(turns[at], sum(slots))
        if found is None:  # slots only become fewer: nothing of this line goes any more
            del turns[at]
            continue
        bit = min((bit for bit in slots if found.fits & bit), key=lambda bit: wanted[bit])
        turns[at].remove(found)
        given.append((found, bit))
        slots[bit] -= 1
        if not slots[bit]:
            del slots[bit]
        at += 1
    return given


def _first_that_fits(line: Iterable[Waiting], free: int) -> Waiting | None:
    return next((each for each in line if each.fits & free), None)


def place(order: Iterable[Waiting], job: str) -> int:
    """The place of a job in an order that has it, from 1: how many of those before it might take
    its slot, and itself. Jobs that nothing fits stand behind those of the same kind."""
    before: list[int] = []
    for each in order:
        if each.job == job:
            return 1 + sum(1 for fits in before if fits & each.fits or fits == each.fits)
        before.append(each.fits)
    raise KeyError(job)
