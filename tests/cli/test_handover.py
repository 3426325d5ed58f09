"""Codes for a machine that is waited for: another one where one ended, and not without end."""

from __future__ import annotations

from typing import Any

import pytest

from airlox.cli.handover import Handover
from airlox.errors import TransferError


class Offer:
    """A code that ended, unless it is the last."""

    def __init__(self, number: int, wrong: int, end: str | None) -> None:
        self.code = f"{number}-guitar-orbit"
        self.guesses_left = 3 - wrong
        self._end = end

    def wait(self) -> None:
        if self._end is not None:
            raise TransferError("it ended", code=self._end)

    def cancel(self) -> None:
        """Nobody is told."""

    close = cancel


class Session:
    def __init__(self, *offers: tuple[int, str | None]) -> None:
        self._offers = [Offer(100 + at, *offer) for at, offer in enumerate(offers)]

    def transfer_code(self, role: str, **_: Any) -> Offer:
        assert role == "runner"
        return self._offers.pop(0)


class Voice:
    def __init__(self) -> None:
        self.said: list[str] = []

    def warn(self, text: str) -> None:
        self.said.append(text)

    def end_status(self, text: str, *, event: str) -> None:
        assert "airlox machine invite box runner" in text
        self.said.append(event)


def hand_over(*offers: tuple[int, str | None]) -> tuple[list[str], list[str]]:
    """What was shown and said until one was used."""
    shown: list[str] = []
    session: Any = Session(*offers)
    voice: Any = Voice()
    handing = Handover(session, "box", shown.append, voice)
    for _ in offers:
        handing._thread.join()
        handing.look()
    handing.end()
    return shown, voice.said


def test_another_one_where_one_ended_unused() -> None:
    shown, said = hand_over((0, "code_expired"), (1, "code_gone"), (1, "not_received"), (0, None))
    assert [code[:3] for code in shown] == ["100", "101", "102", "103"]
    assert [word[:8] for word in said] == ["it ended"] * 3 + ["received"]


@pytest.mark.parametrize("wrong", [(2, 1), (1, 1, 1), (0, 2, 0, 2)])
def test_guesses_at_all_of_them_count(wrong: tuple[int, ...]) -> None:
    """P-TRF-9: a relay that says that a code is gone gets no new guesses by that."""
    with pytest.raises(TransferError) as caught:
        hand_over(*((each, "code_gone") for each in wrong), (0, None))
    assert caught.value.code == "code_void"


def test_what_ends_them_all() -> None:
    with pytest.raises(TransferError) as caught:
        hand_over((3, "code_void"), (0, None))
    assert caught.value.code == "code_void"
