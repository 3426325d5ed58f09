"""Arguments of a call against the tool's input schema, with errors a model can act on.

Errors name the argument and what it must be. They never repeat a value: it may be a link.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from airlox.errors import UsageError

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError

    from airlox.mcp.tool import Tool

MOST_DEEP: Final = 32
CODE: Final = "bad_arguments"


def check(tool: Tool, arguments: dict[str, Any]) -> None:
    """Raises UsageError for arguments that do not fit the tool's input schema. One that is null
    counts as left out: models write that where they mean it."""
    _check_values(tool, arguments, 0)
    arguments = {name: value for name, value in arguments.items() if value is not None}
    known = tool.input_schema.get("properties", {})
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        listed = ", ".join(known) or "none"
        raise _refused(tool, f"has no argument {unknown[0][:40]!r}; its arguments: {listed}")
    missing = [name for name in tool.input_schema.get("required", ()) if name not in arguments]
    if missing:
        raise _refused(tool, f"needs {', '.join(missing)}")
    for error in _validator(json.dumps(tool.input_schema)).iter_errors(arguments):
        raise _refused(tool, _in_words(error))


def _check_values(tool: Tool, value: Any, depth: int) -> None:
    """Refuse what JSON's grammar lets pass and nothing behind it can handle."""
    if depth > MOST_DEEP:
        raise _refused(tool, f"takes arguments at most {MOST_DEEP} levels deep")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _refused(tool, "takes valid Unicode only: a text holds half a pair") from None
    elif isinstance(value, float) and not math.isfinite(value):
        raise _refused(tool, "takes finite numbers only")
    elif isinstance(value, dict):
        for name, inner in value.items():
            _check_values(tool, name, depth + 1)
            _check_values(tool, inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check_values(tool, inner, depth + 1)


@lru_cache(maxsize=128)
def _validator(schema: str) -> Draft202012Validator:
    """Made at a tool's first call: the library takes a while to import."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))


def _in_words(error: ValidationError) -> str:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.path)
    where = path.lstrip(".")[:80] or "its arguments"
    rule, bound = str(error.validator), error.validator_value
    match rule:
        case "type":
            names = bound if isinstance(bound, list) else [bound]
            return f"takes {where} as {' or '.join(names)}"
        case "enum":
            return f"takes {where} as one of {', '.join(map(repr, bound))}"
        case "required":
            return f"needs {', '.join(set(bound) - set(error.instance))} in {where}"
        case "additionalProperties":
            return f"takes nothing else in {where} than {', '.join(error.schema['properties'])}"
        case "minimum" | "maximum":
            return f"takes {where} of {_least(rule)} {bound}"
        case "minLength" | "maxLength":
            return f"takes {where} of {_least(rule)} {bound} characters"
        case "minItems" | "maxItems":
            return f"takes {where} with {_least(rule)} {bound} entries"
        case _:
            return f"takes {where} so that {rule} {str(bound)[:200]} holds"


def _least(rule: str) -> str:
    return "at least" if rule.startswith("min") else "at most"


def _refused(tool: Tool, what: str) -> UsageError:
    return UsageError(f"{tool.name} {what}", code=CODE, hint="call it again with that mended")
