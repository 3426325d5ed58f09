"""When a long transfer is told of, and how."""

from __future__ import annotations

import pytest

from airlox import Progress
from airlox.cli.progress import LINE_S, REDRAW_S, SILENT_S, Transfers, text

from .test_output import Spoken

TOTAL = 84_000_000


class Bench:
    """Transfers with a clock that stands still until it is set forward."""

    def __init__(self, *, terminal: bool) -> None:
        self.said = Spoken(terminal=terminal, environ={"NO_COLOR": "1"})
        self.now = 1000.0
        self.transfers = Transfers(self.said.voice, lambda: self.now)

    def hear(self, done: int, *, what: str = "tree", total: int = TOTAL) -> None:
        self.transfers.hear(Progress(what, done, total))


@pytest.mark.parametrize("terminal", [True, False])
def test_a_short_one_is_not_told_of(terminal: bool) -> None:
    bench = Bench(terminal=terminal)
    for done in range(0, TOTAL + 1, TOTAL // 100):
        bench.hear(done)
        bench.now += SILENT_S / 200
    assert bench.said.err.text == ""


def test_on_a_terminal_one_line_is_drawn_anew_and_is_gone_in_the_end() -> None:
    bench = Bench(terminal=True)
    bench.hear(0)
    bench.now += SILENT_S
    bench.hear(TOTAL // 4)
    bench.hear(TOTAL // 3)  # too soon to draw again
    bench.now += REDRAW_S
    bench.hear(TOTAL // 2)
    bench.hear(TOTAL)
    shown = bench.said.err.text
    assert shown.split("\r\x1b[2K") == [
        "sending the tree [======                  ] 25 % of 84.0 MB, 21.0 MB/s",
        "sending the tree [============            ] 50 % of 84.0 MB, 38.2 MB/s",
        "",
    ]


def test_output_takes_its_place() -> None:
    bench = Bench(terminal=True)
    bench.hear(0)
    bench.now += SILENT_S
    bench.hear(TOTAL // 4)
    bench.said.voice.note("box · job x")
    assert bench.said.err.text.endswith("\r\x1b[2Kbox · job x\n")


def test_elsewhere_a_line_comes_now_and_then() -> None:
    bench = Bench(terminal=False)
    for done in range(0, TOTAL, TOTAL // 120):
        bench.hear(done)
        bench.now += 0.1
    lines = bench.said.err.text.splitlines()
    assert len(lines) == 1 + int((12 - SILENT_S) / LINE_S)
    assert lines[0].startswith("sending the tree 8 % of 84.0 MB, ")


def test_each_transfer_has_its_own_second() -> None:
    bench = Bench(terminal=False)
    bench.hear(0)
    bench.now += SILENT_S
    bench.hear(5, what="upload")
    bench.hear(5, what="download")
    bench.hear(5, what="download", total=99)
    bench.hear(1, what="download", total=99)  # sent again after a broken line
    assert bench.said.err.text == ""
    bench.now += SILENT_S
    bench.hear(33, what="download", total=99)
    assert bench.said.err.text == "fetching 33 % of 99 B, 33 B/s\n"


def test_text_from_end_to_end() -> None:
    assert text(Progress("upload", 0, 1000), 0.0, bar=True) == (
        f"sending [{' ' * 24}] 0 % of 1 kB, ?/s"
    )
    assert text(Progress("upload", 999, 1000), 1.0, bar=False) == "sending 99 % of 1 kB, 999 B/s"
