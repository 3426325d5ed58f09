"""Why the relay says no, and the one place where that becomes an HTTP status and a code."""

from __future__ import annotations

import logging
from typing import NamedTuple

from airlox.errors import AirloxError, PolicyError, ProtocolError, StorageError
from airlox.protocol.wire import STATUS_OF

log = logging.getLogger("airlox.relay")


class Refusal(AirloxError):
    """A request the relay does not carry out; `code` is one of `wire.STATUS_OF`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code=code)


class Answer(NamedTuple):
    status: int
    code: str
    message: str


_STORAGE = {
    "full": ("full", "the relay has no room left"),
    "busy": ("busy", "the relay is behind with its disk; try again in a moment"),
    "not_found": ("evicted", "the bytes are not on the relay"),
}
_DISK_FAILED = ("busy", "the relay's disk failed; its log says why")


def answer_for(error: Exception) -> Answer:
    """Status, code and message of an error. One that nobody foresaw is logged and told to nobody.

    A ProtocolError that arrives here is about a document the caller sent.
    """
    if isinstance(error, Refusal):
        code, message = error.code, error.message
    elif isinstance(error, PolicyError):
        code = error.code if error.code in STATUS_OF else "policy"
        message = error.message
    elif isinstance(error, ProtocolError):
        code, message = "bad_request", error.message
    elif isinstance(error, StorageError):
        code, message = _STORAGE.get(error.code, _DISK_FAILED)
    elif isinstance(error, TimeoutError):
        code, message = "bad_request", "the request's body did not arrive in time"
    else:
        log.error("request failed", exc_info=error)
        return Answer(500, "error", "the relay failed; its log says why")
    return Answer(STATUS_OF[code], code, message)


def refuse(code: str, error: ProtocolError) -> Refusal:
    """The refusal of a document that does not verify; policy keeps its own code."""
    if isinstance(error, PolicyError):
        return Refusal(error.code if error.code in STATUS_OF else "policy", error.message)
    return Refusal(code, error.message)
