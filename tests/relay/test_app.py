"""The relay over HTTP, on a real server: every endpoint of the floor, and what it refuses."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox.protocol import wire
from airlox.protocol.encoding import SessionId, b64u_encode, new_item_id
from airlox.protocol.item import SealedItem, encode_frame
from airlox.protocol.keys import Role, SigningKey
from airlox.protocol.manifest import Manifest, Mode, parse_manifest
from airlox.protocol.payload import File
from airlox.relay import routes, service, state
from airlox.relay.config import Config
from airlox.relay.store import blobs
from support.clock import Clock
from support.relay import Http, Member, RelayThread, create, join, new_world, now_ms, until
from support.world import Person, World, job_limits


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


def file_item(person: Person, data: bytes, name: str = "a.py") -> SealedItem:
    meta = File(mime="text/x-python", name=name)
    return person.post(meta, body=data, subkind="py", at_ms=now_ms())


# ── sessions ─────────────────────────────────────────────────────────────────────────────────


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


# ── participants ─────────────────────────────────────────────────────────────────────────────


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


# ── items ────────────────────────────────────────────────────────────────────────────────────


def test_an_item_reaches_everybody_in_order(owner: Member, sender: Member) -> None:
    """P-REL-2: numbered from 0 without gaps."""
    items = [owner.say(f"text {n}") for n in range(5)]
    with sender.stream() as events:
        seen = [events.next() for _ in range(7)]
    assert [e.id for e in seen if e] == [str(n) for n in range(7)]
    listed = sender.events()
    assert [e["seq"] for e in listed] == list(range(7))
    assert [e["kind"] for e in listed] == ["participant"] * 2 + ["item"] * 5
    assert [e["data"]["envelope"] for e in listed[2:]] == [item.envelope for item in items]
    assert sender.events(after=4) == listed[5:]
    assert sender.events(after=99) == []
    for item in items:
        blob = sender.get(wire.blob(sender.sid, item.ref.id))
        assert (blob.status, blob.body) == (200, item.blob)


def test_an_item_posted_again_is_one_item(owner: Member) -> None:
    item = owner.person.say("once", at_ms=now_ms())
    first, again = owner.send(item), owner.send(item)
    assert (first.status, again.status) == (201, 201)
    assert first.json == again.json
    assert len([e for e in owner.events() if e["kind"] == "item"]) == 1


def test_an_id_with_other_content_is_a_duplicate(owner: Member, sender: Member) -> None:
    item = owner.say("first")
    other = owner.person.say("second", item_id=item.ref.id, at_ms=now_ms())
    assert owner.send(other).error == "409 duplicate"
    foreign = sender.person.say("third", item_id=item.ref.id, at_ms=now_ms())
    assert sender.send(foreign).error == "409 duplicate"
    assert sender.get(wire.blob(owner.sid, item.ref.id)).body == item.blob


def test_malformed_frames_are_refused(owner: Member) -> None:
    item = owner.person.say("x" * 100, at_ms=now_ms())
    frame, envelope = item.frame(), item.envelope.encode()
    loose = json.dumps(json.loads(item.envelope)).encode()
    for body in (
        b"",
        b"\0\0",
        b"\xff\xff\xff\xff" + envelope,
        (20_000).to_bytes(4, "big") + bytes(20_000),
        frame[: len(envelope) // 2],
        frame[:-1],
        frame + b"x",
        frame[:-1] + bytes([frame[-1] ^ 1]),
        len(loose).to_bytes(4, "big") + loose + item.blob,
        b"\0\0\0\2\xff\xfe",
        b"\0\0\0\2{}",
    ):
        assert owner.post(wire.items(owner.sid), body).error == "400 invalid_item"
    assert [e["kind"] for e in owner.events()] == ["participant"]


def test_who_may_not_post_is_refused(http: Http, world: World, owner: Member) -> None:
    """P-ITM-2: role and author."""
    observer = join(http, world.person(Role.OBSERVER))
    text = observer.person.say("I only watch", at_ms=now_ms())
    assert observer.send(text).error == "403 forbidden"
    as_other = owner.person.say("not mine", at_ms=now_ms())
    sender = join(http, world.person(Role.SENDER))
    assert sender.send(as_other).error == "403 policy"


def test_times_and_sizes_outside_the_session_are_refused(
    http: Http, world: World, owner: Member
) -> None:
    """P-ITM-2: time and size."""
    for at_ms in (world.now_ms - 1, world.now_ms + 3_600_000):
        assert owner.send(owner.person.say("x", at_ms=at_ms)).error == "403 policy"
    assert owner.send(owner.person.say("x", at_ms=world.now_ms + 3_599_999)).status == 201
    large = owner.person.say("x" * 1_000_001, at_ms=now_ms())
    assert owner.send(large).error == "413 too_large"
    stranger = new_world().person(Role.OWNER)
    assert owner.send(stranger.say("x", at_ms=now_ms())).error == "403 policy"


def test_a_forged_signature_is_refused(world: World, owner: Member) -> None:
    """P-ITM-2: signature."""
    item = owner.person.say("true", at_ms=now_ms())
    envelope = json.loads(item.envelope)
    thief = SigningKey.from_seed(os.urandom(32))
    envelope["sig"] = thief.sign("item", b"whatever")
    forged = json.dumps(envelope, sort_keys=True, separators=(",", ":"))
    answer = owner.post(wire.items(owner.sid), encode_frame(forged, item.blob))
    assert answer.error == "400 invalid_item"


def test_large_blobs_pass_through_files(owner: Member, sender: Member) -> None:
    data = os.urandom(400_000).hex().encode()
    item = file_item(owner.person, data)
    assert owner.send(item).status == 201
    assert owner.send(item).status == 201
    assert sender.get(wire.blob(owner.sid, item.ref.id)).body == item.blob
    other = file_item(owner.person, data)
    for blob in (other.blob[:-1], other.blob + b"x", other.blob[:-1] + b"\0"):
        body = encode_frame(other.envelope, blob)
        assert owner.post(wire.items(owner.sid), body).error == "400 invalid_item"
    chunked = iter([other.frame()[:100], other.frame()[100:70_000], other.frame()[70_000:]])
    assert owner.ask("POST", wire.items(owner.sid), chunked).status == 201


def test_a_file_whose_place_is_not_durable_is_refused_and_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, "the disk failed")

    data = tmp_path / "data"
    with RelayThread(data=str(data)) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        item = file_item(owner.person, os.urandom(200_000).hex().encode())
        with monkeypatch.context() as patch:
            patch.setattr(blobs, "sync_folder", fail)
            assert owner.send(item).error == "503 busy"
        assert [e["kind"] for e in owner.events()] == ["participant"]
        kept = data / "sessions" / owner.sid / "blobs"
        until(lambda: not any(kept.iterdir()), "taking back")
        assert owner.send(item).status == 201
        assert owner.get(wire.blob(owner.sid, item.ref.id)).body == item.blob


def test_a_broken_upload_leaves_nothing_and_can_be_repeated(
    relay: RelayThread, http: Http, owner: Member
) -> None:
    item = file_item(owner.person, os.urandom(200_000).hex().encode())
    frame = item.frame()
    head = (
        f"POST {wire.items(owner.sid)} HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {owner.token}\r\nContent-Length: {len(frame)}\r\n\r\n"
    ).encode()
    with socket.create_connection((http.host, http.port), timeout=20) as line:
        line.sendall(head + frame[: len(frame) // 2])
        assert owner.send(item).status == 201  # a retry does not wait for the broken one
    until(lambda: relay.relay.core.session(owner.sid).incoming_bytes == 0)
    assert len([e for e in owner.events() if e["kind"] == "item"]) == 1
    if relay.config.data:
        until(lambda: not list(Path(relay.config.data or "", "tmp").iterdir()))


def test_a_body_that_never_ends_is_given_up() -> None:
    with RelayThread(body_timeout_s=1) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        head = (
            f"POST {wire.items(owner.sid)} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {owner.token}\r\nContent-Length: 5000\r\n\r\n"
        ).encode()
        with socket.create_connection((http.host, http.port), timeout=20) as line:
            line.sendall(head + owner.person.say("x", at_ms=now_ms()).frame()[:100])
            answer = b""
            while part := line.recv(4096):
                answer += part
        assert b" 400 " in answer.split(b"\r\n")[0]
        assert b"did not arrive in time" in answer


def test_counts_and_bytes_of_a_session_are_bounded() -> None:
    with RelayThread(max_items=3, max_participants=2, max_session_bytes=3000) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        join(http, world.person(Role.SENDER))
        path = wire.participants(owner.sid)
        assert http.ask("POST", path, world.person(Role.SENDER).join).error == "507 full"
        assert owner.send(owner.person.say("x" * 3000, at_ms=now_ms())).error == "507 full"
        for n in range(3):
            owner.say(f"{n}")
        assert owner.send(owner.person.say("4", at_ms=now_ms())).error == "507 full"


def test_the_event_list_stays_within_one_answer() -> None:
    """P-FLR-1."""
    with RelayThread() as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        owner.say("fits")

        def fill() -> None:
            relay.relay.core.session(owner.sid).events_bytes = relay.config.item_event_bytes + 1

        relay.call(fill)
        assert owner.send(owner.person.say("x", at_ms=now_ms())).error == "507 full"
        newcomer = world.person(Role.SENDER)
        answer = http.ask("POST", wire.participants(owner.sid), newcomer.join)
        assert answer.error == "507 full"


def test_events_bytes_are_counted_as_they_are_sent(relay: RelayThread, owner: Member) -> None:
    for n in range(200):
        owner.say(f"text {n}")
    counted = relay.relay.core.session(owner.sid).events_bytes
    sent = len(owner.get(wire.events(owner.sid)).body)
    assert sent <= counted <= sent + 201 * 20


def test_rates_are_held(world: World) -> None:
    with RelayThread(posts_per_second=1, joins_per_minute=2, creates_per_minute=1) as relay:
        http = Http(relay.url)
        create(http, world)
        other = new_world()
        assert http.ask("POST", wire.SESSIONS, other.document).error == "429 rate_limited"
        owner = join(http, world.person(Role.OWNER))
        join(http, world.person(Role.OWNER))
        path = wire.participants(owner.sid)
        assert http.ask("POST", path, world.person(Role.OWNER).join).error == "429 rate_limited"
        items = [owner.person.say(f"{n}", at_ms=now_ms()) for n in range(8)]
        statuses = [owner.send(item).status for item in items]
        assert statuses[:2] == [201, 201]
        assert 429 in statuses


def test_joins_of_strangers_keep_nobody_out() -> None:
    with RelayThread(joins_per_minute=1) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        path = wire.participants(world.keys.session_id)
        for _ in range(5):
            stranger = new_world().person(Role.OWNER)
            assert http.ask("POST", path, stranger.join).error == "400 invalid_join"
        join(http, world.person(Role.OWNER))


def test_creating_too_often_costs_the_relay_no_body() -> None:
    with RelayThread(creates_per_minute=1) as relay:
        http = Http(relay.url)
        create(http, new_world())
        assert http.ask("POST", wire.SESSIONS, b"x" * (2 << 20)).error == "429 rate_limited"


@pytest.mark.parametrize("behind_proxy", [False, True])
def test_a_proxy_on_this_machine_names_its_clients(behind_proxy: bool) -> None:
    with RelayThread(creates_per_minute=1, behind_proxy=behind_proxy) as relay:
        http = Http(relay.url)

        def created(forwarded: str) -> int:
            document = new_world().document
            return http.ask("POST", wire.SESSIONS, document, x_forwarded_for=forwarded).status

        assert created("198.51.100.1") == 201
        assert created("198.51.100.2") == 201
        assert created("198.51.100.9, 198.51.100.2") == 429  # the client's own claim counts not


# ── blobs come and go ────────────────────────────────────────────────────────────────────────


def test_a_blob_goes_when_everybody_has_it_and_comes_back_when_asked(
    http: Http, world: World, owner: Member, sender: Member
) -> None:
    observer = join(http, world.person(Role.OBSERVER))
    item = owner.say("to be delivered")
    sid, item_id = owner.sid, item.ref.id
    assert sender.post(wire.want(sid, item_id)).error == "409 present"
    assert sender.post(wire.ack(sid, item_id)).status == 204
    assert observer.get(wire.blob(sid, item_id)).status == 200
    assert observer.post(wire.ack(sid, item_id)).status == 204
    assert observer.post(wire.ack(sid, item_id)).status == 204
    assert observer.get(wire.blob(sid, item_id)).error == "410 evicted"
    assert owner.events()[-1] == {"seq": 4, "kind": "evicted", "data": {"item": item_id}}

    put = wire.blob(sid, item_id)
    assert owner.ask("PUT", put, item.blob).error == "404 not_found"  # nobody asked
    assert observer.post(wire.want(sid, item_id)).status == 200
    assert observer.post(wire.want(sid, item_id)).status == 200
    wants = [e for e in owner.events() if e["kind"] == "want"]
    assert [e["data"] for e in wants] == [{"item": item_id, "by": observer.public}]
    spoiled = item.blob[:-1] + bytes([item.blob[-1] ^ 1])
    for bad in (spoiled, item.blob[:-1], item.blob + b"x", b""):
        assert sender.ask("PUT", put, bad).error == "400 invalid_item"
    assert sender.ask("PUT", put, item.blob).status == 200
    assert sender.ask("PUT", put, item.blob).error == "409 present"
    assert owner.events()[-1]["kind"] == "reseeded"
    assert observer.get(put).body == item.blob
    assert observer.post(wire.ack(sid, item_id)).status == 204
    assert observer.get(put).error == "410 evicted"


def test_a_large_blob_comes_back_too(owner: Member, sender: Member) -> None:
    item = file_item(owner.person, os.urandom(100_000).hex().encode())
    assert owner.send(item).status == 201
    path = wire.blob(owner.sid, item.ref.id)
    assert sender.post(wire.ack(owner.sid, item.ref.id)).status == 204
    assert sender.get(path).error == "410 evicted"
    assert sender.post(wire.want(owner.sid, item.ref.id)).status == 200
    assert owner.ask("PUT", path, item.blob).status == 200
    assert sender.get(path).body == item.blob


def test_with_nobody_to_have_it_a_blob_stays(owner: Member) -> None:
    item = owner.say("alone")
    assert owner.post(wire.ack(owner.sid, item.ref.id)).status == 204
    assert owner.get(wire.blob(owner.sid, item.ref.id)).body == item.blob


def test_who_has_left_keeps_no_blob_alive(
    http: Http, world: World, owner: Member, sender: Member
) -> None:
    observer = join(http, world.person(Role.OBSERVER))
    item = owner.say("x")
    sender.post(wire.ack(owner.sid, item.ref.id))
    observer.post(wire.leave(owner.sid))
    until(lambda: owner.get(wire.blob(owner.sid, item.ref.id)).status == 410, "eviction")


def test_blobs_of_unknown_items_are_not_found(owner: Member) -> None:
    item_id = new_item_id(os.urandom(16))
    sid = owner.sid
    assert owner.get(wire.blob(sid, item_id)).error == "404 not_found"
    assert owner.post(wire.ack(sid, item_id)).error == "404 not_found"
    assert owner.post(wire.want(sid, item_id)).error == "404 not_found"
    assert owner.ask("PUT", wire.blob(sid, item_id), b"x").error == "404 not_found"


def test_wants_are_bounded() -> None:
    with RelayThread(max_wants=2) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        sender = join(http, world.person(Role.SENDER))
        items = [owner.say(f"{n}") for n in range(3)]
        for item in items:
            sender.post(wire.ack(owner.sid, item.ref.id))
        answers = [sender.post(wire.want(owner.sid, item.ref.id)) for item in items]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert answers[2].error == "429 too_many_wants"


def test_wants_that_lapsed_do_not_count() -> None:
    clock = Clock(now_ms())
    with RelayThread(max_wants=1, clock=clock) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        sender = join(http, world.person(Role.SENDER))
        first, second = owner.say("1"), owner.say("2")
        for item in (first, second):
            sender.post(wire.ack(owner.sid, item.ref.id))
        assert sender.post(wire.want(owner.sid, first.ref.id)).status == 200
        assert sender.post(wire.want(owner.sid, second.ref.id)).status == 429
        clock.turn(relay.config.want_lifetime_s + 1)
        assert sender.post(wire.want(owner.sid, second.ref.id)).status == 200
        assert owner.ask("PUT", wire.blob(owner.sid, first.ref.id), first.blob).status == 404
        assert owner.ask("PUT", wire.blob(owner.sid, second.ref.id), second.blob).status == 200


def test_two_who_bring_the_same_blob_bring_it_once(
    relay: RelayThread, owner: Member, sender: Member
) -> None:
    item = file_item(owner.person, os.urandom(100_000).hex().encode())
    owner.send(item)
    sender.post(wire.ack(owner.sid, item.ref.id))
    sender.post(wire.want(owner.sid, item.ref.id))

    async def bring_twice() -> None:
        session = relay.relay.core.session(owner.sid)
        who = session.participants[owner.person.public]
        await asyncio.gather(
            *(
                relay.relay.items.reseed(session, who, item.ref.id, WholeBody(item.blob))
                for _ in range(2)
            )
        )

    relay.call(bring_twice)
    assert [e["kind"] for e in owner.events()].count("reseeded") == 1
    assert sender.get(wire.blob(owner.sid, item.ref.id)).body == item.blob


class WholeBody:
    """The body of a request that has come already."""

    def __init__(self, data: bytes) -> None:
        self._parts = [data, b""]

    async def read(self) -> bytes:
        return self._parts.pop(0)

    def expect(self, size: int) -> None:
        pass


def test_what_many_had_is_evicted_in_few_writes(
    relay: RelayThread, http: Http, world: World, owner: Member, sender: Member
) -> None:
    observer = join(http, world.person(Role.OBSERVER))
    items = [owner.say(f"{n}") for n in range(30)]
    for item in items:
        sender.post(wire.ack(owner.sid, item.ref.id))
    store = relay.relay.core.store
    writes: list[int] = []
    append = store.append

    def count(sid: SessionId, entries: list[bytes], *more: Any) -> Any:
        writes.append(len(entries))
        return append(sid, entries, *more)

    store.append = count
    try:
        observer.post(wire.leave(owner.sid))
        until(lambda: [e["kind"] for e in owner.events()].count("evicted") == 30, "eviction")
    finally:
        del store.append
    assert writes == [1, 30]


# ── streams ──────────────────────────────────────────────────────────────────────────────────


def test_a_stream_goes_on_exactly_at_its_cursor(owner: Member, sender: Member) -> None:
    """P-REL-2: a stream resumes exactly after its cursor."""
    for n in range(300):
        owner.say(f"{n}")
    seen: list[str] = []
    last: int | None = None
    while len(seen) < 302:
        with sender.stream(last) as events:
            for _ in range(min(47, 302 - len(seen))):
                event = events.next()
                assert event is not None
                seen.append(event.id or "")
            last = int(seen[-1])
    assert seen == [str(n) for n in range(302)]


def test_what_is_posted_while_a_stream_is_open_arrives(owner: Member, sender: Member) -> None:
    with sender.stream(last=1) as events:
        for n in range(20):
            item = owner.say(f"{n}")
            event = events.next()
            assert event is not None
            assert json.loads(event.data) == {"envelope": item.envelope}


def test_malformed_cursors_are_refused(owner: Member) -> None:
    for value in ("x", "-2", "1.5", "٣", "9" * 30):
        answer = owner.ask(
            "GET", wire.stream(owner.sid), last_event_id=value.encode().decode("latin-1")
        )
        assert answer.error == "400 bad_request"
    assert owner.get(wire.events(owner.sid) + "?after=x").error == "400 bad_request"


def test_streams_per_participant_are_bounded() -> None:
    with RelayThread(max_streams_per_participant=2) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        with owner.stream() as first, owner.stream() as second:
            assert first.next() is not None
            assert second.next() is not None
            assert owner.get(wire.stream(owner.sid)).error == "429 rate_limited"
        until(lambda: relay.relay.core.hub.count == 0, "leaving")
        with owner.stream() as third:
            assert third.next() is not None


def test_streams_ask_proxies_to_pass_them_on(owner: Member) -> None:
    connection = owner.http.connect()
    connection.request(
        "GET", wire.stream(owner.sid), headers={"authorization": f"Bearer {owner.token}"}
    )
    answer = connection.getresponse()
    assert answer.read1(100) == b": open\n\n"
    assert answer.getheader("x-accel-buffering") == "no"
    assert answer.getheader("cache-control") == "no-cache, no-transform"
    connection.close()
    answer.close()


def test_silent_streams_get_keepalives() -> None:
    """P-REL-6: a stream begins with a comment and is never silent for long."""
    with RelayThread(keepalive_s=1) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        connection = http.connect()
        try:
            headers = {"authorization": f"Bearer {owner.token}", wire.Headers.LAST_EVENT_ID: "0"}
            connection.request("GET", wire.stream(owner.sid), headers=headers)
            answer = connection.getresponse()
            said = answer.read1()
            assert said.startswith(b":")
            while said.count(b": keepalive\n\n") < 2:
                said += answer.read1()
        finally:
            connection.close()


def test_a_reader_that_takes_nothing_is_cut() -> None:
    with RelayThread(stall_timeout_s=1) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        for n in range(400):
            owner.say(f"{n}" * 10)
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        line.settimeout(20)
        line.connect((http.host, http.port))
        request = f"GET {wire.stream(owner.sid)} HTTP/1.1\r\nHost: x\r\n"
        line.sendall(f"{request}Authorization: Bearer {owner.token}\r\n\r\n".encode())
        until(lambda: relay.relay.core.hub.count == 1, "the stream")

        def post_until_cut() -> bool:
            owner.send(file_item(owner.person, b"#", "b.py"))
            return bool(relay.relay.core.hub.count == 0)

        until(post_until_cut, "cutting the slow reader")
        line.close()


# ── audit, and over a restart ────────────────────────────────────────────────────────────────


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
    gate = relay.relay.core.quotas.audits
    with gate, gate:
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
    items = [owner.say(f"{n}") for n in range(routes.AUDIT_ENTRIES + 5)]
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
