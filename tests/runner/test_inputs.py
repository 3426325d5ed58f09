"""Inputs: written where the job starts, over nothing, through no link, and gone afterwards."""

from __future__ import annotations

import errno
import io
import os
import zipfile
from pathlib import Path

import pytest

from airlox.errors import JobRefused, StorageError, ValidationError
from airlox.runner import inputs
from airlox.runner.inputs import SCRIPT_NAME, Placing, place_script
from airlox.runner.workspace import Places


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """The folders of a job in a kept workspace."""
    job, space = tmp_path / "job", tmp_path / "space"
    for folder in (job, space / "work" / "sub", space / "home", job / "out"):
        folder.mkdir(parents=True)
    return Places(job, space / "work", space / "home", job / "out", space / "tree")


def archive(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for path, text in files.items():
            target.writestr(path.replace("__", "/"), text)
    return buffer.getvalue()


def test_a_file_is_written_where_the_job_starts(places: Places) -> None:
    Placing(places, "sub", None, 0).add_file("a.md", b"text")
    path = places.work / "sub/a.md"
    assert path.read_bytes() == b"text"
    assert path.stat().st_mode & 0o777 == 0o644


def test_an_archive_is_unpacked(places: Places) -> None:
    Placing(places, "", None, 0).add_archive(archive(a="1", d__b="2"))
    assert (places.work / "a").read_text() == "1"
    assert (places.work / "d/b").read_text() == "2"
    assert not (places.job / "unzip").exists()


@pytest.mark.parametrize("there", ["file", "folder", "link", "dangling"])
def test_nothing_is_overwritten(places: Places, tmp_path: Path, there: str) -> None:
    taken = places.work / "a"
    victim = tmp_path / "victim"
    victim.write_text("old")
    if there == "file":
        taken.write_text("old")
    elif there == "folder":
        taken.mkdir()
    else:
        taken.symlink_to(victim if there == "link" else tmp_path / "nowhere")
    with pytest.raises(JobRefused) as refusal:
        Placing(places, "", None, 0).add_file("a", b"new")
    assert refusal.value.code == "input_collision"
    with pytest.raises(JobRefused) as refusal:
        Placing(places, "", None, 0).add_archive(archive(a="new"))
    assert refusal.value.code == "input_collision"
    assert victim.read_text() == "old"
    assert not (tmp_path / "nowhere").exists()


def test_an_unsafe_archive_is_refused_and_places_nothing(places: Places) -> None:
    with pytest.raises(ValidationError):
        Placing(places, "", None, 0).add_archive(archive(**{"..__evil": "x"}))
    assert sorted(os.listdir(places.work)) == ["sub"]


@pytest.mark.parametrize("start", ["missing", "sub/deeper", "link", "link/x", "file"])
def test_a_start_folder_that_is_none_is_refused(places: Places, tmp_path: Path, start: str) -> None:
    (tmp_path / "x").mkdir()
    (places.work / "link").symlink_to(tmp_path)
    (places.work / "file").write_text("")
    with pytest.raises(JobRefused) as refusal:
        Placing(places, start, None, 0).check_start()
    assert refusal.value.code == "no_start_folder"


def test_inputs_come_to_no_more_than_a_job_may_write(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty-two archives of a gigabyte each could fill any disk."""
    monkeypatch.setattr(inputs, "INPUT_BYTES", 10)
    placing = Placing(places, "", None, 0)
    placing.add_file("a", b"x" * 6)
    with pytest.raises(JobRefused) as refusal:
        placing.add_file("b", b"x" * 5)
    assert refusal.value.code == "inputs_too_large"
    with pytest.raises(JobRefused) as refusal:
        placing.add_archive(archive(c="123456"))
    assert refusal.value.code == "inputs_too_large"
    assert sorted(os.listdir(places.work)) == ["a", "sub"]


def test_inputs_leave_room_on_the_disk(places: Places) -> None:
    with pytest.raises(JobRefused) as refusal:
        Placing(places, "", None, 1 << 60).add_file("a", b"x")
    assert refusal.value.code == "disk_full"


def test_names_that_could_not_be_noted_are_refused(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not noted would stay in the workspace after a crash."""
    monkeypatch.setattr(inputs, "_NOTE_BYTES", 100)
    with pytest.raises(JobRefused) as refusal:
        Placing(places, "", None, 0).add_archive(archive(**{f"{n:09}": "" for n in range(10)}))
    assert refusal.value.code == "inputs_too_large"
    assert sorted(os.listdir(places.work)) == ["sub"]


def test_a_full_disk_is_called_that(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(inputs, "write_all", full)
    with pytest.raises(StorageError) as error:
        Placing(places, "", None, 0).add_file("a", b"x")
    assert error.value.code == "disk_full"


def test_a_program_is_not_looked_for_through_links(places: Places, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print(1)")
    (places.work / "main.py").symlink_to(tmp_path / "main.py")
    assert not Placing(places, "", None, 0).has("main.py", b"print(1)")


def test_the_very_same_program_counts_as_there(places: Places) -> None:
    placing = Placing(places, "", None, 0)
    (places.work / "main.py").write_text("print(1)")
    assert placing.has("main.py", b"print(1)")
    assert not placing.has("main.py", b"print(2)")
    assert not placing.has("main.py", b"print(1) ")
    assert not placing.has("other.py", b"")


def test_what_was_placed_is_taken_out_again(places: Places) -> None:
    placing = Placing(places, "sub", None, 0)
    placing.add_file("a", b"1")
    placing.add_archive(archive(d__b="2"))
    (places.work / "sub/d/made-by-the-job").mkdir()
    placing.remove_all()
    assert os.listdir(places.work / "sub") == []


def test_what_a_dead_runner_left_is_taken_out_by_the_next(places: Places) -> None:
    Placing(places, "sub", None, 0).add_file("a", b"1")
    again = Placing(places, "", None, 0)
    again.clear_leftovers()
    assert os.listdir(places.work / "sub") == []
    again.clear_leftovers()


def test_removing_follows_no_link(places: Places, tmp_path: Path) -> None:
    placing = Placing(places, "sub", None, 0)
    placing.add_file("a", b"1")
    (places.work / "sub/a").unlink()
    (places.work / "sub").rmdir()
    target = tmp_path / "precious"
    target.mkdir()
    (target / "a").write_text("kept")
    (places.work / "sub").symlink_to(target)
    placing.remove_all()
    assert (target / "a").read_text() == "kept"


class TestScript:
    def test_it_is_written_to_be_run(self, places: Places) -> None:
        place_script(places.home, "echo hi", None)
        path = places.home / SCRIPT_NAME
        assert path.read_text() == "echo hi"
        assert path.stat().st_mode & 0o777 == 0o755

    @pytest.mark.parametrize("planted", ["file", "folder", "link"])
    def test_over_whatever_an_earlier_job_left_there(
        self, places: Places, tmp_path: Path, planted: str
    ) -> None:
        path, victim = places.home / SCRIPT_NAME, tmp_path / "victim"
        victim.write_text("kept")
        if planted == "file":
            path.write_text("old")
        elif planted == "folder":
            (path / "sub").mkdir(parents=True)
        else:
            path.symlink_to(victim)
        place_script(places.home, "new", None)
        assert path.read_text() == "new"
        assert victim.read_text() == "kept"
