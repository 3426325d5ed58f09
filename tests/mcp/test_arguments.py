"""Arguments that do not fit, and what is said about them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import UsageError
from airlox.mcp.arguments import MOST_DEEP, check
from airlox.mcp.tool import Answer
from support.mcp_fixture import tool

SECRET = "https://relay.example/s/abc#a-secret"
SCHEMA: Any = {
    "text": {"type": "string", "minLength": 2, "maxLength": 5},
    "seconds": {"type": "number", "minimum": 0, "maximum": 600},
    "kind": {"enum": ["a", "b"]},
    "labels": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    "more": {
        "type": "object",
        "properties": {"a": {"type": ["integer", "null"]}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "name": {"type": "string", "pattern": "^[a-z]+$"},
}


def never(*_: Any) -> Answer:
    raise AssertionError("arguments are checked before a tool runs")


TOOL = tool("t", never, **SCHEMA)
TOOL.input_schema["required"] = ["text"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=5,
)


def refused(**arguments: Any) -> str:
    with pytest.raises(UsageError) as caught:
        check(TOOL, {"text": "abc", **arguments})
    assert caught.value.code == "bad_arguments"
    caught.value.message.encode()
    return caught.value.message


def test_what_fits() -> None:
    check(TOOL, {"text": "äöü", "seconds": 1, "kind": "a", "labels": ["x"], "more": {"a": None}})


def test_null_is_an_argument_left_out() -> None:
    check(TOOL, {"text": "abc", "seconds": None, "labels": None})
    assert refused(text=None) == "t needs text"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"txt": 1}, "t has no argument 'txt'; its arguments: text, seconds, kind, labels"),
        ({"text": 1}, "t takes text as string"),
        ({"text": "a"}, "t takes text of at least 2 characters"),
        ({"text": "abcdef"}, "t takes text of at most 5 characters"),
        ({"seconds": -1}, "t takes seconds of at least 0"),
        ({"seconds": 601}, "t takes seconds of at most 600"),
        ({"seconds": True}, "t takes seconds as number"),
        ({"seconds": float("nan")}, "t takes finite numbers only"),
        ({"seconds": float("-inf")}, "t takes finite numbers only"),
        ({"kind": SECRET}, "t takes kind as one of 'a', 'b'"),
        ({"labels": ["a", 7]}, "t takes labels[1] as string"),
        ({"labels": ["a"] * 3}, "t takes labels with at most 2 entries"),
        ({"more": {}}, "t needs a in more"),
        ({"more": {"a": "x"}}, "t takes more.a as integer or null"),
        ({"more": {"a": 1, "b": 1}}, "t takes nothing else in more than a"),
        ({"name": SECRET}, "t takes name so that pattern ^[a-z]+$ holds"),
        ({"name": "\ud83d"}, "t takes valid Unicode only: a text holds half a pair"),
        ({"\ud83d": 1}, "t takes valid Unicode only: a text holds half a pair"),
        ({"x" * 1000: 1}, f"t has no argument {'x' * 40!r}; its arguments"),
    ],
)
def test_what_does_not(arguments: dict[str, Any], said: str) -> None:
    message = refused(**arguments)
    assert message.startswith(said)
    assert "a-secret" not in message


def test_what_is_missing() -> None:
    with pytest.raises(UsageError, match="t needs text"):
        check(TOOL, {})


def test_what_is_too_deep() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert refused(labels=deep) == f"t takes arguments at most {MOST_DEEP} levels deep"


@given(st.dictionaries(st.sampled_from([*SCHEMA, "other"]), VALUES))
def test_any_arguments_fit_or_are_refused(arguments: dict[str, Any]) -> None:
    try:
        check(TOOL, arguments)
    except UsageError:
        pass
