"""Changes that keep a document canonical: what a byte at a time seldom does.

Most inputs are JSON with sorted keys, some behind a length of four bytes. A byte that is changed
in one nearly always makes it malformed. Here one value of it is replaced, removed, repeated or
given another name, and the form around it is kept.
"""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any, Final

_DECODER: Final = json.JSONDecoder()
_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**32 - 1, 2**53 - 1, 2**53, 2**64, 1.5),
    *("", "a", "A" * 22, "A" * 43, "x" * 300, "é\u202e", "\0", "../..", "a\nb", "*", "1"),
    *("any", "runner", "owner", "shell", "python", "text", "file", "job", "result", "live"),
    *([], {}, [[]], ["a", "a"]),
)
_NAMES: Final = ("v", "type", "kind", "event", "features", "kinds", "refs", "x", "data", "seq")


def change_value(data: bytes, random: Random) -> bytes | None:
    """`data` with one value of its first JSON object changed; None where it has no such object."""
    start = data.find(b"{")
    if start < 0:
        return None
    # Any byte is a character of this encoding, and comes out again as it was.
    text = data[start:].decode("latin-1")
    try:
        document, end = _DECODER.raw_decode(text)
        if not document:
            return None
        _change(document, random)
        made = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    before, new, after = data[:start], made.encode("latin-1", "replace"), data[start + end :]
    if before[-4:] == end.to_bytes(4, "big"):
        before = before[:-4] + len(new).to_bytes(4, "big")
    return before + new + after


def _change(document: Any, random: Random) -> None:
    """Changes one place in `document`, which is no empty one."""
    places = list(_places(document))
    holder, key = random.choice(places)
    other, name = random.choice(places)
    match random.randrange(5):
        case 0 | 1:
            holder[key] = random.choice(_VALUES)
        case 2:
            holder[key] = copy.deepcopy(other[name])
        case 3 if isinstance(holder, list):
            holder.insert(key, holder[random.randrange(len(holder))])
        case 3:
            holder[random.choice(_NAMES)] = holder.pop(key)
        case _:
            del holder[key]


def _places(value: Any) -> Any:
    """Every place a value stands at: what holds it, and under which key."""
    if not isinstance(value, dict | list):
        return
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        yield from _places(value[key])
