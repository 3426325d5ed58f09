"""TreeIndex: the list of a tree's files with their digests. Pure.

Bytes: `axt1\\n` ‖ u32 number of entries ‖ entries, each
    kind (1 byte: `f` file, `x` executable file, `l` symbolic link) ‖ u16 length of the path ‖
    path ‖ u64 size ‖ SHA-256 of the content
Numbers are big-endian. The content of a link is its target. Entries ascend strictly by path.
One tree has one encoding, so the digest of these bytes names the tree.

A TreeIndex is valid by construction: paths obey `paths.py`, none is a folder of another.
Left to others: files on a disk (`scan.py`, `apply.py`) and how the bytes travel (`chunks.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from airlox.errors import EncodingError, LimitError, OrderError, ValidationError
from airlox.protocol.digest import sha256
from airlox.tree.paths import DEPTH, PATH_BYTES, SYNC_PREFIX, check_component, check_folder, shown

MAGIC: Final = b"axt1\n"
ENTRIES: Final = 1_000_000
FOLDERS: Final = 500_000
"""Files far down in folders of their own would cost a reader far more than their index does."""
FOLDER_PATH_BYTES: Final = 128 * 1024 * 1024
"""Of the paths of all folders."""
INDEX_BYTES: Final = 256 * 1024 * 1024
SIZE_BYTES: Final = (1 << 63) - 1
LINK_BYTES: Final = 4095
DIGEST_BYTES: Final = 32

_COUNT = struct.Struct(">I")
_HEAD = struct.Struct(">cH")
_TAIL = struct.Struct(">Q32s")


class Kind(StrEnum):
    """What an entry is; the only mode bit a tree carries is whether a file may be executed."""

    FILE = "f"
    EXECUTABLE = "x"
    LINK = "l"


_KIND_OF_BYTE: Final = {kind.value.encode(): kind for kind in Kind}
_BYTE_OF_KIND: Final = {kind: byte for byte, kind in _KIND_OF_BYTE.items()}


class Entry(NamedTuple):
    """One file or link of a tree. `size` in bytes; `digest` is the SHA-256 of the content."""

    path: bytes
    kind: Kind
    size: int
    digest: bytes


class Difference(NamedTuple):
    """Paths that only the newer index has, that both have but differ in, that it lacks."""

    added: tuple[bytes, ...]
    changed: tuple[bytes, ...]
    removed: tuple[bytes, ...]


class TreeIndex:
    """A valid, sorted list of entries. Immutable; equal when the entries are."""

    __slots__ = ("_encoded", "_folders", "entries")

    entries: tuple[Entry, ...]

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Sort and check `entries`; raises a ValidationError for what a tree cannot be."""
        self.entries = tuple(sorted(entries))
        self._encoded: bytes | None = None
        self._folders = _check_entries(self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeIndex) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"<TreeIndex of {len(self.entries)} entries>"

    @property
    def digest(self) -> bytes:
        """SHA-256 of the encoded index: the name of the tree."""
        return sha256(self.encode())

    @property
    def total_bytes(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def folders(self) -> int:
        """How many folders the files lie in."""
        return self._folders

    def sizes(self) -> dict[bytes, int]:
        """Size in bytes of each distinct content, by digest."""
        return {entry.digest: entry.size for entry in self.entries}

    def encode(self) -> bytes:
        if self._encoded is None:
            parts = [MAGIC, _COUNT.pack(len(self.entries))]
            for path, kind, size, digest in self.entries:
                parts.append(_HEAD.pack(_BYTE_OF_KIND[kind], len(path)))
                parts.append(path)
                parts.append(_TAIL.pack(size, digest))
            self._encoded = b"".join(parts)
        return self._encoded


def parse_index(data: bytes) -> TreeIndex:
    """The index that `data` encodes; every other byte string is refused."""
    if len(data) > INDEX_BYTES:
        raise LimitError(f"a tree index is over {INDEX_BYTES} bytes")
    if data[: len(MAGIC)] != MAGIC:
        raise EncodingError("these bytes are not a tree index")
    try:
        entries, end = _read_entries(data)
    except (struct.error, KeyError):
        raise EncodingError("a tree index is cut short or has an unknown kind") from None
    if end != len(data):
        raise EncodingError("a tree index has bytes after its last entry")
    index = TreeIndex(entries)
    if index.entries != tuple(entries):
        raise OrderError("the entries of a tree index are not in order")
    return index


def diff(old: TreeIndex, new: TreeIndex) -> Difference:
    """What changed from `old` to `new`, in the order of the paths."""
    before = {entry.path: entry for entry in old.entries}
    after = {entry.path for entry in new.entries}
    return Difference(
        added=tuple(e.path for e in new.entries if e.path not in before),
        changed=tuple(e.path for e in new.entries if before.get(e.path, e) != e),
        removed=tuple(e.path for e in old.entries if e.path not in after),
    )


def _read_entries(data: bytes) -> tuple[list[Entry], int]:
    at = len(MAGIC)
    (count,) = _COUNT.unpack_from(data, at)
    if count > ENTRIES:
        raise LimitError(f"a tree index has over {ENTRIES} entries")
    at += _COUNT.size
    entries = []
    for _ in range(count):
        kind, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        path = data[at : at + length]
        at += length
        size, digest = _TAIL.unpack_from(data, at)
        at += _TAIL.size
        entries.append(Entry(path, _KIND_OF_BYTE[kind], size, digest))
    return entries, at


def _check_entries(entries: tuple[Entry, ...]) -> int:
    """Check sorted entries; a folder path is checked once, however many files it has. Gives the
    number of folders."""
    if len(entries) > ENTRIES:
        raise LimitError(f"a tree has over {ENTRIES} entries")
    files: set[bytes] = set()
    folders: set[bytes] = {b""}
    room_bytes = FOLDER_PATH_BYTES
    sizes: dict[bytes, int] = {}
    for entry in entries:
        path = entry.path
        if path in files:
            raise OrderError(f"a tree names {shown(path)} twice")
        folder, slash, name = path.rpartition(b"/")
        if slash and not folder:
            raise ValidationError("a tree path is absolute")
        if folder not in folders:
            room_bytes -= _add_folder(folder, files, folders)
            if room_bytes < 0 or len(folders) > FOLDERS + 1:
                raise LimitError("a tree has too many folders, or too long paths of folders")
        check_component(name)
        if len(path) > PATH_BYTES or path.count(b"/") >= DEPTH or path.startswith(SYNC_PREFIX):
            check_folder(path)
        files.add(path)
        _check_content(entry)
        if sizes.setdefault(entry.digest, entry.size) != entry.size:
            raise ValidationError(f"{shown(path)} has the digest of a content of another size")
    return len(folders) - 1


def _add_folder(folder: bytes, files: set[bytes], folders: set[bytes]) -> int:
    """Give the bytes of the paths that are new."""
    check_folder(folder)
    added = 0
    while folder not in folders:
        if folder in files:  # it sorts before everything beneath it, so it has been seen
            raise ValidationError(f"a tree has {shown(folder)} as a file and as a folder")
        folders.add(folder)
        added += len(folder)
        folder = folder.rpartition(b"/")[0]
    return added


def _check_content(entry: Entry) -> None:
    if len(entry.digest) != DIGEST_BYTES:
        raise ValidationError(f"{shown(entry.path)} has no SHA-256 digest")
    if not 0 <= entry.size <= SIZE_BYTES:
        raise LimitError(f"{shown(entry.path)} has an impossible size")
    if entry.kind is Kind.LINK and not 1 <= entry.size <= LINK_BYTES:
        raise LimitError(f"the link {shown(entry.path)} has an impossible target")
