"""What a terminal may be shown of texts and bytes that others wrote.

Names, messages and output come from participants and jobs. A terminal acts on some of what they
may hold: it moves the cursor, sets its title, fills the clipboard, writes from right to left.
`clean` makes a text harmless, `TerminalFilter` does the same to a stream of output, in which
colours and the erasing of the current line pass, since honest programs live by them.

Nothing is dropped: what would act is shown as an escape (`\\x1b`), so that it can be seen.
"""

from __future__ import annotations

import codecs
import re

# Controls but for tab and newline; what reorders or hides the text around it.
_ACTING = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0001\U000e0020-\U000e007f"
)
_IN_TEXT = re.compile(f"[{_ACTING}]")
_IN_LINE = re.compile(f"[\t\n{_ACTING}]")

_SEQUENCE = r"\x1b\[[0-9;:]{0,64}[mK]"
"""Select graphic rendition (colours), and erase in line."""
_IN_STYLED = re.compile(f"(\x1b\\[[0-9;:]{{0,64}}m)|[\n{_ACTING}]")
_IN_OUTPUT = re.compile(f"({_SEQUENCE})|(?![\\b\\r])[{_ACTING}]")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:]{0,64})?\Z")

RESET = "\x1b[0m"


def clean(text: str) -> str:
    """A text of several lines with nothing in it that a terminal would act on."""
    return _IN_TEXT.sub(_escaped, text)


def clean_line(text: str) -> str:
    """The same in one line: newlines and tabs are shown as escapes too."""
    return _IN_LINE.sub(_escaped, text)


def clean_json(document: str) -> str:
    """JSON with the same value, and nothing in it that a terminal would act on."""
    return _IN_TEXT.sub(lambda match: _json_escaped(match[0]), document)


def clean_styled(text: str) -> str:
    """One line in which colours pass and nothing else acts, not even on the line itself; after it
    all colours are off."""
    is_styled = False

    def judge(match: re.Match[str]) -> str:
        nonlocal is_styled
        if match[1] is None:
            return _escaped(match)
        is_styled = True
        return match[1]

    shown = _IN_STYLED.sub(judge, text)
    return shown + RESET if is_styled else shown


class TerminalFilter:
    """Turns the bytes of one output stream into text for a terminal, piece by piece.

    The result does not depend on where the pieces are cut.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.is_styled = False
        """Whether colours were set and may still be on."""

    def feed(self, chunk: bytes, *, final: bool = False) -> str:
        """The text of `chunk`, but for a tail whose meaning the next one decides."""
        text = self._held + self._decoder.decode(chunk, final)
        self._held = ""
        unfinished = None if final else _UNFINISHED.search(text)
        if unfinished is not None:
            text, self._held = text[: unfinished.start()], unfinished[0]
        return _IN_OUTPUT.sub(self._judge, text)

    def _judge(self, match: re.Match[str]) -> str:
        if match[1] is None:
            return _escaped(match)
        self.is_styled = True
        return match[1]


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _json_escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
