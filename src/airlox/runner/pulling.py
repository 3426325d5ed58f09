"""What a job changed in its tree, as one more file to send with the result.

Two looks at the work folder, one before the program starts and one after its end (`tree/compare.py`
has the rules); what differs and matches the job's patterns goes into one archive. What cannot go
is named in the result.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import UNSET

from airlox.errors import AirloxError, JobRefused, TreeError
from airlox.protocol.job import CHANGES_NAME, LeftOut, PullTerms
from airlox.protocol.manifest import ContentType, Manifest
from airlox.runner.outfiles import ARCHIVE_MIME, ITEM_ROOM_BYTES, Gathered, Sendable
from airlox.tree.changes import encode_changes
from airlox.tree.compare import Baseline
from airlox.tree.index import TreeIndex
from airlox.tree.wanted import Wanted

_TABLES_BYTES = 1024
"""What the archive takes beside files and contents."""


def first_look(terms: PullTerms, tree: TreeIndex, work: Path) -> Baseline:
    """Before the program starts. Blocking. Raises JobRefused, StorageError."""
    try:
        wanted = Wanted(terms.patterns, ignored=terms.ignored is not UNSET)
        return Baseline(tree, work, wanted)
    except TreeError as error:
        raise JobRefused(error.message, code=error.code, hint=error.hint) from error


def second_look(baseline: Baseline, manifest: Manifest) -> Gathered:
    """After the last process of the job is gone. Blocking. A folder that cannot be looked at
    costs the files and not the result."""
    if ContentType.ZIP not in manifest.allowed_types:
        return _nothing("the session allows no ZIP archives")
    room = manifest.max_item_bytes - ITEM_ROOM_BYTES - _TABLES_BYTES
    try:
        found = baseline.compare(room)
    except AirloxError as error:
        return _nothing(error.message[:200])
    left_out = tuple(LeftOut(path=left.path, reason=left.reason) for left in found.left_out)
    if not found.changes:
        return Gathered((), left_out)
    body = encode_changes(found.changes)
    return Gathered((Sendable(CHANGES_NAME, "zip", ARCHIVE_MIME, body),), left_out)


def _nothing(reason: str) -> Gathered:
    return Gathered((), (LeftOut(path=".", reason=reason),))
