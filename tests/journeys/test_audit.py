"""Audit trails of real sessions: what a real relay exports verifies offline, in every state."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airlox import AuditReport, Session, verify_audit
from airlox.relay import history
from journeys.conftest import People
from support.clock import Clock
from support.fake_runner import FULL, FakeRunner, Task
from support.relay import RelayThread, now_ms, until

PATIENT_S = 60.0
DAY_S = 86_400


def script(task: Task) -> None:
    """Sends files back; a job that says so waits for its cancel."""
    if "wait" in task.meta.code:
        assert task.cancelled.wait(PATIENT_S)
        return
    files = [task.send_file(f"out{number}.md", b"#", "md", "text/markdown") for number in range(2)]
    task.finish(out_files=tuple(files))


def live_through(people: People, full: bool) -> Session:
    """A session in which everybody does everything. Returns its owner."""
    limits: dict[str, Any] = {"timeout_s": 60, **(FULL if full else {})}
    owner = people.owner(mode="execute", job_limits=limits)
    sender = people.join(owner.invites["sender"], "sender")
    watcher = people.join(owner.invites["observer"], "watcher")
    spare_link = owner.invites["runner"]
    with (
        FakeRunner(spare_link, people.folder, script) as box,
        FakeRunner(spare_link, people.folder, script, name="spare") as spare,
    ):
        owner.approve_runner(box.public)
        owner.reject_runner(spare.public, "not today")
        note = sender.send_file(b"# note", name="note.md")
        first = sender.run_python("print(1)", runner="box", files=[note])
        assert first.wait(PATIENT_S).ok
        second = sender.run_python("wait", runner="box")
        until(lambda: second.state().state == "running", "the second job")
        second.cancel()
        sender.send_text("see the file", refs=[note])
    watcher.items()
    owner.items()
    watcher.leave()
    owner.send_text("thanks")
    owner.revoke("sender")
    return owner


def kinds(report: AuditReport, name: str) -> dict[str, int]:
    (person,) = [person for person in report.people if person.display_name == name]
    return person.items


@pytest.mark.parametrize("full", [True, False])
def test_a_session_with_everything(people: People, full: bool) -> None:
    """P-AUD-1, P-AUD-5, P-AUD-6"""
    owner = live_through(people, full)
    trail = owner.audit()
    report = verify_audit(trail, session_id=owner.session_id)
    assert report.problems == ()
    assert kinds(report, "owner") == {"event": 2, "text": 1}
    assert kinds(report, "sender") == {"file": 1, "job": 2, "event": 1, "text": 1}
    assert kinds(report, "box") == {"file": 2, "result": 1}
    first, second = report.jobs
    assert (first.result is not None, second.result) == (True, None)
    assert second.cancelled_by == (second.author,)
    cut_off = {person.display_name: person.cut_off for person in report.people}
    assert cut_off == {
        "owner": None,
        "sender": "revoked",
        "watcher": "left",
        "box": None,
        "spare": "rejected",
    }
    # all but the first item of each author
    assert (report.items, report.linked, report.unchained) == (11, 8, 0)

    opened = verify_audit(trail, invite=owner.invites["observer"])
    names = {str(person.participant_pub): person.display_name for person in report.people}
    assert [(one.what, names[one.about]) for one in opened.decisions] == (
        [("approved", "box"), ("rejected", "spare")] if full else []
    )


def test_observers_get_the_same(people: People) -> None:
    owner = people.owner()
    watcher = people.join(owner.invites["observer"], "watcher")
    owner.send_text("x")
    assert verify_audit(watcher.audit()) == verify_audit(owner.audit())


def test_one_participant_in_several_processes(people: People) -> None:
    """P-AUD-5: items side by side are no gaps."""
    owner = people.owner()
    sender = people.join(owner.invites["sender"], "sender")
    again = [people.join(owner.invites["sender"], "sender") for _ in range(3)]

    def talk(session: Session) -> None:
        for number in range(5):
            session.send_text(str(number))

    threads = [threading.Thread(target=talk, args=(each,)) for each in (sender, *again)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENT_S)
    report = verify_audit(owner.audit())
    assert report.problems == ()
    assert kinds(report, "sender") == {"text": 20}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory, relay: RelayThread) -> Iterator[list[bytes]]:
    people = People(tmp_path_factory.mktemp("people"), relay.url)
    yield [msgspec.json.encode(entry) for entry in live_through(people, True).audit()]
    people.go_home()


class TestARelayThatLies:
    """The trail of a real session, changed by whoever exports it."""

    def test_what_it_leaves_out(self, lines: list[bytes]) -> None:
        """P-AUD-5: is named, but for what nothing later tells of."""
        quiet = []
        for at, line in enumerate(lines):
            entry = msgspec.json.decode(line)
            if entry["event"] not in ("created", "joined", "item"):
                continue
            if verify_audit(lines[:at] + lines[at + 1 :]).verified:
                quiet.append(entry["event"])
        # the last items of owner and sender
        assert len(quiet) <= 2
        assert set(quiet) <= {"item"}

    @settings(max_examples=40)
    @given(st.data())
    def test_what_it_changes(self, lines: list[bytes], data: st.DataObject) -> None:
        """P-AUD-3: a changed line is told, or was no more than the relay's word."""
        at = data.draw(st.integers(0, len(lines) - 1))
        line = bytearray(lines[at])
        line[data.draw(st.integers(0, len(line) - 1))] ^= data.draw(st.integers(1, 255))
        changed = [*lines[:at], bytes(line), *lines[at + 1 :]]
        report, whole = verify_audit(changed), verify_audit(lines)
        if report.verified:
            same = ("session_id", "people", "items", "jobs", "linked")
            words = ("reason", "state", "cut_off")
            for name in same:
                found, known = (msgspec.to_builtins(getattr(r, name)) for r in (report, whole))
                assert _without(found, words) == _without(known, words)


def _without(value: Any, names: tuple[str, ...]) -> Any:
    """A value without what the relay says in it."""
    if isinstance(value, list | tuple):
        return [_without(each, names) for each in value]
    if isinstance(value, dict):
        return {name: each for name, each in value.items() if name not in names}
    return value


class TestHistory:
    """P-AUD-7, P-HIS-6: a session that lasts, on a relay that forgets."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock(now_ms())

    @pytest.fixture
    def live(self, clock: Clock, tmp_path: Path) -> Iterator[RelayThread]:
        folders = {"data": str(tmp_path / "relay"), "audit_dir": str(tmp_path / "trails")}
        with RelayThread(clock=clock, **folders) as running:
            yield running

    @pytest.fixture
    def people(self, tmp_path: Path, live: RelayThread) -> Iterator[People]:
        made = People(tmp_path, live.url)
        yield made
        made.go_home()

    @pytest.mark.parametrize("rewrites", [True, False])
    def test_months(
        self,
        people: People,
        live: RelayThread,
        clock: Clock,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        rewrites: bool,
    ) -> None:
        if rewrites:
            monkeypatch.setattr(history, "REWRITE_BYTES", 0)
        owner = people.owner(mode="execute", ttl=None, job_limits=dict(FULL), features=["history"])
        sender = people.join(owner.invites["sender"], "sender")
        with FakeRunner(owner.invites["runner"], people.folder, script) as runner:
            owner.approve_runner(runner.public)
            for month in range(3):
                sender.send_text(f"month {month}")
                for _ in range(3):
                    assert sender.run_python("print(1)", runner="box").wait(PATIENT_S).ok
                relayed = live.relay.core.sessions[owner.session_id]
                clock.turn(30 * DAY_S)
                until(lambda relayed=relayed: not relayed.jobs, "forgetting")  # type: ignore[misc]
            sender.send_text("the end")
            last = sender.run_python("print(1)", runner="box")
            assert last.wait(PATIENT_S).ok

        report = verify_audit(owner.audit(), session_id=owner.session_id)
        assert report.problems == ()
        assert kinds(report, "sender")["text"] == 4
        assert report.jobs[-1].job == last.id
        if rewrites:
            assert report.maybe_forgotten > 0

        seen: set[str] = set()
        for path in (tmp_path / "trails").iterdir():
            with path.open("rb") as file:
                extract = verify_audit(file, invite=owner.invites["observer"], extract=True)
            assert extract.problems == ()
            assert extract.extract_of == len(extract.jobs)
            assert all(job.result for job in extract.jobs)
            assert [(one.what, one.about) for one in extract.decisions] == [
                ("approved", runner.public)
            ]
            seen.update(job.job for job in extract.jobs)
        assert len(seen) == 9
        # what one of them leaves out is told
        lines = path.read_bytes().splitlines()
        without = [line for line in lines if b'"kind\\":\\"result' not in line]
        assert len(without) < len(lines)
        assert not verify_audit(without, extract=True).verified

    def test_over_a_restart(self, tmp_path: Path, clock: Clock) -> None:
        data = str(tmp_path / "other")
        with RelayThread(clock=clock, data=data) as relay:
            people = People(tmp_path / "people", relay.url)
            owner = live_through(people, True)
            before = owner.audit()
            people.go_home()
        with RelayThread(clock=clock, data=data) as relay:
            entries = relay.call(relay.relay.core.store.read, owner.session_id)
            session = relay.relay.core.sessions[owner.session_id]
            after = relay.call(_trail, relay.relay.core, session, entries)
        assert [msgspec.json.decode(line) for line in after] == before
        assert verify_audit(after).verified


async def _trail(core: Any, session: Any, entries: list[bytes]) -> list[bytes]:
    from airlox.relay.audit import trail_parts

    parts = [part async for part in trail_parts(core, session, entries)]
    return b"".join(parts).splitlines()
