"""Transfer codes with a relay of its own process: killed between any two steps, and behind a proxy
that names its clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from airlox import Session, TransferError, redeem
from airlox.errors import AirloxError
from airlox.protocol.keys import Role
from support.codes import Waiting, other_words
from support.middle import Carrier
from support.scripted import Request, Scripted
from support.server import ServerProcess, server

EXECUTE: Final[dict[str, Any]] = {"mode": "execute", "job_limits": {"runtime": "python3.12"}}

_ANSWER: Final = r"POST /v1/sessions/\w+/codes/\d+/tries/[^/]+$"
STEPS: Final = {  # killed before the n-th of these requests: how receiver and sender end
    "opening": (r"POST /v1/codes/\d+/tries$", 1, "code_unknown", "code_gone"),
    "answer": (_ANSWER, 1, "code_gone", "code_gone"),
    "receiver-confirms": (r"POST /v1/codes/\d+/tries/[^/]+$", 1, "code_gone", "code_gone"),
    "sender-confirms": (
        r"POST /v1/sessions/\w+/codes/\d+/tries/[^/]+$",
        2,
        "code_gone",
        "code_gone",
    ),
    "invite": (r"POST /v1/sessions/.*/invite$", 1, "code_gone", "code_gone"),
    "done": (r"POST /v1/codes/.*/done$", 1, "runner", "not_received"),
    "parked-head": (r"GET /v1/codes/\d+/parked$", 1, "code_unknown", "code_gone"),
    "parked-take": (r"POST /v1/codes/\d+/parked$", 1, "code_unknown", "code_gone"),
}


class Killing:
    """A relay that is killed and started again before one request arrives."""

    def __init__(self, data: Path) -> None:
        self.options = ("--data", str(data), "--code-guesses-per-hour", "0")
        self.running = ServerProcess(*self.options)
        self.carrier = Carrier(self.running.url)
        self.carrier.before = self._before
        self.at: re.Pattern[str] | None = None
        self.times = 0

    def _before(self, request: Request) -> None:
        if self.at is None or not self.at.match(f"{request.method} {request.path}"):
            return
        self.times -= 1
        if self.times == 0:
            self.at = None
            self.running.kill()
            self.running = ServerProcess(*self.options)
            self.carrier.target_url = self.running.url

    def end(self) -> None:
        self.running.kill()


@pytest.fixture
def killing(tmp_path: Path) -> Iterator[Killing]:
    made = Killing(tmp_path / "relay")
    yield made
    made.end()


def outcome(relay: str, code: str) -> str:
    try:
        return redeem(relay, code).role.value
    except AirloxError as error:
        return error.code


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_the_relay_is_killed(killing: Killing, tmp_path: Path, step: str) -> None:
    """P-TRF-11: what was under way is gone, both ends hear of it, and a new code goes through."""
    path, times, receiver_has, sender_has = STEPS[step]
    with (
        Scripted(killing.carrier) as way,
        Session.create(way.base_url, cache_dir=tmp_path / "owner", **EXECUTE) as owner,
    ):
        offer = owner.transfer_code("runner", park=step.startswith("parked"))
        killing.at, killing.times = re.compile(path), times
        with Waiting(offer) as sender:
            assert outcome(way.base_url, offer.code) == receiver_has
            assert sender.result() == sender_has
        again = owner.transfer_code("runner")
        with Waiting(again) as sender:
            assert redeem(way.base_url, again.code).role is Role.RUNNER
            assert sender.result() == "arrived"


def test_a_proxy_names_who_guesses(tmp_path: Path) -> None:
    """P-TRF-12: ten for each address, whatever the proxy's own is; and when to come again."""
    with server("--ephemeral", "--behind-proxy", "yes", "--code-guesses-per-hour", "3") as relay:
        walker, other = Carrier(relay.url, "198.51.100.7"), Carrier(relay.url, "2001:db8::7")
        with (
            Scripted(walker) as walking,
            Scripted(other) as way,
            Session.create(way.base_url, cache_dir=tmp_path, **EXECUTE) as owner,
        ):
            offer = owner.transfer_code("runner")
            with Waiting(offer) as sender:
                assert outcome(walking.base_url, other_words(offer.code)) == "code_wrong"
                for number in (5_000_001, 5_000_002):
                    assert outcome(walking.base_url, f"{number}-guitar-orbit") == "code_unknown"
                with pytest.raises(TransferError) as caught:
                    redeem(walking.base_url, offer.code)
                assert caught.value.code == "too_many_guesses"
                assert caught.value.retry_after_s is not None
                assert caught.value.hint == f"try again in {caught.value.retry_after_s} s"
                assert outcome(way.base_url, offer.code) == "runner"
                assert sender.result() == "arrived"
