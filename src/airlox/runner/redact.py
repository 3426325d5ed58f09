"""Paths of the machine taken out of what a job printed, before it is shown or signed.

`/home/ann/.cache/airlox/…/work/x.py` becomes `$WORK/x.py`. Pure: the paths are arguments.

Rules
- The longest path that fits wins; replacement text is never looked at again.
- A path ends where its last name ends: `/work` is not in `/workshop`.
- A path of a single name (`/out`) is replaced only where a path can begin, for it stands inside
  many longer ones; the others anywhere (`-I/home/ann/include`).
- In a stream the outcome does not depend on how the bytes are cut into pieces. At most one path
  length (and two bytes) is held back until it is known whether a path has come.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

_AFTER: Final = 2
"""Bytes after a path that decide whether it ends there."""
_END_OF_NAME: Final = rb"(?![A-Za-z0-9_\x80-\xff])"
_END_OF_ONLY_NAME: Final = rb"(?![A-Za-z0-9_\x80-\xff-]|\.[A-Za-z0-9])"
_STARTS_HERE: Final = rb"(?<![A-Za-z0-9_.~$\x80-\xff-]/)"
"""After the slash of a path: what stands before that slash is no part of a name."""


class Redactor:
    """A fixed set of paths and what stands for each. Safe to share."""

    def __init__(self, rules: Iterable[tuple[str, str]]) -> None:
        """`rules`: absolute path and replacement. The root folder and relative paths are
        ignored; of two rules for one path the first counts."""
        self._names: dict[bytes, bytes] = {}
        for path, name in rules:
            plain = path.rstrip("/").encode("utf-8", "surrogateescape")
            if plain.startswith(b"/"):
                self._names.setdefault(plain, name.encode())
        self.paths: Final = tuple(sorted(self._names, key=len, reverse=True))
        self.longest: Final = len(self.paths[0]) if self.paths else 0
        # One literal in front of all alternatives: the search then leaps from slash to slash.
        rests = b"|".join(map(_expression, self.paths))
        self._pattern: Final = re.compile(b"/(?:" + rests + b")" if rests else b"(?!)")

    def clean(self, data: bytes) -> bytes:
        """`data`, complete, without the paths."""
        return self._pattern.sub(lambda found: self._names[found.group()], data)

    def clean_text(self, text: str) -> str:
        return self.clean(text.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")

    def stream(self) -> RedactedStream:
        return RedactedStream(self)

    def _found(self, data: bytes, start: int) -> Iterator[re.Match[bytes]]:
        return self._pattern.finditer(data, start)

    def _undecided(self, data: bytes, start: int) -> int:
        """The first place from `start` on where a path may have begun that is not yet whole."""
        at = data.find(b"/", max(start, len(data) - self.longest - _AFTER))
        while at >= 0:
            tail = data[at:]
            for path in self.paths:
                whole = tail.startswith(path) and len(tail) < len(path) + _AFTER
                if whole or path.startswith(tail):
                    return at
            at = data.find(b"/", at + 1)
        return len(data)


class RedactedStream:
    """One stream through a `Redactor`, piece by piece."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._before = b""
        self._held = b""

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def feed(self, data: bytes) -> bytes:
        """What can be let go of after `data` has come."""
        return self._advance(data, final=False)

    def flush(self) -> bytes:
        """The rest, as if nothing came after it. More may be fed all the same."""
        return self._advance(b"", final=True)

    def _advance(self, new: bytes, *, final: bool) -> bytes:
        data = self._before + self._held + new
        at = len(self._before)
        stop = self._stop(data, at, final)
        done: list[bytes] = []
        for found in self._redactor._found(data, at):
            if found.start() >= stop:
                break
            done += (data[at : found.start()], self._redactor._names[found.group()])
            at = found.end()
            if at > stop:  # the place that was undecided lay inside this path
                stop = self._stop(data, at, final)
        done.append(data[at:stop])
        self._held = data[stop:]
        self._before = data[:stop][-1:]
        return b"".join(done)

    def _stop(self, data: bytes, start: int, final: bool) -> int:
        return len(data) if final else self._redactor._undecided(data, start)


def _expression(path: bytes) -> bytes:
    """What must follow the slash that every path begins with."""
    rest = re.escape(path[1:])
    if b"/" not in path[1:]:
        return _STARTS_HERE + rest + _END_OF_ONLY_NAME
    return rest + _END_OF_NAME
