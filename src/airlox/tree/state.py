"""What `apply` left in a workspace, so that the next one touches only what differs.

Kept by the runner in a private file beside the workspace, out of the job's reach.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from airlox import safefs
from airlox.errors import EncodingError, LimitError, StorageError, ValidationError
from airlox.tree.index import ENTRIES, INDEX_BYTES, TreeIndex
from airlox.tree.paths import check_folder
from airlox.tree.stamps import Stamp, encode_stamped, parse_stamped

if TYPE_CHECKING:
    import os

    AnyPath = str | os.PathLike[str]

MAGIC: Final = b"axs1\n"
STATE_BYTES: Final = 4 * INDEX_BYTES

_BOOT: Final = struct.Struct(">B")
_COUNT: Final = struct.Struct(">I")
_LENGTH: Final = struct.Struct(">H")


class AppliedState(NamedTuple):
    """The tree in a workspace, one stamp per entry, and the boot in which the stamps were taken.

    `unfinished` holds further paths that may be there because an `apply` did not end. Stamps of
    another boot are not believed: after a power loss a file may lack bytes its times promise.
    """

    tree: TreeIndex
    stamps: tuple[Stamp, ...]
    boot: bytes
    unfinished: tuple[bytes, ...] = ()


def encode_state(state: AppliedState) -> bytes:
    parts = [MAGIC, _BOOT.pack(len(state.boot)), state.boot]
    parts.append(encode_stamped(state.tree, state.stamps))
    parts.append(_COUNT.pack(len(state.unfinished)))
    for path in state.unfinished:
        parts += (_LENGTH.pack(len(path)), path)
    return b"".join(parts)


def parse_state(data: bytes) -> AppliedState:
    """The state that `data` encodes; every other byte string is refused."""
    if len(data) > STATE_BYTES:
        raise LimitError(f"a workspace state is over {STATE_BYTES} bytes")
    if data[: len(MAGIC)] != MAGIC:
        raise EncodingError("these bytes are not a workspace state")
    try:
        (boot_bytes,) = _BOOT.unpack_from(data, len(MAGIC))
        end = len(MAGIC) + _BOOT.size + boot_bytes
        tree, stamps, rest = parse_stamped(data[end:])
        unfinished = _parse_paths(rest)
    except struct.error:
        raise EncodingError("a workspace state is cut short") from None
    return AppliedState(tree, stamps, data[end - boot_bytes : end], unfinished)


def load_state(path: AnyPath) -> AppliedState | None:
    """The state kept at `path`; None when there is none or it is damaged.

    Without it nobody knows which files in a workspace came from a tree: empty the workspace.
    """
    try:
        return parse_state(safefs.read_bounded(path, STATE_BYTES))
    except (StorageError, ValidationError):
        return None


def save_state(path: AnyPath, state: AppliedState) -> None:
    safefs.write_private(path, encode_state(state))


def _parse_paths(data: bytes) -> tuple[bytes, ...]:
    (count,) = _COUNT.unpack_from(data)
    if count > ENTRIES:
        raise LimitError("a workspace state names too many files")
    at = _COUNT.size
    paths: list[bytes] = []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        paths.append(data[at - length : at])
        check_folder(paths[-1])
    if at != len(data):
        raise EncodingError("a workspace state is cut short or has bytes after its end")
    return tuple(paths)
