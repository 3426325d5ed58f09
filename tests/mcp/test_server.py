"""The server at the SDK's own clients, which speak the newest revision or an older one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import mcp_types as types
import pytest

from airlox import __version__
from airlox.errors import ConnectionLost
from airlox.mcp.results import result_of
from airlox.mcp.server import CACHE_MS, KEY
from airlox.mcp.tool import Answer, Caller
from mcp import Client, MCPError
from support.mcp_client import LEGACY, MODERN, Heard, answering, connected, parameters, run, until
from support.mcp_fixture import WAIT, answer, count, tool

ERAS = pytest.mark.parametrize("mode", [LEGACY, MODERN])


def error_of(result: types.CallToolResult) -> dict[str, Any]:
    assert result.is_error
    assert isinstance(result.structured_content, dict)
    error: dict[str, Any] = result.structured_content["error"]
    return error


def text_of(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


class TestProcesses:
    @pytest.mark.parametrize(
        ("mode", "version"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")]
    )
    def test_lists_and_calls(self, mode: str, version: str) -> None:
        async def test() -> None:
            heard = Heard()
            client = Client(parameters(), mode=mode, elicitation_callback=answering(True, False))
            async with client:
                assert client.protocol_version == version
                assert client.server_info is not None
                assert (client.server_info.name, client.server_info.version) == (
                    "airlox",
                    __version__,
                )
                listed = await client.list_tools()
                names = [tool.name for tool in listed.tools]
                assert names == sorted(names)
                assert "echo" in names
                echoed = await client.call_tool("echo", {"text": "hi ü"})
                assert text_of(echoed) == "hi ü"
                worked = await client.call_tool("work", {"seconds": 1}, progress_callback=heard)
                assert text_of(worked) == "worked"
                assert heard.numbers == sorted(set(heard.numbers))
                assert heard.texts
                assert all(text and text.startswith("step ") for text in heard.texts)
                confirmed = await client.call_tool("confirm", {"what": "it"})
                assert text_of(confirmed) == "True False"

        run(test)


class TestList:
    def test_the_newest_revision_may_keep_it(self) -> None:
        async def test() -> None:
            async with connected(MODERN) as client:
                listed = await client.list_tools()
                assert (listed.ttl_ms, listed.cache_scope) == (CACHE_MS, "public")

        run(test)

    @ERAS
    def test_tools_are_described(self, mode: str) -> None:
        async def test() -> None:
            async with connected(mode) as client:
                first, again = [(await client.list_tools()).tools for _ in range(2)]
                assert first == again
                (echo,) = [tool for tool in first if tool.name == "echo"]
                assert echo.title == "Echo"
                assert echo.input_schema["required"] == ["text"]
                assert echo.output_schema is not None
                assert echo.annotations is not None
                assert echo.annotations.read_only_hint is False
                with pytest.raises(MCPError, match="cursor"):
                    await client.list_tools(cursor="x")

        run(test)


class TestCalls:
    @ERAS
    def test_an_unknown_tool_is_the_protocols_error(self, mode: str) -> None:
        async def test() -> None:
            async with connected(mode) as client:
                with pytest.raises(MCPError, match="no tool 'nope'; tools: child") as caught:
                    await client.call_tool("nope", {})
                assert caught.value.error.code == types.INVALID_PARAMS

        run(test)

    @ERAS
    def test_errors_name_the_next_call(self, mode: str) -> None:
        async def test() -> None:
            async with connected(mode) as client:
                failed = await client.call_tool("fail", {"kind": "error"})
                assert error_of(failed) == {
                    "code": "cannot",
                    "message": "it cannot be",
                    "hint": "call echo",
                }
                assert text_of(failed) == "cannot: it cannot be\ncall echo"
                unfit = await client.call_tool("echo", {"txt": "x"})
                assert error_of(unfit)["message"] == (
                    "echo has no argument 'txt'; its arguments: text"
                )

        run(test)

    @ERAS
    def test_a_bug_is_told_without_its_text(self, mode: str) -> None:
        async def test() -> None:
            async with connected(mode) as client:
                failed = await client.call_tool("fail", {"kind": "bug"})
                assert error_of(failed)["code"] == "bug"
                assert "secret" not in str(failed)
                assert "RuntimeError at mcp/calls.py" in text_of(failed)

        run(test)

    @ERAS
    def test_half_a_pair_of_unicode_is_marked(self, mode: str) -> None:
        async def test() -> None:
            async with connected(mode) as client:
                answered = await client.call_tool("fail", {"kind": "half"})
                assert answered.structured_content == {"text": "half a pair: ?", "also": "?"}

        run(test)

    def test_the_oldest_revisions_get_everything_as_text(self) -> None:
        result = result_of(Answer({"a": 1}, "one"), "2025-03-26")
        assert text_of(result) == 'one\n{"a": 1}'

    @ERAS
    def test_who_calls(self, mode: str) -> None:
        async def test() -> None:
            info = types.Implementation(name="claude-code", version="1")
            async with connected(mode, client_info=info) as client:
                echoed = await client.call_tool("echo", {"text": "hi"})
                assert echoed.structured_content == {"text": "hi", "client": "claude-code"}

        run(test)

    @ERAS
    def test_a_tool_that_does_not_answer_is_answered_for(
        self, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airlox.mcp.server.MARGIN_S", 0.05)

        async def test() -> None:
            async with connected(mode) as client:
                late = await client.call_tool("stuck", {"wait_s": 0})
                assert error_of(late)["code"] == "timeout"
                assert "get_result" in error_of(late)["hint"]

        run(test)

    @ERAS
    def test_a_cancelled_call_stops_its_tool(self, mode: str) -> None:
        stopped = threading.Event()
        begun = threading.Event()

        def wait(_: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
            caller.on_cancel(stopped.set)
            begun.set()
            assert stopped.wait(60)
            assert caller.cancelled
            return answer("stopped")

        async def test() -> None:
            async with connected(mode, [tool("wait", wait)]) as client:
                calling = asyncio.create_task(client.call_tool("wait", {}))
                await until(begun.is_set)
                calling.cancel()
                await until(stopped.is_set)

        run(test)

    @ERAS
    def test_calls_run_side_by_side_up_to_a_bound(
        self, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airlox.mcp.calls.MOST_CALLS", 2)
        both = threading.Barrier(3, timeout=60)

        def wait(_: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
            both.wait()
            return answer("met")

        async def test() -> None:
            async with connected(mode, [tool("wait", wait)]) as client:
                running = [asyncio.create_task(client.call_tool("wait", {})) for _ in range(2)]
                await until(lambda: both.n_waiting == 2)
                assert error_of(await client.call_tool("wait", {}))["code"] == "busy"
                await asyncio.to_thread(both.wait)
                assert [text_of(await each) for each in running] == ["met", "met"]

        run(test)


class TestKeys:
    @ERAS
    def test_a_repeated_call_is_one(self, mode: str) -> None:
        async def test() -> None:
            async with connected(mode) as client:

                async def count(key: str | None) -> Any:
                    meta: Any = None if key is None else {KEY: key}
                    return (await client.call_tool("count", {}, meta=meta)).structured_content

                assert [(await count(key))["count"] for key in ("a", "a", "b", None, None)] == [
                    *(1, 1, 2, 3, 4)
                ]

        run(test)

    @ERAS
    def test_a_call_that_runs_is_joined_and_lives_until_the_last_leaves(self, mode: str) -> None:
        begun: list[Caller] = []
        stopped = threading.Event()

        def wait(_: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
            caller.on_cancel(stopped.set)
            begun.append(caller)
            stopped.wait(60)
            return answer("stopped")

        async def test() -> None:
            tools = [tool("wait", wait, slow=True, wait_s=WAIT), tool("last", count)]
            async with connected(mode, tools) as client:
                meta: Any = {KEY: "a"}
                calls = [
                    asyncio.create_task(client.call_tool("wait", {"wait_s": wait_s}, meta=meta))
                    for wait_s in (1, 50)
                ]
                await until(lambda: begun != [])
                await client.call_tool("last", {})  # answered: those before it have been taken
                calls[0].cancel()
                await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                assert not stopped.is_set()
                calls[1].cancel()
                await until(stopped.is_set)
                assert len(begun) == 1
                assert begun[0].idempotency_key == "a"

        run(test)

    @ERAS
    def test_a_key_stands_for_one_call(self, mode: str) -> None:
        async def test() -> None:
            async with connected(mode) as client:
                meta: Any = {KEY: "a"}
                await client.call_tool("echo", {"text": "1"}, meta=meta)
                reused = await client.call_tool("echo", {"text": "2"}, meta=meta)
                assert error_of(reused)["code"] == "key_reused"
                for bad in ("", "x" * 201, 7):
                    meta = {KEY: bad}
                    refused = await client.call_tool("echo", {"text": "1"}, meta=meta)
                    assert error_of(refused)["code"] == "bad_key"

        run(test)

    @ERAS
    def test_what_failed_may_be_tried_again(self, mode: str) -> None:
        tries: list[int] = []

        def flaky(_: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
            tries.append(1)
            if len(tries) == 1:
                raise ConnectionLost("the relay is away")
            return answer("done")

        async def test() -> None:
            async with connected(mode, [tool("flaky", flaky)]) as client:
                meta: Any = {KEY: "a"}
                first = await client.call_tool("flaky", {}, meta=meta)
                assert error_of(first)["code"] == "connection_lost"
                assert text_of(await client.call_tool("flaky", {}, meta=meta)) == "done"

        run(test)


class TestAsking:
    @ERAS
    @pytest.mark.parametrize(
        ("answers", "said"),
        [((True, True), "True True"), ((True,), "True False"), ((False,), "False None")],
    )
    def test_a_person_answers(self, mode: str, answers: tuple[bool, ...], said: str) -> None:
        async def test() -> None:
            async with connected(mode, elicitation_callback=answering(*answers)) as client:
                confirmed = await client.call_tool("confirm", {"what": "it"})
                assert text_of(confirmed) == said
                assert confirmed.structured_content["done"] == 1

        run(test)

    @ERAS
    def test_a_client_that_cannot_ask(self, mode: str) -> None:
        async def test() -> None:
            async with connected(mode) as client:
                assert text_of(await client.call_tool("confirm", {"what": "it"})) == "None None"

        run(test)

    def test_nobody_answers_in_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("airlox.mcp.calls.ASK_S", 0.05)
        silent = asyncio.Event()

        async def say_nothing(*_: Any) -> types.ElicitResult:
            await silent.wait()
            return types.ElicitResult(action="cancel")

        async def test() -> None:
            async with connected(LEGACY, elicitation_callback=say_nothing) as client:
                late = await client.call_tool("confirm", {"what": "it"})
                assert error_of(late)["code"] == "no_answer"
                silent.set()

        run(test)

    @pytest.mark.slow
    def test_a_person_may_think_longer_than_the_call_may_take(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airlox.mcp.server.MARGIN_S", 0.0)
        monkeypatch.setattr("airlox.mcp.server.WAIT_S", 5.0)

        async def think(*_: Any) -> types.ElicitResult:
            await asyncio.sleep(6.0)
            return types.ElicitResult(action="decline")

        async def test() -> None:
            async with connected(LEGACY, elicitation_callback=think) as client:
                assert text_of(await client.call_tool("confirm", {"what": "it"})) == "False None"

        run(test)

    def test_the_newest_revision_ends_the_call_with_the_question(self) -> None:
        async def test() -> None:
            async with connected(MODERN, elicitation_callback=answering()) as client:
                asked = await client.session.call_tool(
                    "confirm", {"what": "it"}, allow_input_required=True
                )
                assert isinstance(asked, types.InputRequiredResult)
                ((key, request),) = (asked.input_requests or {}).items()
                assert isinstance(request, types.ElicitRequest)
                assert request.params.message == "Do it?"
                yes: Any = {key: types.ElicitResult(action="accept", content={"confirm": True})}

                async def again(what: str, state: str | None) -> Any:
                    return await client.session.call_tool(
                        "confirm",
                        {"what": what},
                        input_responses=yes,
                        request_state=state,
                        allow_input_required=True,
                    )

                # an answer counts for what was asked, and for nothing that was not
                with pytest.raises(MCPError, match="requestState"):
                    await again("something else", asked.request_state)
                with pytest.raises(MCPError, match="requestState"):
                    await again("it", (asked.request_state or "")[:-2] + "AA")
                unasked = await again("it", None)
                assert list(unasked.input_requests) == [key]
                second = await again("it", asked.request_state)
                (request,) = second.input_requests.values()
                assert request.params.message == "Really?"

        run(test)
