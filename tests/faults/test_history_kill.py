"""A relay killed with `kill -9` while it forgets and writes its logs anew.

What is told once is told again under the same number or is gone as a whole; what stays stays.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from airlox.protocol import wire
from airlox.protocol.item import parse_envelope
from support.crew import Crew, a_job, a_result
from support.relay import Http, Member, file_item, now_ms
from support.server import ServerProcess

EAGER = """
import sys
from airlox.relay import __main__, history
history.REWRITE_BYTES, history.FRESH_MS, history.SLACK = 3_000, 0, 1_000_000
sys.exit(__main__.main())
"""
ROUNDS = 12
JOBS_A_ROUND = 5


class EagerServer(ServerProcess):
    """A relay that forgets a job a second after its end."""

    def __init__(self, data: str) -> None:
        options = ("--data", data, "--listen", "127.0.0.1:0", "--history", "1s")
        fast = ("--sweep-ms", "10", "--journal-segment-bytes", "8K", "--min-free-bytes", "0")
        self.process = subprocess.Popen(
            [sys.executable, "-c", EAGER, *options, *fast],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        self.url = self.first_line.strip().removeprefix("listening on ")


def all_events(member: Member) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = member.get(
            wire.events_page(member.sid, found[-1]["seq"] if found else None, 20)
        ).json
        found += page["events"]
        if not page["more"]:
            return found


def test_forgetting_survives_kills(tmp_path: Path) -> None:
    """P-HIS-4, P-HIS-9: a job's input files are there as long as it is."""
    data = str(tmp_path / "data")
    running = EagerServer(data)
    try:
        crew = Crew(running, full=True, ttl_ms=None)
        runner = crew.runner()
        texts: list[str] = []
        seen: dict[int, Any] = {}
        gaps = 0
        for number in range(ROUNDS):
            for _ in range(JOBS_A_ROUND):
                finish_a_job(crew, runner)
            texts.append(crew.owner.say(str(number)).envelope)
            # the sweeper forgets what the rounds before left, now or in a moment
            time.sleep(0.13 * (number % 5))
            running.kill()
            running = EagerServer(data)
            for member in (crew.owner, crew.sender, runner):
                member.http = Http(running.url)
            events = all_events(crew.owner)
            check(events, texts, seen)
            gaps += sum(event["kind"] == "gap" for event in events)
        assert gaps, "nothing was ever forgotten"
    finally:
        running.kill()


def finish_a_job(crew: Crew, runner: Member) -> None:
    crew.beat(runner)
    file = file_item(crew.sender.person, b"x = 1\n")
    assert crew.sender.send(file).status == 201
    job = crew.sender.person.post(a_job(), subkind="py", refs=[file.ref], at_ms=now_ms())
    assert crew.submit(job).status == 201
    assert crew.claim(runner, job).status == 200
    result = runner.person.post(a_result(job.ref), refs=[job.ref], at_ms=now_ms())
    assert runner.send(result).status == 201


def check(events: list[dict[str, Any]], texts: list[str], seen: dict[int, Any]) -> None:
    """Numbers follow each other and keep their events; jobs are there whole or not at all."""
    last = -1
    for event in events:
        first = event["data"]["first"] if event["kind"] == "gap" else event["seq"]
        assert first == last + 1
        last = event["seq"]
        if event["kind"] not in ("gap", "forgotten"):
            assert seen.setdefault(event["seq"], event) == event
    assert last >= max(seen)
    envelopes = [e["data"]["envelope"] for e in events if e["kind"] == "item"]
    assert [e for e in envelopes if e in set(texts)] == texts
    assert len(set(envelopes)) == len(envelopes)
    items = [parse_envelope(e).header for e in envelopes]
    jobs = {header.id for header in items if header.kind == "job"}
    answered = {header.refs[0].id for header in items if header.kind == "result"}
    assert jobs == answered
    named = {header.refs[0].id for header in items if header.kind == "job"}
    assert named == {header.id for header in items if header.kind == "file"}
