"""Clients of the SDK at a server of ours: in one process, or with the server as a child of it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types

from airlox.mcp.calls import Calls
from airlox.mcp.server import build
from airlox.mcp.tool import Tool
from mcp import Client, StdioServerParameters
from support.mcp_fixture import TOOLS, Desk

ROOT = Path(__file__).parent.parent.parent
LEGACY, MODERN = "legacy", "2026-07-28"
TIMEOUT_S = 60.0


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine, which must end in time."""
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))


@asynccontextmanager
async def connected(
    mode: str, tools: Sequence[Tool] = TOOLS, **options: Any
) -> AsyncIterator[Client]:
    """A client at a server in this process."""
    calls = Calls(Desk())  # type: ignore[arg-type]
    async with Client(build(tools, calls), mode=mode, **options) as client:
        yield client
    await calls.close(0.1)  # what a test left stuck is stuck for good


def parameters(*words: str) -> StdioServerParameters:
    """How the fixture server is started, from this tree."""
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "support.mcp_fixture", *words],
        env={"PYTHONPATH": paths},
    )


class Heard:
    """Progress notifications of a call: their numbers and texts."""

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.texts: list[str | None] = []

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.numbers.append(progress)
        self.texts.append(message)


def answering(*answers: bool) -> Any:
    """A person who answers in this order, and then no more."""
    left = list(answers)

    async def answer(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        if not left:
            return types.ElicitResult(action="decline")
        return types.ElicitResult(action="accept", content={"confirm": left.pop(0)})

    return answer


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another task or thread brings about."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)
