"""The relay's two clocks, as a value that a test can turn."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch: what manifests and items speak of."""

    def ticks_ms(self) -> int:
        """Milliseconds that only go forward: for pauses and time-outs within one process."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def ticks_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
