"""Names looked up by the machine's resolver, in a small internet and a program of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.internet import HOST, HOST_6, NAME, OTHER_HOST, Internet, internet

SOURCE = Path(__file__).parents[2] / "src"
PRELUDE = """
import asyncio
from airlox.sandbox.lookups import SystemResolver
async def tried(resolve, name):
    try:
        print(*await resolve(name))
    except TimeoutError as error:
        print("late", error)
    except OSError:
        print("none")
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    names: dict[str, list[list[str]]] = {
        f"both.{NAME}": [[HOST, HOST_6, OTHER_HOST]],
        f"silent.{NAME}": [],
        f"bare.{NAME}": [[]],
        f"unknown.{NAME}.inner.test": [[OTHER_HOST]],
    }
    with internet(tmp_path_factory.mktemp("internet"), names) as made:
        yield made


def run(net: Internet, code: str) -> list[str]:
    done = subprocess.run(
        [*net.way_in, sys.executable, "-c", PRELUDE + code],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(SOURCE), "LOCALDOMAIN": "inner.test"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_addresses_each_once(net: Internet) -> None:
    names = [f"both.{NAME}", f"bare.{NAME}", f"unknown.{NAME}", "a" * 64, "a..b"]
    told = run(
        net,
        f"""
async def story():
    for name in {names}:
        await tried(SystemResolver(), name)
asyncio.run(story())
""",
    )
    assert set(told[0].split()) == {HOST, HOST_6, OTHER_HOST}
    assert len(told[0].split()) == 3
    assert told[1:] == ["none"] * 4


def test_the_search_list_of_the_machine_adds_nothing(net: Internet) -> None:
    name = f"unknown.{NAME}"
    plain = run(net, f"import socket; print(socket.getaddrinfo('{name}', None)[0][4][0])")
    assert plain == [OTHER_HOST]  # what a program without care would take it for
    assert run(net, f"asyncio.run(tried(SystemResolver(), '{name}'))") == ["none"]


def test_nobody_waits_longer_and_no_more_threads_are_made(net: Internet) -> None:
    told = run(
        net,
        f"""
import threading
async def story():
    resolve = SystemResolver(within_s=0.2, most=2)
    await asyncio.gather(*(tried(resolve, "silent.{NAME}") for _ in range(3)))
    print(threading.active_count())
    await tried(resolve, "{NAME}")
asyncio.run(story())
""",
    )
    assert sorted(told[:3]) == ["late ", "late ", "late too many names are being looked up"]
    assert told[3:] == ["3", "late too many names are being looked up"]


def test_one_job_does_not_keep_others_waiting(net: Internet) -> None:
    told = run(
        net,
        f"""
async def story():
    resolve = SystemResolver(within_s=0.2, most=4)
    one, other = resolve.share(2), resolve.share(2)
    await asyncio.gather(*(tried(one, "silent.{NAME}") for _ in range(4)))
    await tried(one, "{NAME}")
    while True:  # on a slow machine it may take longer
        try:
            print(*await other("{NAME}"))
            break
        except TimeoutError:
            await asyncio.sleep(0.1)
asyncio.run(story())
""",
    )
    assert sorted(told[:4]) == ["late "] * 2 + ["late too many names are being looked up"] * 2
    assert told[4:] == ["late too many names are being looked up", HOST]


def test_threads_are_given_back(net: Internet) -> None:
    told = run(
        net,
        f"""
async def story():
    resolve = SystemResolver(most=1)
    for _ in range(3):
        await tried(resolve, "{NAME}")
asyncio.run(story())
""",
    )
    assert told == [HOST] * 3
