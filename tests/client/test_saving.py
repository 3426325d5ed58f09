"""Out files of a hostile runner on their way to the disk: never outside, never over anything."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.client.result import OutFile, Result
from airlox.errors import AirloxError, StorageError, ValidationError
from airlox.protocol.item import ItemRef
from airlox.tree.beneath import opened_root
from support.archives import Member, build_zip

REF = ItemRef(blob_sha256="A" * 43, id="A" * 22)
LINK = 0o120777


def result(*members: Member, image: bytes = b"png") -> Result:
    archive = build_zip(*members)
    files = (
        OutFile("a.png", len(image), REF, lambda ref: image),
        OutFile("out.zip", len(archive), REF, lambda ref: archive),
    )
    return Result(job="j", status="completed", exit_code=0, reason=None, out_files=files)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Nothing appears beside it, whatever a test does."""
    folder = tmp_path / "save"
    folder.mkdir()
    (tmp_path / "outside").mkdir()
    yield folder
    assert sorted(os.listdir(tmp_path)) == ["outside", "save"]
    assert os.listdir(tmp_path / "outside") == []


def save(result: Result, folder: Path) -> list[str]:
    with opened_root(folder) as folder_fd:
        return result.save_at(folder_fd, "new")


def test_all_that_came_back_is_there(folder: Path) -> None:
    saved = save(result(Member(name="deep/er/b.txt"), Member(name="c.sh", mode=0o100777)), folder)
    assert saved == ["a.png", "out.zip", "new/deep/er/b.txt", "new/c.sh"]
    assert (folder / "new/deep/er/b.txt").read_bytes() == b"x"
    assert not (folder / "new/c.sh").stat().st_mode & 0o111


def test_no_repository_of_others_appears(folder: Path) -> None:
    names = ["a/.git/config", ".GIT/hooks/x", "a/.gitignore", "b.git/x", "sub/.git"]
    came = result(*(Member(name=name) for name in names))
    assert save(came, folder)[2:] == ["new/a/.gitignore", "new/b.git/x"]
    assert came.unsaved() == ["a/.git/config", ".GIT/hooks/x", "sub/.git"]


def test_the_repository_one_saves_into_is_not_changed(folder: Path) -> None:
    """`.git/commondir` has git take the settings of another folder, such as one that came along."""
    (folder / ".git").mkdir()
    (folder / ".git/HEAD").write_text("ref: refs/heads/main\n")
    came = result(Member(name=".git/commondir"), Member(name="evil/config"))
    assert came.save_to(folder) == [folder / "a.png", folder / "evil/config"]
    assert os.listdir(folder / ".git") == ["HEAD"]
    assert came.read(".git/commondir") == b"x"


def test_no_repository_without_a_folder_for_git(folder: Path) -> None:
    """A folder with HEAD, objects and refs is one, and its settings are heeded in it."""
    names = ["r/HEAD", "r/config", "r/objects/x", "r/refs/x", "s/head/x", "head"]
    saved = save(result(*(Member(name=name) for name in names)), folder)
    assert saved[2:] == ["new/r/config", "new/r/objects/x", "new/r/refs/x", "new/s/head/x"]


def test_a_runner_chooses_no_name_beside_ones_own_files(folder: Path) -> None:
    """Our runners send images and one archive: other names are those a hostile one made up."""
    names = ("Makefile", "conftest.py", "AGENTS.md", "out.ZIP", "HEAD", "b.JPG")
    files = tuple(OutFile(name, 1, REF, lambda ref: b"x") for name in names)
    came = Result(job="j", status="completed", exit_code=0, reason=None, out_files=files)
    kept = ["new/Makefile", "new/conftest.py", "new/AGENTS.md", "new/out.ZIP"]
    assert save(came, folder) == ["b.JPG", *kept]


def test_nothing_is_written_over(folder: Path) -> None:
    (folder / "a.png").write_bytes(b"mine")
    (folder / "out.zip").symlink_to("/dev/null")
    saved = save(result(Member(name="b.txt")), folder)
    assert saved == ["a-1.png", "out-1.zip", "new/b.txt"]
    assert (folder / "a.png").read_bytes() == b"mine"
    with pytest.raises(StorageError):
        save(result(Member(name="b.txt")), folder)
    assert (folder / "new/b.txt").read_bytes() == b"x"


@pytest.mark.parametrize(
    "members",
    [
        [Member(name="../outside/x")],
        [Member(name="/etc/x")],
        [Member(name="a/../../outside/x")],
        [Member(name="a\\..\\x")],
        [Member(name="l", content=b"../outside", mode=LINK)],
        [Member(name="l", content=b"../outside", mode=LINK), Member(name="l/x")],
        [Member(name="x"), Member(name="X")],
        [Member(name="bomb", content=bytes(2 << 20))],
    ],
)
def test_an_unsafe_archive_leaves_nothing(folder: Path, members: list[Member]) -> None:
    with pytest.raises(ValidationError):
        save(result(*members), folder)
    assert os.listdir(folder) == []


def test_a_file_where_another_needs_a_folder(folder: Path) -> None:
    with pytest.raises(StorageError):
        save(result(Member(name="x"), Member(name="x/y")), folder)


def test_links_that_are_there_already_lead_nowhere(folder: Path) -> None:
    (folder / "deep").symlink_to("../outside")
    (folder / "new").symlink_to("../outside")
    with pytest.raises(StorageError):
        save(result(Member(name="x")), folder)
    with pytest.raises(StorageError):
        result(Member(name="deep/x")).save_to(folder)
    with pytest.raises(StorageError):
        result(Member(name="a.png/x")).save_to(folder)


def test_whoever_swaps_a_folder_for_a_link_wins_nothing(folder: Path) -> None:
    link, stop = folder / "link", threading.Event()
    link.symlink_to("../outside")

    def swap() -> None:
        while not stop.is_set():
            try:
                (folder / "deep").rename(folder / "aside")
                link.rename(folder / "deep")
                (folder / "deep").rename(link)
                (folder / "aside").rename(folder / "deep")
            except OSError:
                continue

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(30):
            try:
                result(Member(name="deep/x"), Member(name="deep/y")).save_to(folder)
            except AirloxError:
                continue
    finally:
        stop.set()
        thread.join()
