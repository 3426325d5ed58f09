"""Chunks of large files that stand in a workspace already, found by cutting those files again.

What a job left there may be anything and may change: bytes are handed out only after they were
compared with the digest they were found under.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from airlox.protocol.digest import sha256
from airlox.tree.beneath import Folders, open_regular, opened_workspace, pieces
from airlox.tree.chunks import Cutter
from airlox.tree.paths import split

if TYPE_CHECKING:
    AnyPath = str | os.PathLike[str]


class _Place(NamedTuple):
    path: bytes | None
    """None: in the bytes at hand."""
    offset: int
    length: int


class OldChunks:
    """Where chunks are, in the files `paths` beneath `root` and in the bytes `at_hand`; when asked
    to look further also in the files `others`. Looks when it is first asked. Not safe to share
    between threads."""

    def __init__(
        self,
        cutter: Cutter,
        root: AnyPath,
        paths: Iterable[bytes],
        others: Iterable[bytes] = (),
        *,
        at_hand: bytes = b"",
    ) -> None:
        self._cutter = cutter
        self._root = root
        self._paths = tuple(paths)
        self._others = tuple(others)
        self._at_hand = at_hand
        self._found: dict[bytes, _Place] | None = None

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._places()

    def read(self, digest: bytes) -> bytes | None:
        """The bytes of a chunk, if they are still there."""
        place = self._places().get(digest)
        if place is None:
            return None
        data = b""
        if place.path is None:
            data = self._at_hand[place.offset : place.offset + place.length]
        else:
            with suppress(OSError):
                data = self._read_file(place.path, place)
        return data if sha256(data) == digest else None

    def look_further(self) -> bool:
        """Look into the other files too; whether there were any."""
        others, self._others = self._others, ()
        self._note_files(others)
        return bool(others)

    def _read_file(self, path: bytes, place: _Place) -> bytes:
        folder, name = split(path)
        with opened_workspace(self._root) as root_fd, Folders(root_fd) as folders:
            fd, _ = open_regular(folders.fd(folder), name)
            try:
                return os.pread(fd, place.length, place.offset)
            finally:
                os.close(fd)

    def _places(self) -> dict[bytes, _Place]:
        if self._found is None:
            self._found = {}
            self._note(None, (self._at_hand,))
            self._note_files(self._paths)
        return self._found

    def _note_files(self, paths: Iterable[bytes]) -> None:
        with opened_workspace(self._root) as root_fd, Folders(root_fd) as folders:
            for path in paths:
                with suppress(OSError):
                    self._note(path, _pieces_of(folders, path))

    def _note(self, path: bytes | None, source: Iterable[bytes]) -> None:
        found = self._places()
        offset = 0
        for data in self._cutter.cut(source):
            found.setdefault(sha256(data), _Place(path, offset, len(data)))
            offset += len(data)


def _pieces_of(folders: Folders, path: bytes) -> Iterator[bytes]:
    folder, name = split(path)
    fd, _ = open_regular(folders.fd(folder), name)
    try:
        yield from pieces(fd)
    finally:
        os.close(fd)
