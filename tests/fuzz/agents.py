"""Targets: what a client of the MCP server sends."""

from __future__ import annotations

import json
from typing import Final

from airlox.errors import UsageError
from airlox.mcp.arguments import check
from airlox.mcp.stdio import Gate, Lines, Refusal, TooLong
from airlox.mcp.tools import TOOLS

MOST_BYTES: Final = 2048


def read_message(data: bytes) -> None:
    """However a client's lines are cut, they are the same; each is a message or has an answer, and
    the arguments of a call fit or are refused in words."""
    whole, *others = (_lines(data, size) for size in (len(data) or 1, 1, 7))
    assert all(each == whole for each in others)
    gate = Gate()
    for line in whole:
        found = gate.read(TooLong(b"", b"") if line is None else line)
        if isinstance(found, Refusal):
            answer = json.loads(found.error.model_dump_json())
            assert isinstance(answer["id"], int | str | None)
            assert answer["error"]["message"].isprintable()


def _lines(data: bytes, size: int) -> list[bytes | None]:
    """Its lines, with None for those that are too long."""
    lines = Lines(MOST_BYTES)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    found = [line for piece in pieces for line in lines.feed(piece)]
    found += lines.end()
    return [line if isinstance(line, bytes) else None for line in found]


def message_seeds() -> list[bytes]:
    call = {"name": "run", "arguments": {"script": "true", "wait_s": 1}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}},
        {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": call},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
        {"jsonrpc": "2.0", "id": 2, "result": {}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -1, "message": "x"}},
    ]
    lines = [json.dumps(message).encode() for message in messages]
    return [*lines, b"\n".join(lines), b"\n \n" + lines[0] + b"\n", b"x" * MOST_BYTES + b"y\n{}"]


def read_arguments(data: bytes) -> None:
    """Arguments fit the largest of schemas or are refused in words, without their values."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError("no JSON") from None
    if not isinstance(given, dict):
        raise UsageError("no object")
    check(next(tool for tool in TOOLS if tool.name == "run"), given)


def argument_seeds() -> list[bytes]:
    given = [
        {"script": "true", "wait_s": 5, "labels": ["a"], "fresh": True},
        {"command": ["a", "b"], "machine": None, "memory_mb": 1},
        {"command": "a", "nothing": 1},
        {"wait_s": 1e999, "labels": [[[]]]},
    ]
    return [json.dumps(each).encode() for each in given] + [b'{"script": "\\ud83d"}']
