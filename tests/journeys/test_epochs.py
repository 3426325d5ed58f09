"""Revocation that bites: who was cut off reads nothing later, also with all that the relay has.

See support/accomplice.py for who was cut off and has the relay on their side.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox import Session, SessionClosed, UsageError, verify_audit
from airlox.errors import AirloxError, DecryptError, OrderError, PolicyError, RecipientError
from airlox.protocol.encoding import ItemId, SessionId
from airlox.protocol.item import parse_envelope
from airlox.protocol.job import OutFile
from airlox.protocol.pack import open_pack
from airlox.protocol.payload import File
from airlox.runner.spool import Parcel, Spool
from journeys.conftest import People
from support.accomplice import Accomplice
from support.fake_runner import FakeRunner, Task
from support.relay import RelayThread

TERMS: dict[str, Any] = {"mode": "execute", "job_limits": {"kinds": ["python", "shell"]}}


def texts(session: Session) -> list[str | None]:
    return [item.text for item in session.items() if item.kind == "text"]


@pytest.fixture
def crew(people: People) -> Iterator[tuple[Session, Session, Session, Session]]:
    """An owner, alice and bob who send, and one who observes."""
    owner = people.owner(**TERMS)
    links = owner.invites
    alice, bob = (people.join(links["sender"], name) for name in ("alice", "bob"))
    watcher = people.join(links["observer"], "watcher")
    owner.send_text("before")
    for session in (alice, bob, watcher):
        assert texts(session) == ["before"]
    yield owner, alice, bob, watcher
    # every trail of such a session verifies
    report = verify_audit(owner.audit(), invite=owner.invites["owner"])
    assert report.verified, report.problems


class TestWithTheHelpOfTheRelay:
    def test_a_participant_reads_nothing_later(
        self, relay: RelayThread, crew: tuple[Session, ...]
    ) -> None:
        """P-EPO-2: not with its keys, its link, its cache, and every byte the relay stores."""
        owner, alice, bob, watcher = crew
        accomplice = Accomplice(relay, alice)
        assert all(accomplice.opens(*stored) for stored in accomplice.stored())
        owner.revoke("alice")
        after = {owner.send_text("by the owner").id, bob.send_text("by bob").id}
        after.add(bob.send_file(b"print('secret')", name="a.py").id)
        stored = accomplice.stored()
        later = [each for each in stored if parse_envelope(each[0]).id in after]
        assert len(later) == 3
        assert not any(accomplice.opens(*each) for each in later)
        for session in (owner, bob, watcher):
            assert texts(session) == ["before", "by the owner", "by bob"]
        with pytest.raises(SessionClosed):
            alice.send_text("me too")
        assert texts(alice) == ["before"]

    def test_a_role_reads_nothing_later(
        self, relay: RelayThread, crew: tuple[Session, ...]
    ) -> None:
        """P-EPO-2: not even with the help of one who was cut off before."""
        owner, alice, bob, watcher = crew
        owner.revoke("alice")
        owner.revoke("observer")
        sent = bob.send_text("by bob").id
        [stored] = [each for each in Accomplice(relay, bob).stored() if sent in each[0]]
        assert Accomplice(relay, bob).opens(*stored)
        assert not Accomplice(relay, alice).opens(*stored)
        assert not Accomplice(relay, watcher).opens(*stored)
        assert texts(owner) == ["before", "by bob"]
        assert texts(watcher) == ["before"]
        assert "let" in (watcher.closed or "")

    def test_live_output_of_a_job_that_runs(
        self, relay: RelayThread, people: People, crew: tuple[Session, ...]
    ) -> None:
        """P-EPO-6: the line that follows it goes on, the one who was cut off has the start."""
        owner, alice, bob, _ = crew
        may_go_on, printed = threading.Event(), threading.Event()

        def script(task: Task) -> None:
            task.print((1, b"one\n"))
            printed.set()
            assert may_go_on.wait(60)
            task.runner.core.timeline.sync(())
            task.print((1, b"two\n"))
            task.finish()

        with FakeRunner(owner.invites["runner"], people.folder, script) as runner:
            owner.approve_runner("box")
            job = bob.run_shell("echo")
            assert printed.wait(60)
            accomplice = Accomplice(relay, alice)
            assert accomplice.reads(job.id, runner.public) == 1
            owner.revoke("alice")
            may_go_on.set()
            output = b"".join(part.data for part in job.output(60))
            result = job.wait(60)
            assert (output, result.status) == (b"one\ntwo\n", "completed")
            assert accomplice.reads(job.id, runner.public) == 1
            assert Accomplice(relay, bob).reads(job.id, runner.public) == 2
            [stored] = [each for each in accomplice.stored() if '"kind":"result"' in each[0]]
            assert not accomplice.opens(*stored)


def test_who_listens_is_told_and_the_others_hear_on(crew: tuple[Session, ...]) -> None:
    owner, alice, bob, _ = crew
    heard: dict[str, list[str | None]] = {"alice": [], "bob": []}
    streams = {"alice": alice.stream(60), "bob": bob.stream(60)}

    def listen(name: str) -> None:
        for item in streams[name]:
            heard[name].append(item.text)
            if item.text == "after":
                return

    threads = [threading.Thread(target=listen, args=(name,)) for name in streams]
    for thread in threads:
        thread.start()
    owner.revoke("alice")
    owner.send_text("after")
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert heard == {"alice": ["before"], "bob": ["before", "after"]}
    assert alice.closed is not None


class TestWhoStays:
    def test_links_of_other_roles_and_newcomers(
        self, people: People, crew: tuple[Session, ...]
    ) -> None:
        """A hosted agent starts with its link and nothing else, each time."""
        owner, *_ = crew
        old = owner.invites
        owner.revoke("alice")
        owner.revoke("observer")
        new = owner.invites
        assert new["owner"] == old["owner"]
        assert new["runner"] == old["runner"]
        assert new["sender"] != old["sender"]
        assert "observer" not in new
        owner.send_text("for whoever comes")
        newcomer = people.join(new["sender"], "newcomer")
        newcomer.send_text("here I am")
        assert texts(newcomer)[-2:] == ["for whoever comes", "here I am"]
        assert texts(owner)[-1] == "here I am"

    def test_the_old_link_says_what_to_do(self, people: People, crew: tuple[Session, ...]) -> None:
        owner, *_ = crew
        old = owner.invites
        owner.revoke("alice")
        with pytest.raises(PolicyError) as caught:
            people.join(old["sender"], "late")
        assert caught.value.code == "invite_replaced"
        assert "ask the owner for a new link" in str(caught.value)
        owner.revoke("observer")
        with pytest.raises(PolicyError) as caught:
            people.join(old["observer"], "later")
        assert caught.value.code == "revoked"

    @pytest.mark.parametrize("which", ["old", "new"])
    def test_who_keeps_the_role_goes_on_from_the_cache(
        self, people: People, crew: tuple[Session, ...], which: str
    ) -> None:
        """With the link it had, and with the new one, which its cache has not heard of."""
        owner, _, bob, _ = crew
        old = owner.invites["sender"]
        bob.disconnect()
        owner.revoke("alice")
        owner.revoke("observer")
        owner.send_text("meanwhile")
        again = people.join(old if which == "old" else owner.invites["sender"], "bob")
        assert again.participant_pub == bob.participant_pub
        again.send_text("back")
        assert texts(again) == ["before", "meanwhile", "back"]
        assert texts(owner)[-1] == "back"

    def test_what_was_sealed_too_late_is_sealed_anew_and_not_doubled(
        self, crew: tuple[Session, ...]
    ) -> None:
        """P-EPO-5: bob has not heard of it when he posts."""
        owner, _, bob, _ = crew
        sealed = bob._core.outbox.seal(File(mime="text/x-python", name="a.py"), b"1", subkind="py")
        owner.revoke("observer")
        ref = bob._core.outbox.post(sealed)
        assert ref.id == sealed.ref.id
        assert ref.blob_sha256 != sealed.ref.blob_sha256
        [item] = [item for item in owner.items() if item.kind == "file"]
        assert (item.ref, item.body) == (ref, b"1")

    def test_posts_at_the_same_moment_are_all_there_once(self, crew: tuple[Session, ...]) -> None:
        """P-EPO-5: each is before the epoch, or sealed anew after it."""
        owner, _, bob, watcher = crew
        said = [f"{at}" for at in range(60)]
        at_once = threading.Barrier(4)

        def post(part: list[str]) -> None:
            at_once.wait()
            for text in part:
                bob.send_text(text)

        threads = [threading.Thread(target=post, args=(said[at::3],)) for at in range(3)]
        for thread in threads:
            thread.start()
        at_once.wait()
        owner.revoke("observer")
        owner.revoke("alice")
        for thread in threads:
            thread.join()
        assert sorted(texts(owner)[1:], key=str) == sorted(said)
        assert texts(owner) == texts(bob)
        assert set(texts(watcher)) <= {"before", *said}

    def test_history_of_several_epochs_is_read_from_the_cache(
        self, people: People, crew: tuple[Session, ...]
    ) -> None:
        owner, alice, bob, watcher = crew
        links = owner.invites
        for round_, gone in enumerate(("alice", "observer")):
            owner.revoke(gone)
            bob.send_text(f"round {round_}")
            texts(owner)
        assert texts(bob) == ["before", "round 0", "round 1"]
        for session in (alice, bob, watcher):
            session.disconnect()
        read = {
            name: texts(people.join(links[role], name))
            for name, role in (("bob", "sender"), ("alice", "sender"), ("watcher", "observer"))
        }
        assert read == {
            "bob": ["before", "round 0", "round 1"],
            "alice": ["before"],
            "watcher": ["before"],
        }


class TestARelayThatLostThem:
    def test_nobody_joins_again_under_an_older_key(
        self, people: People, relay: RelayThread, crew: tuple[Session, ...]
    ) -> None:
        """P-EPO-7: though the link is still good for that."""
        owner, _, _, watcher = crew
        owner.revoke("alice")
        assert texts(watcher) == ["before"]
        watcher.disconnect()
        [identity] = people.cache("watcher").glob("*/identity-*.json")
        identity.unlink()
        documents = relay.relay.core.sessions[SessionId(owner.session_id)].epoch_documents
        kept = documents.copy()
        relay.call(documents.clear)
        with pytest.raises(OrderError, match="does not show the epochs"):
            people.join(owner.invites["observer"], "watcher")
        relay.call(documents.extend, kept)
        assert texts(people.join(owner.invites["observer"], "watcher")) == ["before"]


class TestTheOwner:
    def test_recovers_everything_from_the_link_alone(
        self, people: People, crew: tuple[Session, ...]
    ) -> None:
        owner, _, bob, _ = crew
        owner.revoke("alice")
        owner.revoke("observer")
        again = people.join(owner.invites["owner"], "other-device")
        assert again.invites == owner.invites
        bob.send_text("after")
        assert texts(again)[-1] == "after"
        again.revoke("bob")
        again.send_text("without bob")
        assert texts(owner)[-1] == "without bob"
        with pytest.raises(SessionClosed):
            bob.send_text("x")

    def test_two_devices_at_once(self, people: People, crew: tuple[Session, ...]) -> None:
        owner, alice, bob, watcher = crew
        other = people.join(owner.invites["owner"], "other-device")
        threads = [
            threading.Thread(target=owner.revoke, args=("alice",)),
            threading.Thread(target=other.revoke, args=("observer",)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        bob.send_text("both took place")
        assert texts(owner)[-1] == texts(other)[-1] == "both took place"
        for gone in (alice, watcher):
            assert texts(gone) == ["before"]
        other.participants()
        assert other.invites == owner.invites

    def test_a_revocation_may_be_repeated(self, crew: tuple[Session, ...]) -> None:
        owner, alice, *_ = crew
        for _ in range(2):
            owner.revoke(alice.participant_pub)
            owner.revoke("role:observer")
        assert len([line for line in owner.audit() if line["event"] == "epoch"]) == 2

    @pytest.mark.parametrize("who", ["nobody", "owner", ""])
    def test_whom_it_cannot_cut_off(self, crew: tuple[Session, ...], who: str) -> None:
        with pytest.raises((UsageError, RecipientError)):
            crew[0].revoke(who)

    def test_nobody_else_may(self, crew: tuple[Session, ...]) -> None:
        with pytest.raises(PolicyError):
            crew[1].revoke("bob")

    def test_a_session_without_epochs_revokes_roles_alone(self, people: People) -> None:
        """P-EPO-9"""
        owner = people.owner()
        agent = people.join(owner.invites["sender"], "agent")
        with pytest.raises(UsageError) as caught:
            owner.revoke("agent")
        assert caught.value.code == "needs_epochs"
        owner.revoke("sender")
        with pytest.raises(AirloxError):
            agent.send_text("x")


class TestRunners:
    def test_a_result_sealed_before_is_not_lost(
        self, people: People, crew: tuple[Session, ...], tmp_path: Path
    ) -> None:
        """P-EPO-5: with its files, which are named by what they are after it."""
        owner, _, bob, _ = crew
        parcels: list[Parcel] = []
        sealed = threading.Event()

        def script(task: Task) -> None:
            outbox = task.runner.core.outbox
            file = outbox.seal(File(mime="text/x-python", name="a.py"), b"print(1)", subkind="py")
            result = task.result(out_files=(OutFile(item=file.ref, name="a.py", size=8),))
            done = outbox.seal(result, refs=(task.item.ref, file.ref), sure=True)
            parcels.append(Parcel(ItemId(task.item.id), (file,), done, done))
            sealed.set()

        with FakeRunner(owner.invites["runner"], people.folder, script) as runner:
            owner.approve_runner("box")
            job = bob.run_shell("make")
            assert sealed.wait(60)
            outbox, api = runner.core.outbox, runner.core.api
            spool = Spool(tmp_path / "spool", outbox.post_frame, api.pause, outbox.renew_frame)
            assert spool.add(parcels[0])
            owner.revoke("alice")
            spool.post_all(lambda job, why: pytest.fail(why))
            result = job.wait(60)
        assert [(file.name, file.data) for file in result.out_files] == [("a.py", b"print(1)")]

    def test_one_is_cut_off_and_the_other_works_on(
        self, people: People, crew: tuple[Session, ...]
    ) -> None:
        owner, _, bob, _ = crew
        link = owner.invites["runner"]

        def script(task: Task) -> None:
            task.finish(stdout=task.runner.core.membership.key.public)

        with (
            FakeRunner(link, people.folder, script, name="one") as one,
            FakeRunner(link, people.folder, script, name="two") as two,
        ):
            for name in ("one", "two"):
                owner.approve_runner(name)
            owner.revoke("one")
            assert [runner.name for runner in owner.runners() if not runner.left] == ["two"]
            job = bob.run_shell("true")
            assert job.wait(60).stdout == two.public
            assert one.public != two.public


def test_a_pack_on_the_relay_does_not_open_either(
    relay: RelayThread, people: People, crew: tuple[Session, ...], tmp_path: Path
) -> None:
    """P-EPO-6: bob has not heard of the epoch when he begins to send."""
    owner, alice, bob, _ = crew
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a.txt").write_text("hello")
    found: list[bytes] = []

    def script(task: Task) -> None:
        session = relay.relay.core.sessions[task.runner.core.manifest.session_id]
        accomplice = Accomplice(relay, alice)
        for number in session.pack_sets[ItemId(task.item.id)].packs:
            found.append(relay.call(accomplice._read, session.id, f"{task.item.id}.{number}"))
        assert len(task.packs()) == len(found)
        task.finish()

    with FakeRunner(owner.invites["runner"], people.folder, script):
        owner.approve_runner("box")
        bob.runners()  # so that it need not ask before it sends
        owner.revoke("alice")
        job = bob.run_shell("ls", runner="box", tree=tmp_path / "tree")
        assert job.wait(60).status == "completed"
    accomplice = Accomplice(relay, alice)
    accomplice.learn()
    assert found
    sid, job_id = owner.manifest.session_id, ItemId(job.id)
    for number, sealed in enumerate(found):
        for key in accomplice.keys:
            with pytest.raises(DecryptError):
                open_pack(key, sid, job=job_id, number=number, sealed=sealed)
