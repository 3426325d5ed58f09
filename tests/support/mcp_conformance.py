"""The server that the protocol's conformance suite expects, on the product's protocol layer.

`python -m support.mcp_conformance` serves over HTTP without a token. The suite calls tools, prompts
and resources of given names. Tools that need no more than the product's layer offers are tools of
that layer; for what the product has no use for (images, sampling, prompts, resources), handlers are
added to its server.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata

from airlox.errors import UsageError
from airlox.mcp.calls import Calls
from airlox.mcp.http import address, listening, serve_on
from airlox.mcp.server import build, log_to_stderr
from airlox.mcp.tool import Answer, Caller, Tool
from support.mcp_fixture import Desk, answer, note, tool

Context = ServerRequestContext[Any, Any]
Params = types.CallToolRequestParams
Raw = Callable[[Context, Params], Awaitable[Any]]

PNG: Final = base64.b64encode(
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
    )
).decode()
WAV: Final = base64.b64encode(
    b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0\x80>\0\0\2\0\x10\0data\0\0\0\0"
).decode()
LONG_S: Final = 1.5
"""After so long a call has become a task, also on a machine under load."""
TEXT: Final = {"type": "string", "description": "a text"}
NUMBER: Final = {"type": "number", "description": "a number"}


def said(*content: types.ContentBlock) -> types.CallToolResult:
    return types.CallToolResult(content=list(content))


def text(words: str) -> types.TextContent:
    return types.TextContent(text=words)


def image() -> types.ImageContent:
    return types.ImageContent(data=PNG, mime_type="image/png")


def embedded(uri: str, mime_type: str, words: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(
        resource=types.TextResourceContents(uri=uri, mime_type=mime_type, text=words)
    )


# -- tools of the product's layer -------------------------------------------------------------


def simple(desk: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
    return answer("This is a simple text response for testing.")


def error(desk: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
    raise UsageError("This tool intentionally returns an error for testing")


def progress(desk: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
    for percent in (0, 50, 100):
        caller.progress(f"{percent} of 100")
        time.sleep(0.5)
    return answer("done")


def greet(desk: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
    return answer(f"Hello, {arguments['name']}!")


def slow_compute(desk: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
    stop = threading.Event()
    caller.on_cancel(stop.set)
    stop.wait(arguments.get("seconds", 0))
    return answer("computed")


def failing_job(desk: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
    time.sleep(LONG_S)
    raise UsageError("the job failed")


def protocol_error_job(desk: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
    time.sleep(LONG_S)
    raise RuntimeError("a bug")


def confirm_delete(desk: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
    time.sleep(LONG_S)
    agreed = caller.ask(f"Delete {arguments['filename']}?", title="Delete")
    return answer("deleted" if agreed else "kept")


def multi_input(desk: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
    time.sleep(LONG_S)
    with ThreadPoolExecutor(2) as threads:
        asked = threads.map(lambda word: caller.ask(f"Is it {word}?", title=word), ("a", "b"))
        return answer(str(list(asked)))


def with_task(desk: Any, arguments: dict[str, Any], caller: Caller) -> Answer:
    agreed = caller.ask("What is your name?", title="name")  # before the call becomes a task
    time.sleep(LONG_S)
    return answer(f"said {agreed}")


TOOLS: Final[tuple[Tool, ...]] = (
    tool("test_simple_text", simple),
    tool("test_error_handling", error),
    tool("test_tool_with_progress", progress),
    tool("greet", greet, name=TEXT),
    tool("slow_compute", slow_compute, slow=True, seconds=NUMBER, label=TEXT),
    tool("failing_job", failing_job, slow=True),
    tool("protocol_error_job", protocol_error_job, slow=True),
    tool("confirm_delete", confirm_delete, slow=True, filename=TEXT),
    tool("multi_input", multi_input, slow=True),
    tool("test_tool_with_task", with_task, slow=True),
)


# -- tools beyond it --------------------------------------------------------------------------


async def test_image_content(ctx: Context, params: Params) -> types.CallToolResult:
    return said(image())


async def test_audio_content(ctx: Context, params: Params) -> types.CallToolResult:
    return said(types.AudioContent(data=WAV, mime_type="audio/wav"))


async def test_embedded_resource(ctx: Context, params: Params) -> types.CallToolResult:
    words = "This is an embedded resource content."
    return said(embedded("test://embedded-resource", "text/plain", words))


async def test_multiple_content_types(ctx: Context, params: Params) -> types.CallToolResult:
    words = json.dumps({"test": "data", "value": 123})
    resource = embedded("test://mixed-content-resource", "application/json", words)
    return said(text("Multiple content types test:"), image(), resource)


async def test_tool_with_logging(ctx: Context, params: Params) -> types.CallToolResult:
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        log = types.LoggingMessageNotificationParams(level="info", data=words)
        await ctx.session.send_notification(
            types.LoggingMessageNotification(params=log), related_request_id=ctx.request_id
        )
        await asyncio.sleep(0.05)
    return said(text("logged"))


async def test_logging_tool(ctx: Context, params: Params) -> types.CallToolResult:
    return said(text("logs only where it is asked to"))


async def test_sampling(ctx: Context, params: Params) -> types.CallToolResult:
    request = types.CreateMessageRequest(params=sampling((params.arguments or {})["prompt"], 100))
    related = ServerMessageMetadata(related_request_id=ctx.request_id)
    result = await ctx.session.send_request(request, types.CreateMessageResult, metadata=related)
    return said(text(f"LLM response: {spoken(result)}"))


def sampling(prompt: str, most: int) -> types.CreateMessageRequestParams:
    message = types.SamplingMessage(role="user", content=text(prompt))
    return types.CreateMessageRequestParams(messages=[message], max_tokens=most)


def spoken(result: types.CreateMessageResult) -> str:
    return result.content.text if isinstance(result.content, types.TextContent) else ""


def form(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


def eliciting(named: str, schema: dict[str, Any]) -> Raw:
    """A tool that asks the older revisions' way."""

    async def ask(ctx: Context, params: Params) -> types.CallToolResult:
        message = (params.arguments or {}).get("message", "Please answer")
        result = await ctx.session.elicit_form(message, schema, related_request_id=ctx.request_id)
        return said(text(f"{named}: action={result.action}, content={result.content}"))

    return ask


DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {
        "type": "string",
        "enum": ["active", "inactive", "pending"],
        "default": "active",
    },
    "verified": {"type": "boolean", "default": True},
}
_OPTIONS = ["option1", "option2", "option3"]
_TITLED = [{"const": f"value{n}", "title": f"{word} Option"} for n, word in enumerate("ABC", 1)]
ENUMS: Final[dict[str, dict[str, Any]]] = {
    "untitledSingle": {"type": "string", "enum": _OPTIONS},
    "titledSingle": {"type": "string", "oneOf": _TITLED},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _OPTIONS}},
    "titledMulti": {"type": "array", "items": {"anyOf": _TITLED}},
}


async def test_missing_capability(ctx: Context, params: Params) -> types.CallToolResult:
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            "sampling is needed",
            {"requiredCapabilities": {"sampling": {}}},
        )
    return said(text("sampling is there"))


async def nothing(ctx: Context, params: Params) -> types.CallToolResult:
    return said(text("nothing to do"))


# -- input that a result asks for -------------------------------------------------------------


def elicited(message: str, **fields: dict[str, Any]) -> types.ElicitRequest:
    params = types.ElicitRequestFormParams(message=message, requested_schema=form(**fields))
    return types.ElicitRequest(params=params)


NAME: Final = elicited("What is your name?", name={"type": "string"})
ROOTS: Final = types.ListRootsRequest()


def asks(requests: dict[str, Any], state: str | None = None) -> types.InputRequiredResult:
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def requiring(requests: dict[str, Any], state: str | None = None) -> Raw:
    """A tool that needs all of these answers, and says them."""

    async def ask(ctx: Context, params: Params) -> Any:
        given = params.input_responses or {}
        if not requests.keys() <= given.keys() or params.request_state != state:
            return asks(requests, state)
        words = [str(given[key].model_dump(by_alias=True)) for key in requests]
        return said(text(f"state-ok {' '.join(words)}"))

    return ask


async def multi_round(ctx: Context, params: Params) -> Any:
    given = params.input_responses or {}
    if params.request_state == "one" and "step1" in given:
        color = elicited("Step 2: What is your favorite color?", color={"type": "string"})
        return asks({"step2": color}, "two")
    if params.request_state == "two" and "step2" in given:
        return said(text("complete"))
    return asks({"step1": elicited("Step 1: What is your name?", name={"type": "string"})}, "one")


async def by_capabilities(ctx: Context, params: Params) -> Any:
    if params.input_responses:
        return said(text("complete"))
    capabilities = ctx.session.client_capabilities or types.ClientCapabilities()
    requests: dict[str, Any] = {}
    if capabilities.elicitation is not None:
        requests["user_name"] = NAME
    if capabilities.sampling is not None:
        requests["greeting"] = sampled("Generate a greeting", 50)
    return asks(requests, "asked")


def sampled(prompt: str, most: int) -> types.CreateMessageRequest:
    return types.CreateMessageRequest(params=sampling(prompt, most))


OK: Final = elicited("Please confirm", ok={"type": "boolean"})
PREFIX: Final = "test_input_required_result_"
RAW: Final[dict[str, Raw]] = {
    "test_image_content": test_image_content,
    "test_audio_content": test_audio_content,
    "test_embedded_resource": test_embedded_resource,
    "test_multiple_content_types": test_multiple_content_types,
    "test_tool_with_logging": test_tool_with_logging,
    "test_logging_tool": test_logging_tool,
    "test_sampling": test_sampling,
    "test_elicitation": eliciting(
        "User response", form(username={"type": "string"}, email={"type": "string"})
    ),
    "test_elicitation_sep1034_defaults": eliciting("Elicitation completed", form(**DEFAULTS)),
    "test_elicitation_sep1330_enums": eliciting("Elicitation completed", form(**ENUMS)),
    "test_missing_capability": test_missing_capability,
    "test_streaming_elicitation": requiring({"user_name": NAME}),
    "json_schema_2020_12_tool": nothing,
    "test_x_mcp_header": nothing,
    f"{PREFIX}elicitation": requiring({"user_name": NAME}),
    f"{PREFIX}sampling": requiring(
        {"capital_question": sampled("What is the capital of France?", 100)}
    ),
    f"{PREFIX}list_roots": requiring({"client_roots": ROOTS}),
    f"{PREFIX}request_state": requiring({"confirm": OK}, "asked"),
    f"{PREFIX}multiple_inputs": requiring(
        {"user_name": NAME, "greeting": sampled("Generate a greeting", 50), "client_roots": ROOTS},
        "asked",
    ),
    f"{PREFIX}multi_round": multi_round,
    f"{PREFIX}tampered_state": requiring({"confirm": OK}, "asked"),
    f"{PREFIX}capabilities": by_capabilities,
}


# -- schemas of those tools -------------------------------------------------------------------

OBJECT: Final = {"type": "object", "properties": {}}
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "test_sampling": form(prompt=TEXT),
    "test_elicitation": form(message=TEXT),
    "test_x_mcp_header": form(region={**TEXT, "x-mcp-header": "Region"}),
    "json_schema_2020_12_tool": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
}


def schema_of(name: str) -> dict[str, Any] | None:
    found = [own.input_schema for own in TOOLS if own.name == name]
    return found[0] if found else SCHEMAS.get(name, OBJECT)


# -- prompts and resources --------------------------------------------------------------------


def user(content: types.ContentBlock) -> types.PromptMessage:
    return types.PromptMessage(role="user", content=content)


def prompt(name: str, *arguments: str) -> types.Prompt:
    given = [types.PromptArgument(name=each, description=each, required=True) for each in arguments]
    return types.Prompt(name=name, description=f"{name} for tests", arguments=given)


PROMPTS: Final = [
    prompt("test_input_required_result_prompt"),
    prompt("test_prompt_with_arguments", "arg1", "arg2"),
    prompt("test_prompt_with_embedded_resource", "resourceUri"),
    prompt("test_prompt_with_image"),
    prompt("test_simple_prompt"),
]


async def list_prompts(ctx: Context, params: Any) -> types.ListPromptsResult:
    return types.ListPromptsResult(prompts=PROMPTS)


async def get_prompt(ctx: Context, params: types.GetPromptRequestParams) -> Any:
    given = params.arguments or {}
    match params.name:
        case "test_simple_prompt":
            messages = [user(text("This is a simple prompt for testing."))]
        case "test_prompt_with_arguments":
            words = f"arg1='{given['arg1']}', arg2='{given['arg2']}'"
            messages = [user(text(f"Prompt with arguments: {words}"))]
        case "test_prompt_with_embedded_resource":
            words = "Embedded resource content for testing."
            messages = [
                user(embedded(given["resourceUri"], "text/plain", words)),
                user(text("Please process the embedded resource above.")),
            ]
        case "test_prompt_with_image":
            messages = [user(image()), user(text("Please analyze the image above."))]
        case "test_input_required_result_prompt" if not params.input_responses:
            question = "What context should the prompt use?"
            return asks({"user_context": elicited(question, context={"type": "string"})})
        case _:
            messages = [user(text("complete"))]
    return types.GetPromptResult(messages=messages)


async def list_resources(ctx: Context, params: Any) -> types.ListResourcesResult:
    resources = [
        types.Resource(uri=f"test://static-{kind}", name=kind, description=kind, mime_type=mime)
        for kind, mime in (("binary", "image/png"), ("text", "text/plain"))
    ]
    return types.ListResourcesResult(resources=resources)


async def list_templates(ctx: Context, params: Any) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(
        uri_template="test://template/{id}/data", name="data", description="data by id"
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(
    ctx: Context, params: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    uri = str(params.uri)
    content: types.TextResourceContents | types.BlobResourceContents
    if uri == "test://static-text":
        words = "This is the content of the static text resource."
        content = types.TextResourceContents(uri=uri, mime_type="text/plain", text=words)
    elif uri == "test://static-binary":
        content = types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)
    elif uri.startswith("test://template/"):
        number = uri.split("/")[3]
        words = json.dumps({"id": number, "templateTest": True, "data": f"Data for ID: {number}"})
        content = types.TextResourceContents(uri=uri, mime_type="application/json", text=words)
    else:
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})
    return types.ReadResourceResult(contents=[content])


async def complete(ctx: Context, params: Any) -> types.CompleteResult:
    return types.CompleteResult(completion=types.Completion(values=["paris", "park", "party"]))


async def accept(ctx: Context, params: Any) -> types.EmptyResult:
    return types.EmptyResult()


# -- the server -------------------------------------------------------------------------------


def extended(server: Server[Any]) -> Server[Any]:
    """The product's server with what the suite wants besides."""
    call = server.get_request_handler("tools/call")
    listing = server.get_request_handler("tools/list")
    assert call is not None
    assert listing is not None

    async def call_tool(ctx: Context, params: Params) -> Any:
        raw = RAW.get(params.name)
        return await (call.handler(ctx, params) if raw is None else raw(ctx, params))

    async def list_tools(ctx: Context, params: Any) -> types.ListToolsResult:
        listed = await listing.handler(ctx, params)
        assert isinstance(listed, types.ListToolsResult)
        listed.tools += [
            types.Tool(name=name, description=name, input_schema=SCHEMAS.get(name, OBJECT))
            for name in RAW
        ]
        return listed

    paged = types.PaginatedRequestParams
    server.get_tool_input_schema = schema_of
    server.add_request_handler("tools/call", Params, call_tool)
    server.add_request_handler("tools/list", paged, list_tools)
    server.add_request_handler("prompts/list", paged, list_prompts)
    server.add_request_handler("prompts/get", types.GetPromptRequestParams, get_prompt)
    server.add_request_handler("resources/list", paged, list_resources)
    server.add_request_handler("resources/templates/list", paged, list_templates)
    server.add_request_handler("resources/read", types.ReadResourceRequestParams, read_resource)
    server.add_request_handler("completion/complete", types.CompleteRequestParams, complete)
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, accept)
    server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, accept)
    server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, accept)
    return server


async def serve() -> None:
    log_to_stderr()
    calls = Calls(Desk())  # type: ignore[arg-type]
    with listening(0) as listener:
        server = extended(build(TOOLS, calls))
        await serve_on(
            listener, server, calls, None, lambda: note(f"serving on {address(listener)}")
        )


if __name__ == "__main__":
    asyncio.run(serve())
    sys.stderr.flush()
    os._exit(0)
