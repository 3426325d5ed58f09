"""The cache: layout of 0.1.0, damaged files, several processes, the sweep, privacy."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox import safefs
from airlox.client import cache as cache_module
from airlox.client.cache import EXPIRED_KEPT_MS, Identity, SessionCache, default_root, sweep
from airlox.client.filelock import file_lock
from airlox.errors import StorageError
from airlox.protocol.view import Event
from support.world import HOUR_MS, NOW_MS, World

SID = "ax_" + "a" * 26
IDENTITY = Identity(bytes(range(32)), "tok", "https://relay.example")


@pytest.fixture
def cache(tmp_path: Path) -> SessionCache:
    made = SessionCache(tmp_path / "root", SID)
    made.make()
    return made


def events(*numbers: int) -> list[Event]:
    return [Event(n, "item", {"envelope": f'{{"n":{n}}}', "more": [n]}) for n in numbers]


def modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
        for path in sorted(folder.rglob("*"))
    }


def test_where_caches_live() -> None:
    assert default_root({"AIRLOX_CACHE_DIR": "/x", "XDG_CACHE_HOME": "/y"}) == "/x"
    assert default_root({"XDG_CACHE_HOME": "/y"}) == "/y/airlox"
    assert default_root({}) == os.path.expanduser("~/.cache/airlox")
    assert default_root({"XDG_CACHE_HOME": "here"}) == os.path.expanduser("~/.cache/airlox")


def test_a_user_without_a_home_must_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(StorageError, match="AIRLOX_CACHE_DIR"):
        default_root({})


def test_the_layout_is_that_of_0_1_0(cache: SessionCache, tmp_path: Path) -> None:
    cache.save_manifest('{"manifest":{}}')
    cache.save_identity("owner", IDENTITY)
    cache.save_identity("runner-box", IDENTITY)
    cache.append_events(events(0, 1))
    cache.save_blob("item-id", b"sealed")
    folder = tmp_path / "root" / SID
    assert (folder / "manifest.json").read_text() == '{"manifest":{}}'
    assert json.loads((folder / "identity-owner.json").read_text()) == {
        "participant_seed": bytes(range(32)).hex(),
        "token": "tok",
        "base_url": "https://relay.example",
        "role": "owner",
    }
    assert "role" not in json.loads((folder / "identity-runner-box.json").read_text())
    lines = (folder / "events.jsonl").read_text().splitlines()
    assert [sorted(json.loads(line)) for line in lines] == [["data", "kind", "seq"]] * 2
    assert (folder / "blobs" / "item-id").read_bytes() == b"sealed"


@pytest.mark.parametrize("umask", [0, 0o022])
def test_everything_is_private(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        cache = SessionCache(tmp_path / "root" / "deep", SID)
        cache.make()
        cache.save_manifest("{}")
        cache.save_identity("owner", IDENTITY)
        cache.append_events(events(0))
        cache.save_blob("b", b"x")
        cache.save_state("s", b"x")
        sweep(str(tmp_path / "root" / "deep"), NOW_MS)
        with file_lock(cache.state_path("lock"), "it"):
            pass
    finally:
        os.umask(old)
    assert len(modes(tmp_path / "root")) == 12
    assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o700
    for name, mode in modes(tmp_path / "root").items():
        is_folder = (tmp_path / "root" / name).is_dir()
        assert mode == (0o700 if is_folder else 0o600), name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_an_identity_that_another_user_left_is_refused(cache: SessionCache) -> None:
    """Whoever may write to the root could otherwise make us somebody it knows the keys of."""
    cache.save_identity("owner", IDENTITY)
    os.chown(os.path.join(cache.folder, "identity-owner.json"), 12345, 12345)
    with pytest.raises(StorageError) as caught:
        cache.load_identity("owner")
    assert caught.value.code == "not_private"


def test_a_relay_that_talks_without_end_fills_no_disk(
    cache: SessionCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "EVENTS_BYTES", 2000)
    for number in range(100):
        cache.append_events(events(number))
    path = os.path.join(cache.folder, "events.jsonl")
    assert 1500 < os.path.getsize(path) <= 2000
    again = SessionCache(os.path.dirname(cache.folder), SID)
    kept = again.load_events()
    assert kept == events(*range(len(kept)))
    # one that is longer already, by another hand, is as good as none
    with open(path, "ab") as file:
        file.write(b"x" * 2000)
    assert SessionCache(os.path.dirname(cache.folder), SID).load_events() == []
    again.append_events(events(*range(200)))
    assert os.path.getsize(path) <= 4000


def test_a_shared_folder_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    SessionCache(tmp_path, SID).make()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / SID).stat().st_mode) == 0o700


def test_an_identity_survives_and_hides(cache: SessionCache) -> None:
    cache.save_identity("sender", IDENTITY)
    assert cache.load_identity("sender") == IDENTITY
    assert cache.load_identity("owner") is None
    assert "tok" not in repr(IDENTITY)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"participant_seed":"zz","token":"t","base_url":"b"}',
        b'{"participant_seed":"00","token":"t","base_url":"b"}',
        json.dumps({"participant_seed": "00" * 32, "token": "a\r\nb", "base_url": "b"}).encode(),
        b"[" * 50_000,
    ],
)
def test_a_damaged_identity_is_none(cache: SessionCache, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "root" / SID / "identity-owner.json").write_bytes(content)
    assert cache.load_identity("owner") is None


def test_a_link_in_place_of_a_file_is_not_followed(cache: SessionCache, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"{}")
    (tmp_path / "root" / SID / "manifest.json").symlink_to(tmp_path / "secret")
    with pytest.raises(StorageError):
        cache.load_manifest()


class TestEvents:
    def test_they_come_back_as_they_were(self, cache: SessionCache, tmp_path: Path) -> None:
        cache.append_events(events(0, 1, 2))
        assert SessionCache(tmp_path / "root", SID).load_events() == events(0, 1, 2)
        cache.append_events(events(1, 2, 3))
        assert cache.load_events() == events(0, 1, 2, 3)

    def test_what_does_not_continue_the_numbering_is_not_stored(self, cache: SessionCache) -> None:
        cache.append_events(events(0, 2))
        cache.append_events(events(5))
        assert cache.load_events() == events(0)

    def test_another_process_may_append(self, cache: SessionCache, tmp_path: Path) -> None:
        other = SessionCache(tmp_path / "root", SID)
        cache.append_events(events(0))
        other.append_events(events(0, 1))
        cache.append_events(events(1, 2))
        other.append_events(events(1, 2, 3))
        assert cache.load_events() == events(0, 1, 2, 3)
        lines = (tmp_path / "root" / SID / "events.jsonl").read_bytes().splitlines()
        assert len(lines) == 4

    @pytest.mark.parametrize(
        "junk", [b"", b"\n\n", b"nonsense\n", b"\xff\xfe\n", b'{"seq":1,"kind":"it', b"[" * 9999]
    )
    def test_torn_lines_only_cost_a_second_fetch(
        self, cache: SessionCache, tmp_path: Path, junk: bytes
    ) -> None:
        cache.append_events(events(0))
        path = tmp_path / "root" / SID / "events.jsonl"
        path.write_bytes(path.read_bytes() + junk)
        fresh = SessionCache(tmp_path / "root", SID)
        assert fresh.load_events() == events(0)
        fresh.append_events(events(1, 2))
        assert SessionCache(tmp_path / "root", SID).load_events() == events(0, 1, 2)

    @given(cut=st.integers(0, 400))
    def test_a_file_cut_anywhere_goes_on(self, cut: int) -> None:
        import tempfile

        with tempfile.TemporaryDirectory() as root:
            cache = SessionCache(root, SID)
            cache.make()
            cache.append_events(events(*range(6)))
            path = Path(root, SID, "events.jsonl")
            path.write_bytes(path.read_bytes()[:cut])
            held = cache.load_events()
            assert held == events(*range(6))[: len(held)]
            cache.append_events(events(*range(6)))
            assert cache.load_events() == events(*range(6))

    def test_many_processes_lose_nothing(self, tmp_path: Path) -> None:
        root = tmp_path / "root"
        SessionCache(root, SID).make()
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=_append_all, args=(str(root), n)) for n in (1, 2, 3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0
        assert SessionCache(root, SID).load_events() == events(*range(40))
        assert len((root / SID / "events.jsonl").read_bytes().splitlines()) == 40


def _append_all(root: str, step: int) -> None:
    cache = SessionCache(root, SID)
    for start in range(0, 40, step):
        cache.append_events(events(*range(start, min(start + step, 40))))


def test_blobs_have_the_size_they_should(cache: SessionCache) -> None:
    cache.save_blob("b", b"12345")
    assert cache.load_blob("b", 5) == b"12345"
    assert cache.load_blob("b", 4) is None
    assert cache.load_blob("b", 6) is None
    assert cache.load_blob("c", 1) is None


def test_state_of_our_own(cache: SessionCache) -> None:
    assert cache.load_state("x", 9) is None
    cache.save_state("x", b"abc")
    assert cache.load_state("x", 9) == b"abc"


def test_a_held_lock_is_named(cache: SessionCache, monkeypatch: pytest.MonkeyPatch) -> None:
    from airlox.client import filelock

    with cache.locked(), pytest.raises(StorageError) as caught:  # noqa: SIM117
        with filelock.file_lock(os.path.join(cache.folder, ".lock"), "it", timeout_s=0.05):
            pytest.fail("held twice")
    assert caught.value.code == "locked"
    with cache.locked():
        pass


LATE_MS = NOW_MS + 2 * HOUR_MS + EXPIRED_KEPT_MS


class TestSweep:
    def fill(self, root: Path, world: World) -> Path:
        cache = SessionCache(root, world.manifest.session_id)
        cache.make()
        cache.save_manifest(world.document)
        return Path(cache.folder)

    def test_expired_caches_go_and_others_stay(self, tmp_path: Path) -> None:
        expired = self.fill(tmp_path, World())
        eternal = self.fill(tmp_path, World(ttl_ms=None))
        young = self.fill(tmp_path, World(ttl_ms=3 * HOUR_MS))
        runner = SessionCache(tmp_path, SID)
        runner.make()
        (tmp_path / "machines").mkdir()
        sweep(str(tmp_path), LATE_MS)
        assert not expired.exists()
        assert eternal.exists()
        assert young.exists()
        assert Path(runner.folder).exists()
        assert (tmp_path / "machines").exists()

    def test_a_clock_that_is_days_ahead_costs_no_identity(self, tmp_path: Path) -> None:
        live = self.fill(tmp_path, World())
        sweep(str(tmp_path), NOW_MS + 2 * 24 * HOUR_MS)
        assert live.exists()

    def test_at_most_once_an_hour(self, tmp_path: Path) -> None:
        sweep(str(tmp_path), NOW_MS)
        expired = self.fill(tmp_path, World())
        sweep(str(tmp_path), LATE_MS)
        assert expired.exists()
        os.utime(tmp_path / ".swept", (0, 0))
        sweep(str(tmp_path), LATE_MS)
        assert not expired.exists()

    def test_what_killed_processes_left_goes(self, tmp_path: Path) -> None:
        cache = SessionCache(tmp_path, SID)
        cache.make()
        cache.save_blob("kept", b"x")
        blobs = Path(cache.folder, "blobs")
        old, young = blobs / f"{safefs.TEMPORARY}old", blobs / f"{safefs.TEMPORARY}young"
        for path in (old, young):
            path.write_bytes(b"half")
        long_ago = NOW_MS / 1000
        for path in (old, blobs / "kept"):
            os.utime(path, (long_ago, long_ago))
        sweep(str(tmp_path), NOW_MS)
        assert sorted(os.listdir(blobs)) == [young.name, "kept"]

    def test_it_never_raises(self, tmp_path: Path) -> None:
        sweep(str(tmp_path / "missing"), NOW_MS)
        odd = SessionCache(tmp_path, SID)
        odd.make()
        odd.save_manifest('{"manifest":{"expires_at_ms":"soon"}}')
        sweep(str(tmp_path), NOW_MS)
        assert Path(odd.folder).exists()

    def test_a_link_to_elsewhere_is_left_alone(self, tmp_path: Path) -> None:
        elsewhere = self.fill(tmp_path / "elsewhere", World())
        root = tmp_path / "root"
        root.mkdir()
        (root / SID).symlink_to(elsewhere)
        sweep(str(root), LATE_MS)
        assert (elsewhere / "manifest.json").exists()


def test_delete_removes_all(cache: SessionCache) -> None:
    cache.save_manifest("{}")
    cache.delete()
    assert not Path(cache.folder).exists()
    assert cache_module.SessionCache(os.path.dirname(cache.folder), SID).load_events() == []
