"""`airlox run` in a session that has run thousands of jobs already, beside a session that is new.

Each run has an empty cache and nothing but the sender's link, as a hosted agent has: it joins,
reads the session as far as it must, posts a job and checks its signed result.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from bench.box import Box, box
from bench.measure import Row, alternate, compile_first, resident_bytes, run

if TYPE_CHECKING:
    from airlox import Session

JOBS = 5_000
AT_ONCE = 4
TIMES = 11
TICK = 500


def rows(jobs: int = JOBS) -> list[Row]:
    compile_first()
    flags = ("--concurrency", str(AT_ONCE), "--sandbox", "process")
    with box(*flags) as new, box(*flags) as old:
        with old.session() as session:
            run_many(session, jobs)
        mine, peer = alternate(from_nothing(old), from_nothing(new), times=TIMES)
        what = f"airlox run, empty cache, after {jobs:,} jobs"
        relays = (resident_bytes(old.relay_pid) / 1e6, resident_bytes(new.relay_pid) / 1e6)
        return [
            Row(what, mine, peer, "ms", "in a new session", "–"),
            Row(f"memory of the relay after {jobs:,} jobs", *relays, "MB", "a new session", "–"),
        ]


def run_many(session: Session, jobs: int) -> None:
    """Jobs of the real kind, several at once."""

    def one(number: int) -> None:
        assert session.run_shell(["true"]).wait(timeout=120).ok
        if number % TICK == 0:
            print(f"  {number:,} of {jobs:,} jobs", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(one, number) for number in range(1, jobs + 1)]:
            done.result()


def from_nothing(machine: Box) -> Callable[[], object]:
    """A call that runs `true` there as somebody who was never there before."""
    with machine.session() as session:
        invite = session.invites["sender"]

    def call() -> None:
        with tempfile.TemporaryDirectory(prefix="airlox-bench-") as cache:
            environ = {"AIRLOX_INVITE": invite, "AIRLOX_CACHE_DIR": cache}
            run(machine.command("run", "--", "true"), env=os.environ | environ)

    return call


if __name__ == "__main__":
    from bench.measure import report

    print(report(rows(int(sys.argv[1]) if sys.argv[1:] else JOBS)))
