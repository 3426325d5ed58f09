"""What is printed for the other machine, and whom `machine` takes for a runner."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from airlox.cli import adding, machine
from airlox.cli.options import CommandLineError, Parser
from airlox.client.session import Session
from airlox.client.shown import Runner
from airlox.errors import AirloxError, SessionClosed, UsageError, WaitTimeout

LINK = "https://relay.example/s/ax_a#v=1&r=run&k=a'b&rk=c"


def parse(*words: str) -> Namespace:
    parser = Parser(prog="airlox machine")
    machine.add_arguments(parser, "machine")
    return parser.parse_args(list(words))


def runner(name: str = "box", **changes: Any) -> Runner:
    values: dict[str, Any] = {
        "participant_pub": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
        "name": name,
        "labels": (),
        "host": "h",
        "sandbox": "local",
        "network_unblocked": False,
        "description": None,
        "approved": False,
        "rejected": False,
        "online": True,
        "job": None,
        "left": False,
        "info": None,
    }
    return Runner(**(values | changes))


class FakeSession:
    """A session whose runners come one look after another."""

    closed: str | None = None

    def __init__(self, *looks: list[Runner]) -> None:
        self.looks = iter(looks)

    def runners(self) -> list[Runner]:
        return next(self.looks)

    @contextmanager
    def stream(self, timeout: float) -> Iterator[Iterator[str]]:
        """Somebody always has something to say."""
        assert timeout > 0
        yield iter(["news"])


def wait(*looks: list[Runner], timeout_s: float = 30.0, **options: Any) -> Runner:
    session = cast(Session, FakeSession(*looks))
    return adding.wait_for_runner(session, timeout_s, **options)


class TestCommand:
    def test_the_link_is_an_assignment_and_no_argument(self) -> None:
        words = shlex.split(adding.join_command(LINK, "box", "--sandbox local"))
        assert words[0] == f"AIRLOX_INVITE={LINK}"
        assert words[1:] == ["airlox", "runner", "join", "--name", "box", "--sandbox", "local"]

    def test_sandboxes_that_are_not_there_are_refused(self) -> None:
        assert adding.sandbox_flags(parse("add", "box")) == "--sandbox local"
        assert (
            adding.sandbox_flags(parse("add", "box", "--sandbox", "process")) == "--sandbox process"
        )
        for words in (("--sandbox", "x; rm"), ("--sandbox", "local", "--image", "i")):
            with pytest.raises(CommandLineError):
                adding.sandbox_flags(parse("add", "box", *words))

    def test_an_image_goes_with_containers_and_into_the_command(self) -> None:
        said = adding.sandbox_flags(parse("add", "box", "--image", "debian:12"))
        assert said == "--sandbox docker --image debian:12"
        odd = adding.sandbox_flags(parse("add", "box", "--image", "x; rm"))
        assert shlex.split(odd)[-1] == "x; rm"

    def test_the_name_of_a_person_is_not_the_machine_s(self) -> None:
        args = parse("add", "box", "--as", "ann")
        assert (args.name, args.display_name) == ("box", "ann")


class TestWaiting:
    def test_for_the_first_that_needs_approval(self) -> None:
        known = [runner("a", approved=True), runner("b", rejected=True), runner("c", left=True)]
        assert wait([], known, [*known, runner("d")]).name == "d"

    def test_several_are_not_guessed_between(self) -> None:
        with pytest.raises(UsageError, match="2 runners wait"):
            wait([runner("a"), runner("b")])

    def test_ends(self) -> None:
        with pytest.raises(WaitTimeout):
            wait([], timeout_s=0.0)

    def test_ends_with_the_session(self) -> None:
        session = FakeSession([])
        session.closed = "expired"
        with pytest.raises(SessionClosed, match="expired"):
            adding.wait_for_runner(cast(Session, session), 30.0)

    def test_what_goes_wrong_meanwhile_ends_it(self) -> None:
        def fail() -> None:
            raise AirloxError("the runner ended")

        with pytest.raises(AirloxError, match="the runner ended"):
            wait([], meanwhile=fail)
