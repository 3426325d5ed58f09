"""How a tool is written down: a function with its texts, and schemas in few words.

A client loads every name, text and schema into its model's context, so each word counts; what
several tools say is said here once, and alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from airlox.errors import AirloxError
from airlox.mcp.tool import Hints, Tool
from airlox.mcp.use import LONGEST_WAIT_S, WAIT_S, Use

if TYPE_CHECKING:
    from airlox.mcp.desk import Desk
    from airlox.mcp.tool import Answer, Caller

    Schema = dict[str, Any]

READ: Final = Hints(read_only=True, destructive=False, idempotent=True, open_world=True)
"""Looks only; what it shows was written by others."""
ADD: Final = Hints(read_only=False, destructive=False, idempotent=False, open_world=True)
"""Adds something each time."""
SET: Final = Hints(read_only=False, destructive=False, idempotent=True, open_world=True)
"""Sets something; again changes nothing."""
END: Final = Hints(read_only=False, destructive=True, idempotent=True, open_world=True)
"""Cannot be undone."""
RUN: Final = Hints(read_only=False, destructive=True, idempotent=False, open_world=True)
"""Has others' machines do whatever it is given."""


def text(description: str, *examples: str) -> Schema:
    return _value("string", description, *examples)


def number(description: str, *examples: int, most: int | None = None) -> Schema:
    return _value("integer", description, *examples) | ({} if most is None else {"maximum": most})


def flag(description: str) -> Schema:
    return _value("boolean", description)


def words(description: str, *examples: list[str]) -> Schema:
    return _value("array", description, *examples) | {"items": {"type": "string"}}


def wait() -> Schema:
    return number(f"seconds, default {WAIT_S}", most=LONGEST_WAIT_S)


def _value(kind: str, description: str, *examples: Any) -> Schema:
    shown: Schema = {"examples": list(examples)} if examples else {}
    return {"type": kind, "description": description} | shown


SESSION: Final = text("handle if several")


def tool(
    title: str,
    hints: Hints,
    description: str,
    takes: Mapping[str, Schema],
    gives: Mapping[str, str],
    *,
    needs: tuple[str, ...] = (),
    example: Mapping[str, Any] | None = None,
    slow: bool = False,
) -> Callable[[Callable[[Use], Answer]], Tool]:
    """Make a tool of a function that has its name.

    `takes` are its parameters, of which it `needs` some; `gives` are the fields of its answer
    with their types; `example` is a whole set of arguments.
    """

    def declare(function: Callable[[Use], Answer]) -> Tool:
        takes_schema: Schema = {"type": "object", "properties": dict(takes)}
        if needs:
            takes_schema["required"] = list(needs)
        if example is not None:
            takes_schema["examples"] = [dict(example)]
        gives_schema = {
            "type": "object",
            "properties": {name: _typed(kind) for name, kind in gives.items()},
        }
        return Tool(
            name=function.__name__,
            title=title,
            description=description,
            hints=hints,
            input_schema=takes_schema,
            output_schema=gives_schema,
            run=_runner(function),
            slow=slow,
        )

    return declare


def _typed(kind: str) -> Schema:
    """The schema of an answer's field; `?` behind the type: or null."""
    name = kind.removesuffix("?")
    return {"type": name if name == kind else [name, "null"]}


def _runner(function: Callable[[Use], Answer]) -> Callable[[Desk, dict[str, Any], Caller], Answer]:
    def run(desk: Desk, arguments: dict[str, Any], caller: Caller) -> Answer:
        use = Use(desk, arguments, caller)
        try:
            return use.checked(function(use))
        except AirloxError as error:
            raise use.advised(error)  # noqa: B904  the same error

    return run
