"""How machines are looked at, and what is said of one that has ended or soon will."""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from typing import Any

import pytest

from airlox.cli import machine
from airlox.client.machines import Machine
from airlox.errors import StorageError

from .test_output import Spoken


def kept(name: str) -> Machine:
    return Machine(name, "ax_" + "a" * 26, "https://relay.example", "owner", "sender", 1)


def look_at(*names: str) -> list[dict[str, Any]]:
    machines = [kept(name) for name in names]
    return machine._look_at_all(Namespace(), machines, Spoken().voice)


def test_all_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3)

    def look(args: Namespace, each: Machine, voice: object) -> dict[str, Any]:
        together.wait(60)
        return {"name": each.name}

    monkeypatch.setattr(machine, "_look", look)
    assert [found["name"] for found in look_at("b", "c", "a")] == ["b", "c", "a"]


def test_what_goes_wrong_in_looking_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(args: Namespace, each: Machine, voice: object) -> dict[str, Any]:
        raise StorageError(f"no room for {each.name}")

    monkeypatch.setattr(machine, "_look", look)
    with pytest.raises(StorageError, match="no room for a"):
        look_at("a")


def test_nothing_to_look_at() -> None:
    assert look_at() == []


@pytest.mark.parametrize(
    ("left_s", "ended", "said"),
    [
        (None, False, ""),
        (4 * 86_400, False, ""),
        (3600, False, "box ends "),
        (None, True, "over: "),
    ],
)
def test_what_to_do_about_its_end(left_s: int | None, ended: bool, said: str) -> None:
    spoken = Spoken()
    at_ms = None if left_s is None else int((time.time() + left_s) * 1000)
    shape = {"name": "box", "expires_at_ms": at_ms, "ended": ended, "error": "over"}
    machine._advise(shape, spoken.voice)
    assert spoken.err.text.startswith(said)
    assert ("airlox machine add box --renew" in spoken.err.text) is bool(said)
