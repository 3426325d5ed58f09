"""Writing ZIP archives that every reader takes: the other half of `protocol/archive.py`.

Readers refuse as a bomb what shrinks more than a hundredfold; such a file, or such an archive, is
stored as it is. Nothing in an archive tells of times or of the machine, so the same files make the
same bytes.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Final

_DATED: Final = (1980, 1, 1, 0, 0, 0)
_STORED_FROM_BYTES: Final = 1 << 20
_MOST_RATIO: Final = 90

Member = tuple[str, Callable[[], bytes]]
"""The path of a file in the archive, and how its bytes are had; asked for twice at most."""


def write_zip(members: Sequence[Member]) -> bytes:
    """An archive of these files; holds one of them and the archive in memory."""
    buffer = io.BytesIO()
    total = 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, read in members:
            data = read()
            total += len(data)
            _add(archive, path, data)
    if total > _MOST_RATIO * len(buffer.getvalue()):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            for path, read in members:
                _add(archive, path, read(), stored=True)
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, path: str, data: bytes, *, stored: bool = False) -> None:
    entry = zipfile.ZipInfo(path, _DATED)
    entry.external_attr = 0o100644 << 16
    entry.create_system = 3
    stored = stored or (len(data) > _STORED_FROM_BYTES and _shrinks_too_much(data))
    entry.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)


def _shrinks_too_much(data: bytes) -> bool:
    return len(zlib.compress(data, 6)) * _MOST_RATIO < len(data)
