"""Messages and files between an owner and others, over the real relay."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from airlox import (
    AsyncSession,
    Item,
    PolicyError,
    RelayError,
    Session,
    SessionClosed,
    UsageError,
    ValidationError,
)
from airlox.client import items as items_module
from journeys.conftest import People

PATIENT_S = 60.0


def texts(items: object) -> list[str | None]:
    return [item.text or item.name for item in items]  # type: ignore[attr-defined]


def take(session: Session, count: int, **options: Any) -> list[str | None]:
    """What the next `count` items of a stream say."""
    with session.stream(timeout=PATIENT_S, **options) as stream:
        return texts(itertools.islice(stream, count))


def test_the_readme(people: People, tmp_path: Path) -> None:
    owner = people.owner()
    agent = people.join(
        owner.invites["sender"],
        "build-agent",
        description="Builds and tests the Rust workspace; send it diffs",
    )
    (tmp_path / "report.md").write_text("# fine\n")
    agent.send_text("Build finished.")
    agent.send_file(tmp_path / "report.md")
    got = []
    for item in owner.stream(timeout=PATIENT_S):
        got.append((item.author_name, item.kind, item.text or item.name))
        if len(got) == 2:
            break
    assert got == [
        ("build-agent", "text", "Build finished."),
        ("build-agent", "file", "report.md"),
    ]
    assert [(p.display_name, p.role, p.description) for p in owner.participants()] == [
        ("owner", "owner", None),
        ("build-agent", "sender", "Builds and tests the Rust workspace; send it diffs"),
    ]


def test_items_reach_everybody_in_one_order(people: People) -> None:
    owner = people.owner()
    one = people.join(owner.invites["sender"], "one")
    watcher = people.join(owner.invites["observer"], "watcher")
    ref = owner.send_text("first")
    one.send_text("second", refs=[ref])
    owner.send_file(b"print(1)\n", name="a.py")
    for session in (owner, one, watcher):
        items = session.items()
        assert texts(items) == ["first", "second", "a.py"]
        assert [item.seq for item in items] == sorted(item.seq for item in items)
    assert watcher.items()[1].envelope.header.refs == (ref,)
    assert watcher.items()[2].body == b"print(1)\n"
    assert watcher.item(ref.id) is not None
    assert watcher.item("A" * 22) is None


def test_an_image_leaves_without_its_metadata(people: People) -> None:
    """[P-PAY-1] On every way out of the SDK."""
    image = pytest.importorskip("PIL.Image")
    with io.BytesIO() as file:
        extra = pytest.importorskip("PIL.PngImagePlugin").PngInfo()
        extra.add_text("where", "at home")
        image.new("RGB", (4, 4), "red").save(file, "png", pnginfo=extra)
        data = file.getvalue()
    owner = people.owner()
    owner.send_file(data, name="chart.png")
    [item] = owner.items()
    assert item.subkind == "image"
    assert b"at home" in data
    assert b"at home" not in item.body


def test_a_stream_hears_what_comes_and_ends_with_the_session(people: People) -> None:
    owner = people.owner()
    agent = people.join(owner.invites["sender"])
    got: list[str | None] = []
    first = threading.Event()

    def listen() -> None:
        for item in agent.stream(timeout=60):
            got.append(item.text)
            first.set()

    thread = threading.Thread(target=listen)
    thread.start()
    owner.send_text("hello")
    assert first.wait(PATIENT_S)
    owner.send_text("bye")
    owner.close()
    thread.join(PATIENT_S)
    assert not thread.is_alive()
    assert got[0] == "hello"
    assert agent.closed is not None
    with pytest.raises(SessionClosed):
        agent.send_text("too late")
    with pytest.raises(SessionClosed):
        owner.send_text("too late")


def test_a_stream_ends_at_its_time(people: People) -> None:
    owner = people.owner()
    assert list(owner.stream(timeout=0.2)) == []
    assert owner.closed is None


def test_each_item_once_per_object(people: People) -> None:
    owner = people.owner()
    owner.send_text("one")
    owner.items()
    assert take(owner, 1) == ["one"]
    owner.send_text("two")
    assert take(owner, 1) == ["two"]
    assert take(owner, 2, history=True) == ["one", "two"]


@pytest.mark.parametrize("how", ["close", "disconnect"])
def test_a_waiting_stream_ends_from_another_thread(people: People, how: str) -> None:
    owner = people.owner()
    stream = owner.stream()
    got: list[Item] = []
    owner.send_text("go")
    got.append(next(stream))
    thread = threading.Thread(target=lambda: got.extend(stream))
    thread.start()
    stream.close() if how == "close" else owner.disconnect()
    thread.join(PATIENT_S)
    assert not thread.is_alive()
    assert texts(got) == ["go"]


def test_many_threads_share_a_session(people: People) -> None:
    owner = people.owner()
    threads = [
        threading.Thread(target=owner.send_text, args=(f"{n}",), daemon=True) for n in range(12)
    ]
    for thread in threads:
        thread.start()
    got = set()
    for item in owner.stream(timeout=PATIENT_S):
        got.add(item.text)
        if len(got) == 12:
            break
    assert got == {str(n) for n in range(12)}


class TestRejoining:
    def test_the_cache_goes_on_as_the_same_participant(self, people: People) -> None:
        owner = people.owner()
        link = owner.invites["sender"]
        first = people.join(link)
        owner.send_text("before")
        assert texts(first.items()) == ["before"]
        first.disconnect()
        owner.send_text("meanwhile")
        again = people.join(link)
        assert again.participant_pub == first.participant_pub
        assert len(owner.participants()) == 2
        # the stream resumes where the participant left off
        assert take(again, 1) == ["meanwhile"]
        assert texts(again.items()) == ["before", "meanwhile"]

    def test_the_owner_too_and_its_invites(self, people: People) -> None:
        owner = people.owner()
        again = people.join(owner.invites["owner"], "owner")
        assert again.participant_pub == owner.participant_pub
        assert again.invites == owner.invites

    def test_another_cache_is_another_participant(self, people: People) -> None:
        owner = people.owner()
        one = people.join(owner.invites["sender"], "one")
        two = people.join(owner.invites["sender"], "two")
        assert one.participant_pub != two.participant_pub

    def test_history_outlives_the_session(self, people: People) -> None:
        owner = people.owner()
        agent = people.join(owner.invites["sender"])
        owner.send_text("keep this")
        agent.items()
        agent.disconnect()
        owner.close()
        late = people.join(owner.invites["sender"])
        assert texts(late.items()) == ["keep this"]
        assert late.closed is not None
        assert texts(late.stream(timeout=5, history=True)) == ["keep this"]
        with pytest.raises(SessionClosed):
            late.send_text("nobody there")
        # without a cache there is nothing to show
        with pytest.raises(SessionClosed) as caught:
            people.join(owner.invites["sender"], "stranger")
        assert caught.value.code == "session_gone"

    def test_a_joining_crowd_of_one_cache_is_one_participant(self, people: People) -> None:
        owner = people.owner()
        joined: list[Session] = []
        threads = [
            threading.Thread(
                target=lambda: joined.append(people.join(owner.invites["sender"], "crowd"))
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENT_S)
        assert len({session.participant_pub for session in joined}) == 1
        assert len(joined) == 4
        assert len(owner.participants()) == 2


class TestBadLinks:
    def test_an_altered_role_key(self, people: People) -> None:
        owner = people.owner()
        other = people.owner()
        link, foreign = owner.invites["sender"], other.invites["sender"]
        head, _, key = link.rpartition("rk=")
        assert key
        altered = f"{head}rk={foreign.rpartition('rk=')[2]}"
        with pytest.raises(ValidationError):
            people.join(altered, "stranger")
        assert len(owner.participants()) == 1

    def test_an_altered_session_key_shows_on_every_item(self, people: People) -> None:
        owner = people.owner()
        other = people.owner()
        link, foreign = owner.invites["observer"], other.invites["observer"]
        key = link.partition("k=")[2].partition("&")[0]
        wrong = foreign.partition("k=")[2].partition("&")[0]
        stranger = people.join(link.replace(f"k={key}", f"k={wrong}", 1), "stranger")
        owner.send_text("secret")
        assert stranger.items() == []
        [record] = stranger.records()
        assert record.status == "refused"
        assert "does not open" in (record.reason or "")
        assert any("refused" in warning for warning in stranger.warnings)

    def test_a_relay_without_that_session(self, people: People) -> None:
        link = people.owner().invites["sender"]
        other = "ax_" + "b" * 26
        with pytest.raises(SessionClosed) as caught:
            people.join(link.replace(link.split("/s/")[1][:29], other), "stranger")
        assert caught.value.code == "session_gone"
        assert people.relay_url in caught.value.message

    def test_a_cache_of_another_relay(self, people: People) -> None:
        owner = people.owner()
        people.join(owner.invites["sender"])
        moved = owner.invites["sender"].replace("127.0.0.1", "localhost")
        with pytest.raises(UsageError) as caught:
            people.join(moved)
        assert caught.value.code == "other_relay"

    @pytest.mark.parametrize("link", ["", "https://h/s/x", "https://h/s/ax_x#v=1", "nonsense"])
    def test_no_link_at_all(self, people: People, link: str) -> None:
        with pytest.raises(ValidationError):
            people.join(link)

    def test_nothing_secret_shows(self, people: People) -> None:
        owner = people.owner()
        shown = repr(owner) + repr(owner._core.membership) + json.dumps(list(owner.warnings))
        for link in owner.invites.values():
            for piece in link.split("#")[1].split("&"):
                value = piece.partition("=")[2]
                assert len(value) < 20 or value not in shown


class TestRoles:
    def test_what_a_role_may_not_do_is_refused_here(self, people: People) -> None:
        owner = people.owner()
        agent = people.join(owner.invites["sender"])
        watcher = people.join(owner.invites["observer"], "watcher")
        with pytest.raises(PolicyError):
            watcher.send_text("may I?")
        for act in (agent.close, agent.audit, lambda: agent.revoke("observer")):
            with pytest.raises(PolicyError):
                act()
        with pytest.raises(PolicyError):
            _ = agent.invites
        assert owner.items() == []

    def test_a_revoked_role_is_cut_off_and_its_link_void(self, people: People) -> None:
        owner = people.owner()
        agent = people.join(owner.invites["sender"])
        watcher = people.join(owner.invites["observer"], "watcher")
        owner.send_text("before")
        got: list[Item] = []
        stream = agent.stream(timeout=60)
        got.append(next(stream))
        thread = threading.Thread(target=lambda: got.extend(stream))
        thread.start()
        owner.revoke("sender")
        thread.join(PATIENT_S)
        assert not thread.is_alive()
        assert agent.closed is not None
        with pytest.raises(SessionClosed):
            agent.send_text("still here")
        with pytest.raises(RelayError) as caught:
            people.join(owner.invites["sender"], "another")
        assert caught.value.code == "revoked"
        # the others go on
        owner.send_text("after")
        assert texts(watcher.items()) == ["before", "after"]
        left = {p.display_name: p.left for p in owner.participants()}
        assert left == {"owner": False, "agent": True, "watcher": False}
        with pytest.raises(UsageError):
            owner.revoke("owner")

    def test_leaving(self, people: People) -> None:
        owner = people.owner()
        agent = people.join(owner.invites["sender"])
        agent.leave(delete_cache=True)
        assert agent.closed is not None
        assert not list(people.cache("agent").glob("ax_*"))
        with pytest.raises(SessionClosed):
            agent.send_text("gone")
        assert [p.left for p in owner.participants()] == [False, True]

    def test_the_audit_trail(self, people: People) -> None:
        owner = people.owner()
        watcher = people.join(owner.invites["observer"], "watcher")
        ref = owner.send_text("hello")
        trail = watcher.audit()
        assert all("event" in record for record in trail)
        assert ref.id in json.dumps(trail)


class TestTermsHold:
    def test_types_and_sizes_are_checked_before_sending(self, people: People) -> None:
        owner = people.owner(allowed_types=["text", "md"], max_item_bytes=2000)
        with pytest.raises(PolicyError):
            owner.send_file(b"print(1)", name="a.py")
        with pytest.raises(PolicyError) as caught:
            owner.send_text("x" * 3000)
        assert caught.value.code == "too_large"
        for data, name in ((b"\xff", "a.md"), (b"a\0", "a.md"), (b"x", "CON.md")):
            with pytest.raises((PolicyError, ValidationError)):
                owner.send_file(data, name=name)
        with pytest.raises(UsageError):
            owner.send_file(b"x", name="a.exe")
        with pytest.raises(UsageError):
            owner.send_file(b"x")
        with pytest.raises(UsageError):
            owner.send_text("x", refs=[{"id": "y"}])
        assert owner.items() == []

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"ttl": "31d"}, ValidationError),
            ({"ttl": "soon"}, UsageError),
            ({"mode": "other"}, UsageError),
            ({"allowed_types": ["exe"]}, UsageError),
            ({"job_limits": {"timeout_s": 5}}, UsageError),
            ({"mode": "execute", "job_limits": {"cpu": 5}}, UsageError),
            ({"mode": "execute", "job_limits": {"timeout_s": 0}}, UsageError),
            ({"mode": "execute", "job_limits": {"memory_mb": True}}, UsageError),
            ({"mode": "execute", "job_limits": {"kinds": ["perl"]}}, UsageError),
            ({"mode": "execute", "features": ["telepathy"]}, UsageError),
            ({"display_name": " "}, ValidationError),
            ({"display_name": "a\u202eb"}, ValidationError),
        ],
    )
    def test_terms_that_cannot_be(
        self, people: People, options: dict[str, object], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            people.owner(**options)

    def test_an_expired_session_reads_from_the_cache(
        self, people: People, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        owner = people.owner(ttl=1)
        owner.send_text("short life")
        owner.items()
        # the stream ends with the session, and says why
        assert texts(owner.stream(timeout=PATIENT_S, history=True)) == ["short life"]
        assert owner.closed is not None
        assert texts(owner.items()) == ["short life"]

    def test_item_times_are_clamped_into_the_session(
        self, people: People, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P-FLR-6."""
        from airlox.client import outbox

        owner = people.owner()
        monkeypatch.setattr(outbox, "now_ms", lambda: 5)
        owner.send_text("clock behind")
        monkeypatch.setattr(outbox, "now_ms", lambda: 10**15)
        owner.send_text("clock ahead")
        first, second = owner.items()
        assert first.created_at_ms == owner.manifest.created_at_ms
        assert second.created_at_ms == (owner.expires_at_ms or 0) - 1


def test_a_blob_that_left_the_relay_is_asked_back(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody stored it, so the relay let it go; a newcomer gets it from a holder."""
    monkeypatch.setattr(items_module, "RETRY_BLOBS_S", 0.1)
    owner = people.owner()
    agent = people.join(owner.invites["sender"])
    ref = owner.send_text("old news")
    assert texts(agent.items()) == ["old news"]
    newcomer = people.join(owner.invites["observer"], "newcomer")
    owner_listens = owner.stream(timeout=PATIENT_S)
    thread = threading.Thread(target=lambda: list(owner_listens))
    thread.start()
    try:
        item = next(newcomer.stream(timeout=PATIENT_S))
        assert (item.id, item.text) == (ref.id, "old news")
    finally:
        owner_listens.close()
        thread.join(PATIENT_S)


def test_the_same_for_asyncio(people: People, tmp_path: Path) -> None:
    async def scenario() -> list[str | None]:
        owner = await AsyncSession.create(people.relay_url, cache_dir=tmp_path / "a")
        async with owner:
            agent = await AsyncSession.join(owner.invites["sender"], cache_dir=tmp_path / "b")
            async with agent:
                await agent.send_text("hello")
                await agent.send_file(b"# fine", name="report.md")
                got: list[str | None] = []
                async for item in owner.stream(timeout=PATIENT_S):
                    got.append(item.text or item.name)
                    if len(got) == 2:
                        break
                assert len(await owner.participants()) == 2
                return got

    assert asyncio.run(scenario()) == ["hello", "report.md"]


def test_ctrl_c_ends_a_stream(people: People, tmp_path: Path) -> None:
    owner = people.owner()
    program = (
        "import sys\n"
        "from airlox import Session\n"
        "session = Session.join(sys.stdin.readline().strip(), cache_dir=sys.argv[1])\n"
        "try:\n"
        "    for item in session.stream(): print(item.text, flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "c")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(owner.invites["sender"] + "\n")
            process.stdin.flush()
            owner.send_text("go")
            assert process.stdout.readline() == "go\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            assert process.wait(PATIENT_S) == 0
        finally:
            process.kill()
