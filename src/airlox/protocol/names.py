"""Names and short texts that people, file systems and terminals get to see.

Three rules live here: what one file name may be (`check_safe_name`), what a path inside an
archive may be (`check_archive_path`), and what a participant may call itself
(`check_display_text`). The sets of refused characters are those of the wire format, neither
wider nor narrower, since being stricter would refuse what other clients accept. Nothing is
trimmed or normalised: a name is accepted as it stands or refused.

What this leaves to others: which extension goes with which kind of file (`payload.py`), entries
of an archive that collide with each other (`archive.py`), and names that only one platform
cannot store, which whoever writes to disk maps.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain
from typing import Final

from airlox.errors import PolicyError, ValidationError
from airlox.protocol import limits

PATH_BYTES: Final = 512
"""Longest name of an archive's entry, in UTF-8 bytes, the last slash of a directory included."""
PATH_DEPTH: Final = 32
"""Most parts of a path inside an archive."""

_SURROGATES: Final = (0xD800, 0xDFFF)

# Separators, controls, and what hides or reorders the characters around it.
_UNSAFE_RANGES: Final = (
    (0x00, 0x1F),
    (0x2F, 0x2F),
    (0x3A, 0x3A),
    (0x5C, 0x5C),
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0x61C, 0x61C),
    (0x180E, 0x180E),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x2064),
    (0x2066, 0x206F),
    _SURROGATES,
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0xE0001, 0xE0001),
    (0xE0020, 0xE007F),
)
_UNSAFE: Final = frozenset(chr(c) for first, last in _UNSAFE_RANGES for c in range(first, last + 1))

# Anything that is blank, invisible or private: two names that look alike must be alike.
_UNSHOWABLE_RANGES: Final = (
    (0x00, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180E, 0x180F),
    (0x200B, 0x200B),
    (0x2028, 0x202E),
    (0x2060, 0x2064),
    (0x2066, 0x206F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    _SURROGATES,
    (0xE000, 0xF8FF),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF9, 0xFFFC),
    (0x13430, 0x1343F),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE007F),
    (0xE0100, 0xE01EF),
    (0xF0000, 0x10FFFF),
)
# Alternating first refused and first allowed code point: an odd rank is refused. A set of every
# one of them would hold 140,000 characters.
_UNSHOWABLE_BOUNDS: Final = tuple(
    chain.from_iterable((first, last + 1) for first, last in _UNSHOWABLE_RANGES)
)

# Unicode White_Space as far as it is not refused everywhere.
_BLANKS: Final = frozenset(
    " \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u202f\u205f\u3000"
)
# What joins the characters beside it, and what selects the form of the character before it.
_JOINERS: Final = frozenset("\u200c\u200d")
_SELECTORS: Final = frozenset(map(chr, (0x34F, *range(0x180B, 0x180E), *range(0xFE00, 0xFE10))))

_DEVICES: Final = frozenset(
    ("con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10)))
)

_SHOWN_CHARS: Final = 80


def quote_name(name: str) -> str:
    """`name` in quotes for a message: cut to a line, with nothing a terminal would act on."""
    return repr(name if len(name) <= _SHOWN_CHARS else name[: _SHOWN_CHARS - 1] + "…")


def lower_ascii(text: str) -> str:
    """`text` in lower case where it is ASCII, else as it is.

    Other letters become ASCII ones (U+212A is a `k` in lower case), and two clients would differ.
    """
    return text.lower() if text.isascii() else text


def check_safe_name(name: str) -> None:
    """Check one file name: of a file item, a job's program, an out file.

    Raises PolicyError when the name is not a single portable component, or starts with a dot.
    """
    fault = _component_fault(name)
    if fault is None and name.startswith("."):
        fault = "starts with a dot"
    if fault is None and len(name.encode()) > limits.FILE_NAME_BYTES:
        fault = f"is longer than {limits.FILE_NAME_BYTES} bytes"
    if fault is not None:
        raise PolicyError(
            f"file name {quote_name(name)} {fault}",
            code="unsafe_name",
            hint="give the file another name",
        )


def check_archive_path(name: str) -> None:
    """Check the name of an archive's entry; that of a directory ends in one slash.

    Raises ValidationError when it is absolute, climbs, is too long or too deep, or when one of
    its parts is not portable. A leading dot is fine here.
    """
    parts = name.removesuffix("/").split("/")
    fault = next((f for part in parts if (f := _component_fault(part)) is not None), None)
    if fault is None and len(parts) > PATH_DEPTH:
        fault = f"is deeper than {PATH_DEPTH} parts"
    if fault is None and len(name.encode()) > PATH_BYTES:
        fault = f"is longer than {PATH_BYTES} bytes"
    if fault is not None:
        raise ValidationError(f"archive path {quote_name(name)} {fault}", code="unsafe_path")


def check_display_text(text: str, what: str, max_chars: int) -> None:
    """Check a text that `what` (a field's name) shows to people: 1 to `max_chars` characters.

    Raises ValidationError for another length, for a character that is invisible or steers the
    text around it, for white space at either end, and for a joiner or selector that has nothing
    to act on and would so make two names look alike.
    """
    if not 1 <= len(text) <= max_chars:
        fault = f"has {len(text)} characters, not 1 to {max_chars}"
    elif any(bisect_right(_UNSHOWABLE_BOUNDS, ord(c)) % 2 for c in text):
        fault = "has a character that cannot be shown safely"
    elif text[0] in _BLANKS or text[-1] in _BLANKS:
        fault = "starts or ends with white space"
    elif _has_stray_joiner(text):
        fault = "has an invisible character without one to act on"
    else:
        return
    raise ValidationError(f"{what} {quote_name(text)} {fault}", code="unsafe_text")


def _has_stray_joiner(text: str) -> bool:
    before = " "
    for here, after in zip(text, text[1:] + " ", strict=True):
        if here in _JOINERS:
            if before in _BLANKS | _JOINERS or after in _BLANKS | _JOINERS | _SELECTORS:
                return True
        elif here in _SELECTORS and before in _BLANKS | _JOINERS | _SELECTORS:
            return True
        before = here
    return False


def _component_fault(name: str) -> str | None:
    """What keeps `name` from being one portable path component, or None."""
    if not name:
        return "has an empty part"
    if name in (".", ".."):
        return "has a part that climbs or stays"
    if not _UNSAFE.isdisjoint(name):
        return "has a character that is not portable"
    if name[-1] in ". ":
        return "has a part ending in a dot or space"
    # Windows drops white space before the first dot: "con .md" opens the console as well.
    if name.split(".", 1)[0].rstrip().lower() in _DEVICES:
        return "has a part that is a device on some systems"
    return None
