"""Jobs one after another on a real runner: who has seen a result finds its slot free."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airlox import Session
from support.machines import RelayProgram, RunnerProgram

WAIT_S = 60.0
SLOTS = 3
JOBS = 30


@pytest.mark.slow
def test_no_job_is_refused_while_there_is_a_slot(tmp_path: Path) -> None:
    """P-REL-10: as many senders as slots, each with its next job as soon as the last is over."""
    with (
        RelayProgram(tmp_path / "relay") as relay,
        Session.create(
            relay.url,
            mode="execute",
            job_limits={"kinds": ["shell"], "approve_runners": False},
            cache_dir=tmp_path / "cache",
        ) as session,
        RunnerProgram(session.invites["runner"], tmp_path / "runner", concurrency=SLOTS) as runner,
    ):
        runner.note("ready")

        def send_all(sender: int) -> int:
            results = (
                session.run_shell(f"echo {sender} {number}", runner="box").wait(WAIT_S)
                for number in range(JOBS)
            )
            return sum(result.ok for result in results)

        with ThreadPoolExecutor(SLOTS) as senders:
            assert list(senders.map(send_all, range(SLOTS))) == [JOBS] * SLOTS
