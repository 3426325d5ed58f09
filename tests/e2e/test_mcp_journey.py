"""The whole way through the tools over the SDK's client, to a server in a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp import Client, StdioServerParameters
from support.mcp_client import LEGACY, answering
from support.mcp_journey import journey
from support.relay import RelayThread

pytestmark = pytest.mark.slow

CALL_S = 120.0
OWNERS = "ok="
"""What only an owner's link holds."""


@pytest.mark.parametrize("mode", [LEGACY, "auto"])
def test_from_a_new_session_to_its_verified_trail(tmp_path: Path, mode: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    said: list[str] = []

    async def go(relay_url: str) -> None:
        words = ["--relay", relay_url, "--allow-dir", str(work)]
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "airlox.cli", "mcp", *words],
            env={
                "AIRLOX_CACHE_DIR": str(tmp_path / "cache"),
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            },
        )
        loop = asyncio.get_running_loop()
        person = answering(True, True)  # who approves the runner and closes the session
        async with Client(server, mode=mode, elicitation_callback=person) as client:

            def call(name: str, **arguments: Any) -> dict[str, Any]:
                asked = client.call_tool(name, arguments)
                result = asyncio.run_coroutine_threadsafe(asked, loop).result(CALL_S)
                said.append(result.model_dump_json())
                assert not result.is_error, result
                answer: dict[str, Any] | None = result.structured_content
                assert answer is not None
                return answer

            handle = await asyncio.to_thread(journey, call, work, tmp_path / "runner")
            closed = await asyncio.to_thread(call, "close_session", session=handle)
            assert closed["closed"]

    with RelayThread() as relay:
        asyncio.run(asyncio.wait_for(go(relay.url), 2 * CALL_S))
    assert len(said) >= 8
    assert not [answer for answer in said if OWNERS in answer]
