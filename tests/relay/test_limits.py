"""Every limit of the relay, one case each, over HTTP: what is refused and in which words, that
nothing else is harmed, and that the next honest request goes through.

A case is a generator. It goes beyond the limit of its name and yields what the relay answered;
what follows shows that the relay goes on. `test_every_limit_has_a_case` holds the table complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from airlox.protocol import wire
from airlox.protocol.encoding import new_item_id
from airlox.protocol.item import SealedItem
from airlox.protocol.keys import Role
from airlox.protocol.payload import JobCancel
from airlox.relay.config import limit_fields, setting_of
from support.clock import Clock
from support.crew import Crew
from support.relay import (
    Answer,
    Member,
    RelayThread,
    create,
    file_item,
    join,
    new_world,
    now_ms,
    until,
)
from support.scene import Scene, large_of
from support.world import HOUR_MS

HERE: Final = Path(__file__).parent
A, B = "198.51.100.1", "198.51.100.2"
"""Addresses, as a proxy on this machine names them."""
PAUSE = re.compile(r"; try again in (\d+) s$")


def pause_of(answer: Answer) -> int:
    """Seconds after which the relay says to come again."""
    return int(answer.headers["retry-after"])


@dataclass(frozen=True)
class Case:
    error: str
    waits: bool
    """Whether the refusal says when to come again."""
    settings: dict[str, Any]
    meet: Callable[[Scene], Iterator[Answer]]


REFUSED: Final[dict[str, Case]] = {}
"""Limits that are met by a request, by name."""
HELD: Final[dict[str, tuple[dict[str, Any], Callable[[Scene], None]]]] = {}
"""Limits that something reaches by itself: times, buffers."""
ELSEWHERE: Final = {
    "behind_proxy": "test_items.py::test_a_proxy_on_this_machine_names_its_clients",
    "max_connections": "test_connection.py::test_connections_beyond_the_limit_are_closed",
    "max_connections_per_address": "test_connection.py::test_one_address_keeps_nobody_out",
    "stall_timeout_s": "test_streams.py::test_a_reader_that_takes_nothing_is_cut",
    "body_timeout_s": "test_items.py::test_a_body_that_never_ends_is_given_up",
    "keepalive_s": "test_streams.py::test_silent_streams_get_keepalives",
    "history_s": "test_history.py::test_how_old_a_job_may_get",
    "stream_queue_bytes": "test_live.py::test_who_reads_no_output_is_cut",
    "history_jobs": "test_history.py::test_more_jobs_than_are_kept",
    "live_retention_s": "test_live.py::test_output_is_forgotten_some_time_after_the_job",
    "live_total_bytes": "test_live.py::test_output_of_all_jobs_together_is_bounded",
    "live_ring_bytes": "test_live.py::test_one_job_holds_so_much_output",
    "ephemeral_bytes": "test_app.py::test_a_full_memory_is_said_before_it_is_full",
    "journal_segment_bytes": "test_store.py::test_a_checkpoint_moves_blobs_and_deletes_segments",
    "journal_segment_age_s": "test_store.py::test_nothing_of_a_purged_session_stays_on_the_disk",
    "sweep_ms": "test_app.py::test_the_pause_between_two_passes",
}
"""Limits with a test of their own in another file of this folder."""


def refused(
    error: str, *, waits: bool = False, **settings: Any
) -> Callable[[Callable[[Scene], Iterator[Answer]]], Callable[[Scene], Iterator[Answer]]]:
    def note(meet: Callable[[Scene], Iterator[Answer]]) -> Callable[[Scene], Iterator[Answer]]:
        REFUSED[meet.__name__] = Case(error, waits, settings, meet)
        return meet

    return note


def held(**settings: Any) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    def note(meet: Callable[[Scene], None]) -> Callable[[Scene], None]:
        HELD[meet.__name__] = (settings, meet)
        return meet

    return note


# ── sessions ─────────────────────────────────────────────────────────────────────────────────


@refused("403 policy", max_lifetime_s=3600)
def max_lifetime_s(scene: Scene) -> Iterator[Answer]:
    yield scene.create(new_world(ttl_ms=HOUR_MS + 1000))
    assert scene.create(new_world(ttl_ms=HOUR_MS)).status == 201


@refused("403 never_expires_not_allowed", allow_never_expires=False)
def allow_never_expires(scene: Scene) -> Iterator[Answer]:
    yield scene.create(new_world(ttl_ms=None))
    assert scene.create().status == 201


@refused("507 full", max_sessions=3)
def max_sessions(scene: Scene) -> Iterator[Answer]:
    third = new_world()
    assert scene.create(third).status == 201
    yield scene.create()
    owner = join(scene.http, third.person(Role.OWNER))
    assert owner.post(wire.close(owner.sid)).status == 200
    assert scene.create().status == 201


@refused("429 rate_limited", max_sessions_per_address=2)
def max_sessions_per_address(scene: Scene) -> Iterator[Answer]:
    first = new_world()
    assert scene.create(first, x_forwarded_for=A).status == 201
    assert scene.create(x_forwarded_for=A).status == 201
    yield scene.create(x_forwarded_for=A)
    assert scene.create(x_forwarded_for=B).status == 201
    owner = join(scene.http, first.person(Role.OWNER))
    assert owner.post(wire.close(owner.sid)).status == 200
    assert scene.create(x_forwarded_for=A).status == 201


@refused("400 invalid_manifest", max_clock_ahead_s=60)
def max_clock_ahead_s(scene: Scene) -> Iterator[Answer]:
    world = new_world()
    scene.clock.set_by(-70)
    yield scene.create(world)
    scene.clock.set_by(70)
    assert scene.create(world).status == 201


@refused("400 invalid_manifest", max_manifest_age_s=60)
def max_manifest_age_s(scene: Scene) -> Iterator[Answer]:
    world = new_world()
    scene.clock.set_by(70)
    yield scene.create(world)
    scene.clock.set_by(-70)
    assert scene.create(world).status == 201


@refused("403 policy", max_item_bytes=1_000_000)
def max_item_bytes(scene: Scene) -> Iterator[Answer]:
    yield scene.create(new_world(max_item_bytes=1_000_001))
    assert scene.text(scene.owner, "x" * 1_000_001).error == "413 too_large"
    assert scene.text(scene.owner, "x" * 400_000).status == 201


# ── what a session holds ─────────────────────────────────────────────────────────────────────


@refused("507 full", max_session_bytes=20_000)
def max_session_bytes(scene: Scene) -> Iterator[Answer]:
    yield scene.text(scene.owner, "x" * 20_000)
    assert scene.text(scene.owner, "x" * 1000).status == 201


@refused("507 full", max_participants=2)
def max_participants(scene: Scene) -> Iterator[Answer]:
    yield scene.join()
    assert scene.text(scene.sender).status == 201


@refused("507 full", max_participants_per_address=2)
def max_participants_per_address(scene: Scene) -> Iterator[Answer]:
    """Past ones stay: whoever joins again and again is not to leave no place for others."""
    assert [scene.join(x_forwarded_for=A).status for _ in range(2)] == [201, 201]
    yield scene.join(x_forwarded_for=A)
    assert scene.join(x_forwarded_for=B).status == 201


@refused("507 full", max_items=4)
def max_items(scene: Scene) -> Iterator[Answer]:
    texts = [(scene.owner, "1"), (scene.owner, "2"), (scene.owner, "3"), (scene.sender, "4")]
    assert [scene.text(*each).status for each in texts] == [201] * 4
    yield scene.text(scene.sender)
    assert len(scene.sender.events()) == 2 + 4


@refused("507 full", max_jobs=1, history_jobs=1)
def max_jobs(scene: Scene) -> Iterator[Answer]:
    runner = scene.crew.runner()
    scene.crew.beat(runner, slots=4)
    item = scene.crew.job()
    assert scene.crew.submit(item).status == 201
    assert scene.crew.submit(scene.crew.job()).status == 201  # one is kept when it is over
    yield scene.crew.submit(scene.crew.job())
    assert scene.crew.claim(runner, item).status == 200
    assert runner.send(scene.crew.result(runner, item)).status == 201


@refused("409 queue_full", max_waiting_jobs=2)
def max_waiting_jobs(scene: Scene) -> Iterator[Answer]:
    crew = scene.crew
    other = join(scene.http, crew.world.person(Role.SENDER))
    first = crew.job()
    assert crew.submit(first, wait=60).status == 201
    assert crew.submit(crew.job(other), author=other, wait=60).status == 201
    yield crew.submit(crew.job(), wait=60)
    assert scene.sender.post(wire.cancel(scene.sid, first.ref.id)).status == 200
    assert crew.submit(crew.job(), wait=60).status == 201


@refused("409 queue_full", max_waiting_jobs_per_participant=1)
def max_waiting_jobs_per_participant(scene: Scene) -> Iterator[Answer]:
    crew = scene.crew
    other = join(scene.http, crew.world.person(Role.SENDER))
    assert crew.submit(crew.job(), wait=60).status == 201
    yield crew.submit(crew.job(), wait=60)
    assert crew.submit(crew.job(other), author=other, wait=60).status == 201


@refused("403 policy", max_queue_wait_s=60)
def max_queue_wait_s(scene: Scene) -> Iterator[Answer]:
    yield scene.crew.submit(scene.crew.job(), wait=61)
    assert scene.crew.submit(scene.crew.job(), wait=60).status == 201


@refused("507 full", max_share_percent=50, max_items=6)
def max_share_percent(scene: Scene) -> Iterator[Answer]:
    """One of several fills no session; alone it may."""
    assert [scene.text(scene.owner).status for _ in range(3)] == [201] * 3
    yield scene.text(scene.owner)
    assert scene.text(scene.sender).status == 201
    assert scene.sender.post(wire.leave(scene.sid)).status == 200
    assert scene.text(scene.owner).status == 201


# ── rates ────────────────────────────────────────────────────────────────────────────────────


@refused("429 rate_limited", waits=True, creates_per_minute=3)
def creates_per_minute(scene: Scene) -> Iterator[Answer]:
    assert [scene.create(x_forwarded_for=A).status for _ in range(3)] == [201] * 3
    answer = scene.create(x_forwarded_for=A)
    yield answer
    assert scene.create(x_forwarded_for=B).status == 201
    scene.clock.turn(pause_of(answer))
    assert scene.create(x_forwarded_for=A).status == 201


@refused("429 rate_limited", waits=True, joins_per_minute=3)
def joins_per_minute(scene: Scene) -> Iterator[Answer]:
    assert scene.join(x_forwarded_for=A).status == 201
    answer = scene.join(x_forwarded_for=A)
    yield answer
    other = new_world()
    create(scene.http, other)
    join(scene.http, other.person(Role.OWNER))
    scene.clock.turn(pause_of(answer))
    assert scene.join(x_forwarded_for=A).status == 201


@refused("429 rate_limited", waits=True, joins_per_minute_per_address=2)
def joins_per_minute_per_address(scene: Scene) -> Iterator[Answer]:
    assert [scene.join(x_forwarded_for=A).status for _ in range(2)] == [201, 201]
    answer = scene.join(x_forwarded_for=A)
    yield answer
    assert scene.join(x_forwarded_for=B).status == 201
    scene.clock.turn(pause_of(answer))
    assert scene.join(x_forwarded_for=A).status == 201


@refused("429 rate_limited", waits=True, posts_per_second=1)
def posts_per_second(scene: Scene) -> Iterator[Answer]:
    assert [scene.text(scene.owner).status for _ in range(2)] == [201, 201]
    answer = scene.text(scene.owner)
    yield answer
    assert scene.text(scene.sender).status == 201
    scene.clock.turn(pause_of(answer))
    assert scene.text(scene.owner).status == 201


@refused("429 rate_limited", waits=True, transfer_bytes_per_hour=200_000)
def transfer_bytes_per_hour(scene: Scene) -> Iterator[Answer]:
    """Of it one participant has half; what was begun with something left is finished."""
    item = scene.owner.say("x" * 120_000)
    path = wire.blob(scene.sid, item.ref.id)
    answer = scene.owner.get(path)
    yield answer
    assert scene.sender.get(path).body == item.blob
    assert scene.join(Role.OBSERVER).status == 201
    scene.clock.turn(pause_of(answer))
    assert scene.owner.get(path).body == item.blob


@refused("429 too_many_wants", waits=True, max_wants=1)
def max_wants(scene: Scene) -> Iterator[Answer]:
    items = [scene.owner.say(f"{n}") for n in range(2)]
    first, second = (wire.want(scene.sid, item.ref.id) for item in items)
    for item in items:
        assert scene.sender.post(wire.ack(scene.sid, item.ref.id)).status == 204
    assert scene.sender.post(first).status == 200
    answer = scene.sender.post(second)
    yield answer
    scene.clock.turn(pause_of(answer))
    scene.clock.turn(1)
    assert scene.sender.post(second).status == 200


# ── streams and transfers ────────────────────────────────────────────────────────────────────


@refused("503 busy", waits=True, max_streams=2)
def max_streams(scene: Scene) -> Iterator[Answer]:
    scene.stream(scene.owner)
    scene.stream(scene.stranger)
    yield scene.no_stream(scene.sender)
    scene.let_go()
    scene.stream(scene.sender)


@refused("429 rate_limited", max_streams_per_participant=1)
def max_streams_per_participant(scene: Scene) -> Iterator[Answer]:
    scene.stream(scene.owner)
    yield scene.no_stream(scene.owner)
    scene.stream(scene.sender)
    scene.let_go()
    scene.stream(scene.owner)


@refused("429 rate_limited", waits=True, max_streams_per_session=1)
def max_streams_per_session(scene: Scene) -> Iterator[Answer]:
    scene.stream(scene.owner)
    yield scene.no_stream(scene.sender)
    scene.stream(scene.stranger)
    scene.let_go()
    scene.stream(scene.sender)


@refused("429 rate_limited", waits=True, max_streams_per_address=1)
def max_streams_per_address(scene: Scene) -> Iterator[Answer]:
    scene.stream(scene.owner, x_forwarded_for=A)
    yield scene.no_stream(scene.sender, x_forwarded_for=A)
    scene.stream(scene.stranger, x_forwarded_for=B)
    scene.let_go()
    scene.stream(scene.sender, x_forwarded_for=A)


@refused("503 busy", waits=True, max_transfers=1)
def max_transfers(scene: Scene) -> Iterator[Answer]:
    scene.half(scene.owner)
    yield large_of(scene.stranger)
    scene.let_go()
    assert large_of(scene.stranger).status == 201


@refused("429 rate_limited", waits=True, max_transfers_per_participant=1)
def max_transfers_per_participant(scene: Scene) -> Iterator[Answer]:
    scene.half(scene.owner)
    yield large_of(scene.owner)
    assert large_of(scene.sender).status == 201
    scene.let_go()
    assert large_of(scene.owner).status == 201


@refused("429 rate_limited", waits=True, max_transfers_per_session=1)
def max_transfers_per_session(scene: Scene) -> Iterator[Answer]:
    scene.half(scene.owner)
    yield large_of(scene.sender)
    assert large_of(scene.stranger).status == 201
    scene.let_go()
    assert large_of(scene.sender).status == 201


@refused("429 rate_limited", waits=True, max_transfers_per_address=1)
def max_transfers_per_address(scene: Scene) -> Iterator[Answer]:
    scene.half(scene.owner, f"x-forwarded-for: {A}")
    yield large_of(scene.sender, x_forwarded_for=A)
    assert large_of(scene.sender, x_forwarded_for=B).status == 201
    scene.let_go()
    assert large_of(scene.sender, x_forwarded_for=A).status == 201


@held(min_bytes_per_second=32 << 20, body_timeout_s=3)
def min_bytes_per_second(scene: Scene) -> None:
    """A large upload has the time for all and the time its size takes."""
    line = scene.unfinished(scene.owner, 120_000, "_transfers", "all")
    answer = b""
    while part := line.recv(65536):
        answer += part
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"did not arrive in time (--body-timeout 3s, --min-bytes-per-second 32M)" in answer
    assert large_of(scene.owner).status == 201
    reads_nothing(scene)


def reads_nothing(scene: Scene) -> None:
    """A download that nobody reads ends, and gives its place back."""
    owner = Crew(scene.relay, max_item_bytes=32 << 20).owner
    item = file_item(owner.person, b"#" * (30 << 20))  # more than systems buffer
    assert owner.send(item).status == 201
    with scene.http.line(receive_bytes=2048) as line:
        head = f"GET {wire.blob(owner.sid, item.ref.id)} HTTP/1.1\r\nhost: x\r\n"
        line.sendall(f"{head}authorization: Bearer {owner.token}\r\n\r\n".encode())
        transfers = scene.relay.relay.core.quotas._transfers
        assert line.recv(12) == b"HTTP/1.1 200"  # it has begun, and more of it is not taken
        until(lambda: transfers.held(0, "all") == 0, "its end")


@held(inline_blob_bytes=1000, max_transfers=1)
def inline_blob_bytes(scene: Scene) -> None:
    """Blobs up to this size are no transfers."""
    scene.half(scene.owner)
    assert scene.text(scene.sender, "x" * 900).status == 201
    assert scene.text(scene.sender, "x" * 1100).error == "503 busy"


@refused("503 busy", waits=True, max_pending_bytes=1 << 20)
def max_pending_bytes(scene: Scene) -> Iterator[Answer]:
    """Nobody has all that may wait: not a session, and not one participant of it."""
    for _ in range(2):
        scene.unfinished(scene.owner, 60_000, "_pending", scene.sid)
    yield scene.text(scene.owner, "x" * 60_000)
    assert scene.text(scene.sender, "x" * 60_000).status == 201
    scene.let_go()
    assert scene.text(scene.owner, "x" * 60_000).status == 201


# ── packs of a tree, and live output ─────────────────────────────────────────────────────────


def put_pack(scene: Scene, job: str, number: int) -> Answer:
    return scene.sender.ask("PUT", wire.pack(scene.sid, job, number), bytes(100))


@refused("413 too_large", max_packs=2)
def max_packs(scene: Scene) -> Iterator[Answer]:
    job = new_item_id(os.urandom(16))
    yield put_pack(scene, job, 2)
    assert put_pack(scene, job, 1).status == 201


@refused("429 rate_limited", waits=True, unclaimed_pack_lifetime_s=60)
def unclaimed_pack_lifetime_s(scene: Scene) -> Iterator[Answer]:
    jobs = [new_item_id(os.urandom(16)) for _ in range(5)]
    assert [put_pack(scene, job, 0).status for job in jobs[:4]] == [201] * 4
    answer = put_pack(scene, jobs[4], 0)
    yield answer
    scene.clock.turn(pause_of(answer))
    until(lambda: put_pack(scene, jobs[4], 0).status == 201, "dropping")


# ── times of wants, runners and jobs ─────────────────────────────────────────────────────────


@held(want_lifetime_s=60, want_pause_s=10)
def want_lifetime_s(scene: Scene) -> None:
    item = scene.owner.say("evicted")
    path = wire.blob(scene.sid, item.ref.id)
    scene.sender.post(wire.ack(scene.sid, item.ref.id))
    scene.sender.post(wire.want(scene.sid, item.ref.id))
    scene.clock.turn(61)
    assert scene.owner.ask("PUT", path, item.blob).error == "404 not_found"
    scene.sender.post(wire.want(scene.sid, item.ref.id))
    assert scene.owner.ask("PUT", path, item.blob).status == 200


@held(want_pause_s=60)
def want_pause_s(scene: Scene) -> None:
    item = scene.owner.say("evicted")
    scene.sender.post(wire.ack(scene.sid, item.ref.id))

    def wants() -> int:
        assert scene.sender.post(wire.want(scene.sid, item.ref.id)).status == 200
        return [each["kind"] for each in scene.owner.events()].count("want")

    assert [wants(), wants()] == [1, 1]
    scene.clock.turn(60)
    assert [wants(), wants()] == [2, 2]


@held(newcomer_grace_s=60)
def newcomer_grace_s(scene: Scene) -> None:
    item = scene.owner.say("before")
    path = wire.blob(scene.sid, item.ref.id)
    assert scene.join(Role.OBSERVER).status == 201
    assert scene.sender.post(wire.ack(scene.sid, item.ref.id)).status == 204
    assert scene.owner.get(path).status == 200
    scene.clock.turn(60)
    until(lambda: scene.owner.get(path).status == 410, "eviction")


@held(online_timeout_s=20)
def online_timeout_s(scene: Scene) -> None:
    scene.crew.runner()

    def online() -> bool:
        return bool(scene.owner.get(wire.runners(scene.sid)).json["runners"][0]["online"])

    scene.clock.turn(19)
    assert online()
    scene.clock.turn(2)
    assert not online()


def running_job(scene: Scene, *, claimed: bool = True) -> tuple[Member, SealedItem]:
    runner, item = scene.crew.runner(), scene.crew.job()
    assert scene.crew.submit(item).status == 201
    if claimed:
        assert scene.crew.claim(runner, item).status == 200
    return runner, item


def ends(scene: Scene, item: SealedItem, after_s: float, state: tuple[str, str]) -> None:
    """A job that is still going just before a time, and has ended just after it."""
    passes = scene.relay.relay.sweeper.passes
    scene.clock.turn(after_s - 1)
    until(lambda: scene.relay.relay.sweeper.passes > passes + 2)
    assert scene.crew.state(item)[0] in ("assigned", "running")
    scene.clock.turn(2)
    until(lambda: scene.crew.state(item) == state)


@held(claim_timeout_s=10)
def claim_timeout_s(scene: Scene) -> None:
    _, item = running_job(scene, claimed=False)
    ends(scene, item, 10, ("failed", "runner_lost"))


@held(runner_grace_s=10)
def runner_grace_s(scene: Scene) -> None:
    _, item = running_job(scene)
    ends(scene, item, 10, ("failed", "runner_lost"))


@held(cancel_timeout_s=10)
def cancel_timeout_s(scene: Scene) -> None:
    _, item = running_job(scene)
    assert scene.sender.post(wire.cancel(scene.sid, item.ref.id)).status == 200
    ends(scene, item, 10, ("failed", "cancelled"))


# ── the disk ─────────────────────────────────────────────────────────────────────────────────


@refused("507 full", waits=True, min_free_bytes=1 << 20, ephemeral_bytes=4 << 20)
def min_free_bytes(scene: Scene) -> Iterator[Answer]:
    """Nothing new is taken; what ends something is, and so is what makes room."""
    runner, item = running_job(scene)
    told = scene.owner.say("before")
    quotas = scene.relay.relay.core.quotas

    def filled() -> bool:
        scene.sender.send(file_item(scene.sender.person, b"#" * 200_000))
        return bool(quotas.disk_is_full)

    until(filled, "the watermark")
    yield scene.text(scene.owner)
    assert scene.create().error == "507 full"
    assert scene.join().error == "507 full"
    assert scene.crew.submit(scene.crew.job()).error == "507 full"
    cancel = scene.sender.person.post(JobCancel(job=item.ref), refs=[item.ref], at_ms=now_ms())
    assert scene.sender.send(cancel).status == 201
    assert scene.sender.post(wire.cancel(scene.sid, item.ref.id)).status == 200
    assert runner.send(scene.crew.result(runner, item)).status == 201
    assert scene.sender.post(wire.ack(scene.sid, told.ref.id)).status == 204
    assert scene.owner.post(wire.close(scene.sid)).status == 200
    until(lambda: not quotas.disk_is_full, "room")
    assert scene.text(scene.stranger).status == 201


# ── transfer codes ───────────────────────────────────────────────────────────────────────────


def offer(scene: Scene, member: Member | None = None, **headers: str) -> Answer:
    return (member or scene.owner).post(wire.codes((member or scene.owner).sid), **headers)


def forgotten(scene: Scene) -> None:
    """Codes have expired, and nobody need hear that any more."""
    for _ in range(2):
        scene.clock.turn(601)
        scene.relay.call(scene.relay.relay.transfers.tick)


@refused("503 busy", waits=True, max_codes=2)
def max_codes(scene: Scene) -> Iterator[Answer]:
    assert [offer(scene).status, offer(scene, scene.stranger).status] == [201, 201]
    yield offer(scene)
    forgotten(scene)
    assert offer(scene).status == 201


@refused("429 rate_limited", waits=True, max_codes_per_session=2)
def max_codes_per_session(scene: Scene) -> Iterator[Answer]:
    """Those that ended count until they are forgotten: who offers and takes back all day is not to
    have every number."""
    for _ in range(2):
        path = wire.cancel_code(scene.sid, offer(scene).json["nameplate"])
        assert scene.owner.post(path).status == 204
    yield offer(scene)
    assert offer(scene, scene.stranger).status == 201
    forgotten(scene)
    assert offer(scene).status == 201


@refused("429 rate_limited", waits=True, max_codes_per_address=2)
def max_codes_per_address(scene: Scene) -> Iterator[Answer]:
    assert [offer(scene, x_forwarded_for=A).status for _ in range(2)] == [201, 201]
    yield offer(scene, scene.stranger, x_forwarded_for=A)
    assert offer(scene, x_forwarded_for=B).status == 201
    forgotten(scene)
    assert offer(scene, x_forwarded_for=A).status == 201


@refused("429 too_many_guesses", waits=True, code_guesses_per_hour=2)
def code_guesses_per_hour(scene: Scene) -> Iterator[Answer]:
    nameplate = offer(scene).json["nameplate"]

    def guess(number: int, at: str) -> Answer:
        return scene.http.ask("POST", wire.tries(number), b"opening", x_forwarded_for=at)

    assert [guess(5_000_000 + at, A).status for at in range(2)] == [404, 404]
    answer = guess(nameplate, A)
    yield answer
    assert guess(nameplate, B).status == 201
    scene.clock.turn(pause_of(answer))
    assert guess(5_000_000, A).status == 404


@held(code_lifetime_s=60)
def code_lifetime_s(scene: Scene) -> None:
    nameplate = offer(scene).json["nameplate"]
    scene.clock.turn(59)
    assert scene.http.ask("POST", wire.tries(nameplate), b"opening").status == 201
    scene.clock.turn(1)
    assert scene.http.ask("POST", wire.tries(nameplate), b"x").error == "410 code_expired"


# ── the table ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refusal_names_its_limit_and_harms_nobody(name: str) -> None:
    """P-REL-7: the limit, its value, and when to come again."""
    case, clock = REFUSED[name], Clock(now_ms())
    settings = {"creates_per_minute": 0, **case.settings}
    with RelayThread(clock=clock, **settings) as relay, ExitStack() as held:
        scene = Scene(relay, clock, held)
        steps = case.meet(scene)
        answer = next(steps)
        assert answer.error == case.error
        message = answer.json["message"]
        assert f"({setting_of(relay.relay.core.config, name)})" in message
        pause = PAUSE.search(message)
        assert (pause is not None) is case.waits
        assert answer.headers.get("retry-after") == (pause[1] if pause else None)
        if case.error != "507 full" or not case.waits:  # for all, not for one
            scene.stranger.say("not harmed")
        assert scene.stranger.get(wire.events(scene.stranger.sid)).status == 200
        assert next(steps, None) is None


@pytest.mark.parametrize("name", sorted(HELD))
def test_a_bound_is_held(name: str) -> None:
    settings, meet = HELD[name]
    clock = Clock(now_ms())
    with RelayThread(clock=clock, **settings) as relay, ExitStack() as held:
        scene = Scene(relay, clock, held)
        meet(scene)
        scene.stranger.say("not harmed")


def test_every_limit_has_a_case() -> None:
    names = [field.name for field in limit_fields()]
    assert sorted([*REFUSED, *HELD, *ELSEWHERE]) == sorted(names)


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_what_is_tested_elsewhere_is_there(name: str) -> None:
    file, _, test = ELSEWHERE[name].partition("::")
    source = (HERE / file).read_text()
    body = re.split(rf"def {test}\(", source)[1]
    assert name in re.split(r"\n(?:async )?def |\n@", body)[0]
