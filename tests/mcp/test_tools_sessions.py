"""Sessions through the tools: handles, owners' links that nobody sees, and asking the person."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox import Session
from airlox.errors import AirloxError, PolicyError, UsageError
from airlox.mcp.use import HIDDEN
from support.machines import RunnerProgram
from support.relay import RelayThread
from support.tools import Bench, RecordingCaller

YES = {
    "Approve a runner": True,
    "Reject a runner": True,
    "Revoke a role": True,
    "Close the session": True,
}
NO = dict.fromkeys(YES, False)


@pytest.fixture
def bench(relay: RelayThread, tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, relay=relay.url) as bench:
        yield bench


# -- handles ----------------------------------------------------------------------------------


def test_a_session_is_the_default_only_while_it_is_the_only_one(bench: Bench) -> None:
    with pytest.raises(UsageError) as none:
        bench.call("session_info")
    assert "join_session" in str(none.value.hint)
    first = bench.call("create_session")["session"]
    assert bench.call("session_info")["session"] == first
    second = bench.call("create_session")["session"]
    with pytest.raises(UsageError) as several:
        bench.call("session_info")
    assert first in str(several.value.hint)
    assert second in str(several.value.hint)
    assert bench.call("session_info", session=second)["session"] == second
    bench.call("close_session", session=first)
    assert bench.call("session_info")["session"] == second
    with pytest.raises(UsageError) as unknown:
        bench.call("session_info", session=first)
    assert second in str(unknown.value.hint)


def test_the_same_link_again_is_the_same_session_and_another_role_another(bench: Bench) -> None:
    created = bench.call("create_session")
    links = created["invites"]
    sender = bench.call("join_session", invite=links["sender"])
    assert sender["session"] == f"{created['session']}/sender"
    assert bench.call("join_session", invite=f" {links['sender']}\n") == sender
    assert bench.call("session_info", session=sender["session"])["role"] == "sender"


def test_the_link_a_server_was_started_with_is_joined_when_it_is_needed(
    relay: RelayThread, tmp_path: Path
) -> None:
    with (
        Session.create(relay.url, cache_dir=tmp_path / "owner") as owner,
        Bench(tmp_path, invite=owner.invites["sender"], display_name="Ada") as bench,
    ):
        info = bench.call("session_info")
        assert info["role"] == "sender"
        assert [person["name"] for person in info["participants"]] == ["owner", "Ada"]


@pytest.mark.parametrize(
    ("link", "hint"),
    [
        ("not a link", "link"),
        ("https://relay.example/s/ax_x#v=1", ""),
        ("", "link"),
    ],
)
def test_what_is_no_link(bench: Bench, link: str, hint: str) -> None:
    with pytest.raises(AirloxError) as refusal:
        bench.call("join_session", invite=link)
    assert hint in str(refusal.value.hint)


def test_a_runners_link_is_for_a_runner(bench: Bench) -> None:
    links = bench.call("create_session", execute=True)["invites"]
    with pytest.raises(UsageError) as refusal:
        bench.call("join_session", invite=links["runner"])
    assert "airlox runner join" in str(refusal.value.hint)


def test_without_a_relay_none_is_created(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench, pytest.raises(UsageError) as refusal:
        bench.call("create_session")
    assert "--relay" in str(refusal.value.hint)


def test_a_session_that_others_ended_is_no_default_beside_one_that_goes_on(
    relay: RelayThread, bench: Bench, tmp_path: Path
) -> None:
    with Session.create(relay.url, cache_dir=tmp_path / "owner") as owner:
        over = bench.call("join_session", invite=owner.invites["sender"])["session"]
        owner.close()
    assert bench.call("session_info")["closed"]
    with pytest.raises(AirloxError) as refusal:
        bench.call("send_text", text="anybody?")
    assert "join_session" in str(refusal.value.hint)
    goes_on = bench.call("create_session")["session"]
    assert bench.call("session_info")["session"] == goes_on
    assert bench.call("session_info", session=over)["closed"]


# -- terms and names --------------------------------------------------------------------------


def test_terms_are_those_asked_for(bench: Bench) -> None:
    plain = bench.call("create_session", ttl_minutes=5)
    info = bench.call("session_info", session=plain["session"])
    assert info["job_limits"] is None
    created = bench.desk.sessions.get(plain["session"], "").session.manifest.created_at_ms
    assert info["expires_at_ms"] == created + 300_000
    given: dict[str, Any] = {
        "execute": True,
        "shell": True,
        "approve_runners": False,
        "network": True,
        "packages": ["pandas"],
        "job_timeout_s": 5,
        "never_expires": True,
    }
    limits = bench.call("create_session", **given)["job_limits"]
    assert limits["kinds"] == ["python", "shell"]
    assert (limits["approve_runners"], limits["network"]) == (False, True)
    assert (limits["packages"], limits["timeout_s"]) == (["pandas"], 5)
    assert limits["memory_mb"] == 2048
    python = bench.call("create_session", execute=True)["job_limits"]
    assert "kinds" not in python  # clients of 0.1.0 can join
    assert python["approve_runners"]


@pytest.mark.parametrize(
    "given",
    [
        {"shell": True},
        {"network": True},
        {"ttl_minutes": 10**9},
        {"ttl_minutes": -1},
        {"execute": True, "packages": ["no such !"]},
        {"execute": True, "job_timeout_s": 10**9},
        {"description": "two\nlines"},
    ],
)
def test_terms_that_cannot_be(bench: Bench, given: dict[str, Any]) -> None:
    with pytest.raises(AirloxError):
        bench.call("create_session", **given)
    with pytest.raises(UsageError):
        bench.call("session_info")


@pytest.mark.parametrize(
    ("client_name", "shown"),
    [
        ("claude-code", "claude-code"),
        ("  x  ", "x"),
        ("", "agent"),
        ("\u202eevil", "agent"),
        ("a\nb", "agent"),
        ("y" * 500, "y" * 64),
    ],
)
def test_it_joins_under_the_clients_own_name(bench: Bench, client_name: str, shown: str) -> None:
    caller = RecordingCaller()
    caller.client_name = client_name
    bench.call("create_session", caller, description="tests things")
    (person,) = bench.call("session_info")["participants"]
    assert (person["name"], person["description"]) == (shown, "tests things")


# -- owners' links ----------------------------------------------------------------------------


def test_the_owners_link_is_kept_where_no_tool_reads(relay: RelayThread, tmp_path: Path) -> None:
    kept = tmp_path / "links"
    with Bench(tmp_path, relay=relay.url, owner_invite_dir=str(kept)) as bench:
        created = bench.call("create_session")
        handle = created["session"]
        (file,) = kept.iterdir()
        assert created["owner_link"] == f"kept as {file.name}"
        assert file.read_text() == bench.owner_link(handle) + "\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        for path in (str(file), f"../links/{file.name}"):
            with pytest.raises(AirloxError):
                bench.call("send_file", path=path)
        os.link(file, bench.work / "copy.md")
        with pytest.raises(UsageError):
            bench.call("send_file", path="copy.md")
        assert not [said for said in bench.said if bench.owner_link(handle)[-40:] in said]


def test_a_session_whose_owners_link_cannot_be_kept_is_not_left_over(
    relay: RelayThread, tmp_path: Path
) -> None:
    kept = tmp_path / "links"
    kept.write_text("a file")
    with Bench(tmp_path, relay=relay.url, owner_invite_dir=str(kept)) as bench:
        with pytest.raises(AirloxError):
            bench.call("create_session")
        with pytest.raises(UsageError):
            bench.call("session_info")


def test_an_owners_key_is_hidden_whoever_wrote_it(bench: Bench) -> None:
    created = bench.call("create_session")
    owner = bench.owner_link(created["session"])
    key = owner.partition("ok=")[2]
    with Session.join(created["invites"]["sender"], cache_dir=bench.work.parent / "peer") as peer:
        sent = peer.send_text(f"the link is {owner}")
        peer.send_file(key.encode(), name=f"{key}.md")
    listed = bench.answer("list_items")
    assert HIDDEN in listed.structured["items"][0]["text"]
    assert HIDDEN in bench.answer("get_item", item=sent.id).text
    with pytest.raises(AirloxError):
        bench.call("get_item", item=key)
    assert not [said for said in bench.said if key in said]


@pytest.mark.parametrize("cut_off", [1, 20])
def test_what_a_cut_leaves_of_an_owners_key_is_hidden(bench: Bench, cut_off: int) -> None:
    """Whoever asks chooses where a text is cut: all but a character is as good as the key."""
    created = bench.call("create_session")
    owner = bench.owner_link(created["session"])
    key = owner.partition("ok=")[2]
    with Session.join(created["invites"]["sender"], cache_dir=bench.work.parent / "peer") as peer:
        peer.send_text(f"{key}, {owner}")
        peer.send_text(f"{key[cut_off:]} and {key[:-cut_off]}!")
    first, second = bench.call("list_items", max_chars=len(key) - cut_off)["items"]
    assert first["text"] == HIDDEN
    assert second["text"] == HIDDEN
    pieces = {key[at : at + 15] for at in range(len(key) - 14)}
    assert not [said for said in bench.said if any(piece in said for piece in pieces)]


# -- what only the owner may, and only with the person ----------------------------------------


@pytest.fixture
def with_runner(bench: Bench, tmp_path: Path) -> Iterator[dict[str, Any]]:
    created = bench.call("create_session", execute=True, shell=True)
    runner = RunnerProgram(
        created["invites"]["runner"], tmp_path / "box", description='I am "the one" you want'
    )
    with runner:
        runner.note("waiting")
        yield created


def test_the_person_sees_the_key_and_the_claims_before_a_runner_is_approved(
    bench: Bench, with_runner: dict[str, Any]
) -> None:
    (found,) = bench.call("list_runners")["runners"]
    person = RecordingCaller(NO)
    with pytest.raises(UsageError) as declined:
        bench.call("approve_runner", person, runner="box")
    assert declined.value.code == "declined"
    (question,) = person.asked
    assert found["key"] in question
    assert '"I am \\"the one\\" you want"' in question
    assert not bench.call("list_runners")["runners"][0]["approved"]
    assert bench.call("approve_runner", RecordingCaller(YES), runner="box")["runner"]["approved"]
    with pytest.raises(UsageError):
        bench.call("reject_runner", RecordingCaller(NO), runner=found["key"])
    rejected = bench.call("reject_runner", RecordingCaller(YES), runner=found["key"])["runner"]
    assert (rejected["approved"], rejected["rejected"]) == (False, True)
    with pytest.raises(UsageError) as unknown:
        bench.call("approve_runner", runner="nobody")
    assert "list_runners" in str(unknown.value.hint)


def test_revoking_and_closing_wait_for_the_person(bench: Bench) -> None:
    created = bench.call("create_session")
    for name, more in (("revoke_role", {"role": "observer"}), ("close_session", {})):
        with pytest.raises(UsageError) as declined:
            bench.call(name, RecordingCaller(NO), **more)
        assert declined.value.code == "declined"
    for no_role in ("owner", "test-client", ""):
        with pytest.raises(UsageError) as refusal:
            bench.call("revoke_role", RecordingCaller(YES), role=no_role)
        assert "observer" in str(refusal.value.hint)
    Session.join(created["invites"]["observer"], cache_dir=bench.work.parent / "o").disconnect()
    assert bench.call("revoke_role", RecordingCaller(YES), role="observer")["revoked"]
    with pytest.raises(AirloxError):
        Session.join(created["invites"]["observer"], cache_dir=bench.work.parent / "p")
    assert bench.call("close_session", RecordingCaller(YES))["closed"]
    with pytest.raises(AirloxError):
        Session.join(created["invites"]["sender"], cache_dir=bench.work.parent / "q")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("get_invites", {}),
        ("approve_runner", {"runner": "box"}),
        ("reject_runner", {"runner": "box"}),
        ("revoke_role", {"role": "sender"}),
        ("close_session", {}),
        ("export_audit", {"dir": "."}),
    ],
)
def test_members_are_refused_before_anybody_is_asked(
    relay: RelayThread, tmp_path: Path, name: str, given: dict[str, Any]
) -> None:
    with (
        Session.create(relay.url, cache_dir=tmp_path / "owner") as owner,
        Bench(tmp_path) as bench,
    ):
        bench.call("join_session", invite=owner.invites["sender"])
        person = RecordingCaller(YES)
        with pytest.raises(PolicyError):
            bench.call(name, person, **given)
        assert not person.asked
