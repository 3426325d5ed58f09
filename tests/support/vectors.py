"""Cases of the vector files, as parameters of a test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airlox import errors

VECTORS = Path(__file__).parents[2] / "vectors"

REFUSALS = {
    "ValidationError": errors.ValidationError,
    "SignatureError": errors.SignatureError,
    "DecryptError": errors.DecryptError,
    "PolicyError": errors.PolicyError,
    "AirloxError": errors.AirloxError,
}


def cases(file: str, *operations: str) -> list[Any]:
    """The cases of vectors/`file`.json that are one of `operations`."""
    found = json.loads((VECTORS / f"{file}.json").read_text())["cases"]
    return [
        pytest.param(case, id=f"{file}:{case['name']}")
        for case in found
        if case["op"] in operations
    ]


def replay(case: dict[str, Any], run: Callable[[dict[str, Any]], Any]) -> None:
    """Assert that `run` gives what the case says, or refuses in its class."""
    if "error" in case:
        with pytest.raises(REFUSALS[case["error"]]):
            run(case["in"])
    else:
        assert run(case["in"]) == case["ok"]
