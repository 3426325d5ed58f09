"""Streams over HTTP: exact cursors, keepalives, readers that take nothing."""

from __future__ import annotations

import json
import socket

from airlox.protocol import wire
from airlox.protocol.keys import Role
from support.relay import (
    Http,
    Member,
    RelayThread,
    create,
    file_item,
    join,
    new_world,
    until,
)


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
        assert line.recv(12) == b"HTTP/1.1 200"  # it has begun, and more of it is not taken

        def post_until_cut() -> bool:
            owner.send(file_item(owner.person, b"#", "b.py"))
            return bool(relay.relay.core.hub.count == 0)

        until(post_until_cut, "cutting the slow reader")
        line.close()
