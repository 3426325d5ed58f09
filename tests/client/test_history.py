"""A client in a session whose relay forgets: its view, its cache, and whoever comes back late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.client import membership as members
from airlox.client.answers import EventsPage
from airlox.client.cache import SessionCache
from airlox.client.timeline import ALL_KINDS, Timeline
from airlox.errors import ConnectionLost
from airlox.protocol.chain import Link, find_place
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import ItemRef, SealedItem
from airlox.protocol.job import AnyRunner, Cause, CauseKind, Env, LiveTotals, ShellJob
from airlox.protocol.keys import Role
from airlox.protocol.payload import File
from airlox.protocol.view import Event
from support.crew import a_result
from support.epochs import Epochs
from support.world import World

SID = "ax_" + "a" * 26
SHELL = ShellJob(command=("true",), files=(), memory_mb=None, target=AnyRunner(), timeout_s=9)


def full_result(job: ItemRef) -> Any:
    return msgspec.structs.replace(
        a_result(job),
        cause=Cause(kind=CauseKind.EXIT),
        env=Env(airlox="0", layers={}, network="off", platform="x", sandbox="local"),
        live=LiveTotals(dropped_bytes=0, head=None, segments=0, stderr_bytes=0, stdout_bytes=0),
    )


class ForgetfulRelay:
    """Numbers events, gives them in pages of three, and forgets what it is told to."""

    def __init__(self) -> None:
        self.events: dict[int, Event] = {}
        self.blobs: dict[str, bytes] = {}
        self.old: set[int] = set()
        """Numbers that are left out for who asks for the newest jobs alone."""
        self.away: Exception | None = None
        self.pages = 0
        self.next = 0
        self.over = False

    def add(self, kind: str, **data: Any) -> int:
        self.events[self.next] = Event(self.next, kind, data)
        self.next += 1
        return self.next - 1

    def forget(self, *seqs: int) -> None:
        for seq in seqs:
            del self.events[seq]
        for seq in [s for s, event in self.events.items() if event.kind == "forgotten"]:
            del self.events[seq]
        self.add("forgotten", ranges=self.gaps())

    def gaps(self) -> list[list[int]]:
        found: list[list[int]] = []
        for seq in range(self.next):
            if seq not in self.events:
                if found and found[-1][1] == seq - 1:
                    found[-1][1] = seq
                else:
                    found.append([seq, seq])
        return found

    def events_page(self, after: int | None = None, *, jobs: int | None = None) -> EventsPage:
        self.pages += 1
        if self.away is not None:
            raise self.away
        told = self.events if jobs is None else self.events.keys() - self.old
        at = -1 if after is None else after
        found: list[Event] = []
        while at + 1 < self.next and len(found) < 3:
            first = at + 1
            at = next((seq for seq in range(first, self.next) if seq in told), self.next)
            if at > first:
                at -= 1
                found.append(Event(at, "gap", {"first": first}))
            else:
                found.append(self.events[at])
        return EventsPage(found, at + 1 < self.next)

    def nothing_new(self, after: int | None = None, *, jobs: int | None = None) -> EventsPage:
        self.pages += 1
        return EventsPage([], more=True)

    def fetch_blob(self, item: str, limit_bytes: int) -> bytes:
        return self.blobs[item]

    def ack(self, item: str) -> None:
        """Heard."""


class Scene:
    def __init__(self, folder: Path, *, epochs: bool = False) -> None:
        self.folder, self.relay = folder, ForgetfulRelay()
        self.world = World(full=True, epochs=epochs)
        self.warnings: list[str] = []
        self.owner, self.sender, self.runner = map(
            self.join, (Role.OWNER, Role.SENDER, Role.RUNNER)
        )
        self.cache = SessionCache(folder, self.world.manifest.session_id)
        self.cache.make()

    def join(self, role: Role) -> Any:
        person = self.world.person(role)
        self.relay.add("participant", signed_join=person.join)
        return person

    def open(self, cache: SessionCache | None = None) -> Timeline:
        api: Any = self.relay
        me = members.Membership(
            self.world.invite("https://relay.example", Role.OWNER),
            self.world.manifest,
            self.owner.key,
            self.world.keyring(Role.OWNER, self.owner.key),
            api,
            cache or SessionCache(self.folder, self.world.manifest.session_id),
        )
        return Timeline(me, on_warning=self.warnings.append)

    def post(self, sealed: SealedItem) -> int:
        self.relay.blobs[sealed.ref.id] = sealed.blob
        return self.relay.add("item", envelope=sealed.envelope)

    def file(self) -> tuple[SealedItem, int]:
        """A file by the sender, and its number."""
        meta = File(mime="text/x-python", name="in.py")
        file: SealedItem = self.sender.post(meta, body=b"x\n", subkind="py")
        return file, self.post(file)

    def job(self, *named: SealedItem) -> tuple[str, list[int]]:
        """A job with its result: its id, and the numbers that go with it."""
        job = self.sender.post(SHELL, subkind="sh", refs=[item.ref for item in named])
        seqs = [self.post(job)]
        said = {"job": job.ref.id, "runner": self.runner.public, "reason": None}
        seqs.append(self.relay.add("job", state="running", **said))
        seqs.append(self.post(self.runner.post(full_result(job.ref), refs=[job.ref])))
        seqs.append(self.relay.add("job", state="finished", **said))
        return job.ref.id, seqs

    def lines(self) -> list[Event]:
        data = Path(self.cache.folder, "events.jsonl").read_bytes()
        return [msgspec.json.decode(line, type=Event) for line in data.splitlines()]

    def blobs(self) -> set[str]:
        return {path.name for path in Path(self.cache.folder, "blobs").iterdir()}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def ids(timeline: Timeline) -> set[str]:
    return timeline.read(lambda view: set(view.records))


def test_all_pages_are_asked_for(scene: Scene) -> None:
    """P-HIS-1"""
    texts = [scene.sender.say(str(number)) for number in range(10)]
    for text in texts:
        scene.post(text)
    timeline = scene.open()
    timeline.sync()
    assert [item.text for item in timeline.items_after(-1)] == [str(n) for n in range(10)]
    assert scene.relay.pages == 5
    assert timeline.announced(ItemId(texts[3].ref.id), timeline._me.api) == texts[3].envelope


def test_a_relay_that_always_has_more(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """P-HIS-1: a page without news is the last."""
    timeline = scene.open()
    timeline.sync()
    asked = scene.relay.pages
    monkeypatch.setattr(ForgetfulRelay, "events_page", ForgetfulRelay.nothing_new)
    assert timeline.sync() == []
    assert scene.relay.pages == asked + 1


def test_view_and_cache_forget(scene: Scene) -> None:
    """P-HIS-3: a job that is forgotten leaves neither events nor blobs, and says so."""
    job, seqs = scene.job()
    said = scene.sender.say("stays")
    scene.post(said)
    timeline = scene.open()
    timeline.sync(ALL_KINDS)
    assert len(scene.blobs()) == 3
    scene.relay.forget(*seqs)
    timeline.sync(ALL_KINDS)
    assert ids(timeline) == {said.ref.id}
    assert scene.blobs() == {said.ref.id}
    assert [event.kind for event in scene.lines()] == [
        *["participant"] * 3,
        *("gap", "item", "forgotten"),
    ]
    error = timeline.forgotten(job)
    assert error is not None
    assert error.code == "forgotten"
    assert timeline.forgotten(said.ref.id) is None
    again = scene.open()
    assert ids(again) == {said.ref.id}
    assert again.read(lambda view: view.last_seq) == scene.relay.next - 1
    assert scene.warnings == []


def test_a_revocation_is_not_forgotten_on_the_word_of_a_relay(tmp_path: Path) -> None:
    """P-EPO-4: else who was cut off would count again after the next start."""
    scene = Scene(tmp_path, epochs=True)
    _, seqs = scene.job()
    epochs = Epochs(scene.world)
    began = scene.relay.add("epoch", document=epochs.begin(Role.SENDER).document)
    scene.open().sync(ALL_KINDS)
    scene.relay.forget(*seqs, began)
    scene.open().sync(ALL_KINDS)
    assert ids(scene.open()) == set()
    late = epochs.say(scene.sender, "me again")
    scene.post(late)
    again = scene.open()
    again.sync(ALL_KINDS)
    assert again.read(lambda view: (view.epochs.number, len(view.cut_off))) == (1, 1)
    assert list(again.items_after(-1)) == []


def test_input_files_leave_the_cache_with_their_jobs(scene: Scene) -> None:
    """P-HIS-9"""
    (file, seq), (other, _) = scene.file(), scene.file()
    _, seqs = scene.job(file)
    timeline = scene.open()
    timeline.sync(ALL_KINDS)
    assert {file.ref.id, other.ref.id} <= scene.blobs()
    scene.relay.forget(seq, *seqs)
    timeline.sync(ALL_KINDS)
    assert ids(timeline) == ids(scene.open()) == scene.blobs() == {other.ref.id}


def test_coming_back_inside_a_gap(scene: Scene) -> None:
    """P-HIS-3: the cursor lies among what was forgotten; the client goes on behind it."""
    jobs = [scene.job()]
    away = scene.open()
    away.sync(ALL_KINDS)
    jobs += [scene.job() for _ in range(4)]
    said = scene.sender.say("news")
    scene.post(said)
    scene.relay.forget(*(seq for _, seqs in jobs for seq in seqs))
    back = scene.open()
    back.sync(ALL_KINDS)
    for timeline in (back, away):
        timeline.sync(ALL_KINDS)
        assert ids(timeline) == {said.ref.id}
    assert scene.blobs() == {said.ref.id}
    assert scene.warnings == []
    newcomer = Scene.open(scene, SessionCache(scene.folder / "new", SID))
    newcomer._me.cache.make()
    newcomer.sync(ALL_KINDS)
    assert ids(newcomer) == {said.ref.id}
    assert scene.warnings == []


def test_two_processes_share_a_cache_that_forgets(scene: Scene) -> None:
    """One writes the log anew under the other, which goes on appending to the new one."""
    one, other = scene.open(), scene.open()
    _, seqs = scene.job()
    one.sync(ALL_KINDS)
    other.sync(ALL_KINDS)
    scene.relay.forget(*seqs)
    one.sync(ALL_KINDS)
    later = [scene.sender.say(str(number)) for number in range(6)]
    for text in later:
        scene.post(text)
        other.sync(ALL_KINDS)
        one.sync(ALL_KINDS)
    third = scene.open()
    assert ids(third) == {text.ref.id for text in later} == ids(one) == ids(other)
    numbers = [event.seq for event in scene.lines()]
    assert numbers == sorted(set(numbers))


def test_killed_between_the_event_and_the_cache(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start makes up for it."""
    _, seqs = scene.job()
    timeline = scene.open()
    timeline.sync(ALL_KINDS)
    scene.relay.forget(*seqs)
    with monkeypatch.context() as patch:
        patch.setattr(SessionCache, "drop_blob", _killed)
        with pytest.raises(KeyboardInterrupt):
            timeline.sync(ALL_KINDS)
    assert len(scene.blobs()) == 2
    assert ids(scene.open()) == set()
    assert scene.blobs() == set()
    assert [event.kind for event in scene.lines()][3:] == ["gap", "forgotten"]


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_what_must_stay_stays_in_the_cache_too(scene: Scene) -> None:
    """P-HIS-3: whatever else a lying relay names in the same event."""
    _, seqs = scene.job()
    said = scene.sender.say("stays")
    scene.post(said)
    timeline = scene.open()
    timeline.sync(ALL_KINDS)
    last = scene.relay.next - 1
    scene.relay.add("forgotten", ranges=[[0, last]])
    timeline.sync(ALL_KINDS)
    again = scene.open()
    assert ids(again) == {said.ref.id}
    assert len(again.read(lambda view: view.participants)) == 3
    assert len(seqs) == 4


@given(
    st.lists(st.integers(0, 40), max_size=30),
    st.lists(st.integers(0, 40), max_size=30),
    st.sets(st.integers(0, 40)),
)
def test_the_log_keeps_its_numbering(
    tmp_path_factory: Any, first: list[int], second: list[int], keep: set[int]
) -> None:
    """Whatever is forgotten in whatever order, a later process reads on from the same number."""
    cache = SessionCache(tmp_path_factory.mktemp("cache"), SID)
    cache.make()
    cache.append_events([Event(seq, "item", {"n": seq}) for seq in range(30)])
    for gone in (first, second):
        cache.forget_events([(seq, seq) for seq in sorted(set(gone))], keep)
        cache.append_events([Event(seq, "item", {"n": seq}) for seq in range(25, 41)])
    other = SessionCache(Path(cache.folder).parent, SID)
    last = -1
    seen = set()
    for event in other.load_events():
        assert (event.data["first"] if event.kind == "gap" else event.seq) == last + 1
        last = event.seq
        if event.kind == "item":
            seen.add(event.seq)
    assert last == 40
    expected = set(range(41)) - ({*first, *second} - keep)
    assert expected <= seen
    other.append_events([Event(41, "item", {})])
    assert cache.load_events()[-1].seq == 41


def check_no_alarm_of(scene: Scene, job: str, seqs: list[int]) -> None:
    """That an item which links to a job that a start does not read is read as it was."""
    tip = Link(ItemRef(blob_sha256="A" * 43, id=job), seqs[0])
    place = find_place(scene.sender.public, [], [tip], knows=True, random=bytes(11))
    scene.post(scene.sender.say("linked", item_id=place.item_id, refs=place.refs))
    timeline = scene.open()
    timeline.sync(ALL_KINDS)
    assert timeline.read(lambda view: view.chain.alarms) == ()
    assert timeline.alarms() == ()
    assert scene.warnings == []


class TestPutAside:
    """P-HIS-8: what a start costs does not grow with the jobs there ever were."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("airlox.client.timeline.READ_EVENTS", 20)
        monkeypatch.setattr("airlox.client.timeline.RECENT_JOBS", 2)

    def grown(self, scene: Scene) -> list[tuple[str, list[int]]]:
        jobs = [scene.job() for _ in range(8)]
        scene.open().sync(ALL_KINDS)
        scene.open().read(lambda view: view.last_seq)
        return jobs

    def test_a_start_reads_the_newest_jobs_only(self, scene: Scene) -> None:
        jobs = self.grown(scene)
        assert len(scene.lines()) < 20
        timeline = scene.open()
        timeline.sync(ALL_KINDS)
        assert ids(timeline) >= {jobs[-1][0], jobs[-2][0]}
        assert jobs[0][0] not in ids(timeline)
        assert timeline.read(lambda view: view.last_seq) == scene.relay.next - 1
        for _ in range(3):  # it does not go on shrinking, nor grow
            before = scene.lines()
            scene.open().sync(ALL_KINDS)
            assert scene.lines() == before

    def test_whoever_asks_for_one_gets_it(self, scene: Scene) -> None:
        jobs = self.grown(scene)
        timeline = scene.open()
        found = timeline.find(jobs[0][0])
        assert found is not None
        assert found.id == jobs[0][0]
        assert ids(timeline) >= {job for job, _ in jobs}
        assert timeline.read(lambda view: view.relay_jobs[jobs[0][0]].state) == "finished"
        assert timeline.forgotten("x" * 22) is None
        assert timeline.read(lambda view: view.last_seq) == scene.relay.next - 1

    def test_input_files_go_with_the_last_job_that_names_them(self, scene: Scene) -> None:
        """P-HIS-9"""
        (used, _), (kept, _), (named, _) = scene.file(), scene.file(), scene.file()
        old, _ = scene.job(used, kept, named)
        scene.post(scene.sender.say("look", refs=[named.ref]))
        for _ in range(8):
            scene.job()
        recent, _ = scene.job(kept)
        scene.job()
        scene.open().sync(ALL_KINDS)
        scene.open().read(lambda view: view.last_seq)
        timeline = scene.open()
        known = ids(timeline)
        assert known >= {recent, kept.ref.id, named.ref.id}
        assert not known & {old, used.ref.id}
        found = timeline.find(used.ref.id)
        assert found is not None
        assert found.ref == used.ref

    def test_no_alarm_of_what_is_put_aside(self, scene: Scene) -> None:
        """P-CHN-5: and what stays after it is still read as it was."""
        check_no_alarm_of(scene, *self.grown(scene)[0])

    def test_what_is_put_aside_is_forgotten_too(self, scene: Scene) -> None:
        jobs = self.grown(scene)
        scene.relay.forget(*(seq for _, seqs in jobs[:7] for seq in seqs))
        timeline = scene.open()
        timeline.sync(ALL_KINDS)
        timeline.recall()
        assert {job for job, _ in jobs} & ids(timeline) == {jobs[7][0]}
        assert len(scene.blobs()) == 2
        assert scene.cache.load_past() == []
        assert timeline.forgotten(jobs[0][0]) is not None

    def test_killed_between_the_two_files(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        jobs = [scene.job() for _ in range(8)]
        scene.open().sync(ALL_KINDS)
        with monkeypatch.context() as patch:
            patch.setattr("airlox.client.cache._EventLog.let_go", _killed)
            with pytest.raises(KeyboardInterrupt):
                scene.open().read(lambda view: view.last_seq)
        assert len(scene.lines()) == scene.relay.next
        timeline = scene.open()
        timeline.recall()
        assert ids(timeline) >= {job for job, _ in jobs}
        numbers = [event.seq for event in scene.cache.load_past()]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == 6 * 4

    def test_a_long_lived_process_beside_it(self, scene: Scene) -> None:
        jobs = [scene.job() for _ in range(8)]
        old = scene.open()
        old.sync(ALL_KINDS)
        scene.open().sync(ALL_KINDS)  # puts aside under the other's hands
        job, _ = scene.job()
        old.sync(ALL_KINDS)
        assert ids(old) >= {job, *(job for job, _ in jobs)}
        assert job in ids(scene.open())

    def test_the_runner_and_others_see_what_is_under_way(self, scene: Scene) -> None:
        self.grown(scene)
        job = scene.sender.post(SHELL, subkind="sh")
        scene.post(job)
        scene.relay.add("job", job=job.ref.id, state="running", runner=None, reason=None)
        jobs = [scene.job() for _ in range(8)]
        scene.open().sync(ALL_KINDS)
        timeline = scene.open()
        assert job.ref.id in ids(timeline)
        assert jobs[0][0] not in ids(scene.open())


class TestNewcomer:
    """P-HIS-10: who begins with nothing reads the newest jobs, and the others when asked."""

    def grown(self, scene: Scene) -> list[tuple[str, list[int]]]:
        jobs = [scene.job() for _ in range(5)]
        scene.relay.old = {seq for _, seqs in jobs[:3] for seq in seqs}
        scene.post(scene.sender.say("hello"))
        return jobs

    def test_it_reads_what_is(self, scene: Scene) -> None:
        jobs = self.grown(scene)
        timeline = scene.open()
        timeline.sync(ALL_KINDS)
        assert [job in ids(timeline) for job, _ in jobs] == [False, False, False, True, True]
        assert timeline.read(lambda view: view.last_seq) == scene.relay.next - 1
        assert not scene.cache.has_all
        scene.job()  # what comes later is read, whatever was left out
        asked = scene.relay.pages
        again = scene.open()
        again.sync(ALL_KINDS)
        assert scene.relay.pages == asked + 2
        assert again.read(lambda view: view.last_seq) == scene.relay.next - 1
        assert scene.warnings == []

    @pytest.mark.parametrize("later", [False, True])
    def test_the_rest_is_fetched_once_for_who_asks(self, scene: Scene, later: bool) -> None:
        jobs = self.grown(scene)
        timeline = scene.open()
        timeline.sync(ALL_KINDS)
        if later:
            timeline = scene.open()
        found = timeline.find(jobs[0][0])
        assert found is not None
        assert found.id == jobs[0][0]
        assert ids(timeline) >= {job for job, _ in jobs}
        assert scene.cache.has_all
        assert len(scene.cache.load_past()) == 12
        asked = scene.relay.pages
        third = scene.open()
        third.recall()
        assert ids(third) == ids(timeline)
        assert scene.relay.pages == asked
        assert third.alarms() == ()
        assert scene.warnings == []

    def test_what_is_forgotten_meanwhile_is_not_there(self, scene: Scene) -> None:
        jobs = self.grown(scene)
        timeline = scene.open()
        timeline.sync(ALL_KINDS)
        scene.relay.forget(*jobs[0][1])
        timeline.sync(ALL_KINDS)
        assert timeline.find(jobs[0][0]) is None
        assert timeline.find(jobs[1][0]) is not None
        assert timeline.forgotten(jobs[0][0]) is not None

    def test_links_to_what_was_left_out_raise_no_alarm(self, scene: Scene) -> None:
        check_no_alarm_of(scene, *self.grown(scene)[0])

    def test_a_relay_that_is_away_is_told_of(self, scene: Scene) -> None:
        jobs = self.grown(scene)
        timeline = scene.open()
        timeline.sync(ALL_KINDS)
        scene.relay.away = ConnectionLost("no route")
        assert timeline.find(jobs[0][0]) is None
        assert jobs[4][0] in ids(timeline)
        assert len(scene.warnings) == 1
        scene.relay.away = None
        assert timeline.find(jobs[0][0]) is not None
