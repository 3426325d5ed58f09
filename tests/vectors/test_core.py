"""Every vector of the protocol core, given and our own, negatives included."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from airlox import errors
from vectors.operations import OPERATIONS, VECTORS

GIVEN = "canonical certs frames invites items jobs joins keys manifests names payloads policy"
OURS = "full live packs signatures"
FILES = [*GIVEN.split(), "results", *OURS.split()]

REFUSAL_CLASS = {
    "ValidationError": errors.ValidationError,
    "SignatureError": errors.SignatureError,
    "DecryptError": errors.DecryptError,
    "PolicyError": errors.PolicyError,
    "AirloxError": errors.AirloxError,
}
"""The vectors' refusal classes. EncodingError, OrderError and LimitError are ValidationErrors."""


def _cases() -> list[Any]:
    found = []
    for name in FILES:
        for case in json.loads((VECTORS / f"{name}.json").read_text())["cases"]:
            if case["op"] != "note":
                found.append(pytest.param(case, id=f"{name}:{case['name']}"))
    return found


@pytest.mark.parametrize("case", _cases())
def test_vector(case: dict[str, Any]) -> None:
    op = OPERATIONS[case["op"]]
    if "error" in case:
        with pytest.raises(errors.AirloxError) as caught:
            op(case["in"])
        assert isinstance(caught.value, REFUSAL_CLASS[case["error"]]), repr(caught.value)
    else:
        assert op(case["in"]) == case["ok"]


def test_own_vectors_are_what_the_tool_writes() -> None:
    """A signed form that changed shows here, before it reaches anybody."""
    tool = VECTORS.parent / "tools" / "make_vectors.py"
    done = subprocess.run(
        [sys.executable, str(tool), "--check"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
