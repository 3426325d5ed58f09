"""Tests with the standard library alone, so that they run wherever there is a Python."""

from __future__ import annotations

import unittest

from . import from_roman, to_roman


class TestRoman(unittest.TestCase):
    def test_known_numerals(self) -> None:
        for number, text in ((1, "I"), (4, "IV"), (1987, "MCMLXXXVII"), (3999, "MMMCMXCIX")):
            assert to_roman(number) == text

    def test_every_numeral_reads_back(self) -> None:
        for number in range(1, 4000):
            assert from_roman(to_roman(number)) == number

    def test_others_are_refused(self) -> None:
        for text in ("", "IIII", "VX", "MMMM", "i", "X "):
            with self.assertRaises(ValueError):  # noqa: PT027
                from_roman(text)


if __name__ == "__main__":
    unittest.main()
