"""Inspection of archives: every given vector, and the edges found beside them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from airlox.errors import ValidationError
from airlox.protocol.archive import inspect_zip, read_entry
from support.archives import Member, build_zip
from support.vectors import cases, replay

# Refused for what the file system says, which no reader of bytes can know.
_REFUSED_BY_DISK = {"extract-name-len256", "extract-file-as-parent"}


def _data(given: dict[str, Any]) -> bytes:
    if "described" not in given:
        return base64.b64decode(given["data_b64"])
    count = int(given["described"].removeprefix("entries-"))
    data = build_zip(*(Member(name=f"f{i}", content=b"", method=0) for i in range(count)))
    assert len(data) == given["bytes"]
    return data


def _inspect(given: dict[str, Any]) -> Any:
    entries = inspect_zip(_data(given))
    if "described" in given:
        return {"entries": len(entries)}
    return [
        {
            "path": entry.path,
            "size": entry.size,
            "compressed_size": entry.compressed_size,
            "is_dir": entry.is_dir,
        }
        for entry in entries
    ]


@pytest.mark.parametrize("case", cases("zip", "inspect_zip") + cases("extra-zip", "inspect_zip"))
def test_inspect(case: dict[str, Any]) -> None:
    replay(case, _inspect)


_EXTRACT = [c for c in cases("zip", "extract_zip") if c.values[0]["name"] not in _REFUSED_BY_DISK]


@pytest.mark.parametrize("case", _EXTRACT)
def test_content_is_readable_where_extraction_works(case: dict[str, Any]) -> None:
    data = _data(case["in"])
    if "error" in case:
        with pytest.raises(ValidationError):
            _read_files(data)
    else:
        # Extraction lists in order of names.
        assert sorted(_read_files(data)) == sorted(path for path, _ in case["ok"]["files"])


def _read_files(data: bytes) -> list[str]:
    read = []
    for entry in inspect_zip(data):
        if not entry.is_dir:
            assert sum(map(len, read_entry(data, entry))) <= entry.size
            read.append(entry.path)
    return read
