"""The spool: nothing is lost, nothing is posted twice under another id, order is kept."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from airlox import safefs
from airlox.errors import ConnectionLost, RelayError, SessionClosed, StorageError
from airlox.protocol.digest import hash_of
from airlox.protocol.encoding import ItemId, b64u_encode
from airlox.protocol.item import ItemRef, SealedItem, parse_frame
from airlox.runner.spool import Parcel, Spool, Started
from support.small_disk import small_disk


def identifier(number: int) -> ItemId:
    return ItemId(b64u_encode(bytes([number]) * 16))


def ref(number: int) -> ItemRef:
    return ItemRef(blob_sha256=b64u_encode(bytes([number]) * 32), id=identifier(number))


def item(number: int, text: str) -> SealedItem:
    return SealedItem(envelope=text, blob=b"sealed", ref=ref(number))


def parcel(job: int, *files: str) -> Parcel:
    sealed = tuple(item(100 + count, name) for count, name in enumerate(files))
    result = item(job, f"result {job}")
    return Parcel(
        identifier(job), sealed, result, item(job + 50, f"bare {job}") if files else result
    )


def started(job: int) -> Started:
    return Started(job=ref(job), code_sha256="c", input_sha256="i", tree=None, started_at_ms=1)


class Relay:
    """Takes frames; `refuses` maps what an envelope starts with to the error it gets."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.refuses: dict[str, list[Exception]] = {}
        self.pauses = 0
        self.patience = 1000
        self.keeps_epoch = False
        self.gave_up: list[str] = []

    def post(self, frame: bytes) -> None:
        text, _ = parse_frame(frame)
        errors = self.refuses.get(text.split()[0], [])
        if errors:
            raise errors.pop(0)
        self.got.append(text)

    def pause(self, seconds: float) -> bool:
        self.pauses += 1
        return self.pauses < self.patience

    def renew(self, frame: bytes, renewed: dict[str, ItemRef], refused: RelayError) -> SealedItem:
        """The same words, marked as sealed anew, and with how many such files it may name."""
        if self.keeps_epoch:
            raise refused
        document, blob = parse_frame(frame)
        text = f"{document} again, knows {len(renewed)}"
        named = ItemRef(blob_sha256=hash_of(text.encode()), id=identifier(len(self.got)))
        return SealedItem(text, blob, named)

    def hear(self, job: ItemId, why: str) -> None:
        self.gave_up.append(why)


@pytest.fixture
def relay() -> Relay:
    return Relay()


def spool_in(folder: Path, relay: Relay) -> Spool:
    return Spool(folder, relay.post, relay.pause, relay.renew)


def test_files_go_before_their_result_and_the_oldest_first(tmp_path: Path, relay: Relay) -> None:
    spool = spool_in(tmp_path, relay)
    assert spool.add(parcel(1, "file-a", "file-b"))
    assert spool.add(parcel(2))
    assert not spool.is_empty()
    spool.post_all(relay.hear)
    assert relay.got == ["file-a", "file-b", "result 1", "result 2"]
    assert spool.is_empty()
    assert list((tmp_path / "spool").iterdir()) == []


def old_epoch() -> RelayError:
    return RelayError(409, "old_epoch", "x")


class TestAnEpochThatEnded:
    """What was sealed before a revocation is not lost: it goes out under the new key."""

    @pytest.mark.parametrize("on_disk", [True, False])
    def test_files_and_then_the_result_that_names_them(
        self, tmp_path: Path, relay: Relay, on_disk: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spool = spool_in(tmp_path, relay)
        if not on_disk:
            monkeypatch.setattr(spool, "_store", _no_room)
        assert spool.add(parcel(1, "file-a", "file-b")) is on_disk
        relay.refuses = {"file-b": [old_epoch()], "result": [old_epoch()]}
        spool.post_all(relay.hear)
        assert relay.got == ["file-a", "file-b again, knows 0", "result 1 again, knows 1"]
        assert spool.is_empty()

    def test_two_in_a_row(self, tmp_path: Path, relay: Relay) -> None:
        spool = spool_in(tmp_path, relay)
        spool.add(parcel(1))
        relay.refuses = {"result": [old_epoch(), old_epoch()]}
        spool.post_all(relay.hear)
        assert relay.got == ["result 1 again, knows 0 again, knows 1"]

    def test_a_restart_remembers_what_files_are_named_by(
        self, tmp_path: Path, relay: Relay
    ) -> None:
        first = spool_in(tmp_path, relay)
        first.add(parcel(1, "file-a"))
        relay.refuses = {"file-a": [old_epoch()], "result": [ConnectionLost("gone")] * 5}
        relay.patience = 3
        with pytest.raises(ConnectionLost):
            first.post_all(relay.hear)
        relay.refuses = {"result": [old_epoch()]}
        relay.patience = 1000
        spool_in(tmp_path, relay).post_all(relay.hear)
        assert relay.got == ["file-a again, knows 0", "result 1 again, knows 1"]

    def test_a_relay_that_shows_no_newer_one_gets_it_no_more(
        self, tmp_path: Path, relay: Relay
    ) -> None:
        spool = spool_in(tmp_path, relay)
        spool.add(parcel(1))
        relay.keeps_epoch, relay.refuses = True, {"result": [old_epoch()]}
        spool.post_all(relay.hear)
        assert relay.got == []
        assert relay.gave_up == ['relay answered 409 old_epoch: "x"']


def _no_room(_: Parcel) -> None:
    raise StorageError("no room")


def test_it_is_on_the_disk_and_private(tmp_path: Path, relay: Relay) -> None:
    spool_in(tmp_path, relay).add(parcel(1, "file-a"))
    files = [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]
    assert len(files) == 3
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_a_restart_goes_on_with_the_same_items(tmp_path: Path, relay: Relay) -> None:
    relay.refuses["result"] = [ConnectionLost("gone")] * 5
    relay.patience = 3
    first = spool_in(tmp_path, relay)
    first.add(parcel(1, "file-a"))
    with pytest.raises(ConnectionLost):
        first.post_all(relay.hear)
    assert relay.got == ["file-a"]
    relay.refuses.clear()
    again = spool_in(tmp_path, relay)
    again.add(parcel(2))
    again.post_all(relay.hear)
    assert relay.got == ["file-a", "result 1", "result 2"]


@pytest.mark.parametrize(
    "error", [ConnectionLost("gone"), RelayError(503, "busy", "x"), RelayError(507, "full", "x")]
)
def test_what_may_pass_is_waited_out(tmp_path: Path, relay: Relay, error: Exception) -> None:
    relay.refuses["result"] = [error, error]
    spool = spool_in(tmp_path, relay)
    spool.add(parcel(1))
    spool.post_all(relay.hear)
    assert (relay.got, relay.pauses, relay.gave_up) == (["result 1"], 2, [])


def test_whoever_counts_slots_hears_when_a_result_is_out(tmp_path: Path, relay: Relay) -> None:
    spool = spool_in(tmp_path, relay)
    settled: list[ItemId] = []
    spool.on_settled = settled.append
    relay.refuses["result"] = [RelayError(403, "policy", "no")]
    spool.add(parcel(1))
    spool.add(parcel(2))
    assert settled == []
    spool.post_all(relay.hear)
    assert settled == [identifier(1), identifier(2)]


def test_a_duplicate_has_arrived_before(tmp_path: Path, relay: Relay) -> None:
    relay.refuses["result"] = [RelayError(409, "duplicate", "known")]
    spool = spool_in(tmp_path, relay)
    spool.add(parcel(1))
    spool.post_all(relay.hear)
    assert spool.is_empty()
    assert relay.gave_up == []


def test_a_file_that_is_refused_sends_the_bare_result(tmp_path: Path, relay: Relay) -> None:
    relay.refuses["file-b"] = [RelayError(413, "too_large", "no")]
    spool = spool_in(tmp_path, relay)
    spool.add(parcel(1, "file-a", "file-b"))
    spool.post_all(relay.hear)
    assert relay.got == ["file-a", "bare 1"]


@pytest.mark.parametrize("on_the_disk", [True, False])
def test_a_file_for_which_there_is_no_room_keeps_no_result(
    tmp_path: Path, relay: Relay, monkeypatch: pytest.MonkeyPatch, on_the_disk: bool
) -> None:
    relay.refuses["file-b"] = [RelayError(507, "full", "no room")] * 100
    spool = spool_in(tmp_path, relay)
    if not on_the_disk:
        monkeypatch.setattr(spool, "_store", refuse_to_store)
    spool.add(parcel(1, "file-a", "file-b"))
    spool.add(parcel(2))
    spool.post_all(relay.hear)
    assert relay.got == ["file-a", "bare 1", "result 2"]


def test_a_file_waits_for_room_that_will_come(tmp_path: Path, relay: Relay) -> None:
    full = RelayError(507, "full", "the relay's disk is nearly full", retry_after_s=5)
    relay.refuses["file-b"] = [full] * 100
    spool = spool_in(tmp_path, relay)
    spool.add(parcel(1, "file-b"))
    spool.post_all(relay.hear)
    assert (relay.got, relay.pauses) == (["file-b", "result 1"], 100)


def refuse_to_store(_: object) -> None:
    raise StorageError("the disk is full")


def test_a_result_that_is_refused_is_given_up_and_blocks_nothing(
    tmp_path: Path, relay: Relay
) -> None:
    relay.refuses["result"] = [RelayError(403, "policy", "no")]
    spool = spool_in(tmp_path, relay)
    spool.add(parcel(1))
    spool.add(parcel(2))
    spool.post_all(relay.hear)
    assert relay.got == ["result 2"]
    assert len(relay.gave_up) == 1


def test_a_damaged_parcel_blocks_nothing(tmp_path: Path, relay: Relay) -> None:
    spool = spool_in(tmp_path, relay)
    spool.add(parcel(1))
    (file,) = (path for path in (tmp_path / "spool").rglob("500-*"))
    file.unlink()
    file.mkdir()
    spool.add(parcel(2))
    spool.post_all(relay.hear)
    assert relay.got == ["result 2"]
    assert len(relay.gave_up) == 1


@pytest.mark.parametrize("status", [401, 404, 410])
def test_the_end_of_the_session_ends_it(tmp_path: Path, relay: Relay, status: int) -> None:
    relay.refuses["result"] = [RelayError(status, "gone", "x")]
    spool = spool_in(tmp_path, relay)
    spool.add(parcel(1))
    with pytest.raises(SessionClosed):
        spool.post_all(relay.hear)


def test_a_full_disk_keeps_the_result_in_memory(
    tmp_path: Path, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = spool_in(tmp_path, relay)
    spool.begin(started(1))

    def full(*_: object, **__: object) -> None:
        raise StorageError("no room", code="disk_full")

    with monkeypatch.context() as patched:
        patched.setattr(safefs, "write_private", full)
        assert not spool.add(parcel(1, "file-a"))
    assert not spool.is_empty()
    assert spool.lost() == []
    spool.begin(started(1))  # what `lost` saw to is there in life
    spool.post_all(relay.hear)
    assert relay.got == ["file-a", "result 1"]
    assert spool_in(tmp_path, relay).lost() == [], "it has its result"


def test_a_disk_that_became_read_only_stops_no_result(tmp_path: Path, relay: Relay) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        spool = spool_in(disk, relay)
        spool.begin(started(3))
        spool.add(parcel(1, "file-a"))
        spool.add(parcel(2))
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True, timeout=60)
        assert not spool.add(parcel(3))
        spool.post_all(relay.hear)
        assert relay.got == ["file-a", "result 1", "result 2", "result 3"]
        assert relay.gave_up == []
        assert spool.is_empty()


def test_an_unfinished_parcel_is_not_posted(tmp_path: Path, relay: Relay) -> None:
    torn = tmp_path / "spool/.00000001-x"
    torn.mkdir(parents=True)
    (torn / "500-x").write_bytes(b"half")
    spool = spool_in(tmp_path, relay)
    spool.post_all(relay.hear)
    assert relay.got == []
    assert not torn.exists()


class TestLost:
    def test_a_job_that_was_begun_and_has_no_result(self, tmp_path: Path, relay: Relay) -> None:
        spool_in(tmp_path, relay).begin(started(1))
        assert spool_in(tmp_path, relay).lost() == [started(1)]

    def test_a_job_with_a_result_is_not_lost(self, tmp_path: Path, relay: Relay) -> None:
        spool = spool_in(tmp_path, relay)
        spool.begin(started(1))
        spool.add(parcel(1))
        assert spool.lost() == []

    def test_a_result_beside_the_note_wins(self, tmp_path: Path, relay: Relay) -> None:
        spool = spool_in(tmp_path, relay)
        spool.add(parcel(1))
        spool.begin(started(1))  # as if the runner died between the two
        assert spool.lost() == []

    def test_a_damaged_note_is_dropped(self, tmp_path: Path, relay: Relay) -> None:
        spool = spool_in(tmp_path, relay)
        (tmp_path / "started" / identifier(1)).write_bytes(b"{")
        (tmp_path / "started" / "no id").write_bytes(b"{}")
        assert spool.lost() == []
        assert list((tmp_path / "started").iterdir()) == []
