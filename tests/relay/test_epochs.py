"""Epochs at the relay: taken whole, nobody cut off by mistake, nothing sealed before is taken."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.protocol import wire
from airlox.protocol.audit import verify_audit
from airlox.protocol.item import SealedItem, parse_envelope
from airlox.protocol.keys import Role
from airlox.protocol.live import LiveWriter, Piece
from support.crew import Crew, a_result, writer_for
from support.epochs import Epochs
from support.relay import Answer, Http, Member, RelayThread, join, now_ms, until
from support.world import Person


class Desk(Crew):
    """A crew whose owner revokes."""

    def __init__(self, relay: RelayThread) -> None:
        super().__init__(relay, epochs=True)
        self.epochs = Epochs(self.world)

    def begin(self, role: Role, cut_off: Member | None = None, *kept: Member) -> Answer:
        """Tell the relay of the next epoch. The owner counts on it once it is taken."""
        people = [member.person for member in kept]
        document = self.epochs.make(role, None if cut_off is None else cut_off.person, *people)
        answer = self.owner.post(wire.epochs(self.sid), document)
        if answer.status == 200:
            self.epochs.owner.learn_all([*self.epochs.documents, document])
            self.epochs.documents.append(document)
        return answer

    def say(self, member: Member, text: str = "hi") -> SealedItem:
        return self.epochs.say(member.person, text, at_ms=now_ms())

    def newcomer(self, person: Person) -> Answer:
        return self.http.ask("POST", wire.participants(self.sid), person.join)


@pytest.fixture
def relay() -> Iterator[RelayThread]:
    with RelayThread() as running:
        yield running


@pytest.fixture
def desk(relay: RelayThread) -> Desk:
    return Desk(relay)


class TestWhatIsTaken:
    def test_a_document_of_the_owner_and_again(self, desk: Desk) -> None:
        """P-EPO-8: told to everybody, and to newcomers before they join."""
        assert desk.begin(Role.OBSERVER).status == 200
        document = desk.epochs.documents[0]
        assert desk.owner.post(wire.epochs(desk.sid), document).status == 200
        told = [event["data"] for event in desk.sender.events() if event["kind"] == "epoch"]
        assert told == [{"document": document}]
        assert desk.http.ask("GET", wire.session(desk.sid)).json["epochs"] == [document]

    def test_many_are_told_in_pieces(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever asks for the terms needs no token, and they may have some megabytes."""
        for role in (Role.OBSERVER, Role.RUNNER):
            assert desk.begin(role).status == 200
        whole = desk.http.ask("GET", wire.session(desk.sid))
        monkeypatch.setattr("airlox.relay.routes.CHUNK_BYTES", 1)
        told = desk.http.ask("GET", wire.session(desk.sid))
        assert told.json == whole.json
        assert told.json["epochs"] == desk.epochs.documents
        lower = [{name.lower() for name in answer.headers} for answer in (whole, told)]
        assert ["content-length" in names for names in lower] == [True, False]

    def test_by_the_owner_alone(self, desk: Desk) -> None:
        document = desk.epochs.make(Role.OBSERVER)
        assert desk.sender.post(wire.epochs(desk.sid), document).error == "403 forbidden"

    def test_one_after_the_other(self, desk: Desk) -> None:
        other = desk.epochs.make(Role.RUNNER)
        assert desk.begin(Role.OBSERVER).status == 200
        assert desk.owner.post(wire.epochs(desk.sid), other).error == "409 not_next_epoch"
        assert desk.owner.post(wire.epochs(desk.sid), other[:-9]).status == 400

    def test_a_role_is_revoked_once_and_not_by_a_word(self, desk: Desk) -> None:
        assert desk.owner.post(wire.revoke(desk.sid, "observer")).error == "403 policy"

    def test_not_where_somebody_who_joined_would_be_cut_off(self, desk: Desk) -> None:
        """P-EPO-8"""
        other = join(desk.http, desk.world.person(Role.SENDER))
        assert desk.begin(Role.SENDER, desk.sender).error == "409 somebody_joined"
        assert other.send(desk.say(other)).status == 201
        assert other.post(wire.leave(desk.sid)).status == 200
        assert desk.begin(Role.SENDER, desk.sender).status == 200

    def test_not_of_who_never_joined(self, desk: Desk) -> None:
        nobody = Member(desk.http, desk.world.person(Role.SENDER), "")
        assert desk.begin(Role.SENDER, nobody, desk.sender).error == "404 not_found"
        assert desk.begin(Role.RUNNER, desk.sender).error == "404 not_found"


class TestWhoIsCutOff:
    @pytest.mark.parametrize("whole", [True, False])
    def test_is_out_with_token_and_link_and_the_others_are_not(
        self, desk: Desk, whole: bool
    ) -> None:
        """P-EPO-4"""
        other = join(desk.http, desk.world.person(Role.SENDER))
        with desk.sender.stream() as stream:
            assert desk.begin(Role.SENDER, *(() if whole else (desk.sender, other))).status == 200
            assert "epoch" in {event.event for event in stream.rest()}
        assert desk.sender.send(desk.say(desk.sender)).status == 401
        late = desk.newcomer(desk.world.person(Role.SENDER))
        assert late.error == ("403 revoked" if whole else "403 invite_replaced")
        assert other.send(desk.say(other)).status == (401 if whole else 201)
        if not whole:
            assert desk.newcomer(desk.epochs.newcomer(Role.SENDER)).status == 201
        assert desk.newcomer(desk.world.person(Role.RUNNER)).status == 201

    def test_a_runner_loses_its_job(self, desk: Desk) -> None:
        runner = desk.runner()
        job = desk.job()
        assert desk.submit(job).status < 300
        assert desk.claim(runner, job).status == 200
        assert desk.begin(Role.RUNNER, runner).status == 200
        assert desk.claim(runner, job).status == 401
        until(lambda: desk.state(job)[0] == "failed", "the end of the job")


class TestWhatWasSealedBefore:
    def test_is_refused_and_what_is_known_is_not(self, desk: Desk) -> None:
        """P-EPO-3: the retry of an item that was taken is answered as the first time."""
        before, late = desk.say(desk.sender), desk.say(desk.sender)
        assert desk.sender.send(before).status == 201
        assert desk.begin(Role.OBSERVER).status == 200
        assert desk.sender.send(before).status < 300
        assert desk.sender.send(late).error == "409 old_epoch"
        assert desk.sender.send(desk.say(desk.sender)).status == 201

    def test_so_is_what_comes_too_early(self, desk: Desk) -> None:
        desk.epochs.begin(Role.OBSERVER)
        assert desk.sender.send(desk.say(desk.sender)).error == "409 unknown_epoch"

    def test_live_output_packs_and_lists_too(self, desk: Desk) -> None:
        """P-EPO-6"""
        runner = desk.runner()
        job = desk.job()
        assert desk.submit(job).status < 300
        assert desk.claim(runner, job).status == 200
        writer = writer_for(desk, runner, job)
        first, writer = writer.write([Piece(1, b"a")])
        output, lack = wire.job_output(desk.sid, job.ref.id), wire.lack(desk.sid, job.ref.id)
        pack = wire.pack(desk.sid, job.ref.id, 0)
        assert runner.post(output, first).status == 204
        assert desk.begin(Role.OBSERVER).status == 200
        late, _ = writer.write([Piece(1, b"b")])
        assert runner.post(output, late).error == "409 old_epoch"
        assert runner.post(lack, bytes(60)).error == "409 old_epoch"
        assert desk.sender.ask("PUT", pack, bytes(60)).error == "409 old_epoch"
        assert runner.post(output, self._now(desk, writer)).status == 204
        assert runner.post(lack, bytes(60), airlox_epoch="1").status == 204
        assert desk.sender.ask("PUT", pack, bytes(60), airlox_epoch="1").status == 201
        late_result = desk.result(runner, job)
        assert runner.send(late_result).error == "409 old_epoch"
        assert runner.send(self._result(desk, runner, job)).status == 201

    def _now(self, desk: Desk, writer: LiveWriter) -> bytes:
        number, key = desk.epochs.owner.current()
        later = LiveWriter(
            writer.key, key, writer.session_id, writer.job, writer.random,
            writer.n, writer.offset, writer.head, number,
        )  # fmt: skip
        return later.write([Piece(1, b"b")])[0]

    def _result(self, desk: Desk, runner: Member, job: SealedItem) -> SealedItem:
        number, key = desk.epochs.owner.current()
        return runner.person.post(
            a_result(job.ref), refs=[job.ref], at_ms=now_ms(), session_key=key, epoch=number
        )

    def test_posts_at_the_same_moment_come_before_it_or_not_at_all(self, desk: Desk) -> None:
        """P-EPO-8: in the order of events nothing sealed before an epoch stands after it."""
        people = [join(desk.http, desk.world.person(Role.SENDER)) for _ in range(4)]
        at_once = threading.Barrier(len(people) + 1)
        answers: list[Answer] = []

        def post(member: Member) -> None:
            at_once.wait()
            for _ in range(40):
                answers.append(member.send(member.person.say("x", at_ms=now_ms())))

        threads = [threading.Thread(target=post, args=(member,)) for member in people]
        for thread in threads:
            thread.start()
        at_once.wait()
        assert desk.begin(Role.OBSERVER).status == 200
        for thread in threads:
            thread.join()
        assert {answer.status for answer in answers} <= {201, 409, 503}
        events = desk.owner.events()
        began = next(at for at, event in enumerate(events) if event["kind"] == "epoch")
        after = [event for event in events[began:] if event["kind"] == "item"]
        assert after == []
        taken = sum(answer.status == 201 for answer in answers)
        assert taken == sum(event["kind"] == "item" for event in events)


def test_a_restart_keeps_all_of_it(tmp_path: Path) -> None:
    """P-EPO-8: durable before it is told."""
    folder = str(tmp_path / "data")
    with RelayThread(data=folder) as relay:
        desk = Desk(relay)
        other = join(desk.http, desk.world.person(Role.SENDER))
        assert desk.begin(Role.SENDER, desk.sender, other).status == 200
        new = desk.newcomer(desk.epochs.newcomer(Role.SENDER))
        assert new.status == 201
        assert desk.begin(Role.OBSERVER).status == 200
        late = desk.say(other)
        events = desk.owner.events()
    with RelayThread(data=folder) as relay:
        http = Http(relay.url)
        owner, again, gone = (
            Member(http, member.person, member.token) for member in (desk.owner, other, desk.sender)
        )
        assert owner.events() == events
        assert again.send(late).status == 201
        assert gone.get(wire.events(desk.sid)).status == 401
        assert again.send(again.person.say("old", at_ms=now_ms())).error == "409 old_epoch"
        assert http.ask("GET", wire.session(desk.sid)).json["epochs"] == desk.epochs.documents


def test_its_trail_is_verified_and_says_who_was_cut_off(desk: Desk) -> None:
    """P-EPO-10: two revocations; what came after is proved to be under another key."""
    other = join(desk.http, desk.world.person(Role.SENDER))
    assert desk.sender.send(desk.say(desk.sender)).status == 201
    assert desk.begin(Role.SENDER, desk.sender, other).status == 200
    assert other.send(desk.say(other)).status == 201
    assert desk.begin(Role.OBSERVER).status == 200
    assert other.send(desk.say(other)).status == 201
    lines = desk.owner.get(wire.audit(desk.sid)).body
    for link in (None, desk.world.invite("https://r", Role.OWNER).url()):
        report = verify_audit(lines, invite=link)
        assert report.verified, report.problems
        assert [(each.number, each.role, each.cut_off) for each in report.epochs] == [
            (1, Role.SENDER, desk.sender.person.public),
            (2, Role.OBSERVER, None),
        ]
        assert [person.cut_off for person in report.people] == [None, "revoked", None]

    def wrong(*changed: bytes) -> set[str]:
        return {problem.code for problem in verify_audit(b"\n".join(changed)).problems}

    each = lines.splitlines()
    epochs = [line for line in each if json.loads(line)["event"] == "epoch"]
    assert "order" in wrong(*(line for line in each if line != epochs[0]))
    assert "unknown_epoch" in wrong(*(line for line in each if line != epochs[1]))
    assert "order" in wrong(*each, epochs[1])
    first = next(line for line in each if json.loads(line)["event"] == "item")
    moved = [line for line in each if line != first]
    assert "old_epoch" in wrong(*moved, first)
    assert parse_envelope(json.loads(each[-1])["envelope"]).header.epoch_number == 2
