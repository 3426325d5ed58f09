"""Tests of the relay may be coroutines: each runs in an event loop of its own.

Fixtures: a relay in memory and one on a disk, and a session with its people on it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest

from airlox.protocol.keys import Role
from support.relay import Http, Member, RelayThread, create, join, new_world
from support.world import World


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in wanted}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="module", params=["memory", "disk"])
def relay(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RelayThread]:
    disk = str(tmp_path_factory.mktemp("relay") / "data")
    data = None if request.param == "memory" else disk
    with RelayThread(data=data, creates_per_minute=0) as running:
        yield running


@pytest.fixture
def http(relay: RelayThread) -> Http:
    return Http(relay.url)


@pytest.fixture
def world() -> World:
    return new_world()


@pytest.fixture
def owner(http: Http, world: World) -> Member:
    create(http, world)
    return join(http, world.person(Role.OWNER))


@pytest.fixture
def sender(http: Http, world: World, owner: Member) -> Member:
    return join(http, world.person(Role.SENDER))
