"""The tasks extension, at a client of the SDK that declares it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import mcp_types as types
import pytest
from mcp.client.extension import ClientExtension, ResultClaim
from pydantic import ConfigDict

from airlox.errors import UsageError
from airlox.mcp.server import KEY
from airlox.mcp.tasks import EXTENSION, GRACE_S, TTL_MS
from airlox.mcp.tool import Answer, Caller, Tool
from mcp import Client, MCPError
from support.mcp_client import MODERN, TIMEOUT_S, answering, connected, run, until
from support.mcp_fixture import SECONDS, WAIT, answer, tool


class Created(types.Result):
    """What a client of the extension gets in place of a result."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class TasksExtension(ClientExtension):
    identifier = EXTENSION

    def claims(self) -> list[ResultClaim[Any]]:
        async def resolve(created: Created, context: Any) -> types.CallToolResult:
            raise AssertionError("the tests look at tasks themselves")

        return [ResultClaim(result_type="task", model=Created, resolve=resolve)]


class AnyRequest(types.Request[dict[str, Any], str]):
    method: str
    params: dict[str, Any]


class AnyResult(types.Result):
    model_config = ConfigDict(extra="allow")


class Tasks:
    """The three methods of the extension, as a client calls them."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, name: str, key: str | None = None, **arguments: Any) -> Any:
        meta: Any = None if key is None else {KEY: key}
        return await self.client.session.call_tool(
            name, arguments, meta=meta, allow_claimed=True, allow_input_required=True
        )

    async def ask(self, method: str, task: str, **params: Any) -> dict[str, Any]:
        request = AnyRequest(method=f"tasks/{method}", params={"taskId": task, **params})
        result = await self.client.session.send_request(request, AnyResult)
        return result.model_dump(by_alias=True)

    async def until(self, task: str, status: str) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT_S):
            while (seen := await self.ask("get", task))["status"] != status:
                assert seen["status"] in ("working", "input_required"), seen
                await asyncio.sleep(0.01)
        return seen


@asynccontextmanager
async def tasks(*tools: Tool, **options: Any) -> AsyncIterator[Tasks]:
    options = {"extensions": [TasksExtension()], **options}
    async with connected(MODERN, tools, **options) as client:
        yield Tasks(client)


class Held:
    """A tool that goes on until it is let go or cancelled."""

    def __init__(self, after: str = "done") -> None:
        self.go = threading.Event()
        self.cancelled = threading.Event()
        self.begun = 0
        self.waits: list[Any] = []
        self.after = after

    def __call__(self, desk: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
        self.begun += 1
        self.waits.append(arguments.get("wait_s"))
        caller.on_cancel(self.cancelled.set)
        caller.on_cancel(self.go.set)
        caller.progress("half of it")
        assert self.go.wait(TIMEOUT_S)
        if self.after == "error":
            raise UsageError("it cannot be")
        if self.after == "bug":
            raise RuntimeError("a secret")
        return answer(self.after)

    @property
    def tool(self) -> Tool:
        return tool("held", self, slow=True, wait_s=WAIT)


class TestLife:
    @pytest.mark.parametrize(
        ("after", "status"), [("done", "completed"), ("error", "completed"), ("bug", "failed")]
    )
    def test_a_slow_call_is_a_task(self, after: str, status: str) -> None:
        async def test() -> None:
            held = Held(after)
            async with tasks(held.tool) as client:
                created = await client.call("held")
                assert isinstance(created, Created)
                assert created.status == "working"
                seen = await client.ask("get", created.task_id)
                assert seen["status"] == "working"
                assert seen["statusMessage"] == "half of it"
                assert seen["ttlMs"] == TTL_MS
                held.go.set()
                ended = await client.until(created.task_id, status)
                if after == "bug":
                    assert ended["error"]["code"] == types.INTERNAL_ERROR
                    assert "secret" not in str(ended)
                else:
                    assert ended["result"]["isError"] is (after == "error")
                    assert after in ended["result"]["content"][0]["text"] or after == "error"

        run(test)

    def test_a_task_waits_as_long_as_its_tool_may(self) -> None:
        async def test() -> None:
            held = Held()
            async with tasks(held.tool) as client:
                await client.call("held")
                await client.call("held", wait_s=7)
                await until(lambda: held.begun == 2)
                assert held.waits == [WAIT["maximum"], 7]
                held.go.set()

        run(test)

    def test_a_quick_call_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("airlox.mcp.server.GRACE_S", TIMEOUT_S)

        async def test() -> None:
            held = Held()
            held.go.set()
            async with tasks(held.tool) as client:
                assert isinstance(await client.call("held"), types.CallToolResult)

        run(test)

    def test_a_client_without_the_extension_gets_none(self) -> None:
        async def test() -> None:
            held = Held()
            async with tasks(held.tool, extensions=[]) as client:
                calling = asyncio.create_task(client.call("held"))
                await asyncio.sleep(2 * GRACE_S)
                assert not calling.done()
                held.go.set()
                assert isinstance(await calling, types.CallToolResult)
                assert held.waits == [None]
                for method in ("get", "update", "cancel"):
                    with pytest.raises(MCPError) as caught:
                        await client.ask(method, "x", inputResponses={})
                    assert caught.value.error.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY

        run(test)

    def test_cancelling_stops_the_tool(self) -> None:
        async def test() -> None:
            held = Held()
            async with tasks(held.tool) as client:
                task = (await client.call("held")).task_id
                for _ in range(2):
                    await client.ask("cancel", task)
                    assert (await client.ask("get", task))["status"] == "cancelled"
                await until(held.cancelled.is_set)
                await asyncio.sleep(0.05)
                assert (await client.ask("get", task))["status"] == "cancelled"

        run(test)

    def test_a_repeated_call_is_one_task(self) -> None:
        async def test() -> None:
            held = Held()
            async with tasks(held.tool) as client:
                first, again = [(await client.call("held", "a")).task_id for _ in range(2)]
                assert first == again
                assert held.begun == 1
                held.go.set()
                await client.until(first, "completed")

        run(test)

    def test_a_full_table_leaves_calls_as_they_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("airlox.mcp.tasks.MOST_TASKS", 1)
        monkeypatch.setattr("airlox.mcp.server.MARGIN_S", 0.0)

        async def test() -> None:
            held = Held()
            async with tasks(held.tool) as client:
                first = await client.call("held", wait_s=7)
                late = await client.call("held", wait_s=0.1)
                assert isinstance(late, types.CallToolResult)
                assert late.is_error
                held.go.set()
                await client.until(first.task_id, "completed")
                monkeypatch.setattr("airlox.mcp.tasks.TTL_MS", 0)
                time.sleep(0.01)
                held.go.clear()
                assert isinstance(await client.call("held"), Created)
                held.go.set()

        run(test)

    def test_unknown_ones(self) -> None:
        async def test() -> None:
            async with tasks() as client:
                for method in ("get", "update", "cancel"):
                    with pytest.raises(MCPError, match="no such task"):
                        await client.ask(method, "x", inputResponses={})

        run(test)


class TestAsking:
    def test_a_task_waits_for_the_answer(self) -> None:
        is_task = threading.Event()

        def ask(desk: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
            assert is_task.wait(TIMEOUT_S)
            return answer(str([caller.ask(f"Really {n}?", title="Really") for n in (1, 2)]))

        async def test() -> None:
            asking = tool("ask", ask, slow=True, seconds=SECONDS)
            async with tasks(asking, elicitation_callback=answering()) as client:
                task = (await client.call("ask")).task_id
                is_task.set()
                for number, word in enumerate(("accept", "decline"), 1):
                    seen = await client.until(task, "input_required")
                    ((key, request),) = seen["inputRequests"].items()
                    assert request["method"] == "elicitation/create"
                    assert request["params"]["message"] == f"Really {number}?"
                    said = {"action": word, "content": {"confirm": True}}
                    with pytest.raises(MCPError, match="inputResponses"):
                        await client.ask("update", task, inputResponses=[said])
                    await client.ask("update", task, inputResponses={"other": said})
                    assert (await client.ask("get", task))["status"] == "input_required"
                    await client.ask("update", task, inputResponses={key: said})
                ended = await client.until(task, "completed")
                assert ended["result"]["content"][0]["text"] == "[True, False]"

        run(test)
