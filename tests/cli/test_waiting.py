"""What is told of a job that waits for a slot."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from airlox.cli.waiting import Waiting, text
from airlox.client.answers import JobStatus

from .test_output import Spoken

ERASE = "\r\x1b[2K"


def queued(place: int | None, reason: str | None) -> JobStatus:
    return JobStatus("queued", place=place, reason=reason)


@pytest.mark.parametrize(
    ("status", "where", "expected"),
    [
        (queued(2, "busy"), "box", "waits: place 2, box is busy"),
        (queued(1, "busy"), None, "waits: place 1, every runner that fits is busy"),
        (queued(3, "no_runner"), "box", "waits: place 3, box is not there"),
        (
            queued(1, "no_runner"),
            None,
            "waits: place 1, no runner that fits is online and approved",
        ),
        (queued(None, "busy"), "box", "waits: box is busy"),
        (queued(4, "a reason of later"), "box", "waits: place 4"),
        (queued(None, None), None, "waits: no slot is free"),
    ],
)
def test_in_words(status: JobStatus, where: str | None, expected: str) -> None:
    assert text(status, where) == expected


def told(said: Spoken, *statuses: JobStatus, where: str | None = "box") -> str:
    """What is said of a job that waits when it is posted, and is told so again and again."""
    job: Any = SimpleNamespace(id="j", waiting=queued(2, "busy"))
    waits = Waiting(job, said.voice, where, lambda: "other")
    for status in statuses:
        waits.hear(status)
    assert said.out.text == ""
    return said.err.text


STORY = (
    queued(2, "busy"),
    queued(1, "busy"),
    JobStatus("assigned", runner="key"),
    JobStatus("running", runner="key"),
)


def test_a_line_for_each_change() -> None:
    assert told(Spoken(), *STORY) == (
        "waits: place 2, box is busy\n"
        "waits: place 1, box is busy\n"
        "it was this job's turn: box has it\n"
    )


def test_on_a_terminal_it_is_one_line() -> None:
    assert told(Spoken(terminal=True), *STORY) == (
        f"waits: place 2, box is busy{ERASE}waits: place 1, box is busy{ERASE}"
        "it was this job's turn: box has it\n"
    )


def test_quiet_says_nothing_and_json_events() -> None:
    assert told(Spoken(quiet=True), *STORY) == ""
    events = [json.loads(line) for line in told(Spoken(json=True), *STORY).splitlines()]
    waiting = {"event": "waiting", "job": "j", "reason": "busy"}
    assert events == [
        {**waiting, "place": 2},
        {**waiting, "place": 1},
        {"event": "assigned", "job": "j", "runner": "key"},
    ]


def test_the_runner_that_got_it_is_named() -> None:
    assert "other has it" in told(Spoken(), *STORY, where=None)


def test_a_wait_that_ends_without_a_runner_leaves_no_line() -> None:
    failed = JobStatus("failed", reason="queue_expired")
    assert told(Spoken(terminal=True), failed) == f"waits: place 2, box is busy{ERASE}"
    assert told(Spoken(json=True), failed).count("\n") == 1


def test_a_job_that_never_waits_is_not_told_of() -> None:
    said = Spoken()
    job: Any = SimpleNamespace(id="j", waiting=None)
    waits = Waiting(job, said.voice, "box", lambda: "box")
    for status in STORY[2:]:
        waits.hear(status)
    assert said.err.text == ""
