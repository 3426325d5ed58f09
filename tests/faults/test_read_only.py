"""A disk that becomes read-only under a living relay, runner or client.

Each says so and acknowledges nothing that it did not keep; once the disk is mended and the program
started again, everything that was acknowledged is there and the rest can be done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox import Session
from airlox.client.jobs import Job
from airlox.errors import RelayError
from airlox.protocol import wire
from airlox.protocol.job import Result as ResultMeta
from airlox.protocol.keys import Role
from airlox.protocol.payload import File
from support.commands import Cli
from support.frail_disk import FrailDisk, frail_disk
from support.machines import RelayProgram, RunnerProgram
from support.relay import Answer, Http, Member, create, join, new_world, now_ms, until

WAIT_S = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FrailDisk]:
    with frail_disk(tmp_path / "frail") as made:
        yield made


# -- the relay --------------------------------------------------------------------------------


def large(member: Member) -> Answer:
    """A file that goes to a blob file of its own."""
    item = member.person.post(
        File(mime="text/x-python", name="f.py"), body=b"#" * 300_000, subkind="py", at_ms=now_ms()
    )
    return member.send(item)


def texts(member: Member) -> list[str]:
    return [e["data"]["envelope"] for e in member.events() if e["kind"] == "item"]


def test_a_relay_refuses_what_it_cannot_keep_and_goes_on_reading(disk: FrailDisk) -> None:
    settings = {"min_free_bytes": 1 << 20, "journal_segment_age_s": 1}
    with RelayProgram(disk.mount / "data", way_in=(), **settings) as relay:
        http, world = Http(relay.url), new_world()
        create(http, world)
        owner = join(http, world.person(Role.OWNER))
        kept = [owner.say(f"before {n}") for n in range(5)]
        assert large(owner).status == 201
        held = texts(owner)
        person = Session.create(relay.url, cache_dir=disk.mount.parent / "person")

        disk.break_down()
        with pytest.raises(RelayError) as caught:
            person.send_text("said at once, not after a minute")
        assert caught.value.code == "disk_failed"
        person.disconnect()
        refused = [owner.person.say(f"after {n}", at_ms=now_ms()) for n in range(3)]
        answers = [owner.send(item) for item in refused]
        answers += [
            large(owner),
            http.ask("POST", wire.SESSIONS, new_world().document),
            owner.post(wire.revoke(owner.sid, "sender")),
            owner.post(wire.close(owner.sid)),
        ]
        for answer in answers:
            assert answer.error == "507 disk_failed"
            assert "disk failed" in answer.json["message"]

        # Reading goes on, and so does every stream; of what was refused nobody hears.
        assert texts(owner) == held
        for item in kept:
            assert owner.get(wire.blob(owner.sid, item.ref.id)).body == item.blob
        with owner.stream() as events:
            seen = [events.until("item").data for _ in held]
        assert [text for text in held if any(json.dumps(text) in data for data in seen)] == held
        health = http.ask("GET", wire.HEALTH)
        assert (health.status, health.json["status"]) == (503, "disk_failed")
        assert relay.stop() == 0

        disk.mend()
        relay.start()
        assert texts(owner) == held
        for item in refused:
            assert owner.send(item).status == 201
        assert texts(owner) == held + [item.envelope for item in refused]
        assert relay.stop() == 0


# -- a runner ---------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with (
        RelayProgram(tmp_path / "relay") as relay,
        Session.create(
            relay.url,
            mode="execute",
            job_limits={"kinds": ["shell"], "approve_runners": False},
            cache_dir=tmp_path / "owner",
        ) as made,
    ):
        yield made


def results_of(session: Session, job: Job) -> int:
    session.sync()
    metas = [record.item.meta for record in session.records() if record.item is not None]
    return sum(isinstance(meta, ResultMeta) and meta.job.id == job.id for meta in metas)


@pytest.mark.parametrize("sandbox", ["process", "local"])
def test_a_runner_posts_what_it_has_and_ends(
    disk: FrailDisk, session: Session, tmp_path: Path, sandbox: str
) -> None:
    cache = disk.mount / "cache"
    options: dict[str, Any] = {"sandbox": sandbox, "disk_floor_bytes": 2 << 20}
    with RunnerProgram(session.invites["runner"], cache, **options) as runner:
        runner.note("ready")
        job = session.run_shell("echo begun; sleep 2; echo done; exit 3", runner="box")
        assert next(job.output(WAIT_S)).data == b"begun\n"
        disk.break_down()
        # It cannot keep what the session tells, so it says why and ends, but after the job.
        session.send_text("some news")
        result = job.wait(WAIT_S)
        assert result.signed
        assert (result.status, result.exit_code) == ("completed", 3), result
        assert result.stdout == "begun\ndone\n"
        assert runner.wait() == 1
        assert "Read-only file system" in runner.note("ended")["text"]

        disk.mend()
        runner.start()
        runner.note("ready")
        assert session.run_shell("echo second", runner="box").wait(WAIT_S).stdout == "second\n"
        assert session.run_shell("echo third", runner="box").wait(WAIT_S).stdout == "third\n"
        assert job.result() == result
        assert results_of(session, job) == 1
        assert runner.stop() == 0
    for kept in ("run", "jobs", "started", "spool", "trash"):
        assert list(cache.glob(f"runner/ax_*/box/{kept}/*")) == []


# -- a client ---------------------------------------------------------------------------------


def test_a_client_says_so_and_misses_nothing_later(
    disk: FrailDisk, session: Session, tmp_path: Path
) -> None:
    invite = session.invites["sender"]
    cli = Cli(session.relay, disk.mount / "cache", invite=invite, cwd=tmp_path)
    cli("send", "text", "before")
    out = tmp_path / "out"
    with out.open("wb") as stdout, cli.started("watch", "--json", stdout=stdout) as watch:
        until(lambda: "before" in out.read_text(), "the first text")
        disk.break_down()
        session.send_text("meanwhile")
        assert watch.wait(WAIT_S) == 1
        assert watch.stderr is not None
        assert json.loads(watch.stderr.read().splitlines()[-1])["code"] == "read_only"
    for command in ("send text --json refused", "items --json", "run --json -- true"):
        error = cli(*command.split(), code=1).error
        assert error["code"] == "read_only"
        assert "Read-only file system" in error["error"]
        assert "mend that disk" in error["hint"]
    assert [item.text for item in session.items()] == ["before", "meanwhile"]

    disk.mend()
    cli("send", "text", "after")
    found = [item["text"] for item in cli("items", "--json").lines]
    assert found == ["before", "meanwhile", "after"]
