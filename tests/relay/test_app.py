"""The relay over HTTP, on a real server: sessions and participants, their audit trail, restarts."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from airlox.protocol import wire
from airlox.protocol.encoding import SessionId, b64u_encode, new_item_id
from airlox.protocol.keys import Role
from airlox.protocol.manifest import Manifest, Mode, parse_manifest
from airlox.relay import audit, service, state
from airlox.relay.config import Config
from support.clock import Clock
from support.relay import (
    Http,
    Member,
    RelayThread,
    create,
    file_item,
    join,
    new_world,
    now_ms,
    until,
)
from support.world import World, job_limits

# ── sessions ──────────────────────────────────────────────────────────────────────────────────────


def test_health(http: Http) -> None:
    answer = http.ask("GET", wire.HEALTH)
    assert answer.json == {"status": "ok", "version": "0.0.0"}


def test_a_created_session_shows_its_manifest_and_exists_once(http: Http, world: World) -> None:
    create(http, world)
    answer = http.ask("GET", wire.session(world.keys.session_id))
    assert answer.json == {"signed_manifest": world.document}
    assert http.ask("POST", wire.SESSIONS, world.document).error == "409 exists"


@pytest.mark.parametrize(
    "spoil", ["", "{}", "nonsense", "\udcff".encode("utf-8", "surrogateescape")]
)
def test_a_manifest_that_does_not_verify_opens_nothing(http: Http, spoil: str) -> None:
    assert http.ask("POST", wire.SESSIONS, spoil).status == 400


def test_a_long_manifest_is_checked_apart(
    relay: RelayThread, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than others should wait, and is checked once."""
    packages = tuple(f"package-{n}" for n in range(8000))
    world = new_world(limits=job_limits(False, packages=packages))
    threads: list[threading.Thread] = []

    def watch(document: str) -> Manifest:
        threads.append(threading.current_thread())
        return parse_manifest(document)

    monkeypatch.setattr(service, "parse_manifest", watch)
    monkeypatch.setattr(state, "parse_manifest", watch)
    create(http, world)
    loop = relay.call(threading.current_thread)
    assert len(threads) == 1
    assert threads[0] is not loop
    assert http.ask("GET", wire.session(world.keys.session_id)).json == {
        "signed_manifest": world.document
    }


def test_an_altered_manifest_opens_nothing(http: Http, world: World) -> None:
    altered = world.document.replace('"max_item_bytes":1000000', '"max_item_bytes":1000001')
    assert altered != world.document
    assert http.ask("POST", wire.SESSIONS, altered).error == "400 invalid_manifest"


def test_unknown_sessions_and_paths_are_not_found(http: Http, world: World) -> None:
    sid = world.keys.session_id
    for method, path in [
        ("GET", wire.session(sid)),
        ("GET", wire.events(sid)),
        ("POST", wire.participants(sid)),
        ("GET", wire.SESSIONS),
        ("DELETE", wire.session(sid)),
        ("GET", wire.session(sid) + "/"),
        ("GET", "/"),
        ("GET", "/v2/sessions"),
        ("POST", wire.session("")),
    ]:
        assert http.ask(method, path, "{}" if method == "POST" else None).error == "404 not_found"


def test_the_relays_own_terms() -> None:
    settings: dict[str, Any] = {
        "max_item_bytes": 1000,
        "allow_never_expires": False,
        "max_lifetime_s": 60,
        "max_sessions": 1,
    }
    with RelayThread(**settings) as relay:
        http = Http(relay.url)

        def refused(**terms: Any) -> str:
            return http.ask("POST", wire.SESSIONS, new_world(**terms).document).error

        assert refused(max_item_bytes=1001, ttl_ms=60_000) == "403 policy"
        assert refused(max_item_bytes=1000, ttl_ms=None) == "403 never_expires_not_allowed"
        assert refused(max_item_bytes=1000, ttl_ms=60_001) == "403 policy"
        create(http, new_world(max_item_bytes=1000, ttl_ms=60_000))
        assert refused(max_item_bytes=1000, ttl_ms=60_000) == "507 full"


def test_clocks_far_off_are_named(http: Http) -> None:
    """P-FLR-6."""
    for shift_s in (Config().max_clock_ahead_s + 60, -Config().max_manifest_age_s - 60, -3700):
        world = World(now_ms=now_ms() + shift_s * 1000)
        assert http.ask("POST", wire.SESSIONS, world.document).error == "400 invalid_manifest"


def test_close_ends_streams_purges_and_answers_404(
    http: Http, owner: Member, sender: Member
) -> None:
    """P-REL-4: `closed` comes before the stream ends, and nothing stays."""
    owner.say("hello")
    assert sender.post(wire.close(sender.sid)).error == "403 forbidden"
    with sender.stream() as events:
        assert owner.post(wire.close(owner.sid)).status == 200
        last = events.rest()[-1]
        assert (last.event, json.loads(last.data)) == ("closed", {"reason": "closed by the owner"})
    assert sender.get(wire.events(sender.sid)).error == "404 not_found"
    assert http.ask("GET", wire.session(owner.sid)).error == "404 not_found"


def test_a_closed_session_is_not_opened_again_by_its_manifest(tmp_path: Path) -> None:
    world, data = new_world(), str(tmp_path / "data")
    with RelayThread(data=data) as relay:
        http = Http(relay.url)
        create(http, world)
        join(http, world.person(Role.OWNER)).post(wire.close(world.keys.session_id))
        assert http.ask("POST", wire.SESSIONS, world.document).error == "410 gone"
    clock = Clock(now_ms())
    with RelayThread(data=data, clock=clock) as relay:
        http = Http(relay.url)
        assert http.ask("POST", wire.SESSIONS, world.document).error == "410 gone"
    clock.turn(Config().max_manifest_age_s)
    with RelayThread(data=data, clock=clock) as relay:
        assert relay.relay.core._ended == {}
        assert relay.call(relay.relay.core.store.read, SessionId("relay")) == []


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_the_list_of_closed_sessions_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Whoever opens and closes sessions all day fills neither memory nor disk."""
    monkeypatch.setattr(service, "ENDED", 4)
    monkeypatch.setattr(service, "ENDED_SLACK", 2)
    data = str(tmp_path / "data") if where == "disk" else None
    with RelayThread(data=data, creates_per_minute=0) as relay:
        http, core = Http(relay.url), relay.relay.core
        worlds = [new_world() for _ in range(20)]
        for world in worlds:
            create(http, world)
            owner = join(http, world.person(Role.OWNER))
            assert owner.post(wire.close(owner.sid)).status == 200
        relay.call(core.tidy_ended)
        assert len(core._ended) == 4
        assert len(relay.call(core.store.read, SessionId("relay"))) == 4
        assert http.ask("POST", wire.SESSIONS, worlds[-1].document).error == "410 gone"
    if data is not None:
        with RelayThread(data=data) as relay:
            answer = Http(relay.url).ask("POST", wire.SESSIONS, worlds[-1].document)
            assert answer.error == "410 gone"


def test_an_expired_session_ends_by_itself(relay: RelayThread, http: Http) -> None:
    world = new_world(ttl_ms=700)
    create(http, world)
    owner = join(http, world.person(Role.OWNER))
    with owner.stream() as events:
        assert [event.event for event in events.rest()] == ["participant", "closed"]
    assert owner.get(wire.events(owner.sid)).error == "404 not_found"
    late = world.person(Role.OWNER).say("too late", at_ms=world.now_ms)
    assert owner.send(late).error == "404 not_found"
    until(lambda: owner.sid not in relay.relay.core.sessions)


# ── participants ──────────────────────────────────────────────────────────────────────────────────


def test_join_gives_a_token_once(http: Http, world: World, owner: Member) -> None:
    """P-REL-3: whoever repeats a public join gets no token."""
    person = world.person(Role.SENDER)
    member = join(http, person)
    assert len(member.token) == 43
    path = wire.participants(owner.sid)
    assert http.ask("POST", path, person.join).error == "409 exists"
    # Signed joins are public: a secret that was never given does not help either.
    secret = b64u_encode(os.urandom(32))
    answer = http.ask("POST", path, person.join, airlox_join_secret=secret)
    assert answer.error == "409 exists"


def test_a_join_secret_gets_the_same_token_again(http: Http, world: World, owner: Member) -> None:
    """P-REL-3: the secret of the first time gets the token again."""
    person, path = world.person(Role.SENDER), wire.participants(owner.sid)
    secret = b64u_encode(os.urandom(32))
    first = http.ask("POST", path, person.join, airlox_join_secret=secret)
    again = http.ask("POST", path, person.join, airlox_join_secret=secret)
    assert (first.status, again.status) == (201, 200)
    assert first.json == again.json
    other = b64u_encode(os.urandom(32))
    assert http.ask("POST", path, person.join, airlox_join_secret=other).error == "409 exists"
    assert http.ask("POST", path, person.join).error == "409 exists"
    # the secret of another is as good as none, and what it gets is of no use elsewhere
    thief = world.person(Role.SENDER)
    theirs = http.ask("POST", path, thief.join, airlox_join_secret=other)
    assert theirs.status == 201
    assert http.ask("POST", path, person.join, airlox_join_secret=other).error == "409 exists"
    assert http.ask("POST", path, thief.join, airlox_join_secret=secret).error == "409 exists"
    assert theirs.json != first.json
    # and the token is not to be had again once it is dead
    gone = Member(http, thief, theirs.json["token"])
    assert gone.post(wire.leave(gone.sid)).status == 200
    assert http.ask("POST", path, thief.join, airlox_join_secret=other).error == "409 exists"
    short = http.ask("POST", path, person.join, airlox_join_secret="short")
    assert short.error == "400 invalid_join"
    assert len([e for e in owner.events() if e["kind"] == "participant"]) == 3


def test_joins_that_do_not_verify_are_refused(http: Http, world: World, owner: Member) -> None:
    path = wire.participants(owner.sid)
    stranger = new_world().person(Role.OWNER)
    forged = world.person(Role.SENDER).join.replace('"display_name":"sender"', '"display_name":"x"')
    for document in (stranger.join, forged, "{}", ""):
        assert http.ask("POST", path, document).error == "400 invalid_join"
    assert http.ask("POST", path, "x" * 20_000).error == "413 too_large"


def test_no_runner_joins_a_relay_session(http: Http) -> None:
    world = new_world(mode=Mode.RELAY)
    create(http, world)
    answer = http.ask(
        "POST", wire.participants(world.keys.session_id), world.person(Role.RUNNER).join
    )
    assert answer.error == "403 policy"


@pytest.mark.parametrize("token", [None, "", "x", "A" * 43])
def test_without_a_valid_token_nothing_is_answered(
    http: Http, owner: Member, token: str | None
) -> None:
    sid, item = owner.sid, new_item_id(os.urandom(16))
    for method, path in [
        ("POST", wire.leave(sid)),
        ("GET", wire.events(sid)),
        ("GET", wire.stream(sid)),
        ("POST", wire.items(sid)),
        ("GET", wire.blob(sid, item)),
        ("PUT", wire.blob(sid, item)),
        ("POST", wire.ack(sid, item)),
        ("POST", wire.want(sid, item)),
        ("POST", wire.close(sid)),
        ("POST", wire.revoke(sid, "sender")),
        ("GET", wire.audit(sid)),
        ("GET", wire.runners(sid)),
        ("POST", wire.approve(sid, "x")),
        ("POST", wire.reject(sid, "x")),
        ("POST", wire.heartbeat(sid)),
        ("GET", wire.runner_stream(sid)),
        ("POST", wire.jobs(sid)),
        ("GET", wire.job(sid, item)),
        ("POST", wire.claim(sid, item)),
        ("POST", wire.cancel(sid, item)),
        ("POST", wire.job_output(sid, item)),
        ("POST", wire.lack(sid, item)),
        ("GET", wire.job_stream(sid, item)),
        ("GET", wire.packs(sid, item)),
        ("PUT", wire.pack(sid, item, 0)),
        ("GET", wire.pack(sid, item, 0)),
    ]:
        assert http.ask(method, path, None, token).error == "401 unauthorized", path


def test_a_token_is_good_in_its_own_session_only(http: Http, owner: Member) -> None:
    other = new_world()
    create(http, other)
    path = wire.events(other.keys.session_id)
    assert http.ask("GET", path, None, owner.token).error == "401 unauthorized"


def test_leaving_kills_the_token_and_is_told(owner: Member, sender: Member) -> None:
    """P-REL-4: tokens die on leave."""
    with owner.stream(last=1) as events, sender.stream(last=1) as own:
        assert sender.post(wire.leave(sender.sid)).status == 200
        event = events.until("left")
        assert json.loads(event.data) == {"participant_pub": sender.public}
        assert [e.event for e in own.rest()] == ["left"]
    assert sender.get(wire.events(sender.sid)).error == "401 unauthorized"
    assert sender.send(sender.person.say("x", at_ms=now_ms())).error == "401 unauthorized"


def test_revoking_a_role_cuts_off_and_lets_nobody_in(
    http: Http, world: World, owner: Member, sender: Member
) -> None:
    """P-REL-4: `revoked` comes before streams are cut, and tokens are dead."""
    second = join(http, world.person(Role.SENDER))
    observer = join(http, world.person(Role.OBSERVER))
    assert sender.post(wire.revoke(owner.sid, "observer")).error == "403 forbidden"
    assert owner.post(wire.revoke(owner.sid, "owner")).error == "404 not_found"
    with second.stream(last=3) as events:
        assert owner.post(wire.revoke(owner.sid, "sender")).status == 200
        (event,) = events.rest()
        assert event.event == "revoked"
        assert json.loads(event.data) == {
            "role": "sender",
            "participants": [sender.public, second.public],
        }
    for member in (sender, second):
        assert member.send(member.person.say("x", at_ms=now_ms())).error == "401 unauthorized"
    newcomer = world.person(Role.SENDER)
    answer = http.ask("POST", wire.participants(owner.sid), newcomer.join)
    assert answer.error == "403 revoked"
    assert observer.get(wire.events(owner.sid)).status == 200
    assert owner.post(wire.revoke(owner.sid, "sender")).status == 200  # again: nothing happens
    assert [e["kind"] for e in owner.events()].count("revoked") == 1


# ── audit, and over a restart ─────────────────────────────────────────────────────────────────────


def test_the_audit_trail_tells_the_story_without_secrets(
    http: Http, world: World, owner: Member, sender: Member
) -> None:
    item = owner.say("x")
    sender.post(wire.ack(owner.sid, item.ref.id))
    sender.post(wire.leave(owner.sid))
    assert sender.get(wire.audit(owner.sid)).error == "401 unauthorized"
    second = join(http, world.person(Role.SENDER))
    assert second.get(wire.audit(owner.sid)).error == "403 forbidden"
    body = owner.get(wire.audit(owner.sid)).body
    lines = [json.loads(line) for line in body.splitlines()]
    assert [line["event"] for line in lines][:6] == [
        "created",
        "joined",
        "joined",
        "item",
        "ack",
        "evicted",
    ]
    assert lines[0]["signed_manifest"] == world.document
    assert lines[1]["signed_join"] == owner.person.join
    assert lines[3]["envelope"] == item.envelope
    assert lines[3]["blob_sha256"] == item.ref.blob_sha256
    assert all(isinstance(line["at_ms"], int) for line in lines)
    for member in (owner, sender, second):
        assert member.token.encode() not in body


def test_audit_trails_at_one_time_are_bounded(owner: Member, relay: RelayThread) -> None:
    quotas = relay.relay.core.quotas
    with quotas.audit(), quotas.audit():
        assert owner.get(wire.audit(owner.sid)).error == "503 busy"
    assert owner.get(wire.audit(owner.sid)).status == 200


def test_a_full_memory_is_said_before_it_is_full() -> None:
    with RelayThread(ephemeral_bytes=1 << 20, min_free_bytes=1 << 30) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        until(lambda: owner.send(file_item(owner.person, b"#" * 50_000)).status == 507, "the end")
        assert owner.post(wire.leave(owner.sid)).status == 200


def test_a_long_audit_trail_comes_whole(owner: Member) -> None:
    items = [owner.say(f"{n}") for n in range(audit.ENTRIES_AT_ONCE + 5)]
    lines = owner.get(wire.audit(owner.sid)).body.splitlines()
    posted = [json.loads(line)["envelope"] for line in lines if b'"event":"item"' in line]
    assert posted == [item.envelope for item in items]


def test_a_fault_of_one_pass_ends_no_sweeping(
    relay: RelayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeper = relay.relay.sweeper
    failures = []

    def fail() -> None:
        failures.append(1)
        raise OSError("the folder is away")

    with monkeypatch.context() as patch:
        patch.setattr(sweeper, "_check_disk", fail)
        until(lambda: len(failures) > 2)
    passes = sweeper.passes
    until(lambda: sweeper.passes > passes)


def test_the_pause_between_two_passes() -> None:
    with RelayThread(sweep_ms=60_000) as relay:
        until(lambda: relay.relay.sweeper.passes == 1)
        for _ in range(100):
            assert Http(relay.url).ask("GET", wire.HEALTH).status == 200
        assert relay.relay.sweeper.passes == 1


def test_records_count_for_the_size_of_a_session(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with RelayThread(data=data) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        item = owner.say("x")
        held = relay.relay.core.session(owner.sid).record_bytes
        assert held > len(item.envelope) + len(owner.person.join)
    with RelayThread(data=data, max_session_bytes=held + len(item.blob)) as relay:
        assert relay.relay.core.session(owner.sid).record_bytes == held
        owner.http = Http(relay.url)
        assert owner.send(owner.person.say("y", at_ms=now_ms())).error == "507 full"


def test_a_session_that_cannot_be_read_harms_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, whole, data = new_world(), new_world(), str(tmp_path / "data")
    with RelayThread(data=data) as relay:
        http = Http(relay.url)
        for world in (broken, whole):
            create(http, world)
        owner = join(http, whole.person(Role.OWNER))
        relay.call(relay.relay.core.store.append, broken.keys.session_id, [b"nonsense"])
    with RelayThread(data=data) as relay:
        owner.http = http = Http(relay.url)
        assert len(owner.events()) == 1
        assert http.ask("GET", wire.session(broken.keys.session_id)).error == "404 not_found"
        # What it left must not be mixed with a new one.
        assert http.ask("POST", wire.SESSIONS, broken.document).error == "409 exists"
    assert "cannot be read" in caplog.text


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    """P-REL-1, P-REL-2: what was acknowledged is there, under the same numbers."""
    world, data = new_world(), str(tmp_path / "data")
    with RelayThread(data=data) as relay:
        http = Http(relay.url)
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        sender = join(http, world.person(Role.SENDER))
        observer = join(http, world.person(Role.OBSERVER))
        item = owner.say("stays")
        gone = owner.say("goes")
        large = file_item(owner.person, os.urandom(100_000).hex().encode())
        owner.send(large)
        for member in (sender, observer):
            member.post(wire.ack(owner.sid, gone.ref.id))
        owner.post(wire.revoke(owner.sid, "observer"))
        before = owner.events()
        closed = new_world()
        create(http, closed)
        join(http, closed.person(Role.OWNER)).post(wire.close(closed.keys.session_id))
    with RelayThread(data=data) as relay:
        http = Http(relay.url)
        owner.http = sender.http = observer.http = http
        assert owner.events() == before
        assert sender.get(wire.blob(owner.sid, item.ref.id)).body == item.blob
        assert sender.get(wire.blob(owner.sid, large.ref.id)).body == large.blob
        assert sender.get(wire.blob(owner.sid, gone.ref.id)).error == "410 evicted"
        assert observer.get(wire.events(owner.sid)).error == "401 unauthorized"
        assert owner.send(item).json == {"seq": 3}  # known still: not a second item
        newcomer = world.person(Role.OBSERVER)
        answer = http.ask("POST", wire.participants(owner.sid), newcomer.join)
        assert answer.error == "403 revoked"
        sid = closed.keys.session_id
        assert http.ask("GET", wire.session(sid)).error == "404 not_found"
        more = owner.say("goes on")
        assert owner.events()[-1]["data"]["envelope"] == more.envelope
        assert owner.post(wire.close(owner.sid)).status == 200
        until(lambda: not list(Path(data, "sessions").iterdir()), "purge")
