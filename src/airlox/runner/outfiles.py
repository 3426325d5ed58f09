"""The out folder of a job as files to send: images as they are, all else in one `out.zip`.

Rules
- Images at the top are re-encoded and sent under their own names, as many as the references of a
  result and the runner's memory allow; an image that cannot be is packed with the rest.
- The archive is one that every reader accepts: paths, sizes, compression and names that differ
  only in case are seen to here.
- What is not sent is listed with its reason.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from airlox.errors import AirloxError, StorageError
from airlox.protocol import limits
from airlox.protocol.archive import inspect_zip
from airlox.protocol.job import LeftOut
from airlox.protocol.manifest import ContentType, Manifest
from airlox.protocol.names import check_archive_path, check_safe_name
from airlox.protocol.policy import MIME_OF
from airlox.runner.decoder import ImageDecoder
from airlox.sandbox.collect import CollectCaps, OutFile, collect_out
from airlox.tree.zips import write_zip

ARCHIVE_NAME: Final = "out.zip"
ARCHIVE_MIME: Final = "application/zip"
ITEM_ROOM_BYTES: Final = 4096
"""Left of an item for its meta."""
ENTRY_BYTES: Final = 512 * limits.MIB
IMAGES_BYTES: Final = 256 * limits.MIB
"""Images beyond this are packed: until they are posted they are held in memory."""
_TOO_MANY: Final = f"over {limits.OUT_FILES_SENT} files in all"
_TABLES_BYTES: Final = 128
"""What an archive holds of a file beside its bytes and, twice, its path."""


@dataclass(frozen=True, slots=True)
class Sendable:
    """One file to send as an item."""

    name: str
    subkind: str
    mime: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Gathered:
    """What goes with the result, and what does not."""

    files: tuple[Sendable, ...]
    left_out: tuple[LeftOut, ...]

    def __add__(self, more: Gathered) -> Gathered:
        """Both, within what a result holds: what is beyond is left out, and named or counted."""
        files = (*self.files, *more.files)
        unsent = [LeftOut(path=f.name, reason=_TOO_MANY) for f in files[limits.OUT_FILES_SENT :]]
        return Gathered(
            files[: limits.OUT_FILES_SENT], _named([*self.left_out, *more.left_out, *unsent])
        )


def gather(out: Path, manifest: Manifest) -> Gathered:
    """Blocking. Raises StorageError when the folder cannot be read."""
    with ImageDecoder() as decoder:
        return _Gathering(manifest, decoder).run(out)


class _Gathering:
    """One pass over an out folder."""

    def __init__(self, manifest: Manifest, decoder: ImageDecoder) -> None:
        self._decoder = decoder
        self._allowed = manifest.allowed_types
        self._room = manifest.max_item_bytes - ITEM_ROOM_BYTES
        self._left_out: list[LeftOut] = []

    def run(self, out: Path) -> Gathered:
        caps = CollectCaps(max_file_bytes=ENTRY_BYTES, max_skipped=limits.LEFT_OUT)
        found = collect_out(out, caps)
        self._left_out += [LeftOut(path=s.path, reason=s.reason) for s in found.skipped]
        images, rest = self._split(found.files)
        archive = self._archive(rest)
        return Gathered((*images, *archive), _named(self._left_out, found.skipped_more))

    def _split(self, files: Sequence[OutFile]) -> tuple[list[Sendable], list[OutFile]]:
        images: list[Sendable] = []
        rest: list[OutFile] = []
        tries, room = limits.OUT_FILES_SENT - 1, IMAGES_BYTES
        for file in files:
            image = None
            if tries and room > 0 and self._may_be_image(file):
                tries -= 1  # one that is none in the end was as much work
                image = self._image(file)
            if image is not None:
                room -= len(image.body)
                images.append(image)
            else:
                rest.append(file)
        return images, rest

    def _may_be_image(self, file: OutFile) -> bool:
        if "/" in file.path or ContentType.IMAGE not in self._allowed:
            return False
        return _image_mime(file) is not None and file.size <= self._room

    def _image(self, file: OutFile) -> Sendable | None:
        """The file as an image to send, or None when it is none that can be sent so."""
        try:
            check_safe_name(file.path)
            mime, body = self._decoder.sanitize(_read(file))
        except AirloxError:
            return None
        if mime != _image_mime(file) or len(body) > self._room:
            return None
        return Sendable(file.path, "image", mime, body)

    def _archive(self, files: list[OutFile]) -> list[Sendable]:
        if not files:
            return []
        if ContentType.ZIP not in self._allowed:
            for file in files:
                self._skip(file.path, "the session allows no ZIP archives")
            return []
        chosen = self._choose(files)
        if not chosen:
            return []
        body = _pack(chosen)
        try:
            inspect_zip(body)
        except AirloxError as error:
            for file in chosen:
                self._skip(file.path, f"readers would refuse the archive: {error.message}")
            return []
        return [Sendable(ARCHIVE_NAME, "zip", ARCHIVE_MIME, body)]

    def _choose(self, files: list[OutFile]) -> list[OutFile]:
        """The files that fit together, in their order, under names that differ for everyone."""
        chosen, room, names = [], self._room, _Names()
        for file in files:
            try:
                check_archive_path(file.path)
            except AirloxError as error:
                self._skip(file.path, error.message)
                continue
            if not names.add(file.path):
                self._skip(file.path, "its name differs from another only in case or accents")
            elif (packed := _most_packed(file)) > room:
                self._skip(file.path, f"over {self._room} bytes in all")
            else:
                room -= packed
                chosen.append(file)
        return chosen

    def _skip(self, path: str, reason: str) -> None:
        self._left_out.append(LeftOut(path=path[:200], reason=reason))


class _Names:
    """Paths, folders among them, that must not be one another's twin on any system."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def add(self, path: str) -> bool:
        parts = path.split("/")
        prefixes = ["/".join(parts[: count + 1]) + "/" for count in range(len(parts) - 1)]
        new = {_folded(name): name for name in (*prefixes, path)}
        if any(self._known.get(folded, name) != name for folded, name in new.items()):
            return False
        if _folded(path) in self._known or _folded(path + "/") in self._known:
            return False
        if any(_folded(prefix[:-1]) in self._known for prefix in prefixes):
            return False
        self._known.update(new)
        return True


def _named(left_out: Sequence[LeftOut], more: int = 0) -> tuple[LeftOut, ...]:
    """As many of the files as a result names; the others, and so many `more`, are counted."""
    named = [*left_out[: limits.LEFT_OUT]]
    more += len(left_out) - len(named)
    if more:
        named[-1] = LeftOut(path="…", reason=f"and {more + 1} more")
    return tuple(named)


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _image_mime(file: OutFile) -> str | None:
    """What the file is by its name, if that is an image."""
    dot = file.path.rfind(".")
    return MIME_OF["image"].get(file.path[dot:].lower()) if dot > 0 else None


def _most_packed(file: OutFile) -> int:
    """What a file adds to an archive at most: what does not shrink grows by a little."""
    return file.size + (file.size >> 10) + _TABLES_BYTES + 2 * len(file.path.encode())


def _pack(files: Sequence[OutFile]) -> bytes:
    return write_zip([(file.path, partial(_read, file)) for file in files])


def _read(file: OutFile) -> bytes:
    with file.open() as opened:
        data = opened.read(file.size + 1)
    if len(data) != file.size:
        raise StorageError(f"out file {file.path} changed after it was listed")
    return data
