"""What a relay forgets of sessions with `history`, when, and what is left, also after a start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airlox.protocol import wire
from airlox.protocol.chain import Link, find_place
from airlox.protocol.encoding import b64u_encode
from airlox.protocol.item import ItemRef, SealedItem
from airlox.protocol.keys import Role
from airlox.protocol.payload import File, JobCancel, RunnerApprove
from airlox.relay import history, records
from airlox.relay.entities import StoredItem
from support.clock import Clock
from support.crew import ANY, Crew, a_job, a_result
from support.relay import Answer, Http, Member, RelayThread, join, now_ms, until

DAY_S = 86_400


class Machine:
    """A crew whose clock is turned by hand, on a relay that can be started again."""

    def __init__(self, folder: Path | None, **settings: Any) -> None:
        self.clock = Clock(now_ms())
        self.settings = {"data": None if folder is None else str(folder / "data"), **settings}
        self.relay: RelayThread
        self.crew: Crew
        self.runner: Member

    @contextmanager
    def serve(self) -> Iterator[RelayThread]:
        with RelayThread(clock=self.clock, **self.settings) as relay:
            self.relay = relay
            if hasattr(self, "crew"):
                http = Http(relay.url)
                for member in (self.crew.owner, self.crew.sender, self.runner):
                    member.http = http
                self.crew.http = http
            else:
                self.crew = Crew(relay, full=True, ttl_ms=None)
                self.runner = self.crew.runner()
            yield relay

    def run_job(
        self, *named: SealedItem, files: int = 0, by: Member | None = None
    ) -> tuple[SealedItem, SealedItem]:
        """A job that names items, and its result, posted, finished."""
        crew = self.crew
        crew.beat(self.runner)
        author = by or crew.sender
        refs = [item.ref for item in named]
        job = author.person.post(a_job(), subkind="py", refs=refs, at_ms=now_ms())
        sent = author.post(wire.jobs(crew.sid), job.frame(), airlox_target=ANY)
        assert sent.status == 201, sent.body
        assert sent.json["seq"] == self.session.items[job.ref.id].seq
        assert crew.claim(self.runner, job).status == 200
        outs = [self.out_file(n) for n in range(files)]
        refs = [job.ref, *(out.ref for out in outs)]
        result = self.runner.person.post(a_result(job.ref), refs=refs, at_ms=now_ms())
        assert self.runner.send(result).status == 201
        return job, result

    def out_file(self, number: int) -> SealedItem:
        meta = File(mime="text/x-python", name=f"out{number}.py")
        made = self.runner.person.post(meta, body=b"x = 1\n", subkind="py", at_ms=now_ms())
        assert self.runner.send(made).status == 201
        return made

    def input_file(self, by: Member | None = None, *named: SealedItem) -> SealedItem:
        """A file by a person, the sender for one."""
        author = by or self.crew.sender
        meta, refs = File(mime="text/x-python", name="in.py"), [item.ref for item in named]
        made = author.person.post(meta, body=b"x\n", subkind="py", refs=refs, at_ms=now_ms())
        assert author.send(made).status == 201
        return made

    def forget_all(self) -> set[str]:
        """Forget every finished job; gives the ids of the items that are left."""
        self.clock.turn(8 * DAY_S)
        self.forget()
        assert not self.session.jobs
        return set(self.session.items)

    def forget(self) -> None:
        """What the sweeper does now and then."""
        session = self.relay.relay.core.sessions[self.crew.sid]
        self.relay.call(self.relay.relay.history.forget_old, session)

    @property
    def session(self) -> Any:
        return self.relay.relay.core.sessions[self.crew.sid]


@pytest.fixture(params=["memory", "disk"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(None if request.param == "memory" else tmp_path)


def pages(
    member: Member, limit: int = 1000, after: int | None = None, jobs: int | None = None
) -> list[dict[str, Any]]:
    """All events, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        answer = member.get(wire.events_page(member.sid, after, limit, jobs))
        assert answer.status == 200, answer.body
        page = answer.json
        found += page["events"]
        assert len(page["events"]) <= limit
        if not page["more"]:
            assert not found or found[-1]["seq"] == page["last_seq"]
            return found
        after = found[-1]["seq"]


def check_numbering(events: list[dict[str, Any]], after: int = -1) -> None:
    """Every number is that of an event, or lies in a gap that is told of."""
    for event in events:
        first = event["data"]["first"] if event["kind"] == "gap" else event["seq"]
        assert first == after + 1
        after = event["seq"]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["kind"] for event in events]


def blob(member: Member, item: SealedItem) -> Answer:
    return member.get(wire.blob(member.sid, item.ref.id))


def test_events_come_in_pages(machine: Machine) -> None:
    """P-HIS-1: each page is bounded, and says whether there is more."""
    with machine.serve():
        owner = machine.crew.owner
        for number in range(25):
            owner.say(str(number))
        whole = pages(owner)
        assert pages(owner, limit=7) == whole
        assert [event["seq"] for event in whole] == list(range(28))
        first = owner.get(wire.events_page(owner.sid, None, 7)).json
        assert (len(first["events"]), first["more"], first["last_seq"]) == (7, True, 27)
        # without a limit, and beyond the largest, it is a page all the same
        assert owner.get(wire.events(owner.sid)).json["more"] is False
        assert owner.get(wire.events_page(owner.sid, None, 10**9)).status == 200
        assert owner.get(wire.events_page(owner.sid, None, 0)).json["more"] is True
        assert pages(owner, after=99) == []
        bad = owner.get(wire.events(owner.sid) + "?limit=x")
        assert bad.error == "400 bad_request"


def test_a_page_has_about_a_mebibyte(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """P-HIS-1"""
    monkeypatch.setattr("airlox.protocol.limits.PAGE_BYTES", 2_000)
    with machine.serve():
        owner = machine.crew.owner
        for number in range(20):
            owner.say(str(number))
        answer = owner.get(wire.events_page(owner.sid, None, 1000))
        assert len(answer.body) < 4_000
        assert answer.json["more"]
        check_numbering(pages(owner))


def test_floor_sessions_have_one_answer(tmp_path: Path) -> None:
    """P-HIS-1: and nothing else in it than ever."""
    with RelayThread() as relay:
        crew = Crew(relay, full=False)
        answer = crew.owner.get(wire.events(crew.sid) + "?limit=1")
        assert list(answer.json) == ["events"]
        assert len(answer.json["events"]) == 2


def test_finished_jobs_are_forgotten_by_age(machine: Machine) -> None:
    """P-HIS-2, P-HIS-3: jobs go with all that is theirs; all else stays, number for number."""
    with machine.serve():
        crew, clock = machine.crew, machine.clock
        approval = crew.owner.person.post(
            RunnerApprove(participant_pub=machine.runner.public), at_ms=now_ms()
        )
        assert crew.owner.send(approval).status == 201
        job, result = machine.run_job(files=2)
        said = crew.owner.say("stays")
        before = pages(crew.owner)
        machine.forget()
        assert pages(crew.owner) == before  # young
        clock.turn(8 * DAY_S)
        young, _ = machine.run_job()
        machine.forget()
        after = pages(crew.owner)
        check_numbering(after)
        kept = [event for event in after if event["kind"] not in ("gap", "forgotten")]
        stay = {"participant", "item", "job"}
        assert set(kinds(kept)) == stay
        envelopes = {e["data"]["envelope"] for e in kept if e["kind"] == "item"}
        assert {approval.envelope, said.envelope, young.envelope} <= envelopes
        assert not {job.envelope, result.envelope} & envelopes
        assert all(event in after for event in before if event in kept)
        assert kinds(after).count("forgotten") == 1
        assert after[-1]["data"]["ranges"] == [
            [event["data"]["first"], event["seq"]] for event in after if event["kind"] == "gap"
        ]
        assert crew.sender.get(wire.job(crew.sid, job.ref.id)).error == "404 not_found"
        assert blob(crew.sender, result).error == "404 not_found"
        assert blob(crew.sender, young).status == 200
        assert blob(crew.sender, said).status == 200
        assert machine.session.items.keys() >= {said.ref.id, young.ref.id}


def test_how_old_a_job_may_get(machine: Machine) -> None:
    """P-HIS-2"""
    machine.settings["history_s"] = 3600
    with machine.serve():
        job = machine.run_job()[0].ref.id
        machine.clock.turn(3590)
        machine.forget()
        assert job in machine.session.jobs
        machine.clock.turn(200)  # and a twentieth of it more: jobs are forgotten in batches
        machine.forget()
        assert job not in machine.session.jobs


def test_more_jobs_than_are_kept(machine: Machine) -> None:
    """P-HIS-2: the oldest go, but none that ended just now."""
    machine.settings["history_jobs"] = 4
    with machine.serve():
        jobs = [machine.run_job()[0].ref.id for _ in range(10)]
        machine.forget()
        assert set(jobs) <= machine.session.jobs.keys()  # their senders may be about to look
        machine.clock.turn(601)
        machine.forget()
        assert list(machine.session.jobs) == jobs[-4:]


def test_a_session_that_fills_up_forgets_early(machine: Machine) -> None:
    """P-HIS-2"""
    machine.settings["max_items"] = 40
    with machine.serve():
        for _ in range(16):
            machine.run_job()
        machine.clock.turn(601)
        machine.forget()
        assert len(machine.session.jobs) == 12


def test_jobs_under_way_stay(machine: Machine) -> None:
    """P-HIS-2"""
    with machine.serve():
        crew = machine.crew
        crew.beat(machine.runner)
        job = crew.job()
        crew.submit(job)
        with crew.http.stream(wire.runner_stream(crew.sid), machine.runner.token):
            crew.claim(machine.runner, job)
            machine.session.jobs[job.ref.id].ended_at_ms -= 30 * DAY_S * 1000
            machine.forget()
            assert list(machine.session.jobs) == [job.ref.id]


def test_cancels_go_with_their_job(machine: Machine) -> None:
    """P-HIS-2"""
    with machine.serve():
        crew = machine.crew
        crew.beat(machine.runner)
        job = crew.job()
        crew.submit(job)
        cancel = crew.sender.person.post(JobCancel(job=job.ref), refs=[job.ref], at_ms=now_ms())
        assert crew.sender.send(cancel).status == 201
        assert crew.sender.post(wire.cancel(crew.sid, job.ref.id)).status == 200
        machine.clock.turn(8 * DAY_S)
        machine.forget()
        assert not machine.session.items.keys() & {job.ref.id, cancel.ref.id}


class TestInputFiles:
    """P-HIS-9: with jobs go the files that were sent for them, and for nothing else."""

    def test_they_go_with_their_job(self, machine: Machine) -> None:
        with machine.serve():
            used, unused = machine.input_file(), machine.input_file()
            machine.run_job(used)
            assert machine.forget_all() == {unused.ref.id}
            assert blob(machine.crew.owner, used).error == "404 not_found"
            assert blob(machine.crew.owner, unused).status == 200
            check_numbering(pages(machine.crew.owner))

    def test_not_while_a_job_is_kept_that_names_them(self, machine: Machine) -> None:
        with machine.serve():
            file = machine.input_file()
            machine.run_job(file)
            machine.clock.turn(8 * DAY_S)
            young, _ = machine.run_job(file)
            machine.forget()
            assert list(machine.session.jobs) == [young.ref.id]
            assert blob(machine.crew.owner, file).status == 200
            assert machine.forget_all() == set()

    @pytest.mark.parametrize("kind", ["text", "file"])
    def test_nor_while_something_else_names_them(self, machine: Machine, kind: str) -> None:
        with machine.serve():
            file, owner = machine.input_file(), machine.crew.owner
            if kind == "text":
                reply = owner.person.say("look", refs=[file.ref], at_ms=now_ms())
                assert owner.send(reply).status == 201
            else:
                reply = machine.input_file(owner, file)
            machine.run_job(file)
            assert machine.forget_all() == {file.ref.id, reply.ref.id}

    def test_a_file_that_names_another_goes_with_it(self, machine: Machine) -> None:
        with machine.serve():
            first = machine.input_file()
            second = machine.input_file(None, first)
            machine.run_job(first)
            assert first.ref.id in machine.forget_all()
            machine.run_job(second, first)
            assert machine.forget_all() == set()

    def test_texts_never_go(self, machine: Machine) -> None:
        with machine.serve():
            text = machine.crew.sender.say("an input?")
            machine.run_job(text)
            assert machine.forget_all() == {text.ref.id}

    def test_nobody_has_files_of_others_forgotten(self, machine: Machine) -> None:
        with machine.serve():
            theirs = machine.input_file(machine.crew.owner)
            machine.run_job(theirs)
            assert machine.forget_all() == {theirs.ref.id}
            machine.run_job(theirs, by=machine.crew.owner)
            assert machine.forget_all() == set()

    def test_a_runners_file_stays_while_a_job_uses_it(self, machine: Machine) -> None:
        with machine.serve():
            machine.run_job(files=1)
            (made,) = [i for i, found in machine.session.items.items() if found.kind == "file"]
            out = ItemRef(blob_sha256=digest_of(machine.session.items[made]), id=made)
            machine.clock.turn(8 * DAY_S)
            machine.run_job(SealedItem("", b"", out))
            machine.forget()
            assert len(machine.session.jobs) == 1
            assert made in machine.session.items
            assert machine.forget_all() == set()

    def test_what_only_links_to_a_file_does_not_keep_it(self, machine: Machine) -> None:
        """P-CHN-7: links and joined items are the chain's, and say nothing of use."""
        with machine.serve():
            sender = machine.crew.sender
            files = [machine.input_file(), machine.input_file()]
            tips = [Link(file.ref, 0) for file in files]
            place = find_place(sender.person.public, [], tips, knows=True, random=bytes(11))
            text = sender.person.say("next", item_id=place.item_id, refs=place.refs, at_ms=now_ms())
            assert sender.send(text).status == 201
            machine.run_job(files[0])
            assert machine.forget_all() == {files[1].ref.id, text.ref.id}

    def test_an_approval_that_links_to_a_job_is_no_cancel_of_it(self, machine: Machine) -> None:
        """P-CHN-7"""
        with machine.serve():
            owner = machine.crew.owner
            job, _ = machine.run_job(by=owner)
            tips = [Link(job.ref, 0), Link(job.ref, 0)]
            place = find_place(owner.person.public, [], tips, knows=True, random=bytes(11))
            approval = owner.person.post(
                RunnerApprove(participant_pub=machine.runner.public),
                item_id=place.item_id,
                refs=place.refs,
                at_ms=now_ms(),
            )
            assert owner.send(approval).status == 201
            assert machine.forget_all() == {approval.ref.id}

    def test_a_start_finds_the_same(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """P-HIS-4"""
        monkeypatch.setattr(history, "REWRITE_BYTES", 1)
        machine = Machine(tmp_path)
        with machine.serve():
            file = machine.input_file()
            machine.run_job(file, machine.input_file(), files=1)
            machine.clock.turn(8 * DAY_S)
            machine.run_job(file)
            machine.forget()
            before = state_of(machine.session)
            assert len(before["items"]) == 3
        for _ in range(2):
            with machine.serve():
                assert state_of(machine.session) == before
        with machine.serve():
            assert machine.forget_all() == set()


def digest_of(item: StoredItem) -> str:
    return b64u_encode(item.blob_sha256)


def test_streams_tell_of_gaps_and_of_what_is_forgotten(machine: Machine) -> None:
    """P-HIS-3: who is there hears of it; who comes back at a number that is gone goes on behind."""
    with machine.serve():
        crew = machine.crew
        machine.run_job()
        cursor = pages(crew.owner)[-3]["seq"]  # in the middle of what will be gone
        with crew.owner.stream(cursor + 2) as there:
            machine.clock.turn(8 * DAY_S)
            machine.forget()
            told = there.until("forgotten")
            assert json.loads(told.data)["ranges"][-1][1] == cursor + 2
        with crew.owner.stream(cursor) as back:
            gap = back.next()
            assert gap is not None
            assert gap.event == "gap"
            assert (gap.id, json.loads(gap.data)) == (str(cursor + 2), {"first": cursor + 1})
            last = back.next()
            assert last is not None
            assert last.event == "forgotten"


def test_only_the_newest_word_of_forgetting_is_kept(machine: Machine) -> None:
    """P-HIS-3: however long a session lives, a newcomer reads one such event."""
    with machine.serve():
        crew = machine.crew
        for _ in range(5):
            machine.run_job()
            machine.clock.turn(8 * DAY_S)
            machine.forget()
        events = pages(crew.owner)
        check_numbering(events)
        assert kinds(events) == ["participant"] * 3 + ["gap", "forgotten"]
        newcomer = join(crew.http, crew.world.person(Role.OBSERVER))
        check_numbering(pages(newcomer))


def test_months(machine: Machine) -> None:
    """P-HIS-4: what a session holds does not grow with the jobs it has seen."""
    machine.settings |= {"history_jobs": 10, "max_items": 200}
    sizes = []
    with machine.serve(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "REWRITE_BYTES", 10_000)
        for month in range(6):
            for _ in range(30):
                machine.run_job(files=1)
                machine.clock.turn(DAY_S)
                machine.crew.beat(machine.runner)
                machine.forget()
            session = machine.session
            entries = machine.relay.call(machine.relay.relay.core.store.read, machine.crew.sid)
            sizes.append((session.record_bytes, session.events_bytes, session.sealed_bytes))
            assert session.record_bytes == sum(map(len, entries)), month
            assert len(session.items) < 80
        assert len(pages(machine.crew.owner)) < 120
    for figures in zip(*sizes, strict=True):
        assert max(figures[1:]) < 2 * figures[0] + 30_000


def state_of(session: Any) -> dict[str, Any]:
    """What must be the same after a start."""
    return {
        "events": session.events,
        "events_bytes": session.events_bytes,
        "sealed_bytes": session.sealed_bytes,
        "record_bytes": session.record_bytes,
        "items": {
            i: (s.seq, s.acks, s.has_blob, s.size, s.names, s.named)
            for i, s in session.items.items()
        },
        "jobs": {
            i: (j.state, j.runner, j.result, j.others, j.ended_at_ms)
            for i, j in session.jobs.items()
        },
        "about": session._about,
        "said": session._forgotten_at,
        "blobs": session.blob_names(),
    }


def test_a_start_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P-HIS-4: with and without a log that was written anew, and numbers go on."""
    monkeypatch.setattr(history, "REWRITE_BYTES", 4_000)
    machine = Machine(tmp_path)
    with machine.serve():
        crew = machine.crew
        machine.run_job(files=1)
        crew.owner.say("stays")
        machine.run_job()
        machine.clock.turn(8 * DAY_S)
        machine.run_job(files=2)
        machine.forget()
        texts = [crew.owner.say(str(number)) for number in range(3)]
        crew.sender.post(wire.ack(crew.sid, texts[0].ref.id))
        before, listed = state_of(machine.session), pages(crew.owner)
    for _ in range(2):
        with machine.serve():
            assert state_of(machine.session) == before
            assert pages(machine.crew.owner) == listed
    with machine.serve():
        machine.clock.turn(8 * DAY_S)
        job, _ = machine.run_job()
        machine.forget()
        assert list(machine.session.jobs) == [job.ref.id]
        check_numbering(pages(machine.crew.owner))
        before = state_of(machine.session)
    with machine.serve():
        assert state_of(machine.session) == before


def test_the_log_is_written_anew_without_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-HIS-4"""
    monkeypatch.setattr(history, "REWRITE_BYTES", 1)
    machine = Machine(tmp_path)
    with machine.serve() as relay:
        job, result = machine.run_job()
        machine.clock.turn(8 * DAY_S)
        machine.forget()
        entries = relay.call(relay.relay.core.store.read, machine.crew.sid)
        assert not [e for e in entries if job.ref.id.encode() in e or result.ref.id.encode() in e]
        found = [type(records.decode(entry)).__name__ for entry in entries]
        assert found[:2] == ["Created", "Gaps"]
        assert found[-1] == "Forgot"


def test_a_job_that_is_posted_again_after_it_was_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-HIS-5: to the relay its id is free; its own author alone can sign it."""
    monkeypatch.setattr(history, "REWRITE_BYTES", 1)
    machine = Machine(tmp_path)
    with machine.serve():
        crew = machine.crew
        job, _ = machine.run_job()
        machine.clock.turn(8 * DAY_S)
        machine.forget()
        crew.beat(machine.runner)
        assert crew.submit(job).status == 201
        machine.forget()
        assert crew.state(job) == ("assigned", None)
        before = state_of(machine.session)
    with machine.serve():
        assert state_of(machine.session) == before


def test_acknowledgements_that_cross_the_forgetting(machine: Machine) -> None:
    """P-HIS-4: they speak of items that are gone, and do no harm, also at a start."""
    with machine.serve() as relay:
        job, result = machine.run_job()
        core, sid = relay.relay.core, machine.crew.sid
        machine.clock.turn(8 * DAY_S)
        machine.forget()
        late = [
            records.Acked(1, result.ref.id, machine.crew.sender.public),
            records.Wanted(1, result.ref.id, machine.crew.sender.public),
            records.Evicted(1, job.ref.id),
            records.Reseeded(1, job.ref.id, machine.crew.sender.public),
        ]
        before = len(machine.session.events)

        async def write() -> None:
            await core.write(core.sessions[sid], *late)

        relay.call(write)
        assert len(machine.session.events) == before
        expected = state_of(machine.session)
    if machine.settings["data"] is not None:
        with machine.serve():
            assert state_of(machine.session) == expected


def test_the_trail_is_written_before_it_goes(tmp_path: Path, machine: Machine) -> None:
    """P-HIS-6: complete enough to be checked alone, readable for nobody else."""
    folder = tmp_path / "trails"
    machine.settings["audit_dir"] = str(folder)
    with machine.serve():
        used, unused = machine.input_file(), machine.input_file()
        job, result = machine.run_job(used, files=1)
        said = machine.crew.owner.say("stays")
        machine.clock.turn(8 * DAY_S)
        machine.forget()
        machine.forget()
        (path,) = folder.iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        words = [line["event"] for line in lines]
        assert words[0] == "created"
        assert words.count("joined") == 3
        envelopes = [line["envelope"] for line in lines if line["event"] == "item"]
        assert job.envelope in envelopes
        assert result.envelope in envelopes
        assert used.envelope in envelopes
        assert not {said.envelope, unused.envelope} & set(envelopes)
        assert len(envelopes) == 4
        told = machine.crew.owner.get(wire.audit(machine.crew.sid)).body.splitlines()
        assert json.loads(told[-1])["jobs"] == [job.ref.id]


def test_a_trail_that_cannot_be_written_keeps_the_jobs(tmp_path: Path, machine: Machine) -> None:
    """P-HIS-6"""
    (tmp_path / "file").write_text("")
    machine.settings["audit_dir"] = str(tmp_path / "file" / "trails")
    with machine.serve():
        job, _ = machine.run_job()
        machine.clock.turn(8 * DAY_S)
        with pytest.raises(Exception, match="folder"):
            machine.forget()
        assert list(machine.session.jobs) == [job.ref.id]


def test_floor_sessions_forget_nothing(tmp_path: Path) -> None:
    """P-HIS-2"""
    clock = Clock(now_ms())
    with RelayThread(clock=clock) as relay:
        crew = Crew(relay, full=False, ttl_ms=None)
        runner = crew.runner()
        job = crew.job()
        crew.submit(job)
        crew.claim(runner, job)
        runner.send(crew.result(runner, job))
        clock.turn(365 * DAY_S)
        relay.call(relay.relay.history.forget_old, relay.relay.core.sessions[crew.sid])
        assert crew.state(job) == ("finished", None)


def test_the_sweeper_forgets(machine: Machine) -> None:
    """P-HIS-2: nobody needs to ask for it."""
    with machine.serve():
        machine.run_job()
        machine.clock.turn(8 * DAY_S)
        until(lambda: not machine.session.jobs, "forgetting")


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_who_asks_for_the_newest_jobs_alone(machine: Machine, limit: int) -> None:
    """P-HIS-10: finished jobs and what goes with them are left out, and nothing else."""
    with machine.serve():
        crew = machine.crew
        used, kept = machine.input_file(), machine.input_file()
        done = [machine.run_job(*names, files=1) for names in ([used, kept], [], [kept], [])]
        crew.sender.say("hello")
        whole = pages(crew.owner)
        newest = pages(crew.owner, limit, jobs=2)
        check_numbering(newest)
        told = [event for event in newest if event["kind"] != "gap"]
        assert told == [event for event in whole if event in told]
        assert newest[-1]["seq"] == whole[-1]["seq"]
        left = {json.dumps(event) for event in whole} - {json.dumps(event) for event in told}
        gone = {machine.session.items[item.ref.id].seq for pair in done[:2] for item in pair}
        assert gone <= {json.loads(event)["seq"] for event in left}
        items = {event["seq"] for event in told if event["kind"] == "item"}
        assert machine.session.items[used.ref.id].seq not in items
        for item in (kept, *done[2], *done[3]):
            assert machine.session.items[item.ref.id].seq in items
        assert pages(crew.owner, limit) == whole
        assert pages(crew.owner, limit, jobs=1000) == whole
        assert pages(crew.owner, jobs=0)[-1]["seq"] == whole[-1]["seq"]


def test_jobs_that_go_on_are_told_to_everybody(machine: Machine) -> None:
    """P-HIS-10."""
    with machine.serve():
        machine.run_job()
        crew = machine.crew
        crew.beat(machine.runner)
        job = crew.job()
        assert crew.submit(job).status == 201
        told = pages(crew.owner, jobs=0)
        assert machine.session.items[job.ref.id].seq in {event["seq"] for event in told}
        assert kinds(told).count("gap") == 1
