"""Which of its own acknowledged items a participant has still to link to, also over restarts.

    state/chain-<start of the key>.jsonl     one line for each item the relay acknowledged

Rules
- A line is appended in one go, so several processes of one participant share the file; what they
  posted side by side becomes tips that the next item joins.
- The file is a help, not a record: a line that is lost (no room, a crash, a file that is written
  anew just then) makes a later item link to an older one, and nothing worse. So it is not synced,
  and no post fails for it; what could not be written is remembered by this process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Final

import msgspec

from airlox import safefs
from airlox.client.cache import SessionCache
from airlox.errors import ProtocolError, StorageError
from airlox.protocol.chain import Link
from airlox.protocol.encoding import PublicKey
from airlox.protocol.item import ItemRef

TIPS: Final = 64
"""Most tips that are kept: as many as the files of one result."""
READ_BYTES: Final = 1 << 20
REWRITE_BYTES: Final = 16 * 1024
"""A file longer than this is written anew with nothing but the tips."""


class _Line(msgspec.Struct, omit_defaults=True):
    """An acknowledged item, and the ids of all items it names."""

    item: ItemRef
    seq: int | None = None
    stays: bool = False
    names: list[str] = msgspec.field(default_factory=list)


class Tips:
    """Safe to share between threads and processes."""

    def __init__(self, cache: SessionCache, author: PublicKey) -> None:
        self._cache = cache
        self._name = f"chain-{author[:16]}.jsonl"
        self._unwritten: list[_Line] = []
        self._lock = threading.Lock()

    def all(self) -> list[Link]:
        """The own items that no own item names yet, the one acknowledged last at the end."""
        with self._lock:
            return _fold([*self._read(), *self._unwritten])

    def note(self, link: Link, names: Iterable[ItemRef]) -> None:
        """The relay acknowledged an item, whose `refs` are `names`."""
        line = _Line(link.ref, link.seq, link.stays, [ref.id for ref in names])
        with self._lock:
            try:
                path = self._cache.state_path(self._name)
                safefs.append_line(path, msgspec.json.encode(line), sync=False)
                if os.stat(path).st_size > REWRITE_BYTES:
                    self._write_anew()
            except (StorageError, OSError):
                self._unwritten = [*self._unwritten, line][-TIPS:]

    def _write_anew(self) -> None:
        tips = [_Line(tip.ref, tip.seq, tip.stays) for tip in _fold(self._read())]
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in tips)
        self._cache.save_state(self._name, data)

    def _read(self) -> list[_Line]:
        try:
            data = self._cache.load_state(self._name, READ_BYTES) or b""
        except StorageError:
            return []
        lines = (_parse(line) for line in data.splitlines())
        return [line for line in lines if line is not None]


def _fold(lines: Iterable[_Line]) -> list[Link]:
    tips: dict[str, Link] = {}
    for line in lines:
        for name in line.names:
            tips.pop(name, None)
        tips.pop(line.item.id, None)
        tips[line.item.id] = Link(line.item, line.seq, line.stays)
    return list(tips.values())[-TIPS:]


def _parse(line: bytes) -> _Line | None:
    """A line, or None for one that was torn."""
    try:
        return msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, ProtocolError, UnicodeError, RecursionError):
        return None
