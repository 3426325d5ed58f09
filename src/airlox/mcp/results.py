"""What tools give and ask, in the protocol's words."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from mcp_types import (
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from airlox.errors import AirloxError, RelayError, SessionClosed
from airlox.mcp import shapes
from airlox.mcp.asking import Question
from airlox.mcp.tool import Answer
from airlox.mcp.tool import Tool as OwnTool

_WITHOUT_STRUCTURE: Final = frozenset({"2024-11-05", "2025-03-26"})
"""Revisions whose results are texts alone."""
_CODE: Final = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")


def listed(tool: OwnTool) -> Tool:
    """A tool as it stands in the list."""
    hints = ToolAnnotations(
        read_only_hint=tool.hints.read_only,
        destructive_hint=tool.hints.destructive,
        idempotent_hint=tool.hints.idempotent,
        open_world_hint=tool.hints.open_world,
    )
    return Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=hints,
    )


def result_of(outcome: Answer | AirloxError | Question, version: str) -> CallToolResult:
    """How a call ended, for a client of a protocol revision."""
    if isinstance(outcome, Question):  # only where a question cannot be told: nobody agreed
        outcome = AirloxError("a person must agree to this", code="no_answer")
    if isinstance(outcome, AirloxError):
        outcome = _told(outcome)
    structured = _encodable(outcome.structured)
    text = outcome.text.encode("utf-8", "replace").decode()
    if version in _WITHOUT_STRUCTURE:
        text = f"{text}\n{json.dumps(structured, ensure_ascii=False)}"
    return CallToolResult(
        content=[TextContent(text=text)], structured_content=structured, is_error=outcome.is_error
    )


def elicitation(question: Question) -> ElicitRequest:
    """A question as a form."""
    params = ElicitRequestFormParams(message=question.text, requested_schema=question.schema())
    return ElicitRequest(params=params)


def _told(error: AirloxError) -> Answer:
    """An error as a model reads it: what failed, and which call to make next. What a relay says
    is others' words, but for a code."""
    is_relays = isinstance(error, RelayError | SessionClosed)
    code = "error" if is_relays and not _CODE.match(error.code) else error.code
    message = shapes.quoted(error.message, "the relay") if is_relays else error.message
    told = {"code": code, "message": error.message}
    if error.hint is not None:
        told["hint"] = error.hint
    text = f"{code}: {message}"
    shape: dict[str, Any] = {"error": told} | (shapes.UNTRUSTED if is_relays else {})
    return Answer(shape, f"{text}\n{error.hint}" if error.hint else text, is_error=True)


def _encodable(value: dict[str, Any]) -> dict[str, Any]:
    """The same, with marks where a text holds half a pair of Unicode: no encoder takes that."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
        return value
    except UnicodeEncodeError:
        marked: dict[str, Any] = json.loads(text.encode("utf-8", "replace"))
        return marked
