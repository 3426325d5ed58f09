"""Waits against a relay that lies, stalls or vanishes: each ends at its deadline, and at once when
it is closed; the relay's `failed` ends it, and a signed result is believed and nothing else."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airlox.client import follow, items
from airlox.client.cache import SessionCache
from airlox.client.core import Core
from airlox.client.deadline import Deadline
from airlox.client.items import ItemStream
from airlox.client.jobs import Job
from airlox.client.membership import Membership
from airlox.client.relay_api import RelayApi
from airlox.errors import WaitTimeout
from airlox.protocol.item import ItemRef, SealedItem
from airlox.protocol.job import AnyRunner, OneRunner, PythonJob, Result, Status, code_sha256
from airlox.protocol.keys import Role
from airlox.protocol.payload import RunnerApprove
from airlox.protocol.sse import encode_event
from airlox.protocol.view import input_digest
from support.scripted import Peer, Request, Scripted
from support.world import Timeline, World

PATIENT_S = 25.0
"""Less than a call may take that has no other end."""

SOON_S = (0.4, 2.0, 10.0)
"""A slow machine gets more time to come to what stalls."""

Answer = Callable[[Peer, Request], None]


class LyingRelay:
    """Answers by the last word of the path; a test puts its own answers in `answers`."""

    def __init__(self, line: Timeline) -> None:
        self.line = line
        self.blobs: dict[str, bytes] = {}
        self.status: dict[str, object] = {"state": "running"}
        self.asked = threading.Event()
        """Something stalls."""
        self.streaming = threading.Event()
        self.release = threading.Event()
        self.answers: dict[str, Answer] = {
            "events": lambda peer, request: peer.answer(200, self.events(request)),
            "stream": self.silent_stream,
            "blob": lambda peer, request: peer.answer(200, self.blobs[request.path.split("/")[-2]]),
            "ack": lambda peer, request: peer.answer(204),
        }

    def events(self, request: Request) -> dict[str, object]:
        after = int(request.path.partition("after=")[2] or -1)
        found = [e for e in self.line.events if e.seq > after]
        return {"events": [{"seq": e.seq, "kind": e.kind, "data": e.data} for e in found]}

    def silent_stream(self, peer: Peer, request: Request) -> None:
        peer.start_stream()
        peer.chunk(b": here\n\n")
        self.streaming.set()
        peer.gone()

    def stall(self, peer: Peer, request: Request) -> None:
        """Take the request and say nothing."""
        self.asked.set()
        peer.gone()

    def drip(self, peer: Peer, request: Request) -> None:
        """Promise a long answer and give a byte of it now and then."""
        self.asked.set()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not self.release.wait(0.01):
            peer.send(b" ")

    def __call__(self, peer: Peer) -> None:
        while (request := peer.read()) is not None:
            word = request.path.partition("?")[0].rpartition("/")[2]
            self.answers.get(word, self.tell_status)(peer, request)

    def tell_status(self, peer: Peer, request: Request) -> None:
        peer.answer(200, self.status)


class Scene:
    """A sender in an execute session on a lying relay, with an approved runner."""

    def __init__(self, folder: Path, *, full: bool = False) -> None:
        self.world = World(full=full)
        self.line = Timeline()
        self.relay = LyingRelay(self.line)
        self.server = Scripted(self.relay)
        people = {role: self.world.person(role) for role in (Role.OWNER, Role.SENDER, Role.RUNNER)}
        self.owner, self.sender, self.runner = people.values()
        for person in people.values():
            self.line.join(person)
        self.post(self.owner.post(RunnerApprove(participant_pub=self.runner.public)))
        cache = SessionCache(folder, self.world.manifest.session_id)
        cache.make()
        self.warnings: list[str] = []
        api = RelayApi.connect(self.server.base_url, self.world.manifest.session_id, token="t")
        invite = self.world.invite(self.server.base_url, Role.SENDER)
        keys = self.world.keyring(Role.SENDER, self.sender.key)
        me = Membership(invite, self.world.manifest, self.sender.key, keys, api, cache)
        self.core = Core(me, on_warning=self.warnings.append)

    def post(self, sealed: SealedItem) -> SealedItem:
        self.line.post(sealed)
        self.relay.blobs[sealed.ref.id] = sealed.blob
        return sealed

    def job(self, **changes: Any) -> Job:
        """A job as posted, and its handle."""
        target = OneRunner(name="box", participant_pub=self.runner.public)
        values: dict[str, Any] = {
            "code": "1",
            "filename": "main.py",
            "files": (),
            "memory_mb": None,
            "requirements": (),
            "runtime": "python3.12",
            "target": target,
            "timeout_s": 60,
        }
        meta = PythonJob(**(values | changes))
        sealed = self.post(self.sender.post(meta, subkind="py"))
        return Job(self.core, sealed.ref, meta)

    def result(self, job: Job, ref: ItemRef | None = None, **changes: Any) -> SealedItem:
        values: dict[str, Any] = {
            "code_sha256": code_sha256(job.meta),
            "exit_code": 0,
            "input_sha256": input_digest([]),
            "job": ref or job.ref,
            "out_files": (),
            "peak_mem_mb": 1,
            "reason": None,
            "status": Status.COMPLETED,
            "stderr": "",
            "stderr_truncated": False,
            "stdout": "done\n",
            "stdout_truncated": False,
            "wall_ms": 5,
        }
        return self.runner.post(Result(**(values | changes)), refs=[ref or job.ref])

    def stream(self, timeout: float | None) -> ItemStream:
        end = Deadline.after(timeout)
        return ItemStream(self.core, after=-1, deadline=end, handed=lambda seq: None)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    with made.server:
        yield made
        made.relay.release.set()
        made.core.disconnect()


class Thread:
    """Runs a call beside the test, which then asks how it ended."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._outcome: list[object] = []
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._call())
        except Exception as error:
            self._outcome.append(error)

    def outcome(self) -> Any:
        self._thread.join(PATIENT_S)
        assert not self._thread.is_alive(), "it goes on and on"
        return self._outcome[0]


STALLS = pytest.mark.parametrize("how", ["stall", "drip"])


class TestAStream:
    @STALLS
    @pytest.mark.parametrize("what", ["events", "blob", "ack", "stream"])
    def test_ends_at_its_deadline(self, scene: Scene, what: str, how: str) -> None:
        for number in range(5):
            scene.post(scene.owner.say(f"text {number}"))
        scene.relay.answers[what] = getattr(scene.relay, how)
        for seconds in SOON_S:
            Thread(partial(list, scene.stream(seconds))).outcome()
            if scene.relay.asked.is_set():
                break
        assert scene.relay.asked.is_set()
        assert scene.warnings == []

    @STALLS
    @pytest.mark.parametrize("what", ["events", "blob", "ack", "stream"])
    def test_ends_when_it_is_closed(self, scene: Scene, what: str, how: str) -> None:
        scene.post(scene.owner.say("hello"))
        scene.relay.answers[what] = getattr(scene.relay, how)
        stream = scene.stream(None)
        reader = Thread(lambda: list(stream))
        assert scene.relay.asked.wait(PATIENT_S)
        stream.close()
        reader.outcome()
        # the session goes on
        scene.relay.answers["events"] = lambda peer, request: peer.answer(200, {"events": []})
        assert scene.core.api.events() == []

    def test_blobs_that_never_come_are_asked_for_again(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(items, "RETRY_BLOBS_S", 0.02)
        sealed = scene.post(scene.owner.say("late"))
        swapped = scene.owner.say("late")
        tries = []

        def blob(peer: Peer, request: Request) -> None:
            if sealed.ref.id not in request.path:
                peer.answer(200, scene.relay.blobs[request.path.split("/")[-2]])
                return
            tries.append(1)
            wrong = [swapped.blob, sealed.blob[:-1], b"", b"x" * 9999]
            peer.answer(200, [*wrong, sealed.blob][min(len(tries) - 1, 4)])

        scene.relay.answers["blob"] = blob
        with scene.stream(PATIENT_S) as stream:
            assert [next(stream).text for _ in range(2)] == [None, "late"]


class TestAJob:
    @STALLS
    @pytest.mark.parametrize("what", ["events", "job", "blob", "stream"])
    def test_a_wait_ends_at_its_deadline(self, scene: Scene, what: str, how: str) -> None:
        job = scene.job()
        scene.post(scene.result(job))
        scene.relay.answers[job.id if what == "job" else what] = getattr(scene.relay, how)
        if what in ("job", "stream"):
            scene.line.events.pop()
        for seconds in SOON_S:
            error = Thread(partial(job.wait, seconds)).outcome()
            assert isinstance(error, WaitTimeout)
            assert error.code == "timeout"
            if scene.relay.asked.is_set():
                break
        assert scene.relay.asked.is_set()
        assert scene.warnings == []

    @STALLS
    @pytest.mark.parametrize("end", ["close", "disconnect"])
    @pytest.mark.parametrize("what", ["events", "job", "stream"])
    def test_a_wait_ends_when_it_is_closed(
        self, scene: Scene, what: str, end: str, how: str
    ) -> None:
        job = scene.job()
        scene.relay.answers[job.id if what == "job" else what] = getattr(scene.relay, how)
        waiter = Thread(lambda: job.wait(600))
        assert scene.relay.asked.wait(PATIENT_S)
        if end == "close":
            job.close()
        else:
            scene.core.disconnect()
        error = waiter.outcome()
        assert isinstance(error, WaitTimeout)
        assert error.code == "closed"
        assert scene.warnings == []

    @pytest.mark.parametrize("what", ["events", "job", "stream"])
    def test_ctrl_c_ends_it(self, scene: Scene, what: str) -> None:
        job = scene.job()
        scene.relay.answers[job.id if what == "job" else what] = scene.relay.stall
        main = threading.main_thread().ident
        assert main == threading.get_ident()

        def interrupt() -> None:
            if scene.relay.asked.wait(PATIENT_S):
                signal.pthread_kill(main, signal.SIGINT)

        hand = Thread(interrupt)
        with pytest.raises(KeyboardInterrupt):
            job.wait(600)
        hand.outcome()
        # and nothing is left in a bad state
        scene.relay.answers["events"] = lambda peer, request: peer.answer(200, {"events": []})
        assert scene.core.api.events() == []

    def test_each_wait_can_be_ended_alone(self, scene: Scene) -> None:
        job = scene.job()
        follower = job.follower(600)
        follower.close()
        with pytest.raises(WaitTimeout) as caught:
            job.wait_with(follower)
        assert caught.value.code == "closed"
        scene.post(scene.result(job))
        assert job.wait(PATIENT_S).ok

    def test_a_relay_that_is_away_for_a_while_ends_no_wait(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(follow, "POLL_S", 0.01)
        job = scene.job()
        assert job.result() is None
        broken = threading.Semaphore(0)

        def away(peer: Peer, request: Request) -> None:
            broken.release()
            raise ConnectionResetError

        def stream(peer: Peer, request: Request) -> None:
            if not broken.acquire(timeout=PATIENT_S):
                return
            peer.start_stream()
            after = int(request.headers["last-event-id"])
            for event in scene.line.events[after + 1 :]:
                peer.chunk(encode_event(event.seq, event.kind, json.dumps(event.data)))
            peer.gone()

        scene.relay.answers |= {"events": away, job.id: away}
        scene.relay.answers["stream"] = stream
        scene.post(scene.result(job))
        assert job.wait(PATIENT_S).ok

    @pytest.mark.parametrize("reason", ["runner_lost", None])
    def test_failed_ends_a_wait_and_a_later_signed_result_wins(
        self, scene: Scene, reason: str | None
    ) -> None:
        """[P-RES-4] By the word of the job's state."""
        job = scene.job()
        scene.relay.status = {"state": "failed", "reason": reason}
        lost = job.wait(PATIENT_S)
        assert (lost.status, lost.signed, lost.exit_code) == ("failed", False, None)
        assert lost.reason == reason or "no reason" in (lost.reason or "")
        assert job.wait(PATIENT_S) is lost
        scene.post(scene.result(job))
        late = job.result()
        assert late is not None
        assert (late.status, late.signed, late.exit_code) == ("completed", True, 0)
        # which nothing takes back
        assert job.settle() is job.result() is job.wait(PATIENT_S) is late

    def test_failed_ends_a_wait_on_a_stream_that_keeps_it_to_itself(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """[P-RES-4] In a full session, whose jobs have a stream of their own."""
        monkeypatch.setattr(follow, "SILENT_S", 0.05)
        scene = Scene(tmp_path, full=True)
        with scene.server:
            job = scene.job()
            waiter = Thread(lambda: job.wait(600))
            assert scene.relay.streaming.wait(PATIENT_S)
            scene.relay.status = {"state": "failed", "reason": "runner_lost"}
            found = waiter.outcome()
            scene.core.disconnect()
        assert (found.status, found.reason, found.signed) == ("failed", "runner_lost", False)

    def test_failed_in_the_events_ends_a_wait(self, scene: Scene) -> None:
        """[P-RES-4] By an event, also while the state says something else."""
        job = scene.job()
        scene.line.add("job", job=job.id, state="failed", runner=None, reason="cancelled")
        found = job.wait(PATIENT_S)
        assert (found.status, found.signed, found.reason) == ("cancelled", False, "cancelled")

    @pytest.mark.parametrize("state", ["assigned", "running", "finished", "done", "", "FAILED"])
    def test_no_other_word_ends_one(self, scene: Scene, state: str) -> None:
        job = scene.job()
        scene.relay.status = {"state": state, "reason": "x", "exit_code": 0}
        public = scene.runner.public
        scene.line.add("job", job=job.id, state=state, runner=public, reason="y")
        with pytest.raises(WaitTimeout):
            job.wait(0.2)

    def test_words_of_the_relay_do_nothing_to_a_terminal(self, scene: Scene) -> None:
        job = scene.job()
        scene.line.add("job", job=job.id, state="failed", runner="\x1b[2J", reason="\x1b[2J" * 99)
        reason = job.wait(PATIENT_S).reason
        assert reason is not None
        assert reason.isprintable()
        assert len(reason) <= 300

    def test_only_a_result_bound_to_it_counts(self, scene: Scene) -> None:
        """Replays, swaps and forgeries: the relay may announce what it likes."""
        job, other = scene.job(code="mine"), scene.job(code="another's")
        foreign_ref = ItemRef(blob_sha256=other.ref.blob_sha256, id=job.ref.id)
        stranger = scene.world.person(Role.RUNNER, "stranger")
        scene.line.join(stranger)
        scene.post(scene.result(other))
        scene.post(scene.result(job, code_sha256="0" * 64))
        scene.post(scene.result(job, input_sha256="0" * 64))
        scene.post(scene.result(job, foreign_ref))
        by_stranger = scene.result(job)
        scene.line.post(by_stranger)
        scene.relay.blobs[by_stranger.ref.id] = scene.result(other).blob
        good, approved = scene.result(job), scene.runner.public
        scene.runner = stranger
        scene.post(scene.result(job))
        with pytest.raises(WaitTimeout):
            job.wait(0.4)
        scene.post(good)
        found = job.result()
        assert found is not None
        assert found.signed
        assert found.runner == approved
        assert found.others == ()

    def test_a_second_result_is_named(self, scene: Scene) -> None:
        """P-QUE-8: a relay that gives a job aimed at any runner to two of them shows both."""
        second = scene.world.person(Role.RUNNER, "second")
        scene.line.join(second)
        scene.post(scene.owner.post(RunnerApprove(participant_pub=second.public)))
        job = scene.job(target=AnyRunner())
        scene.post(scene.result(job))
        first, scene.runner = scene.runner, second
        again = scene.post(scene.result(job))
        found = job.wait(PATIENT_S)
        assert found.runner == first.public
        assert found.others == (again.ref.id,)

    def test_a_job_for_one_runner_takes_no_other_s_result(self, scene: Scene) -> None:
        other = scene.world.person(Role.RUNNER, "other")
        scene.line.join(other)
        scene.post(scene.owner.post(RunnerApprove(participant_pub=other.public)))
        job = scene.job()
        scene.runner = other
        scene.post(scene.result(job))
        scene.relay.status = {"state": "finished", "runner": other.public}
        found = job.wait(PATIENT_S)
        assert (found.status, found.signed) == ("failed", False)

    def test_inputs_are_read_only_when_there_is_something_to_compare(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = scene.job()
        looked: list[str] = []
        ask = job._input_sha256

        def look() -> str | None:
            looked.append("x")
            return ask()

        monkeypatch.setattr(job, "_input_sha256", look)
        for _ in range(3):
            assert job.result() is None
        assert looked == []
        scene.post(scene.result(job))
        assert job.result() is not None
        assert looked == ["x"]
