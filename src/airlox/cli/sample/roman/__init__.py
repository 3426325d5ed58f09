"""Roman numerals, so that there is something to test."""

from __future__ import annotations

_LETTERS = (
    *((1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC")),
    *((50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")),
)


def to_roman(number: int) -> str:
    """The numeral of a number from 1 to 3999. Raises ValueError for others."""
    if not 1 <= number <= 3999:
        raise ValueError(f"no Roman numeral for {number}")
    text = ""
    for value, letters in _LETTERS:
        count, number = divmod(number, value)
        text += letters * count
    return text


def from_roman(text: str) -> int:
    """The number of a numeral. Raises ValueError unless it is written as `to_roman` writes it."""
    total, rest = 0, text
    for value, letters in _LETTERS:
        while rest.startswith(letters):
            total, rest = total + value, rest[len(letters) :]
    if not text or rest or not 1 <= total <= 3999 or to_roman(total) != text:
        raise ValueError(f"{text!r} is no Roman numeral")
    return total
