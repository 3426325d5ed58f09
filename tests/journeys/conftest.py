"""The real relay for all journeys of a file, and people with a cache of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox import Session
from support.relay import RelayThread


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayThread]:
    with RelayThread(data=str(tmp_path_factory.mktemp("relay"))) as live:
        yield live


class People:
    """Makes sessions, each with a cache folder by the name of who it is."""

    def __init__(self, folder: Path, relay_url: str) -> None:
        self.folder = folder
        self.relay_url = relay_url
        self._open: list[Session] = []

    def cache(self, name: str) -> Path:
        return self.folder / name

    def owner(self, **options: Any) -> Session:
        session = Session.create(
            options.pop("relay", self.relay_url), cache_dir=self.cache("owner"), **options
        )
        self._open.append(session)
        return session

    def join(self, link: str, name: str = "agent", **options: Any) -> Session:
        session = Session.join(link, display_name=name, cache_dir=self.cache(name), **options)
        self._open.append(session)
        return session

    def go_home(self) -> None:
        for session in self._open:
            session.disconnect()


@pytest.fixture
def people(tmp_path: Path, relay: RelayThread) -> Iterator[People]:
    made = People(tmp_path, relay.url)
    yield made
    made.go_home()
