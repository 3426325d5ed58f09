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
OURS = "addressing audit chain changes epochs extra-policy full live packs signatures transfer"
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


RULES_OF_VECTORS = {
    "P-ENC-3": ["payloads:encode-event-reject-missing-reason", "full:shell-null-script"],
    "P-SIG-1": ["signatures:sig-key-small-order", "signatures:sig-r-identity"],
    "P-SIG-2": ["items:verify-wrong-domain", "manifests:verify-wrong-domain"],
    "P-INV-1": ["invites:owner-base http://a.b", "invites:parse-userinfo"],
    "P-MAN-1": ["manifests:verify-expires-31d", "manifests:verify-roles-equal"],
    "P-MAN-2": ["full:manifest-features-unknown"],
    "P-QUE-1": ["full:shell-queue-over-limit", "full:shell-queue-without-feature"],
    "P-CRT-2": ["joins:verify-name-bidi", "joins:verify-description-control"],
    "P-RES-3": ["results:open-checked-result-out-65-files"],
    "P-CHN-1": ["chain:place-joined", "chain:mark-joined", "chain:place-a-result-of-62-files"],
    "P-CHN-3": ["chain:chain-missing-in-the-middle", "chain:chain-missing-and-renumbered"],
    "P-CHN-4": ["chain:chain-late", "chain:chain-repeated"],
    "P-CHN-5": ["chain:chain-forgotten", "chain:chain-a-text-is-never-forgotten"],
    "P-ADR-1": ["addressing:floor-text-too-many", "addressing:full-text-role-unknown"],
    "P-ADR-2": ["addressing:floor-text-both", "addressing:full-file-both"],
    "P-LIV-2": ["full:result-without-live", "full:result-live-head-without-segments"],
}
"""Rules of docs/protocol.md that vectors prove, and which."""


@pytest.mark.parametrize("rule", RULES_OF_VECTORS)
def test_the_vectors_of_a_rule_are_there(rule: str) -> None:
    names = {
        f"{name}:{case['name']}"
        for name in FILES
        for case in json.loads((VECTORS / f"{name}.json").read_text())["cases"]
    }
    assert set(RULES_OF_VECTORS[rule]) <= names
