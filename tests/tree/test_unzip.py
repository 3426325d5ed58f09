"""airlox.tree.unzip against the given vectors, and what they do not cover."""

from __future__ import annotations

import io
import json
import os
import stat
import zipfile
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from airlox.errors import StorageError, ValidationError
from airlox.tree.unzip import extract_zip

VECTORS = Path(__file__).parents[2] / "vectors" / "zip.json"
CASES = [case for case in json.loads(VECTORS.read_text())["cases"] if case["op"] == "extract_zip"]


def archive(*entries: tuple[str, bytes], deflated: bool = False) -> bytes:
    buffer = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w") as writer:
        for name, data in entries:
            writer.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data, how)
    return buffer.getvalue()


def data_of(case: dict[str, Any]) -> bytes:
    given = case["in"]
    if "data_b64" in given:
        return b64decode(given["data_b64"])
    kind, _, count = given["described"].partition("-")
    assert kind == "entries"
    data = archive(*((f"f{n}", b"") for n in range(int(count))))
    assert len(data) == given["bytes"]
    return data


def found_in(folder: Path) -> list[list[str]]:
    return sorted(
        [str(path.relative_to(folder)), oct(path.lstat().st_mode)]
        for path in folder.rglob("*")
        if stat.S_ISREG(path.lstat().st_mode)
    )


def test_there_are_cases() -> None:
    assert len(CASES) > 50


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_vector(case: dict[str, Any], tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        if "error" in case:
            expected = {"ValidationError": ValidationError, "AirloxError": StorageError}
            with pytest.raises(expected[case["error"]]):
                extract_zip(data_of(case), tmp_path)
        else:
            extract_zip(data_of(case), tmp_path)
            assert found_in(tmp_path) == case["ok"]["files"]
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "bad",
    [
        [("../a", b"")],
        [("/a", b"")],
        [("b/../../a", b"")],
        [("A", b""), ("a", b"")],
        [("a\\b", b"")],
        [("con", b"")],
        [("bomb", b"\0" * 3_000_000)],
    ],
)
def test_nothing_is_written_of_an_archive_that_is_refused(
    tmp_path: Path, bad: list[tuple[str, bytes]]
) -> None:
    """[P-PAY-1] It is looked at whole before its first file is made."""
    data = archive(("first", b"harmless"), *bad, deflated=True)
    (tmp_path / "in").mkdir()
    with pytest.raises(ValidationError):
        extract_zip(data, tmp_path / "in")
    assert found_in(tmp_path) == []


def test_contents_and_empty_folders(tmp_path: Path) -> None:
    extract_zip(archive(("a/b/c", b"1"), ("a/d", b"2"), ("e/f/", b"")), tmp_path)
    assert (tmp_path / "a/b/c").read_bytes() == b"1"
    assert (tmp_path / "a/d").read_bytes() == b"2"
    assert (tmp_path / "e/f").is_dir()


@pytest.mark.parametrize("order", [1, -1])
def test_a_file_that_is_also_a_folder_of_another(tmp_path: Path, order: int) -> None:
    with pytest.raises((ValidationError, StorageError)):
        extract_zip(archive(*[("a", b"1"), ("a/b", b"2")][::order]), tmp_path)


def test_only_into_an_empty_folder_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        extract_zip(archive(("a", b"")), tmp_path / "no")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    with pytest.raises(StorageError, match="not empty"):
        extract_zip(archive(("a", b"")), tmp_path)
    assert os.listdir(tmp_path) == ["a"]
