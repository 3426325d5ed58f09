"""Every endpoint, asked by every role, by tokens that are dead, and by those of other sessions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from airlox.protocol import wire
from airlox.protocol.encoding import new_item_id
from airlox.protocol.keys import Role
from airlox.relay.routes import ROUTES
from support.crew import Crew, a_job
from support.relay import Member, RelayThread, create, join, new_world, now_ms

OWNER, SENDER, OBSERVER, RUNNER = Role.OWNER, Role.SENDER, Role.OBSERVER, Role.RUNNER
ALL = (OWNER, SENDER, OBSERVER, RUNNER)


class Asked(NamedTuple):
    """An endpoint and the roles it answers; the crew's sender is the job's author."""

    method: str
    path: Callable[[str, str], str]
    roles: tuple[Role, ...]


def with_runner(path: Callable[[str, str], str]) -> Callable[[str, str], str]:
    return lambda sid, _: path(sid, "A" * 43)


ENDPOINTS = [
    Asked("GET", lambda sid, _: wire.events(sid), ALL),
    Asked("GET", lambda sid, _: wire.stream(sid), ALL),
    Asked("GET", lambda sid, _: wire.runners(sid), ALL),
    Asked("GET", lambda sid, _: wire.delivery(sid, 1).partition("?")[0], ALL),
    Asked("GET", wire.blob, ALL),
    Asked("PUT", wire.blob, ALL),
    Asked("POST", wire.ack, ALL),
    Asked("POST", wire.want, ALL),
    Asked("GET", wire.job, ALL),
    Asked("GET", wire.job_output, ALL),
    Asked("GET", wire.job_stream, ALL),
    Asked("GET", lambda sid, _: wire.audit(sid), (OWNER, OBSERVER)),
    Asked("POST", lambda sid, _: wire.epochs(sid), (OWNER,)),
    Asked("POST", with_runner(wire.approve), (OWNER,)),
    Asked("POST", with_runner(wire.reject), (OWNER,)),
    Asked("POST", lambda sid, _: wire.revoke(sid, "nobody"), (OWNER,)),
    Asked("POST", lambda sid, _: wire.heartbeat(sid), (RUNNER,)),
    Asked("GET", lambda sid, _: wire.runner_stream(sid), (RUNNER,)),
    Asked("POST", wire.claim, (RUNNER,)),
    Asked("POST", wire.job_output, (RUNNER,)),
    Asked("POST", wire.lack, (RUNNER,)),
    Asked("GET", wire.packs, (SENDER, RUNNER)),
    Asked("GET", lambda sid, job: wire.pack(sid, job, 0), (SENDER, RUNNER)),
    Asked("PUT", lambda sid, job: wire.pack(sid, job, 0), (SENDER,)),
    Asked("POST", lambda sid, _: wire.items(sid), ALL),
    Asked("POST", lambda sid, _: wire.jobs(sid), ALL),
    Asked("POST", lambda sid, _: wire.codes(sid), (OWNER,)),
    Asked("GET", lambda sid, _: wire.code(sid, 1), (OWNER,)),
    Asked("POST", lambda sid, _: wire.cancel_code(sid, 1), (OWNER,)),
    Asked("POST", lambda sid, _: wire.answer_try(sid, 1, "x"), (OWNER,)),
    Asked("POST", lambda sid, _: wire.wrong_try(sid, 1, "x"), (OWNER,)),
    Asked("POST", lambda sid, _: wire.send_invite(sid, 1, "x"), (OWNER,)),
    # these change something: the last ones asked
    Asked("POST", wire.cancel, (OWNER, SENDER)),
    Asked("POST", lambda sid, _: wire.leave(sid), ALL),
    Asked("POST", lambda sid, _: wire.close(sid), (OWNER,)),
]
"""What is posted to /items and /jobs decides by itself who may: see the end of this file."""


@pytest.fixture
def relay() -> Iterator[RelayThread]:
    with RelayThread() as running:
        yield running


def status(member: Member, asked: Asked, job: str) -> int:
    """The status alone: streams do not end."""
    connection = member.http.connect()
    try:
        headers = {"authorization": f"Bearer {member.token}"}
        body = b"x" * 100 if asked.method == "PUT" else b""
        connection.request(asked.method, asked.path(member.sid, job), body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_table_has_every_endpoint() -> None:
    given = {
        (asked.method, *asked.path("s", "1").split("/")[4::2], len(asked.path("s", "1").split("/")))
        for asked in ENDPOINTS
    }
    open_to_all = {("POST",), ("GET", "*"), ("POST", "*", "participants")}
    wanted = {
        (method, *shape[1::2], len(shape) + 3)
        for method, *shape in ROUTES
        if (method, *shape) not in open_to_all
    }
    assert given == wanted


@pytest.mark.parametrize("role", ALL)
def test_who_is_answered(relay: RelayThread, role: Role) -> None:
    crew = Crew(relay, epochs=True)
    runner = crew.runner()
    job = crew.job()
    crew.submit(job)
    member = {
        OWNER: crew.owner,
        SENDER: crew.sender,
        OBSERVER: join(crew.http, crew.world.person(OBSERVER)),
        RUNNER: runner,
    }[role]
    last = ["leave", "close"] if role is OWNER else ["close", "leave"]
    for asked in sorted(ENDPOINTS, key=lambda each: last.count(each.path("s", "1").split("/")[-1])):
        if role is OWNER and asked.path("s", "1").endswith("/leave"):
            continue  # it would not be there to close the session
        found = status(member, asked, job.ref.id)
        is_answered = found not in (401, 403)
        assert is_answered == (role in asked.roles), (asked.method, asked.path("s", "1"), found)


def dead_tokens(crew: Crew) -> Iterator[tuple[str, Member]]:
    left = join(crew.http, crew.world.person(OWNER))
    assert left.post(wire.leave(crew.sid)).status == 200
    yield "left", left
    rejected = crew.runner("rejected")
    assert crew.owner.post(wire.reject(crew.sid, rejected.public)).status == 200
    yield "rejected", rejected
    revoked = join(crew.http, crew.world.person(OBSERVER))
    assert crew.owner.post(wire.revoke(crew.sid, "observer")).status == 200
    yield "revoked", revoked
    world = new_world()
    create(crew.http, world)
    foreign = join(crew.http, world.person(OWNER))
    yield "foreign", Member(crew.http, crew.owner.person, foreign.token)


def test_dead_and_foreign_tokens_open_nothing(relay: RelayThread) -> None:
    """P-REL-4: tokens die on leave, revoke and reject."""
    crew = Crew(relay, full=True)
    crew.runner()
    job = crew.job()
    crew.submit(job)
    for what, member in dead_tokens(crew):
        for asked in ENDPOINTS:
            assert status(member, asked, job.ref.id) == 401, (what, asked.path("s", "1"))
    assert crew.state(job) == ("assigned", None)


def test_who_may_post_what_is_decided_by_what_is_posted(relay: RelayThread) -> None:
    """P-ITM-2: the relay checks the role before it accepts."""
    crew = Crew(relay, full=True)
    observer, runner = join(crew.http, crew.world.person(OBSERVER)), crew.runner()
    for member in (observer, runner):
        job = member.person.post(a_job(), subkind="py", at_ms=now_ms())
        target = {"airlox_target": '{"type":"any"}'}
        assert member.post(wire.jobs(crew.sid), job.frame(), **target).error == "403 forbidden"
        text = member.person.say("x", item_id=new_item_id(os.urandom(16)), at_ms=now_ms())
        assert member.send(text).error == "403 forbidden"
