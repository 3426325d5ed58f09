"""Names and texts at the edges of their character sets."""

from __future__ import annotations

from typing import Any

import pytest

from airlox.protocol import limits
from airlox.protocol.names import check_display_text, check_safe_name
from support.vectors import cases, replay

_LONGEST = {
    "display_name": limits.DISPLAY_NAME,
    "description": limits.DESCRIPTION,
    "host": limits.HOST,
}


@pytest.mark.parametrize("case", cases("extra-names", "safe_name"))
def test_safe_name(case: dict[str, Any]) -> None:
    replay(case, lambda given: check_safe_name(given["name"]))


@pytest.mark.parametrize("case", cases("extra-names", "display_text"))
def test_display_text(case: dict[str, Any]) -> None:
    def check(given: dict[str, Any]) -> None:
        check_display_text(given["text"], given["field"], _LONGEST[given["field"]])

    replay(case, check)
