"""Items over HTTP: posted once, in order, checked, bounded."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import threading
from pathlib import Path

import pytest

from airlox.protocol import wire
from airlox.protocol.encoding import SessionId
from airlox.protocol.item import encode_frame
from airlox.protocol.keys import Role, SigningKey
from airlox.relay.store import blobs
from airlox.relay.store.base import Upload
from support.relay import (
    Answer,
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
from support.world import World


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
    with socket.create_connection((http.host, http.port), timeout=60) as line:
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
        with socket.create_connection((http.host, http.port), timeout=60) as line:
            line.sendall(head + owner.person.say("x", at_ms=now_ms()).frame()[:100])
            answer = b""
            while part := line.recv(4096):
                answer += part
        assert b" 400 " in answer.split(b"\r\n")[0]
        assert b"did not arrive in time (--body-timeout 1s, " in answer


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


def test_an_ipv6_network_counts_as_one_address() -> None:
    """Whoever has one address has a /64 of them."""
    with RelayThread(creates_per_minute=1) as relay:
        http = Http(relay.url)

        def created(forwarded: str) -> int:
            document = new_world().document
            return http.ask("POST", wire.SESSIONS, document, x_forwarded_for=forwarded).status

        assert created("2001:db8:1:2::1") == 201
        assert created("2001:db8:1:2:ffff::2") == 429
        assert created("2001:db8:1:3::1") == 201


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


class _Held:
    """An upload that stops on its way to the disk until it may go on."""

    def __init__(self, upload: Upload, is_there: threading.Event, may_go: threading.Event) -> None:
        self.write, self.digest, self.drop = upload.write, upload.digest, upload.drop
        self._upload, self._is_there, self._may_go = upload, is_there, may_go

    async def keep(self, sid: SessionId, name: str) -> None:
        self._is_there.set()
        await asyncio.to_thread(self._may_go.wait, 20)
        await self._upload.keep(sid, name)


def test_nothing_comes_after_its_author_was_cut_off(
    relay: RelayThread, owner: Member, sender: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-REL-4: also not what was on its way to the disk meanwhile."""
    store = relay.relay.core.store
    make, is_there, may_go = store.new_upload, threading.Event(), threading.Event()
    monkeypatch.setattr(store, "new_upload", lambda: _Held(make(), is_there, may_go))
    item = file_item(sender.person, os.urandom(100_000).hex().encode())
    answers: list[Answer] = []
    post = threading.Thread(target=lambda: answers.append(sender.send(item)))
    post.start()
    assert is_there.wait(20)
    assert owner.post(wire.revoke(owner.sid, "sender")).status == 200
    may_go.set()
    post.join(20)
    assert [answer.error for answer in answers] == ["401 unauthorized"]
    assert [event["kind"] for event in owner.events()] == ["participant", "participant", "revoked"]
    assert owner.get(wire.blob(owner.sid, item.ref.id)).error == "404 not_found"
