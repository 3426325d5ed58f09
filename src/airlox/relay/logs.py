"""Logs as one JSON object per line on standard error.

What a line may hold is decided where it is written: session ids, reasons, sizes, counts. Never
tokens, keys, documents, names of people, query strings or addresses.
"""

from __future__ import annotations

import logging
import sys
import time

import msgspec

_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line.update({k: v for k, v in vars(record).items() if k not in _ORDINARY})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def set_up(level: str) -> None:
    """Sends everything to standard error. The server library's own words are left out: it knows
    requests by their addresses, and errors of ours are logged by ourselves."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
