"""An execute session with an owner, a sender and machines, on a real relay."""

from __future__ import annotations

import json
import os
from typing import Any

from airlox.protocol import wire
from airlox.protocol.item import ItemRef, SealedItem
from airlox.protocol.job import AnyRunner, PythonJob, Result, Status
from airlox.protocol.keys import Role
from airlox.protocol.live import LiveWriter
from support.relay import Answer, Http, Member, RelayThread, create, join, new_world, now_ms
from support.server import ServerProcess

ANY = '{"type":"any"}'


class Crew:
    """An owner, a sender and their machines in one execute session."""

    def __init__(
        self, relay: RelayThread | ServerProcess, *, source: str | None = None, **world: Any
    ) -> None:
        self.http = Http(relay.url, source)
        self.world = new_world(**world)
        create(self.http, self.world)
        self.owner = join(self.http, self.world.person(Role.OWNER))
        self.sender = join(self.http, self.world.person(Role.SENDER))
        self.sid = self.owner.sid

    def runner(
        self, name: str = "box", *, labels: tuple[str, ...] = (), ready: bool = True
    ) -> Member:
        member = join(self.http, self.world.person(Role.RUNNER, name, labels=labels))
        if ready:
            assert self.owner.post(wire.approve(self.sid, member.public)).status == 200
            self.beat(member)
        return member

    def beat(self, runner: Member, **said: Any) -> Answer:
        return runner.post(wire.heartbeat(self.sid), json.dumps({"job": None, **said}))

    def job(self, author: Member | None = None) -> SealedItem:
        person = (author or self.sender).person
        return person.post(a_job(), subkind="py", at_ms=now_ms())

    def submit(
        self,
        item: SealedItem,
        target: str | None = ANY,
        *,
        author: Member | None = None,
        wait: object = None,
    ) -> Answer:
        """`wait`: seconds that the job may wait for a slot."""
        headers = {} if target is None else {"airlox_target": target}
        if wait is not None:
            headers["airlox_queue"] = str(wait)
        return (author or self.sender).post(wire.jobs(self.sid), item.frame(), **headers)

    def state(self, item: SealedItem) -> tuple[str, str | None]:
        answer = self.sender.get(wire.job(self.sid, item.ref.id))
        assert answer.status == 200, answer.body
        return answer.json["state"], answer.json["reason"]

    def claim(self, runner: Member, item: SealedItem) -> Answer:
        return runner.post(wire.claim(self.sid, item.ref.id))

    def result(
        self, runner: Member, item: SealedItem, refs: list[ItemRef] | None = None
    ) -> SealedItem:
        return runner.person.post(
            a_result(item.ref), refs=[item.ref] if refs is None else refs, at_ms=now_ms()
        )


def writer_for(crew: Crew, runner: Member, item: SealedItem) -> LiveWriter:
    keys = crew.world.keys
    return LiveWriter(
        runner.person.key, keys.session_key, keys.session_id, item.ref, os.urandom(16)
    )


def a_job() -> Any:
    return PythonJob(
        code="print(1)",
        filename="a.py",
        files=(),
        memory_mb=None,
        requirements=(),
        runtime="python3.12",
        target=AnyRunner(),
        timeout_s=10,
    )


def a_result(job: ItemRef) -> Any:
    # What a result says is sealed: to the relay any payload of the kind will do.
    return Result(
        code_sha256="0" * 64,
        exit_code=0,
        input_sha256="0" * 64,
        job=job,
        out_files=(),
        peak_mem_mb=1,
        reason=None,
        status=Status.COMPLETED,
        stderr="",
        stderr_truncated=False,
        stdout="1\n",
        stdout_truncated=False,
        wall_ms=1,
    )
