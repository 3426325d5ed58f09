"""Agents at `airlox mcp`: real server, relay and runner, and the SDK's clients."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult

from airlox.mcp.server import KEY
from mcp import Client, StdioServerParameters
from support.commands import TIMEOUT_S, Room, open_room
from support.mcp_client import LEGACY, MODERN, Heard, run
from support.mcp_raw import raw_server
from support.server import ServerProcess, server

pytestmark = pytest.mark.slow
ERAS = pytest.mark.parametrize("mode", [LEGACY, MODERN])
LONG = "echo begun; i=0; while [ $i -lt 600 ]; do echo line $i; i=$((i+1)); sleep 0.1; done"

PATIENT = """
import sys
from airlox.cli.main import main
from airlox.mcp import life
life.END_S = life.CLOSE_S = 60
sys.exit(main(sys.argv[1:]))
"""
"""`airlox` on a machine so slow that the end takes its time."""


@pytest.fixture
def relay() -> Iterator[ServerProcess]:
    with server("--ephemeral") as running:
        yield running


@pytest.fixture
def room(relay: ServerProcess, tmp_path: Path) -> Iterator[Room]:
    with open_room(relay.url, tmp_path / "homes") as opened:
        yield opened


def command(room: Room, home: Path) -> tuple[list[str], dict[str, str]]:
    """How an agent starts the server as the session's sender: its words and environment."""
    home.mkdir(exist_ok=True)
    environ = {
        "AIRLOX_INVITE": room.sender.invite,
        "AIRLOX_CACHE_DIR": str(home / "cache"),
        "AIRLOX_RELAY": room.sender.relay,
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    return ["-m", "airlox.cli", "mcp", "--allow-dir", str(home)], environ


def agent(room: Room, home: Path, mode: str, **options: Any) -> Client:
    words, environ = command(room, home)
    (home / "work").mkdir(exist_ok=True, parents=True)
    words[-1] = str(home / "work")
    parameters = StdioServerParameters(command=sys.executable, args=words, env=environ, cwd=home)
    return Client(parameters, mode=mode, **options)


def structured(result: CallToolResult) -> dict[str, Any]:
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


def jobs(room: Room) -> list[Any]:
    found: list[Any] = room.owner("job", "ls", "--json").document["jobs"]
    return found


@ERAS
def test_live_output_and_one_job_for_one_key(room: Room, tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        heard = Heard()
        async with agent(room, tmp_path / "agent", mode) as client:
            script = "for n in 1 2 3 4 5 6; do echo line $n; sleep 0.4; done"
            given = {"script": script, "wait_s": int(TIMEOUT_S)}
            meta: Any = {KEY: "the-one"}
            calls = [
                client.call_tool("run", given, meta=meta, progress_callback=each)
                for each in (heard, None)
            ]
            first, again = [structured(each) for each in await asyncio.gather(*calls)]
            assert first["exit_code"] == 0
            assert first["job"] == again["job"]
            later = structured(await client.call_tool("run", given, meta=meta))
            assert later["job"] == first["job"]
            assert any("line" in (text or "") for text in heard.texts), heard.texts
        assert len(jobs(room)) == 1

    run(test)


@ERAS
def test_cancelling_stops_the_job_on_the_runner(room: Room, tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        begun = asyncio.Event()

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            if "line" in (message or ""):
                begun.set()

        async with agent(room, tmp_path / "agent", mode) as client:
            given = {"script": LONG, "wait_s": 600}
            calling = asyncio.create_task(client.call_tool("run", given, progress_callback=hear))
            await asyncio.wait_for(begun.wait(), TIMEOUT_S)
            calling.cancel()
            await asyncio.wait({calling})
            await until_status(room, "cancelled")

    run(test)


async def until_status(room: Room, status: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            (job,) = await asyncio.to_thread(jobs, room)
            if job["status"] == status:
                return
            await asyncio.sleep(0.2)


def test_a_call_answers_with_a_handle_and_another_goes_on(room: Room, tmp_path: Path) -> None:
    async def test() -> None:
        async with agent(room, tmp_path / "agent", MODERN) as client:
            script = "sleep 3; echo done"
            sent = structured(await client.call_tool("run", {"script": script, "wait_s": 1}))
            assert sent["status"] != "completed"
            given = {"job": sent["job"], "wait_s": int(TIMEOUT_S)}
            ended = structured(await client.call_tool("get_result", given))
            assert (ended["status"], ended["stdout"]) == ("completed", "done\n")

    run(test)


def test_the_relay_goes_and_calls_answer_in_time(
    room: Room, relay: ServerProcess, tmp_path: Path
) -> None:
    async def test() -> None:
        begun = asyncio.Event()

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            begun.set()

        async with agent(room, tmp_path / "agent", MODERN) as client:
            structured(await client.call_tool("session_info", {}))
            given = {"script": LONG, "wait_s": 5}
            calling = asyncio.create_task(client.call_tool("run", given, progress_callback=hear))
            await asyncio.wait_for(begun.wait(), TIMEOUT_S)
            os.kill(relay.process.pid, signal.SIGSTOP)
            try:
                started_s = time.monotonic()
                answered = [
                    await calling,
                    await client.call_tool("list_items", {"wait_s": 1}),
                    await client.call_tool("run", {"script": "true", "wait_s": 1}),
                ]
                assert len(answered) == 3
                assert time.monotonic() - started_s < TIMEOUT_S  # each within its wait and 5 s
            finally:
                os.kill(relay.process.pid, signal.SIGCONT)
            info = await client.call_tool("session_info", {})
            assert not info.is_error, info.content

    run(test)


def test_the_agents_death_cancels_its_call_and_leaves_nothing(room: Room, tmp_path: Path) -> None:
    words, environ = command(room, tmp_path / "agent")
    (tmp_path / "agent" / "work").mkdir()
    words[-1] = str(tmp_path / "agent" / "work")
    argv = [sys.executable, "-c", PATIENT, *words[2:]]
    with raw_server(argv, env=os.environ | environ) as running:
        running.call(1, "run", script=LONG, wait_s=600)

        async def started() -> None:
            async with asyncio.timeout(TIMEOUT_S):
                while not await asyncio.to_thread(jobs, room):
                    await asyncio.sleep(0.2)

        run(started)
        running.end_input()
        assert running.process.wait(TIMEOUT_S) == 0
    run(lambda: until_status(room, "cancelled"))


@ERAS
@pytest.mark.parametrize("agrees", [True, False])
def test_the_person_is_asked_before_a_session_is_closed(
    relay: ServerProcess, tmp_path: Path, mode: str, agrees: bool
) -> None:
    asked: list[str] = []

    async def person(context: Any, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"confirm": agrees})

    async def test() -> None:
        (tmp_path / "work").mkdir()
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-m", "airlox.cli", "mcp", "--relay", relay.url, "--allow-dir", "work"],
            env={"AIRLOX_CACHE_DIR": str(tmp_path / "cache")},
            cwd=tmp_path,
        )
        async with Client(parameters, mode=mode, elicitation_callback=person) as client:
            structured(await client.call_tool("create_session", {}))
            closed = await client.call_tool("close_session", {})
            assert closed.is_error is not agrees
            assert len(asked) == 1
            info = await client.call_tool("session_info", {})
            assert info.is_error is agrees

    run(test)
