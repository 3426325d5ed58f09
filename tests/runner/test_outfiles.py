"""Out files: what is sent is accepted by every reader, what is not is named."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airlox.errors import ValidationError
from airlox.protocol.archive import inspect_zip
from airlox.protocol.manifest import (
    ContentType,
    JobLimits,
    Manifest,
    Mode,
    build_manifest,
    parse_manifest,
)
from airlox.runner import outfiles
from airlox.runner.decoder import ImageDecoder
from airlox.runner.outfiles import Gathered, _Names, gather
from airlox.sandbox.collect import OutFile
from support.images import build_png

PNG = build_png(2, 2, bytes(2 * (1 + 3 * 2)))
LIMITS = JobLimits(
    approve_runners=False,
    memory_mb=512,
    network=False,
    packages=(),
    return_out=True,
    runtime="python3.12",
    timeout_s=60,
)


def manifest(
    item_bytes: int = 1 << 20, allowed: tuple[ContentType, ...] = tuple(ContentType)
) -> Manifest:
    return parse_manifest(
        build_manifest(
            b"\1" * 32,
            mode=Mode.EXECUTE,
            created_at_ms=1,
            ttl_ms=None,
            allowed_types=allowed,
            max_item_bytes=item_bytes,
            job_limits=LIMITS,
        )
    )


def gathered(folder: Path, files: dict[str, bytes], terms: Manifest | None = None) -> Gathered:
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return gather(folder, terms or manifest())


def names_in(found: Gathered) -> list[str]:
    archive = next(file.body for file in found.files if file.name == "out.zip")
    return [entry.path for entry in inspect_zip(archive)]


def reasons(found: Gathered) -> dict[str, str]:
    return {left.path: left.reason for left in found.left_out}


def test_nothing_is_sent_of_an_empty_folder(tmp_path: Path) -> None:
    assert gathered(tmp_path, {}) == Gathered((), ())


def test_images_at_the_top_go_alone_and_all_else_into_the_archive(tmp_path: Path) -> None:
    files = {"b.PNG": PNG, "a.txt": b"a", "sub/c.png": PNG, ".hidden": b"h", "out.zip": b"z"}
    found = gathered(tmp_path, files)
    assert [(file.name, file.subkind) for file in found.files] == [
        ("b.PNG", "image"),
        ("out.zip", "zip"),
    ]
    assert names_in(found) == [".hidden", "a.txt", "out.zip", "sub/c.png"]
    assert found.left_out == ()


def test_an_image_that_is_none_is_packed(tmp_path: Path) -> None:
    found = gathered(tmp_path, {"a.png": b"no image", "b.jpg": PNG})
    assert names_in(found) == ["a.png", "b.jpg"]


def test_the_archive_is_the_same_for_the_same_files(tmp_path: Path) -> None:
    first = gathered(tmp_path, {"a": b"1", "b": b"2"})
    os.utime(tmp_path / "a", (1, 1))
    assert gather(tmp_path, manifest()) == first
    with zipfile.ZipFile(io.BytesIO(first.files[0].body)) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {entry.external_attr >> 16 for entry in archive.infolist()} == {0o100644}


def test_no_more_than_62_files_are_sent_and_none_is_lost(tmp_path: Path) -> None:
    """P-FLR-9."""
    found = gathered(tmp_path, {f"{n:03}.png": PNG for n in range(80)})
    assert len(found.files) == 62
    assert len(names_in(found)) == 80 - 61


def test_what_does_not_fit_is_left_out_one_by_one(tmp_path: Path) -> None:
    files = {"a": os.urandom(60_000), "b": os.urandom(60_000), "c": b"small"}
    found = gathered(tmp_path, files, manifest(100_000))
    assert names_in(found) == ["a", "c"]
    assert list(reasons(found)) == ["b"]


def test_what_the_archive_needs_for_itself_is_known_before_it_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else thousands of small files would be packed again and again, one less each time."""
    packed: list[int] = []

    def pack(files: Sequence[OutFile]) -> bytes:
        packed.append(len(files))
        return real(files)

    real = outfiles._pack
    monkeypatch.setattr(outfiles, "_pack", pack)
    files = {f"{n:04}-{'x' * 200}": os.urandom(50) for n in range(1000)}
    found = gathered(tmp_path, files, manifest(200_000))
    (archive,) = found.files
    assert 150_000 < len(archive.body) < 200_000
    assert len(packed) == 1
    assert len(names_in(found)) == packed[0]


def test_no_end_of_work_is_done_for_images_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bytes] = []

    def sanitize(decoder: ImageDecoder, data: bytes) -> tuple[str, bytes]:
        tried.append(data)
        raise ValidationError("no image")

    monkeypatch.setattr(ImageDecoder, "sanitize", sanitize)
    found = gathered(tmp_path, {f"{n:03}.png": b"no" for n in range(200)})
    assert len(tried) == 61
    assert len(names_in(found)) == 200


def test_images_beyond_the_memory_for_them_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outfiles, "IMAGES_BYTES", 1)
    found = gathered(tmp_path, {f"{n}.png": PNG for n in range(3)})
    assert [file.name for file in found.files] == ["0.png", "out.zip"]
    assert names_in(found) == ["1.png", "2.png"]


def test_zeros_are_no_bomb(tmp_path: Path) -> None:
    found = gathered(tmp_path, {"zeros": bytes(3 << 20)}, manifest(8 << 20))
    assert names_in(found) == ["zeros"]


def test_many_small_zeros_are_no_bomb_together(tmp_path: Path) -> None:
    files = {f"{n}": bytes(1 << 20) for n in range(4)}
    assert len(names_in(gathered(tmp_path, files, manifest(8 << 20)))) == 4


def test_names_that_differ_in_case_only_cannot_both_go(tmp_path: Path) -> None:
    found = gathered(tmp_path, {"A.txt": b"1", "a.txt": b"2", "x/y": b"3", "X": b"4"})
    assert names_in(found) == ["A.txt", "X"]
    assert set(reasons(found)) == {"a.txt", "x/y"}


def test_a_session_without_archives_gets_images_only(tmp_path: Path) -> None:
    allowed = (ContentType.PY, ContentType.IMAGE)
    found = gathered(tmp_path, {"a.png": PNG, "b.txt": b"b"}, manifest(allowed=allowed))
    assert [file.name for file in found.files] == ["a.png"]
    assert reasons(found) == {"b.txt": "the session allows no ZIP archives"}


def test_a_session_without_images_gets_them_in_the_archive(tmp_path: Path) -> None:
    allowed = (ContentType.PY, ContentType.ZIP)
    found = gathered(tmp_path, {"a.png": PNG}, manifest(allowed=allowed))
    assert names_in(found) == ["a.png"]


def test_links_and_pipes_are_named_and_the_list_is_bounded(tmp_path: Path) -> None:
    os.symlink("/etc/passwd", tmp_path / "a-link")
    for number in range(150):
        os.mkfifo(tmp_path / f"pipe-{number:03}")
    found = gathered(tmp_path, {})
    assert len(found.left_out) == 100
    assert found.left_out[0].reason == "symbolic link"
    assert found.left_out[-1].reason == "and 52 more"


PARTS = st.sampled_from(["a", "A", "é", "é", "b.txt", "ß", "ss"])


@settings(max_examples=200)
@given(st.lists(st.lists(PARTS, min_size=1, max_size=3).map("/".join), max_size=6))
def test_names_that_are_taken_make_an_archive_every_reader_accepts(paths: list[str]) -> None:
    names = _Names()
    chosen = [path for path in dict.fromkeys(paths) if names.add(path)]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in chosen:
            archive.writestr(path, b"x")
    assert [entry.path for entry in inspect_zip(buffer.getvalue())] == chosen
