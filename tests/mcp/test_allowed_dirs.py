"""The one way of tools to files: what may be allowed, and attempts to get out of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from airlox.errors import AirloxError, StorageError, UsageError
from airlox.mcp.allowed_dirs import AllowedDirs
from airlox.safefs import save_new_at

SECRET = b"not for tools"
MUCH = 1 << 20


class House:
    """An allowed folder with files, and around it what no tool may reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.cache = folder / "cache"
        self.outside = folder / "outside"
        for path in (self.work / "sub", self.cache, self.outside):
            path.mkdir(parents=True)
        (self.work / "sub" / "a.md").write_bytes(b"a")
        (self.outside / "secret.md").write_bytes(SECRET)
        (self.cache / "owner.md").write_bytes(SECRET)

    def dirs(self, *allowed: Path) -> AllowedDirs:
        return AllowedDirs.of([str(path) for path in allowed or (self.work,)], [str(self.cache)])


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


# -- what may be allowed ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allow", "private", "says"),
    [
        ("/", "cache", "home folder or holds it"),
        ("home", "cache", "home folder"),
        (".", "cache", "home folder or holds it"),
        ("/proc", "cache", "system"),
        ("/dev/shm", "cache", "system"),
        ("cache", "cache", "own folder"),
        ("cache/inner", "cache", "own folder"),
        ("work", "work/state", "own folder"),
        ("link", "cache", "own folder"),
        ("work", "link-to-work/state", "own folder"),
        ("work/sub/a.md", "cache", "no folder"),
        ("nothing", "cache", "no folder"),
    ],
)
def test_folders_that_are_never_allowed(
    house: House, monkeypatch: pytest.MonkeyPatch, allow: str, private: str, says: str
) -> None:
    home = house.folder / "home"
    for folder in (home, house.cache / "inner", house.work / "state"):
        folder.mkdir()
    (house.folder / "link").symlink_to(house.cache)
    (house.folder / "link-to-work").symlink_to(house.work)
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(UsageError, match=says) as refusal:
        AllowedDirs.of([str(house.folder / allow)], [str(house.folder / private)])
    assert refusal.value.code == "allow_dir"
    assert "--allow-dir" in refusal.value.message


def test_a_private_folder_that_is_not_there_yet_counts(house: House) -> None:
    with pytest.raises(UsageError, match="own folder"):
        AllowedDirs.of([str(house.work)], [str(house.work / "cache-to-be")])


def test_without_a_flag_the_working_directory_is_allowed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(house.work)
    assert AllowedDirs.of([], [str(house.cache)]).read("sub/a.md", MUCH) == ("a.md", b"a")


@pytest.mark.parametrize("place", ["home", "/", "cache"])
def test_in_home_and_root_file_tools_are_off_and_say_which_flag(
    house: House, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    home = house.folder / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(house.folder / place)
    dirs = AllowedDirs.of([], [str(house.cache)])
    for attempt in (lambda: dirs.read("a.md", MUCH), lambda: dirs.folder(".").__enter__()):
        with pytest.raises(UsageError) as refusal:
            attempt()
        assert refusal.value.code == "no_allowed_dir"
        assert "--allow-dir" in str(refusal.value.hint)


def test_a_working_directory_that_is_gone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = house.folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="is no folder"):
        AllowedDirs.of([], [str(house.cache)]).read("a.md", MUCH)


# -- ways in ----------------------------------------------------------------------------------


def test_paths_from_the_first_folder_absolute_ones_and_those_by_another_name(house: House) -> None:
    (house.folder / "nickname").symlink_to(house.work)
    dirs = house.dirs(house.folder / "nickname")
    real = os.path.realpath(house.work)
    for path in (
        "sub/a.md",
        "./sub//a.md",
        f"{real}/sub/a.md",
        f"{house.folder}/nickname/sub/a.md",
    ):
        assert dirs.read(path, MUCH) == ("a.md", b"a")
    with dirs.folder(f"{house.folder}/nickname/sub") as folder:
        assert folder.path == f"{real}/sub"


def test_folders_are_made_on_the_way(house: House) -> None:
    dirs = house.dirs()
    with pytest.raises(StorageError), dirs.folder("new/inner"):
        pass
    with dirs.folder("new/inner", make=True) as folder:
        assert save_new_at(folder.fd, "a.md", b"1") == "a.md"
        assert save_new_at(folder.fd, "a.md", b"2") == "a-1.md"
    assert (house.work / "new/inner/a.md").read_bytes() == b"1"


# -- ways out ---------------------------------------------------------------------------------


def _link(house: House) -> str:
    (house.work / "l.md").symlink_to(house.outside / "secret.md")
    return "l.md"


def _link_within(house: House) -> str:
    (house.work / "l.md").symlink_to("sub/a.md")
    return "l.md"


def _folder_link(house: House) -> str:
    (house.work / "l").symlink_to(house.outside)
    return "l/secret.md"


def _hard_link(house: House) -> str:
    os.link(house.outside / "secret.md", house.work / "h.md")
    return "h.md"


def _fifo(house: House) -> str:
    os.mkfifo(house.work / "f.md")
    return "f.md"


def _moved_in(house: House) -> str:
    house.cache.rename(house.work / "c")
    house.cache.symlink_to(house.work / "c")
    return "c/owner.md"


@pytest.mark.parametrize(
    "attack",
    [
        _link,
        _link_within,
        _folder_link,
        _hard_link,
        _fifo,
        _moved_in,
        lambda house: f"{house.outside}/secret.md",
        lambda house: "../outside/secret.md",
        lambda house: "sub/../../outside/secret.md",
        lambda house: f"{house.work}/../outside/secret.md",
        lambda house: f"{house.work}-not/secret.md",
        lambda house: f"/{house.outside}/secret.md",
        lambda house: "/proc/self/cwd/secret.md",
        lambda house: f"/proc/self/root{house.outside}/secret.md",
        lambda house: "/dev/stdin",
        lambda house: "sub",
        lambda house: ".",
        lambda house: "",
        lambda house: "sub/a.md/x",
        lambda house: "a\0.md",
        lambda house: "~/secret.md",
        lambda house: "x" * 300,
    ],
)
def test_no_path_reads_what_is_not_a_plain_file_in_the_folder(
    house: House, attack: Callable[[House], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = house.dirs()
    monkeypatch.chdir(house.outside)
    path = attack(house)
    with pytest.raises(AirloxError) as refusal:
        dirs.read(path, MUCH)
    assert refusal.value.hint


@pytest.mark.parametrize("path", ["l", "l/new", "../outside", "/proc/self/cwd"])
def test_nothing_is_written_through_a_link(
    house: House, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = house.dirs()
    monkeypatch.chdir(house.outside)
    (house.work / "l").symlink_to(house.outside)
    with pytest.raises(AirloxError), dirs.folder(path, make=True):
        raise AssertionError("it was opened")
    assert os.listdir(house.outside) == ["secret.md"]


def test_a_file_that_is_too_large(house: House) -> None:
    (house.work / "big.md").write_bytes(bytes(5000))
    with pytest.raises(StorageError) as refusal:
        house.dirs().read("big.md", 4999)
    assert refusal.value.code == "too_large"
    assert house.dirs().read("big.md", 5000)[1] == bytes(5000)


def test_whoever_swaps_folder_and_link_wins_nothing(house: House) -> None:
    """A folder is a link to the outside every other moment."""
    dirs = house.dirs()
    swapped, real, link = (house.work / name for name in ("sub", "real", "link"))
    (swapped / "secret.md").write_bytes(b"harmless")
    link.symlink_to(house.outside)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            swapped.rename(real)
            link.rename(swapped)
            swapped.rename(link)
            real.rename(swapped)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for number in range(400):
            try:
                assert dirs.read("sub/secret.md", MUCH)[1] == b"harmless"
                with dirs.folder("sub") as folder:
                    save_new_at(folder.fd, f"{number}.md", b"")
            except (StorageError, UsageError):
                continue
    finally:
        stop.set()
        thread.join()
    assert os.listdir(house.outside) == ["secret.md"]


def test_the_top_of_a_tree_must_be_allowed(house: House) -> None:
    dirs = house.dirs(house.work / "sub")
    found = os.stat(house.work / "sub")
    assert dirs.check_tree_root(str(house.work / "sub")) == (found.st_dev, found.st_ino)
    with pytest.raises(UsageError) as refusal:
        dirs.check_tree_root(str(house.work))
    assert "--allow-dir" in str(refusal.value.hint)
