"""What the tools say of themselves: names, parameters, hints, texts and examples."""

from __future__ import annotations

import jsonschema
import pytest

from airlox.mcp.tool import Tool
from airlox.mcp.tools import TOOLS

PARAMETERS = {
    "approve_runner": "runner! session",
    "close_session": "session",
    "create_session": "approve_runners description execute insecure_http_host job_memory_mb "
    "job_timeout_s network never_expires packages shell ttl_minutes",
    "delivery_status": "session",
    "export_audit": "dir! session",
    "get_invites": "session",
    "get_item": "item! session",
    "get_result": "job! save_dir session wait_s",
    "join_session": "description invite!",
    "list_items": "after exclude_mine for_me max_chars session wait_s",
    "list_runners": "session",
    "reject_runner": "runner! session",
    "revoke_role": "role! session",
    "run": "command files fresh labels machine memory_mb runner script session timeout_s "
    "tree_dir tree_exclude wait_s",
    "run_python": "code! filename files labels memory_mb progress_file requirements runner "
    "session timeout_s wait_s",
    "save_file": "dir! item! session",
    "send_file": "path! reply_to session",
    "send_text": "reply_to session text! to",
    "session_info": "session",
}
READ_ONLY = {
    "delivery_status",
    "get_invites",
    "get_item",
    "list_items",
    "list_runners",
    "session_info",
}
DESTRUCTIVE = {"close_session", "reject_runner", "revoke_role", "run", "run_python"}
SLOW = {"get_result", "list_items", "run", "run_python"}

each = pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)


def test_names_and_parameters() -> None:
    found = {}
    for tool in TOOLS:
        needed = tool.input_schema.get("required", ())
        names = (f"{p}!" if p in needed else p for p in tool.input_schema["properties"])
        found[tool.name] = " ".join(sorted(names))
    assert found == PARAMETERS
    assert [tool.name for tool in TOOLS] == sorted(PARAMETERS)


def test_hints() -> None:
    assert {tool.name for tool in TOOLS if tool.hints.read_only} == READ_ONLY
    assert {tool.name for tool in TOOLS if tool.hints.destructive} == DESTRUCTIVE
    assert {tool.name for tool in TOOLS if tool.slow} == SLOW
    assert all(tool.hints.open_world for tool in TOOLS)
    assert len({tool.title for tool in TOOLS}) == len(TOOLS)


@each
def test_every_parameter_is_described_and_examples_fit(tool: Tool) -> None:
    for schema in (tool.input_schema, tool.output_schema):
        jsonschema.Draft202012Validator.check_schema(schema)
    properties = tool.input_schema["properties"]
    assert all(schema["description"] for schema in properties.values())
    examples = [
        (schema, example)
        for schema in properties.values()
        for example in schema.get("examples", ())
    ]
    examples += [(tool.input_schema, whole) for whole in tool.input_schema.get("examples", ())]
    assert examples
    for schema, example in examples:
        jsonschema.validate(example, schema)
    waits = properties.get("wait_s")
    assert tool.slow == (waits is not None)
    assert waits is None or waits["maximum"] == 600


@each
def test_what_cannot_be_undone_is_left_to_the_user(tool: Tool) -> None:
    if tool.hints.destructive and tool.hints.idempotent:
        assert "user asks" in tool.description
