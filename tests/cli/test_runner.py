"""How runners are listed."""

from __future__ import annotations

from typing import Any

import pytest

from airlox.cli import runner


class TestState:
    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({}, "idle"),
            ({"job": "7Qk"}, "runs 7Qk"),
            ({"approved": False}, "waits for approval"),
            ({"online": False}, "offline"),
            ({"left": True}, "left"),
            ({"rejected": True, "online": False}, "rejected"),
        ],
    )
    def test_words(self, changes: dict[str, Any], text: str) -> None:
        shape = {"approved": True, "job": None, "left": False, "online": True, "rejected": False}
        assert runner.state_text(shape | changes) == text
