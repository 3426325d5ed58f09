"""What of a session may be forgotten: jobs that are over, and what goes with them.

With a job go its results, the files by runners that those name, and its cancels. An input file goes
with the last item that names it, if one of its own author's jobs did: nobody can have files of
others forgotten by naming them. Everything else stays, whatever a relay says.
Source: docs/protocol.md, "History".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING

import msgspec

from airlox.errors import EncodingError, LimitError
from airlox.protocol import limits
from airlox.protocol.chain import chosen_refs
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import Kind
from airlox.protocol.keys import Role
from airlox.protocol.payload import JobCancel

if TYPE_CHECKING:
    from airlox.protocol.view import Event, Record

    Records = Mapping[ItemId, Record]


def forgotten_ranges(event: Event) -> list[tuple[int, int]]:
    """The ranges of a `forgotten` event: ascending, apart, all before it. Raises EncodingError."""
    try:
        found = msgspec.convert(event.data.get("ranges"), list[tuple[int, int]])
    except msgspec.ValidationError:
        raise EncodingError("forgotten event without ranges") from None
    if len(found) > limits.FORGOTTEN_RANGES:
        raise LimitError("forgotten event with too many ranges")
    last = -1
    for low, high in found:
        if not last < low <= high < event.seq:
            raise EncodingError("forgotten event with ranges out of order")
        last = high
    return found


def goes_with_a_job(record: Record) -> bool:
    """Whether an item is a job, a result, a file by a runner or a cancel."""
    if record.envelope is None or record.author is None:
        return True  # nothing that anybody could use
    header, role = record.envelope.header, record.author.role
    if header.kind is Kind.EVENT:
        if record.item is not None:
            return isinstance(record.item.meta, JobCancel)
        return role is not Role.OWNER or bool(chosen_refs(header))
    return header.kind in (Kind.JOB, Kind.RESULT) or (
        header.kind is Kind.FILE and role is Role.RUNNER
    )


def inputs_of(records: Records, jobs: Iterable[ItemId]) -> set[ItemId]:
    """The files that jobs of their own authors name, as far as they are known."""
    found = set()
    for job in jobs:
        author = _author_of(records, job, Kind.JOB)
        for item in _named_by(records[job]) if author else ():
            if _author_of(records, item, Kind.FILE) == author:
                found.add(item)
    return found


def named_alone(records: Records, files: Set[ItemId], going: Set[ItemId]) -> set[ItemId]:
    """Those of `files` that nothing names which stays when they and `going` go. Looks at each
    record once: files may name files, in rows as long as their author likes."""
    free = set(files)
    leaving = free | going
    staying = [record for item, record in records.items() if item not in leaving]
    while free and staying:
        for item in _named_by(staying.pop()):
            if item in free:
                free.discard(item)
                if item not in going and item in records:
                    staying.append(records[item])
    return free


def _author_of(records: Records, item: ItemId, kind: Kind) -> str | None:
    """Who signed an item of that kind; None for any other."""
    record = records.get(item)
    if record is None or record.envelope is None or record.envelope.header.kind is not kind:
        return None
    return record.envelope.author


def _named_by(record: Record) -> list[ItemId]:
    if record.envelope is None or not record.envelope.header.refs:
        return []
    return [ItemId(ref.id) for ref in chosen_refs(record.envelope.header)]
