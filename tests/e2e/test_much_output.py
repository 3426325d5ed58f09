"""A job that prints a gigabyte: what runner and relay hold is bounded, and the end arrives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airlox import Session
from airlox.protocol.limits import OUTPUT_BYTES
from support.machines import RelayProgram, RunnerProgram
from support.measured import peak_kb

WAIT_S = 300.0
PRINTED = 1_000_000_000
GROWTH_KB = 48 * 1024
LINE = "0123456789abcde"
TAIL_BYTES = 100_000
"""Far less than the relay's ring, the runner's buffer and a result hold of the end."""


def _session(relay: str, folder: Path) -> Session:
    runtime = f"python3.{sys.version_info[1]}"
    limits = {"runtime": runtime, "kinds": ["shell"], "approve_runners": False}
    return Session.create(relay, mode="execute", job_limits=limits, cache_dir=folder / "owner")


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", ["process", "local"])
def test_memory_is_flat_and_the_last_bytes_are_there(tmp_path: Path, sandbox: str) -> None:
    with (
        RelayProgram(tmp_path / "relay") as relay,
        _session(relay.url, tmp_path) as session,
        RunnerProgram(session.invites["runner"], tmp_path / "runner", sandbox=sandbox) as runner,
    ):
        runner.note("ready")
        session.run_shell(f"yes {LINE} | head -c 10000000", runner="box").wait(WAIT_S)
        before = [peak_kb(runner.pid), peak_kb(relay.pid)]
        script = f"yes {LINE} | head -c {PRINTED}; echo last words; echo to stderr >&2"
        job = session.run_shell(script, runner="box")
        tail = {"stdout": b"", "stderr": b""}
        seen = 0
        for piece in job.output(WAIT_S):
            tail[piece.stream] = (tail[piece.stream] + piece.data)[-TAIL_BYTES:]
            assert piece.offset >= seen
            seen = piece.offset + len(piece.data)
        result = job.wait(WAIT_S)
        after = [peak_kb(runner.pid), peak_kb(relay.pid)]
    assert (result.status, result.exit_code) == ("completed", 0)
    for grown in (now - then for now, then in zip(after, before, strict=True)):
        assert grown < GROWTH_KB, (before, after)
    line = f"{LINE}\n".encode()
    assert tail["stdout"].endswith(line * 1000 + b"last words\n")
    assert tail["stderr"].endswith(b"to stderr\n")
    assert b"bytes left out of the live output]\n" in tail["stderr"]
    assert result.stdout_truncated
    assert not result.stderr_truncated
    assert len(result.stdout.encode()) <= OUTPUT_BYTES
    assert result.stdout.startswith(f"{LINE}\n" * 1000)
    assert result.stdout.endswith(f"{LINE}\n" * 1000 + "last words\n")
    assert "bytes left out here]" in result.stdout
    assert result.live is not None
    left_out = result.live.dropped_bytes
    assert left_out > PRINTED // 2
    assert seen == result.live.stdout_bytes + result.live.stderr_bytes
    assert result.live.stdout_bytes + left_out == PRINTED + len("last words\n")
