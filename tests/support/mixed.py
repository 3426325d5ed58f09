"""Sessions whose people use either software: ours, or the published 0.1.0 package.

Both command lines take the same words, so a test is written once and run for every mix.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from support import old
from support.commands import TIMEOUT_S, Cli
from support.old import OldCli, OldRunner
from support.ordinary import folder_of
from support.relay import until


class Side(StrEnum):
    """Whose software somebody uses."""

    OURS = "ours"
    THEIRS = "theirs"


EITHER = tuple(Side)


def mixes(count: int) -> list[tuple[Side, ...]]:
    """Every way in which `count` people may use either software, but all of them ours."""
    return [mix for mix in itertools.product(Side, repeat=count) if Side.THEIRS in mix]


def names_of(mix: tuple[Side, ...]) -> str:
    """A mix as the name of a test."""
    return "-".join(mix)


class Machine(Protocol):
    """A runner of either software."""

    def interrupt(self) -> int:
        """Ctrl-C, and the exit code."""

    def wait(self) -> int:
        """The exit code of a runner that ends by itself."""

    def kill(self) -> None:
        """What nobody can prepare for."""


class Room:
    """A session made by one side, and its people, each with a cache of their own."""

    def __init__(self, relay: str, folder: Path, side: Side, *flags: str) -> None:
        self.relay = relay
        self.folder = folder
        creator = self._cli(side, "owner", "")
        made = creator("session", "create", "--json", *flags).document
        self.session_id: str = made["session_id"]
        self.links: dict[str, str] = made["invites"]
        self.owner = self.person("owner", side)

    def person(self, role: str, side: Side, cache: str | None = None) -> Cli:
        """Somebody with the link of a role. `cache` names the cache, else the role does."""
        return self._cli(side, cache or role, self.links[role])

    def _cli(self, side: Side, cache: str, link: str) -> Cli:
        kind = Cli if side is Side.OURS else OldCli
        return kind(self.relay, self.folder / cache, invite=link, cwd=self.folder)

    @contextmanager
    def runner(
        self,
        side: Side,
        *words: str,
        name: str = "box",
        home: Path | None = None,
        approved: bool = True,
        sandboxed: bool = False,
    ) -> Iterator[Machine]:
        """A runner that is online, and approved unless told otherwise.

        `home` has its cache. `sandboxed` is for theirs; ours always is.
        """
        with nullcontext(home) if home else folder_of(old.OWNER_UID) as place:
            machine: Machine
            with ExitStack() as stack:
                if side is Side.OURS:
                    machine = stack.enter_context(_our_machine(self, place, name, words))
                else:
                    link = self.links["runner"]
                    machine = stack.enter_context(
                        OldRunner(link, place, *words, name=name, sandboxed=sandboxed)
                    )
                self.until_online(name)
                if approved:
                    self.owner("runner", "approve", name)
                yield machine

    def until_online(self, name: str) -> None:
        until(lambda: [r for r in self.runners() if r["name"] == name and r["online"]], name)

    def runners(self) -> list[dict[str, Any]]:
        """The runners, as the owner sees them."""
        found: list[dict[str, Any]] = self.owner("runner", "list", "--json").document["runners"]
        return found


RoomMaker = Callable[..., Room]
"""The fixtures `room_by` and `execute_room_by`: `room_by(side, *flags)`."""


@contextmanager
def _our_machine(room: Room, home: Path, name: str, words: tuple[str, ...]) -> Iterator[Machine]:
    mine = Cli(room.relay, home / "cache", invite=room.links["runner"])
    flags = ("--quiet", "--name", name, "--sandbox", "local")
    with mine.started(
        *("runner", "join", *flags, *words), stdout=subprocess.DEVNULL, stderr=None
    ) as process:
        yield _OurMachine(process)


class _OurMachine:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def interrupt(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        return self._process.wait(TIMEOUT_S)

    def kill(self) -> None:
        self._process.kill()
        self.wait()
