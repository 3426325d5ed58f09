"""No job is carried out twice, however often a relay gives it; the list of them is bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.client.cache import SessionCache
from airlox.client.membership import Membership
from airlox.errors import StorageError
from airlox.protocol.encoding import ItemId
from airlox.protocol.job import AnyRunner, ShellJob
from airlox.protocol.keys import Role
from airlox.runner.done import DoneJobs
from airlox.runner.link import Link
from support.announcer import Announcer
from support.world import World


def jobs(path: Path, **settings: Any) -> DoneJobs:
    return DoneJobs(str(path / "done.txt"), **({"bounded": True, "most": 6, "kept": 3} | settings))


def test_a_job_is_known_from_before_it_starts(tmp_path: Path) -> None:
    """P-JOB-2"""
    jobs(tmp_path).add(ItemId("a"), 5)
    assert ItemId("a") in jobs(tmp_path)
    assert ItemId("b") not in jobs(tmp_path)
    assert (tmp_path / "done.txt").stat().st_mode & 0o777 == 0o600


def test_floor_sessions_keep_the_form_of_old(tmp_path: Path) -> None:
    """0.1.0 reads the same file, and nothing is ever let go of."""
    floor = jobs(tmp_path, bounded=False)
    for number in range(50):
        floor.add(ItemId(f"job{number}"), number)
    assert (tmp_path / "done.txt").read_text().split() == [f"job{n}" for n in range(50)]
    again = jobs(tmp_path, bounded=False)
    assert all(ItemId(f"job{number}") in again for number in range(50))
    assert not again.may_be_forgotten(ItemId("new"), 0)


def test_what_is_let_go_of_is_never_taken_again(tmp_path: Path) -> None:
    """P-HIS-7"""
    known = jobs(tmp_path)
    for number in range(100):
        known.add(ItemId(f"job{number}"), 1000 + number)
    for found in (known, jobs(tmp_path)):
        for number in range(100):
            job = ItemId(f"job{number}")
            assert job in found or found.may_be_forgotten(job, 1000 + number)
        assert not found.may_be_forgotten(ItemId("new"), 1100)
    assert len((tmp_path / "done.txt").read_text().splitlines()) <= 7


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=60))
def test_any_order_of_times(tmp_path_factory: Any, given: list[tuple[int, int]]) -> None:
    """P-HIS-7: whatever the clocks of their authors say."""
    folder = tmp_path_factory.mktemp("done")
    times: dict[str, int] = {}
    known = jobs(folder)
    for number, at_ms in given:
        job = ItemId(f"job{number}")
        if job in times:
            continue
        times[job] = at_ms
        known.add(job, at_ms)
        for found in (known, jobs(folder)):
            assert all(
                ItemId(each) in found or found.may_be_forgotten(ItemId(each), at)
                for each, at in times.items()
            )


def test_a_damaged_file_forgets_no_sound_line(tmp_path: Path) -> None:
    (tmp_path / "done.txt").write_bytes(b"a 7\n\xff\xfe\n\nb nonsense\n- 99999999999999999999\nc 9")
    known = jobs(tmp_path)
    assert all(ItemId(job) in known for job in "abc")
    known.add(ItemId("d"), 10)
    assert all(ItemId(job) in jobs(tmp_path) for job in "abcd")


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    known = jobs(tmp_path / "nowhere")
    with pytest.raises(StorageError):
        known.add(ItemId("a"), 1)
    assert ItemId("a") not in known


def test_a_relay_that_replays_an_old_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P-HIS-7: announced anew after it was forgotten, the job is recognised, or else too old."""
    world, relay = World(full=True), Announcer()
    sender, runner = world.person(Role.SENDER), world.person(Role.RUNNER)
    for person in (sender, runner):
        relay.line.join(person)
    cache = SessionCache(tmp_path, world.manifest.session_id)
    cache.make()
    api: Any = relay
    me = Membership(
        world.invite("https://relay.example", Role.RUNNER),
        world.manifest,
        runner.key,
        world.keyring(Role.RUNNER, runner.key),
        api,
        cache,
    )
    monkeypatch.setattr(DoneJobs.__init__, "__kwdefaults__", {"most": 3, "kept": 2})
    link = Link(me, "box", on_warning=lambda text: None)
    sent = []
    for number in range(5):
        meta = ShellJob(
            command=("true",), files=(), memory_mb=None, target=AnyRunner(), timeout_s=9
        )
        job = sender.post(meta, subkind="sh", at_ms=world.now_ms + number)
        sent.append(job)
        relay.line.post(job)
        relay.blobs[job.ref.id] = job.blob
        link.sync()
        order = link.order(ItemId(job.ref.id))
        assert order is not None
        assert not order.may_be_done
        link.note_run(ItemId(job.ref.id))
    first = relay.line.events[2].seq
    relay.line.add("forgotten", ranges=[[first, relay.line.events[-1].seq]])
    link.sync()
    assert link.timeline.records() == []
    link = Link(me, "box", on_warning=lambda text: None)  # started again
    for job in sent:
        relay.line.post(job)
    link.sync()
    for job in sent:
        job_id = ItemId(job.ref.id)
        order = link.order(job_id)
        assert order is not None
        assert link.was_run(job_id) or order.may_be_done
    new = sender.post(meta, subkind="sh", at_ms=world.now_ms + 9)
    relay.line.post(new)
    relay.blobs[new.ref.id] = new.blob
    order = link.order(ItemId(new.ref.id))
    assert order is not None
    assert not order.may_be_done
