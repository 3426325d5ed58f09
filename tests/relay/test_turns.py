"""Whose turn it is: tables, and what holds for any queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.relay.turns import Waiting, in_turn, lines_of, place, share_out

X, Y, Z = 1, 2, 4
"""Runners."""
NEVER: dict[str, int] = {}


def queue(*jobs: str) -> list[Waiting]:
    """`a1:xy` is the first job of a, for x or y; without a colon any runner will do."""
    bits = {"x": X, "y": Y, "z": Z}
    found = []
    for each in jobs:
        name, colon, fits = each.partition(":")
        found.append(Waiting(name, name[0], sum(bits[f] for f in fits) if colon else X | Y | Z))
    return found


def shared(jobs: list[Waiting], free: dict[int, int], served: dict[str, int]) -> list[str]:
    lines = lines_of(jobs, lambda sender: served.get(sender, -1))
    names = {X: "x", Y: "y", Z: "z"}
    return [f"{each.job}>{names[bit]}" for each, bit in share_out(lines, free)]


@pytest.mark.parametrize(
    ("jobs", "free", "served", "expected"),
    [
        # one sender: the oldest first
        (["a1", "a2", "a3"], {X: 2}, NEVER, ["a1>x", "a2>x"]),
        (["a1"], {X: 0}, NEVER, []),
        ([], {X: 3}, NEVER, []),
        # senders take turns, however many jobs one of them has, and whoever came first
        (["a1", "a2", "a3", "b1", "b2"], {X: 4}, NEVER, ["a1>x", "b1>x", "a2>x", "b2>x"]),
        (["a1", "a2", "b1", "c1"], {X: 3}, NEVER, ["a1>x", "b1>x", "c1>x"]),
        # who was served longest ago is next
        (["a1", "b1"], {X: 1}, {"a": 9, "b": 4}, ["b1>x"]),
        (["a1", "b1", "c1"], {X: 2}, {"a": 4, "b": 9}, ["c1>x", "a1>x"]),
        # a job for a busy runner keeps nothing from a free one, and loses no turn by that
        (["a1:x", "b1:y"], {Y: 1}, NEVER, ["b1>y"]),
        (["a1:x", "a2", "b1"], {Y: 1}, NEVER, ["a2>y"]),
        (["a1:x", "b1:y", "b2:y"], {X: 1, Y: 2}, NEVER, ["a1>x", "b1>y", "b2>y"]),
        # one for whom many runners will do leaves the one that others need
        (["a1", "b1:x"], {X: 1, Y: 1}, NEVER, ["a1>y", "b1>x"]),
        (["a1", "b1:xy", "c1:x"], {X: 1, Y: 1, Z: 1}, NEVER, ["a1>z", "b1>y", "c1>x"]),
        # a narrow target has its turn as anybody else
        (["b1", "b2", "b3", "a1:x"], {X: 1}, {"b": 7}, ["a1>x"]),
        (["a1:z"], {X: 5, Y: 5}, NEVER, []),
    ],
)
def test_who_goes(
    jobs: list[str], free: dict[int, int], served: dict[str, int], expected: list[str]
) -> None:
    """P-QUE-4."""
    assert shared(queue(*jobs), free, served) == expected


@pytest.mark.parametrize(
    ("jobs", "served", "expected"),
    [
        (["a1", "a2", "b1"], NEVER, {"a1": 1, "b1": 2, "a2": 3}),
        (["a1", "a2", "b1"], {"a": 5}, {"b1": 1, "a1": 2, "a2": 3}),
        # only who might take one's slot stands before one
        (["a1:x", "b1:y", "c1:xy"], NEVER, {"a1": 1, "b1": 1, "c1": 3}),
        # what nothing fits stands in a line of its own
        (["a1:", "b1", "c1:"], NEVER, {"a1": 1, "b1": 1, "c1": 2}),
    ],
)
def test_places(jobs: list[str], served: dict[str, int], expected: dict[str, int]) -> None:
    order = in_turn(lines_of(queue(*jobs), lambda sender: served.get(sender, -1)))
    assert {job: place(order, job) for job in expected} == expected


JOBS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 7)), max_size=40)
SLOTS = st.dictionaries(st.sampled_from([X, Y, Z]), st.integers(0, 5))


def made(jobs: list[tuple[str, int]]) -> list[Waiting]:
    return [Waiting(f"{sender}{n}", sender, fits) for n, (sender, fits) in enumerate(jobs)]


@given(JOBS, SLOTS)
def test_slots_go_to_jobs_that_fit_each_once_and_none_stays_free_for_one_that_waits(
    jobs: list[tuple[str, int]], free: dict[int, int]
) -> None:
    waiting = made(jobs)
    given_away = share_out(lines_of(waiting, lambda sender: 0), free)
    gone = [each.job for each, _ in given_away]
    assert len(set(gone)) == len(gone)
    left = dict(free)
    for each, bit in given_away:
        assert each.fits & bit
        left[bit] -= 1
    assert all(count >= 0 for count in left.values())
    open_bits = sum(bit for bit, count in left.items() if count > 0)
    assert not [each for each in waiting if each.job not in gone and each.fits & open_bits]


@given(JOBS)
def test_a_slot_at_a_time_nobody_is_passed_over_twice(jobs: list[tuple[str, int]]) -> None:
    """Between two jobs of one sender each other sender with a job for this runner has had one."""
    waiting = [each for each in made(jobs) if each.fits & X]
    served: dict[str, int] = {}
    turn = 0
    while waiting:
        [(job, _)] = share_out(lines_of(waiting, lambda s: served.get(s, -1)), {X: 1})
        others = {each.sender for each in waiting} - {job.sender}
        mine = served.get(job.sender, -1)
        assert all(served.get(other, -1) >= mine for other in others)
        assert job == next(each for each in waiting if each.sender == job.sender)
        waiting.remove(job)
        served[job.sender] = turn
        turn += 1


@given(JOBS)
def test_the_order_has_every_job_once_and_places_begin_at_one(jobs: list[tuple[str, int]]) -> None:
    waiting = made(jobs)
    order = in_turn(lines_of(waiting, lambda sender: 0))
    assert sorted(order) == sorted(waiting)
    found = [place(order, each.job) for each in order]
    assert all(1 <= at <= number for number, at in enumerate(found, 1))
