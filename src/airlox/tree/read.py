"""Reading the files of a scanned tree: digests for its index, bytes for its packs.

A file is never taken half old, half new: its size and stamp are compared before and after it is
read, and what is sent is checked against the index while it is read. The scan cache remembers
digests, so that an unchanged file is not read again.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from airlox import safefs
from airlox.errors import StorageError, TreeError, ValidationError
from airlox.tree.beneath import FILE_FLAGS, Folders, open_regular, pieces
from airlox.tree.chunks import Chunk, Recipe
from airlox.tree.index import INDEX_BYTES, Entry, Kind, TreeIndex
from airlox.tree.mounts import keeps_times
from airlox.tree.paths import shown, split
from airlox.tree.pointer import POINTER_BYTES, is_pointer, make_pointer
from airlox.tree.scan import Found, Scan, opened_tree
from airlox.tree.stamps import Stamp, encode_stamped, parse_stamped, stamp_of

if TYPE_CHECKING:
    AnyPath = str | os.PathLike[str]

CACHE_MAGIC: Final = b"axc1\n"
CACHE_BYTES: Final = 2 * INDEX_BYTES

_TRIES: Final = 3
_YOUNG_NS: Final = 2_000_000_000
"""A file changed less than this before it was seen is not remembered: a second change could
leave the same times (file systems keep them to between 1 ns and 2 s)."""


class ScanCache:
    """Digests of a tree's files by their stamps, kept in one private file.

    It is only ever a saving: a missing or damaged file is an empty cache.
    """

    def __init__(self, path: AnyPath) -> None:
        self._path = path
        self._known: dict[bytes, tuple[Entry, Stamp]] = {}
        self.index = TreeIndex(())
        try:
            data = safefs.read_bounded(path, CACHE_BYTES)
            if data[: len(CACHE_MAGIC)] == CACHE_MAGIC:
                self.index, stamps, _ = parse_stamped(data[len(CACHE_MAGIC) :])
                pairs = zip(self.index.entries, stamps, strict=True)
                self._known = {entry.path: (entry, stamp) for entry, stamp in pairs}
        except (StorageError, ValidationError):
            pass

    def lookup(self, file: Found) -> Entry | None:
        """The entry of `file`, if it still looks as remembered."""
        entry, stamp = self._known.get(file.path, (None, None))
        if entry is None or stamp != file.stamp:
            return None
        return entry if entry.kind is file.kind else None

    def is_exactly(self, entries: Sequence[tuple[Entry, Stamp]]) -> bool:
        """Whether these entries, with their stamps, are all that is remembered."""
        return len(entries) == len(self._known) and all(
            self._known.get(pair[0].path) == pair for pair in entries
        )

    def save(self, entries: Sequence[tuple[Entry, Stamp]], *, seen_ns: int) -> None:
        """Remember `entries`, read after the time `seen_ns`, where they are old enough."""
        settled = sorted(
            (entry, stamp)
            for entry, stamp in entries
            if max(stamp.mtime_ns, stamp.ctime_ns) + _YOUNG_NS < seen_ns
        )
        if self.is_exactly(settled):
            return
        index = TreeIndex(entry for entry, _ in settled)
        stamps = tuple(stamp for _, stamp in settled)
        safefs.write_private(self._path, CACHE_MAGIC + encode_stamped(index, stamps))


def read_index(scan: Scan, cache: ScanCache | None = None) -> TreeIndex:
    """The index of a scanned tree; reads what the cache does not know, and brings it up to date.

    Raises TreeError with the code `tree_changed` for a file that does not hold still,
    `tree_unreadable` for one that cannot be read. A file that vanished since the scan is absent.
    """
    seen_ns = time.time_ns()
    if not keeps_times(scan.root):
        cache = None
    entries: list[tuple[Entry, Stamp]] = []
    with opened_tree(scan.root, scan.root_is) as root_fd, Folders(root_fd) as folders:
        for file in scan.files:
            known = cache.lookup(file) if cache else None
            read = (known, file.stamp) if known else _read_entry(folders, file)
            if read is not None:
                entries.append(read)
    if cache is not None and cache.is_exactly(entries):
        return cache.index
    if cache is not None:
        cache.save(entries, seen_ns=seen_ns)
    return TreeIndex(entry for entry, _ in entries)


def _read_entry(folders: Folders, file: Found) -> tuple[Entry, Stamp] | None:
    folder, name = split(file.path)
    try:
        folder_fd = folders.fd(folder)
        if file.kind is Kind.LINK:
            target = os.readlink(name, dir_fd=folder_fd)
            return Entry(file.path, Kind.LINK, len(target), sha256(target).digest()), file.stamp
        for _ in range(_TRIES):
            read = _hash_once(folder_fd, name, file)
            if read is not None:
                return read
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        reason = e.strerror or "it is no longer a regular file"
        raise TreeError(
            f"cannot read {shown(file.path)}: {reason}",
            code="tree_unreadable",
            hint="make it readable, or leave it out with --tree-exclude",
        ) from None
    raise changed(file.path)


def _hash_once(folder_fd: int, name: bytes, file: Found) -> tuple[Entry, Stamp] | None:
    """Entry and stamp of a file, or None when it changed while it was read."""
    fd, before = open_regular(folder_fd, name)
    try:
        digest = sha256()
        size, head = 0, b""
        for piece in pieces(fd):
            head = head or piece[:POINTER_BYTES]
            digest.update(piece)
            size += len(piece)
            if size > before.st_size:
                return None
        after = os.fstat(fd)
    finally:
        os.close(fd)
    if size != before.st_size or stamp_of(after) != stamp_of(before):
        return None
    kind = Kind.EXECUTABLE if after.st_mode & stat.S_IXUSR else Kind.FILE
    entry = Entry(file.path, kind, size, digest.digest())
    if file.as_pointer and not is_pointer(head):
        entry = _pointed(entry)
    return entry, stamp_of(after)


def _pointed(entry: Entry) -> Entry:
    """The entry of a pointer in place of a content."""
    data = make_pointer(entry.digest.hex(), entry.size)
    return entry._replace(size=len(data), digest=sha256(data).digest())


def read_pointer(folders: Folders, entry: Entry) -> bytes:
    """The pointer that goes in place of a file, or the file where it is one itself. Raises
    TreeError with the code `tree_changed` when it is no longer that."""
    folder, name = split(entry.path)
    try:
        fd, found = open_regular(folders.fd(folder), name)
        try:
            digest = sha256()
            data = b""
            for piece in pieces(fd):
                digest.update(piece)
                data = data or piece[:POINTER_BYTES]
        finally:
            os.close(fd)
    except OSError:
        raise changed(entry.path) from None
    if not is_pointer(data):
        data = make_pointer(digest.hexdigest(), found.st_size)
    if sha256(data).digest() != entry.digest:
        raise changed(entry.path)
    return data


def read_checked(folders: Folders, entry: Entry) -> Iterator[bytes]:
    """The bytes of a file or the target of a link, in pieces. The last leaves only once the whole
    is verified; raises TreeError with the code `tree_changed` when it no longer has its digest."""
    folder, name = split(entry.path)
    try:
        folder_fd = folders.fd(folder)
        if entry.kind is Kind.LINK:
            source: Iterator[bytes] = iter((os.readlink(name, dir_fd=folder_fd),))
            yield from _checked(source, entry)
            return
        fd = os.open(name, FILE_FLAGS, dir_fd=folder_fd)
        try:
            yield from _checked(pieces(fd), entry)
        finally:
            os.close(fd)
    except OSError:
        raise changed(entry.path) from None


def read_chunks(
    folders: Folders, entry: Entry, recipe: Recipe, wanted: Collection[bytes]
) -> Iterator[tuple[Chunk, bytes]]:
    """The chunks of a file with these digests, each once and verified. Raises TreeError with the
    code `tree_changed` when one no longer has its digest."""
    folder, name = split(entry.path)
    missing = set(wanted)
    try:
        fd = os.open(name, FILE_FLAGS, dir_fd=folders.fd(folder))
        try:
            at = 0
            for chunk in recipe.chunks:
                if chunk.digest in missing:
                    missing.remove(chunk.digest)
                    data = os.pread(fd, chunk.length, at)
                    if sha256(data).digest() != chunk.digest:
                        raise changed(entry.path)
                    yield chunk, data
                at += chunk.length
        finally:
            os.close(fd)
    except OSError:
        raise changed(entry.path) from None


def _checked(source: Iterator[bytes], entry: Entry) -> Iterator[bytes]:
    """Pass pieces on, one behind, so that the last leaves only once the whole is verified."""
    digest = sha256()
    room = entry.size
    held = b""
    for piece in source:
        room -= len(piece)
        if room < 0:
            break
        digest.update(piece)
        if held:
            yield held
        held = piece
    if room != 0 or digest.digest() != entry.digest:
        raise changed(entry.path)
    if held:
        yield held


def changed(path: bytes) -> TreeError:
    """A file did not hold still."""
    return TreeError(
        f"{shown(path)} changed while it was read",
        code="tree_changed",
        hint="run the command again once nothing writes to it",
    )
