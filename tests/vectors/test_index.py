"""The index of the vector files names every file and every operation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.vectors import REFUSALS, VECTORS


@pytest.mark.parametrize("path", sorted(VECTORS.glob("*.json")), ids=lambda path: path.stem)
def test_a_file_is_in_the_index_and_of_its_form(path: Path) -> None:
    index = (VECTORS / "README.md").read_text()
    document = json.loads(path.read_text())
    assert f"`{path.stem}`" in index
    assert (document["format"], document["file"]) == (1, path.stem)
    for case in document["cases"]:
        assert f"`{case['op']}`" in index, case["op"]
        assert ("ok" in case) != ("error" in case)
        assert case.get("error") is None or case["error"] in REFUSALS
        assert ("target" in case) == ("why" in case)
