"""A client of the SDK as a program, for a relay that lies to it: what it is to do as JSON in argv,
what came of it as one JSON line. Run by `measured.py`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from airlox import Session
from airlox.errors import AirloxError


def _stream(session: Session, timeout_s: float) -> Any:
    return [item.text for item in session.stream(timeout_s, history=True)]


def _wait(session: Session, timeout_s: float) -> Any:
    [job] = session.jobs()
    return job.wait(timeout_s).status


def _output(session: Session, timeout_s: float) -> Any:
    [job] = session.jobs()
    return sum(len(piece.data) for piece in job.output(timeout_s))


DEEDS: dict[str, Callable[[Session, float], Any]] = {
    "items": lambda session, _: [item.text for item in session.items()],
    "stream": _stream,
    "wait": _wait,
    "output": _output,
    "runners": lambda session, _: len(session.runners()),
    "audit": lambda session, _: len(session.audit()),
}


def main() -> None:
    link, cache, deed, timeout_s = json.loads(sys.argv[1])
    warnings: list[str] = []
    found: Any = None
    failed: str | None = None
    began = time.monotonic()
    try:
        with Session.join(link, cache_dir=cache, on_warning=warnings.append) as session:
            found = DEEDS[deed](session, timeout_s)
    except AirloxError as error:
        failed = f"{error.code}: {error}"
    took_s = time.monotonic() - began
    told = {"found": found, "failed": failed, "warnings": warnings, "took_s": took_s}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
