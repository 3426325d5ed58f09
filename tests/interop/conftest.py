"""The published 0.1.0 package, and our relay as a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import old, parts
from support.mixed import Room, RoomMaker, Side
from support.server import server


@pytest.fixture(scope="session", autouse=True)
def published_package() -> None:
    parts.require(f"airlox {old.VERSION}")


@pytest.fixture(scope="session")
def relay() -> Iterator[str]:
    with server("--ephemeral", "--creates-per-minute", "0") as running:
        yield running.url


@pytest.fixture
def room_by(relay: str, tmp_path: Path) -> RoomMaker:
    """Makes a session with the software of a side: `room_by(side, *flags)`."""

    def make(side: Side, *flags: str) -> Room:
        return Room(relay, tmp_path, side, *flags)

    return make


@pytest.fixture
def execute_room_by(room_by: RoomMaker) -> RoomMaker:
    """The same for sessions with jobs."""

    def make(side: Side, *flags: str) -> Room:
        return room_by(side, "--execute", "--runtime", old.runtime(), *flags)

    return make
