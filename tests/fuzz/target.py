"""What a fuzzing target is, and when an input is a finding.

A target takes any bytes. It may refuse them with an error of `airlox.errors`; whatever else it
raises is a finding: an error that nobody documented, or an assertion about what it accepted, most
often that it encodes to the very bytes it was read from. A refusal's text is held to a bound and
to one line of printable characters, since it ends in logs and terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from airlox.errors import AirloxError, ProtocolError

REFUSAL_CHARS: Final = 1000
"""Most of a refusal's text, its hint included."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parser. `seeds` gives inputs to begin with, of which some are accepted as they are."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    refuses_with: type[AirloxError] = ProtocolError


def accepts(target: Target, data: bytes) -> bool:
    """Whether the target takes `data`. Raises for a finding."""
    try:
        target.run(data)
    except target.refuses_with as refusal:
        text = str(refusal)
        assert len(text) <= REFUSAL_CHARS, f"a refusal of {len(text)} characters"
        assert text.isprintable(), f"a refusal that is not one line: {text!r}"
        return False
    return True
