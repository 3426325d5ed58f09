"""Replicas of a repository, to go with a tree to where its job runs; `replicate.py` makes them.

They are kept in a private folder, each under a name that says all it was made from: an unchanged
repository costs a look at it. One that is there is never changed again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from airlox import safefs
from airlox.errors import StorageError, ValidationError
from airlox.protocol.digest import sha256_hex
from airlox.tree import rules
from airlox.tree.index import INDEX_BYTES, Kind, TreeIndex, parse_index
from airlox.tree.metadata import Repository
from airlox.tree.read import read_index
from airlox.tree.replicate import Making, Staying, write
from airlox.tree.scan import Choice, Found, LeftOut, Scan
from airlox.tree.stamps import stamp_of

if TYPE_CHECKING:
    AnyPath = str | os.PathLike[str]

KEPT: Final = 3
"""Replicas of one repository that are kept."""


class Replica(NamedTuple):
    """A replica as a tree of its own: the files below `root`, by the index of them."""

    root: str
    files: TreeIndex


def replica_of(
    repository: Repository,
    choice: Choice,
    left_out: Iterable[LeftOut],
    folder: AnyPath,
    *,
    rules_version: str,
) -> Replica:
    """The replica of a repository, from the private `folder` where it is kept, or made there.

    `choice` and `left_out` are those of the tree that it goes with. Under another version of the
    rules every replica is another one. Raises TreeError: `metadata_too_large` beyond the bounds;
    StorageError.
    """
    missing = frozenset(left.path for left in left_out)
    chosen = (rules_version, choice, sorted(missing), _ignore_lines(repository.top))
    name = sha256_hex(msgspec.msgpack.encode((repository, *chosen)))[:32]
    safefs.make_private_dir(folder)
    place = os.path.join(folder, name)
    found = _load(place)
    if found is None:
        staying = Staying(repository.top, choice, missing)
        found = _make(repository, staying, os.fspath(folder), place)
    with suppress(OSError):
        os.utime(place)
        _remove_old(os.fspath(folder))
    return found


def _ignore_lines(top: str) -> bytes:
    try:
        return safefs.read_bounded(os.path.join(top, rules.IGNORE_FILE), rules.IGNORE_BYTES)
    except StorageError:
        return b""


def _load(place: str) -> Replica | None:
    try:
        data = safefs.read_bounded(os.path.join(place, "index"), INDEX_BYTES)
        return Replica(os.path.join(place, ".git"), parse_index(data))
    except (StorageError, ValidationError):
        return None


def _remove_old(folder: str) -> None:
    """Those used longest ago, and what killed processes left."""
    for place in _by_age(folder)[KEPT:]:
        shutil.rmtree(place, ignore_errors=True)


def _by_age(folder: str) -> list[str]:
    """Replicas, the one that was used last first."""
    places: list[tuple[int, str]] = []
    with os.scandir(folder) as found:
        for entry in found:
            with suppress(OSError):  # another process removes it
                places.append((entry.stat().st_mtime_ns, entry.path))
    return [path for _, path in sorted(places, reverse=True)]


def _make(repository: Repository, staying: Staying, folder: str, place: str) -> Replica:
    older = _by_age(folder)
    new = tempfile.mkdtemp(prefix=".new-", dir=folder)
    try:
        write(Making(repository, staying, new, older))
        replica = Replica(os.path.join(new, ".git"), _index(os.path.join(new, ".git")))
        safefs.write_private(os.path.join(new, "index"), replica.files.encode())
        try:
            os.rename(new, place)
        except OSError:  # another process made it meanwhile, or a part of it stood there
            if (found := _load(place)) is not None:
                return found
            shutil.rmtree(place, ignore_errors=True)
            os.rename(new, place)
        return replica._replace(root=os.path.join(place, ".git"))
    except OSError as e:
        raise safefs.storage_error("make the git metadata", e) from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _index(root: str) -> TreeIndex:
    files = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            found = os.lstat(path)
            inner = os.fsencode(os.path.relpath(path, root))
            files.append(Found(inner, Kind.FILE, found.st_size, stamp_of(found)))
    return read_index(Scan(root, tuple(sorted(files)), ()))
