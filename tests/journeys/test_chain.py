"""Everything that people and runners post hangs on what came before it, and nobody who reads an
honest relay hears an alarm."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from airlox import Session
from airlox.protocol.chain import Chain, read_mark
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import Envelope, Kind
from journeys.conftest import People
from support.cutting import Network
from support.fake_runner import FULL, FakeRunner, Task
from support.relay import RelayThread

PATIENT_S = 60.0

POST = """
import sys
from airlox import Session
link, cache, name, count = sys.argv[1:]
with Session.join(link, display_name="agent", cache_dir=cache) as session:
    sys.stdin.readline()  # begin together
    for number in range(int(count)):
        session.send_text(f"{name} {number}")
"""
"""A process of the participant whose cache it is given."""


def envelopes(session: Session) -> list[tuple[int, Envelope]]:
    session.sync()
    return [(r.seq, r.envelope) for r in session.records() if r.envelope is not None]


def alarms_without(shown: Sequence[tuple[int, Envelope]], item: ItemId) -> set[str]:
    """Items that are missed by a reader that is shown everything else."""
    reader = Chain()
    for seq, envelope in shown:
        if envelope.id != item:
            reader.step(seq, envelope)
    return {alarm.item for alarm in reader.alarms}


def last_of_each(shown: Sequence[tuple[int, Envelope]]) -> set[ItemId]:
    return set({envelope.author: envelope.id for _, envelope in shown}.values())


def assert_covered(shown: Sequence[tuple[int, Envelope]]) -> None:
    """Whichever item is withheld, its author's next ones or others show it."""
    newest = last_of_each(shown)
    for _, envelope in shown:
        if envelope.id not in newest:
            assert alarms_without(shown, envelope.id) == {envelope.id}


def test_an_item_links_to_the_one_before_also_in_another_process(people: People) -> None:
    """P-CHN-1"""
    owner = people.owner()
    sender = people.join(owner.invites["sender"], "sender")
    first = sender.send_text("one")
    owner.send_text("in between")
    sender.disconnect()
    again = people.join(owner.invites["sender"], "sender")
    again.send_text("two", refs=[first])
    (_, one), _, (_, two) = envelopes(owner)
    assert one.header.refs == ()
    assert two.header.refs == (first, first)  # what was chosen, and the link
    assert owner.alarms() == []
    assert_covered(envelopes(owner))


def test_processes_of_one_participant_that_post_at_once(people: People) -> None:
    """P-CHN-1: their items fork and are joined again; not one of them can be withheld."""
    owner = people.owner()
    people.join(owner.invites["sender"], "sender").disconnect()
    command = [sys.executable, "-c", POST, owner.invites["sender"], str(people.cache("sender"))]
    posting = [
        subprocess.Popen([*command, name, "12"], stdin=subprocess.PIPE) for name in ("one", "two")
    ]
    for each in posting:
        assert each.stdin is not None
        each.stdin.write(b"\n")
        each.stdin.flush()
    assert [each.wait(PATIENT_S) for each in posting] == [0, 0]
    for each in posting:
        assert each.stdin is not None
        each.stdin.close()
    people.join(owner.invites["sender"], "sender").send_text("the end")
    reader = people.join(owner.invites["observer"], "reader")
    assert len(reader.items()) == 25
    assert reader.alarms() == []
    assert_covered(envelopes(reader))


@pytest.mark.parametrize("limits", [{}, FULL], ids=["floor", "full"])
def test_a_session_with_jobs(people: People, limits: dict[str, object]) -> None:
    """P-CHN-1: jobs, results, their files, approvals and cancels."""
    owner = people.owner(mode="execute", job_limits=dict(limits))
    sender = people.join(owner.invites["sender"], "sender")

    def work(task: Task) -> None:
        task.finish(out_files=(task.send_file("a.md", b"# a\n", "md", "text/markdown"),))

    with FakeRunner(owner.invites["runner"], people.folder, work) as runner:
        owner.approve_runner(runner.public)
        data = sender.send_file(b"x = 1\n", name="data.py")
        for number in range(3):
            assert sender.run_python(f"print({number})", files=[data]).wait(PATIENT_S).ok
        owner.send_text("thanks")
    reader = people.join(owner.invites["observer"], "reader")
    shown = envelopes(reader)
    results = [envelope for _, envelope in shown if envelope.header.kind is Kind.RESULT]
    jobs = [envelope.id for _, envelope in shown if envelope.header.kind is Kind.JOB]
    assert [envelope.header.refs[0].id for envelope in results] == jobs
    assert all(read_mark(envelope.header) for _, envelope in shown)
    for session in (owner, sender, reader):
        assert session.alarms() == []
    assert_covered(shown)


def test_evicted_blobs_are_not_missing(people: People) -> None:
    owner = people.owner()
    sender = people.join(owner.invites["sender"], "sender")
    for number in range(3):
        sender.send_text(str(number))
    owner.items()  # the only recipient has them now, and the relay lets go
    newcomer = people.join(owner.invites["observer"], "newcomer")
    newcomer.sync()
    assert len(newcomer.records()) == 3
    assert newcomer.alarms() == []


@pytest.fixture
def cut_people(tmp_path: Path, relay: RelayThread) -> Iterator[tuple[People, Network]]:
    with Network(relay.url) as network:
        made = People(tmp_path, network.url)
        yield made, network
        made.go_home()


def test_lost_answers_and_lines_that_break(cut_people: tuple[People, Network]) -> None:
    """P-CHN-1: what is posted again until it is acknowledged is one item with one number."""
    people, network = cut_people
    owner = people.owner()
    sender = people.join(owner.invites["sender"], "sender")
    for number in range(4):
        network.cut_answers(holding=b"POST /v1/sessions/" + owner.session_id.encode() + b"/items")
        sender.send_text(str(number))
        owner.sync()
    assert network.cuts == 4
    assert len(owner.records()) == 4
    assert owner.alarms() == []
    assert_covered(envelopes(owner))


def test_a_stream_that_is_opened_again_and_again(cut_people: tuple[People, Network]) -> None:
    """P-CHN-4: what comes once more after a line broke is no repetition."""
    people, network = cut_people
    owner = people.owner()
    sender = people.join(owner.invites["sender"], "sender")
    reader = people.join(owner.invites["observer"], "reader")
    stream = reader.stream(PATIENT_S)
    for number in range(5):
        sender.send_text(str(number))
        assert next(stream).text == str(number)
        network.cut_now()
    assert any("broke" in warning for warning in reader.warnings)
    assert reader.alarms() == []
    stream.close()
