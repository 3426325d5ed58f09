"""Plain http to a host that the owner named, and to no other: real relay, real commands."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.protocol.invite import member_invite
from airlox.protocol.keys import Role
from support import fronts
from support.commands import RUNTIME, TIMEOUT_S, Cli, read_note
from support.relay import Http, create, join, new_world
from support.server import server

HERE = "127.0.0.2"
"""Of this machine, but not what is told from another by its name."""
NAMED = "relay.internal"
"""A name that only the proxy of these tests knows."""


@pytest.fixture(scope="module")
def relay() -> Iterator[str]:
    with server("--ephemeral", "--listen", f"{HERE}:0") as running:
        yield running.url


def test_a_machine_of_a_relay_without_tls(relay: str, tmp_path: Path) -> None:
    mine = Cli(relay, tmp_path / "mine")
    words = ("machine", "add", "box", "--json", "--wait", "0", "--runtime", RUNTIME)
    made = mine(*words, "--insecure-http-host", HERE).document
    link = made["command"].partition("'")[2].partition("'")[0]
    assert link.startswith(f"{relay}/s/")
    assert "&http=1&" in link
    there = Cli(relay, tmp_path / "there", invite=link)
    join = ("runner", "join", "--json", "--name", "box", "--sandbox", "process")
    with there.started(*join, "--python", sys.executable, stderr=None) as runner:
        read_note(runner, "waiting")
        mine("machine", "approve", "box", "--yes")
        read_note(runner, "ready")
        assert mine("run", "--on", "box", "--", "echo", "plain").out == "plain\n"
        sender = Cli(relay, tmp_path / "agent", invite=mine("machine", "invite", "box").out.strip())
        assert sender("run", "--", "echo", "by link").out == "by link\n"
        renewed = mine("machine", "add", "box", "--renew", "--wait", "0", "--json").document
        assert "&http=1&" in renewed["command"]
        assert runner.wait(TIMEOUT_S) == 0


def test_a_code_over_plain_http(relay: str, tmp_path: Path) -> None:
    words = ("--insecure-http-host", HERE)
    links = Cli(relay, tmp_path)("session", "create", "--json", *words).document["invites"]
    owner = Cli(relay, tmp_path, invite=links["owner"])
    made = owner("session", "code", "sender", "--json").document
    there = Cli(relay, tmp_path / "there")
    assert "https" in there("receive", made["code"], "--json", code=1).error["error"]
    other = ("--insecure-http-host", "relay.svc")
    assert there("receive", made["code"], *other, "--json", code=1).error["code"] == "plain_http"
    taken = there(*shlex.split(made["command"])[1:], "--json").document
    assert taken["invite"] == links["sender"]


def test_create_says_what_it_means(relay: str, tmp_path: Path) -> None:
    mine = Cli(relay, tmp_path)
    made = mine("session", "create", "--insecure-http-host", HERE)
    assert f"plain http under the name {HERE}" in made.err
    assert "clients of that version cannot join" in made.err
    (owner,) = (line.split()[1] for line in made.out.splitlines() if line.startswith("owner"))
    info = mine.holding(owner)("session", "info", "--json").document
    assert info["insecure_http_host"] == HERE


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ((), "invalid", "must start with https://"),
        (
            ("--insecure-http-host", "relay.svc"),
            "plain_http",
            f"does not allow plain http to {HERE}",
        ),
        (("--insecure-http-host", "http://relay.svc"), "invalid", "a name or an IPv4 address"),
    ],
)
def test_every_other_plain_http_is_refused(
    relay: str, tmp_path: Path, flags: tuple[str, ...], code: str, said: str
) -> None:
    refused = Cli(relay, tmp_path)("session", "create", "--json", *flags, code=1).error
    assert refused["code"] == code
    assert said in refused["error"]
    assert refused["hint"]


def test_a_link_cannot_allow_what_the_owner_did_not(relay: str, tmp_path: Path) -> None:
    """Nothing but the manifest is asked: nobody joins, no token crosses the line (P-INV-3)."""
    world, http = new_world(), Http(relay)
    create(http, world)
    owner = join(http, world.person(Role.OWNER))
    link = member_invite(relay, world.owner_seed, Role.SENDER, plain_http=True).url()
    agent = Cli(relay, tmp_path, invite=link)
    refused = agent("send", "text", "hello", "--json", code=1).error
    assert refused["code"] == "plain_http"
    assert HERE in refused["error"]
    unsaid = agent.holding(link.replace("&http=1", ""))("items", "--json", code=1).error
    assert "must start with https://" in unsaid["error"]
    assert [event["kind"] for event in owner.events()] == ["participant"]


@pytest.mark.slow
def test_through_a_proxy(tmp_path: Path) -> None:
    with (
        server("--ephemeral") as running,
        fronts.nginx(tmp_path / "nginx", running.url) as proxy,
    ):
        mine = Cli(f"http://{NAMED}", tmp_path / "mine")
        words = ("session", "create", "--json", "--insecure-http-host", NAMED)
        links = mine(*words, HTTP_PROXY=proxy.url).document["invites"]
        sender = Cli("", tmp_path / "agent", invite=links["sender"])
        sender("send", "text", "hello", HTTP_PROXY=proxy.url)
        owner = mine.holding(links["owner"])
        assert owner("items", "--json", HTTP_PROXY=proxy.url).lines[0]["text"] == "hello"
        lost = owner("items", "--json", http_proxy="http://127.0.0.1:1", code=None)
        assert "through the proxy at 127.0.0.1:1" in lost.err
        assert "HTTP_PROXY" in lost.err
