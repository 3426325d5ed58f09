"""Which user a root-started runner's jobs run as."""

from __future__ import annotations

import fcntl
import os
import pwd
from pathlib import Path

import pytest

from airlox.errors import SandboxError
from airlox.sandbox.linux import jobuser


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    return tmp_path / "locks"


def state(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has the account `airlox-job` is tested like one that has not."""
    monkeypatch.setattr(jobuser, "ACCOUNT", "airlox-job-that-nobody-has")


def test_a_free_uid_is_kept_for_the_next_start(tmp_path: Path, locks: Path) -> None:
    folder = state(tmp_path, "one")
    first = jobuser.choose(folder, None, lock_dir=locks)
    assert first.uid in jobuser.DYNAMIC_UIDS
    assert first.gid == first.uid
    assert first.lock_fd is not None
    os.close(first.lock_fd)
    assert jobuser.choose(folder, None, lock_dir=locks).uid == first.uid


def test_two_state_folders_never_share_one(tmp_path: Path, locks: Path) -> None:
    one = jobuser.choose(state(tmp_path, "one"), None, lock_dir=locks)
    two = jobuser.choose(state(tmp_path, "two"), None, lock_dir=locks)
    assert one.uid != two.uid


def test_nobody_gets_in_between_two_kinds_of_lock(
    tmp_path: Path, locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel lets go of the one lock before it gives the other: here somebody uses that."""
    one, two = (state(tmp_path, name) for name in ("one", "two"))
    monkeypatch.setattr(jobuser, "DYNAMIC_UIDS", jobuser.DYNAMIC_UIDS[:2])
    found: list[jobuser.JobUser] = []
    locking = fcntl.flock

    def flock(fd: int, how: int) -> None:
        if how == fcntl.LOCK_SH:
            monkeypatch.setattr(fcntl, "flock", locking)
            locking(fd, fcntl.LOCK_UN)
            found.append(jobuser.choose(two, None, lock_dir=locks))
        locking(fd, how)

    first = next(iter(jobuser._from_own_place(one)))
    (two / "job-uid").write_text(str(first))
    monkeypatch.setattr(fcntl, "flock", flock)
    found.append(jobuser.choose(one, None, lock_dir=locks))
    assert len({user.uid for user in found}) == 2


def test_each_folder_looks_from_a_place_of_its_own(tmp_path: Path) -> None:
    """So a newcomer hardly ever takes the uid of a runner that is away."""
    found = {
        jobuser.choose(state(tmp_path, f"{n}"), None, lock_dir=tmp_path / f"locks{n}").uid
        for n in range(4)
    }
    assert len(found) > 1


def test_whoever_works_on_the_same_folder_shares_it(tmp_path: Path, locks: Path) -> None:
    folder = state(tmp_path, "one")
    first = jobuser.choose(folder, None, lock_dir=locks)
    assert jobuser.choose(folder, None, lock_dir=locks).uid == first.uid


def test_a_kept_uid_that_another_took_is_refused(tmp_path: Path, locks: Path) -> None:
    one = jobuser.choose(state(tmp_path, "one"), None, lock_dir=locks)
    two = state(tmp_path, "two")
    (two / "job-uid").write_text(str(one.uid))
    with pytest.raises(SandboxError) as caught:
        jobuser.choose(two, None, lock_dir=locks)
    assert caught.value.code == "root_no_user"


@pytest.mark.parametrize("text", ["", "0", "root", "1000", "-5", "9" * 100])
def test_a_kept_uid_out_of_range_is_not_believed(tmp_path: Path, locks: Path, text: str) -> None:
    folder = state(tmp_path, "one")
    (folder / "job-uid").write_text(text)
    assert jobuser.choose(folder, None, lock_dir=locks).uid in jobuser.DYNAMIC_UIDS


def test_a_named_account_is_used(tmp_path: Path, locks: Path) -> None:
    entry = next(entry for entry in pwd.getpwall() if entry.pw_uid != 0)
    user = jobuser.choose(tmp_path, entry.pw_name, lock_dir=locks)
    assert (user.uid, user.gid, user.lock_fd) == (entry.pw_uid, entry.pw_gid, None)


@pytest.mark.parametrize("name", ["root", "nobody-has-this-name"])
def test_root_and_strangers_are_refused(tmp_path: Path, locks: Path, name: str) -> None:
    with pytest.raises(SandboxError) as caught:
        jobuser.choose(tmp_path, name, lock_dir=locks)
    assert caught.value.code == "root_no_user"
